"""A child process: measures one combination of settings and writes what it measured, a line for each quantity.

settings -> device -> session -> measurement -> line

A line is JSON: the cells of a row that only this process knows. The child does not know the results file, the other
processes, or what is printed; bench/launch.py does. The progress bar and the log are on stderr.
"""

import json
import logging
import math
import os
import statistics
import sys
import traceback
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import ModuleType

from bench import cli, frameworks
from bench.frameworks import Device
from bench.host import environment, meters, ranks, resources
from bench.records import cells, report
from bench.settings import MOST_WORKERS, SCOPES, TRAINING, SettingError, Settings, read_settings
from bench.timing import MeasurementError, measure
from bench.timing.canary import measure_canary
from bench.workloads.data import RESIDENT_BATCHES, epoch_order
from bench.workloads.workload import Workload

log = logging.getLogger("bench")

TASK = "BENCH_TASK"  # the one variable from the parent process: a Task in JSON
BEGUN = "begun"  # status of a line that the next line replaces; if there is none, the process died
EXIT_STATUS = {"ok": 0, "interrupted": cli.INTERRUPTED}  # by the status of the last line; 1 if it is a failure


@dataclass(frozen=True)
class Task:
    """What the parent process asks for, besides the settings, which are ordinary variables."""

    lines: str = ""  # path of the file that gets the lines
    is_first: bool = True  # of several processes: it compares the model with the CPU and measures the parts of training
    is_brief: bool = False  # only the rate: no canary, no energy, no parts of training


@dataclass(frozen=True)
class Bench:
    """What the measurements of one process share."""

    settings: Settings  # resolved for the device
    task: Task
    framework: ModuleType
    device: Device
    instruments: meters.Instruments
    group: ranks.Group
    emit: Callable[[dict], None]  # called with each line, on rank 0 only
    canary_seconds: float | None = None


def run_child(script, describe_workload, measure_work):
    """Measure what the environment's settings ask for, and append the lines to the task's file; return the exit status.

    A mistake in the settings is a line too, with the key `mistake`.
    """
    task = Task(**json.loads(os.environ[TASK]))
    with open(task.lines, "a") as file:

        def emit(line):
            file.write(json.dumps(line, default=str) + "\n")
            file.flush()

        try:
            return measure_settings(script, describe_workload, measure_work, task, emit)
        except (SettingError, ModuleNotFoundError) as error:
            emit({"mistake": cli.explain(error)})
            return cli.MISTAKE


def find_device(settings):
    """Return the Device that the settings' framework would use."""
    return frameworks.load(settings.framework).find_device(settings)


def measure_settings(script, describe_workload, measure_work, task, emit):
    """Open the framework and the device, measure, and return the exit status.

    Args:
        script: its name in the settings' declarations ("image").
        describe_workload: Settings -> Workload.
        measure_work: (Bench, describe_workload) -> exit status; usually measure_workload().
        emit: called with each line.

    Raises:
        SettingError, ModuleNotFoundError: a mistake of the user, or a missing package.
    """
    environment.refuse_rosetta()
    me, settings = ranks.read_ranks(), read_settings(script)
    if me.are_many and os.environ.get("OMP_NUM_THREADS") == "1":
        del os.environ["OMP_NUM_THREADS"]  # torchrun's default, not the user's: each rank gets its share of the cores
    framework = frameworks.load(settings.framework)
    device = framework.find_device(settings)
    if device.device == "cpu" and settings.use_gpu is not False and task.is_first:
        why = environment.explain_missing_gpu(settings.framework)
        if settings.use_gpu:
            why = f"USE_GPU=1, but {why or f'there is no GPU that {settings.framework} can use'}"
        if why:
            log.warning("WARNING: %s; measuring the CPU", why)
    settings = settings.on(device.device, device.emulates_bfloat16)
    if settings.num_workers is None and settings.scope:
        settings = replace(settings, num_workers=min(me.share(resources.usable_cores()), MOST_WORKERS))
    if me.rank:  # only rank 0 logs and writes lines
        logging.getLogger("bench").setLevel(logging.ERROR)
    with framework.join_ranks(me, device.device) if me.are_many else ranks.Group() as group:
        if settings.num_workers:  # equal on all ranks, because the number of steps in a window depends on it
            settings = replace(settings, num_workers=min(group.gather(settings.num_workers)))
        instruments = meters.Instruments()  # the energy and heat of one card would be those of one rank only
        if not me.are_many:
            instruments = meters.open_instruments(device.device, device.device_name)
        names = ("device", "device_name", "framework_version", "num_threads", "world_size", "nodes")
        known = {name: getattr(device, name) for name in names}
        write = (lambda line: emit(known | line)) if me.rank == 0 else (lambda line: None)
        return measure_work(Bench(settings, task, framework, device, instruments, group, write), describe_workload)


