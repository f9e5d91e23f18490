"""A child process: measures one combination of settings and stores its rows.

settings -> device -> session -> measurement -> row
"""

import atexit
import logging
import math
import os
import statistics
import sys
import traceback
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import ModuleType

from bench import cli, frameworks
from bench.frameworks import Device
from bench.host import environment, meters, ranks, resources
from bench.records import cells, peaks, report, results
from bench.settings import (
    ALL,
    AUTO,
    FRAMEWORKS,
    REPEATED,
    RUN,
    SCOPES,
    SEARCH,
    SEARCH_STEP,
    TRAINING,
    SettingError,
    Settings,
    list_runs,
    read_settings,
    refuse_many,
)
from bench.timing import measure
from bench.timing.canary import Canary, open_canary
from bench.workloads.data import RESIDENT_BATCHES, epoch_order
from bench.workloads.workload import Workload

log = logging.getLogger("bench")

EXIT_STATUS = {"ok": 0, "interrupted": cli.INTERRUPTED}  # by the status of a row; 1 if the measurement failed


@dataclass(frozen=True)
class Bench:
    """What the measurements of one run share; open_bench() makes it for every script."""

    settings: Settings  # resolved for the device
    host: environment.Environment
    framework: ModuleType
    device: Device
    instruments: meters.Instruments
    canary: Canary | None = None
    group: ranks.Group = ranks.ALONE

    @property
    def reports(self):
        """Whether this process is the one that shows and stores what was measured."""
        return self.group.ranks.rank == 0

    def end_failed_rank(self, row):
        """End this rank after a failure, whose row bench/launch.py or rank 0 stores.

        bench/launch.py chooses among the reports of all ranks, because most of them only report that they lost another
        one. Without it, under the user's torchrun or Slurm, rank 0 stores its own.
        """
        me = self.group.ranks
        if not me.are_many or row["status"] in EXIT_STATUS:
            return
        row["note"] = f"rank {me.rank} of {me.world_size}: {row['note']}"
        was_reported = ranks.report_failure(row["note"], row)
        if me.launched or me.rank:
            if not was_reported:
                print(f"{row['status']}: {row['note']}", file=sys.stderr)
            sys.exit(1)
        row["note"] += " (if another rank failed first, torchrun or Slurm names it)"


def run_child(script, describe_workload, measure=None):
    """Measure what the environment's settings ask for, in this process; returns the exit status.

    Args:
        script: its name in the settings' declarations ("image").
        describe_workload: Settings -> Workload.
        measure: (Bench, path, describe_workload) -> exit status; measure_workload() by default.

    Raises:
        SettingError: a mistake in the settings. On one of several ranks of bench/launch.py it goes to torchrun instead.
    """
    me = ranks.read_ranks()
    try:
        settings = read_settings(script)
        settings = as_rank(script, settings, me) if me.are_many else settings
        host = environment.describe_host(settings.machine)
        path = settings.results_dir / f"{host.machine}.csv"
        results.prepare(path)
        bench = open_bench(settings, host)
        with bench.group:
            status = (measure or measure_workload)(bench, path, describe_workload)
    except (SettingError, ModuleNotFoundError) as error:
        if not (me.are_many and me.launched):
            raise
        ranks.report_failure(cli.explain(error))
        return cli.MISTAKE
    if bench.reports and RUN not in os.environ:
        print(f"added to {cli.display_path(path)}")
    if me.launched:
        # Gloo's threads outlive the group and may abort an ending interpreter (pytorch/pytorch, pull request 179291).
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(status)
    return status


