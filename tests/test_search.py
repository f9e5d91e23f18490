"""The search of `make best` on a fake machine: a table of rates, with noise and a clock of its own."""

import itertools
import math
import random
import statistics

from bench.search import Search
from tests.rows import ROW

ALL = {
    "PRECISION": ["float32", "bfloat16", "mixed_bfloat16"],
    "COMPILE": ["0", "1"],
    "MEMORY_FORMAT": ["channels_first", "channels_last"],
    "NUM_THREADS": ["2", "4"],
    "BATCH_SIZE": ["64"],
}
SWITCHES = {"COMPILE": ["0", "1"], "MEMORY_FORMAT": ["channels_first", "channels_last"]}


class FakeMachine:
    """Rates of a table (0: a failure), each process lognormally off. A process takes 17 seconds.

    From round to round the machine's speed changes, by `swing` at most.
    """

    def __init__(self, rate, seed=0, noise=0.025, minutes=20, swing=1.0):
        self.rate, self.random, self.noise, self.minutes, self.swing = rate, random.Random(seed), noise, minutes, swing
        self.seconds, self.asked = 0, []

    def measure(self, candidates, numbers, is_final, choose):
        self.asked.append(candidates)
        for number in numbers:
            self.seconds += 17 * len(candidates)
            speed = self.random.uniform(1 / self.swing, 1)
            rows_of = {each: [self.measure_one(each, speed) | {"process": number}] for each in candidates}
            yield rows_of
            candidates = choose(rows_of)
            if not candidates:
                return

    def measure_one(self, candidate, speed):
        rate = self.rate(candidate) * speed * math.exp(self.random.gauss(0, self.noise))
        return ROW | {"group": "best-1"} | ({"throughput": rate} if rate else {"status": "failed"})

    def search(self, values, doubles=False):
        search = Search(values, doubles, self.measure, lambda: self.seconds / (60 * self.minutes))
        search.run()
        return search


def product_of(gains):
    return lambda candidate: 10 * math.prod(gains.get(value, 1) for value in candidate)


def table(seed):
    """Rates of all combinations: gains of each value, gains of each pair of values, and larger batches that pay."""
    draw = random.Random(1000 + seed)
    single = {(i, value): draw.lognormvariate(0.15, 0.25) for i, d in enumerate(ALL.values()) for value in d[1:]}
    pairs = {(a, b): draw.lognormvariate(0, 0.1) for a in single for b in single if a[0] < b[0]}
    peak = draw.choice([64, 128, 256])

    def rate(candidate):
        here = [(i, value) for i, value in enumerate(candidate) if (i, value) in single]
        gain = math.prod(single[each] for each in here)
        gain *= math.prod(pairs[a, b] for a in here for b in here if a[0] < b[0])
        batch = int(candidate[-1])
        if batch > 1024:
            return 0
        return 15 * gain * (1.1 ** math.log2(min(batch, peak) / 64)) * 0.96 ** math.log2(max(batch, peak) / peak)

    return rate


def share_of_best(seed):
    """What share of the exhaustive grid's best rate the answer reaches in 20 minutes."""
    rate = table(seed)
    grid = itertools.product(*list(ALL.values())[:-1], [str(64 * 2**i) for i in range(5)])
    return rate(FakeMachine(rate, seed).search(ALL, doubles=True).answer()[-1]) / max(map(rate, grid))


def test_the_answer_is_close_to_the_exhaustive_grid():
    shares = [share_of_best(seed) for seed in range(200)]
    assert statistics.mean(shares) > 0.98
    assert statistics.quantiles(shares, n=20)[0] > 0.9


def test_the_default_is_the_answer_if_nothing_gains():
    answers = [FakeMachine(product_of({}), seed).search(ALL, doubles=True).answer() for seed in range(200)]
    assert sum(len(path) == 1 for path in answers) >= 0.95 * len(answers)


def test_each_step_makes_one_change_the_largest_gain_first():
    machine = FakeMachine(product_of({"bfloat16": 2, "1": 1.2, "channels_last": 1.5}), noise=0, minutes=40)
    path = machine.search(ALL, doubles=True).answer()
    pairs = itertools.pairwise(path)
    assert [[i for i, (a, b) in enumerate(zip(*pair, strict=True)) if a != b] for pair in pairs] == [[0], [2], [1]]
    assert machine.asked[-1] == [path[0], path[-1]]


def test_values_that_failed_or_were_replaced_are_not_measured_again():
    machine = FakeMachine(product_of({"1": 0, "channels_last": 1.5}), noise=0)
    search = machine.search(SWITCHES)
    assert search.answer()[-1] == ("0", "channels_last")
    assert list(search.failures()) == [("1", "channels_first")]
    assert machine.asked == [[("0", "channels_first"), *search.failures(), search.path[-1]], search.path]


def test_a_change_that_is_slower_is_not_repeated():
    search = FakeMachine(product_of({"1": 0.9, "channels_last": 1.5}), noise=0).search(SWITCHES)
    assert sum(("1", "channels_first") in rows_of for rows_of in search.rounds) == 1


def test_a_change_that_gains_less_than_two_percent_is_not_kept():
    gains = {"1": 1.019, "channels_last": 1.021}
    assert FakeMachine(product_of(gains), noise=0).search(SWITCHES).answer()[-1] == ("0", "channels_last")


def test_the_batch_size_is_doubled_while_two_doublings_gain():
    def rate(candidate):
        return {16: 10, 32: 10.1, 64: 12, 128: 11.9, 256: 12.1}.get(int(candidate[0]), 0)

    search = FakeMachine(rate, noise=0).search({"BATCH_SIZE": ["16"]}, doubles=True)
    assert search.path == [("16",), ("64",)]
    assert search.list_changes() == []
    assert {size for rows_of in search.rounds for (size,) in rows_of} == {"16", "32", "64", "128", "256"}


def test_what_gains_only_before_the_last_comparison_is_not_the_answer():
    machine = FakeMachine(lambda candidate: 10, noise=0)
    machine.rate = lambda candidate: 12 if candidate == ("1",) and len(machine.asked) == 1 else 10
    search = machine.search({"COMPILE": ["0", "1"]})
    assert (search.path, search.answer()) == ([("0",), ("1",)], [("0",)])


def test_no_change_begins_after_most_of_the_time():
    machine = FakeMachine(product_of({"bfloat16": 2}), noise=0, minutes=4)  # a process takes 17 seconds
    search = machine.search(ALL, doubles=True)
    assert len(machine.asked) == 3
    assert len(search.final) == 5  # the answer is compared five times, however late it is
    assert search.answer()[-1][0] == "bfloat16"
    assert search.list_changes()


def test_a_machine_whose_speed_changes_does_not_change_the_gains():
    search = FakeMachine(product_of({"1": 1.25}), noise=0.01, swing=3.0).search({"COMPILE": ["0", "1"]})
    assert search.answer()[-1] == ("1",)
