"""Rates: repetitions, ratios, and unknown intervals."""

import math

import pytest

from bench.records.verdict import Rate


@pytest.mark.parametrize("blank", [None, "", math.nan, "nan"])
def test_an_interval_with_an_unknown_end_is_unknown(blank):
    assert Rate.parse("10", "9", blank) == Rate.parse(10, blank, 11) == Rate(10)
    assert Rate.parse("10", "9", 11.0) == Rate(10, 9, 11)


def test_repetitions_are_covered_by_one_interval():
    assert Rate.merge([Rate(10, 9, 11), Rate(12, 8, 13), Rate(11)]) == Rate(11, 8, 13)
    assert Rate.merge([Rate(10), Rate(14)]) == Rate(12, 10, 14)
    assert Rate.merge([Rate(10)]) == Rate(10)


def test_a_ratio_has_the_widest_interval_that_both_allow():
    assert Rate(20, 18, 22).ratio(Rate(10, 9, 11)) == (2, pytest.approx(18 / 11), pytest.approx(22 / 9))
    assert Rate(20, 18, 22).ratio(Rate(10)) == Rate(20).ratio(Rate(10, 9, 11)) == (2, None, None)


def test_rates_without_intervals_cannot_be_told_apart():
    assert Rate(20).overlaps(Rate(10, 9, 11))
    assert Rate(10, 9, 11).overlaps(Rate(12, 10.5, 13))
    assert not Rate(20, 18, 22).overlaps(Rate(10, 9, 11))
