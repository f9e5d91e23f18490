"""The cells of a row: what is known before anything runs, what a measurement gives, and what ended it."""

import os
import uuid
from dataclasses import asdict
from datetime import UTC, datetime

from bench.rows.columns import COLUMNS, SCHEMA
from bench.rows.verdict import Rate, name_bottleneck
from bench.settings import AUTO, RUN, SCOPES, SEARCH, SEARCH_STEP, is_used_in
from bench.timing.measure import METHOD_VERSION


def new_run_id():
    """Return the id that the parent process chose for this run, else a new one."""
    return os.environ.get(RUN) or uuid.uuid4().hex[:12]


def utc_now():
    return datetime.now(UTC).isoformat(timespec="seconds")


def begin_row(settings, host, device, workload, phase, scope, run_id):
    """The cells that are known before anything runs.

    A setting with the name of a column fills it; the host, the device and the workload know some of them better.

    Args:
        device: a Device's cells(); empty where nobody knows.
    """
    asked = {name: getattr(settings, name) for name in COLUMNS if hasattr(settings, name)}
    streams = scope in ("input", "end_to_end")
    world = {"world_size": settings.num_devices or 1, "nodes": 1}  # the device knows better
    used = {
        "num_workers": streams,
        "optimizer": phase not in (None, "inference"),
        "batch_size": settings.batch_size != AUTO,
    }
    return {
        **{name: int(value) if isinstance(value, bool) else value for name, value in asked.items()},
        **{name: None for name in asked if not used.get(name, is_used_in(name, phase))},
        **asdict(host),
        **world,
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
    """The cells of a Measurement, and of what the watches read meanwhile."""
    interrupted = {"status": "interrupted"} if measured.stop_reason == "interrupted" else {}
    read = {name: value for watch in watches for name, value in watch.columns.items()}
    return asdict(measured) | read | {"flags": join_flags(measured.flags)} | interrupted


def of_energy(instruments, watts, joules_per_item):
    if not watts > 0:  # unknown, or a counter that stands still
        return {}
    scope = instruments.counter.power_scope
    return {"power_watts": watts, "joules_per_item": joules_per_item, "power_scope": scope}


def of_bottleneck(row, done):
    """The cells that say what limits the machine, once all three scopes are measured: {scope: row}."""
    if not set(SCOPES) <= set(done):
        return {}
    device, pipeline, both = (
        Rate(*(done[scope][name] for name in ("throughput", "throughput_low", "throughput_high"))) for scope in SCOPES
    )
    bottleneck, why = name_bottleneck(device, pipeline, both, shares_cores=row["device"] == "cpu")
    columns = {"bottleneck": bottleneck, "note": "; ".join(filter(None, [why, row["note"]]))}
    if bottleneck == "device":  # the queue was full at the end too, so the full queue at the start added nothing
        columns["flags"] = join_flags(flag for flag in row["flags"].split() if flag != "short")
    return columns


def join_flags(flags):
    """Flags as a cell, each once."""
    return " ".join(dict.fromkeys(flags))
