"""Find the fastest settings of a workload on this machine, and the gain of each change.

    make best
    MODEL=mobilenet_v2 PHASE=training make best
    WORKLOAD=transformer MAX_MINUTES=40 make best
    PRECISION=float32 COMPILE=0,1 make best             one value is held fixed, a list restricts what is tried

Each trial of a combination is a process of its own. bench/tune/search.py decides what to try next,
bench/tune/candidates.py lists what can be tried. See `make settings`.
"""

import logging
import os
import sys
import time
from dataclasses import dataclass, field

from bench import processes
from bench.host import environment
from bench.host.ranks import refuse_ranks
from bench.parent import measure_once, measure_rounds, read_machine, store
from bench.records import results
from bench.records.columns import format_number
from bench.records.rows import combine
from bench.settings import KNOWN_NAMES, MAKE_VARIABLES, PARTS, WORKLOADS, Run, SettingError, is_used, read_runs
from bench.tune import answer, candidates
from bench.tune.search import Dimension, Search

log = logging.getLogger("bench")

TRIAL_SECONDS = 3.0  # MAX_SECONDS of a trial
LONG_SECONDS = 10.0  # MAX_SECONDS of a long process unless it is set
ROUNDS = 5  # of long processes
LEAST_LIMIT = 120  # seconds after which a trial is ended
LIMIT_SHARE = 0.15  # share of the time after which a trial is ended, if that is longer
LONG_LIMIT = 600  # seconds after which a long process is ended
ALLOWED = {"RUNS": "1", "NUM_DEVICES": "1", "SCOPE": "device", "EPOCHS": "0"}
ALLOWED |= dict.fromkeys(("SUSTAIN", "NUM_IMAGES"))
NOT_REPEATED = (*MAKE_VARIABLES, "WORKLOAD", "MAX_MINUTES", "MAX_SECONDS", "RESULTS_DIR")


def read_search(environ):
    """Read the settings of `make best`.

    Returns:
        (settings of the search, the runs of its workload, as read_runs() returns them).

    Raises:
        SettingError: also for what a search cannot hold fixed: other quantities, lists of other settings.
    """
    search, *_ = read_runs("best", environ, also=WORKLOADS)
    runs = read_runs(search.settings.workload, environ, also=("best",))
    for name, only in ALLOWED.items():
        if environ.get(name) not in (None, only):
            raise SettingError(f"{name}={environ[name]!r} does not suit `make best`, which measures one rate: unset it")
    for name in sorted(runs[0].choices.keys() - set(candidates.LISTS)):
        if name in environ:
            raise SettingError(f"{name}={environ[name]!r} must be one value in `make best`: run it once for each")
    if runs[0].settings.phase in PARTS:
        raise SettingError(f"PHASE={environ['PHASE']!r} does not suit `make best`: set PHASE=training")
    return search.settings, runs


