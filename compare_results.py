"""Compare machines: all of them in one table, or two of them, or two versions on one machine, row by row.

    make compare                                # the standard set on all machines, in Markdown
    make compare A=amd-epyc-2-cores B=nvidia-h200
    make compare A=before.csv B=after.csv

Ratios are B over A: above 1, B is faster. A row of one process has a ratio but no verdict, because a single process
does not show how much processes differ. The verdict is "cannot tell" if the intervals overlap, or if other programs or
swapping disturbed a row.
"""

import math
import os
import statistics
import sys
from collections import Counter
from pathlib import Path

from bench import processes
from bench.plots import table
from bench.records import columns, report, results, tables
from bench.records.columns import disturbing_flags, format_number
from bench.records.verdict import ENOUGH_PAIRS, Rate, verdict_of
from bench.settings import SettingError, read_settings

MOST_NAMED = 5  # rows, or differences, in a remark
OF_A_MACHINE = ("machine", "device_name", "cpu_id")
OF_THE_BEST = ("matrix_size", "memory_format", "batch_size")  # how a machine reaches its peak
ORDER = columns.COLUMNS["workload"].holds  # of the workloads in a table
LAYOUT = "  {:>7}  {:<16}  {:<11}  {:>8}  {:>8}  {}"
TITLES = ("B / A", "interval", "B is", "A", "B", "unit [flags]")


def warn(line):
    print(line, file=sys.stderr)


def read_side(side, environ, folder):
    """Return the latest result of each work, as tables.latest() describes it, of the file that A or B names."""
    name = os.path.expanduser(environ.get(side, "").strip())
    path = Path(name) if Path(name).is_file() else folder / f"{name}.csv"
    if not path.is_file():
        known = ", ".join(sorted({path.stem for path in folder.glob("*.csv")} - {"published"})) or "none"
        raise SettingError(f"{side}={name!r} must be a CSV file or a machine in {folder.name}/: set one of {known}")
    lines = tables.latest(tables.convert(results.read(path, warn)))
    lines = lines.loc[~lines["published"] & (lines["value"] > 0)]
    if lines.empty:
        raise SettingError(f"{side}={name!r} has no results to compare: name another file")
    return lines.to_dict("records")


def work_of(line, names):
    """Return the cells of these names, which have to be equal in two lines.

    A peak is the best of its machine, at any size and by any operator.
    """
    if line["model"] == "matmul-peak":
        names = [name for name in names if name not in OF_THE_BEST]
    return tuple(line[name] for name in names)


def compare(a, b):
    """Compare two lines of the same work: {a, b, processes, ratio, verdict, notes, is_extra}."""
    few, many = sorted(line["processes"] for line in (a, b))
    # The value of an operator is TFLOP/s.
    ratio = Rate(b["value"], b["low"], b["high"]).ratio(Rate(a["value"], a["low"], a["high"]))
    ratio = ratio if few > 1 else Rate(ratio.throughput)
    verdict = verdict_of(ratio) if few > 1 else ""
    notes = [f"{side}: {line['flags']}" for side, line in (("A", a), ("B", b)) if line["flags"]]
    if disturbing_flags(a) or disturbing_flags(b):
        verdict = "cannot tell"
    return {
        "a": a,
        "b": b,
        "processes": (few, many),
        "ratio": ratio,
        "verdict": verdict,
        "notes": notes,
        # What only the first process of a run measures: a pipeline
        "is_extra": few == 1 and b["scope"] in ("input", "end_to_end"),
    }


def describe_work(line, *others):
    """Describe a line's work, with the framework and the kinds of device: a file may have the work of both kinds."""
    kinds = dict.fromkeys(each["kind"].upper() for each in (*others, line))
    what = line | dict.fromkeys(OF_THE_BEST, "") if line["model"] == "matmul-peak" else line
    return f"{columns.describe_work(what)}, {line['framework']} on {' and '.join(kinds)}"


def format_ratio(ratio):
    """Format a ratio with three digits after the point, or with as many digits if it is far from 1."""
    return f"{ratio:.3f}" if 0.1 <= ratio < 10 else format_number(ratio, "{:.3g}")


def describe_comparison(line):
    """Describe one comparison in two lines: the work, and its figures in LAYOUT."""
    ratio = line["ratio"]
    interval = f"{format_ratio(ratio.low)} to {format_ratio(ratio.high)}" if ratio.low > 0 else ""
    rates = [format_number(line[side]["value"]) for side in "ab"]
    unit = " ".join([line["b"]["per"], *(f"[{note}]" for note in line["notes"])])
    figures = LAYOUT.format(format_ratio(ratio.throughput), interval, line["verdict"], *rates, unit)
    return f"{report.wrap(describe_work(line['b'], line['a']), '  ')}\n{figures}"