def as_rank(script, settings, me):
    """Return the settings of one of several ranks; raises SettingError for settings that several ranks cannot use."""
    asked, framework = f"WORLD_SIZE='{me.world_size}' (torchrun)", FRAMEWORKS[settings.framework]
    if not framework.runs_on_many:
        raise SettingError(f"{asked}: {framework.title} runs on one device here: start it without torchrun")
    if len(list_runs(script)) > 1 or (settings.runs or 1) > 1 or settings.batch_size == AUTO:
        raise SettingError(
            f"{asked} measures one combination once: set a single value of each setting (mainly MODEL, BATCH_SIZE and "
            "RUNS), or set NUM_DEVICES instead of using torchrun"
        )
    if "NUM_DEVICES" in os.environ and settings.num_devices not in (me.world_size, ALL):
        raise SettingError(f"NUM_DEVICES='{settings.num_devices}' and {asked} must agree: unset NUM_DEVICES")
    refuse_many(settings, me.world_size, "WORLD_SIZE")
    if me.rank:  # only rank 0 logs
        logging.getLogger("bench").setLevel(logging.ERROR)
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("OMP_NUM_THREADS") == "1":
        del os.environ["OMP_NUM_THREADS"]  # torchrun's, not the user's: each rank gets its share of the cores
    return replace(settings, num_devices=me.world_size)


def measure_workload(bench, path, describe_workload):
    """Measure one combination: every quantity that the settings ask for, up to the first failure.

    Each row is printed and stored as soon as it is measured. The row of a failure or an interruption is the last one:
    its status says what happened, its note why.

    Args:
        describe_workload: Settings -> Workload.

    Returns:
        The exit status.
    """
    bench = look_at_rest(bench)
    output = Output(bench, path)
    for phase, scope in quantities(bench.settings):
        workload = describe_workload(replace(bench.settings, phase=phase))
        output.begin(workload, phase, scope)
        if REPEATED not in os.environ:
            log.info("%s, %s: building and checking, then measuring", phase, scope)
        try:
            if scope in SCOPES:
                columns = measure_quantity(bench, workload, phase, scope)
                # After the session is closed: a pipeline's workers would slow the canary as heat does.
                if bench.canary and columns.get("status", "ok") == "ok":
                    columns |= compare_canary(bench.canary, columns["flags"])
                output.add(columns)
            else:
                for columns in measure_series(bench, workload, phase, scope):
                    output.add(columns)
        except (SettingError, ModuleNotFoundError, BrokenPipeError):  # a missing package of this workload; no reader
            raise
        except Exception as error:
            output.add(describe_failure(error, bench))
        if output.rows[-1]["status"] != "ok":
            break
    if bench.reports:
        output.close()
    return EXIT_STATUS.get(output.rows[-1]["status"], 1)


class Output:
    """Assembles the rows of one run, and prints and stores each."""

    def __init__(self, bench, path):
        self.bench, self.path, self.rows, self.run_id = bench, path, [], cells.new_run_id()
        stored = results.read(path)
        self.best, self.moved = peaks.measured_peaks(stored), peaks.measured_bandwidths(stored)

    def begin(self, workload, phase, scope):
        """Begin the rows of one quantity."""
        bench = self.bench
        self.begun = cells.begin_row(
            bench.settings, bench.host, bench.device.cells(), workload, phase, scope, self.run_id
        )

    def add(self, columns):
        """Make the row of some columns; store it and print it."""
        row = peaks.flag_implausible(self.begun | columns | {"timestamp": cells.utc_now()})
        if row["scope"] == "end_to_end" and row["status"] == "ok":
            done = {each["scope"]: each for each in self.rows if each["phase"] == row["phase"]}
            row |= cells.of_bottleneck(row, done | {"end_to_end": row})
        self.rows.append(row)
        self.bench.end_failed_rank(row)
        if not self.bench.reports:
            return
        try:
            results.append(self.path, row)
        finally:  # print the row even if it cannot be stored
            self.show(row)

    def show(self, row):
        """Print a row; of the later ones of several processes only failures, because bench/launch.py sums them up."""
        if REPEATED in os.environ and row["status"] == "ok" and row["scope"] in SCOPES:
            return
        if len(self.rows) == 1:
            print(report.describe_task(row))
        shares = peaks.fraction_of_peak(row, self.best), peaks.fraction_of_bandwidth(row, self.moved)
        print(report.describe_result(row, *shares), flush=True)

    def close(self):
        """Print what concerns all rows: a sustained run's two speeds, a missing peak."""
        rows = self.rows
        closing = [report.describe_sustained([row for row in rows if row.get("elapsed_seconds")])]
        has_no_peak = rows[-1].get("tflops") and peaks.fraction_of_peak(rows[-1], self.best) is None
        if has_no_peak and REPEATED not in os.environ:
            precision = peaks.SIXTEEN_BITS.get(rows[-1]["precision"], rows[-1]["precision"])
            closing.append(f"  run `make tflops` to compare this with the machine's peak in {precision}")
        if RUN not in os.environ:  # no parent process says it
            closing.append(report.describe_processes(rows))
        if any(closing):
            print("\n".join(filter(None, closing)), flush=True)


