"""Find the fastest settings of a workload on this machine, and the gain of each change.

    make best
    MODEL=mobilenet_v2 PHASE=training make best
    WORKLOAD=transformer MAX_MINUTES=40 make best
    PRECISION=float32 COMPILE=0,1 make best             one value is held fixed, a list restricts what is tried

The fastest so far and single changes of it are compared as a list is, until none gains. At the end default and answer
are compared once more: luck in the steps before does not count. docs/best.md explains this and the answer.
"""

import functools
import itertools
import logging
import math
import os
import shlex
import sys
import time
from contextlib import suppress

from bench import process
from bench.records import report, tables
from bench.records.columns import COLUMNS, describe_changes
from bench.records.verdict import compare_runs
from bench.run import find_device, has_result, measure_rounds, print_paths, progress, read_machine
from bench.settings import DECLARED, GENERATION, PARTS, Run, SettingError, list_runs, read_runs

log = logging.getLogger("bench")

# {setting: values that may be faster, the fastest first}. Those after the default's own are not tried.
TRIED = {
    "PRECISION": ("float16", "bfloat16", "mixed_float16", "mixed_bfloat16", "tf32"),
    "COMPILE": ("1", "reduce-overhead"),
    "MEMORY_FORMAT": ("channels_last",),
    "BATCH_SIZE": (),  # is doubled, unless it is a list
}
NOT_ON = {"mps": ("tf32", "reduce-overhead"), "cpu": ("tf32", "reduce-overhead", "float16", "mixed_float16")}
NOT_IN_TRAINING = ("float16", "bfloat16")  # weights in 16 bits lose small updates: fast, but it does not learn
ROUNDS, FINAL_ROUNDS = 3, 5
MIN_GAIN = 1.02  # times faster that a change must be
SEARCH_SHARE = 0.7  # of the time; the rest is for the last comparison
REFUSED = ("RUNS", "NUM_DEVICES", "SCOPE", "EPOCHS", "SUSTAIN", "NUM_IMAGES")


def read_search(environ):
    """Return (the settings of the search, the runs of its workload); raises SettingError for what it cannot compare."""
    search, *_ = read_runs("best", environ)
    runs = list_runs(search.settings.workload, search.environ)
    unfit = {*REFUSED, *runs[0].choices} - {*TRIED} | ({"PHASE"} if runs[0].settings.phase in PARTS else set())
    for name in sorted(unfit & environ.keys()):
        fix = "unset it, or set one value of whole steps"
        raise SettingError(f"{name}={environ[name]!r} does not suit `make best`: {fix}")
    return search.settings, runs


def list_values(runs, device):
    """Return what a search tries on a Device, {setting: values other than the default}.

    Args:
        runs: what the lists of the environment ask for, as read_runs() returns them; the first has the defaults.
    """
    settings = runs[0].settings.on(device.type, device.emulates_bfloat16)
    left_out = NOT_IN_TRAINING if settings.phase == "training" else ()
    left_out += NOT_ON.get(device.type, ())
    if device.emulates_bfloat16 and settings.phase != "decode":  # which reads half of the bytes
        left_out += ("bfloat16", "mixed_bfloat16")
    values = {}
    for name, tried in TRIED.items():
        default = str(settings.cell(name.lower()))
        texts = []
        if name in runs[0].environ:
            texts = [str(run.settings.cell(name.lower())) for run in runs]
        elif default != "None":  # else this workload does not use it
            for text in tried[: tried.index(default)] if default in tried else tried:
                with suppress(SettingError):  # this framework does not have it in this phase
                    runs[0].with_settings(**{name: text})
                    texts += [text] if text not in left_out else []
        values[name] = [text for text in dict.fromkeys(texts) if text != default]
    return values


