"""Combine rows into results when they are read, and compare the runs of a group.

A row is what one process measured of one work. A result is what a run, all processes of one combination of settings,
measured of it: a dict like a row, with the interval of its processes. A published row is a result already.
"""

import statistics
from collections import defaultdict
from dataclasses import dataclass

from bench.records import results
from bench.records.columns import COLUMNS, DISTURBING, MEASURED, WORK, disturbing_flags
from bench.records.verdict import Rate, name_bottleneck
from bench.settings import SCOPES
from bench.timing.intervals import median_interval

NUMBERS = [name for name, column in COLUMNS.items() if column.holds in MEASURED]


def convert(row):
    """Return a row of results.read() with numbers instead of their text, None if unknown, and its rate from seconds."""
    row = row | {name: float(row[name]) if row[name] else None for name in NUMBERS}
    for items, seconds in ((row["items"], row["seconds"]), (row["batch_size"], row["step_seconds_median"])):
        if row["source"] and not row["throughput"] and items and seconds:
            row["throughput"] = float(items) / seconds
            row["unit"] = "sequences/s" if row["workload"] == "transformer" else "images/s"
    return row


def read_stored(folder):
    """Return the results of all files of a folder and the published ones, without what cannot be read."""
    return combine(map(convert, results.read_files(results.list_files(folder), warn=lambda line: None)))


def combine(rows):
    """Return the results of rows, which may be those of many runs: one for each run and work, in their order.

    Take the row of the median process (of two in the middle the slower one), and widen its interval to span all
    processes (from nine on, see median_interval()). Processes that others disturbed, or that failed or were
    interrupted, do not count if the run has others. Added are `process_rates`, a text with the rates of those that
    count, and `bottleneck`, what limits a pipeline, which follows from its three scopes.

    Args:
        rows: dicts; numbers are numbers, and None if they are unknown.
    """
    runs = defaultdict(list)
    for row in rows:
        runs[row["run_id"]].append(row)
    return [result for run in runs.values() for result in combine_run(run)]


def combine_run(rows):
    """Return the results of the rows of one run."""
    rows_by_work = defaultdict(list)
    for row in rows:
        # A row that has just been measured has numbers where one of a file has their text.
        key = tuple("" if row.get(name) is None else str(row[name]) for name in WORK)
        rows_by_work[len(rows_by_work) if row["source"] else key].append(row)
    found = [{"process_rates": "", "bottleneck": ""} | combine_processes(some) for some in rows_by_work.values()]
    by_scope = {row["scope"]: row for row in found if row["status"] == "ok" and not row["source"]}
    if set(SCOPES) <= by_scope.keys():
        row = by_scope["end_to_end"]
        rates = (Rate.of_row(by_scope[scope]) for scope in ("device", "input", "end_to_end"))
        row["bottleneck"], why = name_bottleneck(*rates, shares_cores=row["device"] == "cpu")
        row["note"] = "; ".join(filter(None, [why, row["note"]]))
        if row["bottleneck"] == "device":  # the queue was full at the end too: being full at the start added nothing
            row["flags"] = " ".join(flag for flag in row["flags"].split() if flag != "short")
    return found


def combine_processes(rows):
    """Return the result of the rows of processes that did the same work; a published row is one already."""
    if rows[0]["source"]:
        return rows[0]
    rows = list({(row["process"], row["status"]): row for row in rows}.values())  # a file may have been added to itself
    ok = [row for row in rows if row["status"] == "ok"] or [row for row in rows if row["throughput"]]
    if not ok:
        return dict(rows[-1])
    sound = [row for row in ok if not disturbing_flags(row)] or ok
    reasons = [f"{row['status']} in a process: {row['note']}" for row in rows if row not in ok and is_failure(row)]
    if len(sound) < len(ok):
        flags = [flag for row in ok for flag in disturbing_flags(row)]
        why = ", ".join(f"{flag} in {flags.count(flag)}" for flag in DISTURBING if flag in flags)
        reasons.append(f"{len(sound)} of {len(ok)} processes count: {why}")
    middle = sorted(sound, key=lambda row: row["throughput"])[(len(sound) - 1) // 2]
    interval = {}  # None for one process without an interval of its own
    for place, end in enumerate(("throughput_low", "throughput_high")):
        ends = [row["throughput"] if row[end] is None and len(sound) > 1 else row[end] for row in sound]
        interval[end] = median_interval(ends, rho=0)[place]
    errors = [row["output_error"] for row in sound if row["output_error"] is not None]
    flags = [flag for row in sound for flag in row["flags"].split()]
    return middle | {
        **interval,
        "output_error": max(errors, default=None),
        "note": "; ".join(dict.fromkeys(filter(None, [middle["note"], *(row["note"] for row in sound), *reasons]))),
        "process_rates": " ".join(f"{row['throughput']:.4g}" for row in sound),
        "flags": " ".join(dict.fromkeys(flags)),
    }


def is_failure(row):
    return row["status"] not in ("ok", "interrupted")


def count_processes(row):
    """Return how many processes measured a result; 0 for a failure and for what was published."""
    return len(row["process_rates"].split())


# Comparisons


@dataclass(frozen=True)
class Comparison:
    """The ratio of two runs' rates."""

    ratio: Rate  # the median of the pairs of processes, and their interval: from nine on, that of their median
    pairs: int
    differing: list[str]  # columns of work; if there are any, the ratio means nothing


def compare_runs(rows, base_rows, chosen=()):
    """Return the Comparison of a run with another one; None if no pair of processes is complete.

    A pair are two processes with the same number in the same group. Its ratio is the median of those of their i-th
    slices; without slices, that of the two rates.

    Args:
        rows, base_rows: those of each run, of any quantities; rates of the scope device are compared.
        chosen: columns in which the two may differ; use_gpu: in the device.
    """
    ours, bases = (
        {(row["group"], row["process"]): row for row in some if row["status"] == "ok" and row["scope"] == "device"}
        for some in (rows[::-1], base_rows[::-1])  # of several rows of a process the first is compared
    )
    pairs = [(ours[key], bases[key]) for key in ours if key in bases and all(key)]
    if not pairs:
        return None
    ratios = [ratio_of(*pair) for pair in pairs]
    allowed = {"device" if name == "use_gpu" else name for name in chosen}
    differing = [name for name in (*WORK, "device") if any(row[name] != base[name] for row, base in pairs)]
    ratio = Rate(statistics.median(ratios), *median_interval(ratios, rho=0))
    return Comparison(ratio, len(ratios), [name for name in differing if name not in allowed])


def ratio_of(row, base):
    slices = []
    if row["stop_reason"] == base["stop_reason"] == "slices":
        slices = list(zip(read_rates(row), read_rates(base), strict=False))
    slices = slices or [(row["throughput"], base["throughput"])]
    return statistics.median(a / b for a, b in slices)


def read_rates(row):
    """Return the rates of a row's windows, of its slices, or of the parts of a sustained run; [] without any."""
    return [float(rate) for rate in (row["rates"] or "").split()]