def open_bench(settings: Settings, host: environment.Environment):
    """Open framework, device and meters, and log the warnings that belong to them; returns a Bench.

    Raises:
        SettingError: the framework is not installed, or cannot run here.
    """
    environment.refuse_rosetta()
    framework = frameworks.load(settings.framework)
    device = framework.find_device(settings)
    device = replace(device, device_name=device.device_name or host.cpu_name)
    if device.device == "cpu" and REPEATED not in os.environ:
        warn_of_no_gpu(settings, host)
    me = ranks.read_ranks()
    instruments = meters.open_instruments(device.device, device.device_name, find_uuid(device))
    bench = Bench(settings.on(device.device), host, framework, device, instruments)
    return join_ranks(bench, me) if me.are_many else bench


def join_ranks(bench: Bench, me):
    """Return the Bench of one of several ranks once all of them have joined."""
    group = bench.framework.join_ranks(me, bench.device.device)
    device, host = bench.device, bench.host
    likeness = device.device, device.device_name, device.framework_version, host.python, host.driver, host.commit
    instruments = bench.instruments.of_all(group, device.device, likeness)
    settings = bench.settings
    if settings.num_workers:  # equal on all ranks, because the number of steps in a window depends on it
        own = ranks.share_workers(settings.num_workers, me, group.peers)
        settings = replace(settings, num_workers=min(group.gather(own)))
    return replace(bench, settings=settings, instruments=instruments, group=group)


def find_uuid(device: Device):
    """Return an NVIDIA card's UUID if the driver's first card is the one that runs, or None."""
    card = environment.find_card() if device.device == "cuda" else None
    return card.uuid if card and card.name == device.device_name else None


def warn_of_no_gpu(settings: Settings, host: environment.Environment):
    """Warn if a GPU was asked for, or is in this machine, and the framework cannot use it."""
    why = environment.explain_missing_gpu(settings.framework, host.driver)
    if settings.use_gpu:
        why = f"USE_GPU=1, but {why or f'there is no GPU that {settings.framework} can use'}"
    if why and settings.use_gpu is not False:
        log.warning("WARNING: %s; measuring the CPU", why)


def look_at_rest(bench: Bench):
    """Return the Bench with what must be measured before any work: idle power, other programs' load, the canary."""
    if SEARCH in os.environ and SEARCH_STEP not in os.environ:  # a short run of `make best`: only the rate
        return replace(bench, instruments=replace(bench.instruments, counter=None))
    if bench.instruments.why_no_energy and REPEATED not in os.environ:
        log.info("power and energy are not measured: %s", bench.instruments.why_no_energy)
    others = meters.watch_contention(peers=bench.instruments.peers)
    others.start()
    instruments, canary = bench.instruments.with_idle_watts(), None
    if not (bench.settings.sustain or bench.group.ranks.are_many):  # long enough to show heat itself; out of step
        canary = open_canary(bench.framework, bench.device.device, bench.settings)
    if instruments.counter or canary:  # else no time has passed
        instruments = replace(instruments, others_at_rest=others.rate())
    return replace(bench, instruments=instruments, canary=canary)


