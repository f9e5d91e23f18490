"""Compare two machines, or two versions on one machine, row by row: which is faster, and how certain is that?

    make compare A=results/amd-epyc-2-cores.csv B=results/intel-xeon-2-cores.csv
    make compare A=amd-epyc-2-cores B=intel-xeon-2-cores

    FAIL_ON_SLOWER=1 make compare A=before.csv B=after.csv  fails if B is slower in anything, or nothing can be compared

Ratios are B over A: above 1, B is faster.
"""

import math
import os
import sys
from pathlib import Path

import pandas as pd

from bench import cli
from bench.records import columns, layout, tables
from bench.records.columns import format_number
from bench.records.verdict import MACHINE_CHANGED, Comparison, compare_rates
from bench.settings import ROOT, SettingError, read_settings

TELLS_NOTHING = (0.5, 2)  # an interval of a ratio that includes both is not shown
MOST_NAMED = 5  # lines that only one side has


def compare(a, b):
    """Merge lines of equal work in two summaries of tables.summarize(): adds `ratio`, its `low` and `high`, `verdict`.

    The columns of both sides have the suffixes _a and _b.
    """
    both = a.merge(b, on=list(tables.WORK), suffixes=("_a", "_b"))
    both = both[(both["value_a"] > 0) & (both["value_b"] > 0)]
    both = both.assign(speed=machine_speed(both))
    sides = zip(tables.list_rates(both, "_b"), tables.list_rates(both, "_a"), both["speed"], strict=True)
    found = pd.DataFrame([compare_rates(*each) for each in sides], both.index, list(Comparison._fields))
    return both.assign(**found)


def machine_speed(both):
    """Return how much faster the same machine was in B than in A, by its canary; 1 for two machines, or if unknown.

    On a GPU the canary is the framework's own matmul, so its version must be the same.
    """
    is_same = both["machine_a"] == both["machine_b"]
    is_same &= (both["kind"] == "cpu") | (both["framework_version_a"] == both["framework_version_b"])
    return (both["canary_seconds_a"] / both["canary_seconds_b"]).where(is_same).fillna(1.0)


def differences(both):
    """Describe in a sentence each which versions and setups differ between the compared lines."""
    said = []
    for column in (*columns.VERSIONS, *columns.SETUP):
        a, b = (", ".join(sorted(set(both[f"{column}_{side}"]) - {""})) or "unknown" for side in "ab")
        if a != b:
            said.append(f"{column}: {a} in A, {b} in B")
    if count := (both["method_version_a"] != both["method_version_b"]).sum():
        said.append(f"{count} of {len(both)} comparisons are of different method versions: measure both sides again")
    return said


def explain_cannot_tell(both):
    """Explain in one sentence why verdicts are missing; [] if all lines have one."""
    found = both[both["verdict"] == "cannot tell"]
    if found.empty:
        return []
    single = ((found["rows_a"] == 1) | (found["rows_b"] == 1)).sum()
    least, most = TELLS_NOTHING
    return [
        f"cannot tell ({len(found)} of {len(both)}): the intervals of A and B overlap, so B may be faster or slower. "
        f"The interval of B / A is blank if it is unknown or includes {least} to {most}. {single} of these have only "
        "one process in A or B: RUNS=5 measures how much processes differ"
    ]


def explain_speed(both):
    """Say in one sentence how much the machine itself changed between A and B; [] if by less than 10 %."""
    speed = both["speed"].median()
    if both.empty or 1 / MACHINE_CHANGED < speed < MACHINE_CHANGED:
        return []
    words = f"{speed:.2f} times faster" if speed > 1 else f"{1 / speed:.2f} times slower"
    return [f"the machine itself was {words} in B, as its canary (a small matmul) shows: the intervals allow for this"]


def only_in(a, b, name):
    """Describe the work that b lacks in one sentence; [] if there is none."""
    work = list(tables.WORK)
    known = pd.MultiIndex.from_frame(b[work])
    only = a[~pd.MultiIndex.from_frame(a[work]).isin(known)]
    shown = [f"{tables.name_line(row)} ({row['framework']})" for row in only[:MOST_NAMED].to_dict("records")]
    more = f", and {len(only) - MOST_NAMED} more" if len(only) > MOST_NAMED else ""
    return [f"only in {name}: {'; '.join(shown)}{more}"] if shown else []


