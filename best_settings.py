"""Find the fastest settings of a workload on this machine, and the gain of each change.

    make best
    MODEL=mobilenet_v2 PHASE=training make best
    WORKLOAD=transformer MAX_MINUTES=40 make best
    PRECISION=float32 COMPILE=0,1 make best             one value is held fixed, a list restricts what is tried

The fastest so far and single changes of it are compared as a list is, in three rounds. A change that is faster in each,
and by 2 % in the median, is kept; then the batch size is doubled as long as that gains. At the end default and answer
are compared in five rounds: luck in the steps before does not count. docs/best.md says how to set the answer in a
script of one's own.
"""

import functools
import logging
import os
import shlex
import sys
import time
from contextlib import suppress
from itertools import pairwise, takewhile

from bench import process
from bench.records import report, tables
from bench.records.columns import COLUMNS, describe_change, describe_work, format_number
from bench.records.verdict import compare_runs
from bench.run import find_device, has_result, measure_rounds, print_paths, read_machine
from bench.settings import DECLARED, PARTS, Run, SettingError, read_runs

log = logging.getLogger("bench")

# {setting: {device: values that may be faster, the fastest first}}. Those after the default's own are not tried.
TRIED = {
    "PRECISION": {
        "cpu": ("bfloat16", "mixed_bfloat16"),
        "cuda": ("float16", "bfloat16", "mixed_float16", "mixed_bfloat16", "tf32"),
        "mps": ("float16", "bfloat16", "mixed_float16", "mixed_bfloat16"),
    },
    "COMPILE": {"cpu": ("1",), "cuda": ("1", "reduce-overhead"), "mps": ("1",)},
    "MEMORY_FORMAT": dict.fromkeys(("cpu", "cuda", "mps"), ("channels_last",)),
}
LISTS = (*TRIED, "BATCH_SIZE")  # settings that may be a list
# Weights in 16 bits lose small updates: such a training is fast and does not learn.
NOT_IN_TRAINING = ("bfloat16", "float16")
ROUNDS, FINAL_ROUNDS = 3, 5
MIN_GAIN = 1.02  # times faster that a change must be
SEARCH_END = 0.7  # share of the time after which no step is begun
REFUSED = ("RUNS", "NUM_DEVICES", "SCOPE", "EPOCHS", "SUSTAIN", "NUM_IMAGES")
NOT_REPEATED = ("MAX_SECONDS", "RESULTS_DIR")


def read_search(environ):
    """Return (the settings of the search, the runs of its workload); raises SettingError, also for other lists."""
    search, *_ = read_runs("best", environ)
    runs = read_runs(search.settings.workload, environ)
    lists = runs[0].choices.keys() & environ.keys() - {*LISTS}
    is_part = ["PHASE"] if runs[0].settings.phase in PARTS else []
    for name in [*is_part, *filter(environ.__contains__, REFUSED), *sorted(lists)]:
        fix = "set a single value" if name in lists else "set PHASE=training" if is_part else "unset it"
        raise SettingError(f"{name}={environ[name]!r} does not suit `make best`, which compares one rate: {fix}")
    return search.settings, runs


def list_values(run: Run, runs, device):
    """Return what a search tries, {setting: its values, the default first}, and whether the batch size is doubled.

    Args:
        run: the default run; its environment has what the user set.
        runs: what the lists of the environment ask for, as read_runs() returns them.
        device: the Device that they run on.
    """
    settings = run.settings.on(device.type, device.emulates_bfloat16)
    left_out = NOT_IN_TRAINING if settings.phase == "training" else ()
    if device.emulates_bfloat16 and settings.phase != "decode":  # which reads half of the bytes
        left_out += ("bfloat16", "mixed_bfloat16")
    values = {}
    for name in filter(run.environ.__contains__, LISTS):
        values[name] = list(dict.fromkeys(str(other.settings.cell(name.lower())) for other in runs))
    for name, on in TRIED.items():
        if name in values or settings.cell(name.lower()) is None:
            continue
        default, faster = str(settings.cell(name.lower())), on.get(device.type, ())
        values[name] = [default]
        for value in faster[: faster.index(default)] if default in faster else faster:
            with suppress(SettingError):  # this framework does not have it in this phase
                run.with_settings(**{name: value})
                values[name] += [value] if value not in left_out else []
    # In prefill and decode a larger batch is another task: more sequences at once.
    doubles = "BATCH_SIZE" not in values and settings.phase not in ("prefill", "decode")
    values = {name: some for name, some in values.items() if len(some) > 1}
    if doubles:
        values["BATCH_SIZE"] = [str(settings.batch_size)]
    return values, doubles