def quantities(settings: Settings):
    """Yield (phase, scope) of every row that the settings ask for.

    The parts of training follow the full step, but not in short runs of `make best`, and of several processes only in
    the first one: they show where the time goes.
    """
    if settings.sustain:
        yield settings.phase, "sustained"
        return
    for scope in SCOPES:
        if scope not in (settings.scope or ("device",)):
            continue
        yield settings.phase, scope
        if (settings.phase, scope) == ("training", "device") and not {SEARCH, REPEATED} & os.environ.keys():
            yield from ((part, "device") for part in TRAINING[1:])
    if settings.epochs:
        yield "training", "epoch"


def compare_canary(canary, flags):
    """Return the columns that the canary fills; a failure of the canary leaves them blank."""
    try:
        ratio, slowed = canary.compare()
    except KeyboardInterrupt:
        return {"status": "interrupted"}
    except Exception as error:
        log.info("no canary: %s: %s", type(error).__name__, error)
        return {}
    flags = cells.join_flags([*flags.split(), *slowed])
    return {"canary_ratio": ratio, "canary_seconds": canary.seconds, "flags": flags}


def measure_quantity(bench: Bench, workload: Workload, phase, scope, shows_bar=True):
    """Open a session, measure it and close it; returns the columns of its result.

    Args:
        shows_bar: a progress bar, on the first rank.

    Raises:
        MeasurementError, or whatever the framework raises.
    """
    with open_job(bench, workload, phase, scope) as job:
        bar = report.progress(workload, job.items_per_step) if shows_bar and bench.reports else nullcontext()
        with bar as on_window:
            measured = measure.measure(replace(job, on_window=on_window))
        if phase == "training" and scope != "input":
            prove_equal_weights(job.session, bench.group)
        columns = cells.of_measurement(measured, job.watches)
        if has_own_energy(bench, job.mode, scope) and measured.stop_reason != "interrupted":
            columns |= measure_energy(job, bench.instruments, measured.steps_per_window)
        return describe_work(bench, workload, scope, job.session, columns)


def measure_series(bench: Bench, workload: Workload, phase, scope):
    """Yield the columns of each epoch, or of every ten seconds of a sustained run."""
    with open_job(bench, workload, phase, scope) as job:
        if scope == "epoch":
            parts = measure_epochs(job, workload, bench.settings)
        else:
            parts = measure_sustained(job, bench.instruments, bench.settings.sustain)
        for columns in parts:
            yield describe_work(bench, workload, scope, job.session, columns)


@contextmanager
def open_job(bench: Bench, workload: Workload, phase, scope):
    """Open the session of a quantity, as a Job of all ranks, and close it at the end."""
    refuse_too_large(workload, bench.device)
    meters.reset_process_peak()
    group, settings = bench.group, bench.settings
    # Each rank has its own data, and its own order of them.
    own = replace(settings, seed=settings.seed + group.ranks.rank)
    session = bench.framework.open_session(workload, own, phase, scope)
    try:
        items = settings.num_images if phase == settings.phase and scope in SCOPES else None
        # An all-reduce is one piece of work of all ranks; else each rank has batches of its own.
        items_per_step = workload.items_per_step * (1 if workload.samples else bench.device.world_size)
        watches = bench.instruments.watches() if bench.reports else ()
        limits = settings.max_seconds, settings.target_ci, items
        yield measure.Job(group.watch_over(session), items_per_step, *limits, clock=group.clock, watches=watches)
    except Exception as error:
        traceback.clear_frames(error.__traceback__)  # they hold what the failed step allocated
        raise
    finally:
        session.close()


