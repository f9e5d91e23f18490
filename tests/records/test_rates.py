"""Rates: ratios, verdicts, and unknown intervals."""

import math

import pytest

from bench.records.verdict import Rate, compare_rates, name_bottleneck

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


@pytest.mark.parametrize(
    ("device", "pipeline", "both", "shares_cores", "name"),
    [
        ((11, 10.9, 11.1), (5, 4.9, 5.1), (4.9, 4.8, 5), False, "input"),
        ((11, 10.9, 11.1), (100, 99, 101), (10.9, 10.8, 11), False, "device"),
        ((11, 10.9, 11.1), (10, 9.9, 10.1), (5.3, 5.2, 5.4), False, "overlap"),
        ((100, 99, 101), (300, 290, 310), (76, 75, 77), True, "device"),  # are expected on one CPU
        ((100, 95, 105), (104, 102, 106), (99, 98, 100), False, "undecided"),
        ((100,), (300, 290, 310), (99, 98, 100), False, "undecided"),  # an interval is unknown
    ],
)
def test_the_part_that_limits_a_pipeline_needs_a_clear_difference(device, pipeline, both, shares_cores, name):
    assert name_bottleneck(Rate(*device), Rate(*pipeline), Rate(*both), shares_cores)[0] == name