class Search:
    """A search in progress. A candidate is a tuple with one value of each setting; the first one is the default.

    Attributes:
        rows: {candidate: rows of all its processes}.
        path: {the default: None, the fastest after each step: its Comparison with the fastest before it}.
        final: the Comparison of the fastest with the default; None without one.
        error: what has ended the search; None: the search itself.
    """

    def __init__(self, run: Run, values, doubles, host, max_minutes):
        """Prepare a search over {setting: its values, the default first}; if `doubles`, the last is the batch size."""
        self.values, self.doubles, self.host = values, doubles, host
        self.began, self.max_seconds = time.monotonic(), 60 * max_minutes
        self.default = self.fastest = tuple(texts[0] for texts in values.values())
        self.rows, self.path, self.rounds = {}, {self.default: None}, 0
        self.final = self.error = None
        # The same candidate is the same run in all steps.
        self.find_run = functools.cache(
            lambda candidate: run.with_settings(**dict(zip(values, candidate, strict=True)))
        )

    def is_over(self, share=1.0):
        """Return whether this share of MAX_MINUTES is over, or something has ended the search."""
        return bool(self.error) or time.monotonic() - self.began >= share * self.max_seconds

    def run_steps(self):
        """Take steps until nothing gains or the time is over, then compare the fastest with the default."""
        while (changes := self.list_changes()) and not self.is_over(SEARCH_END):
            self.take_step(changes)
        has_gained = self.doubles
        while has_gained and not self.is_over(SEARCH_END):
            *others, batch_size = self.fastest
            has_gained = self.take_step([(*others, str(2 * int(batch_size)))])
        if len(self.path) > 1 and not self.error:
            found = self.compare([self.default, self.fastest], FINAL_ROUNDS)
            self.final = found.get(self.fastest)

    def take_step(self, changes):
        """Measure changes of the fastest, and keep the one that gains most; return whether one gains."""
        log.info("the fastest so far (%s) and %s", self.describe(self.fastest), self.describe_all(changes))
        found = self.compare([self.fastest, *changes], ROUNDS, self.is_over)
        ratios = {each: pair.ratio for each, pair in found.items()}
        better = [each for each, ratio in ratios.items() if ratio.low > 1 and ratio.throughput >= MIN_GAIN]
        if better:
            self.fastest = max(better, key=lambda each: ratios[each].throughput)
            self.path[self.fastest] = found[self.fastest]
        return bool(better)

    def compare(self, candidates, count, is_over=lambda: False):
        """Measure candidates as a list is; return {candidate: its Comparison with the first one}."""
        rows_by_run = {self.find_run(each): [] for each in candidates}
        numbers = takewhile(lambda _: not is_over(), range(self.rounds + 1, self.rounds + count + 1))
        self.rounds += count
        try:
            with report.progress(count * len(candidates)) as show:
                measure_rounds(rows_by_run, self.host, show, numbers)
        except (KeyboardInterrupt, SettingError) as error:  # what was measured counts
            self.error = error
        measured = dict(zip(candidates, rows_by_run.values(), strict=True))
        self.rows |= {each: self.rows.get(each, []) + rows for each, rows in measured.items() if rows}
        first = measured.pop(candidates[0])
        pairs = {each: compare_runs(rows, first, COLUMNS) for each, rows in measured.items()}
        return {each: pair for each, pair in pairs.items() if pair}

    def list_changes(self):
        """List the single changes of the fastest that were not measured; values that failed or were replaced are not.

        A change is not tried again with another batch size.
        """
        here, changes = self.fastest, []
        excluded, end = [*self.path, *self.failures()], len(here) - self.doubles
        known = {each[:end] for each in self.rows}
        for i, texts in enumerate(self.values.values()):
            for text in texts:
                change = (*here[:i], text, *here[i + 1 :])
                if change[:end] not in known and all(each[i] != text for each in excluded):
                    changes.append(change)
        return changes

    def failures(self):
        """Return {candidate: row} of those whose last process failed."""
        return {each: rows[-1] for each, rows in self.rows.items() if rows[-1]["status"] not in ("ok", "interrupted")}

    def describe(self, candidate, before=None):
        """Describe how a candidate differs from another one, or from the default."""
        names = [name.lower() for name in self.values]
        cells = [dict(zip(names, each, strict=True)) for each in (before or self.default, candidate)]
        return describe_change(*cells) or "the default"

    def describe_all(self, changes):
        """Describe changes of the fastest so far."""
        return "; ".join(f"+ {self.describe(each, self.fastest)}" for each in changes)

    def answer(self):
        """Return {candidate: its result} of the path up to the answer.

        It is only the default if the fastest failed, or was slower in a final pair; {} if the default has no result.
        """
        is_slower = self.final and self.final.ratio.low <= 1
        path = [self.default] if is_slower or self.fastest in self.failures() else self.path
        return {each: tables.combine_rows(self.rows[each])[0] for each in path if has_result(self.rows.get(each, []))}

    def describe_answer(self):
        """Return the lines of the answer: the headline, each step, warnings, what failed or was not tried."""
        steps = self.answer()
        default, row = steps[self.default], list(steps.values())[-1]
        words, headline = self.describe(self.fastest), "the default is the fastest"
        if len(steps) > 1:
            gain = describe_gain(self.final, "the default") if self.final else ""
            headline = f"{gain or 'the fastest so far, without the last comparison'}: {words}"
        elif self.final:
            headline += f"; {words} was {describe_gain(self.final)} in the last comparison"
        where = f"{row['framework']} {row['framework_version']} on {row['device_name']}"
        lines = [f"{describe_work(default)}, {where}", headline]
        lines.append(f"  the default: {format_number(default['throughput'])} {row['unit']}")
        for before, step in pairwise(steps):
            rate = f"{format_number(steps[step]['throughput'])} {row['unit']}, {describe_gain(self.path[step])}"
            lines.append(f"  + {self.describe(step, before)}: {rate}")
        if row["flags"]:
            lines.append(report.explain_flags(row["flags"].split()))
        for each, failed in self.failures().items():
            lines.append(f"failed: {self.describe(each)}: {failed['status']}: {failed['note']}")
        if untried := self.list_changes():
            lines.append(f"not tried: {self.describe_all(untried)} (a larger MAX_MINUTES tries more)")
        return lines


