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
from pathlib import Path

from bench import answer, candidates, cli
from bench.launch import Launcher
from bench.machine import environment
from bench.machine.ranks import read_ranks
from bench.rows import report, results
from bench.rows.cells import new_run_id
from bench.search import SECONDS, Dimension, Look, Search
from bench.settings import (
    MAKE_VARIABLES,
    ROOT,
    SEARCH,
    SEARCH_STEP,
    SettingError,
    known_names,
    read_search,
    read_settings,
)
from image_benchmark import image_workload
from mlp_benchmark import mlp_workload
from transformer_benchmark import transformer_workload

log = logging.getLogger("bench")

WORKLOADS = {"image": image_workload, "mlp": mlp_workload, "transformer": transformer_workload}
LEAST_SHARE = 0.5  # of MAX_MINUTES that the search gets, however long measuring again will take
ROUNDS = 3  # of measuring again, where there is time
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

    def run(self, change, seconds, step=None):
        """The row of one run; raises SettingError with the reason of a run that left none, or KeyboardInterrupt."""
        change = self.held | change | {"MAX_SECONDS": str(seconds), SEARCH: self.search_id}
        change |= {SEARCH_STEP: step} if step is not None else {}
        limit = max(LEAST_SECONDS if step is None else LEAST_AGAIN, round(self.ends - time.monotonic()))
        script = str(ROOT / f"{self.workload}_benchmark.py")
        launcher = Launcher(self.workload, WORKLOADS[self.workload], [script], self.host)
        status, rows = launcher.launch(change, limit=limit, captures=True)
        if status == cli.INTERRUPTED:
            raise KeyboardInterrupt
        if not rows:
            raise SettingError("a run left no row: run it by itself, it says why")
        return rows[-1]


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
    """A search, and what is measured again after it."""

    runs: Runs
    max_seconds: float
    dimensions: list[Dimension]
    first: dict  # the row of a run of the default
    search: Search = field(init=False)
    found: answer.Found = field(init=False)
    took: dict[tuple, float] = field(default_factory=dict)  # seconds of the last run of each candidate

    def __post_init__(self):
        names, groups = [dimension.name for dimension in self.dimensions], [lambda candidate: True]
        if "PRECISION" in names:
            groups.append(lambda candidate: candidate[names.index("PRECISION")] == "float32")
        self.search = Search(self.dimensions, self.look, self.used, groups, self.tell)
        default = self.search.default
        self.found = answer.Found(self.dimensions, self.search, {default: [self.first]})
        self.took[default] = time.monotonic() - self.runs.begun
        self.search.add(default, look_of(self.first))

    def used(self):
        """The share of the search's time that is used; measuring again needs the rest of MAX_MINUTES."""
        total, so_far = self.runs.ends - self.runs.begun, time.monotonic() - self.runs.begun
        again = ROUNDS * sum(self.took.get(each, 0) + self.max_seconds for each in self.leaders())
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
            row = self.runs.run(change, min(seconds, self.max_seconds), step)
        except SettingError as error:
            return Look(note=str(error))
        self.took[candidate] = time.monotonic() - begun
        self.found.rows.setdefault(candidate, []).append(row)
        return look_of(row)

    def tell(self, candidate):
        """One line about the last look, what is left, and the leader so far."""
        last, leader = self.search.looks[candidate][-1], self.search.leader()
        said = f"{report.four_digits(last.rate)}" if last.rate else last.note
        said += " while other programs ran" * last.is_doubtful
        left = len(self.search.untried) or len(self.search.in_question())
        left = f"{left} {'not tried yet' if self.search.untried else 'in question'}"
        best = "none works"
        if leader:
            best = f"fastest: {report.four_digits(self.search.rate(leader))}, {self.found.words(leader)}"
        log.info("%s: %s (%s; %s)", self.found.words(candidate), said, left, best)

    def measure_again(self):
        """The default, the way to the leader, and the best in float32: all once, then in turn while there is time."""
        leaders, default = self.leaders(), self.search.default
        if not leaders:
            return
        way = self.search.way(self.found.goal) if default in leaders else leaders[:1]
        self.found.steps = {str(i): candidate for i, candidate in enumerate(way, start=default not in leaders)}
        if leaders[-1] not in way:
            self.found.steps["float32"] = leaders[-1]
        self.look_again(list(self.found.steps))
        for _ in range(1, ROUNDS):  # what the answer compares goes first
            compared = {default, *self.found.answers().values()}
            self.look_again([step for step, each in self.found.steps.items() if each in compared])
        for count in range(1, ROUNDS):
            self.look_again([step for step, looks in self.found.again.items() if len(looks) == count])

    def look_again(self, steps):
        """One more look at each step: the first in any case, others where its candidate works and there is time."""
        for step in steps:
            candidate, looks = self.found.steps[step], self.found.again.setdefault(step, [])
            is_late = time.monotonic() + self.took.get(candidate, 0) > self.runs.ends
            if looks and (is_late or not self.search.works(candidate)):
                continue
            look = self.look(candidate, self.max_seconds, step)
            looks.append(look)
            self.search.add(candidate, look)
            said = report.four_digits(look.rate) if look.rate else look.note
            log.info("again, run %d: %s: %s", len(looks), self.found.words(candidate), said)


def repeat(best):
    """The lines that repeat the fastest candidate."""
    runs, change = best.runs, candidates.change_of(best.dimensions, best.found.goal)
    asked = {name: os.environ[name] for name in known_names() if name in os.environ} | runs.held
    given = {name: text for name, text in asked.items() if name not in NOT_REPEATED}
    settings = read_settings(runs.workload, os.environ | runs.held | change)
    return answer.describe_use(change, settings, runs.workload, given, best.first)


def main():
    """Search, measure again, and say what was found; the exit status is 0 where something was measured."""
    begun = time.monotonic()
    if read_ranks().are_many:
        raise SettingError("RANK and WORLD_SIZE are torchrun's, and `make best` starts its runs itself: unset them")
    own, settings, changes = read_search()
    candidates.refuse_unusable(os.environ, changes)
    host = environment.describe_host(settings.machine)
    path = settings.results_dir / f"{host.machine}.csv"
    results.prepare(path)
    runs = Runs(own.workload, hold(settings, changes), host, path, begun, begun + 60 * own.max_minutes)
    log.info("looking at the default first; Ctrl-C ends the search and gives the best so far")
    first = runs.run({}, SECONDS[0])
    dimensions = candidates.list_dimensions(settings, os.environ, changes, first)
    best = Best(runs, settings.max_seconds, dimensions, first)
    best.tell(best.search.default)
    status = 0
    try:
        best.search.run()
        best.measure_again()
    except KeyboardInterrupt:
        status = INTERRUPTED
    lines = answer.describe(best.found, (time.monotonic() - begun) / 60)
    print("\n".join(lines + (repeat(best) if best.found.goal else [])))
    print(f"\nadded to {os.path.relpath(path)}, search {runs.search_id}")
    return status or (0 if best.found.goal else 1)


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
