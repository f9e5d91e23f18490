"""Compare machines: all of them in tables, or two of them, or two versions on one machine, row by row.

    make compare                                # the standard set on all machines, in Markdown
    make compare A=amd-epyc-2-cores B=nvidia-h200
    make compare A=nvidia-h200 B="NVIDIA RTX 3090"      # a published machine, by words of its name
    make compare A=before.csv B=after.csv

Ratios are B over A: above 1, B is faster. A result of one process has a ratio but no verdict, because a single process
does not show how much processes differ; nor has one of the same machine with another setup. The verdict is "cannot
tell" if the intervals overlap, or if other programs or swapping disturbed a result.

The exit status is 4 if the same chip does a work more than 5 % slower in B, by the medians of at least five processes
on each side. If both are equally fast, this happens in up to 1.5 % of the comparisons.
"""

import os
import statistics
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

from bench import process
from bench.plots import table
from bench.records import columns, likeness, peaks, report, results, tables
from bench.records.columns import disturbing_flags, format_number
from bench.records.combine import convert, read_stored
from bench.records.likeness import describe_how, work_of
from bench.records.verdict import ENOUGH_PAIRS, Rate, verdict_of
from bench.settings import SettingError, read_settings, slug

SLOWER = 4  # the exit status
ACCEPTED = 0.95  # the least ratio with the exit status 0
MOST_NAMED = 5  # rows, or differences, in a remark
OF_THE_BEST = ("matrix_size", "memory_format", "batch_size")  # how a machine reaches its peak
ORDER = columns.COLUMNS["workload"].holds  # of the workloads in a table
LAYOUT = "  {:>7}  {:<16}  {:<15}  {:>8}  {:>8}  {}"
TITLES = ("B / A", "interval", "B is", "A", "B", "unit [flags]")


def warn(line):
    print(line, file=sys.stderr)


def find_file(name, folder):
    """Return the path of the file that A or B names, or the machine, also as pages write it; None if there is none."""
    paths = [Path(os.path.expanduser(name)), folder / f"{name}.csv"]
    with suppress(ValueError):
        paths.append(folder / f"{slug(name)}.csv")
    return next(filter(Path.is_file, paths), None)


def read_side(side, environ, folder):
    """Read the file or the published results that A or B names; returns lines of tables.latest()."""
    name = environ.get(side, "").strip()
    path = find_file(name, folder)
    if path:
        rows = [row for row in map(convert, results.read(path, warn)) if not row["source"]]
    else:
        rows = find_published(side, name, folder)
        known = ", ".join(sorted({path.stem for path in results.list_files(folder)} - {"published"})) or "none"
        wrong = f"{side}={name!r} must be" if name else f"{side} is not set, and A and B are compared: set it, too, to"
        if not rows:
            raise SettingError(f"{wrong} a CSV file or a machine in {folder.name}/: one of {known}")
    lines = tables.latest(tables.to_frame(rows))
    lines = lines.loc[lines["value"] > 0]
    lines = lines if path else lines.sort_values("value")
    if lines.empty:
        raise SettingError(f"{side}={name!r} has no results to compare: name another file")
    return lines.to_dict("records")


def find_published(side, typed, folder):
    """Return the valid published results of the machine that A or B names."""
    found = [row for row in read_stored(folder) if row["source"] and row["status"] == "ok"]
    name = likeness.find_name(side, typed, dict.fromkeys(row["device_name"] for row in found)) if typed else None
    return [row for row in found if row["device_name"] == name]


def pair_lines(a, b, names):
    """List the pairs (line of A, line of B) of the same work: of equal setup if there are, else the newest of each.

    What is left is paired across frameworks, or with the fastest published result, at the end.
    """
    pairs = []
    ours = group_by_work(a, names)
    for key, others in group_by_work(b, names).items():
        if mine := ours.get(key):
            both = [(line, other) for other in others for line in mine]
            pairs.append(([pair for pair in both if is_same_setup(*pair)] or both)[-1])

    def work(line):
        return work_of(line), line["kind"] if "kind" in names else ""

    paired = {work(line) for line, _ in pairs}
    ours, theirs = ({work(line): line for line in side} for side in (a, b))
    others = [(ours[each], line) for each, line in theirs.items() if each in ours and each not in paired]
    return pairs + [pair for pair in others if is_published(*pair) or pair[0]["framework"] != pair[1]["framework"]]


