"""Compare machines: all of them in tables, or two of them, or two versions on one machine, row by row.

    make compare                                # the standard set on all machines, in Markdown
    make compare A=amd-epyc-25-17-2-cores B=nvidia-h200
    make compare A=nvidia-h200 B="NVIDIA RTX 3090"      # a published machine, by words of its name
    make compare A=before B=after               # files, or folders with the file of one machine

Ratios are B over A: above 1, B is faster. A verdict needs three undisturbed processes on each side, because a single
process does not show how much processes differ; it is "cannot tell" if the intervals overlap.

The exit status is 4 if the same chip does a work more than 5 % slower in B, by the medians of at least five processes
on each side. If both are equally fast, this happens in up to 1.5 % of the comparisons. It is 1 if nothing is judged: A
and B have no work in common, or are one machine and no work has a verdict.
"""

import os
import statistics
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

from bench import process
from bench.plots import table
from bench.records import likeness, report, results, tables
from bench.records.columns import SETUP, VERSIONS, WORK, WORKLOADS, describe_work, format_number, format_ratio
from bench.records.verdict import ENOUGH_PAIRS, Rate, verdict_of
from bench.settings import SettingError, read_runs, slug

SLOWER, NOT_JUDGED = 4, 1  # exit statuses
ACCEPTED = 0.95  # the least ratio with the exit status 0
MOST_NAMED = 5  # rows, or differences, in a remark
OF_THE_BEST = ["matrix_size", "memory_format", "batch_size"]  # how a machine reaches its peak
LAYOUT = "  {:>7}  {:<16}  {:<15}  {:>8}  {:>8}  {}"
TITLES = ("B / A", "interval", "B is", "A", "B", "unit [flags]")


def warn(line):
    print(line, file=sys.stderr)


def read_side(side, environ, folder):
    """Return the results that count of the file, the machine or the published device that A or B names, as a frame.

    Those of an own file are in the order of time, published ones in that of their rates. Added are `where`, framework
    and kind of device, and the `title`, work and where.
    """
    typed = environ.get(side, "").strip()
    paths = [Path(os.path.expanduser(typed)), folder / f"{typed}.csv"]
    with suppress(ValueError):
        paths.append(folder / f"{slug(typed)}.csv")  # as pages write it
    inside = [path for path in results.list_files(paths[0]) if typed and path.stem != "published"]
    if path := next(filter(Path.is_file, paths + inside * (len(inside) == 1)), None):
        found = tables.combine(tables.load([path], warn))
        lines = tables.latest(found[~found["published"]])
        chips = found["cpu_id"].where(found["kind"] == "cpu", found["device_name"]).groupby(found["kind"]).unique()
        for names in chips[chips.map(len) > 1]:
            warn(f"{side}={typed!r} mixes several chips, {'; '.join(names)}: give each a MACHINE of its own")
    else:
        lines = tables.read(folder)
        lines = lines[lines["published"] & (lines["status"] == "ok")].sort_values("value", kind="stable")
        names, words = sorted(set(lines["device_name"])), likeness.words_in(typed)
        found = [name for name in names if name.lower() == typed.lower()]
        found = found or [name for name in names if words and words <= likeness.words_in(name)]
        if len(found) != 1:
            known = found or sorted({path.stem for path in results.list_files(folder)} - {"published"}) or ["none"]
            fix = f"set {side} to a CSV file, or to one of {'; '.join(known)}"
            raise SettingError(f"{side}={typed!r} is not one machine in {folder.name}/ or one published device: {fix}")
        lines = lines[lines["device_name"] == found[0]]
    lines = lines[lines["value"] > 0].reset_index(drop=True)
    if lines.empty:
        raise SettingError(f"{side}={typed!r} has no results to compare: name another file")
    last = lines.iloc[-1]
    print(f"{side}: {', '.join(dict.fromkeys([typed, last['machine'], last['device_name'] or last['device']]))}")
    lines.loc[lines["model"] == "matmul-peak", OF_THE_BEST] = ""  # it is the best of its machine, at any size
    rows = lines.to_dict("records")
    few = [f", {threads}" if (threads := likeness.few_threads(row)) else "" for row in rows]
    where = lines["framework"] + " on " + lines["kind"].str.upper() + few
    titles = list(map(describe_work, rows)) + (", " + where)
    return lines.assign(where=where, title=titles)