def measure_workload(bench: Bench, describe_workload):
    """Measure one combination: every quantity that the settings ask for, up to the first failure.

    The line of a failure or an interruption is the last one: its status says what happened, its note why.
    """
    task, settings, instruments, canary_seconds, status = bench.task, bench.settings, bench.instruments, None, ""
    if task.is_brief:
        instruments = replace(instruments, counter=None)
    elif task.is_first:  # idle power takes five seconds
        if instruments.why_no_energy:
            log.info("power and energy are not measured: %s", instruments.why_no_energy)
        instruments = instruments.with_idle_watts()
    # A sustained run shows heat itself, and ranks would get out of step.
    if not (task.is_brief or settings.sustain or bench.group.ranks.are_many):
        canary_seconds = measure_canary(bench.framework, bench.device.device, settings)
    bench = replace(bench, instruments=instruments, canary_seconds=canary_seconds)
    for phase, scope in quantities(bench):
        workload = describe_workload(replace(settings, phase=phase))
        about = cells.of_work(settings, workload, phase, scope)
        log.info("%s %s: building and checking, then measuring", phase, scope)
        series = {"epoch": measure_epochs, "sustained": measure_sustained}.get(scope)
        try:
            found = series(bench, workload) if series else [measure_quantity(bench, workload, phase, scope)]
            for columns in found:
                bench.emit(about | columns)
                log.info(report.describe_rate(about | columns))
                status = str(columns["status"])
        except (SettingError, ModuleNotFoundError):  # a mistake, or a missing package of this workload
            raise
        except KeyboardInterrupt:
            return cli.INTERRUPTED
        except Exception as error:
            columns = frameworks.describe_failure(error)
            bench.emit(about | columns)
            status = columns["status"]
            if bench.group.ranks.are_many:  # the other ranks may never reach the barrier at the end
                print(f"rank {bench.group.ranks.rank}: {status}: {columns['note']}", file=sys.stderr)
                raise SystemExit(1) from None
        if status != "ok":
            break
    return EXIT_STATUS.get(status, 1)


def quantities(bench: Bench):
    """Yield (phase, scope) of every line that the settings ask for; the parts of training follow the full step."""
    settings, task = bench.settings, bench.task
    if settings.sustain:
        yield settings.phase, "sustained"
        return
    for scope in SCOPES:
        if scope not in (settings.scope or ("device",)):
            continue
        yield settings.phase, scope
        if (settings.phase, scope) == ("training", "device") and task.is_first and not task.is_brief:
            yield from ((part, "device") for part in TRAINING[1:])
    if settings.epochs:
        yield "training", "epoch"


def measure_quantity(bench: Bench, workload: Workload, phase, scope):
    """Open a session, measure it and close it; return the cells of its result.

    Raises:
        MeasurementError, or whatever the framework raises.
    """
    with open_job(bench, workload, phase, scope) as job:
        bar = nullcontext() if bench.group.ranks.rank else report.progress(workload, job.items_per_step)
        with bar as on_window:
            measured = measure.measure(replace(job, on_window=on_window))
        if phase == "training" and scope != "input" and bench.group.ranks.are_many:
            refuse_unequal_weights(bench.group.gather(job.session.checksum()))
        columns = cells.of_measurement(measured, job.watches)
        # For a part of training the counter would include the parts that run before each step.
        if bench.instruments.counter and job.mode != "part" and scope != "input" and columns["status"] == "ok":
            try:
                watts = measure.measure_energy(job, measured.steps_per_window, bench.instruments.joules)
                columns |= cells.of_energy(bench.instruments, *watts)
            except KeyboardInterrupt:  # the throughput is known by now
                columns["status"] = "interrupted"
        columns["canary_seconds"] = bench.canary_seconds
        return describe_work(bench, workload, scope, job.session, columns)