def group_by_work(lines, names):
    """Group lines by the cells of these names. A peak is the best of its machine, at any size and by any operator."""
    works = {}
    for line in lines:
        left_out = OF_THE_BEST if line["model"] == "matmul-peak" else ()
        works.setdefault(tuple(line[name] for name in names if name not in left_out), []).append(line)
    return works


def is_published(a, b):
    return a["published"] or b["published"]


def is_same_setup(a, b):
    return all(a[name] == b[name] for name in columns.SETUP)


def compare(a, b):
    """Compare two lines of the same work: {a, b, few: processes of the side with fewer, ratio, verdict}."""
    few = min(a["processes"], b["processes"])
    # The value of an operator is TFLOP/s.
    ratio = Rate(b["value"], b["low"], b["high"]).ratio(Rate(a["value"], a["low"], a["high"]))
    ratio = ratio if few > 1 else Rate(ratio.throughput)
    if disturbing_flags(a) or disturbing_flags(b):
        verdict = "cannot tell"
    elif is_published(a, b):
        verdict = "published"
    elif a["framework"] != b["framework"]:
        verdict = "other framework"
    elif peaks.chip_of(a) == peaks.chip_of(b) and not is_same_setup(a, b):
        verdict = "other setup"
    else:
        verdict = verdict_of(ratio) if few > 1 else ""
    return {"a": a, "b": b, "few": few, "ratio": ratio, "verdict": verdict}


def describe_pair(line, *others):
    """Describe the work of lines, with the framework and the kinds of device: a file may have that of both kinds."""
    kinds = dict.fromkeys(each["kind"].upper() for each in (*others, line))
    frameworks = dict.fromkeys(each["framework"] for each in (*others, line))
    what = line | dict.fromkeys(OF_THE_BEST, "") if line["model"] == "matmul-peak" else line
    return f"{columns.describe_work(what)}, {' and '.join(frameworks)} on {' and '.join(kinds)}"


def format_ratio(ratio):
    """Format a ratio with three digits after the point, or with as many digits if it is far from 1."""
    return f"{ratio:.3f}" if 0.1 <= ratio < 10 else format_number(ratio, "{:.3g}")


def describe_ratio(line):
    """Describe one comparison in lines: the work, its figures in LAYOUT, and what was published, with its source."""
    ratio = line["ratio"]
    interval = f"{format_ratio(ratio.low)} to {format_ratio(ratio.high)}" if ratio.low > 0 else ""
    rates = [format_number(line[side]["value"]) for side in "ab"]
    notes = [f"[{side.upper()}: {line[side]['flags']}]" for side in "ab" if line[side]["flags"]]
    unit = " ".join([line["b"]["per"], *notes])
    figures = LAYOUT.format(format_ratio(ratio.throughput), interval, line["verdict"], *rates, unit)
    texts = [report.wrap(describe_pair(line["b"], line["a"]), "  "), figures]
    if is_published(line["a"], line["b"]):
        sides = [f"{side.upper()}: {describe_how(line[side])} {line[side]['source']}".strip() for side in "ab"]
        texts.append(report.wrap(f"    {'; '.join(sides)}", "    "))
    return "\n".join(texts)


def describe_medians(lines):
    """Describe the median ratio of all lines, and by workload."""
    ratios = {"median ratio": [line["ratio"].throughput for line in lines]}
    for line in lines:
        ratios.setdefault(line["b"]["workload"], []).append(line["ratio"].throughput)
    return ", ".join(f"{name} {format_ratio(statistics.median(some))}" for name, some in ratios.items())


def is_slower(line):
    """Return whether the same chip is so much slower in B, by enough processes of each, that it is hardly chance."""
    is_clear = line["verdict"] == "slower" and line["few"] >= ENOUGH_PAIRS
    is_same_chip = all(line["a"][name] == line["b"][name] for name in ("device", "device_name", "cpu_id"))
    return is_clear and is_same_chip and line["ratio"].throughput < ACCEPTED


