"""The one path through the house: settings -> session -> measurement -> row."""

import logging
import math
import statistics
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from types import ModuleType

from bench import frameworks
from bench.machine import environment, meters
from bench.rows import report
from bench.rows.columns import SCHEMA
from bench.rows.verdict import Rate, name_bottleneck
from bench.settings import SCOPES, SettingError
from bench.timing import measure
from bench.timing.canary import Canary, open_canary
from bench.work.data import RESIDENT_BATCHES, epoch_order

log = logging.getLogger("bench")

PARTS_OF_TRAINING = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Bench:
    """What the measurements of one run have in common."""

    framework: ModuleType
    device: str
    host: environment.Environment
    describe_workload: Callable
    instruments: meters.Instruments = field(default_factory=meters.Instruments)
    canary: Canary | None = None


def run_once(settings, host, describe_workload):
    """Measure one combination; yields a row, a dict of COLUMNS, for each quantity as it is measured.

    The first failure or interruption is the last row: its status says what happened, its note why.
    """
    framework = frameworks.load(settings.framework)
    device = framework.find_device(settings)
    if device.device == "cpu":
        warn_of_no_gpu(settings, host)
    settings = settings.on(device.device)
    instruments = meters.open_instruments(device.device, device.device_name or host.cpu_name)
    bench = Bench(framework, device.device, host, describe_workload, instruments)
    run_id, done = new_run_id(), {}
    for phase, scope in quantities(settings):
        begun = begin_row(settings, host, describe_workload(settings), phase, scope, run_id)
        begun |= asdict(device) | {"device_name": device.device_name or host.cpu_name}
        try:
            if not done and needs_canary(scope):
                bench = replace(bench, canary=open_canary(framework, device.device, settings))
            if settings.batch_size == "auto":
                settings = replace(settings, batch_size=choose_batch_size(bench, settings))
                begun["batch_size"] = settings.batch_size
            log.info("%s, %s: building and checking, then measuring", phase, scope)
            for columns in measure_between_canaries(bench, settings, phase, scope):
                row = begun | columns
                done[scope if phase == settings.phase else phase] = row
                if scope == "end_to_end" and row["status"] == "ok":
                    row |= judge(row, done)
                yield row | {"timestamp": utc_now()}
                if row["status"] != "ok":
                    return
        except SettingError:
            raise
        except ModuleNotFoundError as error:  # a package that one kind of work alone needs
            raise frameworks.missing_package(settings.framework, error) from None
        except Exception as error:
            yield begun | describe_failure(error, begun["note"]) | {"timestamp": utc_now()}
            return


def warn_of_no_gpu(settings, host):
    """Warn where a GPU was asked for, or its driver is there, and the framework cannot use it."""
    driver = f"there is NVIDIA's driver {host.driver}" if host.driver and settings.use_gpu is None else ""
    if asked := "USE_GPU=1" if settings.use_gpu else driver:
        log.warning("WARNING: %s, but there is no GPU that %s can use: measuring the CPU", asked, settings.framework)


def quantities(settings):
    """(phase, scope) of every row that the settings ask for; the parts of training follow the whole."""
    if settings.sustain:
        yield settings.phase, "sustained"
        return
    for scope in SCOPES:
        if scope not in (settings.scope or ("device",)):
            continue
        yield settings.phase, scope
        if (settings.phase, scope) == ("training", "device"):
            yield from ((part, "device") for part in PARTS_OF_TRAINING)
    if settings.epochs:
        yield "training", "epoch"


def new_run_id():
    return uuid.uuid4().hex[:12]


def utc_now():
    return datetime.now(UTC).isoformat(timespec="seconds")


def begin_row(settings, host, workload, phase, scope, run_id):
    """The columns that are known before anything runs."""
    streams = scope in ("input", "end_to_end")
    return {
        "schema": SCHEMA,
        "method_version": measure.METHOD_VERSION,
        "run_id": run_id,
        "status": "ok",
        "note": "",
        **asdict(host),
        "framework": settings.framework,
        "workload": workload.name,
        "model": workload.model,
        "phase": phase,
        "scope": scope,
        "precision": settings.precision,
        "compile": None if settings.compile is None else int(settings.compile),
        "memory_format": settings.memory_format,
        "batch_size": settings.batch_size,
        "num_workers": settings.num_workers if streams else None,
        "optimizer": None if phase == "inference" else settings.optimizer,
        "seed": settings.seed,
        "unit": f"{workload.unit}/s",
        **workload.columns,
        **({"data": "jpeg"} if streams else {}),
    }


