"""Measure how much equal measurements differ on this machine: A/A tests of three workloads.

    make noise                  about twenty minutes on a CPU

Each of the ROUNDS measures each workload twice, in five processes each, which take turns as those of a list of settings
do. Nothing changes between them, so every verdict other than "same" or "cannot tell" is false, and intervals should
cover the median of all processes. On a CPU with glibc a second round keeps freed memory, as `make best` may advise.
Nothing is stored.
"""

import itertools
import logging
import math
import platform
import statistics
import sys

from bench import cli
from bench.host import environment
from bench.host.ranks import refuse_ranks
from bench.parent import combine_rounds, compare_runs, measure_rounds
from bench.records import columns
from bench.records.columns import format_number
from bench.records.verdict import Rate, verdict_of
from bench.settings import FRAMEWORKS, Run, SettingError, read_fixed_run

log = logging.getLogger("bench")

RUNS = 5  # processes of a result
CHANGES = {
    "image": {"SCOPE": "device"},
    "mlp": {"MODEL": "mlp-5x1024", "DATA": "synthetic"},
    "llm": {"PHASE": "decode"},
}


def describe_rounds(rounds):
    """Describe what measure_twice() returned, {work: a list of it, one for each round}."""
    lines = [
        f"A result is the median of {RUNS} processes, and its interval should cover the median of all processes.",
        "The resolution is the smallest difference that can be detected on this machine: between two results, and",
        "between two entries of a list of settings, whose processes take turns.",
        "",
        *map(describe_noise, rounds.values()),
    ]
    return "\n".join(lines)


def describe_noise(rounds):
    """Return a line about the rounds of one work."""
    rows = [row for rows, _ in rounds for row in rows]
    rates = [Rate.of_row(row) for row in rows]
    middle = statistics.median(float(rate) for row in rows for rate in row["process_rates"].split())
    covered = sum(rate.low <= middle <= rate.high for rate in rates)
    ratios = [b.ratio(a) for a, b in itertools.combinations(rates, 2)]
    ratios += [comparison.ratio for _, comparison in rounds]
    wrong = sum(verdict_of(ratio) in ("faster", "slower") for ratio in ratios)
    resolution = 100 * (statistics.median(rate.high / rate.low for rate in rates) - 1)
    in_turn = 100 * (statistics.median(math.sqrt(c.ratio.high / c.ratio.low) for _, c in rounds) - 1)
    rate = f"{format_number(middle)} {rows[0]['unit']}"
    work = ", ".join(columns.words_of(rows[0], (*columns.WORK, "allocator")).values())
    findings = f"{covered} of {len(rates)} intervals cover this; {wrong} of {len(ratios)} verdicts are false"
    resolutions = f"resolution {resolution:.2g} %, in turn {in_turn:.2g} %"
    return f"{work}: {rate}; {findings}; {resolutions}"


def measure_twice(run: Run, host):
    """Measure a run and its copy in turn; returns (the first combined row of each, their Comparison)."""
    copy = run.with_settings()
    rounds = list(measure_rounds([run, copy], host))
    rows = [row | {"allocator": environment.find_allocator(run.environ)} for row, *_ in combine_rounds(rounds).values()]
    for row in rows:
        if row["status"] != "ok":
            raise SettingError(f"the {run.command} workload failed ({row['note']}): `make {run.command}` shows more")
    return rows, compare_runs(rounds, copy, run)


def main():
    """Run the rounds, print what they show, and return the exit status."""
    refuse_ranks("make noise")
    run = read_fixed_run("noise")
    settings = run.settings
    host = environment.read_host(settings.machine)
    rounds = {}  # {(workload, allocator): what measure_twice() returned in each round}
    for number in range(settings.rounds):
        for workload in (name for name in CHANGES if name in FRAMEWORKS[settings.framework].workloads):
            log.info("round %d of %d: %s", number + 1, settings.rounds, workload)
            equal = run.with_settings(workload, **CHANGES[workload], RUNS=str(RUNS))
            rows, comparison = measure_twice(equal, host)
            rounds.setdefault((workload, ""), []).append((rows, comparison))
            if rows[0]["device"] == "cpu" and platform.libc_ver()[0] == "glibc" and not rows[0]["allocator"]:
                log.info("the same, with an allocator that keeps freed memory")
                kept = equal.with_settings(**environment.GLIBC_KEEPS)
                rounds.setdefault((workload, "keep"), []).append(measure_twice(kept, host))
    print(describe_rounds(rounds))
    return 0


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
