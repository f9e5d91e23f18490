"""The search of `make best`: which combination of settings is the fastest?

It knows no framework, no process and no clock, so that tests can run it on tables of rates:

    1. the fastest so far and single changes of it are compared, three at a time, and the best is kept, until none gains
    2. then the batch size is doubled as long as two doublings gain
    3. the default and the fastest are compared once more: luck in the steps before does not count
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from bench.records.combine import compare_runs, is_failure

CHANGES = 3  # that are interleaved with the fastest so far
ROUNDS, FINAL_ROUNDS = 3, 5
MIN_GAIN = 1.02  # times faster that a change must be
HOPELESS = 0.3  # times as fast: no other change makes up for that, as for 16 bits that a CPU emulates
SEARCH_END = 0.7  # share of the time after which no change is begun, but the first ones


@dataclass
class Search:
    """A search, and all that it has measured. A candidate is a tuple with one value of each setting.

    Args:
        values: {setting: its values, the default first}. The last setting is the batch size.
        doubles: the batch size is doubled.
        measure: (candidates, numbers, is_final, choose) measures candidates, interleaved, in rounds of these numbers.
            It yields {candidate: rows of its process} after each round, and goes on with the candidates that
            choose(rows of the round) returns.
        used: () -> the share of the time that is used.

    Attributes:
        rounds, final: the rounds of all steps, and those of the last comparison.
        path: the default, and the fastest after each step.
        hopeless: candidates that were far slower than the fastest so far.
    """

    values: dict[str, list[str]]
    doubles: bool
    measure: Callable
    used: Callable[[], float]
    rounds: list[dict] = field(default_factory=list)
    final: list[dict] = field(default_factory=list)
    path: list[tuple] = field(default_factory=list)
    hopeless: set[tuple] = field(default_factory=set)

    def __post_init__(self):
        self.path = self.path or [tuple(values[0] for values in self.values.values())]

    def run(self):
        """Take steps until no change gains or the time is used, then compare the default with the fastest."""
        while (changes := self.list_changes()) and (not self.rounds or self.used() < SEARCH_END):
            self.take_step(changes[:CHANGES])
        if len(self.path) > 1:
            self.compare_rounds(self.path[0], [self.path[-1]], is_final=True)

    def take_step(self, changes):
        """Compare changes with the fastest so far; the best of those that gain becomes the fastest."""
        here = self.path[-1]
        try:
            self.compare_rounds(here, changes)
        finally:  # after Ctrl-C, what was measured counts
            failures = self.failures()
            pairs = {each: compare(self.rounds, each, here) for each in changes if each not in failures}
            self.hopeless |= {each for each, pair in pairs.items() if pair and pair.ratio.throughput < HOPELESS}
            ratios = {each: pair.ratio for each, pair in pairs.items() if pair and pair.ratio.low > 1}
            best = max(ratios, key=lambda each: ratios[each].throughput, default=here)
            if best != here and ratios[best].throughput >= MIN_GAIN:
                self.path.append(best)

    def compare_rounds(self, base, changes, is_final=False):
        """Measure a base and changes of it in rounds; a change that is slower in one of them is not repeated."""
        rounds, count = (self.final, FINAL_ROUNDS) if is_final else (self.rounds, ROUNDS)

        def choose(rows_of):
            pairs = {change: compare([rows_of], change, base) for change in changes}
            faster = [change for change, pair in pairs.items() if pair and pair.ratio.throughput > 1]
            return [base, *faster] if faster and (is_final or self.used() < 1) else []

        begun = len(self.rounds) + len(self.final)
        numbers = range(begun + 1, begun + 1 + count)
        for rows_of in self.measure([base, *changes], numbers, is_final, choose):
            rounds.append(rows_of)

    def list_changes(self):
        """List the changes of the fastest so far that are to be measured, to values measured least first.

        Values that failed, that were hopeless, or that were replaced before, are left out. If no other change is left,
        the batch size is doubled once and twice.
        """
        here = self.path[-1]
        measured = set().union(*self.rounds)
        compared = slice(-1 if self.doubles else None)  # with another batch size a change is not tried again
        known = {each[compared] for each in measured}
        excluded = [*self.path, *self.failures(), *self.hopeless]
        changes = []
        for i, values in enumerate(self.values.values()):
            for value in values:
                change = (*here[:i], value, *here[i + 1 :])
                if change[compared] not in known and all(each[i] != value for each in excluded):
                    changes.append((sum(each[i] == value for each in measured), change))
        if self.doubles and not changes:
            larger = [(*here[:-1], str(times * int(here[-1]))) for times in (2, 4)]
            return [each for each in larger if each not in measured]
        return [change for _, change in sorted(changes, key=lambda counted: counted[0])]

    def failures(self):
        """Return {candidate: row} of those whose process failed; none of them becomes the fastest."""
        rows = {each: rows[-1] for rows_of in (*self.rounds, *self.final) for each, rows in rows_of.items()}
        return {each: row for each, row in rows.items() if is_failure(row)}

    def answer(self):
        """Return the path up to the answer: only the default, if the fastest failed or was slower in a final pair."""
        fastest = self.path[-1]
        comparison = compare(self.final, fastest, self.path[0])
        is_slower = comparison and comparison.ratio.low <= 1
        return self.path[:1] if is_slower or fastest in self.failures() else self.path


def compare(rounds, candidate, base):
    """Return the Comparison of two candidates in the rounds that have both; None without a pair."""
    rows, base_rows = ([row for rows_of in rounds for row in rows_of.get(each, [])] for each in (candidate, base))
    return compare_runs(rows, base_rows)
