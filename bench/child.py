"""A child process: measures one run, and writes lines: what it is doing, and each of its results.

A quantity is a phase and a scope: inference of resident batches, for example.

settings -> device -> session -> measurement -> line

A line is JSON: the part of a row that only this process knows. The child does not know the results file, the other
processes, or what is printed; bench/parent.py does, which also shows the log, from stderr.
"""

import atexit
import functools
import json
import logging
import math
import os
import statistics
import sys
import traceback
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType

from bench import frameworks, processes
from bench.frameworks import Device
from bench.host import environment, meters, ranks, resources
from bench.records import report
from bench.records.rows import measurement_cells, work_cells
from bench.settings import FRAMEWORKS, MOST_WORKERS, PARTS, SCOPES, SettingError, Settings, parse_settings
from bench.timing import MeasurementError, measure
from bench.timing.job import Job
from bench.workloads.data import PREFETCH, RESIDENT_BATCHES, epoch_order
from bench.workloads.workload import Workload

log = logging.getLogger("bench")

WARMING_UP = "warming up"  # note while a compiler may work


@dataclass(frozen=True)
class Task:
    """What the parent process asks for, besides the settings, which are ordinary variables."""

    path: str = ""  # of the file that gets the lines
    has_extras: bool = True  # also measure pipelines, and warn: one process is enough for that
    # Of the file with the numbers that the first process of the run has checked. If there is none, this one compares
    # its own with the CPU.
    numbers_path: str = ""
    takes_turns: bool = False  # with other processes, in the windows of the scope device
    finds_device: bool = False  # write the Device as the only line, and measure nothing
    card_is_shared: bool = False  # as meters.is_card_shared() returns it
    device: str = ""  # that the run's earlier processes ran on; a GPU may have gone since


@dataclass(frozen=True)
class Rig:
    """What all measurements of this process are made with."""

    settings: Settings  # resolved for the device
    task: Task
    framework: ModuleType
    device: Device
    instruments: meters.Instruments
    group: ranks.Group
    emit: Callable[[dict], None]  # called with each line, on rank 0 only
    end_turn: Callable[[], None] | None  # as processes.obey_parent() returns it; None if this process takes no turns


def main(command, make_workload, measure_work):
    """Measure what the environment's settings ask for, and append the lines to the task's file; return the exit status.

    A mistake in the settings is a line too, with the key `mistake`.

    Args:
        command: what follows make: "image".
        make_workload: Settings -> Workload.
        measure_work: (Rig, make_workload) -> exit status, such as measure_quantities().
    """
    end_turn = processes.obey_parent()
    task = Task(**json.loads(os.environ[processes.TASK]))
    end_turn = end_turn if task.takes_turns else None
    with open(task.path, "a") as file:

        def emit(line):
            file.write(json.dumps(line, default=str) + "\n")
            file.flush()

        try:
            settings = parse_settings(command, os.environ)
            if task.finds_device:
                device = frameworks.load(settings.framework).find_device(settings)
                if not settings.has_ranks:  # rank 0 warns
                    warn_of_device(settings, device)
                emit(asdict(device))
                return 0
            status = open_and_measure(settings, make_workload, measure_work, task, emit, end_turn)
        except (SettingError, ModuleNotFoundError) as error:
            emit({"mistake": processes.explain(error)})
            status = processes.MISTAKE
    if ranks.read_ranks().are_many:
        # Gloo's threads outlive the group and may abort an ending interpreter (pytorch/pytorch, 179291).
        atexit._run_exitfuncs()
        os._exit(status)
    return status


def open_and_measure(settings, make_workload, measure_work, task, emit, end_turn=None):
    """Open the framework and the device, measure, and return the exit status.

    Args:
        make_workload, measure_work: as main() takes them.
        emit: called with each line.
        end_turn: as processes.obey_parent() returns it; None if the process takes no turns.

    Raises:
        SettingError, ModuleNotFoundError: a mistake of the user, or a missing package.
    """
    environment.refuse_rosetta()
    me = ranks.read_ranks()
    if me.are_many and os.environ.get("OMP_NUM_THREADS") == "1":
        del os.environ["OMP_NUM_THREADS"]  # torchrun's default, not the user's: each rank gets its share of the cores
    if me.rank:  # only rank 0 logs and writes lines
        logging.getLogger("bench").setLevel(logging.ERROR)
    framework = frameworks.load(settings.framework)
    device = framework.find_device(settings)
    if task.device not in ("", device.type):
        raise SettingError(f"{task.device} was measured, but only {device.type} is found now: run `make doctor`")
    if task.has_extras:
        warn_of_device(settings, device)
    settings = settings.on(device.type, device.emulates_bfloat16)
    num_workers = settings.num_workers
    if num_workers is None:
        num_workers = min(me.share(resources.usable_cores()), MOST_WORKERS)
    # A process by itself is a group of one, which waits for nobody.
    with framework.join_ranks(me, device.type) if me.are_many else nullcontext(ranks.Group()) as group:
        # Equal on all ranks, because the number of steps in a window depends on num_workers.
        settings = replace(settings, num_workers=min(group.gather(num_workers)))
        # The energy and heat of one card would be those of one rank only.
        instruments = meters.Instruments() if me.are_many else meters.open_instruments(device.type, device.device_name)
        instruments = replace(instruments, card_is_shared=task.card_is_shared)
        if task.takes_turns:  # its counter would have the work of the others
            instruments = replace(instruments, counter=None)
        names = ("device_name", "framework_version", "num_threads", "rated_bandwidth")
        device_cells = {name: getattr(device, name) for name in names} | {"device": device.type, "nodes": me.nodes}

        def emit_on_rank_0(line):
            if me.rank == 0:
                emit(device_cells | line)

        rig = Rig(settings, task, framework, device, instruments, group, emit_on_rank_0, end_turn)
        return measure_work(rig, make_workload)