@dataclass
class Trials:
    """Runs the processes of one search."""

    run: Run  # the default
    host: environment.Host
    limit: float  # seconds after which a trial is ended
    longest: float  # MAX_SECONDS of a long process
    until: float  # second of time.monotonic() after which no round begins
    dimensions: list[Dimension] = field(default_factory=list)
    is_first: bool = True

    def attempt(self, candidate):
        """Run a candidate in a process of its own, log its rate, and return its row."""
        limit = self.limit if not self.is_first else processes.FIRST_LIMIT
        self.is_first = False
        try:
            run = self.run_of(candidate, min(TRIAL_SECONDS, self.longest))
            row = measure_once(run, self.host, round(limit), has_extras=False)
        except SettingError as error:
            row = {"status": "failed", "note": str(error), "device": None}
        return self.log_rate(candidate, row)

    def run_rounds(self, path, rounds):
        """Run candidates interleaved, and append {candidate: its row} of each round, as Search takes them."""
        candidate_of = {self.run_of(candidate, self.longest, RUNS=str(ROUNDS)): candidate for candidate in path}
        log.info("long processes of the default, the fastest and the steps between them, in up to %d rounds", ROUNDS)
        measured = []
        try:
            measure_rounds(
                list(candidate_of), self.host, measured, limit=LONG_LIMIT, has_extras=False, until=self.until
            )
        except SettingError as error:  # what was complete counts
            log.info("no more rounds: %s", error)
        finally:
            for rows_of in measured:
                rows = {candidate_of[run]: rows[-1] for run, rows in rows_of.items()}
                is_cut = len(rows) < len(path) or any(row["status"] == "interrupted" for row in rows.values())
                if rounds or not is_cut:  # else Ctrl-C ended the first round
                    rounds.append({candidate: self.log_rate(candidate, row) for candidate, row in rows.items()})

    def run_of(self, candidate, seconds, **texts):
        """Return the run of a candidate that measures this long, with more settings."""
        change = candidates.change_of(self.dimensions, candidate)
        return self.run.with_settings(**change, MAX_SECONDS=f"{seconds:g}", **texts)

    def log_rate(self, candidate, row):
        """Log the rate of a candidate, and return its row."""
        result = f"{row['status']}: {row['note']}"
        if row["status"] == "ok":
            result = f"{format_number(row['throughput'])} {row['unit']}"
        log.info("%s: %s", candidates.describe_candidate(self.dimensions, candidate), result)
        return row


def combine_path(search):
    """Return {candidate: the combined row of its long processes}, from the default to the fastest."""
    steps = search.measured_path()
    # The order in the file is that of the path, which starts with the default.
    shared = {"search": search.trials[search.default]["run_id"]} if search.default in steps else {}
    return {each: combine([[row] for row in search.rows_of(each)])[0] | shared for each in steps}


def main():
    """Search, and print the answer; the exit status is 0 if something was measured."""
    refuse_ranks("make best")
    begun = time.monotonic()
    search_settings, runs = read_search(os.environ)
    run = runs[0]
    if is_used("scope", search_settings.workload):
        run = run.with_settings(SCOPE="device")
    host = read_machine([run])
    longest = run.settings.max_seconds if "MAX_SECONDS" in os.environ else LONG_SECONDS
    available = 60 * search_settings.max_minutes
    trials = Trials(run, host, max(LEAST_LIMIT, LIMIT_SHARE * available), longest, until=begun + available)
    log.info("trying the default first; Ctrl-C ends the search and prints the best so far")
    first = trials.attempt(())  # no change: the default, whose row says what else can be tried
    if not first["device"]:
        raise SettingError(f"the default failed ({first['note']}): `make {search_settings.workload}` shows more")
    trials.dimensions = candidates.list_dimensions(run, runs, first)
    search = Search(
        trials.dimensions, trials.attempt, trials.run_rounds, used=lambda: (time.monotonic() - begun) / available
    )
    search.trials[search.default] = first
    status = 0
    stored = ""
    try:
        search.run()
    except KeyboardInterrupt:
        status = processes.INTERRUPTED
    with processes.interrupts_held():
        rows = combine_path(search)
        try:
            if rows:
                path = store(run.settings.results_dir, list(rows.values()))
                stored = f"added to {results.display_path(path)}"
        except results.ResultsError as error:
            status = processes.MISTAKE
            stored = str(error)
    fastest = search.fastest()
    print("\n".join(answer.describe_answer(search, rows)))
    if fastest:
        change = candidates.change_of(search.dimensions, fastest)
        environ = run.with_settings(**change).environ
        repeated = [name for name in dict.fromkeys((*KNOWN_NAMES, *change)) if name not in NOT_REPEATED]
        used = {name: environ[name] for name in repeated if name in environ}
        use = answer.describe_use(run.settings.framework, first["device"], search_settings.workload, used)
        print("\n".join(use))
    print(f"\n{stored}" if stored else "")
    return status or (0 if fastest else 1)


if __name__ == "__main__":
    sys.exit(processes.run_script(main))