def pair_lines(a, b):
    """Return a line for each work of B that A has, too: a dict of the cells of B, and those of A with `_a`.

    Of several lines those of equal setup are a pair, or else the newest ones. What A has only in another framework, and
    what was published, is paired if likeness.work_key() is equal; of published ones the same framework, then the
    fastest. There is no interval and no verdict below ENOUGH processes, nor of disturbed or published ones. Added are
    `few` (the processes of the side with fewer), `ratio`, `verdict` and `pair`, the title.
    """
    has_both = max(a["kind"].nunique(), b["kind"].nunique()) > 1  # results of a CPU and of a GPU
    a, b = (side.assign(key=side["work"] + (side["kind"] if has_both else "")) for side in (a, b))
    pairs = b.merge(a, on="key", suffixes=("", "_a"))
    for new, names in (("same_work", WORK), ("same_setup", SETUP), ("same_framework", ["framework"])):
        pairs[new] = (pairs[[*names]].to_numpy() == pairs[[f"{name}_a" for name in names]].to_numpy()).all(axis=1)
    pairs["cited"] = pairs["published"] | pairs["published_a"]
    pairs["few"] = pairs[["processes", "processes_a"]].min(axis=1)
    pairs["sound"] = (pairs["few"] >= tables.ENOUGH) & ~(pairs["disturbed"] | pairs["disturbed_a"] | pairs["cited"])
    pairs = pairs[pairs["same_work"] | pairs["cited"] | ~pairs["same_framework"]]
    order = ["same_framework", "value_a"] if pairs["cited"].any() else ["same_work", "same_setup"]
    pairs = pairs.sort_values(order, kind="stable").drop_duplicates([*WORK, "kind"], keep="last")
    pairs = pairs.sort_index().to_dict("records")
    for line in pairs:
        # The value of an operator is TFLOP/s.
        rate, base = (Rate(line[f"value{side}"], line[f"low{side}"], line[f"high{side}"]) for side in ("", "_a"))
        line["ratio"] = rate.ratio(base) if line["sound"] else Rate(rate.throughput / base.throughput)
        line["verdict"] = verdict_of(line["ratio"]) if line["sound"] else ""
        line["pair"] = line["title"] + (f" (A: {line['where_a']})" if line["where"] != line["where_a"] else "")
    return sorted(pairs, key=lambda line: WORKLOADS.index(line["workload"]))


def describe_ratio(line):
    """Describe one comparison in lines: the work, its figures in LAYOUT, and what was published, with its source."""
    ratio, low, high = (format_ratio(end, 4) for end in line["ratio"])
    notes = [f"[{side}: {flags}]" for side, flags in (("A", line["flags_a"]), ("B", line["flags"])) if flags]
    values = format_number(line["value_a"]), format_number(line["value"]), " ".join([line["per"], *notes])
    few = "1 process" if line["few"] == 1 else f"{line['few']} processes"
    reason = "" if line["cited"] else "disturbed" if line["disturbed"] or line["disturbed_a"] else few
    figures = LAYOUT.format(ratio, f"{low} to {high}" if low else "", line["verdict"] or reason, *values)
    texts = [report.wrap(line["pair"], "  "), figures]
    if line["cited"]:
        sides = {"A": {name: line.get(f"{name}_a") for name in line}, "B": line}
        cited = [f"{side}: {likeness.describe_how(row)} {row['source']}".strip() for side, row in sides.items()]
        texts.append(report.wrap(f"    {'; '.join(cited)}", "    "))
    return "\n".join(texts)


