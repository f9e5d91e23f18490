"""The search of `make best` on a fake machine: a table of rates, with noise and a clock of its own."""

import itertools
import math
import random

import pytest

from bench.tune.search import Dimension, Search, Trial

PRECISION = Dimension("PRECISION", {"float32": 1.0, "bfloat16": 1.8, "mixed_bfloat16": 1.7})
COMPILE = Dimension("COMPILE", {"0": 1.0, "1": 1.3})
FORMAT = Dimension("MEMORY_FORMAT", {"channels_first": 1.0, "channels_last": 1.4})
ALLOCATOR = Dimension("ALLOCATOR", {"": 1.0, "keep": 1.3})
BATCH = Dimension("BATCH_SIZE", {"64": 1.0}, doubles=True)
ALL = (PRECISION, COMPILE, FORMAT, ALLOCATOR, BATCH)
FULL_SECONDS = 10


class FakeMachine:
    """Rates of a table, each process lognormally off, and noise within a run. A run takes its own time."""

    def __init__(self, rate, seed=0, noise=0.02, minutes=20):
        self.rate, self.random, self.noise, self.minutes = rate, random.Random(seed), noise, minutes
        self.seconds, self.asked = 0.0, []

    def attempt(self, candidate, seconds, step):
        self.asked.append(candidate)
        seconds = seconds or FULL_SECONDS
        self.seconds += 12 + 1.5 * seconds
        try:
            rate = self.rate(candidate)
        except MemoryError as error:
            return Trial(note=str(error), step=step)
        within = 1.5 * self.noise / math.sqrt(seconds)
        rate *= math.exp(self.random.gauss(0, self.noise) + self.random.gauss(0, within))
        return Trial(rate, rate * math.exp(-2 * within), rate * math.exp(2 * within), step=step)

    def used(self):
        return self.seconds / (60 * self.minutes)

    def search(self, dimensions=ALL, **options):
        search = Search(dimensions, self.attempt, self.used, **options)
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
        gain = math.prod(single[each] for each in here)
        gain *= math.prod(pairs[a, b] for a in here for b in here if a[0] < b[0])
        batch = int(candidate[-1])
        if batch > 1024:
            raise MemoryError("out of memory")
        return 15 * gain * (1.1 ** math.log2(min(batch, peak) / 64)) * 0.96 ** math.log2(max(batch, peak) / peak)

    return rate


def best_of(rate, precisions=PRECISION.values):
    """The highest rate of the exhaustive grid."""
    values = [precisions, *(d.values for d in ALL[1:-1]), [str(64 * 2**i) for i in range(5)]]
    return max(map(rate, itertools.product(*values)))


def shares(minutes, seeds):
    """What share of the exhaustive grid's best rate the answer reaches, and the one in float32, for each seed."""
    for seed in range(seeds):
        rate = table(seed)
        fastest, float32 = FakeMachine(rate, seed, minutes=minutes).search().answers()
        yield rate(fastest) / best_of(rate), rate(float32) / best_of(rate, ["float32"])


def test_the_answer_is_within_one_percent_of_the_exhaustive_grid():
    fastest, float32 = zip(*shares(minutes=20, seeds=40), strict=True)
    assert sum(each >= 0.99 for each in fastest) >= 34
    assert sum(each >= 0.97 for each in fastest) >= 39
    assert min(fastest) > 0.95
    assert sum(each >= 0.97 for each in float32) >= 36


def test_half_the_time_costs_little():
    fastest, _ = zip(*shares(minutes=10, seeds=20), strict=True)
    assert sum(each >= 0.97 for each in fastest) >= 16


def test_a_pair_that_only_helps_together_is_found():
    def rate(candidate):
        pair = (candidate[1] == "1") + (candidate[3] == "keep")
        return (10, 8, 16)[pair]

    fastest, _ = FakeMachine(rate).search().answers()
    assert (fastest[1], fastest[3]) == ("1", "keep")


def test_a_lucky_trial_is_repeated_and_loses():
    lucky = ("mixed_bfloat16", "1", "channels_first", "", "64")

    class Lucky(FakeMachine):
        def attempt(self, candidate, seconds, step):
            is_first = candidate not in self.asked
            trial = super().attempt(candidate, seconds, step)
            return Trial(20.0, 19.9, 20.1, step=step) if candidate == lucky and is_first else trial

    for seed in range(6):
        machine = Lucky(lambda candidate: 15 if candidate[0] == "bfloat16" else 10, seed)
        fastest, _ = machine.search().answers()
        assert fastest[0] == "bfloat16"
        assert machine.asked.count(lucky) > 1


