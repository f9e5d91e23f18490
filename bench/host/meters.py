"""Meter energy, heat and other programs during a measurement. All meters are optional; none can stop a measurement."""

import functools
import logging
import math
import re
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import missing_package
from bench.host import sensors
from bench.host.environment import read_text
from bench.host.ranks import read_ranks
from bench.settings import cpu_quota, usable_cores, usable_cpus

log = logging.getLogger("bench")

CONTENDED_SHARE = 0.10  # of the usable cores' time
SHARED_PERCENT = 5.0  # of a card's time, before the run
IDLE_SECONDS = 5.0


def process_peak_bytes():
    """Return the peak resident memory of this process, in bytes."""
    # Linux's getrusage() also reports the peak of the parent process before fork and exec.
    if found := re.search(r"^VmHWM:\s*(\d+) kB", read_text("/proc/self/status"), re.MULTILINE):
        return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS: getrusage(2)


def reset_process_peak():
    """Reset the peak on Linux; elsewhere it covers the life of the process. See proc_pid_clear_refs(5)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def swapped_bytes():
    """Return the bytes written to swap since the system started; on a Mac, the bytes in swap."""
    swap = sensors.psutil.swap_memory()
    # On a Mac psutil's `sout` also counts pages written to files.
    return swap.used if sys.platform == "darwin" else swap.sout


def others_cpu_seconds():
    """Return the CPU seconds of all other processes since boot, including time stolen by other virtual machines.

    Only the CPUs count that this process may use: in a container, other containers may have the others.
    """
    every, usable, busy = sensors.psutil.cpu_times(percpu=True), usable_cpus(), 0.0
    for times in every if len(usable) == len(every) else [every[cpu] for cpu in usable]:
        idle = times.idle + getattr(times, "iowait", 0.0)
        # Linux counts guest time twice: as guest time and as user time.
        twice = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        busy += sum(times) - idle - twice
    return busy - own_cpu_seconds()


def own_cpu_seconds():
    """Return the CPU seconds of this process and its children, and of the other ranks of this machine."""
    root, seconds = sensors.psutil.Process(), 0.0
    if read_ranks().local_world_size > 1:  # torchrun, or Slurm's step, is the parent of all of them
        root = root.parent()
    for process in [root, *root.children(recursive=True)]:
        try:
            seconds += sum(process.cpu_times()[:4])  # user and system time, its own and its ended children's
        except sensors.psutil.Error:  # it has just ended, so its parent's times include it
            continue
    return seconds


def read_or(otherwise, problem, read):
    """Return what a sensor reads; if it fails, log the problem and return `otherwise`."""
    try:
        return read()
    except Exception as error:
        log_once(f"{problem}: {type(error).__name__}: {error}")
        return otherwise


@functools.cache
def log_once(message):
    log.info(message)


class CounterWatch:
    """Raises its flag if a counter has grown by more than `limit` per second; never if the counter fails."""

    def __init__(self, flag, counter, limit=0.0, clock=time.perf_counter):
        self.flag, self.columns, self._counter, self._limit, self._clock = flag, {}, counter, limit, clock

    def start(self):
        self._before = self._clock(), self._count()

    def rate(self):
        """Return the counter's growth per second since start(); 0.0 if unknown."""
        start, before = self._before
        growth = (self._count() - before) / (self._clock() - start)
        return 0.0 if math.isnan(growth) else growth

    def flags(self):
        return [self.flag] if self.rate() > self._limit else []

    def _count(self):
        return read_or(math.nan, f"the flag {self.flag} cannot be raised", self._counter)


class HeatWatch:
    """Reads temperature, clock and thermal pressure after the last window; raises its flag if heat lowers the clock."""

    flag = "throttled"

    def __init__(self, read):
        self._read = lambda: read() | {"thermal_pressure": sensors.read_thermal_pressure()}

    def start(self):
        self.columns = {}

    def flags(self):
        self.columns = read_or({}, f"the flag {self.flag} cannot be raised", self._read)
        reasons, pressure = self.columns.get("throttle_reasons", ""), self.columns.get("thermal_pressure")
        is_slowed = pressure not in (None, "nominal") or not sensors.SLOWED_BY.keys().isdisjoint(reasons.split())
        return [self.flag] if is_slowed else []


def sees_others():
    """Return whether other programs' load can be told from ours.

    It cannot if a container's quota is less than its CPUs: other containers may then use the rest of each CPU.
    """
    return sensors.psutil is not None and (cpu_quota() or math.inf) >= len(usable_cpus())


def watch_contention(at_rest=0.0, card_is_shared=False):
    """Return a watch that flags other processes if they use over 10 % of the usable cores more than before the run.

    Args:
        at_rest: cores that they used before the run; at most 10 % of the usable cores are allowed for.
        card_is_shared: another program used the card before the run, so the flag is raised in any case.
    """
    limit = CONTENDED_SHARE * usable_cores()
    limit = -math.inf if card_is_shared else limit + min(at_rest, limit)
    return CounterWatch("contended", others_cpu_seconds if sees_others() else float, limit)


@dataclass(frozen=True)
class Instruments:
    """The sensors of one device."""

    counter: Any = None  # one of sensors.py
    read: Callable[[], dict] = dict  # () -> columns of temperature and clock
    why_no_energy: str = ""  # why there is no counter, and how to get one
    idle_watts: float | None = None
    others_at_rest: float = 0.0  # cores that other programs used before the run
    card_is_shared: bool = False  # another program used the card before the run

    def watches(self):
        """Return new watches for measure()."""
        contention = watch_contention(self.others_at_rest, self.card_is_shared)
        # Heat comes first, because a GPU's clock changes as soon as the work ends.
        return HeatWatch(self.read), contention, CounterWatch("swapping", swapped_bytes)

    def joules(self):
        """Return the energy counter's reading; NaN if it is missing or fails."""
        return read_or(math.nan, "the energy counter failed", self.counter.joules) if self.counter else math.nan

    def with_idle_watts(self, clock=time.perf_counter, sleep=time.sleep):
        """Return a copy with the idle power, measured over IDLE_SECONDS; itself without a counter."""
        if self.counter is None:
            return self
        start, before = clock(), self.joules()
        sleep(IDLE_SECONDS)
        watts = (self.joules() - before) / (clock() - start)
        busy = read_or(0, "use of the card is unknown", getattr(self.counter, "busy_percent", int))
        return replace(self, idle_watts=None if math.isnan(watts) else watts, card_is_shared=busy > SHARED_PERCENT)


def open_instruments(device, device_name):
    """Return the Instruments of a device ("cpu", "cuda", "mps" ...), without what is measured at rest."""
    read, counter, why = sensors.read_cpu if device == "cpu" else dict, None, ""
    try:
        if device == "cuda":
            found = sensors.NvidiaCard(device_name)
            read = found.read  # a card without an energy counter still has a temperature
        elif device in ("cpu", "mps") and sys.platform == "darwin":
            found = sensors.AppleChip(device_name)
        elif device == "cpu":
            found = sensors.Rapl()
        else:
            raise OSError(f"no energy counter is known for {device_name or device}")
        found.joules()
        counter = found
    except Exception as error:  # drivers and kernels fail in many ways
        why = missing_package(error) if isinstance(error, ModuleNotFoundError) else str(error) or type(error).__name__
    return Instruments(counter, read, why)
