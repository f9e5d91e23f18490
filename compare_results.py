"""Compare two machines, or two versions on one machine, row by row: which is faster, and how certain is that?

    make compare A=results/amd-epyc-2-cores.csv B=results/nvidia-h200.csv
    make compare A=amd-epyc-2-cores B=nvidia-h200

Ratios are B over A: above 1, B is faster. A row of one process has a ratio but no verdict, because a single process
does not show how much processes differ. Neither has a row that other programs or swapping disturbed.
"""

import functools
import os
import statistics
import sys
from collections import Counter
from pathlib import Path

from bench import processes
from bench.records import columns, report, results, tables
from bench.records.columns import disturbing_flags, format_number
from bench.records.verdict import MACHINE_CHANGED, Rate, verdict_of
from bench.settings import SettingError, read_settings

MOST_NAMED = 5  # rows, or differences, in a remark
LAYOUT = "{:>7}  {:<16}  {:<11}  {:>8}  {:>8}  {:<11}  {}"
TITLES = ("B / A", "interval", "B is", "A", "B", "unit", "work [flags]")


def read_side(side, environ, folder):
    """Read the latest result of each work from the file that A or B names by path or machine.

    Returns:
        {work: its line, as tables.latest() describes it; or, if it only failed, its last row, which has no value}.
    """
    name = os.path.expanduser(environ.get(side, "").strip())
    path = Path(name) if Path(name).is_file() else folder / f"{name}.csv"
    if not path.is_file():
        known = ", ".join(sorted({path.stem for path in folder.glob("*.csv")} - {"published"})) or "none"
        raise SettingError(f"{side}={name!r} is not a CSV file or a machine in {folder.name}/ (machines: {known})")
    rows = tables.convert(results.read(path, functools.partial(print, file=sys.stderr)))
    lines = tables.latest(rows)
    lines = lines.loc[~lines["published"] & (lines["value"] > 0)]
    if lines.empty:
        raise SettingError(f"{side}={name!r} has no results to compare: name another file")
    failed = rows.loc[~rows["published"] & (rows["status"] != "ok")].sort_values("timestamp")
    return {work_of(line): line for each in (failed, lines) for line in each.to_dict("records")}


def work_of(line):
    """Return what has to be equal in two lines. A peak is the best of its machine, at any size and by any operator."""
    names = tables.WORK
    if line["model"] == "matmul-peak":
        names = [name for name in names if name not in ("matrix_size", "memory_format", "batch_size")]
    return tuple(line[name] for name in names)


def compare(a, b):
    """List the work that both sides have: dicts of the two lines, the ratio, a Rate, and the verdict."""
    comparisons = []
    for work in (work for work in b if work in a and "value" in a[work].keys() & b[work].keys()):
        pair = {"A": a[work], "B": b[work]}
        # The value of an operator is TFLOP/s.
        base, rate = (Rate(line["value"], line["low"], line["high"]) for line in pair.values())
        ratio = rate.ratio(base)
        is_single = any(line["processes"] == 1 for line in pair.values())
        if is_single:
            ratio = Rate(ratio.throughput)
        disturbed = [f"{side}: {' '.join(flags)}" for side, line in pair.items() if (flags := disturbing_flags(line))]
        verdict = "" if is_single else verdict_of(ratio)
        if disturbed:
            verdict = f"cannot tell ({'; '.join(disturbed)})"
        comparisons.append({"a": pair["A"], "b": pair["B"], "ratio": ratio, "verdict": verdict})
    return comparisons


def describe_work(line):
    """Describe a line's work, with the framework and the kind of device: a file may have the work of both kinds."""
    return f"{columns.describe_work(line)}, {line['framework']} on {line['kind'].upper()}"


def describe_comparison(line):
    """Describe one comparison in a line of LAYOUT."""
    a = line["a"]
    b = line["b"]
    ratio = line["ratio"]
    interval = f"{ratio.low:.3f} to {ratio.high:.3f}" if ratio.low > 0 else ""
    rates = format_number(a["value"]), format_number(b["value"]), b["per"]
    flags = [f" [{side}: {flagged['flags']}]" for side, flagged in (("A", a), ("B", b)) if flagged["flags"]]
    work = f"{describe_work(b)}{''.join(flags)}"
    return LAYOUT.format(f"{ratio.throughput:.3f}", interval, line["verdict"], *rates, work)


def list_remarks(a, b, lines):
    """List sentences: a changed machine, missing verdicts, different versions and setups, work of only one side."""
    remarks = []
    one_machine = [line for line in lines if line["a"]["machine"] == line["b"]["machine"]]
    times = [line["b"]["canary_seconds"] / line["a"]["canary_seconds"] for line in one_machine]
    times = [ratio for ratio in times if ratio > 0]  # NaN: unknown
    if times and not 1 / MACHINE_CHANGED < (ratio := statistics.median(times)) < MACHINE_CHANGED:
        remarks.append(f"warning: the machine changed: the canary, a small matmul, took {ratio:.2f} times as long in B")
    count = Counter(line["verdict"] for line in lines)
    if count[""]:
        remarks.append(f"no verdict ({count['']} of {len(lines)}): A or B has a single process; measure with RUNS=5")
    if count["cannot tell"]:
        remarks.append(f"cannot tell ({count['cannot tell']} of {len(lines)}): the intervals overlap or are unknown")
    details = {}
    for name in ("cpu_id", *columns.VERSIONS, *columns.SETUP):  # row by row: sets of both sides may agree by chance
        pairs = Counter((line["a"][name] or "unknown", line["b"][name] or "unknown") for line in lines)
        shares = [(*pair, f"({count} of {len(lines)})") for pair, count in pairs.items() if pair[0] != pair[1]]
        details[name] = [f"{in_a} in A and {in_b} in B {share}" for in_a, in_b, share in shares]
    for side, one, other in (("A", a, b), ("B", b, a)):
        failed = {work: f"{describe_work(line)}: {line['status']}" for work, line in one.items() if "value" not in line}
        details[f"only in {side}"] = [describe_work(one[work]) for work in one.keys() - (other | failed)]
        details[f"failed in {side}"] = [failed[work] for work in failed if "value" in other.get(work, ())]
    for name, texts in ((name, texts) for name, texts in details.items() if texts):
        more = f", and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
        remarks.append(f"{name}: {'; '.join(sorted(texts)[:MOST_NAMED])}{more}")
    return remarks


def main(environ=os.environ):
    """Print the comparison; return the exit status."""
    folder = read_settings("compare", environ).results_dir
    a, b = (read_side(side, environ, folder) for side in "AB")
    lines = compare(a, b)
    for side, rows in (("A", a), ("B", b)):
        last = list(rows.values())[-1]
        names = environ[side].strip(), last["machine"], last["device_name"] or last["device"]
        print(f"{side}: {', '.join(dict.fromkeys(names))}")
    if lines:
        print("", LAYOUT.format(*TITLES), *map(describe_comparison, lines), "", sep="\n")
    else:
        print("\nA and B have no work in common: nothing can be compared")
    print("\n".join(report.wrap(line, "  ") for line in list_remarks(a, b, lines)))
    return 0


if __name__ == "__main__":
    sys.exit(processes.run_script(main))
