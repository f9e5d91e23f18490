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
from itertools import pairwise

from bench import process
from bench.host.ranks import refuse_ranks
from bench.records import report, results, tables
from bench.records.columns import COLUMNS, describe_change, describe_work, format_number
from bench.records.verdict import compare_runs
from bench.run import find_device, has_result, measure_rounds, read_machine
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
HOPELESS = 0.3  # times as fast: no other change makes up for that, as for 16 bits that a CPU emulates
SEARCH_END = 0.7  # share of the time after which no change is begun, but the first ones
LEAST_LIMIT, LIMIT_SHARE = 120, 0.15  # a process is ended after the longer of: these seconds, this share of the time
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
        path: the default, and the fastest after each step.
        gains: {candidate: its Comparison with the fastest before it}, of the last step that measured it.
        final: {the fastest: its Comparison with the default}; {} without one.
    """

    def __init__(self, run: Run, values, doubles, host, max_minutes):
        """Prepare a search over {setting: its values, the default first}; if `doubles`, the last is the batch size."""
        self.values, self.doubles, self.host = values, doubles, host
        self.began, self.max_seconds = time.monotonic(), 60 * max_minutes
        self.path = [tuple(texts[0] for texts in values.values())]
        self.rows, self.gains, self.final, self.rounds = {}, {}, {}, 0
        # The same candidate is the same run in all steps.
        self.find_run = functools.cache(
            lambda candidate: run.with_settings(**dict(zip(values, candidate, strict=True)))
        )

    def run_steps(self):
        """Take steps until no change gains or the time is over, then compare the fastest with the default."""
        while (changes := self.list_changes()) and (not self.rows or self.used() < SEARCH_END):
            log.info("the fastest so far (%s) and %s", self.describe(self.path[-1]), self.list_in_words(changes))
            try:
                self.compare([self.path[-1], *changes], ROUNDS, self.gains)
            finally:  # after Ctrl-C, what was measured counts
                ratios = {each: self.gains[each].ratio for each in changes if each in self.gains}
                better = [each for each, ratio in ratios.items() if ratio.low > 1 and ratio.throughput >= MIN_GAIN]
                self.path += sorted(better, key=lambda each: ratios[each].throughput)[-1:]
        if len(self.path) > 1:
            self.compare([self.path[0], self.path[-1]], FINAL_ROUNDS, self.final)

    def used(self):
        """Return the share of MAX_MINUTES that is over."""
        return (time.monotonic() - self.began) / self.max_seconds

    def compare(self, candidates, count, found):
        """Measure candidates as a list is; add {candidate: its Comparison with the first one} to `found`."""
        limit = max(LEAST_LIMIT, LIMIT_SHARE * self.max_seconds) if self.rows else process.FIRST_LIMIT
        runs = {self.find_run(each): each for each in candidates}
        measured = {each: [] for each in candidates}
        numbers = range(self.rounds + 1, self.rounds + count + 1)
        try:
            with report.progress(count * len(candidates)) as show:
                for rows_by_run in measure_rounds(list(runs), self.host, show, numbers, limit):
                    self.rounds += 1
                    for run, rows in rows_by_run.items():
                        measured[runs[run]] += rows
                        self.rows.setdefault(runs[run], []).extend(rows)
                    if count == ROUNDS and self.used() >= 1:
                        break
        finally:
            pairs = {each: compare_runs(rows, measured[candidates[0]], COLUMNS) for each, rows in measured.items()}
            found |= {each: pair for each, pair in pairs.items() if pair and each != candidates[0]}

    def list_changes(self):
        """List the single changes of the fastest that were not measured; if there are none, the doubled batch size.

        Values that failed, that were hopeless, or that were replaced before, are left out.
        """
        here = self.path[-1]
        compared = slice(-1 if self.doubles else None)  # with another batch size a change is not tried again
        known = {each[compared] for each in self.rows}
        hopeless = [each for each, gain in self.gains.items() if gain.ratio.throughput < HOPELESS]
        excluded = [*self.path, *self.failures(), *hopeless]
        changes = []
        for i, texts in enumerate(self.values.values()):
            for text in texts:
                change = (*here[:i], text, *here[i + 1 :])
                if change[compared] not in known and all(each[i] != text for each in excluded):
                    changes.append(change)
        doubled = (*here[:-1], str(2 * int(here[-1]))) if self.doubles else here
        return changes or ([doubled] if doubled not in (here, *self.rows) else [])

    def failures(self):
        """Return {candidate: row} of those whose last process failed."""
        return {each: rows[-1] for each, rows in self.rows.items() if rows[-1]["status"] not in ("ok", "interrupted")}

    def describe(self, candidate, before=None):
        """Describe how a candidate differs from another one, or from the default."""
        cells = [
            dict(zip(map(str.lower, self.values), each, strict=True)) for each in (before or self.path[0], candidate)
        ]
        return describe_change(*cells) or "the default"

    def list_in_words(self, changes):
        """Describe changes of the fastest so far."""
        return "; ".join(f"+ {self.describe(each, self.path[-1])}" for each in changes)

    def answer(self):
        """Return {candidate: its result} of the path up to the answer.

        It is only the default if the fastest failed, or was slower in a final pair; {} if the default has no result.
        """
        is_slower = any(each.ratio.low <= 1 for each in self.final.values())
        path = self.path[:1] if is_slower or self.path[-1] in self.failures() else self.path
        return {each: tables.combine_rows(self.rows[each])[0] for each in path if has_result(self.rows.get(each, []))}

    def describe_answer(self):
        """Return the lines of the answer: the headline, each step, warnings, what failed or was not tried."""
        steps = self.answer()
        default, row = steps[self.path[0]], list(steps.values())[-1]
        words, headline = self.describe(self.path[-1]), "the default is the fastest"
        if self.final:
            gain = describe_gain(self.final[self.path[-1]])
            headline += f"; {words} was {gain} in the last comparison"
            if len(steps) > 1:
                headline = f"{gain.replace('as fast', 'as fast as the default', 1)}: {words}"
        elif len(steps) > 1:
            headline = f"the fastest so far, without the last comparison: {words}"
        where = f"{row['framework']} {row['framework_version']} on {row['device_name']}"
        lines = [f"{describe_work(default)}, {where}", headline]
        lines.append(f"  the default: {format_number(default['throughput'])} {row['unit']}")
        for before, step in pairwise(steps):
            rate = f"{format_number(steps[step]['throughput'])} {row['unit']}"
            lines.append(f"  + {self.describe(step, before)}: {rate}, {describe_gain(self.gains[step])}")
        if row["flags"]:
            lines.append(report.explain_flags(row["flags"].split()))
        for each, failed in self.failures().items():
            lines.append(f"failed: {self.describe(each)}: {failed['status']}: {failed['note']}")
        if untried := self.list_changes():
            lines.append(f"not tried: {self.list_in_words(untried)} (a larger MAX_MINUTES tries more)")
        return lines


def describe_gain(comparison):
    """Describe how much faster a candidate is."""
    ratio, low, high = comparison.ratio
    interval = f"{low:.2f} to {high:.2f}, " if comparison.pairs > 1 else ""
    return f"{ratio:.2f} times as fast ({interval}{report.describe_pairs(comparison)})"


def finish(search):
    """Print the answer, and how to measure it again; return whether there is one."""
    steps = search.answer()
    if search.path[0] not in steps:
        return False
    print("\n".join(search.describe_answer()))
    run = search.find_run(list(steps)[-1])
    used = [name.upper() for name in DECLARED if run.settings.cell(name) is not None]
    names = [name for name in used if name in run.environ]
    words = [f"{name}={shlex.quote(run.environ[name])}" for name in names if name not in NOT_REPEATED]
    print(f"\nTo measure it again:\n    make {run.command} {' '.join(words)}")
    print("To set the same in a script of your own: docs/best.md\n")
    path = results.path_of(run.settings.results_dir, steps[search.path[0]])
    print(f"added to {results.display_path(path)}", flush=True)
    return True


def main():
    """Search, and print the answer; the exit status is 0 if something was measured."""
    refuse_ranks("make best")
    search_settings, runs = read_search(os.environ)
    run = runs[0].with_settings(SCOPE="device") if search_settings.workload == "image" else runs[0]
    host = read_machine([run])
    log.info("Ctrl-C ends the search and prints the best so far")
    device = find_device(run)
    settings = run.settings.on(device.type)
    run = run.with_settings(MODEL=settings.model, PHASE=settings.phase)
    values, doubles = list_values(run, runs, device)
    if not values:
        raise SettingError(f"nothing is left to try on {device.type}: unset {', '.join(LISTS)}, or set lists of them")
    search = Search(run, values, doubles, host, search_settings.max_minutes)
    try:
        search.run_steps()
    finally:  # also after Ctrl-C
        with process.deferred_interrupts():
            has_answer = finish(search)
    if not has_answer:
        note = search.failures()[search.path[0]]["note"]
        raise SettingError(f"the default failed ({note}): `make {run.command}` shows more")
    return 0


if __name__ == "__main__":
    sys.exit(process.run_script(main))
