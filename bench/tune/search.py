"""The search of `make best`: which combination of settings is the fastest?

It knows no framework, no process and no clock, so that tests can run it on a table of rates with noise. Four stages,
each with a share of the time:

    1. combinations   the default, each single change in the order of the guesses, then combinations of the changes
                      that gained; one short trial each
    2. batches        twice as large for the fastest, again and again while that pays
    3. repetitions    of the fastest few, in turn; the median of its trials is the rate of a candidate
    4. the path       from the default to the fastest, one change at a time: full runs in turn, in several rounds
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from bench.records.verdict import compare_pairs

# The share of the time that is used at the end of a stage.
COMBINATIONS_END = 0.5
BATCHES_END = 0.65
REPETITIONS_END = 0.8
LEADERS = 3  # number of candidates that are repeated, at most
CLOSE = 0.95  # share of the fastest one's rate that they reach
MOST_TRIALS = 7  # short trials of a candidate
BATCH_GROWTH = 1.02  # a doubled batch has to gain 2 %, or doubling ends


@dataclass(frozen=True)
class Dimension:
    """One setting and the values to try, the default first.

    Args:
        gains: {value: guessed speedup over the default}, which only decides the order of the trials.
        doubles: the values are numbers, and twice a leader's value is tried too.
    """

    name: str
    gains: dict[str, float]
    doubles: bool = False


def change_one(candidate, i, value):
    """Return a candidate with another value of its dimension i."""
    return (*candidate[:i], value, *candidate[i + 1 :])


@dataclass
class Search:
    """All trials so far, and the choice of the next one. A candidate is a tuple with one value for each dimension.

    Args:
        attempt: candidate -> the row of a short trial, with its status and, if that is ok, its throughput.
        run_rounds: candidates -> {candidate: the row of a full run, in turn with the others} of each round.
        used: () -> the share of the time that is used.
        trials, full: the rows of each candidate's short trials and full runs, in order.
    """

    dimensions: Sequence[Dimension]
    attempt: Callable[[tuple], dict]
    run_rounds: Callable[[list[tuple]], Iterator[dict[tuple, dict]]]
    used: Callable[[], float]
    trials: dict[tuple, list[dict]] = field(default_factory=dict)
    full: dict[tuple, list[dict]] = field(default_factory=dict)
    path: list[tuple] = field(default_factory=list)

    @property
    def default(self):
        return tuple(next(iter(dimension.gains)) for dimension in self.dimensions)

    def run(self):
        """Run all four stages. Ends early if every leader has MOST_TRIALS and there are no more rounds."""
        while (pool := self.untried()) and self.used() < COMBINATIONS_END:
            self.try_once(pool[0])
        while (pool := self.larger_batches()) and self.used() < BATCHES_END:
            self.try_once(pool[0])
        while (leaders := self.leaders()) and self.used() < REPETITIONS_END:
            candidate = min(leaders, key=lambda each: len(self.trials[each]))
            if len(self.trials[candidate]) == MOST_TRIALS:
                break
            self.try_once(candidate)
        if leaders:
            self.run_path(leaders[0])

    def try_once(self, candidate):
        self.trials.setdefault(candidate, []).append(self.attempt(candidate))

    def untried(self):
        """Return the combinations without a trial: the default, single changes, then the others by their prediction."""
        grid = itertools.product(*(dimension.gains for dimension in self.dimensions))
        predicted = {each: self.predict(each) for each in grid if each not in self.trials}
        changes = {each: sum(map(str.__ne__, each, self.default)) for each in predicted}
        return sorted(filter(predicted.get, predicted), key=lambda each: (min(changes[each], 2), -predicted[each]))

    def predict(self, candidate):
        """Predict the speedup over the default: the product of its changes' gains, as measured, else as guessed.

        0 if one of them failed.
        """
        gains = []
        for i, value in enumerate(candidate):
            single = change_one(self.default, i, value)
            gain = self.dimensions[i].gains.get(value, 1.0)
            if single != self.default and single in self.trials and self.rate(self.default):
                gain = self.rate(single) / self.rate(self.default)
            gains.append(gain)
        return math.prod(gains)

    def larger_batches(self):
        """Return each leader with twice its batch, if its last doubling paid and that has no trial yet."""
        doubled = []
        for leader in self.leaders():
            for i, batch in ((i, int(leader[i])) for i, dimension in enumerate(self.dimensions) if dimension.doubles):
                half, double = (change_one(leader, i, str(n)) for n in (batch // 2, 2 * batch))
                if double not in self.trials and self.rate(leader) > BATCH_GROWTH * self.rate(half):
                    doubled.append(double)
        return doubled

    def rate(self, candidate):
        """Return the median rate of the short trials, 0 if there is none or one failed."""
        return median_rate(self.trials.get(candidate, []))

    def leaders(self):
        """Return the candidates that may be the fastest, the fastest first."""
        ranked = sorted(filter(self.rate, self.trials), key=self.rate, reverse=True)[:LEADERS]
        return [each for each in ranked if self.rate(each) >= CLOSE * self.rate(ranked[0])]

    def run_path(self, goal):
        """Run the default, the goal and the steps between them in full: one round, and more while there is time."""
        path = self.list_path(goal) if self.rate(self.default) else [goal]
        for candidate in path:
            if candidate not in self.trials:
                self.try_once(candidate)
        self.path = [each for each in path if self.rate(each)]
        for rows in self.run_rounds(self.path):
            for candidate, row in rows.items():
                self.full.setdefault(candidate, []).append(row)
            if self.used() >= 1:
                return

    def compare(self, candidate, base):
        """Return the Comparison of the full runs of two steps of the path, neither of which failed."""
        rounds = zip(self.full[candidate], self.full[base], strict=True)
        return compare_pairs([([row], [base_row]) for row, base_row in rounds])

    def list_path(self, goal):
        """Return the candidates from the default to the goal, one change at a time, the largest gain first."""
        path = [self.default]
        while path[-1] != goal:
            here = path[-1]
            changed = [change_one(here, i, value) for i, value in enumerate(goal) if value != here[i]]
            path.append(max(changed, key=lambda each: (self.rate(each), self.predict(each))))
        return path

    def fastest(self):
        """Return the fastest candidate, None if none works.

        Once there are full runs, only these count: the best of many short trials is partly luck.
        """
        steps = [each for each in self.path if median_rate(self.full.get(each, []))]
        if steps:
            return max(steps, key=lambda each: self.compare(each, steps[0]).ratio.throughput)
        return next((each for each in self.leaders() if each not in self.full), None)


def median_rate(rows):
    """Return the median throughput of rows, 0 if there is none or one failed."""
    rates = [row["throughput"] if row["status"] == "ok" else 0.0 for row in rows]
    return statistics.median(rates) if rates and all(rates) else 0.0
