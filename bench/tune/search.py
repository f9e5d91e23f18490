"""The search of `make best`: which combination of settings is the fastest?

It knows no framework, no process and no clock, so that tests can run it on a table of rates with noise. Four stages,
each with a share of the time:

    1. combinations   one short trial each
    2. neighbours     of the fastest: a larger batch, a value whose trial is expensive
    3. repetitions    of the fastest few, in turn; the median of all its runs is the rate of a candidate
    4. the path       full runs from the default to the answer, one change at a time, and of the best in float32
"""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

COMBINATIONS_END, NEIGHBOURS_END, REPETITIONS_END = 0.5, 0.65, 0.8  # the share of the time at the end of a stage
TRIAL_SECONDS = 3
LEADERS, FLOAT32_LEADERS = 3, 2  # candidates that are repeated: of all, and of those in float32 ...
CLOSE = 0.95  # ... if they reach this share of the fastest one's rate
MOST_TRIALS = 7  # of a candidate, before the path
ROUNDS = 5  # of the path: 5 processes have a 94 % interval
BATCH_GROWTH = 1.02  # a doubled batch has to gain 2 %, or doubling ends


@dataclass(frozen=True)
class Trial:
    """The result of one run of a candidate, in items per second; `low` and `high` are None without an interval."""

    rate: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""  # why there is no rate
    is_contended: bool = False  # other programs used the machine meanwhile
    step: str | None = None  # of the path, for a full run
    row: dict = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Dimension:
    """One setting and the values to try, the default first.

    Args:
        gains: {value: guessed speedup over the default}. Guesses only decide the order of the trials.
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
        attempt: (candidate, seconds, step) -> Trial; seconds is None for a full run.
        used: () -> the share of the time that is used.
        is_possible: whether a combination makes sense on this device.
        tell: called with a candidate after each of its trials.
    """

    dimensions: Sequence[Dimension]
    attempt: Callable[[tuple, float | None, str | None], Trial]
    used: Callable[[], float]
    is_possible: Callable[[tuple], bool] = lambda candidate: True
    tell: Callable[[tuple], None] = lambda candidate: None
    trials: dict[tuple, list[Trial]] = field(default_factory=dict)
    goals: tuple[tuple | None, ...] = ()  # the answers before the full runs
    steps: dict[str, tuple] = field(default_factory=dict)  # "0" is the default, each next one has a change more

    @property
    def default(self):
        return tuple(dimension.values[0] for dimension in self.dimensions)

    def run(self):
        """Run all four stages. Ends early if every leader has MOST_TRIALS and every step of the path ROUNDS."""
        for turn in itertools.count():
            untried = self.untried()
            # In turn: next to the fastest, the most promising by the guesses, next to the fastest in float32.
            near = [each for each in self.near_the_fastest(turn) if each in untried and turn % 3 != 1]
            pool = near + untried + self.contended()
            if not pool or self.used() >= COMBINATIONS_END:
                break
            self.try_once(pool[0])
        for turn in itertools.count():
            pool = self.near_the_fastest(turn) + [each for one in self.leaders() for each in self.neighbours(one)]
            if not pool or self.used() >= NEIGHBOURS_END:
                break
            self.try_once(pool[0])
        while (leaders := self.leaders()) and self.used() < REPETITIONS_END:
            candidate = min(leaders, key=lambda each: len(self.trials[each]))
            if len(self.trials[candidate]) == MOST_TRIALS:
                break
            self.try_once(candidate)
        self.run_path()

    def try_once(self, candidate, step=None):
        self.add(candidate, self.attempt(candidate, None if step else TRIAL_SECONDS, step))

    def add(self, candidate, trial):
        self.trials.setdefault(candidate, []).append(trial)
        self.tell(candidate)

    def untried(self):
        """Return the combinations without a trial: the default first, then by guessed speedup."""
        grid = itertools.product(*(dimension.values for dimension in self.dimensions))
        possible = [each for each in grid if each not in self.trials and self.is_possible(each)]
        return sorted(possible, key=lambda each: (each == self.default, self.guess(each)), reverse=True)

    def contended(self):
        """Return the candidates whose only trial may be too slow, because other programs used the machine."""
        return [each for each, trials in self.trials.items() if len(trials) == 1 and trials[0].is_contended]

    def near_the_fastest(self, turn):
        """Return the neighbours of the fastest candidate, or every third turn those of the fastest one in float32."""
        fastest, float32 = self.answers()
        if turn % 3 == 2 and float32:
            return list(filter(self.is_float32, self.neighbours(float32)))
        return self.neighbours(fastest) if fastest else []

    def neighbours(self, candidate):
        """Return the untried candidates that differ in one value: other batches first, then by guessed speedup."""
        single = [change_one(candidate, i, value) for i, each in enumerate(self.dimensions) for value in each.gains]
        others = [each for each in single if each not in self.trials and self.is_possible(each)]
        return self.batches(candidate) + sorted(others, key=self.guess, reverse=True)

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

    def guess(self, candidate):
        """Return the guessed speedup over the default."""
        return math.prod(d.gains.get(value, 1.0) for d, value in zip(self.dimensions, candidate, strict=True))

    def is_float32(self, candidate):
        """Return whether float32 was chosen: never if the precision is kept fixed."""
        return any(d.name == "PRECISION" and v == "float32" for d, v in zip(self.dimensions, candidate, strict=True))

    def works(self, candidate):
        """Return whether every trial of a candidate gave a rate."""
        return candidate in self.trials and all(trial.rate for trial in self.trials[candidate])

    def rate(self, candidate):
        """Return the median of all runs in items per second, 0 if unknown. Contended runs only count if all are."""
        if not self.works(candidate):
            return 0.0
        trials = self.trials[candidate]
        trials = [each for each in trials if not each.is_contended] or trials
        return statistics.median(each.rate for each in trials if each.rate)

    def full_runs(self, candidate):
        return [trial for trial in self.trials.get(candidate, ()) if trial.step]

    def ranked(self):
        """Return the candidates that work, the fastest first."""
        return sorted(filter(self.works, self.trials), key=self.rate, reverse=True)

    def leaders(self):
        """Return the candidates that may be the fastest, or the fastest in float32."""
        ranked, found = self.ranked(), []
        for group, count in (ranked, LEADERS), (list(filter(self.is_float32, ranked)), FLOAT32_LEADERS):
            found += [each for each in group[:count] if self.rate(each) >= CLOSE * self.rate(group[0])]
        return list(dict.fromkeys(found))

    def answers(self):
        """Return (the fastest candidate, the fastest one in float32), None if none works.

        Once the path is known, only its candidates count: the best of many short trials is partly luck. A candidate
        whose full runs are slower than the default's is not the answer, whatever its short trials gave.
        """
        ranked = self.ranked()
        known = [each for each in ranked if each in self.goals or self.full_runs(each)] if self.goals else ranked
        known = [each for each in known if not self.is_slower_in_full(each)]
        return next(iter(known), None), next(filter(self.is_float32, known), None)

    def is_slower_in_full(self, candidate):
        """Return whether the default is faster than a candidate in the full runs, if both have any."""
        runs = [[run.rate or 0.0 for run in self.full_runs(each)] for each in (candidate, self.default)]
        return all(runs) and statistics.median(runs[0]) < statistics.median(runs[1])

    def run_path(self):
        """Run the default, the answers and then the steps between them in full, up to ROUNDS times."""
        self.goals = goal, float32 = self.answers()
        if goal is None:
            return
        path = self.path(goal) if self.works(self.default) else [goal]
        self.steps = {str(i): each for i, each in enumerate(path, start=path[0] != self.default)}
        if float32 and float32 not in path:
            self.steps["float32"] = float32
        ordered = sorted(self.steps, key=lambda step: self.steps[step] not in (path[0], *self.goals))
        for turn in range(ROUNDS):
            for step in ordered:
                candidate = self.steps[step]
                is_needed = turn == 0 and candidate in (path[0], goal)
                if (is_needed or self.used() < 1) and (self.works(candidate) or candidate not in self.trials):
                    self.try_once(candidate, step)

    def path(self, goal):
        """Return the candidates from the default to the goal, one change at a time, the largest gain first."""
        path = [self.default]
        while path[-1] != goal:
            here = path[-1]
            changed = [change_one(here, i, value) for i, value in enumerate(goal) if value != here[i]]
            changed = list(filter(self.is_possible, changed)) or changed
            path.append(max(changed, key=lambda each: (self.rate(each), self.guess(each))))
        return path
