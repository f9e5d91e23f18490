"""Fill the cells of a row, {column: value}: what the settings and the work say, and what a measurement adds."""

import os
from dataclasses import asdict
from datetime import UTC, datetime

from bench.host.environment import name_machine
from bench.records import peaks
from bench.records.columns import COLUMNS, SCHEMA, WORK, make_printable
from bench.settings import DECLARED, is_used_in
from bench.timing.measure import METHOD_VERSION


def work_cells(settings, workload, scope):
    """Return the cells that describe the work: the settings that its phase uses, and what the workload knows better.

    A setting fills the column of work that has its name, unless the workload sets it.
    """
    has_pipeline = scope in ("input", "end_to_end")
    names = [name for name in (*WORK, "seed") if name in DECLARED and is_used_in(name, settings.phase)]
    if has_pipeline:
        names.append("num_workers")
    used = {name: getattr(settings, name) for name in names}
    return {
        **{name: int(value) if isinstance(value, bool) else value for name, value in used.items()},
        "method_version": METHOD_VERSION,
        "world_size": settings.num_devices or 1,
        "workload": workload.name,
        "model": workload.model,
        "scope": scope,
        "unit": f"{workload.unit}/s",
        **workload.columns,
        **({"data": "jpeg"} if has_pipeline else {}),
    }


def complete_row(host, run_id, line):
    """Return the row of a child's line: every column, with the cells of the host, and a flag if it is implausible.

    In the line are the cells of the device, of work_cells(), of the measurement, and of child.check_and_complete().
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    shared = {"schema": SCHEMA, "run_id": run_id, "timestamp": now, "note": "", "flags": ""}
    row = dict.fromkeys(COLUMNS) | asdict(host) | shared | line
    gpu_name = row["device_name"] if row["device"] not in ("cpu", "mps") else None  # a Mac has one name for both
    row["machine"] = host.machine or name_machine(host.cpu_name, host.cpu_count, gpu_name, host.gpu_cores)
    row["device_name"] = row["device_name"] or host.cpu_name
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
