"""What limits a machine: the model, the input pipeline, or heat? From throughputs of the same work."""

from dataclasses import dataclass

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