def list_remarks(a, b, lines):
    """List sentences: verdicts that are wrong by chance, one machine at two times, versions, work of only one side."""
    remarks = []
    if few := sum(1 < line["few"] < ENOUGH_PAIRS for line in lines):
        # All rates of one side are above all of the other one in 2 of 20 orders.
        why = "if A and B are equally fast, 10 % of the verdicts on three processes each are wrong by chance"
        remarks.append(f"fewer than {ENOUGH_PAIRS} processes ({few} of {len(lines)}): {why}")
    if ones := sum(not line["verdict"] for line in lines):
        why = "no verdict, because processes differ: measure with RUNS=5"
        remarks.append(f"one process ({ones} of {len(lines)}): {why}")
    if same := sum(peaks.chip_of(line["a"]) == peaks.chip_of(line["b"]) for line in lines):
        why = "A and B were measured one after the other, so what changed in between counts as well"
        remarks.append(f"one machine ({same} of {len(lines)}): {why}; a list such as COMPILE=0,1 is interleaved")
    own = [line for line in lines if not is_published(line["a"], line["b"])]
    details = {}
    for name in ("cpu_id", *columns.VERSIONS, *columns.SETUP):  # row by row: sets of both sides may agree by chance
        pairs = Counter((line["a"][name] or "unknown", line["b"][name] or "unknown") for line in own)
        shares = [(*pair, f"({count} of {len(lines)})") for pair, count in pairs.items() if pair[0] != pair[1]]
        details[name] = [f"{in_a} in A and {in_b} in B {share}" for in_a, in_b, share in shares]
    compared = {describe_pair(line[side]) for line in lines for side in "ab"}
    for side, one, other in (("A", a, b), ("B", b, a)):
        only = [(ORDER.index(one[work][-1]["workload"]), describe_pair(one[work][-1])) for work in one.keys() - other]
        details[f"only in {side}"] = [words for _, words in sorted(only) if words not in compared]
    remarks += [f"{name}: {report.join_some(texts, MOST_NAMED)}" for name, texts in details.items() if texts]
    return remarks


def main(environ=os.environ):
    """Print the table of all machines, or the comparison of two; return 0, or SLOWER if B is."""
    folder = read_settings("compare", environ).results_dir
    if not any(environ.get(side) for side in "AB"):
        nothing = f"there are no results of the standard set in {results.display_path(folder)}: run `make all`"
        print(table.describe_set(folder, warn) or nothing)
        return 0
    a, b = (read_side(side, environ, folder) for side in "AB")
    # Where a side has results of its CPU and of its GPU, each is compared with its like.
    has_both = any(len({line["kind"] for line in side}) > 1 for side in (a, b))
    names = tables.WORK_AND_KIND if has_both else columns.WORK
    for side, last in (("A", a[-1]), ("B", b[-1])):
        words = environ[side].strip(), last["machine"], last["device_name"] or last["device"]
        print(f"{side}: {', '.join(dict.fromkeys(words))}")
    lines = [compare(line, other) for line, other in pair_lines(a, b, names)]
    lines.sort(key=lambda line: ORDER.index(line["b"]["workload"]))
    remarks = list_remarks(group_by_work(a, names), group_by_work(b, names), lines)
    if not lines:
        print("\nA and B have no work in common: nothing can be compared")
    else:
        print("", LAYOUT.format(*TITLES), *map(describe_ratio, lines), "", sep="\n")
        count = Counter(line["verdict"] or "of one process" for line in lines)
        verdicts = ", ".join(f"{number} {verdict}" for verdict, number in count.most_common())
        remarks.append(f"{len(lines)} rows: {verdicts}; {describe_medians(lines)}")
    slower = [describe_pair(line["b"], line["a"]) for line in lines if is_slower(line)]
    if slower:
        remarks.append(f"more than 5 % slower: {report.join_some(slower, MOST_NAMED)}; so the exit status is {SLOWER}")
    print("\n".join(report.wrap(line, "  ") for line in remarks))
    return SLOWER if slower else 0


if __name__ == "__main__":
    sys.exit(process.run_script(main))
