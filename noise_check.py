"""Measure how much equal measurements differ on this machine: A/A tests of three workloads.

    make noise                  two rounds, about ten minutes on a CPU
    ROUNDS=12 make noise        for a figure to publish; rounds of one commit add up

A round measures each workload as its default run does, in several processes. The rows go to results/noise/, which is
not part of the repository. Nothing changes between two rounds, so every verdict other than "same" or "cannot tell" is
false, and intervals should cover the median of all processes as often as their confidence level states.
"""

import itertools
import logging
import statistics
import sys

from bench import cli
from bench.host import environment
from bench.host.ranks import refuse_ranks
from bench.launch import DEFAULT_RUNS, Launcher
from bench.records import columns, layout, results
from bench.records.columns import format_number
from bench.records.verdict import Rate, compare_rates
from bench.settings import FRAMEWORKS, REPEATED, ROOT, SettingError, read_settings
from best_settings import WORKLOADS

log = logging.getLogger("bench")

CHANGES = {
    "image": {"SCOPE": "device"},
    "mlp": {"MODEL": "mlp-5x1024", "DATA": "synthetic"},
    "llm": {"PHASE": "decode"},
}


def measure_round(host, folder):
    """Measure every workload in DEFAULT_RUNS fresh processes; raises SettingError if one fails."""
    for script, change in CHANGES.items():
        if script == "llm" and not FRAMEWORKS[read_settings("noise").framework].runs_language_models:
            continue
        launcher = Launcher(script, WORKLOADS[script], [str(ROOT / f"{script}_benchmark.py")], host)
        change = change | {"RESULTS_DIR": str(folder), "MAKEFLAGS": None, REPEATED: "1"}  # without parts of training
        for _ in range(DEFAULT_RUNS):
            row = launcher.launch_silently(change)[-1]
            if row["status"] != "ok":
                raise SettingError(f"the {script} workload failed ({row['note']}): `make {script}` shows more")
        log.info("%s: %d processes", script, DEFAULT_RUNS)


def group_by_work(rows):
    """Return {work in words: its rows in order} of the rows of the latest commit."""
    by_work = {}
    for row in rows:
        if row["status"] == "ok" and row["commit"] == rows[-1]["commit"]:
            work = f"{columns.describe_work(row)} ({row['framework']} on {row['device']})"
            by_work.setdefault(work, []).append(row)
    return {work: found for work, found in by_work.items() if len(found) >= DEFAULT_RUNS}


def describe_noise(work, rows):
    """Return the line of a table about the rows of one work, in order; every DEFAULT_RUNS of them make a result."""
    processes = list(map(Rate.of_row, rows))
    found = []
    for at in range(0, len(rows) - DEFAULT_RUNS + 1, DEFAULT_RUNS):
        canary = statistics.median(float(row["canary_seconds"] or 1) for row in rows[at : at + DEFAULT_RUNS])
        found.append((Rate.merge(processes[at : at + DEFAULT_RUNS]), canary))
    middle = statistics.median(rate.throughput for rate in processes)
    covered = [
        sum(rate.low is not None and rate.low <= middle <= rate.high for rate in rates)
        for rates in (processes, [rate for rate, _ in found])
    ]
    pairs = list(itertools.combinations(found, 2))
    verdicts = [compare_rates(b, a).verdict for (a, _), (b, _) in pairs]
    wrong = sum(verdict in ("faster", "slower") for verdict in verdicts)
    width = statistics.median(rate.high / rate.low for rate, _ in found)
    return {
        "work": work,
        "rate": f"{format_number(middle)} {rows[0]['unit']}",
        "one process covers it": f"{covered[0]} of {len(processes)}",
        "result covers it": f"{covered[1]} of {len(found)}",
        "false verdicts": f"{wrong} of {len(pairs)} pairs",
        "resolution": f"{100 * (width - 1):.2g} %",
    }


def main():
    """Run the rounds, print what all rows of this commit show, and return the exit status."""
    refuse_ranks("make noise")
    settings = read_settings("noise")
    host = environment.describe_host(settings.machine)
    folder = settings.results_dir / "noise"
    path = folder / f"{host.machine}.csv"
    results.prepare(path)
    for number in range(settings.rounds):
        log.info("round %d of %d", number + 1, settings.rounds)
        measure_round(host, folder)
    lines = [describe_noise(work, rows) for work, rows in group_by_work(results.read(path)).items()]
    if not lines:
        raise SettingError(
            f"no workload has {DEFAULT_RUNS} processes of one commit: repeat it without changing the code"
        )
    cells = {name: lambda line, name=name: line[name] for name in lines[0]}
    print(f"A result is the median of {DEFAULT_RUNS} processes. It covers the median of all if its interval does.")
    print("The resolution is the smallest difference between two results that can be detected on this machine.\n")
    print(layout.table(cells, lines))
    print(f"\nrows in {cli.display_path(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
