"""Confidence intervals of a series of windows or of processes: pure arithmetic, in the order of measurement."""

import math
import statistics
from itertools import pairwise

ENOUGH_SAMPLES = 20  # for an interval from their order; the range of fewer is wider
MIN_SAMPLES = 6  # the fewest whose range is a 95 % interval of the median: 1 - 2 / 2**6 = 0.969
NORMAL_QUANTILE = 1.959964  # 97.5 %


def median_interval(samples):
    """Return the 95 % confidence interval of the median of successive samples as (low, high), from their order.

    It is the range of fewer than ENOUGH_SAMPLES, and (None, None) of a single one.

    For independent samples it holds for every distribution: the number of samples below the median is Binomial(n, 1/2)
    (David and Nagaraja, Order Statistics, section 7.1). Its normal approximation gives the same ranks as the binomial
    sum, or for 13 of the n from 6 to 1,000 ranks that are wider by one. Successive windows are correlated, so the ranks
    are widened about n/2 by sqrt((1 + rho) / (1 - rho)), the growth of a mean's standard error in a first-order
    autoregression.
    """
    n = len(samples)
    if n < ENOUGH_SAMPLES:
        return (min(samples), max(samples)) if n > 1 else (None, None)
    ordered = sorted(samples)
    rho = sign_autocorrelation(samples)
    reach = (1 + NORMAL_QUANTILE * math.sqrt(n)) / 2 * math.sqrt((1 + rho) / (1 - rho))
    low = max(0, math.floor(n / 2 - reach))
    return ordered[low], ordered[n - 1 - low]


def sign_autocorrelation(samples):
    """Return the lag-one autocorrelation within [0, 0.8], from signs about the median: outliers do not change it.

    For Gaussian series a correlation r of the signs means rho = sin(pi r / 2).
    """
    middle = statistics.median(samples)
    signs = [(x > middle) - (x < middle) for x in samples]
    nonzero = sum(map(abs, signs))
    if not nonzero:
        return 0.0
    r = sum(a * b for a, b in pairwise(signs)) / nonzero
    return min(0.8, max(0.0, math.sin(math.pi * r / 2)))


def p95(step_seconds):
    """Return the 95th percentile of single steps; None below 59 steps, of which even the largest may be smaller."""
    if len(step_seconds) < 59:
        return None
    return sorted(step_seconds)[math.ceil(0.95 * len(step_seconds)) - 1]
