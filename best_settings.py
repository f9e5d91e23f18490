"""The fastest settings of a workload on this machine, and what each change gave.

    make best
    MODEL=mobilenet_v2 PHASE=training make best
    WORKLOAD=transformer MAX_MINUTES=40 make best
    PRECISION=float32 COMPILE=0,1 make best             one value is held fixed, a list restricts what is tried

Each look at a candidate is an ordinary run in a process of its own. The search is bench/search.py, what it tries
bench/candidates.py. At the end the default and the leader are measured again, in turn. `make help` lists the settings.
"""

import logging
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from bench import candidates, combinations, door, recipe
from bench.machine import environment
from bench.rows import columns, report, results
from bench.rows.cells import new_run_id
from bench.search import SECONDS, Dimension, Look, Search
from bench.settings import (
    MAKE_VARIABLES,
    ROOT,
    SEARCH,
    SEARCH_STEP,
    SettingError,
    Settings,
    known_names,
    read_search,
    read_settings,
)
from image_benchmark import image_workload
from mlp_benchmark import mlp_workload
from transformer_benchmark import transformer_workload

log = logging.getLogger("bench")

WORKLOADS = {"image": image_workload, "mlp": mlp_workload, "transformer": transformer_workload}
LEAST_SHARE = 0.4  # of MAX_MINUTES that the search gets, however long measuring again will take
ROUNDS = 3  # of measuring again
LEAST_SECONDS, LEAST_AGAIN = 60, 600  # that a look may take even where less time is left, and a final run
MISTAKE, INTERRUPTED = 2, 130  # exit statuses of a run
NOT_REPEATED = (*MAKE_VARIABLES, "MAKEFLAGS", "WORKLOAD", "MAX_MINUTES", "MAX_SECONDS", "RESULTS_DIR")


@dataclass
class Runs:
    """The runs of one search: starts them, finds their rows.

    Args:
        held: {variable: text} that every run gets.
        begun, ends: time.monotonic() when all began, and when it has to be over.
    """

    workload: str
    held: dict[str, str]
    host: environment.Environment
    path: Path
    begun: float
    ends: float
    search_id: str = field(default_factory=new_run_id)
    seen: set[str] = field(default_factory=set)

    def run(self, change, seconds, step=None):
        """The row of one run; raises SettingError with the reason of a run that left none, or KeyboardInterrupt."""
        change = self.held | change | {"MAX_SECONDS": str(seconds), SEARCH: self.search_id}
        change |= {SEARCH_STEP: step} if step is not None else {}
        command = [sys.executable, str(ROOT / f"{self.workload}_benchmark.py")]
        limit = max(LEAST_SECONDS if step is None else LEAST_AGAIN, round(self.ends - time.monotonic()))
        said = []
        _, status = combinations.run_child(change, said, command=command, limit=limit, show=keep_lines)
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        if status == MISTAKE:
            raise SettingError(said[-1].strip() if said else "a run ended without a reason")
        if status not in combinations.REPORTED_STATUSES:
            settings = read_settings(self.workload, os.environ | change)
            why = combinations.explain_death(settings, status)
            row = combinations.describe_death(settings, self.host, WORKLOADS[self.workload], *why)
            results.append(self.path, row | {"search": self.search_id, "search_step": step})
        return self.new_row()

    def new_row(self):
        found = [row for row in results.read(self.path) if row["search"] == self.search_id]
        found = [row for row in found if row["run_id"] not in self.seen]
        if not found:
            raise SettingError("a run left no row: run it by itself, it says why")
        self.seen.add(found[-1]["run_id"])
        return found[-1]


def keep_lines(pipe, stream, said):
    """What a run prints stays out of sight; its last line on stderr is the reason of a mistake."""
    for line in pipe:
        if stream is sys.stderr:
            said.append(line)


def look_of(row):
    """The Look that a row gives."""
    if row["status"] != "ok":
        return Look(note=f"{row['status']}: {row['note']}")
    low, high = (float(row[name]) if row[name] else None for name in ("throughput_low", "throughput_high"))
    return Look(float(row["throughput"]), low, high, is_doubtful="contended" in row["flags"].split())


def hold(settings, changes):
    """What every run gets beside the environment: the first entry of each list, and one rate alone."""
    given = {name: text for name, text in changes[0].items() if name in os.environ}
    model = {} if {"MODEL", "IMAGE_MODEL"} & set(os.environ) else {"MODEL": settings.model}
    scope = {} if settings.scope is None else {"SCOPE": "device"}
    return given | model | scope | {"MAKEFLAGS": ""}  # make's command line is in the environment too