def measure_between_canaries(bench, settings, phase, scope):
    """What measure_quantity() yields; of a single quantity with the canary's ratio, and its flag.

    The session is closed by then: the processes of a pipeline would go on preparing, and look like heat.
    """
    if bench.canary is None or not needs_canary(scope):
        yield from measure_quantity(bench, settings, phase, scope)
        return
    (columns,) = measure_quantity(bench, settings, phase, scope)
    if columns.get("status", "ok") == "ok":
        columns |= compare_canary(bench.canary, columns["flags"])
    yield columns


def needs_canary(scope):
    """Whole epochs and sustained runs are long enough to show heat themselves."""
    return scope not in ("epoch", "sustained")


def compare_canary(canary, flags):
    """The columns that the canary fills; whatever becomes of it, what was measured stays."""
    try:
        ratio, throttled = canary.compare()
    except KeyboardInterrupt:
        return {"status": "interrupted"}
    except Exception as error:
        log.info("no canary: %s: %s", type(error).__name__, error)
        return {}
    return {"canary_ratio": ratio, "flags": " ".join(dict.fromkeys([*flags.split(), *throttled]))}


def measure_quantity(bench, settings, phase, scope, progress=None):
    """Open a session, measure it, close it; yields the columns of it, of whole epochs and sustained runs many times."""
    workload = bench.describe_workload(replace(settings, phase=phase))
    items = settings.num_images if phase == settings.phase and scope in SCOPES else None
    most = len(workload.dataset()[1]) if scope == "epoch" else items
    if most and most < settings.batch_size:
        settings = replace(settings, batch_size=most)
        workload = bench.describe_workload(replace(settings, phase=phase))
    refuse_too_large(workload, bench.host)
    meters.reset_process_peak()
    session = bench.framework.open_session(workload, settings, phase, scope)
    try:
        for columns in measure_scope(bench, session, workload, settings, items, scope, progress or report.progress):
            if workload.flops_per_item and scope != "input":
                columns["flops_per_item"] = workload.flops_per_item
                columns["tflops"] = columns["throughput"] * workload.flops_per_item / 1e12
            yield columns | {
                "batch_size": workload.items_per_step,
                "parameters": session.parameters,
                "measured_precision": session.measured_precision,
                "peak_memory_bytes": peak_memory_bytes(session, bench.device),
                "reserved_memory_bytes": session.reserved_memory_bytes(),
                "idle_watts": bench.instruments.idle_watts,
            }
    finally:
        session.close()


def measure_scope(bench, session, workload, settings, items, scope, progress):
    """Yields the columns of a session's results."""
    limits = measure.Limits(settings.max_seconds, settings.target_ci, items)
    if scope == "epoch":
        yield from measure_epochs(bench.instruments, session, workload, settings)
    elif scope == "sustained":
        yield from measure_sustained(bench.instruments, session, workload, limits, settings.sustain, progress)
    else:
        # A part of training has another part before each step, whose energy would be counted too; and of a pipeline
        # alone a card's counter shows the rest that it has.
        has_energy = bench.instruments.counter and not session.prepare and (scope, bench.device) != ("input", "cuda")
        yield measure_steps(bench.instruments, session, workload, limits, progress, has_energy)


def measure_steps(instruments, session, workload, limits, progress, has_energy):
    """The columns of the result of equal steps, then of their energy."""
    watches = instruments.watches()
    with progress(workload) as on_window:
        measured = measure.measure(session, workload.items_per_step, limits, on_window=on_window, watches=watches)
    columns = columns_of(measured, watches)
    if has_energy and measured.stop_reason != "interrupted":
        try:
            watts, joules = measure.measure_energy(
                session, workload.items_per_step, measured.steps_per_window, instruments.joules
            )
            columns |= energy_columns(instruments, watts, joules)
        except KeyboardInterrupt:  # the throughput is known by now
            columns["status"] = "interrupted"
    return columns


def measure_sustained(instruments, session, workload, limits, seconds, progress):
    """Yields the columns of every ten seconds of a long run."""
    watches, items = instruments.watches(), workload.items_per_step
    joules = instruments.joules if instruments.counter else None
    with progress(workload) as on_window:
        for elapsed, measured, watts in measure.sustain(
            session, items, limits, seconds, on_window=on_window, watches=watches, joules=joules
        ):
            columns = columns_of(measured, watches) | {"elapsed_seconds": elapsed}
            if watts is not None:
                columns |= energy_columns(instruments, watts, watts * measured.seconds / measured.items)
            yield columns


def columns_of(measured, watches):
    """The columns of a Measurement, and of what was read meanwhile."""
    interrupted = {"status": "interrupted"} if measured.stop_reason == "interrupted" else {}
    read = {name: value for watch in watches for name, value in watch.columns.items()}
    return asdict(measured) | read | {"flags": " ".join(dict.fromkeys(measured.flags))} | interrupted


