"""Find the published results of a machine, and set own results next to those of the same work."""

import math
import re
import statistics

from bench.records import report
from bench.records.columns import format_number
from bench.records.likeness import describe_how, name_work, work_of
from bench.settings import SettingError


def group_published(lines):
    """Return {machine: its published rows that are valid} of the lines of tables.latest()."""
    found = lines.loc[lines["published"] & (lines["status"] == "ok")]
    return {name: rows.to_dict("records") for name, rows in found.groupby("device_name", sort=False)}


def find_names(typed, names):
    """Return the machines that a typed name means: the one of that name, or all with its words, as "rtx 3090" has."""
    exact = [name for name in names if name.lower() == typed.lower()]
    return exact or [name for name in names if words_in(typed) <= words_in(name)]


def choose_name(typed, names):
    """Return the only name that find_names() finds, None without one; raises SettingError if there are several."""
    found = find_names(typed, names)
    if len(found) > 1:
        raise SettingError(f"B={typed!r} is several machines: set B to one of {'; '.join(found)}")
    return found[0] if found else None


def words_in(name):
    """Return the words and numbers of a name in lower case: "GeForce RTX 3090" is that of "NVIDIA RTX 3090"."""
    return set(re.findall("[a-z]+|[0-9]+", name.lower())) - {"geforce"}


def fill_rate(row):
    """Return a published row with the rate that follows from its seconds, if it states no other one."""
    rates = [
        row["value"],
        row["items"] / row["seconds"],
        float(row["batch_size"] or "nan") / row["step_seconds_median"],
    ]
    return row | {"value": next((rate for rate in rates if rate > 0), math.nan)}


def describe_both(own, published):
    """Describe own results next to a machine's published ones of the same work, and the median ratios: lines.

    Args:
        own, published: rows with `value`, `low`, `high`, `per`, the best choice last.
    """
    mine = {work_of(row): row for row in own if row["value"] > 0}
    # A figure and the row that was derived from it are one result: the largest rate of a work counts.
    filled = sorted(map(fill_rate, published), key=lambda row: (row["value"] > 0, row["value"]))
    lines = []
    ratios = {}
    for work, there in {work_of(row): row for row in filled}.items():
        here = mine.get(work)
        if here is None or not there["value"] > 0:
            continue
        ratio, low, high = (here[name] / there["value"] for name in ("value", "low", "high"))
        ratios.setdefault(there["workload"], []).append(ratio)
        interval = f" ({low:.3g} to {high:.3g})" if low > 0 else ""
        rates = f"{format_number(here['value'])} here, {format_number(there['value'])} there ({here['per']})"
        flags = f" [{here['flags']}]" if here["flags"] else ""
        lines.append(report.wrap(f"{name_work(there)}: {ratio:.3g}x{interval}, {rates}{flags}", "  "))
        how = f"here: {describe_how(here)}; there: {describe_how(there)}; {there['source']}"
        lines.append(report.wrap(f"    {how}", "    "))
    every = [ratio for some in ratios.values() for ratio in some]
    if not every:
        return ["no equal work: nothing can be compared"]
    medians = [f"{name} {statistics.median(some):.3g} (n = {len(some)})" for name, some in ratios.items()]
    words = f"median ratio here / there: {statistics.median(every):.3g} (n = {len(every)})"
    return [*lines, f"{words}; {', '.join(medians)}"]
