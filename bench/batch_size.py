"""BATCH_SIZE=auto: the fastest batch size that fits, found by doubling from one."""

import logging
import time
from dataclasses import replace

from bench import frameworks
from bench.machine import environment, meters
from bench.timing.measure import timed
from bench.work.data import RESIDENT_BATCHES

log = logging.getLogger("bench")


def refuse_too_large(workload, host):
    """Raise MemoryError for inputs that cannot fit: a system that overcommits would kill the process instead."""
    needed = RESIDENT_BATCHES * workload.batch_bytes / environment.GIB
    if host.memory_gb and needed > host.memory_gb:
        raise MemoryError(
            f"{RESIDENT_BATCHES} batches of {workload.items_per_step} {workload.unit} take {needed:.4g} GiB "
            f"and the machine has {host.memory_gb:g}: choose a smaller BATCH_SIZE"
        )


def choose_batch_size(bench, describe_workload):
    """The fastest batch size that fits; 1 where not even that does, so that measuring it says why.

    A failure ends the doubling, out of memory above all; so does a next size that would take over MAX_SECONDS a step,
    or more memory than is free, where the system would swap or kill instead of refusing.
    """
    log.info("BATCH_SIZE=auto doubles it until memory or time runs out: this may take minutes and most of the memory")
    fastest, size, before = (0.0, 1), 1, meters.process_peak_bytes()
    while True:
        trial = replace(bench.settings, batch_size=size)
        try:
            workload = describe_workload(trial)
            refuse_too_large(workload, bench.host)
            seconds, taken = try_batch_size(bench, trial, workload, before)
        except Exception as error:
            log.info("BATCH_SIZE=%d: %s", size, ": ".join(frameworks.describe_failure(error, bench.framework.ERRORS)))
            break
        log.info("BATCH_SIZE=%d: %.4g %s/s", size, size / seconds, workload.unit)
        fastest = max(fastest, (size / seconds, size))
        free = meters.available_bytes() if bench.device.device in ("cpu", "mps") else None
        if 2 * seconds > bench.settings.max_seconds or (free and 2 * taken > free):
            break
        size *= 2
    return fastest[1]


def try_batch_size(bench, settings, workload, before):
    """(seconds a step, bytes that it took) of a short look at one batch size; the process had `before` bytes."""
    session = bench.framework.open_session(workload, settings, settings.phase, "device")
    clock = time.perf_counter
    try:
        timed(session, clock, 1)
        fastest = min(timed(session, clock, 1) for _ in range(3))
        on_device = None if bench.device.device == "cpu" else session.peak_memory_bytes()
        return fastest, meters.process_peak_bytes() - before if on_device is None else on_device
    finally:
        session.close()
