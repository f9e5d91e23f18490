"""Compare machines: all of them in tables, or two of them, or two versions on one machine, row by row.

    make compare                                # the standard set on all machines, in Markdown
    make compare A=amd-epyc-25-17-2-cores B=nvidia-h200
    make compare A=nvidia-h200 B="NVIDIA RTX 3090"      # a published machine, by words of its name
    make compare A=before.csv B=after.csv

Ratios are B over A: above 1, B is faster. A verdict needs three undisturbed processes on each side, because a single
process does not show how much processes differ; it is "cannot tell" if the intervals overlap.

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
from bench.records import columns, likeness, report, results, tables
from bench.records.columns import WORKLOADS, format_number
from bench.records.verdict import ENOUGH_PAIRS, Rate, verdict_of
from bench.settings import SettingError, read_settings, slug

SLOWER = 4  # the exit status
ACCEPTED = 0.95  # the least ratio with the exit status 0
MOST_NAMED = 5  # rows, or differences, in a remark
OF_THE_BEST = ["matrix_size", "memory_format", "batch_size"]  # how a machine reaches its peak
LAYOUT = "  {:>7}  {:<16}  {:<15}  {:>8}  {:>8}  {}"
TITLES = ("B / A", "interval", "B is", "A", "B", "unit [flags]")


def warn(line):
    print(line, file=sys.stderr)


def read_side(side, environ, folder):
    """Return the results that count of the file, the machine or the published device that A or B names: lines, dicts.

    Those of an own file are in the order of time, published ones in that of their rates.
    """
    typed = environ.get(side, "").strip()
    paths = [Path(os.path.expanduser(typed)), folder / f"{typed}.csv"]
    with suppress(ValueError):
        paths.append(folder / f"{slug(typed)}.csv")  # as pages write it
    if path := next(filter(Path.is_file, paths), None):
        lines = tables.latest(tables.combine(tables.load([path], warn)))
        lines = lines[~lines["published"]]
    else:
        lines = tables.read(folder, warn=lambda line: None)
        lines = lines[lines["published"] & (lines["status"] == "ok")].sort_values("value", kind="stable")
        name = likeness.find_name(side, typed, dict.fromkeys(lines["device_name"])) if typed else None
        lines = lines[lines["device_name"] == name]
        if lines.empty:
            known = ", ".join(sorted({path.stem for path in results.list_files(folder)} - {"published"})) or "none"
            wrong = f"{side}={typed!r} must be" if typed else f"{side} is not set, and A and B are compared: set it to"
            raise SettingError(f"{wrong} a CSV file or a machine in {folder.name}/: one of {known}")
    lines = lines[lines["value"] > 0]
    if lines.empty:
        raise SettingError(f"{side}={typed!r} has no results to compare: name another file")
    return lines.to_dict("records")


def pair_lines(a, b, kinds):
    """List the pairs (line of A, line of B) of the same work: of equal setup if there are, else the newest of each.

    What is left is paired with the same work in another framework, or that others published, at the end.

    Args:
        a, b: lines, dicts.
        kinds: ["kind"] if each kind of device is to be compared with its like, else [].
    """
    pairs = {}
    for names in (columns.WORK, [*columns.WORK, *columns.SETUP]):
        ours, theirs = (group_lines(side, [*kinds, *names]) for side in (a, b))
        for key, line in theirs.items():
            if key in ours:
                pairs[key[: len(kinds) + len(columns.WORK)]] = ours[key], line
    names = [*kinds, "work"]
    paired = group_lines([line for line, _ in pairs.values()], names)
    ours, theirs = (group_lines(side, names) for side in (a, b))
    others = [(ours[key], theirs[key]) for key in theirs if key in ours and key not in paired]
    others = [pair for pair in others if is_published(*pair) or pair[0]["framework"] != pair[1]["framework"]]
    return sorted([*pairs.values(), *others], key=lambda pair: WORKLOADS.index(pair[1]["workload"]))


def group_lines(lines, names):
    """Return {cells of these names: the last line that has them}."""
    return {tuple(map(say_best(line).get, names)): line for line in lines}


def say_best(line):
    """Return a line without what does not tell a peak: it is the best of its machine, at any size, by any operator."""
    return line | dict.fromkeys(OF_THE_BEST, "") if line["model"] == "matmul-peak" else line


def is_published(a, b):
    return a["published"] or b["published"]


def compare(a, b):
    """Compare two lines of the same work: {a, b, few: processes of the side with fewer, ratio, verdict}.

    There is no interval and no verdict below ENOUGH processes, nor of disturbed ones.
    """
    few = min(a["processes"], b["processes"])
    # The value of an operator is TFLOP/s.
    ratio = Rate(b["value"], b["low"], b["high"]).ratio(Rate(a["value"], a["low"], a["high"]))
    is_sound = few >= tables.ENOUGH and not (a["disturbed"] or b["disturbed"] or is_published(a, b))
    ratio = ratio if is_sound else Rate(ratio.throughput)
    return {"a": a, "b": b, "few": few, "ratio": ratio, "verdict": verdict_of(ratio) if is_sound else ""}


def describe_pair(line, *others):
    """Describe the work of lines, with the framework and the kinds of device: a file may have that of both kinds."""
    kinds = dict.fromkeys(each["kind"].upper() for each in (*others, line))
    frameworks = dict.fromkeys(each["framework"] for each in (*others, line))
    return f"{columns.describe_work(say_best(line))}, {' and '.join(frameworks)} on {' and '.join(kinds)}"


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
        sides = [f"{side.upper()}: {likeness.describe_how(line[side])} {line[side]['source']}".strip() for side in "ab"]
        texts.append(report.wrap(f"    {'; '.join(sides)}", "    "))
    return "\n".join(texts)


def describe_medians(lines):
    """Describe the median ratio of all undisturbed lines, and by workload."""
    ratios = {}
    for line in lines:
        if not (line["a"]["disturbed"] or line["b"]["disturbed"]):
            for name in ("median ratio", line["b"]["workload"]):
                ratios.setdefault(name, []).append(line["ratio"].throughput)
    return ", ".join(f"{name} {format_ratio(statistics.median(some))}" for name, some in ratios.items())


def is_slower(line):
    """Return whether the same machine is so much slower in B, by enough processes of each, that it is hardly chance."""
    is_clear = line["verdict"] == "slower" and line["few"] >= ENOUGH_PAIRS
    is_same = all(line["a"][name] == line["b"][name] for name in ("device_name", "cpu_id", "framework", *columns.SETUP))
    return is_clear and is_same and line["ratio"].throughput < ACCEPTED


def list_remarks(a, b, lines):
    """List sentences: verdicts that are wrong by chance, versions and setups that differ, work of only one side."""
    remarks = []
    if few := sum(line["verdict"] != "" and line["few"] < ENOUGH_PAIRS for line in lines):
        # All rates of one side are above all of the other one in 2 of 20 orders.
        why = f"if A and B are equally fast, 10 % of these are wrong by chance, fewer with RUNS={ENOUGH_PAIRS}"
        remarks.append(f"verdicts on fewer than {ENOUGH_PAIRS} processes ({few} of {len(lines)}): {why}")
    own = [line for line in lines if not is_published(line["a"], line["b"])]
    details = {}
    for name in ("cpu_id", *columns.VERSIONS, *columns.SETUP):  # row by row: sets of both sides may agree by chance
        pairs = Counter((line["a"][name] or "unknown", line["b"][name] or "unknown") for line in own)
        shares = [(*pair, f"({count} of {len(lines)})") for pair, count in pairs.items() if pair[0] != pair[1]]
        details[name] = [f"{in_a} in A and {in_b} in B {share}" for in_a, in_b, share in shares]
    compared = {describe_pair(line[side]) for line in lines for side in "ab"}
    for side, some in (("A", a), ("B", b)):
        ordered = sorted(some, key=lambda line: WORKLOADS.index(line["workload"]))
        words = dict.fromkeys(map(describe_pair, ordered))
        details[f"only in {side}"] = [each for each in words if each not in compared]
    return remarks + [f"{name}: {report.join_some(texts, MOST_NAMED)}" for name, texts in details.items() if texts]


def main(environ=os.environ):
    """Print the table of all machines, or the comparison of two; return 0, or SLOWER if B is."""
    folder = read_settings("compare", environ).results_dir
    if not any(environ.get(side) for side in "AB"):
        nothing = f"there are no results of the standard set in {results.display_path(folder)}: run `make all`"
        print(table.describe_set(folder, warn) or nothing)
        return 0
    a, b = (read_side(side, environ, folder) for side in "AB")
    has_both = any(len({line["kind"] for line in side}) > 1 for side in (a, b))  # results of a CPU and of a GPU
    for side, last in (("A", a[-1]), ("B", b[-1])):
        words = environ[side].strip(), last["machine"], last["device_name"] or last["device"]
        print(f"{side}: {', '.join(dict.fromkeys(words))}")
    lines = [compare(*pair) for pair in pair_lines(a, b, ["kind"] if has_both else [])]
    remarks = list_remarks(a, b, lines)
    if not lines:
        models = {line["model"] for line in a} & {line["model"] for line in b}
        frameworks = {line["framework"] for line in (*a, *b) if line["model"] in models}
        is_jax = {"jax", "torch"} <= frameworks
        fix = "JAX is always compiled: measure PyTorch with COMPILE=1" if is_jax else "nothing can be compared"
        print(f"\nA and B have no work in common: {fix}")
    else:
        print("", LAYOUT.format(*TITLES), *map(describe_ratio, lines), "", sep="\n")
        count = Counter(line["verdict"] or "without a verdict" for line in lines)
        verdicts = ", ".join(f"{number} {verdict}" for verdict, number in count.most_common())
        remarks.append(f"{len(lines)} rows: {verdicts}; {describe_medians(lines)}")
    slower = [describe_pair(line["b"], line["a"]) for line in lines if is_slower(line)]
    if slower:
        remarks.append(f"more than 5 % slower: {report.join_some(slower, MOST_NAMED)}; so the exit status is {SLOWER}")
    print("\n".join(report.wrap(line, "  ") for line in remarks))
    return SLOWER if slower else 0


if __name__ == "__main__":
    sys.exit(process.run_script(main))
