"""Rates: ratios, verdicts, and unknown intervals."""

import math

import pytest

from bench.records.verdict import Rate, compare_rates

TEN = Rate(10, 9, 11)


@pytest.mark.parametrize("blank", [None, "", math.nan, "nan"])
def test_an_interval_with_an_unknown_end_is_unknown(blank):
    row = {"throughput": "10", "throughput_low": "9", "throughput_high": blank}
    assert Rate.of_row(row) == Rate(10)
    assert Rate.of_row(row | {"throughput_high": 11.0}) == TEN


@pytest.mark.parametrize(
    ("rate", "verdict"),
    [((20, 18, 22), "faster"), ((5, 4, 6), "slower"), ((10.5, 10, 12), "cannot tell"), ((20,), "cannot tell")],
)
def test_a_verdict_needs_an_interval_on_one_side_of_one(rate, verdict):
    assert compare_rates(Rate(*rate), TEN).verdict == verdict
    assert compare_rates(Rate(10, 9.99, 10.01), Rate(10, 9.99, 10.01)).verdict == "same"


def test_a_ratio_has_the_widest_interval_that_both_allow():
    assert Rate(20, 18, 22).ratio(TEN) == (2, pytest.approx(18 / 11), pytest.approx(22 / 9))
    assert Rate(20, 18, 22).ratio(Rate(10)) == Rate(20).ratio(TEN) == (2, None, None)


@pytest.mark.parametrize(("other", "overlaps"), [((20,), True), ((12, 10.5, 13), True), ((20, 18, 22), False)])
def test_rates_without_intervals_cannot_be_told_apart(other, overlaps):
    assert Rate(*other).overlaps(TEN) == TEN.overlaps(Rate(*other)) == overlaps