def warn_of_device(settings, device):
    """Warn if a GPU is missing, if another one may be faster than the device, or if its start is slow."""
    if device.type == "cpu" and settings.use_gpu is not False:
        why = environment.explain_missing_gpu(settings.framework)
        if settings.use_gpu:
            why = f"USE_GPU=1, but {why or f'there is no GPU that {settings.framework} can use'}"
        if why:
            log.warning("WARNING: %s; measuring the CPU", why)
    for warning in (environment.explain_choice(device.device_name), device.note):
        if warning and not ranks.read_ranks().are_many:
            log.warning("WARNING: %s", warning)


def measure_quantities(rig: Rig, make_workload):
    """Measure every quantity that the settings ask for, up to the first failure; return the exit status.

    The line of a failure is the last one: its status says what happened, its note why. After Ctrl-C
    the last line has the complete windows, if there are any.
    """
    settings = rig.settings
    status = ""
    if rig.task.has_extras and rig.instruments.why_no_energy:
        log.info("power and energy are not measured: %s", rig.instruments.why_no_energy)
    workload = make_workload(settings)
    if workload.has_pipeline and "NUM_WORKERS" not in os.environ and not rig.group.ranks.are_many:
        fitting = resources.count_workers(settings.num_workers, PREFETCH + 1, workload.batch_bytes)
        settings = replace(settings, num_workers=max(1, fitting))  # the row has their number
        rig = replace(rig, settings=settings)
    for scope, measure_one in list_quantities(rig, workload):
        work = work_cells(settings, workload, scope)
        log.info("%s, scope %s: building and checking, then measuring", settings.phase, scope)
        try:
            for cells in measure_one(rig, workload, scope):
                rig.emit(work | cells)
                log.info(report.describe_rate(work | cells))
                status = str(cells["status"])
        except (SettingError, ModuleNotFoundError):  # a mistake, or a missing package of this workload
            raise
        except KeyboardInterrupt:
            return processes.INTERRUPTED
        except Exception as error:
            failure = frameworks.classify_failure(error)
            if rig.task.numbers_path and rig.group.ranks.rank == 0:  # what it checked is no measure for the next one
                Path(rig.task.numbers_path).unlink(missing_ok=True)
            rig.emit(work | failure)
            status = failure["status"]
            if rig.group.ranks.are_many:  # the other ranks may never reach the barrier at the end
                print(f"rank {rig.group.ranks.rank}: {status}: {failure['note']}", file=sys.stderr)
                raise SystemExit(1) from None
        if status != "ok":
            break
    return {"ok": 0, "interrupted": processes.INTERRUPTED}.get(status, 1)


def list_quantities(rig: Rig, workload: Workload):
    """Return [(scope, the function that measures it)] of everything that the settings ask for."""
    settings = rig.settings
    if settings.sustain:
        return [("sustained", measure_quantity)]
    has_pipeline = workload.has_pipeline and FRAMEWORKS[settings.framework].measures_parts
    has_pipeline = has_pipeline and rig.task.has_extras and settings.phase not in PARTS
    scopes = settings.scope or (SCOPES if has_pipeline else ("device",))
    quantities = [(scope, measure_quantity) for scope in SCOPES if scope in scopes]
    return quantities + ([("epoch", measure_epochs)] if settings.epochs else [])


def measure_quantity(rig: Rig, workload: Workload, scope):
    """Open a session, measure it and close it; yield the cells of its one result.

    Raises:
        MeasurementError, or whatever the framework raises.
    """
    with open_job(rig, workload, scope) as job:
        measured = measure.measure(job)
        cells = measurement_cells(measured)
        try:
            if cells["status"] == "ok" and measure.is_launch_bound(job, measured.step_seconds_median):
                cells["flags"] = f"{cells['flags']} launch_bound".strip()
        except KeyboardInterrupt:  # the throughput is known by now
            cells["status"] = "interrupted"
        yield check_and_complete(rig, workload, scope, job, cells)


