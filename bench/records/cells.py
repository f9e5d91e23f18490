"""Fill the cells of a row: what is known before the run, and what a measurement adds."""

import os
import uuid
from dataclasses import asdict
from datetime import UTC, datetime

from bench.records.columns import COLUMNS, SCHEMA
from bench.records.flags import FLAGS
from bench.records.verdict import Rate, name_bottleneck
from bench.settings import AUTO, RUN, SCOPES, SEARCH, SEARCH_STEP, is_used_in
from bench.timing.measure import METHOD_VERSION


def new_run_id():
    """Return the id that the parent process chose for this run, else a new one."""
    return os.environ.get(RUN) or uuid.uuid4().hex[:12]


def utc_now():
    """Return the time as text, in UTC, for the column `timestamp`."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def begin_row(settings, host, device, workload, phase, scope, run_id):
    """Return the cells that are known before anything runs.

    A setting with the name of a column fills it, unless the host, the device or the workload knows the value better.

    Args:
        device: a Device's cells(); empty if they are unknown.
    """
    asked = {name: getattr(settings, name) for name in COLUMNS if hasattr(settings, name)}
    streams = scope in ("input", "end_to_end")
    used = {"num_workers": streams, "batch_size": settings.batch_size != AUTO}
    return {
        **{name: int(value) if isinstance(value, bool) else value for name, value in asked.items()},
        **{name: None for name in asked if not used.get(name, is_used_in(name, phase))},
        **asdict(host),
        "world_size": settings.num_devices or 1,
        "nodes": 1,
        **device,
        "schema": SCHEMA,
        "method_version": METHOD_VERSION,
        "run_id": run_id,
        "search": os.environ.get(SEARCH),
        "search_step": os.environ.get(SEARCH_STEP),
        "status": "ok",
        "note": "",
        "workload": workload.name,
        "model": workload.model,
        "phase": phase,
        "scope": scope,
        "unit": f"{workload.unit}/s",
        **workload.columns,
        **({"data": "jpeg"} if streams else {}),
    }


def of_measurement(measured, watches):
    """Return the cells of a Measurement and of what the watches read in the meantime."""
    interrupted = {"status": "interrupted"} if measured.stop_reason == "interrupted" else {}
    read = {name: value for watch in watches for name, value in watch.columns.items()}
    return asdict(measured) | read | {"flags": join_flags(measured.flags)} | interrupted


def of_energy(instruments, watts, joules_per_item):
    """Return the cells of power and energy; {} if the power is unknown or its counter is stuck."""
    if not watts > 0:
        return {}
    scope = instruments.counter.power_scope
    return {"power_watts": watts, "joules_per_item": joules_per_item, "power_scope": scope}


def of_bottleneck(row, done):
    """Return the cells that name what limits the machine; {} until all three scopes are in `done`, {scope: row}."""
    if not set(SCOPES) <= set(done):
        return {}
    device, pipeline, both = (Rate.of_row(done[scope]) for scope in SCOPES)
    bottleneck, why = name_bottleneck(device, pipeline, both, shares_cores=row["device"] == "cpu")
    columns = {"bottleneck": bottleneck, "note": "; ".join(filter(None, [why, row["note"]]))}
    if bottleneck == "device":  # the queue was full at the end too, so the full queue at the start added nothing
        columns["flags"] = join_flags(flag for flag in row["flags"].split() if flag != "short")
    return columns


def join_flags(flags):
    """Join flags to a cell, each once; raises KeyError for a flag without words."""
    found = dict.fromkeys(flags)
    if unknown := found.keys() - FLAGS.keys():
        raise KeyError(f"flags without words: {unknown}")
    return " ".join(found)