@dataclass
class Best:
    """A search and what is measured again after it."""

    runs: Runs
    settings: Settings
    dimensions: list[Dimension]
    first: dict  # the row of a run of the default
    search: Search = field(init=False)
    rows: dict[tuple, list[dict]] = field(default_factory=dict)  # of each candidate
    steps: dict[str, tuple] = field(default_factory=dict)  # the candidates that are measured again
    again: dict[str, list[Look]] = field(default_factory=dict)
    took: dict[tuple, float] = field(default_factory=dict)  # seconds of the last run of each candidate

    def __post_init__(self):
        names = [dimension.name for dimension in self.dimensions]
        place = names.index("PRECISION") if "PRECISION" in names else None
        groups = [lambda candidate: True, lambda candidate: candidate[place] == "float32"]
        groups = groups[: 1 if place is None else 2]
        default = tuple(dimension.values[0] for dimension in self.dimensions)
        self.rows[default], self.took[default] = [self.first], time.monotonic() - self.runs.begun
        self.search = Search(self.dimensions, self.look, self.used, groups, self.tell, {default: [look_of(self.first)]})

    def used(self):
        """The share of the search's time that is used; measuring again needs the rest of MAX_MINUTES."""
        total, so_far = self.runs.ends - self.runs.begun, time.monotonic() - self.runs.begun
        again = ROUNDS * sum(self.took.get(each, 0) + self.settings.max_seconds for each in self.leaders())
        again += len(self.dimensions) * statistics.mean(self.took.values())  # the way, about
        return so_far / max(LEAST_SHARE * total, total - again)

    def leaders(self) -> list[tuple]:
        """The default and the leader of each group, those that work."""
        found = [self.search.default] if self.search.works(self.search.default) else []
        found += [each for group in self.search.groups if (each := self.search.leader(group))]
        return list(dict.fromkeys(found))

    def look(self, candidate, seconds, step=None):
        """One run of a candidate; what it cannot do is the Look's note."""
        begun = time.monotonic()
        try:
            change = candidates.change_of(self.dimensions, candidate)
            row = self.runs.run(change, min(seconds, self.settings.max_seconds), step)
        except SettingError as error:
            return Look(note=str(error))
        self.took[candidate] = time.monotonic() - begun
        self.rows.setdefault(candidate, []).append(row)
        return look_of(row)

    def tell(self, candidate):
        """One line about the last look, what is left, and the leader so far."""
        last, leader = self.search.looks[candidate][-1], self.search.leader()
        said = f"{report.four_digits(last.rate)}" if last.rate else last.note
        said += " while other programs ran" * last.is_doubtful
        left = len(self.search.untried) or len(self.search.in_question())
        left = f"{left} {'not tried yet' if self.search.untried else 'in question'}"
        best = (
            f"fastest: {report.four_digits(self.search.rate(leader))}, {self.words(leader)}" if leader else "none works"
        )
        log.info("%s: %s (%s; %s)", self.words(candidate), said, left, best)

    def words(self, candidate):
        return candidates.describe(self.dimensions, candidate)

    def measure_again(self):
        """The default, the way to the leader, and the best in float32, in turn; what is compared three times."""
        leaders, default = self.leaders(), self.search.default
        if not leaders:
            return
        way = self.search.way(self.goal) if default in leaders else leaders[:1]
        self.steps = {str(i): candidate for i, candidate in enumerate(way, start=default not in leaders)}
        if leaders[-1] not in way:
            self.steps["float32"] = leaders[-1]
        for count in range(ROUNDS):
            for step, candidate in self.steps.items():
                is_compared = candidate in (default, self.goal, leaders[-1])
                if is_compared or count == 0 or time.monotonic() < self.runs.ends:
                    look = self.look(candidate, self.settings.max_seconds, step)
                    self.again.setdefault(step, []).append(look)
                    self.search.looks.setdefault(candidate, []).append(look)
                    said = report.four_digits(look.rate) if look.rate else look.note
                    log.info("again, %d of %d: %s: %s", count + 1, ROUNDS, self.words(candidate), said)

    @property
    def goal(self):
        return self.answer(self.search.groups[0])

    def answer(self, group):
        """The fastest of those that were measured again: the longer runs may show that a change gains nothing."""
        known = [each for each in self.steps.values() if self.search.works(each) and group(each)]
        return max(known, key=self.search.rate, default=self.search.leader(group))


def cover(looks):
    """Several runs as one Look: the median, and what covers all of their intervals; None where none has a rate."""
    rates = [look.rate for look in looks if look.rate]
    if not rates:
        return None
    ends = [end for look in looks if look.rate for end in (look.low or look.rate, look.high or look.rate)]
    return Look(statistics.median(rates), min(ends), max(ends))


def times(look, base):
    """How many times as fast, with the interval that follows from the ends of both."""
    return f"{look.rate / base.rate:.3g} times ({look.low / base.high:.3g} to {look.high / base.low:.3g})"


def describe_answer(best, minutes):
    """The lines of the answer, as far as it was measured."""
    search = best.search
    found = {step: cover(looks) for step, looks in best.again.items()}
    found = {step: look for step, look in found.items() if look}
    goal = best.goal
    if goal is None:
        return ["nothing that was tried works: the rows say why"]
    lines = [report.describe_task(best.first)]
    way = [step for step in found if step != "float32"]
    lines += [describe_step(best, step, found, before) for before, step in pairwise([None, *way])]
    lines += describe_fastest(best, "fastest", goal, found)
    if len(search.groups) > 1:
        floats = best.answer(search.groups[1])
        lines += describe_fastest(best, "fastest in float32", floats, found) if floats not in (None, goal) else []
    final = [row for rows in best.rows.values() for row in rows if row["search_step"]]
    doubts = report.explain({flag for row in final for flag in row["flags"].split()} - {"few_windows", "ci_not_met"})
    return lines + describe_search(best, minutes) + ([f"doubts about the final runs:\n{doubts}"] if doubts else [])


