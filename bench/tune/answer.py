"""What `make best` prints at the end: the path to the fastest settings, how sure they are, and how to use them."""

import os

from bench.records import report
from bench.records.columns import format_number
from bench.records.verdict import Rate
from bench.settings import MAKE_VARIABLES, known_names, read_settings
from bench.tune import candidates, recipe
from bench.tune.search import Search, Trial

NOT_REPEATED = (*MAKE_VARIABLES, "MAKEFLAGS", "WORKLOAD", "MAX_MINUTES", "MAX_SECONDS", "RESULTS_DIR")


def describe(search: Search, minutes):
    """Return the lines of the answer, as far as it was measured."""
    fastest, float32 = search.answers()
    if fastest is None:
        return ["no combination works: the rows say why", *describe_search(search, minutes)]
    lines, full, before = [report.describe_task(search.trials[search.default][0].row)], {}, None
    for step, candidate in search.steps.items():
        if runs := [trial for trial in search.full_runs(candidate) if trial.rate]:
            full[candidate] = summarize(runs)
            if step.isdecimal():
                lines.append(describe_step(search, full, before, candidate, f"{len(runs)} run{'s' * (len(runs) > 1)}"))
                before = candidate
    untried = len(search.untried())
    title = f"fastest of {len(search.trials)} tried" + (f" ({untried} not tried)" if untried else "")
    lines += describe_fastest(search, full, title, fastest)
    if float32 and float32 != fastest:
        lines += describe_fastest(search, full, "fastest in float32", float32)
    return lines + describe_search(search, minutes)


def summarize(trials):
    """Combine several Trials into one, as Rate.merge() does; without an interval both ends are the rate."""
    rate, low, high = Rate.merge([Rate(trial.rate, trial.low, trial.high) for trial in trials])
    return Trial(rate, low or rate, high or rate)


def times(faster, slower):
    """Return the ratio of two Trials in words, with the interval that follows from both."""
    span = f"{faster.low / slower.high:.3g} to {faster.high / slower.low:.3g}"
    return f"{faster.rate / slower.rate:.3g} times ({span})"


def describe_step(search: Search, full, before, candidate, runs):
    """Return the line of one step of the path: the change, the rate of all its runs, the gain over the step before."""
    here, words, gain = full[candidate], candidates.describe(search.dimensions, candidate), ""
    if before:
        words = "+ " + candidates.describe_difference(search.dimensions, before, candidate)
        gain = f", {times(here, full[before])}"
    unit = search.trials[search.default][0].row["unit"]
    rate, low, high = map(format_number, (here.rate, here.low, here.high))
    return f"  {words:<28} {rate} {unit} ({low} to {high}, {runs}){gain}"


def describe_fastest(search: Search, full, title, candidate):
    """Return the lines of an answer: its gain over the default, and what its lower precision does to the output."""
    lines, row = [f"{title}: {candidates.describe(search.dimensions, candidate)}"], search.trials[candidate][-1].row
    if candidate not in full:
        rate = f"{format_number(search.rate(candidate))} {row['unit']}"
        lines.append(f"    {rate} in short trials, without a full run: it may be luck")
    elif candidate != search.default and search.default in full:
        lines.append(f"    {times(full[candidate], full[search.default])} the default")
    if row["output_error"]:
        percent = f"{100 * float(row['output_error']):.2g}"
        lines.append(f"    its outputs differ from float32's by {percent} % (relative L2)")
    elif row["precision"] not in ("float32", "float64"):
        lines.append("    how far its outputs differ from float32's was not measured")
    return lines


def describe_search(search: Search, minutes):
    """Return how long the search took, what failed, what was not tried, and the flags of the full runs."""
    count = sum(map(len, search.trials.values()))
    lines = [f"the search took {minutes:.1f} minutes: {len(search.trials)} combinations, {count} runs"]
    fastest, _ = search.answers()
    rows = [trial.row for trial in search.trials[fastest]] if fastest else []
    firsts = [float(row["first_step_seconds"]) for row in rows if row["first_step_seconds"] and row["compile"] != "0"]
    if firsts:
        lines.append(f"the first step, which compiles, took the fastest {min(firsts):.3g} to {max(firsts):.3g} s")
    for candidate, trials in search.trials.items():
        if not search.works(candidate):
            note = next(trial.note for trial in trials if not trial.rate)
            lines.append(f"failed: {candidates.describe(search.dimensions, candidate)}: {note}")
    if untried := search.untried():
        words = candidates.describe(search.dimensions, untried[0])
        more = f" and {len(untried) - 1} more" if len(untried) > 1 else ""
        lines.append(f"not tried: {words}{more} (a larger MAX_MINUTES tries more)")
    if fastest and search.batches(fastest):
        lines.append("not tried: another BATCH_SIZE, which may gain more (a larger MAX_MINUTES tries it)")
    full = [trial.row for candidate in search.trials for trial in search.full_runs(candidate)]
    flags = {flag for row in full for flag in row["flags"].split()}
    return lines + ([f"flags of the full runs:\n{report.explain(flags)}"] if report.explain(flags) else [])


def describe_use(search: Search, candidate, target, held):
    """Return the lines of make and of code that repeat a candidate; `held` is {variable: text} that every run got."""
    change, row = candidates.change_of(search.dimensions, candidate), search.trials[search.default][0].row
    asked = {name: os.environ[name] for name in known_names() if name in os.environ} | held
    given = {name: text for name, text in asked.items() if name not in NOT_REPEATED}
    settings = read_settings(target, os.environ | held | change).on(row["device"])
    # The framework's own number of threads needs no line.
    threads = (given if change.get("NUM_THREADS") in (None, row["num_threads"]) else change).get("NUM_THREADS")
    lines = ["", "To repeat it:", *(f"    {line}" for line in recipe.lines_of_make(target, given | change))]
    if exports := recipe.environment_lines(change):
        lines += ["", "For your own script, in the shell:", *(f"    {line}" for line in exports)]
    code = recipe.script_lines(settings, row["device"], threads)
    return [*lines, "", "In your own script:", *(f"    {line}" for line in code)]
