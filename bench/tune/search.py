"""The search of `make best`: which combination of settings is the fastest?

It knows no framework, no process and no clock, so that tests can run it on a table of rates with noise:

    1. trials     one short process each: every single change of the default, then every single change of the fastest
                  of those, and so on while one gains; at last twice the batch size, again and again
    2. the path   of the fastest of each step, from the default on: long processes, interleaved, in rounds
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.records.verdict import SAME, compare_pairs

TRIALS_END = 0.6  # share of the time after which no trial begins
MIN_GAIN = 1.02  # times faster that two doublings of the batch size must be together, or they are the last


@dataclass(frozen=True)
class Dimension:
    """One setting and the values to try, the default first.

    Args:
        gains: {value: guessed speedup over the default}, which only decides the order of the trials.
        doubles: the values are numbers, and larger ones are tried by doubling.
    """

    name: str
    gains: dict[str, float]
    doubles: bool = False


def double_batch(first, attempt):
    """Return the fastest batch size: doubled from the first until one fails or two doublings gain less than 2 %.

    Args:
        attempt: batch size -> (the row of a short trial, whether twice that size may be tried).
    """
    rates = {}
    size = first
    while True:
        row, may_double = attempt(size)
        if row["status"] != "ok":
            break
        rates[size] = row["throughput"]
        if not may_double or max(rates.values()) <= MIN_GAIN * rates.get(size // 4, 0):
            break
        size *= 2
    return max(rates, key=rates.__getitem__, default=first)


def change_one(candidate, i, value):
    """Return a candidate with another value of its dimension i."""
    return (*candidate[:i], value, *candidate[i + 1 :])


@dataclass
class Search:
    """All trials and rounds so far. A candidate is a tuple with one value for each dimension.

    Args:
        attempt: candidate -> the row of a short trial, with its status and, if that is ok, its throughput.
        run_rounds: (candidates, rounds) measures the candidates, interleaved, and appends to the rounds.
        used: () -> the share of the time that is used.
        trials: {candidate: the row of its trial}.
        path: the candidates of the second part, one change apart.
        rounds: {candidate: the row of a long process} of each round.
    """

    dimensions: Sequence[Dimension]
    attempt: Callable[[tuple], dict]
    run_rounds: Callable[[list[tuple], list], None]
    used: Callable[[], float]
    trials: dict[tuple, dict] = field(default_factory=dict)
    path: list[tuple] = field(default_factory=list)
    rounds: list[dict[tuple, dict]] = field(default_factory=list)

    @property
    def default(self):
        return tuple(next(iter(dimension.gains)) for dimension in self.dimensions)

    def run(self):
        """Choose the path by trials, and run it."""
        self.path = self.choose_path()
        if self.path:
            self.run_rounds(self.path, self.rounds)

    def choose_path(self):
        """Return the fastest candidates that are one change apart, from the default on; one that failed is left out."""
        here = self.default
        path = [here] if self.try_out(here) else []
        while True:
            for candidate in self.untried(here):
                if self.used() < TRIALS_END:
                    self.try_out(candidate)
            fastest = max(filter(self.trials.get, self.list_changes(here)), key=self.rate, default=here)
            if self.rate(fastest) <= self.rate(here):
                break
            here = fastest
            path.append(here)
        for i in (i for i, dimension in enumerate(self.dimensions) if dimension.doubles):

            def attempt(size, i=i, here=here):
                larger = change_one(here, i, str(size))
                self.try_out(larger)
                return self.trials[larger], self.used() < TRIALS_END

            larger = change_one(here, i, str(double_batch(int(here[i]), attempt)))
            path += [larger] if larger != here else []
        return path

    def list_changes(self, candidate):
        """List the candidates that differ in one value, in the order of the guesses."""
        changes = [
            (gain, change_one(candidate, i, value))
            for i, dimension in enumerate(self.dimensions)
            for value, gain in dimension.gains.items()
            if value != candidate[i]
        ]
        return [each for _, each in sorted(changes, key=lambda change: change[0], reverse=True)]

    def untried(self, candidate):
        return [each for each in self.list_changes(candidate) if each not in self.trials]

    def try_out(self, candidate):
        """Run the trial of a candidate, unless it was run before; return its rate."""
        if candidate not in self.trials:
            self.trials[candidate] = self.attempt(candidate)
        return self.rate(candidate)

    def rate(self, candidate):
        """Return the rate of the trial of a candidate; 0 if it failed."""
        row = self.trials[candidate]
        return row["throughput"] if row["status"] == "ok" else 0.0

    def compare(self, candidate, base):
        """Return the Comparison of the long processes of two steps of the path; None without a pair."""
        both = [rows_of for rows_of in self.rounds if {candidate, base} <= rows_of.keys()]
        return compare_pairs([([rows_of[candidate]], [rows_of[base]]) for rows_of in both])

    def rows_of(self, candidate):
        """Return the rows of the long processes of a candidate; [] if one failed."""
        rows = [rows_of[candidate] for rows_of in self.rounds if candidate in rows_of]
        return rows if all(row["status"] == "ok" for row in rows) else []

    def measured_path(self):
        """Return the steps of the path up to the fastest one by its long processes; it does not end without a gain."""
        steps = [each for each in self.path if self.rows_of(each)]
        gains = {each: self.compare(each, steps[0]) for each in steps}
        rates = [gains[each].ratio.throughput if gains[each] else 0 for each in steps]
        steps = steps[: rates.index(max(rates)) + 1] if steps else []
        while len(steps) > 1 and self.compare(steps[-1], steps[-2]).ratio.throughput <= 1 + SAME:
            steps.pop()
        return steps

    def fastest(self):
        """Return the fastest candidate, None if none works.

        Once there are long processes, only these count: the best of many short trials is partly luck.
        """
        if steps := self.measured_path():
            return steps[-1]
        return max(filter(self.rate, self.trials), key=self.rate, default=None)
