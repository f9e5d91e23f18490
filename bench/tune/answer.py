"""What `make best` prints at the end: the path to the fastest settings, how sure they are, and how to use them."""

import functools
import shlex

from bench.records import report
from bench.records.columns import describe_work, format_number
from bench.records.verdict import Rate
from bench.settings import KNOWN_NAMES
from bench.tune import candidates, recipe
from bench.tune.search import Search


def describe_answer(search: Search, path):
    """Return the lines of the answer, as far as it was measured.

    Args:
        path: {candidate: the combined row of its full runs}, from the default to the fastest.
    """
    fastest = search.fastest()
    first = search.trials[search.default][0]
    lines = [f"{describe_work(first)}, {first['framework']} {first['framework_version']} on {first['device_name']}"]
    words = functools.partial(candidates.describe_candidate, search.dimensions)
    rates = {candidate: Rate.of_row(row) for candidate, row in path.items()}
    steps = []  # (the change, what was measured)
    before = None
    for candidate, rate in rates.items():
        count = len(search.full[candidate])
        processes = "1 process" if count == 1 else f"{count} processes"
        ends = f"({format_number(rate.low)} to {format_number(rate.high)}, {processes})"
        measured = f"{format_number(rate.throughput)} {path[candidate]['unit']} {ends}"
        gain = f", {describe_gain(search.compare(candidate, before))}" if before else ""
        name = f"+ {words(candidate, before)}" if before else words(candidate)
        steps.append((name, f"{measured}{gain}"))
        before = candidate
    width = max((len(name) for name, _ in steps), default=0)
    lines += [f"  {name:<{width}}  {measured}" for name, measured in steps]
    lines.append(f"fastest of {len(search.trials)} tried: {words(fastest)}" if fastest else "no combination works")
    if fastest:
        row = path.get(fastest) or search.trials[fastest][0]
        if fastest not in path:
            rate = f"{format_number(search.rate(fastest))} {row['unit']}"
            lines.append(f"    {rate} in short trials, without a full run: it may be luck")
        elif fastest != search.default and search.default in path:
            comparison = search.compare(fastest, search.default)
            gain = describe_gain(comparison)
            lines.append(f"    {gain} the default, by {report.describe_pairs(comparison)}")
        if row["output_error"]:
            lines.append(f"    its outputs differ from float32's by {100 * row['output_error']:.2g} % (relative L2)")
        if row["flags"]:
            lines.append(report.explain_flags(row["flags"].split()))
    for candidate, rows in [*search.trials.items(), *search.full.items()]:
        failed = [f"{row['status']}: {row['note']}" for row in rows if row["status"] != "ok"]
        lines += [f"failed: {words(candidate)}: {reason}" for reason in failed[:1]]
    if untried := search.untried():
        more = f"; and {len(untried) - 1} more" if len(untried) > 1 else ""
        lines.append(f"not tried: {words(untried[0])}{more} (a larger MAX_MINUTES tries more)")
    return lines


def describe_gain(comparison):
    """Describe the ratio of a Comparison, with its interval if there are several pairs."""
    ratio, low, high = comparison.ratio
    interval = f" ({low:.3g} to {high:.3g})" if comparison.pairs > 1 else ""
    return f"{ratio:.3g} times{interval}"


def describe_use(framework, device, workload, settings):
    """Return the lines of make and of code that repeat a candidate.

    Args:
        settings: {variable: text} that the user gave or the search chose.
    """
    command = " ".join([*(f"{name}={shlex.quote(text)}" for name, text in settings.items()), f"make {workload}"])
    shell = [f"export {name}={shlex.quote(text)}" for name, text in settings.items() if name not in KNOWN_NAMES]
    code = recipe.lines_of_code(framework, settings | {"DEVICE": device})
    lines = ["", "To repeat it:", f"    {command}", "", "For your own script:"]
    return lines + [f"    {line}" for line in [*shell, *code]] if shell or code else lines[:-2]