def test_the_most_promising_come_early_and_the_untried_are_known():
    machine = FakeMachine(table(0), minutes=4)
    search = machine.search()
    assert machine.asked[0] == search.default
    assert ("bfloat16", "1", "channels_last", "keep", "64") in machine.asked[:4]
    assert search.untried()
    assert not set(search.untried()) & set(machine.asked)
    assert machine.used() < 1.25


def test_batches_double_until_memory_ends_or_nothing_is_gained():
    def rate(candidate):
        if int(candidate[-1]) > 256:
            raise MemoryError("out of memory")
        return 10 * math.log2(int(candidate[-1]))

    search = FakeMachine(rate).search((BATCH,))
    assert search.answers()[0] == ("256",)
    assert search.trials[("512",)][0].note == "out of memory"
    assert not search.works(("512",))
    machine = FakeMachine(lambda candidate: 10, noise=0)
    machine.search((BATCH,))
    assert set(machine.asked) == {("64",), ("128",)}


def test_late_values_are_only_tried_next_to_the_leaders():
    modes = Dimension("COMPILE", {"0": 1.0, "1": 1.3, "max-autotune": 1.4}, late=("max-autotune",))
    gains = {"float32": 1, "bfloat16": 3, "mixed_bfloat16": 2, "0": 1, "1": 1.2, "max-autotune": 1.5}
    machine = FakeMachine(lambda candidate: gains[candidate[0]] * gains[candidate[1]])
    search = machine.search((PRECISION, modes))
    first_late = next(i for i, each in enumerate(machine.asked) if each[1] == "max-autotune")
    assert set(machine.asked[:first_late]) == set(itertools.product(PRECISION.values, ("0", "1")))
    assert search.answers()[0] == ("bfloat16", "max-autotune")
    assert not search.untried()


def test_impossible_combinations_are_not_tried():
    machine = FakeMachine(table(1))
    search = machine.search(is_possible=lambda candidate: candidate[:2] != ("bfloat16", "1"))
    assert not any(each[:2] == ("bfloat16", "1") for each in machine.asked)
    assert not any(each[:2] == ("bfloat16", "1") for each in search.untried())


def test_failures_are_passed_over():
    def rate(candidate):
        if candidate[1] == "1":
            raise MemoryError("no compiler")
        return 10 + (candidate[2] == "channels_last")

    search = FakeMachine(rate).search()
    assert search.answers()[0][1:3] == ("0", "channels_last")
    assert not any(search.works(each) for each in search.trials if each[1] == "1")
    nothing = FakeMachine(lambda candidate: rate((0, "1"))).search((COMPILE,))
    assert nothing.answers() == (None, None)
    assert not nothing.steps


def test_float32_has_an_answer_of_its_own_even_if_it_is_far_slower():
    gains = {"float32": 1, "bfloat16": 8, "mixed_bfloat16": 6, "channels_last": 2}
    machine = FakeMachine(lambda candidate: gains[candidate[0]] * gains.get(candidate[2], 1), minutes=5)
    search = machine.search()
    assert search.untried()
    fastest, float32 = search.answers()
    assert (fastest[0], float32[0], float32[2]) == ("bfloat16", "float32", "channels_last")


def test_a_contended_trial_is_repeated_and_counts_only_without_others():
    class Contended(FakeMachine):
        def attempt(self, candidate, seconds, step):
            slow = candidate == ("1",) and candidate not in self.asked
            trial = super().attempt(candidate, seconds, step)
            return Trial(3.0, 2.9, 3.1, is_contended=True) if slow else trial

    search = Contended(lambda candidate: 12 if candidate == ("1",) else 10).search((COMPILE,))
    assert search.answers()[0] == ("1",)
    assert search.rate(("1",)) == pytest.approx(12, rel=0.1)


def test_a_candidate_that_is_slower_than_the_default_in_full_runs_is_not_the_answer():
    class FadesAway(FakeMachine):
        def attempt(self, candidate, seconds, step):
            rate = 10 if candidate == ("0",) else 12 if seconds else 6
            self.seconds += 60
            return Trial(rate, rate - 1, rate + 1, step=step)

    search = FadesAway(None, minutes=6).search((COMPILE,))
    assert search.full_runs(("1",))
    assert search.answers()[0] == ("0",)


def test_the_path_makes_one_change_at_a_time_the_largest_gain_first():
    gains = {"bfloat16": 2, "1": 1.2, "channels_last": 1.5}
    search = FakeMachine(lambda candidate: math.prod(gains.get(value, 1) for value in candidate), noise=0).search()
    path = search.path(("bfloat16", "1", "channels_last", "", "128"))
    changed = [[i for i, (a, b) in enumerate(zip(*pair, strict=True)) if a != b] for pair in itertools.pairwise(path)]
    assert changed == [[0], [2], [1], [4]]
    assert search.path(search.default) == [search.default]
