"""Record comparisons in turn of equal work, and report how often they are right.

    .venv/bin/python -m tests.equal_work record 12      12 comparisons of each workload: about two hours, nothing else
    .venv/bin/python -m tests.equal_work report

Each comparison is a line of tests/equal_work.jsonl, appended as soon as it is made; none is left out or repeated. Every
second one runs next to a program that uses one core for a minute, then rests for a minute.
"""

import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from pathlib import Path

from bench.host import environment
from bench.parent import combine_rounds, measure_rounds
from bench.records.columns import WORK
from bench.records.verdict import Rate, compare_pairs, is_main, verdict_of
from bench.settings import read_fixed_run
from noise_check import CHANGES

FILE = Path(__file__).with_suffix(".jsonl")
BURST_SECONDS = 60
SLOWER = (0.98, 0.95, 0.9, 0.8)  # what B is multiplied with in the replay


def use_a_core():
    """Use one core in bursts, until the process is killed."""
    while True:
        end = time.monotonic() + BURST_SECONDS
        while time.monotonic() < end:
            pass
        time.sleep(BURST_SECONDS)


def record_one(run, host, has_bursts):
    """Measure a run and its copy in turn, and append what each pair of processes measured."""
    copy = run.with_settings()
    program = multiprocessing.get_context("spawn").Process(target=use_a_core, daemon=True)
    if has_bursts:
        program.start()
    rounds = list(measure_rounds([run, copy], host))
    if has_bursts:
        program.terminate()
    rows = [row for row, *_ in combine_rounds(rounds).values()]
    kept = ("turn_rates", "throughput", "status", "scope", *WORK)
    line = {
        "workload": run.command,
        "commit": rows[0]["commit"],
        "cpu_id": host.cpu_id,
        "timestamp": rows[0]["timestamp"],
        "has_bursts": has_bursts,
        "results": [Rate.of_row(row) for row in rows],
        "pairs": [
            [[{name: row[name] for name in kept if name in row} for row in rows_of[side]] for side in (copy, run)]
            for rows_of in rounds
        ],
    }
    with FILE.open("a") as file:
        file.write(json.dumps(line) + "\n")


def record(count):
    run = read_fixed_run("noise", os.environ | {"MACHINE": "recording"})
    host = environment.read_host(None)
    for number in range(count):
        for workload in CHANGES:
            equal = run.with_settings(workload, **CHANGES[workload], RUNS="5", MAX_SECONDS="5")
            record_one(equal, host, has_bursts=number % 2 == 1)


def slow_down(pairs, factor):
    """Return the pairs with every rate of B multiplied by a factor."""
    changed = []
    for first, second in pairs:
        row = next(filter(is_main, first), None)
        if row:
            slower = {"throughput": factor * row["throughput"], "turn_rates": [factor * r for r in row["turn_rates"]]}
            first = [row | slower]
        changed.append((first, second))
    return changed


def report():
    lines = [json.loads(line) for line in FILE.read_text().splitlines()]
    print("| workload | bursts | intervals cover 1 | false verdicts | resolution in turn | of two results |", end="")
    print("".join(f" {factor} seen |" for factor in SLOWER))
    print("|---" * (6 + len(SLOWER)) + "|")
    for workload in CHANGES:
        for has_bursts in (False, True):
            some = [line for line in lines if (line["workload"], line["has_bursts"]) == (workload, has_bursts)]
            ratios = [comparison.ratio for line in some if (comparison := compare_pairs(line["pairs"]))]
            if not ratios:
                continue
            cover = sum(ratio.low <= 1 <= ratio.high for ratio in ratios)
            wrong = sum(verdict_of(ratio) in ("faster", "slower") for ratio in ratios)
            in_turn = 100 * (statistics.median(math.sqrt(ratio.high / ratio.low) for ratio in ratios) - 1)
            results = [Rate(*rate) for line in some for rate in line["results"]]
            of_two = 100 * (statistics.median(rate.high / rate.low for rate in results) - 1)
            cells = [workload, "yes" if has_bursts else "no", f"{cover} of {len(ratios)}", wrong]
            cells += [f"{in_turn:.2g} %", f"{of_two:.2g} %"]
            for factor in SLOWER:
                slowed = [compare_pairs(slow_down(line["pairs"], factor)) for line in some]
                seen = sum(verdict_of(comparison.ratio) == "slower" for comparison in slowed if comparison)
                cells.append(f"{seen} of {len(some)}")
            print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(int(sys.argv[2]))
    else:
        report()
