"""Measure how much equal measurements differ on this machine: A/A tests of three workloads.

    make noise                  about ten minutes on a CPU

Each of two ROUNDS measures each workload in five processes, as its default run does. Nothing changes between them, so
every verdict other than "same" or "cannot tell" is false, and intervals should cover the median of all processes.
Nothing is stored.
"""

import itertools
import logging
import statistics
import sys

from bench import cli
from bench.host import environment
from bench.host.ranks import refuse_ranks
from bench.parent import measure_runs
from bench.records import columns
from bench.records.columns import format_number
from bench.records.verdict import Rate, verdict_of
from bench.settings import FRAMEWORKS, SettingError, read_fixed_run

log = logging.getLogger("bench")

RUNS = 5  # processes of a result
CHANGES = {
    "image": {"SCOPE": "device"},
    "mlp": {"MODEL": "mlp-5x1024", "DATA": "synthetic"},
    "llm": {"PHASE": "decode"},
}


def describe_rounds(rows):
    """Describe the combined rows of each workload, {workload: one from each round}."""
    lines = [
        f"A result is the median of {RUNS} processes, and its interval should cover the median of all processes.",
        "The resolution is the smallest difference between two results that can be detected on this machine.",
        "",
        *map(describe_noise, rows.values()),
    ]
    return "\n".join(lines)


def describe_noise(rows):
    """Return a line about the combined rows of one work, one from each round."""
    rates = [Rate.of_row(row) for row in rows]
    middle = statistics.median(float(rate) for row in rows for rate in row["process_rates"].split())
    covered = sum(rate.low <= middle <= rate.high for rate in rates)
    verdicts = [verdict_of(b.ratio(a)) for a, b in itertools.combinations(rates, 2)]
    wrong = sum(verdict in ("faster", "slower") for verdict in verdicts)
    resolution = 100 * (statistics.median(rate.high / rate.low for rate in rates) - 1)
    findings = f"{covered} of {len(rates)} intervals cover this; {wrong} of {len(verdicts)} verdicts are false"
    rate = f"{format_number(middle)} {rows[0]['unit']}"
    return f"{columns.describe_work(rows[0])}: {rate}; {findings}; resolution {resolution:.2g} %"


def main():
    """Run the rounds, print what they show, and return the exit status."""
    refuse_ranks("make noise")
    run = read_fixed_run("noise")
    settings = run.settings
    host = environment.read_host(settings.machine)
    rows = {}  # {workload: one from each round}
    for number in range(settings.rounds):
        for workload in (name for name in CHANGES if name in FRAMEWORKS[settings.framework].workloads):
            log.info("round %d of %d: %s", number + 1, settings.rounds, workload)
            ((row, *_),) = measure_runs([run.with_settings(workload, **CHANGES[workload], RUNS=str(RUNS))], host)
            if row["status"] != "ok":
                raise SettingError(f"the {workload} workload failed ({row['note']}): `make {workload}` shows more")
            rows.setdefault(workload, []).append(row)
    print(describe_rounds(rows))
    return 0


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