def find(side, environ, folder):
    """Find the file that A or B names by path or machine; raise SettingError."""
    given = environ.get(side, "").strip()
    if not given:
        raise SettingError(f"{side}='' is empty: name a CSV file, or a machine that has one in {folder.name}/")
    for path in (Path(given), ROOT / given, folder / given, folder / f"{given}.csv"):
        if path.is_file():
            return path
    known = ", ".join(sorted({path.stem for path in folder.glob("*.csv")} - {"published"})) or "none"
    raise SettingError(f"{side}={given!r} is not a file or a machine in {folder.name}/ (machines: {known})")


def read_side(side, environ, folder):
    """Summarise a file of rows; raise SettingError if it has none that can be compared."""
    path, said = find(side, environ, folder), []
    summary = tables.summarize(tables.read_rows([path], said.append))
    spread = tables.unseen_spread(summary)
    summary = summary.assign(low=summary["low"] / spread, high=summary["high"] * spread)
    # A peak is the best of its machine, at any size and by any operator.
    summary.loc[summary["model"] == "matmul-peak", ["matrix_size", "memory_format", "batch_size"]] = ""
    summary = summary.drop_duplicates(["machine", *tables.WORK], keep="last")  # the latest of several setups
    if summary.empty:
        raise SettingError(f"{side}={str(path)!r} has no rows to compare" + "".join(f" ({line})" for line in said))
    if summary["machine"].nunique() > 1:
        raise SettingError(
            f"{side}={str(path)!r} has rows of {summary['machine'].nunique()} machines: name a file of one machine"
        )
    return summary.assign(flags=[tables.list_flags(row) for row in summary[["flags", "status"]].to_dict("records")])


def interval(row):
    """Format the interval of a ratio, blank if it is unknown or too wide to tell anything."""
    least, most = TELLS_NOTHING
    is_blank = math.isnan(row["low"] + row["high"]) or (row["low"] < least and row["high"] > most)
    return "" if is_blank else f"{row['low']:.3f} to {row['high']:.3f}"


CELLS = {
    "work": columns.describe_work,
    "framework": lambda row: row["framework"],
    "A": lambda row: format_number(row["value_a"]),
    "B": lambda row: f"{format_number(row['value_b'])} {row['per_b']}",
    "B / A": lambda row: f"{row['ratio']:.3f}",
    "interval": interval,
    "B is": lambda row: row["verdict"],
    "flags": lambda row: "; ".join(f"{side.upper()}: {row[f'flags_{side}']}" for side in "ab" if row[f"flags_{side}"]),
}


def report(a, b, both):
    """List the lines of the comparison."""
    lines = [f"{side}: {rows['machine'].iloc[0]} ({rows['file'].iloc[0]})" for side, rows in (("A", a), ("B", b))]
    if both.empty:
        lines += ["", "A and B have no work in common: nothing can be compared"]
    else:
        mean = math.exp(sum(map(math.log, both["ratio"])) / len(both))
        lines += ["", layout.table(CELLS, both.to_dict("records")), ""]
        lines.append(f"geometric mean of {len(both)} ratio{'s' * (len(both) > 1)}: {mean:.3f}")
    closing = [
        *explain_speed(both),
        *explain_cannot_tell(both),
        *differences(both),
        *only_in(a, b, "A"),
        *only_in(b, a, "B"),
    ]
    return [*lines, *(layout.wrap(line, "  ") for line in closing)]


def main(environ=os.environ):
    """Print the comparison; the exit status is 0, or 1 as FAIL_ON_SLOWER asks for."""
    folder = read_settings("compare", environ).results_dir
    if environ.get("FAIL_ON_SLOWER", "0") not in ("0", "1"):
        raise SettingError(f"FAIL_ON_SLOWER={environ['FAIL_ON_SLOWER']!r} must be 1 or 0")
    a, b = (read_side(side, environ, folder) for side in "AB")
    both = compare(a, b)
    print("\n".join(report(a, b, both)))
    has_failed = both.empty or (both["verdict"] == "slower").any()
    return 1 if environ.get("FAIL_ON_SLOWER") == "1" and has_failed else 0


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
