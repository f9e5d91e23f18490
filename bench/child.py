"""A child process: measures one run, and writes lines: what it is doing, and each of its results.

settings -> device -> session -> windows, as the parent asks for them -> check -> line

A line is JSON: the part of a row that only this process knows. The child does not know the results file, the other
processes, or what is printed; bench/run.py does.
"""

import atexit
import logging
import os
import platform
import sys
import time
import traceback
import zlib
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from queue import SimpleQueue
from types import ModuleType

from bench import check, frameworks, precision, process
from bench.frameworks import Device
from bench.host import environment, meters, ranks, resources
from bench.records.rows import work_cells
from bench.settings import SettingError, Settings, read_settings
from bench.timing.windows import Timer
from bench.workloads.data import RESIDENT_BATCHES
from bench.workloads.workload import Workload

log = logging.getLogger("bench")

COMPARING = "the process ended before its last check"  # note of a row until then
STOPPED = f"{check.NOT_COMPARED}interrupted"  # note of a row if Ctrl-C has ended that check
REST_SECONDS = 0.01
MOST_RESTS = 30  # the threads of LLVM's and Intel's OpenMP spin for 0.2 s after their work, those of GNU's do not


def main(command, make_workload, measure):
    """Measure what the environment's settings and the parent ask for, and write lines; return 0, 2 or 130.

    A failure is a line too, and so is a mistake in the settings, with the key `mistake`, which is the last one.

    Args:
        command: what follows make: "image".
        make_workload: Settings -> Workload.
        measure: (Measurer, make_workload), measures the parts of the work, as measure_workload() does.
    """
    process.set_up()
    write, requests = process.open_channel()
    status, me = 0, ranks.read_ranks()
    if me.are_many:
        requests = None  # they measure as soon as all are ready
        if os.environ.get("OMP_NUM_THREADS") == "1":
            del os.environ["OMP_NUM_THREADS"]  # torchrun's default, not the user's: each rank gets a share of the cores
    if me.rank:  # only rank 0 logs, and writes results
        log.setLevel(logging.ERROR)
    try:
        settings = read_settings(command, os.environ)
        framework = frameworks.load(settings.framework)
        device = framework.find_device(settings)
        warn_of_device(settings, device)
        if device.type == "cpu":
            meters.keep_freed_memory()
        if os.environ.get(process.TASK) == process.FIND_DEVICE:
            write(asdict(device))
            return 0
        settings = read_settings(command, os.environ, device.type, device.emulates_bfloat16)
        # The energy and heat of one card would be those of one rank only.
        instruments = meters.Instruments() if me.are_many else meters.open_instruments(device.type, device.device_name)
        # A process by itself is a group of one, which waits for nobody.
        with framework.join_ranks(me, device.type) if me.are_many else nullcontext(ranks.Group()) as group:
            measurer = Measurer(settings, framework, device, instruments, group, write, requests)
            try:
                measure(measurer, make_workload)
            except (SettingError, ModuleNotFoundError):  # a mistake, or a missing package of this workload
                raise
            except Exception as error:
                failed = frameworks.classify_failure(error)
                measurer.write(measurer.begun | failed)  # what has begun
                if me.are_many:  # the other ranks may never reach the barrier at the end
                    print(f"rank {me.rank}: {failed['status']}: {failed['note']}", file=sys.stderr)
                    raise SystemExit(1) from None
    except KeyboardInterrupt:
        status = process.INTERRUPTED
    except (SettingError, ModuleNotFoundError) as error:
        write({"mistake": process.explain(error)})
        status = process.MISTAKE
    if me.are_many:
        # Gloo's threads outlive the group and may abort an ending interpreter (pytorch/pytorch, 179291).
        atexit._run_exitfuncs()
        os._exit(status)
    return status


