"""Find the fastest settings of a workload on this machine, and the gain of each change.

    make best
    MODEL=mobilenet_v2 PHASE=training make best
    WORKLOAD=transformer MAX_MINUTES=40 make best
    PRECISION=float32 COMPILE=0,1 make best             one value is held fixed, a list restricts what is tried

The fastest so far and single changes of it are compared as a list is, until none gains. At the end default and answer
are compared once more: luck in the steps before does not count. docs/best.md explains this and the answer.
"""

import itertools
import logging
import os
import shlex
import sys
import time
from contextlib import suppress
from dataclasses import replace

from bench import process
from bench.records import report, results, tables
from bench.records.columns import COLUMNS, describe_work
from bench.records.verdict import compare_runs
from bench.run import find_device, has_result, measure_rounds, progress, read_machine
from bench.settings import DECLARED, GENERATION, PARTS, Run, SettingError, list_runs, read_runs, read_settings

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
SEARCH_SHARE = 0.7  # the part of the time before the last comparison
REFUSED = ("RUNS", "NUM_DEVICES", "SCOPE", "EPOCHS", "SUSTAIN", "NUM_IMAGES")


def read_search(environ):
    """Return (the settings of the search, the runs of its workload); raises SettingError for what it cannot compare."""
    search, *_ = read_runs("best", environ)
    runs = list_runs(search.settings.workload, search.environ)
    unfit = {*REFUSED, *runs[0].choices} - {*TRIED} | ({"PHASE"} if runs[0].settings.phase in PARTS else set())
    for name in sorted(unfit & search.environ.keys()):
        text = search.environ[name]
        fix = "unset it" if name in REFUSED else "name one" if "," in text else "set PHASE=training"
        raise SettingError(f"{name}={text!r} does not suit `make best`: {fix}")
    return search.settings, runs


def list_values(runs, device):
    """Return what a search tries on a Device, {setting: values other than the default}.

    Args:
        runs: what the lists of the environment ask for, as read_runs() returns them; the first has the defaults.
    """
    settings = read_settings(runs[0].command, runs[0].environ, device.type, device.emulates_bfloat16)
    left_out = NOT_IN_TRAINING if settings.phase == "training" else ()
    left_out += NOT_ON.get(device.type, ())
    if device.emulates_bfloat16 and settings.phase != "decode":  # which reads half of the bytes
        left_out += ("bfloat16", "mixed_bfloat16")
    values = {}
    for name, tried in TRIED.items():
        default = str(getattr(settings, name.lower()))
        texts = []
        if name in runs[0].environ:
            texts = [str(getattr(run.settings, name.lower())) for run in runs]
        elif default != "None":  # else this workload does not use it
            for text in tried[: tried.index(default)] if default in tried else tried:
                with suppress(SettingError):  # this framework does not have it in this phase
                    runs[0].with_settings(**{name: text})
                    texts += [text] if text not in left_out else []
        values[name] = [text for text in dict.fromkeys(texts) if text != default]
    return values


