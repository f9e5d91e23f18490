"""The interval of the median covers it as often as promised, also where windows are correlated."""

import random

import pytest

from bench.timing.intervals import _exact_rank, median_interval, p95


def test_p95_needs_59_single_steps():
    assert p95([1.0] * 58) is None
    assert p95([1.0] * 57 + [9.0] * 2) == 1.0
    assert p95(list(range(1, 101))) == 95


def series(rng, rho, n):
    """A Gaussian first-order autoregression with median 100."""
    x = rng.gauss(0, 1)
    for _ in range(n):
        x = rho * x + (1 - rho * rho) ** 0.5 * rng.gauss(0, 1)
        yield 100 + x


@pytest.mark.parametrize(("rho", "n", "least"), [(0, 6, 0.94), (0, 60, 0.94), (0.6, 60, 0.92)])
def test_the_interval_covers_the_median_as_often_as_it_says(rho, n, least):
    rng = random.Random(1)
    covered = 0
    for _ in range(2000):
        low, high = median_interval(list(series(rng, rho, n)))
        covered += low <= 100 <= high
    assert covered / 2000 >= least


@pytest.mark.parametrize(("count", "ends"), [(8, (1, 8)), (9, (2, 8)), (20, (6, 15))])
def test_the_extreme_ones_of_nine_or_more_samples_are_left_out(count, ends):
    samples = range(1, count + 1)
    zigzag = [each for pair in zip(samples, reversed(samples), strict=True) for each in pair][:count]  # uncorrelated
    assert median_interval(zigzag) == ends


def test_the_rank_of_many_samples_goes_on_where_the_exact_one_ends():
    assert [_exact_rank(count) for count in (998, 999, 1000, 1001, 1002)] == [468, 469, 469, 469, 470]
    assert _exact_rank(3_000_000) == pytest.approx(1.5e6 - 1697, abs=1)
