"""The search of `make best` on a fake machine: a table of rates, with noise and a clock of its own."""

import itertools
import math
import random
import statistics

from bench.tune.search import Dimension, Search
from tests.rows import ROW

PRECISION = Dimension("PRECISION", {"float32": 1.0, "bfloat16": 1.8, "mixed_bfloat16": 1.7})
COMPILE = Dimension("COMPILE", {"0": 1.0, "1": 1.3})
FORMAT = Dimension("MEMORY_FORMAT", {"channels_first": 1.0, "channels_last": 1.4})
ALLOCATOR = Dimension("ALLOCATOR", {"": 1.0, "keep": 1.3})
BATCH = Dimension("BATCH_SIZE", {"64": 1.0}, doubles=True)
ROUNDS = 5
ALL = (PRECISION, COMPILE, FORMAT, ALLOCATOR, BATCH)


class FakeMachine:
    """Rates of a table (0: a failure), each process lognormally off. A run takes its own time.

    From process to process the machine's speed changes: by `swing` at most, which is the same for those of a round.
    """

    def __init__(self, rate, seed=0, noise=0.025, minutes=20, swing=1.0):
        self.rate, self.random, self.noise, self.minutes, self.swing = rate, random.Random(seed), noise, minutes, swing
        self.seconds, self.tried, self.asked, self.speeds = 0.0, [], [], random.Random(seed)

    def attempt(self, candidate):
        self.seconds += 17
        self.tried.append(candidate)
        return self.measure(self.rate(candidate), self.speeds.uniform(1 / self.swing, 1))

    def run_rounds(self, path, rounds):
        self.asked.append(path)
        while len(rounds) < ROUNDS and self.used() < 1:
            self.seconds += 27 * len(path)
            speed = self.speeds.uniform(1 / self.swing, 1)
            rounds.append({each: self.measure(self.rate(each, is_full=True), speed) for each in path})

    def measure(self, rate, speed):
        rate *= speed * math.exp(self.random.gauss(0, self.noise))
        return ROW | ({"throughput": rate} if rate else {"status": "failed"})

    def used(self):
        return self.seconds / (60 * self.minutes)

    def search(self, dimensions=ALL):
        search = Search(dimensions, self.attempt, self.run_rounds, self.used)
        search.run()
        return search


def product_of(gains):
    return lambda candidate, is_full=False: 10 * math.prod(gains.get(value, 1) for value in candidate)


def table(seed):
    """Rates of all combinations: gains of each value, gains of each pair of values, and larger batches that pay."""
    draw = random.Random(1000 + seed)
    single = {(i, value): draw.lognormvariate(0.15, 0.25) for i, d in enumerate(ALL) for value in list(d.gains)[1:]}
    pairs = {(a, b): draw.lognormvariate(0, 0.1) for a in single for b in single if a[0] < b[0]}
    peak = draw.choice([64, 128, 256])

    def rate(candidate, is_full=False):
        here = [(i, value) for i, value in enumerate(candidate) if (i, value) in single]
        gain = math.prod(single[each] for each in here)
        gain *= math.prod(pairs[a, b] for a in here for b in here if a[0] < b[0])
        batch = int(candidate[-1])
        if batch > 1024:
            return 0
        return 15 * gain * (1.1 ** math.log2(min(batch, peak) / 64)) * 0.96 ** math.log2(max(batch, peak) / peak)

    return rate


def share_of_best(minutes, seed):
    """What share of the exhaustive grid's best rate the answer reaches."""
    rate = table(seed)
    grid = itertools.product(*(d.gains for d in ALL[:-1]), [str(64 * 2**i) for i in range(5)])
    return rate(FakeMachine(rate, seed, minutes=minutes).search().fastest()) / max(map(rate, grid))


def test_the_answer_is_close_to_the_exhaustive_grid():
    shares = [share_of_best(20, seed) for seed in range(40)]
    assert statistics.mean(shares) > 0.985
    assert statistics.quantiles(shares, n=20)[0] > 0.9


def test_a_change_that_fails_is_tried_once():
    machine = FakeMachine(product_of({"1": 0, "channels_last": 1.5}), noise=0)
    assert machine.search((COMPILE, FORMAT)).fastest() == ("0", "channels_last")
    assert machine.tried.count(("1", "channels_first")) == 1


def test_what_fades_away_in_full_runs_is_not_the_answer():
    def rate(candidate, is_full=False):
        return 10 if candidate == ("0",) else 6 if is_full else 12

    search = FakeMachine(rate, noise=0).search((COMPILE,))
    assert search.path == [("0",), ("1",)]
    assert search.fastest() == ("0",)


def test_the_path_makes_one_change_at_a_time_the_largest_gain_first():
    machine = FakeMachine(product_of({"bfloat16": 2, "1": 1.2, "channels_last": 1.5}), noise=0, minutes=40)
    search = machine.search()
    pairs = itertools.pairwise(search.path)
    assert [[i for i, (a, b) in enumerate(zip(*pair, strict=True)) if a != b] for pair in pairs] == [[0], [2], [1]]
    assert search.fastest() == search.path[-1]
    assert machine.asked == [search.path]


def test_the_path_does_not_end_with_a_change_that_gains_nothing():
    def rate(candidate, is_full=False):
        return {"0": 10, "1": 13}[candidate[0]] * (1 if is_full or candidate[1] == "channels_first" else 1.05)

    search = FakeMachine(rate, noise=0).search((COMPILE, FORMAT))
    assert search.path[-1] == ("1", "channels_last")
    assert search.measured_path() == [("0", "channels_first"), ("1", "channels_first")]


def test_a_machine_whose_speed_changes_does_not_change_the_gains():
    search = FakeMachine(product_of({"1": 1.25}), noise=0.01, swing=3.0).search((COMPILE,))
    assert search.fastest() == ("1",)
    ratio = search.compare(("1",), ("0",)).ratio
    assert 1.2 < ratio.low < 1.25 < ratio.high < 1.3