class Search:
    """A search in progress. A candidate is a Run, whose choices are the settings in which it differs from the default.

    Attributes:
        rows: {candidate: rows of all its processes}.
        gains: {candidate: its last comparison with another one, in words}.
        undecided: {candidate: "2 of 3 rounds"}, for which the time was over before that comparison had all of them.
        failed: candidates of which a process failed.
        fastest: the best so far; at the end the default, if that was faster in one of their last pairs, or it failed.
        deadline: when the last process has to end.
        error: what has ended the search; None: the search itself.
    """

    def __init__(self, run: Run, values, doubles, host, max_minutes):
        """Prepare a search over {setting: values}, then over batch sizes if it `doubles` them."""
        self.values, self.doubles, self.host = values, doubles, host
        self.began, self.minutes, self.seconds = time.monotonic(), max_minutes, run.settings.max_seconds
        self.default = self.fastest = replace(run, choices={})
        self.rows, self.gains = {self.default: []}, {}
        self.undecided, self.failed, self.numbers, self.error = {}, set(), itertools.count(1), None

    def run_steps(self):
        """Take steps until nothing gains or the time is over, then compare the fastest with the default."""
        self.deadline = self.began + SEARCH_SHARE * 60 * self.minutes
        while (changes := self.list_changes()) and self.has_time(1 + len(changes)):
            self.take_step(changes)
        self.undecided |= dict.fromkeys(changes, "not tried")
        has_gained = self.doubles
        while has_gained:
            larger = self.change("BATCH_SIZE", str(2 * self.fastest.settings.batch_size))
            if self.undecided or not self.has_time(2):
                self.undecided[larger] = "not tried"
                break
            has_gained = self.take_step([larger])
        self.deadline = self.began + 60 * self.minutes
        if self.fastest is not self.default:
            final = self.compare([self.default, self.fastest], FINAL_ROUNDS)[self.fastest]
            has_lost = self.fastest in self.failed or (final and final.ratio.low <= 1)
            self.fastest = self.default if has_lost else self.fastest

    def has_time(self, count):
        """Return whether a round of `count` processes, as slow as the last ones, ends in time."""
        return not self.error and time.monotonic() + count * self.seconds < self.deadline

    def change(self, name, text):
        """Return the fastest candidate with another value of a setting; what was measured is always the same run."""
        choices = self.fastest.choices | {name: text}
        known = [each for each in self.rows if each.choices == choices]
        return known[0] if known else replace(self.fastest.with_settings(**{name: text}), choices=choices)

    def list_changes(self):
        """List the changes of the fastest that were not measured, but not to values that failed."""
        gone = [pair for each in self.failed for pair in each.choices.items()]
        pairs = [(name, text) for name, texts in self.values.items() for text in texts if (name, text) not in gone]
        return [each for each in itertools.starmap(self.change, pairs) if not self.rows.get(each)]

    def take_step(self, changes):
        """Measure changes of the fastest, and keep the one that gains most; return whether one gains."""
        log.info("the fastest so far: %s (Ctrl-C ends the search)", describe(self.fastest))
        log.info("changes that are tried: %s", "; ".join(map(describe, changes)))
        found = self.compare([self.fastest, *changes], ROUNDS)
        gains = {each: pair.ratio.throughput for each, pair in found.items() if pair and pair.ratio.low > 1}
        gains = {each: gain for each, gain in gains.items() if gain >= MIN_GAIN and each not in self.undecided}
        self.fastest = max(gains, key=gains.__getitem__, default=self.fastest)
        return bool(gains)

    def list_rounds(self, most, count):
        """Yield the numbers of `most` rounds or fewer, each of `count` processes, while there is time."""
        for _ in range(most):
            if not self.has_time(count):
                return
            began = time.monotonic()
            yield next(self.numbers)
            self.seconds = (time.monotonic() - began) / count

    def compare(self, candidates, most):
        """Measure candidates as a list is, in rounds; return {each of the others: its Comparison with the first}."""
        measured = {each: [] for each in candidates}
        try:
            with progress(most * len(candidates)) as show:
                measure_rounds(measured, self.host, show, self.list_rounds(most, len(candidates)))
        except (KeyboardInterrupt, SettingError) as error:  # what was measured counts
            self.error = error
        for each, rows in measured.items():
            self.rows[each] = self.rows.get(each, []) + rows
            if rows and rows[-1]["status"] not in ("ok", "interrupted"):
                self.failed.add(each)
        first, *others = candidates
        found = {each: compare_runs(measured[each], measured[first], COLUMNS) for each in others}
        self.gains |= {each: report.describe_comparison(pair, describe(first)) for each, pair in found.items() if pair}
        for each, pair in found.items():
            self.undecided[each] = f"{pair.pairs if pair else 0} of {most} rounds"
            if each in self.failed or (pair and pair.pairs == most):
                del self.undecided[each]
        return found

    def describe_answer(self, of_runs):
        """Return the lines of the answer: all that was tried, the fastest, what is not decided, the command.

        Args:
            of_runs: {run_id: its results, dicts}.
        """
        tried = [(describe(each), of_runs.get(each.run_id), self.gains.get(each)) for each in self.rows]
        tried = [each for each in tried if each[1]]
        so_far = " so far (a larger MAX_MINUTES tries more)" if self.undecided else ""
        lines = [report.describe_list(tried), "", f"the fastest settings{so_far}: {describe(self.fastest)}"]
        if self.undecided:
            words = (f"{describe(each)} ({why})" for each, why in self.undecided.items())
            lines.append(f"not decided: {'; '.join(words)}")
        run = self.fastest
        used = [name.upper() for name in DECLARED if getattr(run.settings, name) is not None]
        words = [f"{name}={shlex.quote(run.environ[name])}" for name in used if name in run.environ]
        lines += ["", "To measure it again:", f"    make {run.command} {' '.join(words)}"]
        lines += ["To set the same in a script of your own: docs/best.md"]
        if sys.platform == "linux" and self.rows[self.default][0]["device"] == "cpu":
            lines[-1] += ", and start it with"
            lines.append("    MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=1000000000000 python script.py")
        return lines


def describe(candidate: Run):
    """Describe a candidate: "bfloat16 with compiled and channels_last"."""
    changes = {name.lower(): text for name, text in candidate.choices.items()}
    words = [describe_work(changes, [name]) or f"{name} {text}" for name, text in changes.items()]
    first, *others = words or ["the default"]
    return f"{first} with {' and '.join(others)}" if others else first


def main():
    """Search, and print the answer; the exit status is 0 if something was measured."""
    search_settings, runs = read_search(os.environ)
    host = read_machine(runs)
    device = find_device(runs[0])
    values = list_values(runs, device)
    settings = read_settings(runs[0].command, runs[0].environ, device.type)
    # In prefill and decode a larger batch is another task: more sequences at once.
    doubles = "BATCH_SIZE" not in runs[0].environ and settings.phase not in GENERATION
    if not doubles and not any(values.values()):
        raise SettingError(f"nothing is left to try on {device.type}: unset {', '.join(TRIED)}, or set lists of them")
    fixed = {"MODEL": settings.model, "PHASE": settings.phase, "BATCH_SIZE": str(settings.batch_size)}
    fixed |= {"SCOPE": "device", "DATA": settings.data or "synthetic"}  # CIFAR-10 is as fast, but has to be downloaded
    search = Search(runs[0].with_settings(**fixed), values, doubles, host, search_settings.max_minutes)
    search.run_steps()
    default_rows = search.rows[search.default]
    found = tables.read(settings.results_dir)
    of_runs = {each.run_id: tables.to_dicts(found[found["run_id"] == each.run_id]) for each in search.rows}
    answer = of_runs.get(search.fastest.run_id)  # []: it could not be stored
    if has_result(default_rows) and answer:
        print(report.describe_run(answer, tables.latest(found)))
        print("\n".join(search.describe_answer(of_runs)), end="\n\n")
        print(f"added to {results.display_path(results.path_of(settings.results_dir, answer[0]))}", flush=True)
    if search.error:
        raise search.error
    if not has_result(default_rows):
        few = f"MAX_MINUTES={search_settings.max_minutes:g} is over before anything is measured: set more"
        raise SettingError(f"the default failed: {default_rows[-1]['note']}" if default_rows else few)
    return 0


if __name__ == "__main__":
    sys.exit(process.run_script(main))
