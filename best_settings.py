"""Find the fastest settings of a workload on this machine, and the gain of each change.

    make best
    MODEL=mobilenet_v2 PHASE=training make best
    WORKLOAD=transformer MAX_MINUTES=40 make best
    PRECISION=float32 COMPILE=0,1 make best             one value is held fixed, a list restricts what is tried

Each trial of a combination is an ordinary run in a process of its own. bench/tune/search.py decides what to try next,
bench/tune/candidates.py lists what can be tried. `make help` lists the settings.
"""

import logging
import os
import sys
import time
from dataclasses import dataclass

from bench import cli
from bench.host import environment
from bench.host.ranks import refuse_ranks
from bench.launch import Launcher
from bench.records import results
from bench.records.cells import new_run_id
from bench.records.columns import format_number
from bench.settings import ROOT, SEARCH, SEARCH_STEP, ByDevice, SettingError, read_search
from bench.tune import answer, candidates
from bench.tune.search import TRIAL_SECONDS, Search, Trial
from image_benchmark import image_workload
from llm_benchmark import llm_workload
from mlp_benchmark import mlp_workload
from transformer_benchmark import transformer_workload

log = logging.getLogger("bench")

WORKLOADS = {"image": image_workload, "mlp": mlp_workload, "transformer": transformer_workload, "llm": llm_workload}
LEAST_LIMIT, LIMIT_SHARE = 120, 0.15  # seconds after which a trial is ended, or this share of the time if longer
FULL_SECONDS = 10.0  # MAX_SECONDS of a full run, unless it is set
FULL_LIMIT = 600  # seconds after which a full run is ended, and the first run, which may download what it needs


@dataclass(frozen=True)
class Runs:
    """The runs of one search."""

    launcher: Launcher
    held: dict[str, str]  # {variable: text} that every run gets
    search_id: str
    seconds: float  # of the whole search

    def run(self, change, seconds, step=None, limit=None):
        """Return the row of one run: a full run if it has a step of the path; it is ended after `limit` seconds.

        Raises:
            SettingError: the run left no row; the message says why.
        """
        limit = limit or (FULL_LIMIT + 2 * seconds if step else max(LEAST_LIMIT, LIMIT_SHARE * self.seconds))
        change = self.held | change | {"MAX_SECONDS": f"{seconds:g}", SEARCH: self.search_id, SEARCH_STEP: step}
        return self.launcher.launch_silently(change, round(limit))[-1]


def trial_of(row):
    """Return the Trial that a row holds."""
    step = row["search_step"] or None
    if row["status"] != "ok":
        return Trial(note=f"{row['status']}: {row['note']}", step=step, row=row)
    low, high = (float(row[name]) if row[name] else None for name in ("throughput_low", "throughput_high"))
    return Trial(float(row["throughput"]), low, high, "", "contended" in row["flags"].split(), step, row)


def hold(settings, changes):
    """Return the variables that every run gets: the first entry of each list, one phase and one scope."""
    held = {name: text for name, text in changes[0].items() if name in os.environ or name == "PHASE"}
    if not {"MODEL", "IMAGE_MODEL"} & set(os.environ) and not isinstance(settings.model, ByDevice):
        held["MODEL"] = settings.model
    scope = {} if settings.scope is None else {"SCOPE": "device"}
    return held | scope | {"MAKEFLAGS": ""}  # make's command line is in the environment too


def start_search(runs, settings, changes, begun):
    """Return the Search, with a first trial of the default, which knows the device."""

    def attempt(candidate, seconds, step):
        longest = settings.max_seconds if "MAX_SECONDS" in os.environ else FULL_SECONDS
        seconds = min(seconds or longest, longest)
        try:
            return trial_of(runs.run(candidates.change_of(dimensions, candidate), seconds, step))
        except SettingError as error:
            return Trial(note=str(error), step=step, row={"flags": ""})

    def tell(candidate):
        """Print one line about the last trial, what is left, and the fastest so far."""
        last, (fastest, _) = search.trials[candidate][-1], search.answers()
        rate = f"{format_number(last.rate)} {last.row['unit']}" if last.rate else last.note
        rate += " while other programs ran" * last.is_contended
        best = f"fastest so far: {candidates.describe(dimensions, fastest)}" if fastest else "nothing has worked yet"
        stage = "full run" if last.step else f"{len(search.untried())} not tried yet"
        log.info("%s: %s (%s; %s)", candidates.describe(dimensions, candidate), rate, stage, best)

    first = runs.run({}, min(TRIAL_SECONDS, settings.max_seconds), limit=max(FULL_LIMIT, runs.seconds))
    card = environment.find_card() if first["device"] == "cuda" else None
    dimensions = candidates.list_dimensions(settings, os.environ, changes, first, card)
    search = Search(
        dimensions,
        attempt,
        lambda: (time.monotonic() - begun) / runs.seconds,
        lambda candidate: candidates.is_possible(settings.on(first["device"]), dimensions, candidate, card),
        tell,
    )
    search.add(search.default, trial_of(first))
    return search


def main():
    """Search, and print the answer; the exit status is 0 if something was measured."""
    begun = time.monotonic()
    refuse_ranks("make best")
    own, settings, changes = read_search()
    candidates.refuse_unusable(os.environ, changes)
    command, host = [str(ROOT / f"{own.workload}_benchmark.py")], environment.describe_host(settings.machine)
    launcher = Launcher(own.workload, WORKLOADS[own.workload], command, host)
    path = launcher.locate(settings)
    results.prepare(path)
    runs = Runs(launcher, hold(settings, changes), new_run_id(), 60 * own.max_minutes)
    log.info("trying the default first; Ctrl-C ends the search and prints the best so far")
    search, status = start_search(runs, settings, changes, begun), 0
    try:
        search.run()
    except KeyboardInterrupt:
        status = cli.INTERRUPTED
    lines, fastest = answer.describe(search, (time.monotonic() - begun) / 60), search.answers()[0]
    if fastest:
        lines += answer.describe_use(search, fastest, own.workload, runs.held)
    print("\n".join(lines))
    print(f"\nadded to {cli.display_path(path)}, search {runs.search_id}")
    return status or (0 if fastest else 1)


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
