"""Compare our figures with those of hand-written loops: `make selfcheck`.

A ratio of 1 means that the harness adds nothing to the work and leaves nothing of it out. Blocks of both take turns, in
changing order, so that a machine that drifts or is busy moves both. The interval of the median ratio decides. The tests
prove behaviour with fakes; this proves the numbers, on this machine.
"""

import importlib
import math
import os
import statistics
import sys
import time

from bench import frameworks, process
from bench.settings import read_settings
from bench.timing import intervals
from bench.timing.windows import Timer
from tests.fakes import workload_of_command

PAIRS = 20
LONGER = 5  # times as many steps have their readings as our windows, which shows what the end of a window costs
TOLERANCE = 0.02


def check_loop(phase, model, block, workload="image", **environ):
    """Compare our step with a hand-written loop, a block of block_of(); returns whether they agree.

    PAIRS of (our rate, theirs) are blocks of equally many steps, one right after the other.
    """
    environ = {"BATCH_SIZE": "4"} | dict(os.environ) | environ | {"PHASE": phase, "MODEL": model}
    settings = read_settings(workload, environ)
    framework, pairs = frameworks.load(settings.framework), []
    settings = read_settings(workload, environ, framework.find_device(settings).type)
    described = workload_of_command(workload, settings)
    session = framework.open_session(described, settings, "device")
    measure = lambda: Timer(session, described.items_per_step, 1.0).measure()  # noqa: E731
    measured = measure()
    readings, steps = math.ceil(measured["windows"] / LONGER), LONGER * measured["steps_per_window"]
    for number in range(PAIRS):
        theirs = block(readings, steps) if number % 2 else None
        rate = measure()["throughput"]
        pairs.append((rate, theirs or block(readings, steps)))
    session.close()
    return compare(f"{model} {phase}, batch {settings.batch_size}", pairs, described.unit)


def block_of(step, wait, items=1):
    """Return block(readings, steps) of a hand-written step: items/s, by the median of times of `steps` steps each.

    Args:
        wait: called with the last step's result; returns when it is complete.
    """

    def read_clock(steps):
        start = time.perf_counter()
        for _ in range(steps):
            result = None  # the next output may take its memory
            result = step()
        wait(result)
        return (time.perf_counter() - start) / steps

    def block(readings, steps):
        read_clock(2)
        return items / statistics.median(read_clock(steps) for _ in range(readings))

    return block


def compare(what, pairs, unit):
    """Print the ratio of (ours, theirs); returns whether its interval overlaps 0.98 to 1.02."""
    ratios = [ours / theirs for ours, theirs in pairs]
    low, high = intervals.median_interval(ratios)
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    rates, middle = f"ours {ours:.4g}, theirs {theirs:.4g} {unit}/s", f"ratio {statistics.median(ratios):.4f}"
    is_one = low <= 1 + TOLERANCE and high >= 1 - TOLERANCE
    print(f"{'ok   ' if is_one else 'WRONG'}  {what}: {rates}, {middle} ({low:.4f} to {high:.4f}, {len(pairs)} pairs)")
    return is_one


def checks_of_torch(tokens=64):
    """Yield whether we agree with each loop of by_hand_torch.py."""
    from checks import by_hand_torch

    def block(step, items=1):
        return lambda readings, steps: items / by_hand_torch.measure(step, readings, steps)

    for phase in ("inference", "training"):
        yield check_loop(phase, "resnet50", block(by_hand_torch.image_step(phase), by_hand_torch.BATCH_SIZE))
    environ = {"BATCH_SIZE": "1", "NEW_TOKENS": str(tokens), "PRECISION": "float32"}
    yield check_loop("decode", "smollm2-135m", block(by_hand_torch.decode_step(tokens)), workload="llm", **environ)


def main():
    """Compare with the loops of FRAMEWORK; return the exit status, 1 if a rate differs."""
    name = read_settings("selfcheck").framework
    frameworks.load(name)  # first: it sets Keras's backend
    checks = checks_of_torch if name == "torch" else importlib.import_module(f"checks.by_hand_{name}").checks
    return 0 if all(list(checks())) else 1


if __name__ == "__main__":
    sys.exit(process.run_script(main))
