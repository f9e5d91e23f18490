"""The search of `make best` on a fake machine: a table of rates, with noise and a clock of its own."""

import math
import random

import pytest

from bench.search import Dimension, Look, Search

PRECISION = Dimension("PRECISION", {"float32": 1.0, "bfloat16": 2.0, "mixed_bfloat16": 1.8})
COMPILE = Dimension("COMPILE", {"0": 1.0, "1": 1.3})
FORMAT = Dimension("MEMORY_FORMAT", {"channels_first": 1.0, "channels_last": 1.2})
ALLOCATOR = Dimension("allocator", {"default": 1.0, "keep": 1.2})
BATCH = Dimension("BATCH_SIZE", {"64": 1.0}, doubles=True)
ALL = (PRECISION, COMPILE, FORMAT, ALLOCATOR, BATCH)
MINUTES = 20


class FakeMachine:
    """Rates of a table, each process lognormally off, and noise within a run. A look takes its own time."""

    def __init__(self, rate, seed=0, noise=0.02, minutes=MINUTES):
        self.rate, self.random, self.noise, self.minutes = rate, random.Random(seed), noise, minutes
        self.seconds, self.asked = 0.0, []

    def look(self, candidate, seconds):
        self.asked.append(candidate)
        self.seconds += 12 + 3 * seconds
        try:
            rate = self.rate(candidate)
        except MemoryError as error:
            return Look(note=str(error))
        rate *= math.exp(self.random.gauss(0, self.noise))
        within = 0.03 / math.sqrt(seconds)
        rate *= math.exp(self.random.gauss(0, within))
        return Look(rate, rate * math.exp(-2 * within), rate * math.exp(2 * within))

    def used(self):
        return self.seconds / (60 * self.minutes)

    def search(self, dimensions=ALL, **options):
        search = Search(dimensions, self.look, self.used, **options)
        search.run()
        return search


def table(seed):
    """Rates of all combinations: gains of each value, gains of each pair of values, and larger batches that pay."""
    draw = random.Random(1000 + seed)
    single = {(i, value): draw.lognormvariate(0.15, 0.25) for i, d in enumerate(ALL) for value in d.values[1:]}
    pairs = {(a, b): draw.lognormvariate(0, 0.1) for a in single for b in single if a[0] < b[0]}
    peak = draw.choice([64, 128, 256])

    def rate(candidate):
        here = [(i, value) for i, value in enumerate(candidate) if (i, value) in single]
        gain = math.prod(single[each] for each in here) * math.prod(
            pairs[a, b] for a in here for b in here if a[0] < b[0]
        )
        batch = int(candidate[-1])
        if batch > 1024:
            raise MemoryError("out of memory")
        return 15 * gain * (1.1 ** math.log2(min(batch, peak) / 64)) * 0.96 ** math.log2(max(batch, peak) / peak)

    return rate


def best_of(rate):
    batches = [str(64 * 2**i) for i in range(5)]
    grid = [()]
    for values in (*(d.values for d in ALL[:-1]), batches):
        grid = [(*some, value) for some in grid for value in values]
    return max(map(rate, grid))


def test_it_finds_the_best_or_one_within_one_percent():
    found = [
        table(seed)(FakeMachine(table(seed), seed).search().leader()) / best_of(table(seed)) for seed in range(100)
    ]
    print(sorted(found)[:12])
    assert sum(each >= 0.99 for each in found) >= 95