def is_slower(line):
    """Return whether the same machine is so much slower in B, by enough processes of each, that it is hardly chance."""
    is_clear = line["verdict"] == "slower" and line["few"] >= ENOUGH_PAIRS
    is_same = all(line[name] == line[f"{name}_a"] for name in ("device_name", "cpu_id", "framework", *SETUP))
    return is_clear and is_same and line["ratio"].throughput < ACCEPTED


def list_remarks(a, b, lines):
    """List verdicts that are wrong by chance, versions and setups that differ, work of only one side, and a summary."""
    remarks = {}
    if few := sum(line["verdict"] != "" and line["few"] < ENOUGH_PAIRS for line in lines):
        # All rates of one side are above all of the other one in 2 of 20 orders.
        why = f"if A and B are equally fast, 10 % of such verdicts are wrong, fewer with RUNS={ENOUGH_PAIRS}"
        remarks[f"verdicts on fewer than {ENOUGH_PAIRS} processes ({few} of {len(lines)})"] = [why]
    own = [line for line in lines if not line["cited"]]
    of = f"of {len(lines)}"
    for name in ("cpu_id", *VERSIONS, *SETUP):  # row by row: sets of both sides may agree by chance
        counts = Counter((line[f"{name}_a"] or "unknown", line[name] or "unknown") for line in own)
        remarks[name] = [f"{x} in A and {y} in B ({count} {of})" for (x, y), count in counts.items() if x != y]
    compared = {line[title] for line in lines for title in ("title", "title_a")}
    for side, titles in (("A", a["title"]), ("B", b["title"])):
        remarks[f"only in {side}"] = [title for title in dict.fromkeys(titles) if title not in compared]
    if lines:
        counts = Counter(line["verdict"] or "without a verdict" for line in lines).most_common()
        ratios = [line["ratio"].throughput for line in lines if not (line["disturbed"] or line["disturbed_a"])]
        median = [f"median ratio {format_ratio(statistics.median(ratios), 4)}"] if ratios else []
        remarks[f"all {len(lines)}"] = [", ".join(f"{count} {verdict}" for verdict, count in counts), *median]
    return [f"{name}: {report.join_some(texts, MOST_NAMED)}" for name, texts in remarks.items() if texts]


def main(environ=os.environ):
    """Print the table of all machines, or the comparison of two; return 0, SLOWER if B is, or NOT_JUDGED."""
    folder = read_runs("compare", environ)[0].settings.results_dir
    if not any(environ.get(side) for side in "AB"):
        nothing = f"there are no results of the standard set in {results.display_path(folder)}: run `make all`"
        print(table.describe_set(folder, warn) or nothing)
        return 0
    a, b = (read_side(side, environ, folder) for side in "AB")
    lines = pair_lines(a, b)
    if lines:
        print("", LAYOUT.format(*TITLES), *map(describe_ratio, lines), "", sep="\n")
    else:
        has_jax = "jax" in {*a["framework"], *b["framework"]}
        fix = ": JAX is always compiled, so measure PyTorch with COMPILE=1" if has_jax else ""
        print(f"\nA and B have no work in common{fix}; so the exit status is {NOT_JUDGED}")
    remarks = list_remarks(a, b, lines)
    slower = [line["pair"] for line in lines if is_slower(line)]
    if slower:
        remarks.append(f"more than 5 % slower: {report.join_some(slower, MOST_NAMED)}; so the exit status is {SLOWER}")
    judged = [line for line in lines if line["verdict"] or line["cited"] or line["machine"] != line["machine_a"]]
    if lines and not judged:
        remarks.append(
            f"no verdict, so the exit status is {NOT_JUDGED}: close other programs, then RUNS={ENOUGH_PAIRS}"
        )
    print("\n".join(report.wrap(line, "  ") for line in remarks))
    return SLOWER if slower else 0 if judged else NOT_JUDGED


if __name__ == "__main__":
    sys.exit(process.run_script(main))