@contextmanager
def open_job(bench: Bench, workload: Workload, phase, scope):
    """Open the session of a quantity, as a Job of all ranks, and close it at the end.

    Raises:
        MemoryError: the work does not fit in the system's memory. It would swap, or the system would kill this process.
    """
    group, settings = bench.group, bench.settings
    bench.emit(cells.of_work(settings, workload, phase, scope) | {"status": BEGUN})
    needed = RESIDENT_BATCHES * workload.batch_bytes  # which are made in the system's memory
    needed += workload.resident_bytes if resources.shares_memory(bench.device.device) else 0
    free = resources.available_bytes()
    if needed > free:
        raise MemoryError(
            f"it needs {needed / 1e9:.4g} GB, but only {free / 1e9:.4g} GB are free: choose a smaller MODEL or "
            "BATCH_SIZE or DEPTH, 16 bits, or in training of language models LORA_RANK=8"
        )
    # Each rank has its own data, and its own order of them.
    own = replace(settings, seed=settings.seed + group.ranks.rank)
    session = bench.framework.open_session(workload, own, phase, scope, compares=bench.task.is_first)
    meters.reset_process_peak()  # what was checked needs more memory than the work
    try:
        items = settings.num_images if phase == settings.phase and scope in SCOPES else None
        watches = (meters.Watch(bench.instruments),) if group.ranks.rank == 0 else ()
        yield measure.Job(
            group.watch_over(session),
            items_per_step=workload.items_per_step * bench.device.world_size,
            max_seconds=settings.max_seconds,
            num_items=items,
            clock=group.clock,
            watches=watches,
        )
    except Exception as error:
        traceback.clear_frames(error.__traceback__)  # they hold what the failed step allocated
        raise
    finally:
        session.close()


def describe_work(bench: Bench, workload: Workload, scope, session, columns):
    """Return the cells of a result with those of its work: FLOPs, bytes, precision, memory.

    Raises:
        MeasurementError: the last timed output is wrong. That is checked here, after the peak memory has been read.
    """
    if workload.flops_per_item and scope != "input":
        columns["flops_per_item"] = workload.flops_per_item
        columns["tflops"] = columns["throughput"] * workload.flops_per_item / 1e12
    if workload.bytes_per_step:
        columns["bytes_per_step"] = workload.bytes_per_step
        columns["bandwidth"] = columns["throughput"] / workload.items_per_step * workload.bytes_per_step / 1e9
    on_cpu = bench.device.device == "cpu"
    columns |= {
        "parameters": session.parameters,
        "measured_precision": session.measured_precision,
        "output_error": session.output_error,
        "output_limit": session.context.output_limit,
        "peak_memory_bytes": meters.process_peak_bytes() if on_cpu else session.context.peak_memory_bytes(),
        "idle_watts": bench.instruments.idle_watts,
        "note": session.context.note or workload.columns.get("note", ""),
    }
    if columns["status"] != "interrupted":
        session.check_last_step()
    return columns


def refuse_unequal_weights(checksums):
    """Raise MeasurementError unless all ranks have the same weights after training."""
    unlike = [rank for rank, checksum in enumerate(checksums) if checksum != checksums[0]]
    if unlike:
        raise MeasurementError("wrong_output", f"after training, rank 0 has other weights than the ranks {unlike}")


def measure_sustained(bench: Bench, workload: Workload):
    """Yield the cells of every ten seconds of a long run."""
    instruments, settings = bench.instruments, bench.settings
    with open_job(bench, workload, settings.phase, "sustained") as job:
        for elapsed, measured, watts in measure.sustain(job, settings.sustain, instruments.joules):
            columns = cells.of_measurement(measured, job.watches) | {"elapsed_seconds": elapsed}
            columns |= cells.of_energy(instruments, watts, watts * measured.seconds / measured.items)
            yield describe_work(bench, workload, "sustained", job.session, columns)


def measure_epochs(bench: Bench, workload: Workload):
    """Train whole epochs; yield the cells of each: seconds, loss and accuracy."""
    count = len(workload.dataset()[1])
    with open_job(bench, workload, "training", "epoch") as job:
        for epoch in range(1, bench.settings.epochs + 1):
            seconds, flags = measure.measure_epoch(job, epoch_order(count, bench.settings.seed, epoch))
            losses = [float(loss) for loss in job.session.losses]
            flags += [] if math.isfinite(sum(losses)) else ["not_finite"]
            columns = {
                "status": "ok",
                "epoch": epoch,
                "stop_reason": "epoch",
                "flags": " ".join(dict.fromkeys(flags)),
                "throughput": count / seconds,
                "items": count,
                "seconds": seconds,
                "loss_mean": statistics.fmean(losses),
                "accuracy": job.session.evaluate(),
            }
            yield describe_work(bench, workload, "epoch", job.session, columns)
