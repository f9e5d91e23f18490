"""The search of `make best`: which combination of settings is the fastest? Knows no framework, no process, no clock.

A candidate is a tuple with one value for each dimension. What a look at it gives comes from a function, so that tests
can put a table of rates with noise in its place.

    every combination once, the most promising first -> larger batches -> longer looks at those still in question

A candidate is given up only when the upper end of its interval is below the lower end of the leader's.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

SECONDS = (1, 3, *[10] * 6)  # of the first look at a candidate, the second ...
CLIMBERS = 3  # candidates that larger batches are tried with
GROWTH = 1.02  # a larger batch has to gain so much, or doubling ends
PRIOR_SPREAD, PRIOR_LOOKS = 0.05, 4  # between processes: a guess, and how many looks it counts for
UNKNOWN_SPREAD = 0.05  # of a look without an interval
DOUBTFUL_SPREAD = 0.3  # of a look while other programs ran: it counts little beside any other
FIRST_SHARE, CLIMB_SHARE = 0.6, 0.8  # of the time, for first looks and for these and larger batches; then second looks


@dataclass(frozen=True)
class Look:
    """What one run said. Rates are items per second; without an interval both of its ends are None."""

    rate: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""  # why there is no rate
    is_doubtful: bool = False  # other programs ran meanwhile

    @property
    def spread(self):
        """The standard deviation of the log rate within this run."""
        if self.is_doubtful:
            return DOUBTFUL_SPREAD
        return math.log(self.high / self.low) / 4 if self.low and self.high else UNKNOWN_SPREAD

    @property
    def weight(self):
        return 1 / (PRIOR_SPREAD**2 + self.spread**2)


@dataclass(frozen=True)
class Dimension:
    """One setting: {value: the guessed gain over the first value}. Guesses decide the order of the first looks alone.

    Where `doubles`, the values are numbers, and twice the largest is tried as long as that pays.
    """

    name: str
    gains: dict[str, float]
    doubles: bool = False

    @property
    def values(self):
        return tuple(self.gains)


@dataclass
class Search:
    """What is known so far, and what to look at next.

    Args:
        look: (candidate, seconds) -> Look.
        used: () -> the share of the time that is used, from 0.
        groups: each gets a leader of its own: functions of a candidate. The first holds for all candidates.
        tell: called with a candidate after each look at it.
    """

    dimensions: Sequence[Dimension]
    look: Callable[[tuple, float], Look]
    used: Callable[[], float]
    groups: Sequence[Callable[[tuple], bool]] = (lambda candidate: True,)
    tell: Callable[[tuple], None] = lambda candidate: None
    looks: dict[tuple, list[Look]] = field(default_factory=dict)
    untried: list[tuple] = field(init=False)
    is_cut_short: bool = False  # larger batches may gain more, and there was no time

    def __post_init__(self):
        self.untried = list(itertools.product(*(dimension.values for dimension in self.dimensions)))

    @property
    def default(self):
        return tuple(dimension.values[0] for dimension in self.dimensions)

    def run(self):
        """Look until one candidate is left in each group, all have been looked at eight times, or the time is used."""
        turns = itertools.cycle((self.groups[0], *self.groups))  # or a slower group would come last, and get no look
        while self.untried and self.used() < FIRST_SHARE:
            group = next(turns)
            some = [each for each in self.untried if group(each)] or self.untried
            self.try_next(max(some, key=self.predictor()))
        climbers = [*self.ranked()[:CLIMBERS], *filter(None, map(self.leader, self.groups))]
        for candidate in dict.fromkeys(climbers):
            self.climb(candidate)
        while self.used() < 1:
            again = [each for each in self.in_question() if len(self.looks[each]) < len(SECONDS)]
            if not again:
                return
            self.try_next(min(again, key=lambda each: len(self.looks[each])))

    def try_next(self, candidate):
        count = len(self.looks.get(candidate, ()))
        self.add(candidate, self.look(candidate, SECONDS[min(count, len(SECONDS) - 1)]))
        self.tell(candidate)

    def add(self, candidate, look):
        """Take in one more look at a candidate."""
        self.looks.setdefault(candidate, []).append(look)
        self.untried = [each for each in self.untried if each != candidate]

    def climb(self, candidate):
        """Double the batch of a candidate until that fails, brings no gain twice in a row, or the time is used."""
        for i, dimension in enumerate(self.dimensions):
            best, misses = candidate, 0
            while dimension.doubles and misses < 2:
                if self.used() >= CLIMB_SHARE:
                    self.is_cut_short = True
                    break
                candidate = (*candidate[:i], str(2 * int(candidate[i])), *candidate[i + 1 :])
                if candidate not in self.looks:
                    self.try_next(candidate)
                if not self.works(candidate):
                    break
                gains = self.rate(candidate) > GROWTH * self.rate(best)
                best, misses = (candidate, 0) if gains else (best, misses + 1)

    def works(self, candidate):
        """Whether every look at a candidate gave a rate."""
        return bool(self.looks.get(candidate)) and all(look.rate for look in self.looks[candidate])

    def rate(self, candidate):
        """Items per second, the weighted geometric mean of all looks; 0 where it is unknown."""
        if not self.works(candidate):
            return 0.0
        looks = self.looks[candidate]
        total = sum(look.weight * math.log(look.rate or math.nan) for look in looks)
        return math.exp(total / sum(look.weight for look in looks))

    def ranked(self):
        """The candidates that work, the fastest first."""
        return sorted(filter(self.works, self.looks), key=self.rate, reverse=True)

    def leader(self, group=None):
        """The fastest candidate of a group; None where none works."""
        return next(filter(group or self.groups[0], self.ranked()), None)

    def spread(self):
        """The standard deviation of log rates between processes, from all candidates with several looks."""
        sound = [[look for look in looks if look.rate and not look.is_doubtful] for looks in self.looks.values()]
        logs = [[math.log(look.rate) for look in looks] for looks in sound if len(looks) > 1]
        squares = sum((log - sum(some) / len(some)) ** 2 for some in logs for log in some)
        return math.sqrt(
            (squares + PRIOR_LOOKS * PRIOR_SPREAD**2) / (PRIOR_LOOKS + sum(len(some) - 1 for some in logs))
        )

    def interval(self, candidate, between=None):
        """(low, high) of a candidate's rate: 95 %, of the spread between processes and of that within each look."""
        between = between or self.spread()
        known = sum(1 / (between**2 + look.spread**2) for look in self.looks[candidate])
        reach = 2 / math.sqrt(known)
        return self.rate(candidate) * math.exp(-reach), self.rate(candidate) * math.exp(reach)

    def in_question(self):
        """The candidates that may be the fastest of a group, the fastest first; none where a repeated one is alone."""
        ranked, between, kept = self.ranked(), self.spread(), []
        for group in self.groups:
            members = list(filter(group, ranked))
            bar = self.interval(members[0], between)[0] if members else 0
            rivals = [each for each in members if self.interval(each, between)[1] >= bar]
            is_repeated = members and len(self.looks[members[0]]) > 1  # or it may be a lucky one
            kept += rivals if len(rivals) > 1 or not is_repeated else []
        return [each for each in ranked if each in kept]

    def predictor(self):
        """The function that predicts the log of a candidate's rate: from the gains as guessed and as seen so far.

        A least-squares fit of log rates, with each guess as one more observation of that gain.
        """
        gains = [(i, value, math.log(gain)) for i, d in enumerate(self.dimensions) for value, gain in d.gains.items()]
        describe = lambda who: [1.0] + [float(who[i] == value) for i, value, _ in gains]  # noqa: E731
        seen = list(filter(self.works, self.looks))
        table = [describe(each) for each in seen] + np.eye(len(gains) + 1)[1:].tolist()
        known = [math.log(self.rate(each)) for each in seen] + [gain for *_, gain in gains]
        fit = np.linalg.lstsq(np.array(table), np.array(known), rcond=None)[0]
        return lambda candidate: float(np.dot(describe(candidate), fit))

    def way(self, goal):
        """The candidates from the default to another one, one change at a time, the largest gain known first."""
        way, predict = [self.default], self.predictor()
        while way[-1] != goal:
            here = way[-1]
            changed = [(*here[:i], value, *here[i + 1 :]) for i, value in enumerate(goal) if value != here[i]]
            way.append(max(changed, key=lambda each: (self.rate(each), predict(each))))
        return way
