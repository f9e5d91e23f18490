"""What a row or a result is worth, and what rates show: ratios and bottlenecks."""

import math
import re
import statistics
from dataclasses import dataclass
from typing import NamedTuple

from bench.records.columns import DISTURBING, WORK, format_number

SAME = 0.01  # two rates are the same if the whole interval of their ratio is within this of 1
IN_TFLOPS = ("matmul", "convolution")  # workloads whose rates are compared in TFLOP/s
SCOPES = ("epoch", "device", "sustained", "end_to_end", "input", "")  # the first one that a run has is compared
ENOUGH = 3  # processes; a result of fewer is a quick check
ENOUGH_PAIRS = 5  # their range covers the true ratio with a probability of 1 - 2 / 2**5, so fewer get no verdict


class Rate(NamedTuple):
    """Items per second, or a ratio of two rates, with the ends of its interval (NaN: unknown)."""

    throughput: float
    low: float = math.nan
    high: float = math.nan

    def ratio(self, base):
        """Divide by another Rate; the quotient, a Rate, has the widest interval that both allow."""
        return Rate(self.throughput / base.throughput, self.low / base.high, self.high / base.low)


def ratio_of(result, base):
    """Return the Rate of a result over that of another one of the same work, two dicts of tables.combine().

    It is None if either is disturbed or has no rate. It has an interval only if both are sound, and own; what these
    words mean is said in tables.join_processes().
    """
    results = result, base
    if not all(each["undisturbed"] and (each["value"] or 0) > 0 for each in results):
        return None
    is_clear = all(each["sound"] and not each["published"] for each in results)
    names = ["value", "low", "high"] if is_clear else ["value"]
    rate, divisor = (Rate(*map(each.get, names)) for each in results)
    return rate.ratio(divisor)


def verdict_of(ratio):
    """Return what the ratio of two Rates shows: "same" is within 1 %, and unknown ends give "cannot tell"."""
    if ratio.low >= 1 / (1 + SAME) and ratio.high <= 1 + SAME:
        return "same"
    return "faster" if ratio.low > 1 else "slower" if ratio.high < 1 else "cannot tell"


def name_bottleneck(device, pipeline, end_to_end):
    """Name the slower part of a pipeline, "device" or "input", or "undecided" if intervals overlap; and in a sentence.

    If the model runs on a GPU, the faster part is hidden behind the slower one. If model and workers share the cores,
    each image costs the time of both: 1 / (1/D + 1/P) is expected.

    Args:
        device, pipeline, end_to_end: results of the model on resident batches, of the input pipeline, of both together.
    """
    slower, faster = sorted([device, pipeline], key=lambda row: row["throughput"])
    name, words, other = ("device", "the model", "pipeline") if slower is device else ("input", "the pipeline", "model")
    if not slower["throughput_high"] < faster["throughput_low"]:  # or an end is unknown
        name, words = "undecided", f"undecided, {words} or the {other}"
    rates = [row["throughput"] for row in (slower, faster, end_to_end)]
    slow, fast, both = map(format_number, rates)
    expected = format_number(1 / (1 / rates[0] + 1 / rates[1]))
    together = f"together {both}, expected {expected}" if device["device"] == "cpu" else f"together {both}"
    return name, f"bottleneck: {words} ({slow} images/s; {other} by itself {fast}; {together})"


@dataclass(frozen=True)
class Comparison:
    """The ratio of two runs' rates."""

    ratio: Rate  # the median of the pairs of processes, and their range
    pairs: int
    differing: list[str]  # columns of work; if there are any, the ratio means nothing
    in_slices: bool = False  # the pairs are those of neighbouring slices


def rank(row):
    """Return the place of a row among those of its run: the first one, if it has epochs the last one, is compared."""
    return SCOPES.index(row["scope"]), -int(row["epoch"] or 0)


def compare_runs(rows, base_rows, chosen=()):
    """Return the Comparison of a run with another one; None if no pair of processes is complete and undisturbed.

    A pair are two processes with the same number in the same group. Its ratio is the median of those of their i-th
    slices, both of which are disturbed alike; without slices, that of the two rates.

    Args:
        rows, base_rows: those of each run, dicts, of any quantities.
        chosen: columns or settings in which the two may differ; USE_GPU: in the device.
    """
    first = min((rank(row) for row in (*rows, *base_rows) if row["status"] == "ok"), default=None)
    ours, bases = (
        {(row["group"], row["process"]): row for row in some if row["status"] == "ok" and rank(row) == first}
        for some in (rows, base_rows)
    )
    pairs = [(ours[key], bases[key]) for key in ours if key in bases and all(key)]
    ratios = []
    for row, base in pairs:
        rates = [(row["throughput"], base["throughput"])]
        if row["stop_reason"] == base["stop_reason"] == "slices":
            rates = zip(read_rates(row), read_rates(base), strict=False)
        elif re.search(DISTURBING, f"{row['flags']} {base['flags']}"):
            continue
        ratios.append(statistics.median(ours / theirs for ours, theirs in rates))
    if not ratios:
        return None
    allowed = {name.lower().replace("use_gpu", "device") for name in chosen}
    if "framework" in allowed:
        allowed.add("memory_format")  # each has its own
    differing = [name for name in (*WORK, "device") if any(row[name] != base[name] for row, base in pairs)]
    in_slices = all(row["stop_reason"] == "slices" for pair in pairs for row in pair)
    ratio = Rate(statistics.median(ratios), min(ratios), max(ratios))
    return Comparison(ratio, len(ratios), [name for name in differing if name not in allowed], in_slices)


def read_rates(row):
    """Return the rates of a row's windows, of its slices, or of the parts of a sustained run; [] without any."""
    return [float(rate) for rate in (row["rates"] or "").split()]
