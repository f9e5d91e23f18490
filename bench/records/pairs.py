"""Compare runs whose processes worked in turn: what disturbs a machine lasts longer than a turn, and disturbs both."""

import statistics
from dataclasses import dataclass

from bench.records.verdict import Rate

ENOUGH_PAIRS = 5  # their range covers the true ratio with a probability of 1 - 2 / 2**5, so fewer get no verdict


@dataclass(frozen=True)
class Comparison:
    """By what factor one run is faster than another one."""

    ratio: Rate  # the median of the pairs of processes, and their range
    pairs: int
    in_turn: bool  # else the processes of a pair worked one after the other


def compare_pairs(pairs):
    """Return the Comparison of pairs of processes, or None if none is complete.

    The ratio of a pair is the median over neighbouring turns; without turns, that of the two rates.

    Args:
        pairs: (rows of a process of the run, rows of one of the run that it is compared with) of each round.
    """
    ratios = []
    in_turn = True
    for both in pairs:
        first, second = (next(filter(is_main, rows), None) for rows in both)
        if not (first and second):
            continue
        turns = list(zip(first.get("turn_rates", []), second.get("turn_rates", []), strict=False))
        in_turn = in_turn and bool(turns)
        turns = turns or [(first["throughput"], second["throughput"])]
        ratios.append(statistics.median(a / b for a, b in turns))
    if not ratios:
        return None
    return Comparison(Rate(statistics.median(ratios), min(ratios), max(ratios)), len(ratios), in_turn)


def is_main(row):
    """Return whether a row is the result that processes are compared by: the first of the scope device is."""
    return row["status"] == "ok" and row["scope"] == "device"
