"""Find the fastest settings of a workload on this machine, and the gain of each change.

    make best
    MODEL=mobilenet_v2 PHASE=training make best
    WORKLOAD=transformer MAX_MINUTES=40 make best
    PRECISION=float32 COMPILE=0,1 make best             one value is held fixed, a list restricts what is tried

Each trial of a combination is a process of its own. bench/tune/search.py decides what to try next,
bench/tune/candidates.py lists what can be tried. `make help` lists the settings.
"""

import logging
import os
import sys
import time
from dataclasses import dataclass, field

from bench import cli
from bench.host import environment
from bench.host.ranks import refuse_ranks
from bench.launch import Launcher
from bench.records import results
from bench.records.columns import describe_work, format_number
from bench.records.combine import combine
from bench.settings import MAKE_VARIABLES, ROOT, SettingError, known_names, list_runs, read_settings, refuse_misspelt
from bench.tune import answer, candidates
from bench.tune.search import Dimension, Search
from diffusion_benchmark import diffusion_workload
from image_benchmark import image_workload
from llm_benchmark import llm_workload
from mlp_benchmark import mlp_workload
from transformer_benchmark import transformer_workload

log = logging.getLogger("bench")

WORKLOADS = {"image": image_workload, "mlp": mlp_workload, "transformer": transformer_workload, "llm": llm_workload}
WORKLOADS |= {"diffusion": diffusion_workload}
TRIAL_SECONDS, FULL_SECONDS = 3.0, 10.0  # MAX_SECONDS of a trial, and of a full run unless it is set
LEAST_LIMIT, LIMIT_SHARE = 120, 0.15  # seconds after which a trial is ended, or this share of the time if longer
FULL_LIMIT = 600  # seconds after which a full run is ended, and the first trial, which may download what it needs
FIXED = {"RUNS": "1", "NUM_DEVICES": "1", "SCOPE": "device", "EPOCHS": "0", "SUSTAIN": None, "NUM_IMAGES": None}
NOT_REPEATED = (*MAKE_VARIABLES, "MAKEFLAGS", "WORKLOAD", "MAX_MINUTES", "MAX_SECONDS", "RESULTS_DIR")


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
    for name in sorted(set().union(*changes) - {*candidates.GUESSES, "BATCH_SIZE"}):
        if name in plain:
            raise SettingError(f"{name}={plain[name]!r} must be one value in `make best`: run it once for each")
    return own, settings, changes


@dataclass
class Runs:
    """The processes of one search: starts them, and keeps their rows for each candidate."""

    launcher: Launcher
    held: dict[str, str]  # {variable: text} that every process gets
    seconds: float  # of the whole search
    longest: float  # MAX_SECONDS of a full run
    dimensions: list[Dimension] = field(default_factory=list)
    trials: dict[tuple, list[dict]] = field(default_factory=dict)
    full: dict[tuple, list[dict]] = field(default_factory=dict)
    notes: dict[tuple, str] = field(default_factory=dict)  # why a candidate failed

    def attempt(self, candidate, is_full):
        """Run a candidate in a process of its own, print a line, and return its rate, 0 if it failed."""
        seconds, limit, rows = TRIAL_SECONDS, max(LEAST_LIMIT, LIMIT_SHARE * self.seconds), self.trials
        if is_full:
            seconds, limit, rows = FULL_SECONDS, FULL_LIMIT, self.full
        try:
            change = candidates.change_of(self.dimensions, candidate)
            row = self.run(change, seconds, limit, compares=candidate not in rows)
        except SettingError as error:
            row = {"status": "failed", "note": str(error), "precision": ""}
        return self.keep(candidate, row, is_full)

    def run(self, change, seconds, limit, compares=True):
        change = self.held | change | {"MAX_SECONDS": f"{min(seconds, self.longest):g}"}
        allocator = {"allocator": environment.find_allocator(os.environ | change)}
        return self.launcher.run_child(change, round(limit), compares, brief=True)[-1] | allocator

    def keep(self, candidate, row, is_full=False):
        (self.full if is_full else self.trials).setdefault(candidate, []).append(row)
        if is_ok := row["status"] == "ok":
            said = f"{format_number(row['throughput'])} {row['unit']}"
        else:
            said = self.notes[candidate] = f"{row['status']}: {row['note']}"
        words = candidates.describe(self.dimensions, candidate)
        log.info("%s%s: %s", words, " (full run)" if is_full else "", said)
        return row["throughput"] if is_ok else 0.0

    def combine_path(self, search):
        """Return {candidate: the combined row of its full runs}, from the default to the fastest."""
        steps = [each for each in search.path if all(search.full.get(each, [0]))]
        fastest = search.fastest()
        steps = steps[: steps.index(fastest) + 1] if fastest in steps else steps
        # The order in the file is that of the path, which starts with the default.
        shared = {"search": self.trials[search.default][0]["run_id"]} if search.default in steps else {}
        return {each: combine([[row] for row in self.full[each]])[0] | shared for each in steps}


def main():
    """Search, and print the answer; the exit status is 0 if something was measured."""
    refuse_ranks("make best")
    begun, status = time.monotonic(), 0
    own, settings, changes = read_search(os.environ)
    command, host = [str(ROOT / f"{own.workload}_benchmark.py")], environment.describe_host(settings.machine)
    launcher = Launcher(own.workload, WORKLOADS[own.workload], command, host)
    path = launcher.path(settings)
    results.prepare(path)
    # make's command line, in MAKEFLAGS, has settings that no process knows.
    held = changes[0] | ({"SCOPE": "device"} if settings.scope else {}) | {"MAKEFLAGS": ""}
    longest = settings.max_seconds if "MAX_SECONDS" in os.environ else FULL_SECONDS
    runs = Runs(launcher, held, 60 * own.max_minutes, longest)
    log.info("trying the default first; Ctrl-C ends the search and prints the best so far")
    first = runs.run({}, TRIAL_SECONDS, max(FULL_LIMIT, runs.seconds))
    if not first.get("device"):
        raise SettingError(f"the default failed ({first['note']}): `make {own.workload}` shows more")
    runs.dimensions = candidates.list_dimensions(own.workload, os.environ | held, changes, first)
    search = Search(runs.dimensions, runs.attempt, lambda: (time.monotonic() - begun) / runs.seconds)
    search.trials[search.default] = [runs.keep(search.default, first)]
    try:
        search.run()
    except KeyboardInterrupt:
        status = cli.INTERRUPTED
    fastest, rows = search.fastest(), runs.combine_path(search)
    minutes, count = (time.monotonic() - begun) / 60, sum(map(len, [*runs.trials.values(), *runs.full.values()]))
    print(f"{describe_work(first)}, {first['framework']} {first['framework_version']} on {first['device_name']}")
    print("\n".join(answer.describe(search, runs.trials, rows, runs.notes)))
    print(f"the search took {minutes:.1f} minutes, with {count} processes")
    if fastest:
        given = {name: os.environ[name] for name in known_names() if name in os.environ} | held
        given |= candidates.change_of(search.dimensions, fastest)
        given = {name: text for name, text in given.items() if name not in NOT_REPEATED}
        print("\n".join(answer.describe_use(settings.framework, first["device"], own.workload, given)))
    if rows:
        results.append(path, *rows.values())
        print(f"\nadded to {cli.display_path(path)}")
    return status or (0 if fastest else 1)


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
