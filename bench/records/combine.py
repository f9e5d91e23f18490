"""Combine what several processes measured of the same work: a row is a result."""

from bench.records.columns import WORK
from bench.records.flags import DISTURBING
from bench.records.verdict import Rate, name_bottleneck
from bench.settings import SCOPES

# Columns that only the first process measures.
OF_THE_FIRST = ("output_error", "output_limit", "canary_seconds", "idle_watts")
OF_THE_FIRST += ("power_watts", "joules_per_item", "power_scope")


def combine(processes):
    """Return one row for each quantity, with the warnings of all processes, and with the part that limits a pipeline.

    Its cells are those of the process with the median rate (of two in the middle the slower one), so that they fit each
    other. Its interval reaches from the lowest to the highest end of the processes' own intervals.

    Args:
        processes: a list of rows for each process. Those of the same quantity agree in WORK. If only some processes
            failed, their reasons are in the note.
    """
    quantities = {}
    for rows in processes:
        for row in rows:
            key = (*(row.get(name) for name in WORK), row.get("elapsed_seconds"))
            quantities.setdefault(key, []).append(row)
    combined = [combine_quantity(rows) for rows in quantities.values()]
    by_scope = {row["scope"]: row for row in combined if row["status"] == "ok"}
    if set(SCOPES) <= set(by_scope):
        row = by_scope["end_to_end"]
        device, pipeline, both = (Rate.of_row(by_scope[scope]) for scope in ("device", "input", "end_to_end"))
        row["bottleneck"], why = name_bottleneck(device, pipeline, both, shares_cores=row["device"] == "cpu")
        row["note"] = "; ".join(filter(None, [why, row["note"]]))
        if row["bottleneck"] == "device":  # the queue was full at the end too: being full at the start added nothing
            row["flags"] = " ".join(flag for flag in row["flags"].split() if flag != "short")
    for row in combined:
        row.pop("turn_rates", None)  # only compare_pairs() needs them
    return combined


def combine_quantity(rows):
    """Return the row of one quantity from the rows of its processes; what disturbed fewer than half is in the note."""
    ok = [row for row in rows if row["status"] == "ok"] or [row for row in rows if row.get("throughput")]
    if not ok:
        return rows[0]
    reasons = [f"{row['status']} in a process: {row['note']}" for row in rows if row not in ok]
    middle = sorted(ok, key=lambda row: row["throughput"])[(len(ok) - 1) // 2]
    interval = {}  # None for one process without an interval of its own
    for end, choose in (("throughput_low", min), ("throughput_high", max)):
        ends = [row[end] for row in ok if row.get(end) is not None]
        if len(ok) > 1:
            ends += [row["throughput"] for row in ok]
        interval[end] = choose(ends, default=None)
    flags = [flag for row in ok for flag in (row.get("flags") or "").split()]
    rare = [flag for flag in DISTURBING if 0 < 2 * flags.count(flag) < len(ok)]
    reasons += [f"{flag} in {flags.count(flag)} of {len(ok)} processes" for flag in rare]
    return middle | {
        **interval,
        **{name: next((row[name] for row in ok if row.get(name) is not None), None) for name in OF_THE_FIRST},
        # Only the first process knows whether a model could be compared with the CPU.
        "note": "; ".join(dict.fromkeys(filter(None, [middle["note"], *(row["note"] for row in ok), *reasons]))),
        "process_rates": " ".join(f"{row['throughput']:.4g}" for row in ok),
        "flags": " ".join(flag for flag in dict.fromkeys(flags) if flag not in rare),
    }
