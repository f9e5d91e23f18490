"""What limits a machine: the model, the input pipeline, heat, or the way between devices? From rates of equal work."""

import statistics
from dataclasses import dataclass

from bench.rows import columns

OVERLAP = 0.95  # of the slower part, where the two work side by side
BURST_SECONDS = 30  # of a sustained run


@dataclass(frozen=True)
class Rate:
    """Items per second, with the ends of its interval (None: unknown)."""

    throughput: float
    low: float | None = None
    high: float | None = None

    def overlaps(self, other):
        """Whether the two cannot be told apart; without intervals they cannot."""
        if None in (self.low, other.low):
            return True
        return self.low <= other.high and other.low <= self.high


def name_bottleneck(device, pipeline, end_to_end, shares_cores):
    """(name, sentence) of what limits the end-to-end rate.

    Where the model runs on a GPU, the faster part hides behind the slower one, and the slower one limits. Where
    model and workers share the cores, each image costs the time of both: 1 / (1/D + 1/P) is expected.

    Args:
        device, pipeline, end_to_end: Rates of the model on resident batches, of the input pipeline alone, of both.
        shares_cores: the model runs on the CPU, as the pipeline does.

    Returns:
        "device", "input", "overlap" (neither: they do not work side by side) or "undecided", and why.
    """
    d, p, e = (rate.throughput for rate in (device, pipeline, end_to_end))
    alone = f"the model takes {d:,.4g} images/s, the input pipeline prepares {p:,.4g}"
    if device.overlaps(pipeline):
        return "undecided", f"no limit can be named: {alone}, and their intervals overlap or are unknown"
    slower = "device" if d < p else "input"
    words = {"device": "limited by the model", "input": "limited by the input pipeline"}
    if shares_cores:
        together = 1 / (1 / d + 1 / p)
        both = f"sharing the cores, {together:,.4g} are expected of both, and {e:,.4g} were measured"
        return slower, f"{words[slower]}: {alone}, and {both}"
    if e < OVERLAP * min(d, p):
        return "overlap", f"limited by poor overlap: {alone}, and both together reach only {e:,.4g}"
    return slower, f"{words[slower]}: {alone}"


@dataclass(frozen=True)
class Scaled:
    """The same work on so many devices. Efficiency is its rate a device over that of the fewest devices."""

    size: int
    rate: Rate
    efficiency: float
    low: float | None
    high: float | None


def scalings(rows):
    """[(first row, [Scaled])] of each work that was measured on several numbers of devices, the fewest first.

    Args:
        rows: dicts of text, of one machine and version. Repetitions give the median, and what covers their intervals.
    """
    same = [name for name in columns.WORK if name not in ("world_size", "nodes")]
    groups = {}
    for row in rows:
        if row["status"] == "ok" and row["throughput"] and row["scope"] != "sustained":
            by_size = groups.setdefault(tuple(row[name] for name in same), {})
            by_size.setdefault(int(row["world_size"] or 1), []).append(row)
    for by_size in groups.values():
        rates = {size: merge_rates(by_size[size]) for size in sorted(by_size)}
        if len(rates) > 1:
            yield (
                next(iter(by_size.values()))[0],
                [scale(size, rate, *min(rates.items())) for size, rate in rates.items()],
            )


def bus_bandwidth(algorithm_bandwidth, ranks):
    """Of an all-reduce: x 2 (n - 1) / n, what each rank's link has to carry, so that it compares with a link's speed.

    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    return algorithm_bandwidth * 2 * (ranks - 1) / ranks


def merge_rates(rows):
    """The Rate of repetitions."""
    rates = [float(row["throughput"]) for row in rows]
    ends = [float(row[end]) for row in rows for end in ("throughput_low", "throughput_high") if row[end]]
    known = len(ends) == 2 * len(rows)
    return Rate(statistics.median(rates), min(ends) if known else None, max(ends) if known else None)


def scale(size, rate, fewest, first):
    """The Scaled of a Rate, against the Rate `first` of the fewest devices."""
    share = fewest / size
    if size == fewest:
        return Scaled(size, rate, 1.0, None, None)
    known = None not in (rate.low, rate.high, first.low, first.high)
    low, high = (share * rate.low / first.high, share * rate.high / first.low) if known else (None, None)
    return Scaled(size, rate, share * rate.throughput / first.throughput, low, high)


def burst_and_sustained(rows):
    """(items per second in the first half minute, and in the last third) of a sustained run, None where too short.

    Args:
        rows: of one run, (elapsed_seconds, seconds, items) each: time from the run's start to the row's end, time
            in its windows, items in them. A row belongs to where its middle lies.
    """
    total = max(elapsed for elapsed, _, _ in rows)

    def rate(begin, end):
        some = [(seconds, items) for elapsed, seconds, items in rows if begin <= elapsed - seconds / 2 < end]
        return sum(items for _, items in some) / sum(seconds for seconds, _ in some) if some else None

    return rate(0, BURST_SECONDS), rate(total * 2 / 3, total) if total * 2 / 3 >= BURST_SECONDS else None
