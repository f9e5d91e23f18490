"""Compare two machines, or two versions on one machine, row by row: which is faster, and how certain is that?

    make compare A=results/amd-epyc-2-cores.csv B=results/nvidia-h200.csv
    make compare A=amd-epyc-2-cores B=nvidia-h200

    FAIL_ON_SLOWER=1 make compare A=before.csv B=after.csv  fails if B is slower in anything, or nothing can be compared

Ratios are B over A: above 1, B is faster. A row of one process has a ratio but no verdict, because a single process
does not show how much processes differ.
"""

import math
import os
import statistics
import sys
from collections import Counter
from pathlib import Path

from bench import cli
from bench.records import columns, layout, results, tables
from bench.records.columns import format_number
from bench.records.verdict import MACHINE_CHANGED, Rate, compare_rates
from bench.settings import SettingError, read_settings

MOST_NAMED = 5  # rows that only one side has


def read_side(side, environ, folder):
    """Read the latest result of each work from the file that A or B names by path or machine.

    Returns:
        {work: its line, as tables.latest() describes it}.
    """
    given = environ.get(side, "").strip()
    if not given:
        raise SettingError(f"{side}='' is empty: name a CSV file, or a machine that has one in {folder.name}/")
    path = Path(given) if Path(given).is_file() else folder / f"{given}.csv"
    if not path.is_file():
        known = ", ".join(sorted({path.stem for path in folder.glob("*.csv")} - {"published"})) or "none"
        raise SettingError(f"{side}={given!r} is not a file or a machine in {folder.name}/ (machines: {known})")
    lines = tables.latest(tables.convert(results.read(path)))
    lines = lines[~lines["published"] & (lines["value"] > 0)]
    if lines.empty:
        raise SettingError(f"{side}={given!r} has no results to compare")
    return {work_of(line): line for line in lines.to_dict("records")}


def work_of(line):
    """Return what has to be equal in two lines. A peak is the best of its machine, at any size and by any operator."""
    any_size = ("matrix_size", "memory_format", "batch_size") if line["model"] == "matmul-peak" else ()
    return tuple(line[name] for name in tables.WORK if name not in any_size)


def rate_of(line):
    """Return the Rate of a line, whose value is TFLOP/s if it is an operator's."""
    return Rate.of_row({"throughput": line["value"], "throughput_low": line["low"], "throughput_high": line["high"]})


def compare(a, b):
    """List the work that both sides have: dicts of the two lines, the ratio with its interval, and the verdict."""
    found = []
    for work in (work for work in b if work in a):
        pair = {"a": a[work], "b": b[work]}
        comparison = compare_rates(rate_of(b[work]), rate_of(a[work]))
        if 1 in (a[work]["processes"], b[work]["processes"]):
            comparison = comparison._replace(low=math.nan, verdict="")
        found.append(pair | comparison._asdict())
    return found


CELLS = {
    "work": lambda line: columns.describe_work(line["b"]),
    "framework": lambda line: line["b"]["framework"],
    "A": lambda line: format_number(line["a"]["value"]),
    "B": lambda line: format_number(line["b"]["value"]),
    "unit": lambda line: line["b"]["per"],
    "B / A": lambda line: f"{line['ratio']:.3f}",
    "interval": lambda line: f"{line['low']:.3f} to {line['high']:.3f}" if line["low"] > 0 else "",
    "B is": lambda line: line["verdict"],
    "flags": lambda line: "; ".join(f"{x.upper()}: {line[x]['flags']}" for x in "ab" if line[x]["flags"]),
}


def list_remarks(a, b, lines):
    """List sentences: a changed machine, missing verdicts, different versions and setups, work of only one side."""
    said = []
    same = [line for line in lines if line["a"]["machine"] == line["b"]["machine"]]
    times = [line["b"]["canary_seconds"] / line["a"]["canary_seconds"] for line in same]
    times = [ratio for ratio in times if ratio > 0]  # NaN: unknown
    if times and not 1 / MACHINE_CHANGED < (ratio := statistics.median(times)) < MACHINE_CHANGED:
        said.append(f"warning: the machine changed: the canary, a small matmul, took {ratio:.2f} times as long in B")
    count = Counter(line["verdict"] for line in lines)
    if count[""]:
        said.append(f"no verdict ({count['']} of {len(lines)}): A or B has a single process; measure with RUNS=5")
    if count["cannot tell"]:
        said.append(f"cannot tell ({count['cannot tell']} of {len(lines)}): the intervals overlap or are unknown")
    for name in ("cpu_id", *columns.VERSIONS, *columns.SETUP):
        in_a, in_b = (", ".join(sorted({line[side][name] for line in lines} - {""})) or "unknown" for side in "ab")
        if in_a != in_b:
            said.append(f"{name}: {in_a} in A, {in_b} in B")
    for side, one, other in (("A", a, b), ("B", b, a)):
        if only := [f"{columns.describe_work(one[work])} ({one[work]['framework']})" for work in one.keys() - other]:
            more = f", and {len(only) - MOST_NAMED} more" if len(only) > MOST_NAMED else ""
            said.append(f"only in {side}: {'; '.join(sorted(only)[:MOST_NAMED])}{more}")
    return said


def main(environ=os.environ):
    """Print the comparison; the exit status is 0, or 1 as FAIL_ON_SLOWER asks for."""
    folder = read_settings("compare", environ).results_dir
    if (fails := environ.get("FAIL_ON_SLOWER", "0")) not in ("0", "1"):
        raise SettingError(f"FAIL_ON_SLOWER={fails!r} must be 1 or 0")
    a, b = (read_side(side, environ, folder) for side in "AB")
    lines = compare(a, b)
    for side, rows in (("A", a), ("B", b)):
        last = list(rows.values())[-1]
        print(f"{side}: {last['machine']} ({last['device_name'] or last['device']})")
    if lines:
        mean = math.exp(statistics.fmean(math.log(line["ratio"]) for line in lines))
        print(f"\n{layout.table(CELLS, lines)}\n\ngeometric mean of {len(lines)} ratios: {mean:.3f}")
    else:
        print("\nA and B have no work in common: nothing can be compared")
    print("\n".join(layout.wrap(line, "  ") for line in list_remarks(a, b, lines)))
    verdicts = {line["verdict"] for line in lines} - {""}
    return int(fails == "1" and (not verdicts or "slower" in verdicts))


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
