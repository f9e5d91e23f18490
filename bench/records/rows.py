"""Make rows, {column: value}: the cells of one process, and the row of one quantity of all processes."""

import os
from dataclasses import asdict
from datetime import UTC, datetime

from bench.host.environment import name_machine
from bench.records import peaks
from bench.records.columns import COLUMNS, DISTURBING, SCHEMA, WORK, make_printable
from bench.records.verdict import Rate, name_bottleneck
from bench.settings import DECLARED, SCOPES, is_used_in
from bench.timing.intervals import median_interval
from bench.timing.measure import METHOD_VERSION

# Columns that only the first process measures.
OF_THE_FIRST = ("output_error", "output_limit", "idle_watts")
OF_THE_FIRST += ("power_watts", "joules_per_item", "power_scope")


def work_cells(settings, workload, scope):
    """Return the cells that describe the work: {column: value}.

    A setting that the phase uses fills the column of its own name, if there is one: DEPTH fills `depth`. Cells in
    Workload.columns replace those of settings.
    """
    has_pipeline = scope in ("input", "end_to_end")
    names = [name for name in (*WORK, "seed") if name in DECLARED and is_used_in(name, settings.phase)]
    if has_pipeline:
        names.append("num_workers")
    return {
        **{name: settings.cell(name) for name in names},
        "method_version": METHOD_VERSION,
        "world_size": settings.num_devices or 1,
        "workload": workload.name,
        "model": workload.model,
        "scope": scope,
        "unit": f"{workload.unit}/s",
        **workload.columns,
        **({"data": "jpeg_q96"} if has_pipeline else {}),
    }


def name_chip(row):
    """Return the name of a row's machine without MACHINE: that of its GPU, or of its CPU; a Mac has one name for both.

    Raises:
        ValueError: a GPU's name has no letters or digits.
    """
    gpu_name = None if row["device"] in (None, "", "cpu", "mps") else row["device_name"]
    return name_machine(row["cpu_name"], row["cpu_count"], gpu_name, row["gpu_cores"])


def complete_row(host, run_id, line):
    """Return the row of a child's line: every column, with the cells of the host, and a flag if it is implausible.

    In the line are the cells of the device, of work_cells(), of the measurement, and of child.check_and_complete().
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    shared = {"schema": SCHEMA, "run_id": run_id, "timestamp": now, "note": "", "flags": ""}
    about = {name: cell for name, cell in asdict(host).items() if name in COLUMNS}
    row = dict.fromkeys(COLUMNS) | about | shared | line
    row["machine"] = host.machine or name_chip(row)
    row["device_name"] = row["device_name"] or host.cpu_name
    if row["device"] != "cuda":
        row["power_limit_watts"] = None
    row["note"] = row["note"].replace(f"{os.path.expanduser('~')}/", "~/")  # as a compiler's command quotes it
    row |= {name: make_printable(text) for name, text in row.items() if isinstance(text, str)}  # its colours
    if peaks.is_implausible(row):
        row["flags"] = f"{row['flags']} implausible".strip()
    return row


def measurement_cells(measured):
    """Return the cells of a Measurement, and the rates of its turns, which combine() removes."""
    cells = asdict(measured) | measured.readings
    del cells["readings"]
    status = "interrupted" if measured.stop_reason == "interrupted" else "ok"
    return cells | {"flags": " ".join(dict.fromkeys(measured.flags)), "status": status}


def energy_cells(instruments, watts, joules_per_item):
    """Return the cells of power and energy; {} if the power is unknown or its counter is stuck."""
    if not watts > 0:
        return {}
    scope = instruments.counter.power_scope
    return {"power_watts": watts, "joules_per_item": joules_per_item, "power_scope": scope}


def combine(processes):
    """Return one row for each quantity, with the warnings of all processes, and with the part that limits a pipeline.

    Its cells are those of the process with the median rate (the slower of the two middle ones), so that they are
    consistent. Its interval joins those of all processes (from nine on, see median_interval()).

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
    for place, end in enumerate(("throughput_low", "throughput_high")):
        ends = [row["throughput"] if row.get(end) is None and len(ok) > 1 else row.get(end) for row in ok]
        interval[end] = median_interval(ends, rho=0)[place]
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