def describe_gain(comparison, base=""):
    """Describe how much faster a candidate is than another one, which may be named."""
    ratio, low, high = comparison.ratio
    interval = f"{low:.2f} to {high:.2f}, " if comparison.pairs > 1 else ""
    than = f" as {base}" if base else ""
    return f"{ratio:.2f} times as fast{than} ({interval}{report.describe_pairs(comparison)})"


def finish(search):
    """Print the answer, and how to measure it again; return whether there is one."""
    steps = search.answer()
    if search.default not in steps:
        return False
    print("\n".join(search.describe_answer()))
    run = search.find_run(list(steps)[-1])
    used = [name.upper() for name in DECLARED if run.settings.cell(name) is not None]
    names = [name for name in used if name in run.environ]
    words = [f"{name}={shlex.quote(run.environ[name])}" for name in names if name not in NOT_REPEATED]
    print(f"\nTo measure it again:\n    make {run.command} {' '.join(words)}")
    print("To set the same in a script of your own: docs/best.md\n")
    print_paths(run.settings.results_dir, [steps[search.default]])
    return True


def main():
    """Search, and print the answer; the exit status is 0 if something was measured."""
    search_settings, runs = read_search(os.environ)
    run = runs[0].with_settings(SCOPE="device") if search_settings.workload == "image" else runs[0]
    host = read_machine(run)
    log.info("Ctrl-C ends the search and prints the best so far")
    device = find_device(run)
    settings = run.settings.on(device.type)
    run = run.with_settings(MODEL=settings.model, PHASE=settings.phase)
    values, doubles = list_values(run, runs, device)
    if not values:
        raise SettingError(f"nothing is left to try on {device.type}: unset {', '.join(LISTS)}, or set lists of them")
    search = Search(run, values, doubles, host, search_settings.max_minutes)
    search.run_steps()
    with process.deferred_interrupts():
        has_answer = finish(search)
    if search.error:
        raise search.error
    if not has_answer:
        note = search.failures()[search.default]["note"]
        raise SettingError(f"the default failed ({note}): `make {run.command}` shows more")
    return 0


if __name__ == "__main__":
    sys.exit(process.run_script(main))