@dataclass(frozen=True)
class Measurer:
    """Measures with one framework on one device."""

    settings: Settings  # resolved for the device
    framework: ModuleType
    device: Device
    instruments: meters.Instruments
    group: ranks.Group
    send: Callable[[dict], None]  # called with each line
    requests: SimpleQueue | None  # the parent's; None: measures until the settings' limits
    begun: dict = field(default_factory=dict)  # the cells of what happens now

    def write(self, cells):
        """Write a line with these cells and those of the device, on rank 0 only."""
        names = ("device_name", "framework_version", "num_threads", "rated_bandwidth")
        about = {name: getattr(self.device, name) for name in names} | {"python": platform.python_version()}
        about |= {name: getattr(self.group.ranks, name) for name in ("world_size", "nodes")}
        if not self.group.ranks.rank:
            self.send(about | {"device": self.device.type} | cells)

    def begin(self, workload: Workload, scope, note, **cells):
        """Write what happens now. If it fails, or if this process dies, its row has these cells."""
        self.begun.clear()
        self.begun.update(work_cells(self.settings, workload, scope) | cells | {"status": process.BEGUN})
        self.write(self.begun | {"note": note})

    def read_requests(self):
        """Yield the requests of the parent until it asks for the check; before each, tell it that this one waits."""
        while True:
            wait_until_idle()
            self.write(self.begun | {"note": process.WAITING})
            request = self.requests.get()
            if request == process.CHECK:
                return
            self.write(self.begun | {"note": "measuring"})
            yield request

    def measure_scopes(self, workload: Workload, scopes, keep=None):
        """Measure scopes on one model; compare the last output of each with the CPU before the next one begins.

        Args:
            keep: called with the cells of each result, before the comparison and after it; by default, it is written.

        Raises:
            KeyboardInterrupt: Ctrl-C; what is complete is kept.
        """
        keep = keep or self.write
        self.begin(workload, scopes[0], "building")
        with self.open_session(workload, scopes[0]) as session:
            for scope in scopes:
                self.begin(workload, scope, "measuring")
                if scope == "end_to_end" and not session.stream:
                    session.read_files()
                requests = self.read_requests() if scope == "device" and self.requests else [process.WINDOWS]
                cells = self.begun | self.make_timer(workload, scope, session).measure(requests)
                cells |= self.derive_cells(workload, scope, session, cells)
                if cells["status"] == "interrupted":
                    keep(cells | {"note": describe_notes(session, cells)})
                    raise KeyboardInterrupt
                cells["output_error"] = self.check_last_step(session, cells, keep)
                keep(cells | {"note": describe_notes(session, cells)})

    @contextmanager
    def open_session(self, workload: Workload, scope):
        """Open a session for all ranks, and close it at the end.

        Raises:
            MemoryError: the work does not fit in the system's memory: it would swap, or this process would be killed.
        """
        needed = RESIDENT_BATCHES * workload.batch_bytes  # which are made in the system's memory
        if resources.shares_memory(self.device):
            needed += workload.resident_bytes
        if needed > (free := resources.available_bytes()):
            fix = "smaller SIZES, or other OPS" if self.settings.ops else "a smaller MODEL or BATCH_SIZE, or 16 bits"
            words = f"it needs {needed / 1e9:.4g} GB, but only {free / 1e9:.4g} GB are free"
            raise MemoryError(f"{words}: choose {fix}")
        # Each rank has its own data, and its own order of them.
        settings = replace(self.settings, seed=self.settings.seed + self.group.ranks.rank)
        session = self.framework.open_session(workload, settings, scope, self.group)
        try:
            yield session
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # they hold what the failed step allocated
            raise
        finally:
            session.close()

    def make_timer(self, workload: Workload, scope, session):
        """Return the Timer of a session in one scope, which writes the rate so far."""
        settings, group, instruments = self.settings, self.group, self.instruments
        meters.reset_process_peak()  # the checks before need more memory than the steps
        # Energy is that of whole models, without what comes before a step; a given number of items may be over sooner.
        if scope == "input" or session.prepare or settings.num_images or not session.parameters:
            instruments = replace(instruments, joules=None)
        for_energy = (meters.LEAST_PERIODS + 2) * instruments.period if instruments.joules else 0.0
        return Timer(
            session,
            workload.items_per_step * group.ranks.world_size,
            settings.max_seconds,
            num_items=settings.num_images,
            sustain=settings.sustain,
            least_seconds=min(for_energy, settings.max_seconds),
            clock=group.clock,
            on_window=lambda rate: self.write(self.begun | {"note": "measuring", "throughput": rate}),
            watch=None if group.ranks.rank else meters.Watch(instruments),
        )

    def derive_cells(self, workload: Workload, scope, session, cells):
        """Return the cells that a result gets from its work: FLOPs, bytes, precision, memory."""
        read_peak = meters.process_peak_bytes if self.device.type == "cpu" else session.context.peak_memory_bytes
        more = {"parameters": session.parameters, "output_error": session.output_error}
        more |= {"measured_precision": precision.describe(session.precisions), "peak_memory_bytes": read_peak()}
        if workload.flops_per_item and scope != "input":
            more["flops_per_item"] = workload.flops_per_item
            more["tflops"] = cells["throughput"] * workload.flops_per_item / 1e12
        if workload.bytes_per_step:
            more["bytes_per_step"] = workload.bytes_per_step + session.weight_bytes
            more["bandwidth"] = cells["throughput"] / workload.items_per_step * more["bytes_per_step"] / 1e9
        return more

    def check_last_step(self, session, cells, keep):
        """Check what the last step left, before any other one, and compare it with the CPU; return the output's error.

        Args:
            cells, keep: as of measure_scopes(), for the row of a process that is killed or interrupted meanwhile.
        """
        items = session.check_last_output()
        if self.group.ranks.are_many:
            sums = self.group.gather([zlib.crc32(values.tobytes()) for _, values in session.matrices()])
            unlike = [rank for rank, each in enumerate(sums) if each != sums[0]]
            check.require(not unlike, f"after training, rank 0 has other weights than the ranks {unlike}")
        if not items or self.group.ranks.rank:
            return cells.get("output_error")
        keep(cells | {"note": COMPARING})
        try:
            return session.compare(check.check_output, session, *items)
        except KeyboardInterrupt:
            keep(cells | {"note": STOPPED})
            raise


def warn_of_device(settings, device):
    """Warn if a GPU is missing, or if the start of the device is slow."""
    missing = ""
    if device.type == "cpu" and settings.use_gpu is not False:
        missing = environment.explain_missing_gpu(settings.framework)
        if settings.use_gpu and not missing:
            missing = f"USE_GPU=1, but {settings.framework} finds no GPU"
    for warning in (missing, device.note):
        if warning:
            log.warning("WARNING: %s", warning)


def measure_workload(measurer: Measurer, make_workload):
    """Measure the only part of most workloads: the model on batches that are on the device."""
    scope = "sustained" if measurer.settings.sustain else "device"
    measurer.measure_scopes(make_workload(measurer.settings), [scope])


def describe_notes(session, cells):
    """Return the note of a row: its own, what was not compared, and what the framework knows."""
    return "; ".join(dict.fromkeys(filter(None, [cells.get("note"), *session.notes, session.context.notes()])))


def wait_until_idle():
    """Wait until the threads of this process use less than a tenth of a core, at most MOST_RESTS times."""
    for _ in range(MOST_RESTS):
        before = time.process_time()
        time.sleep(REST_SECONDS)
        if time.process_time() - before < REST_SECONDS / 10:
            return
