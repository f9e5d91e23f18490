"""Our figures beside those of loops written by hand: `make selfcheck`.

A ratio of 1 means that the harness adds nothing to the work and leaves nothing of it out. Blocks of both
take turns, so that a machine which drifts or is busy moves both, and the median of the pairs' ratios is
judged by its interval. The tests prove behaviour with fakes; this proves the numbers, on this machine.
"""

import importlib
import os
import statistics
import sys
import time
from dataclasses import replace

from bench import frameworks
from bench.settings import read_settings
from bench.timing import intervals, measure
from bench.work import operators
from image_benchmark import image_workload

PAIRS = 15
TOLERANCE = 0.02
SPIN_SECONDS = 0.010


class Spinning:
    """A step that takes 10 ms of wall time by the clock itself."""

    queue_steps = prepare = None

    def step(self, items=None):
        end = time.perf_counter() + SPIN_SECONDS
        while time.perf_counter() < end:
            pass

    def synchronize(self):
        pass

    def settle(self):
        pass

    def probe(self):
        return time.perf_counter()


def check_spinning():
    measured = measure.measure(Spinning(), 1, measure.Limits())
    error = measured.step_seconds_median / SPIN_SECONDS - 1
    return say("a step that spins for 10 ms", f"off by {100 * error:+.3f} %", abs(error) <= 0.005)


def check_loops(phase, model, loops):
    """Our step beside loops written by hand: {what: (block, is_right)}.

    A block takes (readings, steps), times so many steps as often as it is told, and gives the median in images/s.
    """
    environ = {"BATCH_SIZE": "4"} | dict(os.environ) | {"PHASE": phase, "MODEL": model}
    settings = read_settings("image", environ)
    framework = frameworks.load(settings.framework)
    settings = settings.on(framework.find_device(settings).device)
    workload = image_workload(settings)
    session = framework.open_session(workload, settings, phase, "device")
    passed = []
    for what, (block, is_right) in loops.items():
        pairs = [one_pair(session, block, workload) for _ in range(PAIRS)]
        passed.append(compare(f"{model} {phase}, batch {settings.batch_size}, beside {what}", pairs, is_right))
    session.close()
    return all(passed)


def check_product(by_hand, side=1024):
    """Our rate of a matrix product beside the median of 50 runs of the same call by hand, which takes turns with it."""
    settings = read_settings("tflops", os.environ | {"PRECISION": "float32"})
    framework = frameworks.load(settings.framework)
    framework.find_device(settings)
    settings = replace(settings, precision="float32")
    session = framework.open_session(operators.matmul((side,) * 3), settings, None, "device")
    block = by_hand(side)
    pairs = [(measure.measure(session, 1, measure.Limits(max_seconds=1)).throughput, block(50)) for _ in range(PAIRS)]
    session.close()
    what = f"product of {side} x {side} x {side}, beside a loop by hand"
    return compare(what, pairs, lambda low, high: high >= 1 - TOLERANCE, unit="products")


def is_one(low, high):
    """Whether the interval of a ratio says that nothing was added and nothing left out."""
    return low <= 1 + TOLERANCE and high >= 1 - TOLERANCE


def compare(what, pairs, is_right, unit="images"):
    """Say what (ours, theirs) come to; whether it is right follows from the ends of their ratio's interval."""
    ratios = [ours / theirs for ours, theirs in pairs]
    low, high = intervals.median_interval(ratios)
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    return say(
        what,
        f"ours {ours:.4g}, theirs {theirs:.4g} {unit}/s, ratio {statistics.median(ratios):.4f} "
        f"({low:.4f} to {high:.4f}, {len(pairs)} pairs)",
        is_right(low, high),
    )


def one_pair(session, block, workload):
    """(our images/s, theirs) of two blocks, one right after the other, of as many steps."""
    measured = measure.measure(session, workload.items_per_step, measure.Limits(max_seconds=1))
    return measured.throughput, block(measured.windows, measured.steps_per_window)


def say(what, figures, right):
    print(f"{'ok   ' if right else 'WRONG'}  {what}: {figures}", flush=True)
    return right


if __name__ == "__main__":
    by_hand = importlib.import_module(f"tests.by_hand_{read_settings('image').framework}")
    checks = [check_spinning(), *by_hand.checks()]
    sys.exit(0 if all(checks) else 1)
