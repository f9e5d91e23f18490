"""A child process: measures one run, and writes lines: what it is doing, and each of its results.

A quantity is a phase and a scope: inference of resident batches, for example.

settings -> device -> session -> measurement -> line

A line is JSON: the part of a row that only this process knows. The child does not know the results file, the other
processes, or what is printed; bench/parent.py does, which also shows the log, from stderr.
"""

import atexit
import functools
import glob
import json
import logging
import os
import statistics
import sys
import traceback
import zlib
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from types import ModuleType

from bench import check, frameworks, precision, processes
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
COMPARING = "the process ended before its last check"  # note of a row until then


@dataclass(frozen=True)
class Task:
    """What the parent process asks for, besides the settings, which are ordinary variables."""

    path: str = ""  # of the file that gets the lines
    warns: bool = True  # of the device: one process is enough for that
    takes_turns: bool = False  # with processes of other runs, in the windows of the scope device
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
    if task.warns:
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
    """Measure every quantity that the settings ask for, up to the first failure; return the exit status."""
    settings = rig.settings
    status = ""
    if rig.task.warns and rig.instruments.why_no_energy:
        log.info("power and energy are not measured: %s", rig.instruments.why_no_energy)
    workload = make_workload(settings)
    if workload.has_pipeline and "NUM_WORKERS" not in os.environ and not rig.group.ranks.are_many:
        fitting = resources.count_workers(settings.num_workers, PREFETCH + 1, workload.batch_bytes)
        settings = replace(settings, num_workers=max(1, fitting))  # the row has their number
        rig = replace(rig, settings=settings)
    for scopes, measure_some in list_quantities(rig, workload):
        log.info("%s, scope %s: building and checking, then measuring", settings.phase, " and ".join(scopes))
        scope = scopes[0]
        try:
            for scope, cells in measure_some(rig, workload, scopes):
                line = work_cells(settings, workload, scope) | cells
                rig.emit(line)
                if line["status"] != processes.BEGUN and line["note"] != COMPARING:
                    log.info(report.describe_rate(line))
                    status = line["status"] if status in ("", "ok") else status
        except (SettingError, ModuleNotFoundError):  # a mistake, or a missing package of this workload
            raise
        except KeyboardInterrupt:
            return processes.INTERRUPTED
        except Exception as error:
            failure = frameworks.classify_failure(error)
            rig.emit(work_cells(settings, workload, scope) | failure)
            status = failure["status"]
            if rig.group.ranks.are_many:  # the other ranks may never reach the barrier at the end
                print(f"rank {rig.group.ranks.rank}: {status}: {failure['note']}", file=sys.stderr)
                raise SystemExit(1) from None
        if status != "ok":
            break
    return {"ok": 0, "interrupted": processes.INTERRUPTED}.get(status, 1)


def list_quantities(rig: Rig, workload: Workload):
    """Return [(scopes, the function that measures them)] of everything that the settings ask for.

    The scopes device and end_to_end share one model.
    """
    settings = rig.settings
    if settings.sustain:
        return [(["sustained"], measure_scopes)]
    has_pipeline = workload.has_pipeline and FRAMEWORKS[settings.framework].measures_parts
    has_pipeline = has_pipeline and not rig.task.takes_turns and settings.phase not in PARTS
    scopes = settings.scope or (SCOPES if has_pipeline else ("device",))
    groups = [[scope for scope in group if scope in scopes] for group in (("device", "end_to_end"), ("input",))]
    quantities = [(group, measure_scopes) for group in groups if group]
    return quantities + ([(["epoch"], measure_epochs)] if settings.epochs else [])


def measure_scopes(rig: Rig, workload: Workload, scopes):
    """Measure scopes on one model, then compare their last outputs with the CPU.

    Yields:
        (scope, cells): of status `begun` with what happens next; of the windows; and once more after the comparison.
    """
    yield scopes[0], {"status": processes.BEGUN, "note": "checking"}
    measured = []
    with open_session(rig, workload, scopes[0]) as session:
        for scope in scopes:
            if scope == "end_to_end" and not session.stream:
                session.read_files()
            yield scope, {"status": processes.BEGUN, "note": WARMING_UP if scope == scopes[0] else "measuring"}
            job = make_job(rig, workload, scope, session)
            cells = measurement_cells(measure.measure(job))
            cells |= describe_result(rig, workload, scope, session, cells)
            if cells["status"] == "interrupted":
                yield scope, cells | {"note": describe_notes(session, workload)}
                return
            items = check_last_step(rig, session)
            yield scope, cells | {"note": COMPARING}  # the row of a process that is killed from here on
            if measure.is_launch_bound(job, cells["step_seconds_median"]):
                cells["flags"] = f"{cells['flags']} launch_bound".strip()
            measured.append((scope, cells, items))
        for scope, cells, items in measured:
            yield scope, cells | {"note": COMPARING}
            try:
                if items:
                    cells["output_error"] = check.check_output(session, *items)
                yield scope, cells | {"note": describe_notes(session, workload)}
            except MeasurementError as wrong:
                yield scope, frameworks.classify_failure(wrong)


