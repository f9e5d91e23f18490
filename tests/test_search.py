"""The search of `make best` on a fake machine: a table of rates, with noise and a clock of its own."""

import itertools
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
        rate *= math.exp(self.random.gauss(0, within if self.noise else 0))
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
    rates = [table(seed) for seed in range(100)]
    found = [rate(FakeMachine(rate, seed).search().leader()) / best_of(rate) for seed, rate in enumerate(rates)]
    assert sum(each >= 0.99 for each in found) >= 95
    assert min(found) > 0.95


def test_a_pair_that_only_helps_together_is_found():
    def rate(candidate):
        compiled, last = candidate[1] == "1", candidate[2] == "channels_last"
        return 10 * (3 if compiled and last else 0.7 if compiled or last else 1)

    for seed in range(20):
        assert FakeMachine(rate, seed).search().leader()[1:3] == ("1", "channels_last")


def test_a_lucky_look_is_repeated_before_its_candidate_leads():
    lucky = ("float32", "0", "channels_last", "default", "64")

    class Lucky(FakeMachine):
        def look(self, candidate, seconds):
            is_first = candidate not in self.asked
            look = super().look(candidate, seconds)
            return Look(20.0, 19.9, 20.1) if candidate == lucky and is_first else look

    for seed in range(20):
        machine = Lucky(lambda candidate: 15 if candidate[0] == "bfloat16" else 10, seed)
        assert machine.search().leader()[0] == "bfloat16"
        assert machine.asked.count(lucky) > 1


def test_what_is_given_up_is_surely_slower_than_the_leader():
    search = FakeMachine(table(3), 3).search()
    given_up = set(search.looks) - set(search.in_question())
    bar, _ = search.interval(search.leader())
    assert given_up
    assert len(search.in_question()) > 1
    assert all(search.interval(each)[1] < bar for each in given_up)
    assert max(len(search.looks[each]) for each in given_up) < max(map(len, search.looks.values()))


def test_the_most_promising_come_first_and_what_the_time_did_not_reach_is_known():
    machine = FakeMachine(table(0), minutes=2)
    search = machine.search()
    promising = ("bfloat16", "1", "channels_last", "keep", "64")
    assert machine.asked[0] == promising
    assert search.untried
    assert search.is_cut_short
    assert not set(search.untried) & set(machine.asked)
    assert machine.used() < 1.5


def test_guesses_that_are_wrong_lose_their_weight():
    machine = FakeMachine(lambda candidate: 1 if candidate[0] == "bfloat16" else 10, minutes=3)
    machine.search()
    assert [each[0] for each in machine.asked].count("bfloat16") <= 4


def test_batches_double_until_memory_ends_or_nothing_is_gained():
    def rate(candidate):
        if int(candidate[-1]) > 256:
            raise MemoryError("out of memory")
        return 10 * math.log2(int(candidate[-1]))

    machine = FakeMachine(rate)
    search = machine.search((BATCH,))
    assert search.leader() == ("256",)
    assert search.looks[("512",)][0].note == "out of memory"
    assert ("1024",) not in machine.asked
    machine = FakeMachine(lambda candidate: 10, noise=0)
    machine.search((BATCH,))
    assert {int(each[0]) for each in machine.asked} == {64, 128, 256}
    assert not search.is_cut_short


def test_what_fails_is_passed_over():
    def rate(candidate):
        if candidate[1] == "1":
            raise MemoryError("no compiler")
        return 10 + (candidate[2] == "channels_last")

    search = FakeMachine(rate).search()
    assert search.leader()[1:3] == ("0", "channels_last")
    assert not any(search.works(each) for each in search.looks if each[1] == "1")
    assert FakeMachine(lambda candidate: rate((0, "1"))).search((COMPILE,)).leader() is None


def test_a_group_has_a_leader_of_its_own():
    gains = {"float32": 1, "bfloat16": 3, "mixed_bfloat16": 2}
    machine = FakeMachine(lambda candidate: gains[candidate[0]] * (1.04 if candidate[2] == "channels_last" else 1))
    is_float32 = lambda candidate: candidate[0] == "float32"  # noqa: E731
    search = machine.search((PRECISION, COMPILE, FORMAT), groups=(lambda candidate: True, is_float32))
    assert (search.leader()[0], search.leader()[2]) == ("bfloat16", "channels_last")
    assert search.leader(is_float32)[2] == "channels_last"
    assert len(search.looks[search.leader(is_float32)]) > 1


def test_a_slower_group_gets_looks_before_the_time_is_over():
    gains = {"float32": 1, "bfloat16": 8, "mixed_bfloat16": 6}
    machine = FakeMachine(
        lambda candidate: gains[candidate[0]] * (2 if candidate[2] == "channels_last" else 1), minutes=3
    )
    is_float32 = lambda candidate: candidate[0] == "float32"  # noqa: E731
    search = machine.search(groups=(lambda candidate: True, is_float32))
    assert search.untried
    assert search.leader()[0] == "bfloat16"
    assert search.leader(is_float32)[2] == "channels_last"


def test_a_look_while_other_programs_ran_counts_little():
    search = Search((COMPILE,), lambda *_: Look(), lambda: 1)
    search.looks = {("0",): [Look(10, 9.9, 10.1)], ("1",): [Look(6, 5.9, 6.1, is_doubtful=True)]}
    assert set(search.in_question()) == {("0",), ("1",)}
    search.looks["1",].append(Look(12, 11.9, 12.1))
    assert search.leader() == ("1",)
    assert search.rate(("1",)) == pytest.approx(12, rel=0.05)


def test_the_way_makes_one_change_at_a_time_the_largest_gain_first():
    gains = {"bfloat16": 2, "1": 1.2, "channels_last": 1.5}
    search = FakeMachine(lambda candidate: math.prod(gains.get(value, 1) for value in candidate), noise=0).search()
    way = search.way(("bfloat16", "1", "channels_last", "default", "128"))
    changed = [[i for i, (a, b) in enumerate(zip(*pair, strict=True)) if a != b] for pair in itertools.pairwise(way)]
    assert changed == [[0], [2], [1], [4]]
    assert search.way(search.default) == [search.default]
