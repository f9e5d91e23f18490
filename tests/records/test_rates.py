"""Rates: ratios, verdicts, and unknown intervals."""

import math

import pytest

from bench.records.verdict import Rate, compare_rates


@pytest.mark.parametrize("blank", [None, "", math.nan, "nan"])
def test_an_interval_with_an_unknown_end_is_unknown(blank):
    assert Rate.parse("10", "9", blank) == Rate.parse(10, blank, 11) == Rate(10)
    assert Rate.parse("10", "9", 11.0) == Rate(10, 9, 11)


def test_a_verdict_needs_an_interval_on_one_side_of_one():
    ten = Rate(10, 9, 11)
    assert compare_rates(Rate(20, 18, 22), ten).verdict == "faster"
    assert compare_rates(Rate(5, 4, 6), ten).verdict == "slower"
    assert compare_rates(Rate(10.5, 10, 12), ten).verdict == compare_rates(Rate(20), ten).verdict == "cannot tell"
    assert compare_rates(Rate(10, 9.99, 10.01), Rate(10, 9.99, 10.01)).verdict == "same"


def test_a_ratio_has_the_widest_interval_that_both_allow():
    assert Rate(20, 18, 22).ratio(Rate(10, 9, 11)) == (2, pytest.approx(18 / 11), pytest.approx(22 / 9))
    assert Rate(20, 18, 22).ratio(Rate(10)) == Rate(20).ratio(Rate(10, 9, 11)) == (2, None, None)


def test_rates_without_intervals_cannot_be_told_apart():
    assert Rate(20).overlaps(Rate(10, 9, 11))
    assert Rate(10, 9, 11).overlaps(Rate(12, 10.5, 13))
    assert not Rate(20, 18, 22).overlaps(Rate(10, 9, 11))