def describe_work(bench: Bench, workload: Workload, scope, session, columns):
    """Return the columns of a result with those of its work: FLOPs, bytes, precision, memory.

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
        "peak_memory_bytes": meters.process_peak_bytes() if on_cpu else session.context.peak_memory_bytes(),
        "reserved_memory_bytes": session.context.reserved_memory_bytes(),
        "idle_watts": bench.instruments.idle_watts,
        "note": session.note,
    }
    if bench.instruments.unlike:
        columns["flags"] = cells.join_flags([*columns["flags"].split(), "unlike_ranks"])
    if columns.get("status") != "interrupted":
        session.check_last_step()
    return columns


def refuse_too_large(workload, device):
    """Raise MemoryError for work that does not fit in the system's memory: it would swap, or kill this process.

    The batches are made there, and all else is there too unless the device has memory of its own.
    """
    needed = RESIDENT_BATCHES * workload.batch_bytes + (0 if device.has_own_memory else workload.resident_bytes)
    free = resources.available_bytes()
    if free and needed > free:
        advice = "choose smaller SIZES" if workload.samples else "choose a smaller BATCH_SIZE"
        if workload.resident_bytes:
            advice = "choose a smaller MODEL, BATCH_SIZE or DEPTH, or 16 bits; in training LORA_RANK=8"
        raise MemoryError(f"it needs {needed / 1e9:.4g} GB, but only {free / 1e9:.4g} GB are free: {advice}")


def prove_equal_weights(session, group):
    """Raise MeasurementError unless all ranks have the same weights after training."""
    if group.ranks.are_many:
        first, *others = group.gather(session.checksum())
        unlike = ", ".join(str(rank) for rank, weights in enumerate(others, 1) if weights != first)
        if unlike:
            raise measure.MeasurementError(
                "wrong_output", f"after training, rank 0 has other weights than rank {unlike}"
            )


def has_own_energy(bench: Bench, mode, scope):
    """Return whether there is an energy counter that covers only this work.

    For a part of training it would include the parts that run before each step. While only a pipeline runs, a card
    idles.
    """
    return bench.instruments.counter and mode != "part" and (scope, bench.device.device) != ("input", "cuda")


def measure_energy(job: measure.Job, instruments, steps):
    """Run the same work for some seconds more; return the columns of its energy."""
    try:
        return cells.of_energy(instruments, *measure.measure_energy(job, steps, instruments.joules))
    except KeyboardInterrupt:  # the throughput is known by now
        return {"status": "interrupted"}


def measure_sustained(job: measure.Job, instruments, seconds):
    """Yield the columns of every ten seconds of a long run."""
    joules = instruments.joules if instruments.counter else None
    for elapsed, measured, watts in measure.sustain(job, seconds, joules):
        columns = cells.of_measurement(measured, job.watches) | {"elapsed_seconds": elapsed}
        if watts is not None:
            columns |= cells.of_energy(instruments, watts, watts * measured.seconds / measured.items)
        yield columns


def measure_epochs(job: measure.Job, workload: Workload, settings: Settings):
    """Train whole epochs; yield the columns of each: seconds, loss and accuracy."""
    count = len(workload.dataset()[1])
    for epoch in range(1, settings.epochs + 1):
        seconds, flags = measure.measure_epoch(job, epoch_order(count, settings.seed, epoch))
        losses = job.session.losses()
        flags += [] if math.isfinite(sum(losses)) else ["not_finite"]
        yield {
            "epoch": epoch,
            "stop_reason": "epoch",
            "flags": cells.join_flags(flags),
            "throughput": count / seconds,
            "items": count,
            "seconds": seconds,
            "loss_first": losses[0],
            "loss_last": losses[-1],
            "loss_mean": statistics.fmean(losses),
            "accuracy": job.session.evaluate(),
        }


def describe_failure(error, bench: Bench):
    """Return the status and the note of a failed measurement.

    An unexpected failure also prints its traceback. On several ranks, which all fail when one does, the note has the
    place instead.
    """
    if isinstance(error, measure.MeasurementError):
        status, reason = error.status, str(error)
    else:
        status, reason = frameworks.describe_failure(error)
    if status == "failed" and bench.group.ranks.are_many:
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason += f" ({os.path.basename(place.filename)}, line {place.lineno})"
    elif status == "failed" and not isinstance(error, OSError):  # a full disk and the like say enough
        traceback.print_exception(error)
    return {"status": status, "note": reason}