def describe_medians(lines):
    """Describe the median ratio of all lines and by workload, without those that the host limits on either side."""
    bound = [line for line in lines if any("launch_bound" in line[side]["flags"] for side in "ab")]
    by_workload = {}
    for line in (line for line in lines if line not in bound):
        by_workload.setdefault(line["b"]["workload"], []).append(line["ratio"].throughput)
    medians = {name: format_ratio(statistics.median(ratios)) for name, ratios in by_workload.items()}
    every = [ratio for ratios in by_workload.values() for ratio in ratios]
    words = [f"median ratio {format_ratio(statistics.median(every))}"] if every else []
    words += [", ".join(f"{name} {ratio}" for name, ratio in medians.items())] if len(medians) > 1 else []
    words += [f"{len(bound)} launch-bound are not in it"] if bound else []
    return "; ".join(words)


def list_remarks(a, b, lines):
    """List sentences: verdicts that are wrong by chance, one machine at two times, versions, work of only one side."""
    remarks = []
    few = [line["processes"] for line in lines if 1 < line["processes"][0] < ENOUGH_PAIRS]
    if few:
        # If both are equally fast, all rates of one are above all of the other one in 2 of these orders.
        chance = max(2 / math.comb(sum(counts), counts[0]) for counts in few)
        wrong = f"if A and B are equally fast, up to {100 * chance:.2g} % of the verdicts are wrong by chance"
        remarks.append(f"fewer than {ENOUGH_PAIRS} processes ({len(few)} of {len(lines)}): {wrong}")
    if ones := sum(not line["verdict"] for line in lines):
        why = "no verdict, because processes differ: measure with RUNS=5"
        remarks.append(f"one process ({ones} of {len(lines)}): {why}")
    if same := sum(all(line["a"][name] == line["b"][name] for name in OF_A_MACHINE) for line in lines):
        why = "A and B were measured one after the other, so what changed in between counts as well"
        remarks.append(f"one machine ({same} of {len(lines)}): {why}; a list such as COMPILE=0,1 is interleaved")
    details = {}
    for name in ("cpu_id", *columns.VERSIONS, *columns.SETUP):  # row by row: sets of both sides may agree by chance
        pairs = Counter((line["a"][name] or "unknown", line["b"][name] or "unknown") for line in lines)
        shares = [(*pair, f"({count} of {len(lines)})") for pair, count in pairs.items() if pair[0] != pair[1]]
        details[name] = [f"{in_a} in A and {in_b} in B {share}" for in_a, in_b, share in shares]
    for side, one, other in (("A", a, b), ("B", b, a)):
        only = [(ORDER.index(one[work]["workload"]), describe_work(one[work])) for work in one.keys() - other]
        details[f"only in {side}"] = [words for _, words in sorted(only)]
    for name, texts in ((name, texts) for name, texts in details.items() if texts):
        remarks.append(f"{name}: {report.join_some(texts, MOST_NAMED)}")
    return remarks


def main(environ=os.environ):
    """Print the table of all machines, or the comparison of two; return the exit status."""
    folder = read_settings("compare", environ).results_dir
    if not any(environ.get(side) for side in "AB"):
        print(table.describe_set(folder, warn) or "there are no results of the standard set: run `make all`")
        return 0
    sides = {side: read_side(side, environ, folder) for side in "AB"}
    # Where a side has results of its CPU and of its GPU, each is compared with its like.
    has_both = any(len({line["kind"] for line in side}) > 1 for side in sides.values())
    names = tables.WORK if has_both else columns.WORK
    a, b = ({work_of(line, names): line for line in side} for side in sides.values())
    for side, (*_, last) in sides.items():
        words = environ[side].strip(), last["machine"], last["device_name"] or last["device"]
        print(f"{side}: {', '.join(dict.fromkeys(words))}")
    lines = [compare(a[work], b[work]) for work in b if work in a]
    lines.sort(key=lambda line: ORDER.index(line["b"]["workload"]))
    hides = any(line["verdict"] and not line["is_extra"] for line in lines)
    extras = [line for line in lines if hides and line["is_extra"]]
    listed = [line for line in lines if not (hides and line["is_extra"])]
    if listed:
        print("", LAYOUT.format(*TITLES), *map(describe_comparison, listed), "", sep="\n")
    elif not extras:
        print("\nA and B have no work in common: nothing can be compared")
    remarks = list_remarks(a, b, listed)
    for what, some in (("pipelines, not listed", extras), ("rows", listed)):
        if some:
            count = Counter(line["verdict"] or "of one process" for line in some)
            verdicts = ", ".join(f"{number} {verdict}" for verdict, number in count.most_common())
            remarks.append(f"{len(some)} {what}: {verdicts}; {describe_medians(some)}")
    print("\n".join(report.wrap(line, "  ") for line in remarks))
    return 0


if __name__ == "__main__":
    sys.exit(processes.run_script(main))
