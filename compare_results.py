"""Compare machines: all of them in tables, or two of them, or two versions on one machine, row by row.

    make compare                                # the standard set on all machines, in Markdown
    make compare A=amd-epyc-25-17-2-cores B=nvidia-h200
    make compare A=nvidia-h200 B="NVIDIA RTX 3090"      # a published machine, by a part of its name
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
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from bench import process
from bench.plots import table
from bench.records import likeness, report, results, tables
from bench.records.columns import SETUP, VERSIONS, WORK, WORKLOADS, describe_work, format_number, format_ratio
from bench.records.verdict import ENOUGH_PAIRS, Rate, ratio_of, verdict_of
from bench.settings import SettingError, read_runs

SLOWER, NOT_JUDGED = 4, 1  # exit statuses
ACCEPTED = 0.95  # the least ratio with the exit status 0
MOST_NAMED = 5  # rows, or differences, in a remark
OF_THE_BEST = ["matrix_size", "memory_format", "batch_size"]  # how a machine reaches its peak
LAYOUT = "  {:>7}  {:<16}  {:<15}  {:>8}  {:>8}  {}"
TITLES = ("B / A", "interval", "B is", "A", "B", "unit [flags]")


def warn(line):
    print(line, file=sys.stderr)


def read_side(side, environ, folder):
    """Return the results that count, dicts, of the file, machine or published device that A or B names.

    Those of an own file are in the order of time, published ones in that of their rates. Added are `where`, framework
    and kind of device, and the `title`, work and where.
    """
    typed = environ.get(side, "").strip()
    named = Path(os.path.expanduser(typed))
    files = [named, folder / f"{typed.lower().replace(' ', '-')}.csv", *named.glob("[!.]*.csv")]
    files = [path for path in files if typed and path.is_file() and path.stem != "published"]
    if len(files) == 1:
        found = tables.combine(tables.load(files, warn))
        chips = found["cpu_id"].where(found["kind"] == "cpu", found["device_name"]).groupby(found["kind"]).unique()
        for names in chips[chips.map(len) > 1]:
            warn(f"{side}={typed!r} mixes several chips, {'; '.join(names)}: give each a MACHINE of its own")
        found = tables.latest(found[~found["published"]])
    else:
        found = tables.latest(tables.read(folder))
        found = found[found["published"] & (found["status"] == "ok")].sort_values("value", kind="stable")
        words = typed.lower().replace("geforce ", "")  # drivers print it, sources do not
        names = [name for name in sorted(set(found["device_name"])) if words and words in name.lower()]
        fits = [name for name in names if name.lower() == words] or names
        if len(fits) != 1:
            known = fits or sorted({path.stem for path in folder.glob("[!.]*.csv")} - {"published"}) or ["none"]
            fix = f"set {side} to a CSV file, or to one of {'; '.join(known)}"
            raise SettingError(f"{side}={typed!r} is not one machine in {folder.name}/ or one published device: {fix}")
        found = found[found["device_name"] == fits[0]]
    rows = found[found["value"] > 0].to_dict("records")
    if not rows:
        raise SettingError(f"{side}={typed!r} has no results to compare: name another file")
    last = rows[-1]
    print(f"{side}: {', '.join(dict.fromkeys([typed, last['machine'], last['device_name'] or last['device']]))}")
    for row in rows:
        if row["model"] == "matmul-peak":  # it is the best of its machine, at any size
            row |= dict.fromkeys(OF_THE_BEST, "")
        threads = likeness.few_threads(row)
        row["where"] = ", ".join(filter(None, [f"{row['framework']} on {row['kind'].upper()}", threads]))
        row["title"] = f"{describe_work(row)}, {row['where']}"
    return rows


class Pair(NamedTuple):
    """Results of the same work, of A and of B."""

    a: dict
    b: dict
    title: str
    ratio: Rate | None  # B over A, see ratio_of()
    verdict: str  # "" without an interval
    few: int  # processes of the side with fewer


def agree(a, b, *names):
    """Return whether two results have equal cells."""
    return all(a[name] == b[name] for name in names)


def pair_results(a, b, is_cited):
    """Return a Pair for each work of B, or of A if only A is published, that the other one has, too.

    Of several results those of equal setup are a pair, or else the newest ones. What A has only in another framework,
    and what was published, is paired if likeness.work_key() is equal; of these the same framework, then the fastest
    undisturbed one.
    """
    has_both = any(len({row["kind"] for row in rows}) > 1 for rows in (a, b))  # results of a CPU and of a GPU
    bases, chosen, pairs = defaultdict(list), {}, []
    for base in a:
        bases[base["work"], has_both and base["kind"]].append(base)
    for result in b:
        for base in bases[result["work"], has_both and result["kind"]]:
            is_same, is_like = agree(base, result, *WORK), agree(base, result, "framework")
            cited, own = (base, result) if base["published"] else (result, base)
            rank = (is_like, own["undisturbed"], own["value"]) if is_cited else (is_same, agree(base, result, *SETUP))
            work = tuple(cited[name] for name in (*WORK, "kind"))
            if (is_same or is_cited or not is_like) and rank >= chosen.get(work, [()])[0]:
                chosen.pop(work, None)  # so that pairs are in the order of their results
                chosen[work] = rank, base, result
    for _, base, result in sorted(chosen.values(), key=lambda each: WORKLOADS.index(each[2]["workload"])):
        title = result["title"] + (f" (A: {base['where']})" if base["where"] != result["where"] else "")
        ratio = ratio_of(result, base)
        verdict = verdict_of(ratio) if ratio and ratio.low > 0 else ""
        pairs.append(Pair(base, result, title, ratio, verdict, min(base["processes"], result["processes"])))
    return pairs


def describe_pair(pair, is_cited):
    """Describe one comparison in lines: the work, its figures in LAYOUT, and what was published, with its source."""
    sides = {"A": pair.a, "B": pair.b}
    ratio, low, high = (format_ratio(end, 4) for end in pair.ratio or ("", "", ""))
    notes = [f"[{side}: {row['flags']}]" for side, row in sides.items() if row["flags"]]
    values = format_number(pair.a["value"]), format_number(pair.b["value"]), " ".join([pair.b["per"], *notes])
    few = "1 process" if pair.few == 1 else f"{pair.few} processes"
    reason = "disturbed" if not pair.ratio else "" if is_cited else few
    figures = LAYOUT.format(ratio, f"{low} to {high}" if low else "", pair.verdict or reason, *values)
    texts = [report.wrap(pair.title, "  "), figures]
    if is_cited:
        cited = [f"{side}: {likeness.describe_how(row)} {row['source']}".strip() for side, row in sides.items()]
        texts.append(report.wrap(f"    {'; '.join(cited)}", "    "))
    return "\n".join(texts)


def is_slower(pair):
    """Return whether the same machine is so much slower in B, by enough processes of each, that it is hardly chance."""
    is_clear = pair.verdict == "slower" and pair.few >= ENOUGH_PAIRS
    is_same = agree(pair.a, pair.b, "device_name", "cpu_id", "framework", *SETUP)
    return is_clear and is_same and pair.ratio.throughput < ACCEPTED


def list_remarks(a, b, pairs, is_cited):
    """List verdicts that are wrong by chance, versions and setups that differ, work of only one side, and a summary."""
    remarks = {}
    of = f"of {len(pairs)}"
    if few := sum(pair.verdict != "" and pair.few < ENOUGH_PAIRS for pair in pairs):
        # All rates of one side are above all of the other one in 2 of 20 orders.
        why = f"if A and B are equally fast, 10 % of such verdicts are wrong, fewer with RUNS={ENOUGH_PAIRS}"
        remarks[f"verdicts on fewer than {ENOUGH_PAIRS} processes ({few} {of})"] = [why]
    for name in () if is_cited else ("cpu_id", *VERSIONS, *SETUP):  # sets of both sides may agree by chance
        counts = Counter((pair.a[name] or "unknown", pair.b[name] or "unknown") for pair in pairs)
        remarks[name] = [f"{x} in A and {y} in B ({count} {of})" for (x, y), count in counts.items() if x != y]
    compared = {row["title"] for pair in pairs for row in (pair.a, pair.b)}
    for side, rows in (("A", a), ("B", b)):
        titles = dict.fromkeys(row["title"] for row in rows)
        remarks[f"only in {side}"] = [title for title in titles if title not in compared]
    if pairs:
        counts = Counter(pair.verdict or "without a verdict" for pair in pairs).most_common()
        ratios = [pair.ratio.throughput for pair in pairs if pair.ratio]
        median = [f"median ratio {format_ratio(statistics.median(ratios), 4)}"] if ratios else []
        remarks[f"all {len(pairs)}"] = [", ".join(f"{count} {verdict}" for verdict, count in counts), *median]
    return [f"{name}: {report.join_some(texts, MOST_NAMED)}" for name, texts in remarks.items() if texts]


def main(environ=os.environ):
    """Print the table of all machines, or the comparison of two; return 0, SLOWER if B is, or NOT_JUDGED."""
    folder = read_runs("compare", environ)[0].settings.results_dir
    if not any(environ.get(side) for side in "AB"):
        nothing = f"there are no results of the standard set in {results.display_path(folder)}: run `make all`"
        print(table.describe_set(folder, warn) or nothing)
        return 0
    a, b = (read_side(side, environ, folder) for side in "AB")
    is_cited = a[0]["published"] or b[0]["published"]  # then all of that side are, and there is no verdict
    pairs = pair_results(a, b, is_cited)
    if pairs:
        print("", LAYOUT.format(*TITLES), *(describe_pair(pair, is_cited) for pair in pairs), "", sep="\n")
    else:
        has_jax = any(row["framework"] == "jax" for row in (*a, *b))
        fix = ": JAX is always compiled, so measure PyTorch with COMPILE=1" if has_jax else ""
        print(f"\nA and B have no work in common{fix}; so the exit status is {NOT_JUDGED}")
    remarks = list_remarks(a, b, pairs, is_cited)
    slower = [pair.title for pair in pairs if is_slower(pair)]
    if slower:
        remarks.append(f"more than 5 % slower: {report.join_some(slower, MOST_NAMED)}; so the exit status is {SLOWER}")
    judged = [pair for pair in pairs if pair.verdict or is_cited or not agree(pair.a, pair.b, "machine")]
    if pairs and not judged:
        remarks.append(f"no verdict, so the exit status is {NOT_JUDGED}: close other programs, set RUNS={ENOUGH_PAIRS}")
    print("\n".join(report.wrap(remark, "  ") for remark in remarks))
    return SLOWER if slower else 0 if judged else NOT_JUDGED


if __name__ == "__main__":
    sys.exit(process.run_script(main))
