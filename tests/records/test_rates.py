"""Rates: repetitions, ratios, and unknown intervals."""

import math
import random

import pytest

from bench.records.verdict import Rate, compare_rates
from bench.timing.intervals import coverage


@pytest.mark.parametrize("blank", [None, "", math.nan, "nan"])
def test_an_interval_with_an_unknown_end_is_unknown(blank):
    assert Rate.parse("10", "9", blank) == Rate.parse(10, blank, 11) == Rate(10)
    assert Rate.parse("10", "9", 11.0) == Rate(10, 9, 11)


def test_processes_give_their_median_and_range_and_what_differs_within_them():
    assert Rate.merge([Rate(10, 9, 11), Rate(14, 13, 16), Rate(11, 8, 12)]) == Rate(11, 8, 16)
    assert Rate.merge([Rate(10, 9, 12), Rate(14), Rate(11)]) == Rate(11, 9, 14)
    assert Rate.merge([Rate(10), Rate(14)]) == Rate(12, 10, 14)
    assert Rate.merge([Rate(10, 9, 12)]) == Rate(10, 9, 12)
    assert Rate.merge([Rate(10)]) == Rate(10)


def test_many_processes_leave_out_their_extremes():
    assert Rate.merge([Rate(x) for x in (10, 13, 10, 14, 1, 99, 11, 13, 12)]) == Rate(12, 10, 14)


def test_the_range_of_five_processes_covers_the_median_as_often_as_it_says():
    rng, covered = random.Random(5), 0
    for _ in range(4000):  # two levels, as processes have
        merged = Rate.merge([Rate(rng.choice([100, 100, 100, 60]) * rng.gauss(1, 0.05)) for _ in range(5)])
        covered += merged.low <= 97.3 <= merged.high  # the median of this mixture
    assert covered / 4000 == pytest.approx(coverage(5), abs=0.015)


def test_a_verdict_needs_an_interval_on_one_side_of_one():
    ten = Rate(10, 9, 11)
    assert compare_rates(Rate(20, 18, 22), ten).verdict == "faster"
    assert compare_rates(Rate(5, 4, 6), ten).verdict == "slower"
    assert compare_rates(Rate(10.5, 10, 12), ten).verdict == compare_rates(Rate(20), ten).verdict == "cannot tell"
    assert compare_rates(Rate(10, 9.99, 10.01), Rate(10, 9.99, 10.01)).verdict == "same"


def test_what_the_machine_explains_is_not_a_verdict():
    half, ten = Rate(5, 4.9, 5.1), Rate(10, 9.9, 10.1)
    assert compare_rates(half, ten, speed=0.5).verdict == "cannot tell"
    assert compare_rates(half, ten, speed=0.8).verdict == "slower"
    assert compare_rates(ten, half, speed=2.1).verdict == "cannot tell"
    assert compare_rates(half, ten, speed=0.8) == (
        0.5,
        pytest.approx(4.9 / 10.1),
        pytest.approx(5.1 / 9.9 / 0.8),
        "slower",
    )


def test_a_ratio_has_the_widest_interval_that_both_allow():
    assert Rate(20, 18, 22).ratio(Rate(10, 9, 11)) == (2, pytest.approx(18 / 11), pytest.approx(22 / 9))
    assert Rate(20, 18, 22).ratio(Rate(10)) == Rate(20).ratio(Rate(10, 9, 11)) == (2, None, None)


def test_rates_without_intervals_cannot_be_told_apart():
    assert Rate(20).overlaps(Rate(10, 9, 11))
    assert Rate(10, 9, 11).overlaps(Rate(12, 10.5, 13))
    assert not Rate(20, 18, 22).overlaps(Rate(10, 9, 11))
