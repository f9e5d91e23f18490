"""BATCH_SIZE=auto: the fastest batch size that fits, found by doubling from one.

The sizes are tried in a process of its own. On some systems one that is too large kills the process, an assertion in
Metal or the system itself, and no exception comes. What a trial reserved goes with it, too.
"""

import logging
import multiprocessing
import signal
import time
from dataclasses import replace

from bench import frameworks
from bench.machine import meters, resources
from bench.timing.measure import timed
from bench.work.data import RESIDENT_BATCHES

log = logging.getLogger("bench")


def refuse_too_large(workload):
    """Raise MemoryError for inputs that cannot fit: a system that overcommits would kill the process instead."""
    needed, free = RESIDENT_BATCHES * workload.batch_bytes, resources.available_bytes()
    if free and needed > free:
        raise MemoryError(
            f"{RESIDENT_BATCHES} batches of {workload.items_per_step} {workload.unit} take {needed / 1e9:.4g} GB "
            f"and {free / 1e9:.4g} GB are free: choose a smaller BATCH_SIZE"
        )


def choose_batch_size(bench, describe_workload):
    """The fastest batch size that fits; 1 where not even that does, so that measuring it says why."""
    log.info("BATCH_SIZE=auto doubles it until memory or time runs out: this may take minutes and most of the memory")
    fastest = 0.0, 1
    for size, rate, words in try_elsewhere(bench, describe_workload):
        log.info("BATCH_SIZE=%d: %s", size, words)
        fastest = max(fastest, (rate, size))
    return fastest[1]


def try_elsewhere(bench, describe_workload):
    """Yields what try_sizes() yields in a process of its own; where that dies, the size that it tried comes last."""
    context = multiprocessing.get_context("spawn")  # a forked process could not use the GPU
    receiver, sender = context.Pipe(duplex=False)
    plain = replace(bench, framework=None, instruments=None, canary=None)  # what can be sent
    child = context.Process(target=send_trials, args=(plain, describe_workload, sender))
    # Ctrl-C reaches this process alone: the child inherits the mask.
    former = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        child.start()
        sender.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
        tried = 1
        while (trial := receive(receiver)) is not None:
            tried = 2 * trial[0]
            yield trial
        child.join()
        if child.exitcode:
            how = f"signal {-child.exitcode}" if child.exitcode < 0 else f"exit status {child.exitcode}"
            yield tried, 0.0, f"the process that tried it was ended by {how}"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
        if child.pid:
            child.kill()
            child.join()


def receive(connection):
    """The next object; None where the other end is closed."""
    try:
        return connection.recv()
    except EOFError:
        return None


def send_trials(bench, describe_workload, connection):
    """The child's main function."""
    bench = replace(bench, framework=frameworks.load(bench.settings.framework))
    bench.framework.find_device(bench.settings)  # sets the number of threads
    for trial in try_sizes(bench, describe_workload):
        connection.send(trial)


def try_sizes(bench, describe_workload):
    """Yields (size, items a second, words) of batch sizes from one on, doubled each time.

    A failure is the last one, with the rate 0: out of memory above all. So is a size after which the next would take
    over MAX_SECONDS a step, or more memory than is free, where the system would swap, hang or kill instead of refusing.
    """
    size, before = 1, meters.process_peak_bytes()
    while True:
        trial = replace(bench.settings, batch_size=size)
        try:
            workload = describe_workload(trial)
            refuse_too_large(workload)
            seconds, taken = try_batch_size(bench, trial, workload, before)
        except Exception as error:
            yield size, 0.0, ": ".join(frameworks.describe_failure(error, bench.framework.ERRORS))
            return
        yield size, size / seconds, f"{size / seconds:.4g} {workload.unit}/s"
        free = None if bench.device.has_own_memory else resources.available_bytes()
        if 2 * seconds > bench.settings.max_seconds or (free and 2 * taken > free):
            return
        size *= 2


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