@contextmanager
def open_session(rig: Rig, workload: Workload, scope):
    """Open a session for all ranks, and close it at the end.

    Raises:
        MemoryError: the work does not fit in the system's memory. It would swap, or the system would kill this process.
    """
    settings = rig.settings
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
    rank_settings = replace(settings, seed=settings.seed + rig.group.ranks.rank)
    session = rig.framework.open_session(workload, rank_settings, scope)
    try:
        yield session
    except Exception as error:
        traceback.clear_frames(error.__traceback__)  # they hold what the failed step allocated
        raise
    finally:
        session.close()


def make_job(rig: Rig, workload: Workload, scope, session):
    """Return the Job of a session in one scope."""
    settings, group, instruments = rig.settings, rig.group, rig.instruments
    meters.reset_process_peak()  # the checks before need more memory than the steps
    if scope == "input" or session.prepare:  # the energy of a device that waits, or of what comes before a step
        instruments = replace(instruments, counter=None)
    is_long_enough = instruments.least_seconds <= (settings.sustain or settings.max_seconds)
    items_per_step = workload.items_per_step * group.ranks.world_size
    begun = work_cells(settings, workload, scope) | {"status": processes.BEGUN, "note": "measuring"}
    return Job(
        group.in_step(session),
        items_per_step=items_per_step,
        max_seconds=settings.max_seconds,
        num_items=settings.num_images,
        sustained_seconds=settings.sustain,
        least_seconds=instruments.least_seconds if is_long_enough else 0.0,
        clock=group.clock,
        on_window=functools.partial(report.write_rate, rig.emit, begun, items_per_step),
        watch=None if group.ranks.rank else meters.Watch(instruments),
        end_turn=rig.end_turn if scope == "device" else None,
    )


def describe_result(rig: Rig, workload: Workload, scope, session, cells):
    """Return the cells that a result gets from its work: FLOPs, bytes, precision, memory."""
    is_cpu = rig.device.type == "cpu"
    more = {
        "parameters": session.parameters,
        "output_error": session.output_error,
        "measured_precision": precision.describe(session.precisions),
        "peak_memory_bytes": meters.process_peak_bytes() if is_cpu else session.context.peak_memory_bytes(),
    }
    if workload.flops_per_item and scope != "input":
        more["flops_per_item"] = workload.flops_per_item
        more["tflops"] = cells["throughput"] * workload.flops_per_item / 1e12
    if workload.bytes_per_step:
        more["bytes_per_step"] = workload.bytes_per_step + session.weight_bytes
        more["bandwidth"] = cells["throughput"] / workload.items_per_step * more["bytes_per_step"] / 1e9
    return more


def check_last_step(rig: Rig, session):
    """Check what the last step left, before any other one; return the items that are to be compared with the CPU."""
    items = session.copy_items()
    if rig.group.ranks.are_many:
        check_equal_weights(rig.group.gather([zlib.crc32(values.tobytes()) for _, values in session.matrices()]))
    session.context.check_switches(rig.device.num_threads)
    return items if not rig.group.ranks.rank else None


def describe_notes(session, workload):
    """Return the note of a row: what was not compared, and what the framework knows."""
    notes = [*session.notes, session.context.notes()]
    nodes = len(glob.glob("/sys/devices/system/node/node[0-9]*"))
    if nodes > 1 and session.context.device == "cpu" and len(resources.USABLE_CPUS) == os.cpu_count():
        notes.append(f"{nodes} NUMA nodes, which slow each other down: bind to one with `numactl -N 0 -m 0 make ...`")
    return "; ".join(dict.fromkeys(filter(None, notes))) or workload.columns.get("note", "")


def check_equal_weights(checksums):
    """Raise MeasurementError unless all ranks have the same checksums of their weights."""
    unlike = [rank for rank, checksum in enumerate(checksums) if checksum != checksums[0]]
    if unlike:
        raise MeasurementError("wrong_output", f"after training, rank 0 has other weights than the ranks {unlike}")


def measure_epochs(rig: Rig, workload: Workload, scopes):
    """Train whole epochs; yield (scope, cells) of each: seconds, loss and accuracy."""
    (scope,) = scopes
    yield scope, {"status": processes.BEGUN, "note": "checking"}
    count = len(workload.dataset()[1])
    with open_session(rig, workload, scope) as session:
        job = make_job(rig, workload, scope, session)
        for epoch in range(1, rig.settings.epochs + 1):
            yield scope, {"status": processes.BEGUN, "note": "measuring", "epoch": epoch}
            seconds, flags = measure.measure_epoch(job, epoch_order(count, rig.settings.seed, epoch))
            cells = {
                "status": "ok",
                "epoch": epoch,
                "stop_reason": "epoch",
                "flags": " ".join(dict.fromkeys(flags)),
                "throughput": count / seconds,
                "items": count,
                "seconds": seconds,
                "loss_mean": statistics.fmean(map(float, job.session.losses)),
                "accuracy": job.session.evaluate(),
            }
            check_last_step(rig, session)
            more = describe_result(rig, workload, scope, session, cells)
            yield scope, cells | more | {"note": describe_notes(session, workload)}
