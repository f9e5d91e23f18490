"""Find what a published result asks for, and set results of this program next to those of a published machine."""

import math
import re
import statistics
from collections import Counter

from bench.records import report
from bench.records.columns import format_number
from bench.records.likeness import NOT_STATED, SIZES, WEIGHTS, describe_how, name_work, work_of
from bench.settings import (
    FRAMEWORKS,
    MIXED,
    PARTS,
    PRECISIONS,
    WORKLOADS,
    SettingError,
    is_used,
    is_used_in,
    parse_settings,
)
from bench.workloads.workload import MODELS


def group_published(lines):
    """Return {machine: its published rows that are valid} of the lines of tables.latest()."""
    found = lines.loc[lines["published"] & (lines["status"] == "ok")]
    return {name: rows.to_dict("records") for name, rows in found.groupby("device_name", sort=False)}


def find_names(typed, names):
    """Return the machines that a typed name means: the one of that name, or all with its words, as "rtx 3090" has."""
    exact = [name for name in names if name.lower() == typed.lower()]
    return exact or [name for name in names if words_in(typed) <= words_in(name)]


def choose_name(typed, names):
    """Return the only name that find_names() finds; raises SettingError otherwise."""
    found = find_names(typed, names)
    if len(found) != 1:
        which = f"is several machines: set B to one of {'; '.join(found)}" if found else "is not in published.csv"
        raise SettingError(f"B={typed!r} {which}; `make match` lists the machines")
    return found[0]


def words_in(name):
    """Return the words and numbers of a name in lower case: "GeForce RTX 3090" is that of "NVIDIA RTX 3090"."""
    return set(re.findall("[a-z]+|[0-9]+", name.lower())) - {"geforce"}


def settings_of(row, framework):
    """Return (command, {variable: text}) that measure the work of a published row in a framework.

    What a source does not state, and what does not change the work and cannot be set here, has its default.

    Raises:
        SettingError: the reason why it cannot be measured.
    """
    if not row["value"] > 0:
        raise SettingError("no rate stated")
    if row["phase"] in PARTS:
        raise SettingError("a part of a step")
    command = row["workload"]
    if command not in WORKLOADS:
        return "tflops", {}
    if not row["batch_size"]:
        raise SettingError("no batch size stated")
    if NOT_STATED in dict(work_of(row)).values():
        raise SettingError("length not stated")
    if not row["precision"]:
        raise SettingError("precision not stated")
    if row["precision"] not in (*PRECISIONS, *MIXED):
        raise SettingError("another precision than can be measured")
    if row["scope"] != "device" and command != "image":
        raise SettingError("another scope than can be measured")
    texts = {name: row[name] for name in ("model", "phase", "scope", "precision", *SIZES, *WEIGHTS)}
    known = FRAMEWORKS[framework]
    if row["precision"] in known.lacks and row["phase"] == "inference":
        texts["precision"] = row["precision"].removeprefix("mixed_")
    if row["compile"] not in ("", "0"):
        texts["compile"] = row["compile"] if framework == "torch" else "1"
    if row["memory_format"] in known.memory_formats:
        texts["memory_format"] = row["memory_format"]
    used = {name: text for name, text in texts.items() if text and is_used(name, command)}
    return command, {name.upper(): text for name, text in used.items() if is_used_in(name, row["phase"])}


def name_command(row):
    """Return the line to type that measures the work of a published row; "" if there is none."""
    try:
        command, environ = settings_of(row, "torch")
        parse_settings(command, environ)
    except SettingError:
        return ""
    if command in ("transformer", "llm", "diffusion") and row["model"] not in MODELS:
        return ""
    return " ".join([*(f"{name}={text}" for name, text in sorted(environ.items())), "make", command])


def one_of_each_work(rows):
    """Return {work: row} of published rows: a figure and the row that was derived from it are one result."""
    return {work_of(row): row for row in sorted(map(fill_rate, rows), key=lambda row: (row["value"] > 0, row["value"]))}


def fill_rate(row):
    """Return a published row with the rate that follows from its seconds, if it states no other one."""
    rates = [
        row["value"],
        row["items"] / row["seconds"],
        float(row["batch_size"] or "nan") / row["step_seconds_median"],
    ]
    return row | {"value": next((rate for rate in rates if rate > 0), math.nan)}


def describe_matches(own, published, left_out=()):
    """Describe own results next to a machine's published ones of the same work, and the median ratios: lines.

    Args:
        own, published: rows with `value`, `low`, `high`, `per`, the best choice last.
        left_out: reasons, one for each published result that cannot be measured.
    """
    mine = {work_of(row): row for row in own if row["value"] > 0}
    lines = []
    ratios = {}
    for work, there in one_of_each_work(published).items():
        here = mine.get(work)
        if here is None or not there["value"] > 0:
            continue
        ratio, low, high = (here[name] / there["value"] for name in ("value", "low", "high"))
        ratios.setdefault(there["workload"], []).append(ratio)
        interval = f" ({low:.3g} to {high:.3g})" if low > 0 else ""
        rates = f"{format_number(here['value'])} here, {format_number(there['value'])} there ({here['per']})"
        flags = f" [{here['flags']}]" if here["flags"] else ""
        lines.append(report.wrap(f"{name_work(there)}: {ratio:.3g}x{interval}, {rates}{flags}", "  "))
        lines.append(
            report.wrap(f"    here: {describe_how(here)}; there: {describe_how(there)}; {there['source']}", "    ")
        )
    every = [ratio for some in ratios.values() for ratio in some]
    if every:
        medians = [f"{name} {statistics.median(some):.3g} (n = {len(some)})" for name, some in ratios.items()]
        lines.append(
            f"median ratio here / there: {statistics.median(every):.3g} (n = {len(every)}); {', '.join(medians)}"
        )
    else:
        lines.append("no equal work: nothing can be compared")
    if left_out:
        counts = ", ".join(f"{count} {reason}" for reason, count in Counter(left_out).most_common())
        lines.append(report.wrap(f"left out of {len(one_of_each_work(published))}: {counts}", "  "))
    return lines
