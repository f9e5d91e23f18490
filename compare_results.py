"""Two machines, or two versions on one, row by row: which is faster, and how sure is that?

    make compare A=results/apple-m1-max.csv B=results/nvidia-h200.csv
    make compare A=apple-m1-max B=nvidia-h200
    FAIL_ON_SLOWER=1 make compare A=before.csv B=after.csv     exit 1 where B is slower in anything, or comparable in
                                                               nothing

Ratios are B over A: above 1, B is faster.
"""

import math
import os
import sys
from pathlib import Path

import pandas as pd

from bench.rows import tables
from bench.settings import ROOT, SettingError, read_settings

SAME = 0.01  # within this, two rates are the same


def verdict(low, high):
    """What the ends of a ratio's interval say: "same" within 1 %, "faster", "slower", or "cannot tell"."""
    if pd.isna(low) or pd.isna(high):
        return "cannot tell"
    if low >= 1 - SAME and high <= 1 + SAME:
        return "same"
    if low > 1:
        return "faster"
    return "slower" if high < 1 else "cannot tell"


def compare(a, b):
    """Lines of equal work in two summaries of tables.summarize(), with `ratio`, its `low` and `high`, and `verdict`."""
    both = a.merge(b, on=list(tables.WORK), suffixes=("_a", "_b"))
    both = both[(both["value_a"] > 0) & (both["value_b"] > 0)].copy()
    both["ratio"] = both["value_b"] / both["value_a"]
    both["low"], both["high"] = both["low_b"] / both["high_a"], both["high_b"] / both["low_a"]
    both["verdict"] = [verdict(low, high) for low, high in zip(both["low"], both["high"], strict=True)]
    return both


def differences(both):
    """Sentences: which versions and circumstances differ between the lines that are compared."""
    said = []
    for column in (*tables.VERSIONS, *tables.SETUP):
        values = [sorted(set(both[f"{column}_{side}"]) - {""}) for side in "ab"]
        if values[0] != values[1]:
            said.append(f"{column}: {', '.join(values[0]) or 'unknown'} in A, {', '.join(values[1]) or 'unknown'} in B")
    return said


def left_out(a, b, name):
    """A sentence with the work that only one side has; [] where there is none."""
    known = set(b[list(tables.WORK)].itertuples(index=False, name=None))
    only = [row for row in a.to_dict("records") if tuple(row[column] for column in tables.WORK) not in known]
    if not only:
        return []
    shown = [f"{tables.name_work(row)} ({row['framework']})" for row in only[:5]]
    more = f", and {len(only) - 5} more" if len(only) > 5 else ""
    return [f"only in {name}: {'; '.join(shown)}{more}"]


def find(side, environ, folder):
    """The path that A or B names, a file or a machine; raises SettingError."""
    given = environ.get(side, "").strip()
    if not given:
        raise SettingError(f"{side}='' is empty: name a CSV file, or a machine that has one in {folder.name}/")
    for path in (Path(given), ROOT / given, folder / f"{given}.csv"):
        if path.is_file():
            return path
    known = ", ".join(sorted(path.stem for path in folder.glob("*.csv"))) or "none"
    raise SettingError(f"{side}={given!r} is no file, and no machine in {folder.name}/ (there are: {known})")


def read_side(side, environ, folder):
    """The summary of a file of rows; raises SettingError where it has none that can be compared."""
    path, said = find(side, environ, folder), []
    summary = tables.summarize(tables.read_rows([path], said.append))
    # A peak is the best of its machine, at whatever size and by whatever operator it was reached.
    summary.loc[summary["model"] == "matmul-peak", ["matrix_size", "memory_format", "batch_size"]] = ""
    summary = summary.drop_duplicates(["machine", *tables.WORK], keep="last")  # of several setups the latest
    summary["flags"] = [tables.say_flags(row) for row in summary[["flags", "status"]].to_dict("records")]
    if summary.empty:
        raise SettingError(f"{side}={str(path)!r} has no rows to compare" + "".join(f" ({line})" for line in said))
    if summary["machine"].nunique() > 1:
        raise SettingError(f"{side}={str(path)!r} has rows of {summary['machine'].nunique()} machines: name one of one")
    return summary


def describe(both):
    """The Markdown table of compare()'s lines."""
    lines = [
        (
            tables.name_work(row),
            row["framework"],
            tables.figure(row["value_a"]),
            f"{tables.figure(row['value_b'])} {row['per_b']}",
            f"{row['ratio']:.3f}",
            "" if math.isnan(row["low"]) or math.isnan(row["high"]) else f"{row['low']:.3f} to {row['high']:.3f}",
            row["verdict"],
            "; ".join(f"{side.upper()}: {row[f'flags_{side}']}" for side in "ab" if row[f"flags_{side}"]),
        )
        for row in both.to_dict("records")
    ]
    return tables.markdown(("work", "framework", "A", "B", "B / A", "interval", "B is", "flags"), lines)


def main(environ=os.environ):
    """Print the comparison; the exit status is 0, 2 for a mistake, or 1 as FAIL_ON_SLOWER asks for."""
    try:
        folder = read_settings("compare", environ).results_dir
        if environ.get("FAIL_ON_SLOWER", "0") not in ("0", "1"):
            raise SettingError(f"FAIL_ON_SLOWER={environ['FAIL_ON_SLOWER']!r} must be 1 or 0")
        a, b = (read_side(side, environ, folder) for side in "AB")
    except SettingError as error:
        print(error, file=sys.stderr)
        return 2
    both = compare(a, b)
    print(f"A: {a['machine'].iloc[0]} ({a['file'].iloc[0]})\nB: {b['machine'].iloc[0]} ({b['file'].iloc[0]})\n")
    if both.empty:
        print("nothing in A and B has equal settings")
    else:
        print(describe(both), end="\n\n")
        mean = math.exp(sum(map(math.log, both["ratio"])) / len(both))
        print(f"geometric mean of {len(both)} ratios: {mean:.3f}")
    for line in [*differences(both), *left_out(a, b, "A"), *left_out(b, a, "B")]:
        print(line)
    has_failed = both.empty or (both["verdict"] == "slower").any()
    return 1 if environ.get("FAIL_ON_SLOWER") == "1" and has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
