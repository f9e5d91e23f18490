"""Confidence intervals of a series of windows or of processes: pure arithmetic, in the order of measurement."""

import math
import statistics
from itertools import pairwise

MIN_SAMPLES = 6  # the fewest whose range is a 95 % interval of the median: 1 - 2 / 2**6 = 0.969


def median_interval(samples):
    """Return the 95 % confidence interval of the median of successive samples as (low, high), from their order.

    For independent samples it is exact for every distribution: the number of samples below the median is
    Binomial(n, 1/2) (David and Nagaraja, Order Statistics, section 7.1). Successive windows are correlated, so the
    ranks are widened about n/2 by sqrt((1 + rho) / (1 - rho)), the growth of a mean's standard error in a first-order
    autoregression.
    """
    n = len(samples)
    ordered = sorted(samples)
    rho = sign_autocorrelation(samples)
    reach = (n / 2 - (_exact_rank(n) - 1)) * math.sqrt((1 + rho) / (1 - rho))
    low = max(0, math.floor(n / 2 - reach))
    return ordered[low], ordered[n - 1 - low]


def _exact_rank(n):
    """Return the largest 1-based rank l with P(l-th smallest > median) <= 2.5 %, by the binomial sum if n is small."""
    if n > 1000:  # the sum would take up to minutes; the normal distribution has the same rank
        return math.floor((n + 1 - 1.959964 * math.sqrt(n)) / 2)
    rank = ways = below = 1  # `below`: of 2**n outcomes, those with fewer than `rank` samples below the median
    allowed = 2**n // 40
    while True:
        ways = ways * (n - rank + 1) // rank  # comb(n, rank)
        below += ways
        if below > allowed:
            return rank
        rank += 1


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
