"""The one path through the house: settings -> session -> measurement -> row."""

import logging
import os
import sys
import traceback
import uuid
from dataclasses import asdict
from datetime import UTC, datetime

from bench import environment, frameworks, measure, meters, report, results
from bench.data import RESIDENT_BATCHES
from bench.settings import SettingError, read_settings

log = logging.getLogger("bench")

# They move CPU results by a factor of two: left as the user has them, and noted in the row.
ALLOCATOR_VARIABLES = (
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
)
EXIT_STATUS = {"ok": 0, "interrupted": 130}


def main(script, describe_workload):
    """Run one benchmark from the environment's settings.

    Args:
        script: its name in the settings' declarations ("image").
        describe_workload: Settings -> Workload.

    Returns:
        The exit status: 0 measured, 1 tried and failed (the row says why), 2 asked for wrongly,
        130 interrupted.
    """
    logging.basicConfig(format="%(asctime)s  %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    log.setLevel(logging.INFO)
    try:
        environment.refuse_rosetta()
        settings = read_settings(script)
        host = environment.describe_host(settings.machine)
        path = settings.results_dir / f"{host.machine}.csv"
        results.prepare(path)
        row = run_once(settings, host, describe_workload)
        print(report.describe_result(row))
        results.append(path, row)
    except (SettingError, results.ResultsError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted before the first window was complete: nothing was measured", file=sys.stderr)
        return 130
    print(f"row added to {os.path.relpath(path)}")
    return EXIT_STATUS.get(row["status"], 1)


def run_once(settings, host, describe_workload):
    """Measure what the settings ask for; returns the row, of a failure too, as a dict of results.COLUMNS."""
    framework = frameworks.load(settings.framework)
    device = framework.find_device(settings.use_gpu)
    if settings.use_gpu and device.device == "cpu":
        log.warning("WARNING: USE_GPU=1, but there is no GPU that %s can use: measuring the CPU", settings.framework)
    settings = settings.on(device.device)
    workload = describe_workload(settings)
    row = begin_row(settings, host, workload, device)
    log.info(report.describe_task(row))
    try:
        refuse_too_large(workload, host)
        row |= measure_workload(framework, workload, settings)
        if row["device"] == "cpu":
            row["peak_memory_bytes"] = meters.process_peak_bytes()
    except SettingError:
        raise
    except Exception as error:
        row["status"], reason = describe_failure(error)
        row["note"] = "; ".join(filter(None, (reason, row["note"])))
    row["timestamp"] = datetime.now(UTC).isoformat(timespec="seconds")
    return row


def describe_failure(error):
    """(status, reason) of what ended a measurement; a failure that nobody foresaw shows its place as well."""
    if isinstance(error, measure.MeasurementError):
        return error.status, str(error)
    status, reason = frameworks.describe_failure(error)
    if status == "failed":
        traceback.print_exception(error)
    return status, reason


def begin_row(settings, host, workload, device):
    """The columns that are known before anything runs."""
    set_here = [f"{name}={os.environ[name]}" for name in ALLOCATOR_VARIABLES if os.environ.get(name)]
    return {
        "schema": results.SCHEMA,
        "method_version": measure.METHOD_VERSION,
        "run_id": uuid.uuid4().hex[:12],
        "status": "ok",
        "note": "; ".join(set_here),
        **asdict(host),
        **asdict(device),
        "device_name": device.device_name or host.cpu_name,
        "framework": settings.framework,
        "workload": workload.name,
        "model": workload.model,
        "phase": settings.phase,
        "scope": "device",
        "precision": settings.precision,
        "compile": 0,
        "memory_format": settings.memory_format,
        "batch_size": settings.batch_size,
        "image_size": workload.item_shape[-1],
        "data": "synthetic",
        "optimizer": "sgd" if settings.phase == "training" else None,
        "seed": settings.seed,
        "unit": f"{workload.unit}/s",
        "flops_per_item": workload.flops_per_item,
    }


def refuse_too_large(workload, host):
    """Raise MemoryError for inputs that cannot fit: a system that overcommits would kill the process instead."""
    needed = RESIDENT_BATCHES * workload.batch_bytes / environment.GIB
    if host.memory_gb and needed > host.memory_gb:
        raise MemoryError(
            f"{RESIDENT_BATCHES} batches of {workload.items_per_step} {workload.unit} take {needed:.4g} GiB "
            f"and the machine has {host.memory_gb:g}: choose a smaller BATCH_SIZE"
        )


def measure_workload(framework, workload, settings):
    """Open a session, measure it, close it; returns the columns that this fills."""
    session = framework.open_session(workload, settings, settings.phase, "device")
    limits = measure.Limits(settings.max_seconds, settings.target_ci)
    log.info("the model is right; warming up, then measuring for up to %g s", settings.max_seconds)
    try:
        with report.progress(workload) as on_window:
            measured = measure.measure(
                session, workload.items_per_step, limits, on_window=on_window, watches=meters.watches()
            )
        return session_columns(session) | measurement_columns(measured, workload)
    finally:
        session.close()


def session_columns(session):
    """What the session says of itself, once it has run."""
    return {
        "parameters": session.parameters,
        "measured_precision": session.measured_precision,
        "peak_memory_bytes": session.peak_memory_bytes(),
    }


def measurement_columns(measured, workload):
    """The measurement and what follows from it."""
    columns = asdict(measured) | {"flags": " ".join(measured.flags)}
    if measured.stop_reason == "interrupted":
        columns["status"] = "interrupted"
    if workload.flops_per_item:
        columns["tflops"] = measured.throughput * workload.flops_per_item / 1e12
    return columns
