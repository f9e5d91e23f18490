"""Find the fastest settings of a workload on this machine, and the gain of each change.

    make best
    MODEL=mobilenet_v2 PHASE=training make best
    WORKLOAD=transformer MAX_MINUTES=40 make best
    PRECISION=float32 COMPILE=0,1 make best             one value is held fixed, a list restricts what is tried

Each trial of a combination is a process of its own. bench/tune/search.py decides what to try next,
bench/tune/candidates.py lists what can be tried. `make help` lists the settings.
"""

import importlib
import logging
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench import cli
from bench.host import environment
from bench.host.ranks import refuse_ranks
from bench.launch import Launcher
from bench.records import results
from bench.records.columns import describe_work, format_number
from bench.records.combine import combine
from bench.settings import KNOWN_NAMES, MAKE_VARIABLES, MODELS, SettingError, list_runs, read_settings, refuse_misspelt
from bench.tune import answer, candidates
from bench.tune.search import Dimension, Search, median_rate

log = logging.getLogger("bench")

# {script: Settings -> Workload}: image_workload() of image_benchmark.py ...
WORKLOADS = {name: getattr(importlib.import_module(f"{name}_benchmark"), f"{name}_workload") for name in MODELS}
TRIAL_SECONDS, FULL_SECONDS = 3.0, 10.0  # MAX_SECONDS of a trial, and of a full run unless it is set
LEAST_LIMIT, LIMIT_SHARE = 120, 0.15  # seconds after which a trial is ended, or this share of the time if longer
FULL_LIMIT = 600  # seconds after which a full run is ended
FIXED = {"RUNS": "1", "NUM_DEVICES": "1", "SCOPE": "device", "EPOCHS": "0", "SUSTAIN": None, "NUM_IMAGES": None}
NOT_REPEATED = (*MAKE_VARIABLES, "MAKEFLAGS", "WORKLOAD", "MAX_MINUTES", "MAX_SECONDS", "RESULTS_DIR")


def open_launcher(script, host):
    """Return the Launcher of a workload's benchmark."""
    return Launcher(script, WORKLOADS[script], [str(Path(__file__).with_name(f"{script}_benchmark.py"))], host)


def read_search(environ):
    """Read the settings of `make best`.

    Returns:
        (settings of the search, settings of its workload, runs of the workload's lists as list_runs() returns them).

    Raises:
        SettingError: also for what a search cannot hold fixed: other quantities, lists of other settings.
    """
    plain = {name: text for name, text in environ.items() if name != "MAKEFLAGS"}
    own = read_settings("best", plain)
    refuse_misspelt((own.workload, "best"), environ)
    settings, changes = read_settings(own.workload, plain), list_runs(own.workload, plain)
    for name, only in FIXED.items():
        if plain.get(name) not in (None, only):
            raise SettingError(f"{name}={plain[name]!r} does not suit `make best`, which measures one rate: unset it")
    if "auto" in plain.get("BATCH_SIZE", "").lower():
        raise SettingError(f"BATCH_SIZE={plain['BATCH_SIZE']!r}: `make best` finds the batch size itself: unset it")
    for name in sorted(set().union(*changes) - set(candidates.LISTS)):
        if name in plain:
            raise SettingError(f"{name}={plain[name]!r} must be one value in `make best`: run it once for each")
    return own, settings, changes


@dataclass
class Runs:
    """Starts the processes of one search."""

    launcher: Launcher
    held: dict[str, str]  # {variable: text} that every process gets
    limit: float  # seconds after which a trial is ended
    longest: float  # MAX_SECONDS of a full run
    dimensions: list[Dimension] = field(default_factory=list)
    started: set = field(default_factory=set)

    def attempt(self, candidate, is_full):
        """Run a candidate in a process of its own, print its rate, and return its row."""
        limit = (FULL_LIMIT if is_full else self.limit) if self.started else cli.FIRST_LIMIT
        change = self.held | candidates.change_of(self.dimensions, candidate)
        change["MAX_SECONDS"] = f"{min(FULL_SECONDS if is_full else TRIAL_SECONDS, self.longest):g}"
        is_first = (candidate, is_full) not in self.started
        self.started.add((candidate, is_full))
        try:
            row = self.launcher.run_child(change, round(limit), is_first, brief=True)[-1]
        except SettingError as error:
            row = {"status": "failed", "note": str(error), "device": None}
        said = f"{row['status']}: {row['note']}"
        if row["status"] == "ok":
            said = f"{format_number(row['throughput'])} {row['unit']}"
        log.info("%s%s: %s", candidates.describe(self.dimensions, candidate), " (full run)" * is_full, said)
        return row | {"allocator": environment.find_allocator(os.environ | change)}


def combine_path(search):
    """Return {candidate: the combined row of its full runs}, from the default to the fastest."""
    steps = [each for each in search.path if median_rate(search.full.get(each, []))]
    fastest = search.fastest()
    steps = steps[: steps.index(fastest) + 1] if fastest in steps else steps
    # The order in the file is that of the path, which starts with the default.
    shared = {"search": search.trials[search.default][0]["run_id"]} if search.default in steps else {}
    return {each: combine([[row] for row in search.full[each]])[0] | shared for each in steps}


def main():
    """Search, and print the answer; the exit status is 0 if something was measured."""
    refuse_ranks("make best")
    begun, status = time.monotonic(), 0
    own, settings, changes = read_search(os.environ)
    launcher = open_launcher(own.workload, environment.describe_host(settings.machine))
    results.prepare(settings.results_dir)
    # make's command line, in MAKEFLAGS, has settings that no process knows.
    held = changes[0] | ({"SCOPE": "device"} if settings.scope else {}) | {"MAKEFLAGS": ""}
    longest = settings.max_seconds if "MAX_SECONDS" in os.environ else FULL_SECONDS
    available = 60 * own.max_minutes
    runs = Runs(launcher, held, max(LEAST_LIMIT, LIMIT_SHARE * available), longest)
    log.info("trying the default first; Ctrl-C ends the search and prints the best so far")
    first = runs.attempt((), is_full=False)
    if not first["device"]:
        raise SettingError(f"the default failed ({first['note']}): `make {own.workload}` shows more")
    runs.dimensions = candidates.list_dimensions(own.workload, os.environ | held, changes, first)
    search = Search(runs.dimensions, runs.attempt, lambda: (time.monotonic() - begun) / available)
    search.trials[search.default] = [first]
    try:
        search.run()
    except KeyboardInterrupt:
        status = cli.INTERRUPTED
    fastest, rows = search.fastest(), combine_path(search)
    print(f"{describe_work(first)}, {first['framework']} {first['framework_version']} on {first['device_name']}")
    print("\n".join(answer.describe(search, rows)))
    if fastest:
        given = {name: os.environ[name] for name in KNOWN_NAMES if name in os.environ} | held
        given |= candidates.change_of(search.dimensions, fastest)
        given = {name: text for name, text in given.items() if name not in NOT_REPEATED}
        print("\n".join(answer.describe_use(settings.framework, first["device"], own.workload, given)))
    if rows:
        path = results.path_of(settings.results_dir, first)
        results.append(path, *rows.values())
        print(f"\nadded to {cli.display_path(path)}")
    return status or (0 if fastest else 1)


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
