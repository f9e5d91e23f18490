"""What limits a machine: the model, or the input pipeline? From three throughputs of the same work."""

from dataclasses import dataclass

OVERLAP = 0.95  # of the slower part, where the two work side by side


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

    Where model and workers have hardware of their own, a good loader hides the faster part: the slower one
    limits. Where they share the cores each image costs the time of both, so that 1 / (1/D + 1/P) is expected.

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
