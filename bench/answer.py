"""What `make best` says at the end: the way to the fastest settings, how sure it is, and how to use them."""

import statistics
from dataclasses import dataclass, field
from itertools import pairwise

from bench import candidates, recipe
from bench.rows import columns, report
from bench.search import Dimension, Look, Search


@dataclass
class Found:
    """What is known of the candidates.

    Args:
        rows: of each candidate, in the order of its looks.
        steps: the candidates that are measured again: "0" is the default, each next number has one change more.
        again: the looks at each of them.
    """

    dimensions: list[Dimension]
    search: Search
    rows: dict[tuple, list[dict]] = field(default_factory=dict)
    steps: dict[str, tuple] = field(default_factory=dict)
    again: dict[str, list[Look]] = field(default_factory=dict)

    @property
    def unit(self):
        return self.rows[self.search.default][0]["unit"]

    @property
    def goal(self):
        return self.fastest(self.search.groups[0])

    def fastest(self, group):
        """The fastest by the final runs, as far as there are any: they may show that a change gains nothing."""
        final = {self.steps[step]: look.rate for step, look in self.covers().items()}
        known = [each for each in self.steps.values() if self.search.works(each) and group(each)]
        rate = lambda each: final.get(each) or self.search.rate(each)  # noqa: E731
        return max(known, key=rate, default=self.search.leader(group))

    def answers(self):
        """{title: the fastest candidate} of each group; without those that do not work, or stand there already."""
        titles = ("fastest", "fastest in float32")
        found = {title: self.fastest(group) for title, group in zip(titles, self.search.groups, strict=False)}
        return {title: each for title, each in found.items() if each and (title == titles[0] or each != self.goal)}

    def words(self, candidate):
        return candidates.describe(self.dimensions, candidate)

    def cells(self, candidate):
        return candidates.cells_of(candidates.change_of(self.dimensions, candidate))

    def covers(self):
        """{step: Look} of those with a rate: the median of several runs, and what covers all of their intervals."""
        rated = {step: [each for each in some if each.rate] for step, some in self.again.items()}
        return {step: cover(some) for step, some in rated.items() if some}


def cover(looks):
    ends = [end for look in looks for end in (look.low or look.rate, look.high or look.rate)]
    return Look(statistics.median(look.rate for look in looks), min(ends), max(ends))


def times(look, base):
    """How many times as fast, with the interval that follows from the ends of both."""
    return f"{look.rate / base.rate:.3g} times ({look.low / base.high:.3g} to {look.high / base.low:.3g})"


def describe(found: Found, minutes):
    """The lines of the answer, as far as it was measured."""
    if found.goal is None:
        return ["nothing that was tried works: the rows say why"]
    looks = found.covers()
    way = [step for step in looks if step.isdecimal()]
    lines = [report.describe_task(found.rows[found.search.default][0])]
    lines += [describe_step(found, looks, before, step) for before, step in pairwise([None, *sorted(way, key=int)])]
    lines += [describe_fastest(found, looks, title, candidate) for title, candidate in found.answers().items()]
    return lines + describe_search(found, minutes) + describe_doubts(found)


def describe_step(found: Found, looks, before, step):
    """A line of the way: what was changed, the rate, and the gain over the line before."""
    look, candidate = looks[step], found.steps[step]
    words, gain = found.words(candidate), ""
    if before:
        words = f"+ {columns.describe_change(found.cells(found.steps[before]), found.cells(candidate))}"
        gain = f", {times(look, looks[before])}"
    count = sum(1 for each in found.again[step] if each.rate)
    rate, low, high = map(report.four_digits, (look.rate, look.low, look.high))
    return f"  {words:<28} {rate} {found.unit} ({low} to {high}, {count} run{'s' * (count > 1)}){gain}"


def describe_fastest(found: Found, looks, title, candidate):
    """What a winner reaches, and what its lower precision does to the output."""
    step = next((step for step in looks if found.steps[step] == candidate), None)
    words = f"{title}: {found.words(candidate)}"
    if step is None:
        rate = report.four_digits(found.search.rate(candidate))
        return f"{words}: {rate} {found.unit} in short looks, not measured again: it may be luck"
    if step != "0" and "0" in looks:
        words += f", {times(looks[step], looks['0'])} the default"
    row = found.rows[candidate][-1]
    if row["output_error"]:
        return f"{words}; its outputs differ from float32's by {100 * float(row['output_error']):.2g} % (relative L2)"
    is_whole = row["precision"] in ("float32", "float64")
    return words if is_whole else f"{words}; how far its outputs differ from float32's was not measured"


def describe_search(found: Found, minutes):
    """How long it took, what failed, and what was not tried."""
    search, looks = found.search, sum(map(len, found.search.looks.values()))
    lines = [f"the search took {minutes:.1f} minutes: {len(search.looks)} combinations, {looks} looks"]
    rows = [row for row in found.rows[found.goal] if row["first_step_seconds"] and row["compile"] != "0"]
    if firsts := [float(row["first_step_seconds"]) for row in rows]:
        lines.append(f"the first step, which compiles, took the fastest {min(firsts):.3g} to {max(firsts):.3g} s")
    for candidate, some in search.looks.items():
        if not search.works(candidate):
            lines.append(f"failed: {found.words(candidate)}: {next(each.note for each in some if not each.rate)}")
    if search.untried:
        first = found.words(max(search.untried, key=search.predictor()))
        more = f" and {len(search.untried) - 1} more" if len(search.untried) > 1 else ""
        lines.append(f"not tried: {first}{more} (a larger MAX_MINUTES tries more)")
    if search.is_cut_short:
        lines.append("not tried: a larger BATCH_SIZE, which may gain more (a larger MAX_MINUTES tries it)")
    return lines


def describe_doubts(found: Found):
    final = [row for rows in found.rows.values() for row in rows if row["search_step"]]
    doubts = report.explain({flag for row in final for flag in row["flags"].split()} - {"few_windows", "ci_not_met"})
    return [f"doubts about the final runs:\n{doubts}"] if doubts else []


def describe_use(change, settings, target, given, row):
    """The lines of make and of code that repeat the fastest candidate.

    Args:
        change: of the environment, which makes the candidate.
        settings: of the candidate.
        target: of make.
        given: {variable: text} that the user asked for.
        row: of the default.
    """
    threads = change.get("NUM_THREADS", row["num_threads"])
    threads = given.get("NUM_THREADS") if threads == row["num_threads"] else threads  # else the framework's own
    lines = ["", "To repeat it:", f"    {recipe.line_of_make(target, given, change)}"]
    if exports := recipe.environment_lines(change):
        lines += ["", "For your own script, in the shell:", *(f"    {line}" for line in exports)]
    code = recipe.script_lines(settings.framework, settings, row["device"], threads)
    return [*lines, "", "In your own script:", *(f"    {line}" for line in code)]
