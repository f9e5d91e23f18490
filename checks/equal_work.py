"""Record interleaved comparisons of equal work, and of work with a sleep in each step; report how often they are right.

    .venv/bin/python -m checks.equal_work record 12      until there are 12 of each workload: two hours, nothing else
    .venv/bin/python -m checks.equal_work sleep 12       after that: images and mlp with a sleep, one hour
    .venv/bin/python -m checks.equal_work report

Each comparison is a line of checks/equal_work.jsonl, appended as soon as it is made; none is left out or repeated. Of
equal work, every second one runs next to a program that uses one core for a minute, then rests for a minute. The sleep
is twice the resolution of the quiet recordings.
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
from bench.settings import ROOT, read_fixed_run
from bench.tune.candidates import keep_memory

FILE = Path(__file__).with_suffix(".jsonl")
BURST_SECONDS = 60
CHANGES = {
    "image": {"SCOPE": "device"},
    "mlp": {"MODEL": "mlp-5x1024", "DATA": "synthetic"},
    "llm": {"PHASE": "decode"},
}
# A step with the default batch takes two seconds on two slow cores, and a turn is at least a step.
SHORTER = {"image": {"BATCH_SIZE": "4"}}
SLEEPING = Path(__file__).with_name("sleeping")  # of a sitecustomize.py, which Python imports at its start
SLOWER = (0.98, 0.95, 0.9, 0.8)  # what B is multiplied with in the replay


def use_a_core():
    """Use one core in bursts, until the process is terminated or its parent is gone, however that was killed."""
    parent = multiprocessing.parent_process()
    while parent.is_alive():
        end = time.monotonic() + BURST_SECONDS
        while time.monotonic() < end and parent.is_alive():
            pass
        parent.join(BURST_SECONDS)


def record_one(run, host, has_bursts=False, sleep_seconds=0.0):
    """Measure a run and its copy interleaved, and append what each pair of processes measured.

    Args:
        has_bursts: another program disturbs both.
        sleep_seconds: added to each step of the copy.
    """
    copy = run.with_settings()
    if sleep_seconds:
        copy = run.with_settings(PYTHONPATH=f"{SLEEPING}:{ROOT}", STEP_SLEEP=str(sleep_seconds))
    program = multiprocessing.get_context("spawn").Process(target=use_a_core, daemon=True)
    if has_bursts:
        program.start()
    rounds = []
    measure_rounds([run, copy], host, rounds, has_extras=False)
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
        "sleep_seconds": sleep_seconds,
        "results": [Rate.of_row(row) for row in rows],
        "pairs": [
            [[{name: row[name] for name in kept if name in row} for row in rows_of[side]] for side in (copy, run)]
            for rows_of in rounds
        ],
    }
    with FILE.open("a") as file:
        file.write(json.dumps(line) + "\n")


def record(count, sleeps):
    """Record until there are this many comparisons of each workload; with sleeps, of those that work in batches."""
    fixed = read_fixed_run("all", os.environ | {"MACHINE": "recording"})
    host = environment.read_host(None)
    while True:
        numbers = {name: len(read_lines(name, sleeps)) for name in CHANGES if not (sleeps and name == "llm")}
        workload = min(numbers, key=numbers.__getitem__)
        if numbers[workload] >= count:
            return
        change = CHANGES[workload] | SHORTER.get(workload, {}) | keep_memory(fixed.environ)
        run = fixed.with_settings(workload, **change, RUNS="5")
        if sleeps:
            record_one(run, host, sleep_seconds=choose_sleep(run))
        else:
            record_one(run, host, has_bursts=numbers[workload] % 2 == 1)


def choose_sleep(run):
    """Return the seconds to sleep: twice the resolution of interleaved processes, as a share of a recorded step."""
    quiet = [line for line in read_lines(run.command, sleeps=False) if not line["has_bursts"]]
    batch = quiet[-1]["pairs"][0][0][0]["batch_size"]
    step_seconds = batch / statistics.median(rate for line in quiet for rate, *_ in line["results"])
    return 2 * resolution_in_turn([compare_pairs(line["pairs"]).ratio for line in quiet]) * step_seconds


def read_lines(workload, sleeps):
    """Return the recorded comparisons of a workload: of equal work, or of a sleep."""
    lines = [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []
    return [line for line in lines if line["workload"] == workload and bool(line.get("sleep_seconds")) == sleeps]


def resolution_in_turn(ratios):
    """Return the median of the smallest difference that a comparison shows: 0.05 is 5 %."""
    return statistics.median(math.sqrt(ratio.high / ratio.low) for ratio in ratios) - 1


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
    """Print a table of equal work, with a replay of slower work, and one of the sleeps."""
    print(
        "| workload | bursts | intervals cover 1 | false verdicts | resolution, interleaved | of two results |", end=""
    )
    print("".join(f" {factor} seen |" for factor in SLOWER))
    print("|---" * (6 + len(SLOWER)) + "|")
    for workload in CHANGES:
        for has_bursts in (False, True):
            some = [line for line in read_lines(workload, sleeps=False) if line["has_bursts"] == has_bursts]
            ratios = [comparison.ratio for line in some if (comparison := compare_pairs(line["pairs"]))]
            if not ratios:
                continue
            cover = sum(ratio.low <= 1 <= ratio.high for ratio in ratios)
            wrong = sum(verdict_of(ratio) in ("faster", "slower") for ratio in ratios)
            results = [Rate(*rate) for line in some for rate in line["results"]]
            of_two = 100 * (statistics.median(rate.high / rate.low for rate in results) - 1)
            cells = [workload, "yes" if has_bursts else "no", f"{cover} of {len(ratios)}", wrong]
            cells += [f"{100 * resolution_in_turn(ratios):.1f} %", f"{of_two:.0f} %"]
            for factor in SLOWER:
                slowed = [compare_pairs(slow_down(line["pairs"], factor)) for line in some]
                cells.append(f"{count_slower(slowed)} of {len(some)}")
            print("| " + " | ".join(map(str, cells)) + " |")
    for workload in CHANGES:
        slept = read_lines(workload, sleeps=True)
        if slept:
            comparisons = [compare_pairs(line["pairs"]) for line in slept]
            ratio = statistics.median(comparison.ratio.throughput for comparison in comparisons if comparison)
            sleep = 1e3 * statistics.median(line["sleep_seconds"] for line in slept)
            print(f"{workload}, {sleep:.3g} ms more in each step: {ratio:.3g} times as fast,", end=" ")
            print(f"called slower in {count_slower(comparisons)} of {len(slept)}")


def count_slower(comparisons):
    """Return how many comparisons say that B is slower; None is one without a pair."""
    return sum(verdict_of(comparison.ratio) == "slower" for comparison in comparisons if comparison)


if __name__ == "__main__":
    if sys.argv[1] == "report":
        report()
    else:
        record(int(sys.argv[2]), sleeps=sys.argv[1] == "sleep")