def energy_columns(instruments, watts, joules_per_item):
    if not watts > 0:  # unknown, or a counter that stands still
        return {}
    scope = instruments.counter.power_scope
    return {"power_watts": watts, "joules_per_item": joules_per_item, "power_scope": scope}


def measure_epochs(instruments, session, workload, settings):
    """Train whole epochs; yields the columns of each: what it took and what was learnt."""
    count = len(workload.dataset()[1])
    for epoch in range(1, settings.epochs + 1):
        order = epoch_order(count, settings.seed, epoch)
        seconds, flags = measure.measure_epoch(session, order, watches=instruments.watches())
        losses = session.losses()
        flags += [] if math.isfinite(sum(losses)) else ["not_finite"]
        yield {
            "epoch": epoch,
            "stop_reason": "epoch",
            "flags": " ".join(flags),
            "throughput": count / seconds,
            "items": count,
            "seconds": seconds,
            "loss_first": losses[0],
            "loss_last": losses[-1],
            "loss_mean": statistics.fmean(losses),
            "accuracy": session.evaluate(),
        }


def refuse_too_large(workload, host):
    """Raise MemoryError for inputs that cannot fit: a system that overcommits would kill the process instead."""
    needed = RESIDENT_BATCHES * workload.batch_bytes / environment.GIB
    if host.memory_gb and needed > host.memory_gb:
        raise MemoryError(
            f"{RESIDENT_BATCHES} batches of {workload.items_per_step} {workload.unit} take {needed:.4g} GiB "
            f"and the machine has {host.memory_gb:g}: choose a smaller BATCH_SIZE"
        )


def choose_batch_size(bench, settings):
    """The fastest batch size that fits, by doubling from one.

    Only running out of memory ends the doubling, or a next size that would take over MAX_SECONDS a step, or,
    where the system would swap or kill in place of refusing, more memory than is free.
    """
    fastest, size, before = (0.0, None), 1, meters.process_peak_bytes()
    while True:
        trial = replace(settings, batch_size=size)
        try:
            workload = bench.describe_workload(trial)
            refuse_too_large(workload, bench.host)
            seconds, taken = try_batch_size(bench, trial, workload, before)
        except Exception as error:
            if frameworks.describe_failure(error)[0] != "out_of_memory" or size == 1:
                raise
            break
        log.info("BATCH_SIZE=%d: %.4g a second", size, size / seconds)
        fastest = max(fastest, (size / seconds, size))
        free = meters.available_bytes() if bench.device in ("cpu", "mps") else None
        if 2 * seconds > settings.max_seconds or (free and 2 * taken > free):
            break
        size *= 2
    return fastest[1]


def try_batch_size(bench, settings, workload, before):
    """(seconds a step, bytes that it took) of a short look at one batch size; the process had `before` bytes."""
    session = bench.framework.open_session(workload, settings, settings.phase, "device")
    clock = time.perf_counter
    try:
        measure.timed(session, clock, 1)
        fastest = min(measure.timed(session, clock, 1) for _ in range(3))
        on_device = None if bench.device == "cpu" else session.peak_memory_bytes()
        return fastest, meters.process_peak_bytes() - before if on_device is None else on_device
    finally:
        session.close()


def peak_memory_bytes(session, device):
    """The device's, as the framework counts it; the process's where the device is the CPU; None where unknown."""
    return meters.process_peak_bytes() if device == "cpu" else session.peak_memory_bytes()


def describe_failure(error, note):
    """The columns that say what ended a measurement; a failure that nobody foresaw shows its place as well."""
    if isinstance(error, measure.MeasurementError):
        status, reason = error.status, str(error)
    else:
        status, reason = frameworks.describe_failure(error)
    if status == "failed":
        traceback.print_exception(error)
    return {"status": status, "note": join(reason, note)}


def judge(row, done):
    """The columns that say what limits the machine, once all three scopes are measured."""
    if not set(SCOPES) <= set(done):
        return {}
    device, pipeline, both = (
        Rate(*(done[scope][name] for name in ("throughput", "throughput_low", "throughput_high"))) for scope in SCOPES
    )
    bottleneck, why = name_bottleneck(device, pipeline, both, shares_cores=row["device"] == "cpu")
    columns = {"bottleneck": bottleneck, "note": join(why, row["note"])}
    if bottleneck == "device":  # then the queue is full all the time, and nothing of it is given away
        columns["flags"] = row["flags"].replace("short", "").strip()
    return columns


def join(*notes):
    return "; ".join(filter(None, notes))
