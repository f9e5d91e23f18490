"""The search of `make best`: which combination of settings is the fastest?

It knows no framework, no process and no clock, so that tests can run it on a table of rates with noise. Four stages,
each with a share of the time:

    1. combinations   the default, each single change in the order of the guesses, then combinations of the changes
                      that gained; one short trial each
    2. neighbours     of the fastest: a larger batch, a value whose trial is expensive
    3. repetitions    of the fastest few, in turn; the median of its trials is the rate of a candidate
    4. the path       full runs from the default to the fastest, one change at a time, in several rounds
"""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

COMBINATIONS_END, NEIGHBOURS_END, REPETITIONS_END = 0.5, 0.65, 0.8  # the share of the time at the end of a stage
LEADERS, CLOSE = 3, 0.95  # candidates that are repeated, if they reach this share of the fastest one's rate
MOST_TRIALS = 7  # of a candidate
ROUNDS = 5  # of the path
BATCH_GROWTH = 1.02  # a doubled batch has to gain 2 %, or doubling ends


@dataclass(frozen=True)
class Dimension:
    """One setting and the values to try, the default first.

    Args:
        gains: {value: guessed speedup over the default}, which only decides the order of the trials.
        late: values that are tried only as neighbours of a leader, because a trial is expensive.
        doubles: the values are numbers, and twice a leader's value is tried too.
    """

    name: str
    gains: dict[str, float]
    late: tuple[str, ...] = ()
    doubles: bool = False

    @property
    def values(self):
        return tuple(value for value in self.gains if value not in self.late)


def change_one(candidate, i, value):
    """Return a candidate with another value of its dimension i."""
    return (*candidate[:i], value, *candidate[i + 1 :])


@dataclass
class Search:
    """All trials so far, and the choice of the next one. A candidate is a tuple with one value for each dimension.

    Args:
        attempt: (candidate, is_full) -> items per second, 0 if it failed.
        used: () -> the share of the time that is used.
        trials, full: the rates of each candidate's short trials and full runs, in order.
    """

    dimensions: Sequence[Dimension]
    attempt: Callable[[tuple, bool], float]
    used: Callable[[], float]
    trials: dict[tuple, list[float]] = field(default_factory=dict)
    full: dict[tuple, list[float]] = field(default_factory=dict)
    path: list[tuple] = field(default_factory=list)

    @property
    def default(self):
        return tuple(dimension.values[0] for dimension in self.dimensions)

    def run(self):
        """Run all four stages. Ends early if every leader has MOST_TRIALS and every step of the path ROUNDS."""
        while (pool := self.untried()) and self.used() < COMBINATIONS_END:
            self.try_once(pool[0])
        while self.used() < NEIGHBOURS_END:
            pool = [each for leader in self.leaders() for each in self.neighbours(leader)]
            if not pool:
                break
            self.try_once(pool[0])
        while (leaders := self.leaders()) and self.used() < REPETITIONS_END:
            candidate = min(leaders, key=lambda each: len(self.trials[each]))
            if len(self.trials[candidate]) == MOST_TRIALS:
                break
            self.try_once(candidate)
        if leaders:
            self.run_path(leaders[0])

    def try_once(self, candidate):
        self.trials.setdefault(candidate, []).append(self.attempt(candidate, False))

    def untried(self):
        """Return the combinations without a trial: the default, single changes, then the others by their prediction."""
        grid = itertools.product(*(dimension.values for dimension in self.dimensions))
        found = {each: self.predict(each) for each in grid if each not in self.trials}
        changes = {each: sum(map(str.__ne__, each, self.default)) for each in found}
        return sorted(filter(found.get, found), key=lambda each: (min(changes[each], 2), -found[each]))

    def predict(self, candidate):
        """Predict the speedup over the default: the product of its changes' gains, 0 if one of them failed."""
        return math.prod(self.gain(i, value) for i, value in enumerate(candidate))

    def gain(self, i, value):
        """Return the speedup of one change of the default: as measured, else as guessed; 0 if it failed."""
        single = change_one(self.default, i, value)
        if single != self.default and single in self.trials and self.rate(self.default):
            return self.rate(single) / self.rate(self.default)
        return self.dimensions[i].gains.get(value, 1.0)

    def neighbours(self, candidate):
        """Return the untried candidates with another batch size, then those with a late value."""
        late = [change_one(candidate, i, value) for i, each in enumerate(self.dimensions) for value in each.late]
        return self.batches(candidate) + [each for each in late if each not in self.trials and self.predict(each)]

    def batches(self, candidate):
        """Return the untried candidates with twice the batch, if the last doubling paid, and with half of it."""
        found = []
        for i, dimension in enumerate(self.dimensions):
            if dimension.doubles:
                batch = int(candidate[i])
                double, half = (change_one(candidate, i, str(n)) for n in (2 * batch, batch // 2))
                found += [double] if self.rate(candidate) > BATCH_GROWTH * self.rate(half) else []
                found += [half] if batch > int(dimension.values[0]) else []
        return [each for each in found if each not in self.trials]

    def rate(self, candidate):
        """Return the median rate of the short trials, 0 if there is none or one failed."""
        rates = self.trials.get(candidate, [])
        return statistics.median(rates) if rates and all(rates) else 0.0

    def leaders(self):
        """Return the candidates that may be the fastest, the fastest first."""
        ranked = sorted(filter(self.rate, self.trials), key=self.rate, reverse=True)[:LEADERS]
        return [each for each in ranked if self.rate(each) >= CLOSE * self.rate(ranked[0])]

    def run_path(self, goal):
        """Run the default and the goal in full, then the steps between them, up to ROUNDS times."""
        self.path = self.list_path(goal) if self.rate(self.default) else [goal]
        ends = list(dict.fromkeys((self.path[0], goal)))
        for turn in range(ROUNDS):
            for candidate in ends + [each for each in self.path if each not in ends]:
                is_needed = turn == 0 and candidate in ends
                if all(self.full.get(candidate, [])) and (is_needed or self.used() < 1):
                    self.full.setdefault(candidate, []).append(self.attempt(candidate, True))

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
        medians = {each: statistics.median(rates) for each, rates in self.full.items() if all(rates)}
        if medians:
            return max(medians, key=medians.__getitem__)
        return next((each for each in self.leaders() if each not in self.full), None)