@contextmanager
def open_job(rig: Rig, workload: Workload, scope):
    """Open the session of a quantity, as a Job of all ranks, and close it at the end.

    Raises:
        MemoryError: the work does not fit in the system's memory. It would swap, or the system would kill this process.
    """
    settings = rig.settings
    group = rig.group
    begun = work_cells(settings, workload, scope) | {"status": processes.BEGUN, "note": "checking"}
    rig.emit(begun)
    needed = RESIDENT_BATCHES * workload.batch_bytes  # which are made in the system's memory
    if resources.shares_memory(rig.device):
        needed += workload.resident_bytes
    free = resources.available_bytes()
    if needed > free:
        raise MemoryError(
            f"it needs {needed / 1e9:.4g} GB, but only {free / 1e9:.4g} GB are free: choose a smaller MODEL or "
            "BATCH_SIZE or DEPTH, 16 bits, or in training of language models LORA_RANK=8"
        )
    # Each rank has its own data, and its own order of them.
    rank_settings = replace(settings, seed=settings.seed + group.ranks.rank)
    path = "" if group.ranks.rank else rig.task.numbers_path
    # The numbers may be those of this process in another scope; epochs train on other data, for longer.
    compares = group.ranks.rank == 0 and (scope == "epoch" or not os.path.exists(path))
    session = rig.framework.open_session(workload, rank_settings, scope, compares=compares, path=path)
    meters.reset_process_peak()  # the checks in open_session() need more memory than the steps
    rig.emit(begun | {"note": WARMING_UP if scope in ("device", "sustained") else "measuring"})
    items_per_step = workload.items_per_step * group.ranks.world_size
    instruments = rig.instruments
    if scope == "input" or session.prepare:  # the energy of a device that waits, or of what comes before a step
        instruments = replace(instruments, counter=None)
    is_long_enough = instruments.least_seconds <= (settings.sustain or settings.max_seconds)
    try:
        yield Job(
            group.in_step(session),
            items_per_step=items_per_step,
            max_seconds=settings.max_seconds,
            num_items=settings.num_images,
            sustained_seconds=settings.sustain,
            least_seconds=instruments.least_seconds if is_long_enough else 0.0,
            clock=group.clock,
            on_window=functools.partial(report.write_rate, rig.emit, begun | {"note": "measuring"}, items_per_step),
            watch=None if group.ranks.rank else meters.Watch(instruments),
            end_turn=rig.end_turn if scope == "device" else None,
        )
    except Exception as error:
        traceback.clear_frames(error.__traceback__)  # they hold what the failed step allocated
        raise
    finally:
        session.close()


def check_and_complete(rig: Rig, workload: Workload, scope, job, cells):
    """Check the last steps, and return the cells of a result with those of its work: FLOPs, precision, memory.

    Raises:
        MeasurementError: the last output is wrong or stale; checked once the peak memory is known.
    """
    session = job.session
    if workload.flops_per_item and scope != "input":
        cells["flops_per_item"] = workload.flops_per_item
        cells["tflops"] = cells["throughput"] * workload.flops_per_item / 1e12
    if workload.bytes_per_step:
        cells["bytes_per_step"] = workload.bytes_per_step + session.weight_bytes
        cells["bandwidth"] = cells["throughput"] / workload.items_per_step * cells["bytes_per_step"] / 1e9
    context = session.context
    cells |= {
        "parameters": session.parameters,
        "measured_precision": session.proof.measured_precision,
        "peak_memory_bytes": meters.process_peak_bytes() if rig.device.type == "cpu" else context.peak_memory_bytes(),
    }
    if cells["status"] != "interrupted":
        if rig.group.ranks.are_many:
            refuse_unequal_weights(rig.group.gather(session.checksum()))
        session.check_last_step()
        session.check_pipeline()
        context.refuse_changed_switches(rig.device.num_threads)
        if scope != "epoch":  # epochs are compared once, after the last one
            rig.emit(work_cells(rig.settings, workload, scope) | {"status": processes.BEGUN, "note": "comparing"})
            session.refuse_wrong_result()
    notes = [session.proof.note, context.notes()]
    return cells | {
        "output_error": session.proof.output_error,
        "note": "; ".join(filter(None, notes)) or workload.columns.get("note", ""),
    }


def refuse_unequal_weights(checksums):
    """Raise MeasurementError unless all ranks have the same checksum of their weights, or none has one."""
    unlike = [rank for rank, checksum in enumerate(checksums) if checksum != checksums[0]]
    if unlike:
        raise MeasurementError("wrong_output", f"after training, rank 0 has other weights than the ranks {unlike}")


def measure_epochs(rig: Rig, workload: Workload, scope):
    """Train whole epochs; yield the cells of each: seconds, loss and accuracy."""
    count = len(workload.dataset()[1])
    with open_job(rig, workload, scope) as job:
        for epoch in range(1, rig.settings.epochs + 1):
            seconds, flags = measure.measure_epoch(job, epoch_order(count, rig.settings.seed, epoch))
            losses = [float(loss) for loss in job.session.losses]
            if not math.isfinite(sum(losses)):
                flags.append("not_finite")
            cells = {
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
            yield check_and_complete(rig, workload, scope, job, cells)
        job.session.refuse_wrong_result()