class Search:
    """A search in progress. A candidate is a frozenset of (setting, value), in which it differs from the default.

    Attributes:
        rows: {candidate: rows of all its processes}.
        path: {the default: None, the fastest after each step: its Comparison with the fastest before it}.
        final: the Comparison of the fastest with the default; None without one.
        answer: the fastest; the default if that was faster in one of their last pairs.
        untried: single changes for which there was no time.
        error: what has ended the search; None: the search itself.
    """

    def __init__(self, run: Run, values, doubles, host, max_minutes):
        """Prepare a search over {setting: values}, then over batch sizes if it `doubles` them."""
        self.values, self.doubles, self.host = values, doubles, host
        # The same candidate is the same run in all steps.
        self.find_run = functools.cache(lambda candidate: run.with_settings(**dict(candidate)))
        self.end = time.monotonic() + SEARCH_SHARE * 60 * max_minutes
        self.default = self.fastest = self.answer = frozenset()
        self.rows, self.path, self.numbers = {}, {self.default: None}, itertools.count(1)
        self.untried, self.final, self.error = [], None, None

    def run_steps(self):
        """Take steps until nothing gains or the time is over, then compare the fastest with the default."""
        while (changes := self.list_changes()) and time.monotonic() < self.end:
            self.take_step(changes)
        self.untried = changes
        has_gained = self.doubles
        while has_gained and time.monotonic() < self.end:
            batch_size = 2 * self.find_run(self.fastest).settings.batch_size
            has_gained = self.take_step([self.change("BATCH_SIZE", str(batch_size))])
        if self.fastest != self.default and not self.error:
            self.final = self.compare([self.default, self.fastest], FINAL_ROUNDS)[self.fastest]
        self.answer = self.default if self.final and self.final.ratio.low <= 1 else self.fastest

    def change(self, name, text):
        """Return the fastest candidate with another value of a setting."""
        return frozenset((dict(self.fastest) | {name: text}).items())

    def list_changes(self):
        """List the changes of the fastest that were not measured, but not to values that failed or were replaced."""
        gone = set().union(*self.path, *self.failures())
        pairs = [(name, text) for name, texts in self.values.items() for text in texts if (name, text) not in gone]
        return [each for each in itertools.starmap(self.change, pairs) if each not in self.rows]

    def take_step(self, changes):
        """Measure changes of the fastest, and keep the one that gains most; return whether one gains."""
        log.info("the fastest so far: %s (Ctrl-C ends the search)", describe(self.fastest))
        log.info("changes that are tried: %s", "; ".join(map(describe, changes)))
        found = self.compare([self.fastest, *changes], ROUNDS, self.end)
        gains = {each: pair.ratio.throughput for each, pair in found.items() if pair and pair.ratio.low > 1}
        best = max(gains, key=gains.__getitem__, default=self.fastest)
        if gains.get(best, 1) < MIN_GAIN:
            return False
        self.fastest = best
        self.path[best] = found[best]
        return True

    def compare(self, candidates, count, end=math.inf):
        """Measure candidates as a list is, until a time; return {candidate: its Comparison with the first, or None}."""
        rows_by_run = {self.find_run(each): [] for each in candidates}
        numbers = itertools.takewhile(lambda _: time.monotonic() < end, itertools.islice(self.numbers, count))
        try:
            with progress(count * len(candidates)) as show:
                measure_rounds(rows_by_run, self.host, show, numbers)
        except (KeyboardInterrupt, SettingError) as error:  # what was measured counts
            self.error = error
            self.end = -math.inf
        measured = dict(zip(candidates, rows_by_run.values(), strict=True))
        self.rows |= {each: self.rows.get(each, []) + rows for each, rows in measured.items() if rows}
        return {each: compare_runs(rows, measured[candidates[0]], COLUMNS) for each, rows in measured.items()}

    def failures(self):
        """Return {candidate: row} of those whose last process failed."""
        return {each: rows[-1] for each, rows in self.rows.items() if rows[-1]["status"] not in ("ok", "interrupted")}

    def describe_answer(self):
        """Return the lines of the answer: the gain of each step, what failed or was not tried, the command."""
        lines = [f"the fastest settings: {describe(self.answer)}"]
        if self.fastest != self.default:
            gain = describe_gain(self.final, "the default") if self.final else "not yet compared with the default"
            lines.append(f"{describe(self.fastest)}: {gain}")
        for (before, _), (each, step) in itertools.pairwise(self.path.items()):
            lines.append(f"  + {describe(each - before)}: {describe_gain(step, 'the rate without it')}")
        for each, failed in self.failures().items():
            lines.append(f"failed: {describe(each)}: {failed['status']}: {failed['note']}")
        if self.untried:
            lines.append(f"not tried: {'; '.join(map(describe, self.untried))} (a larger MAX_MINUTES tries more)")
        run = self.find_run(self.answer)
        used = [name.upper() for name in DECLARED if run.settings.cell(name) is not None]
        words = [f"{name}={shlex.quote(run.environ[name])}" for name in used if name in run.environ]
        return [*lines, "", "To measure it again:", f"    make {run.command} {' '.join(words)}"]


def describe(changes):
    """Describe a candidate, or how it differs from another one."""
    return describe_changes({name.lower(): text for name, text in changes}) or "the default"


def describe_gain(comparison, base):
    """Describe how much faster a candidate is than another one."""
    return f"{comparison.ratio.throughput:.2f}x {base} ({report.describe_pairs(comparison)})"


def main():
    """Search, and print the answer; the exit status is 0 if something was measured."""
    search_settings, runs = read_search(os.environ)
    host = read_machine(runs)
    device = find_device(runs[0])
    values = list_values(runs, device)
    settings = runs[0].settings.on(device.type)
    # In prefill and decode a larger batch is another task: more sequences at once.
    doubles = "BATCH_SIZE" not in runs[0].environ and settings.phase not in GENERATION
    if not doubles and not any(values.values()):
        raise SettingError(f"nothing is left to try on {device.type}: unset {', '.join(TRIED)}, or set lists of them")
    fixed = {"MODEL": settings.model, "PHASE": settings.phase, "BATCH_SIZE": str(settings.batch_size)}
    fixed |= {"SCOPE": "device", "DATA": settings.data or "synthetic"}  # CIFAR-10 is as fast, but has to be downloaded
    search = Search(runs[0].with_settings(**fixed), values, doubles, host, search_settings.max_minutes)
    search.run_steps()
    default_rows = search.rows.get(search.default, [])
    if has_result(default_rows):
        result = tables.combine_rows(search.rows[search.answer])
        print(report.describe_run(result, tables.read(settings.results_dir)))
        print("\n".join(search.describe_answer()))
        print("To set the same in a script of your own: docs/best.md\n")
        print_paths(settings.results_dir, result)
    if search.error:
        raise search.error
    if not has_result(default_rows):
        raise SettingError(f"the default failed: {default_rows[-1]['note']}")
    return 0


if __name__ == "__main__":
    sys.exit(process.run_script(main))