def describe_step(best, step, found, before):
    """A line of the way: what was changed, the rate, and the gain over the line before; found: {step: Look}."""
    look, words = found[step], best.words(best.steps[step])
    if before:
        cells = (
            candidates.cells_of(candidates.change_of(best.dimensions, best.steps[each])) for each in (before, step)
        )
        words = f"+ {columns.describe_change(*cells)}"
    count = sum(1 for each in best.again[step] if each.rate)
    rate, low, high = map(report.four_digits, (look.rate, look.low, look.high))
    gain = f", {times(look, found[before])}" if before else ""
    return f"  {words:<28} {rate} {best.first['unit']} ({low} to {high}, {count} run{'s' * (count > 1)}){gain}"


def describe_fastest(best, title, candidate, found):
    """What a winner reaches, and what its lower precision does to the output."""
    step = next((step for step, each in best.steps.items() if each == candidate), None)
    look, base = found.get(step), found.get("0")
    words = f"{title}: {best.words(candidate)}"
    if look is None:
        rate = report.four_digits(best.search.rate(candidate))
        return [f"{words}: {rate} {best.first['unit']} in short looks, not measured again: it may be luck"]
    if base and base is not look:
        words += f", {times(look, base)} the default"
    row = best.rows[candidate][-1]
    error = row["output_error"]
    if error:
        words += f"; its outputs differ from float32's by {100 * float(error):.2g} % (relative L2)"
    elif row["precision"] not in ("float32", "float64"):
        words += "; how far its outputs differ from float32's was not measured"
    return [words]


def describe_search(best, minutes):
    """How long it took, what failed, and what was not tried."""
    search, looks = best.search, sum(map(len, best.search.looks.values()))
    lines = [f"the search took {minutes:.1f} minutes: {len(search.looks)} combinations, {looks} looks"]
    rows = [row for row in best.rows[best.goal] if row["first_step_seconds"] and row["compile"] != "0"]
    if firsts := [float(row["first_step_seconds"]) for row in rows]:
        lines.append(f"compiling: {max(firsts):.3g} s at first, {min(firsts):.3g} s from the compiler's cache")
    for candidate, some in search.looks.items():
        if not search.works(candidate):
            lines.append(f"failed: {best.words(candidate)}: {next(each.note for each in some if not each.rate)}")
    if search.untried:
        predict = search.predictor()
        first = sorted(search.untried, key=predict, reverse=True)[:3]
        lines.append(f"not tried: {len(search.untried)} combinations (a larger MAX_MINUTES tries more), as:")
        lines += [f"  {best.words(each)}" for each in first]
    return lines


def describe_use(best):
    """How to repeat the leader, and what to write in one's own script."""
    candidate = best.goal
    change = candidates.change_of(best.dimensions, candidate)
    asked = {name: os.environ[name] for name in known_names() if name in os.environ} | best.runs.held
    given = {name: text for name, text in asked.items() if name not in NOT_REPEATED}
    settings = read_settings(best.runs.workload, os.environ | best.runs.held | change)
    threads = change.get("NUM_THREADS", best.first["num_threads"])
    threads = os.environ.get("NUM_THREADS") if threads == best.first["num_threads"] else threads  # else its own
    lines = recipe.environment_lines(change)
    lines += recipe.script_lines(settings.framework, settings, best.first["device"], threads)
    again = recipe.line_of_make(best.runs.workload, given, change)
    return ["", "To repeat it:", f"    {again}", "", "In your own script:", *(f"    {line}" for line in lines)]


def main():
    """Search, measure again, and say what was found; the exit status is 0 where something was measured."""
    begun = time.monotonic()
    own, settings, changes = read_search()
    candidates.refuse_unusable(os.environ, changes)
    host = environment.describe_host(settings.machine)
    path = settings.results_dir / f"{host.machine}.csv"
    results.prepare(path)
    runs = Runs(own.workload, hold(settings, changes), host, path, begun, begun + 60 * own.max_minutes)
    log.info("looking at the default first; Ctrl-C ends the search and gives the best so far")
    first = runs.run({}, SECONDS[0])
    best = Best(runs, settings, candidates.list_dimensions(settings, os.environ, changes, first), first)
    best.tell(best.search.default)
    status = 0
    try:
        best.search.run()
        best.measure_again()
    except KeyboardInterrupt:
        status = INTERRUPTED
    print("\n".join(describe_answer(best, (time.monotonic() - begun) / 60)))
    if best.goal:
        print("\n".join(describe_use(best)))
    print(f"\nadded to {os.path.relpath(path)}, search {runs.search_id}")
    return status or (0 if best.goal else 1)


if __name__ == "__main__":
    sys.exit(door.enter(main))
