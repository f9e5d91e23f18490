"""Rates, and what they show: ratios, bottlenecks, the effect of heat."""

import math
import statistics
from dataclasses import dataclass
from typing import NamedTuple

from bench.records.columns import WORK, format_number
from bench.timing.intervals import median_interval

# Share of the slower part's rate that the end-to-end rate reaches if the two parts work at the same time.
OVERLAP = 0.95
SAME = 0.01  # two rates are the same if the whole interval of their ratio is within this of 1
IN_TFLOPS = ("matmul", "convolution", "attention")  # workloads whose rates are compared in TFLOP/s
ENOUGH_PAIRS = 5  # their range covers the true ratio with a probability of 1 - 2 / 2**5, so fewer get no verdict
BURST_SECONDS = 30  # the beginning of a sustained run


class Rate(NamedTuple):
    """Items per second, or a ratio of two rates, with the ends of its interval (NaN: unknown)."""

    throughput: float
    low: float = math.nan
    high: float = math.nan

    @classmethod
    def of_row(cls, row):
        """Build the Rate of a row, a dict of numbers or text; a blank end is unknown."""
        return cls(*(float(row[name] or "nan") for name in ("throughput", "throughput_low", "throughput_high")))

    def overlaps(self, other):
        """Return whether the two cannot be told apart; without intervals they cannot."""
        return not (self.low > other.high or self.high < other.low)

    def ratio(self, base):
        """Divide by another Rate; the quotient, a Rate, has the widest interval that both allow."""
        return Rate(self.throughput / base.throughput, self.low / base.high, self.high / base.low)


def verdict_of(ratio):
    """Return what the ratio of two Rates shows: "same" is within 1 %, and unknown ends give "cannot tell"."""
    if ratio.low >= 1 / (1 + SAME) and ratio.high <= 1 + SAME:
        return "same"
    return "faster" if ratio.low > 1 else "slower" if ratio.high < 1 else "cannot tell"


@dataclass(frozen=True)
class Comparison:
    """The ratio of two runs' rates."""

    ratio: Rate  # the median of the pairs of processes, and their interval: from nine on, that of their median
    pairs: int
    interleaved: bool  # else the processes of a pair worked one after the other
    differing: list[str]  # columns of work; if there are any, the ratio means nothing


def compare_pairs(pairs, chosen=()):
    """Return the Comparison of pairs of processes, or None if none is complete.

    The ratio of a pair is the median over neighbouring turns; without turns, that of the two rates.

    Args:
        pairs: (rows of a process of the run, rows of one of the run that it is compared with) of each round.
        chosen: columns in which the two may differ.
    """
    ratios = []
    interleaved = True
    differing = []
    for both in pairs:
        row, base = (next(filter(is_main, rows), None) for rows in both)
        if not (row and base):
            continue
        turns = list(zip(row.get("turn_rates", []), base.get("turn_rates", []), strict=False))
        interleaved = interleaved and bool(turns)
        turns = turns or [(row["throughput"], base["throughput"])]
        ratios.append(statistics.median(a / b for a, b in turns))
        differing = [name for name in WORK if name not in chosen and row[name] != base[name]]
    if not ratios:
        return None
    interval = median_interval(ratios, rho=0)
    return Comparison(Rate(statistics.median(ratios), *interval), len(ratios), interleaved, differing)


def is_main(row):
    """Return whether a row is a rate of the scope device; the first such row of a process is compared."""
    return row["status"] == "ok" and row["scope"] == "device"


def name_bottleneck(device, pipeline, end_to_end, shares_cores):
    """Name what limits the end-to-end rate: (name, sentence).

    If the model runs on a GPU, the faster part is hidden behind the slower one, which limits. If model and workers
    share the cores, each image costs the time of both: 1 / (1/D + 1/P) is expected.

    Args:
        device, pipeline, end_to_end: Rates of the model on resident batches, of the input pipeline, of both together.
        shares_cores: the model runs on the CPU, as the pipeline does.

    Returns:
        "device", "input", "overlap" (neither: they do not work at the same time) or "undecided", and why.
    """
    d, p, e = (rate.throughput for rate in (device, pipeline, end_to_end))
    parts = f"the model processes {format_number(d)} images/s, the input pipeline prepares {format_number(p)}"
    if device.overlaps(pipeline):
        return "undecided", f"no limit can be named: {parts}, and their intervals overlap or are unknown"
    if end_to_end.low > min(device, pipeline).high:  # such as page faults, which differ from process to process
        why = f"both together reach {format_number(e)}, so something slowed the part that was measured by itself"
        return "undecided", f"no limit can be named: {parts}, and {why}"
    slower = "device" if d < p else "input"
    words = {"device": "limited by the model", "input": "limited by the input pipeline"}
    if shares_cores:
        together = 1 / (1 / d + 1 / p)
        both = f"both share the cores, so {format_number(together)} are expected and {format_number(e)} were measured"
        return slower, f"{words[slower]}: {parts}, and {both}"
    if max(e, end_to_end.high) < OVERLAP * min(d, p):  # NaN: unknown
        return "overlap", f"limited by poor overlap: {parts}, and both together reach only {format_number(e)}"
    return slower, f"{words[slower]}: {parts}"


def burst_and_sustained(rows):
    """Return (items per second in the first half minute, in the last third) of a sustained run, None if too short.

    Args:
        rows: (elapsed_seconds, seconds, items) of each row of one run: time from the run's start to the row's end,
            time in its windows, items in them. A row belongs to the part that its middle is in.
    """
    total = max(elapsed for elapsed, _, _ in rows)

    def rate(begin, end):
        some = [(seconds, items) for elapsed, seconds, items in rows if begin <= elapsed - seconds / 2 < end]
        return sum(items for _, items in some) / sum(seconds for seconds, _ in some) if some else None

    return rate(0, BURST_SECONDS), rate(total * 2 / 3, total) if total * 2 / 3 >= BURST_SECONDS else None
