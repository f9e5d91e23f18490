"""Compare two machines, or two versions on one machine, row by row: which is faster, and how certain is that?

    make compare A=results/amd-epyc-2-cores.csv B=results/intel-xeon-2-cores.csv
    make compare A=amd-epyc-2-cores B=intel-xeon-2-cores

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
from bench.records import columns, layout, results
from bench.records.columns import format_number
from bench.records.verdict import MACHINE_CHANGED, OPERATORS, Rate, compare_rates
from bench.settings import SettingError, read_settings

MOST_NAMED = 5  # rows that only one side has


def read_side(side, environ, folder):
    """Read the latest result of each work from the file that A or B names by path or machine: {work: row}."""
    given = environ.get(side, "").strip()
    if not given:
        raise SettingError(f"{side}='' is empty: name a CSV file, or a machine that has one in {folder.name}/")
    path = Path(given) if Path(given).is_file() else folder / f"{given}.csv"
    if not path.is_file():
        known = ", ".join(sorted({path.stem for path in folder.glob("*.csv")} - {"published"})) or "none"
        raise SettingError(f"{side}={given!r} is not a file or a machine in {folder.name}/ (machines: {known})")
    found = {}
    for row in sorted(results.read(path), key=lambda row: row["timestamp"]):
        if row["status"] == "ok" and row["throughput"] and row["scope"] != "sustained":
            found[work_of(row)] = row
    if not found:
        raise SettingError(f"{side}={given!r} has no results to compare")
    if len(machines := {row["machine"] for row in found.values()}) > 1:
        raise SettingError(f"{side}={given!r} has rows of {len(machines)} machines: name a file of one machine")
    return found


def work_of(row):
    """Return what has to be equal in two rows. A peak is the best of its machine, at any size and by any operator."""
    any_size = ("matrix_size", "memory_format", "batch_size") if row["model"] == "matmul-peak" else ()
    cells = (row[name] or columns.COLUMNS[name].blank for name in columns.WORK if name not in any_size)
    return (row["device"] == "cpu", *cells)


def compare(a, b):
    """List the work that both sides have: dicts of the two rows, the ratio with its interval, and the verdict."""
    lines = []
    for work in (work for work in b if work in a):
        comparison = compare_rates(rate_of(b[work]), rate_of(a[work]))
        if any(" " not in row["process_rates"] for row in (a[work], b[work])):  # a single process
            comparison = comparison._replace(low=math.nan, verdict="")
        lines.append({"a": a[work], "b": b[work]} | comparison._asdict())
    return lines


def rate_of(row):
    """Return the Rate of a row; of an operator in TFLOP/s, because two peaks have different sizes."""
    rate = Rate.of_row(row)
    scale = float(row["tflops"]) / rate.throughput if row["workload"] in OPERATORS else 1
    return Rate(*(end and end * scale for end in rate))


CELLS = {
    "work": lambda line: columns.describe_work(line["b"]),
    "framework": lambda line: line["b"]["framework"],
    "A": lambda line: format_number(rate_of(line["a"]).throughput),
    "B": lambda line: format_number(rate_of(line["b"]).throughput),
    "unit": lambda line: "TFLOP/s" if line["b"]["workload"] in OPERATORS else line["b"]["unit"],
    "B / A": lambda line: f"{line['ratio']:.3f}",
    "interval": lambda line: f"{line['low']:.3f} to {line['high']:.3f}" if line["low"] > 0 else "",
    "B is": lambda line: line["verdict"],
    "flags": lambda line: "; ".join(f"{x.upper()}: {line[x]['flags']}" for x in "ab" if line[x]["flags"]),
}


def list_remarks(a, b, lines):
    """List sentences: a changed machine, missing verdicts, different versions and setups, work of only one side."""
    said = []
    times = [
        float(line["b"]["canary_seconds"]) / float(line["a"]["canary_seconds"])
        for line in lines
        if line["a"]["machine"] == line["b"]["machine"] and line["a"]["canary_seconds"] and line["b"]["canary_seconds"]
    ]
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
        only = [f"{columns.describe_work(one[work])} ({one[work]['framework']})" for work in one if work not in other]
        more = f", and {len(only) - MOST_NAMED} more" if len(only) > MOST_NAMED else ""
        said += [f"only in {side}: {'; '.join(only[:MOST_NAMED])}{more}"] * bool(only)
    return said


def main(environ=os.environ):
    """Print the comparison; the exit status is 0, or 1 as FAIL_ON_SLOWER asks for."""
    folder = read_settings("compare", environ).results_dir
    if environ.get("FAIL_ON_SLOWER", "0") not in ("0", "1"):
        raise SettingError(f"FAIL_ON_SLOWER={environ['FAIL_ON_SLOWER']!r} must be 1 or 0")
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
    has_failed = not verdicts or "slower" in verdicts
    return 1 if environ.get("FAIL_ON_SLOWER") == "1" and has_failed else 0


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
