"""Rows side by side: read, repetitions taken together, as Markdown.

python -m bench.rows.tables     the latest rows of this machine, to paste into an issue (`make table`)
"""

import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from bench import cli
from bench.machine import environment
from bench.rows import columns, peaks, results, verdict
from bench.settings import read_settings

# A row's work: its columns of this role, and whether a CPU or a GPU did it.
WORK = (*columns.WORK, "kind")
NUMBERS = columns.of_kind("number", "positive", "meter")
MEDIANS = ["value", "tflops", "bandwidth", "peak_memory_bytes", "power_watts", "joules_per_item"]  # of repetitions
OPERATORS = ("matmul", "convolution")
SINGLE = (*OPERATORS, "bandwidth")  # one operator in place of a model
DONE = ("ok", "interrupted")
LARGEST = 1e18  # of any number in a row: twice that of the largest computers' FLOP/s


def read_rows(paths, warn=print):
    """All rows of these CSV files as one frame, the oldest first.

    It has all columns: numbers as floats (NaN: unknown), the rest as text. Added are `file`, the name of a row's file,
    and `kind`, "cpu" or "gpu". A file that is foreign, newer or broken is named in one line and left out.
    """
    frames = []
    for path in paths:
        try:
            if not Path(path).is_file():
                raise ValueError("it is no regular file")
            results.check(path)
            frames.append(_typed(*results.read_cells(path)).assign(file=Path(path).name))
        except (results.ResultsError, OSError, ValueError) as error:
            warn(f"{path} is left out: {' '.join(str(error).split())}")
    rows = pd.concat(frames) if frames else _typed(list(columns.COLUMNS), []).assign(file="")
    return rows.sort_values("timestamp", kind="stable", ignore_index=True)


def _typed(header, cells):
    """The cells as a frame; ValueError for a number that cannot be one, as 0 cannot be a rate."""
    frame = pd.DataFrame(cells, columns=header, dtype=str)
    for name in NUMBERS:
        try:
            found = frame[name].replace("", "nan").astype(float)
        except ValueError as error:
            raise ValueError(f"its {name} is no number: {error}") from None
        if found.abs().between(LARGEST, math.inf, inclusive="neither").any():
            raise ValueError(f"its {name} is larger than {LARGEST:g}")
        is_sound = (found > 0) & np.isfinite(found)
        kind = columns.COLUMNS[name].kind
        if kind == "positive" and not (is_sound | found.isna()).all():
            raise ValueError(f"its {name} is not always above 0 and finite")
        frame[name] = found if kind == "number" else found.where(is_sound)
    if (frame["throughput_low"] > frame["throughput_high"]).any():
        raise ValueError("its throughput_low is above its throughput_high")
    for name in (*columns.WORK, *columns.SETUP):
        frame[name] = frame[name].replace("", columns.COLUMNS[name].blank)
    return frame.assign(kind=frame["device"].where(frame["device"].isin(["cpu", ""]), "gpu"))


def summarize(rows, statuses=DONE):
    """One line for each machine, work and setup: the latest repetitions together; without sustained runs.

    Adds to the latest row's columns, numbers as floats: `value`, its unit in `per` (TFLOP/s for operators), `low` and
    `high`: the row's own interval, or, where there are several rows, what covers all of theirs; `rows`, their number;
    `published`: whether others measured it; `setup`: in words, where a machine has several for the same work.
    """
    done = rows[rows["status"].isin(statuses) & (rows["scope"] != "sustained")]
    is_operator = done["workload"].isin(OPERATORS)
    scale = (done["tflops"] / done["throughput"]).where(is_operator & done["throughput"].notna(), 1.0)
    done = done.assign(
        value=done["tflops"].where(is_operator, done["throughput"]),
        low=done["throughput_low"] * scale,
        high=done["throughput_high"] * scale,
        per=done["unit"].mask(is_operator, "TFLOP/s"),
        published=done["source"] != "",
        joules_per_item=done["joules_per_item"].fillna(done["power_watts"] / done["throughput"]),
    )
    # Published figures are of different sources and setups: none of them repeats another.
    alone = pd.Series(done.index, index=done.index).where(done["published"], -1)
    work = done.groupby(["machine", *WORK, alone], sort=False).ngroup()
    group = done.groupby([work, *columns.SETUP], sort=False).ngroup()
    repetition = done.groupby([group, *columns.VERSIONS], sort=False).ngroup()
    is_look = (done["search"] != "") & (done["search_step"] == "")  # too short to stand beside a whole measurement
    counts = _counts(done, work) & (~is_look | is_look.groupby(group).transform("all"))
    current = counts & (repetition == repetition.where(counts).groupby(group).transform("last"))
    lines = _merge_repetitions(done[current], group[current])
    several = lines.duplicated(["published", "machine", *WORK], keep=False) & ~lines["published"]
    setups = [columns.describe_setup(row) for row in lines.loc[several, list(columns.SETUP)].to_dict("records")]
    lines.loc[several, "setup"] = setups
    return lines


def _counts(done, work):
    """Which rows count: copies of a row once, and an interrupted one only where there is no whole one."""
    again = pd.DataFrame({"work": work, "run": done["run_id"], "at": done["timestamp"]}).duplicated()
    again &= done["run_id"] != ""
    is_whole = done["status"] != "interrupted"
    return ~again & (is_whole | ~is_whole.groupby(work).transform("any"))


def _merge_repetitions(current, group):
    """The last row of each group; of several rows the median, what covers all intervals, all flags, their number."""
    lines = current[~group.duplicated(keep="last")].assign(rows=1, setup="")
    is_several = group.duplicated(keep=False)
    several = current[is_several].groupby(group[is_several])
    found = (
        several[MEDIANS]
        .median()
        .assign(
            low=several[["low", "value"]].min().min(axis=1),
            high=several[["high", "value"]].max().max(axis=1),
            rows=several.size(),
            flags=[" ".join(dict.fromkeys(" ".join(flags).split())) for _, flags in several["flags"]],
        )
    )
    lines.index = group[lines.index]
    lines.loc[found.index, found.columns] = found
    return lines.reset_index(drop=True)


def sustained_runs(rows):
    """[frame]: of each machine and work the latest sustained run, a row each ten seconds."""
    found = rows[(rows["scope"] == "sustained") & rows["status"].isin(DONE) & rows["throughput"].notna()]
    latest = found.groupby(["machine", *WORK], sort=False)["run_id"].transform("last")
    found = found[found["run_id"] == latest]
    found = found.assign(published=False, rate=found["items"] / found["seconds"])
    return [run.sort_values("elapsed_seconds") for _, run in found.groupby("run_id", sort=False)]


def searches(rows):
    """[frame]: of each machine, workload, model, phase and framework the latest `make best`, a line for each step.

    A line is its latest row with `value`, the median of the repetitions, and `low` and `high`, what covers all of them.
    Steps are in order: the first is the default, each next one has a change more.
    """
    found = rows[rows["search_step"].str.fullmatch(r"\d+") & (rows["status"] == "ok") & rows["throughput"].notna()]
    of = ["machine", "kind", "framework", "workload", "model", "phase"]
    found = found[found["search"] == found.groupby(of, sort=False)["search"].transform("last")]
    found = found.assign(
        value=found["throughput"],
        low=found["throughput_low"].fillna(found["throughput"]),
        high=found["throughput_high"].fillna(found["throughput"]),
        step=found["search_step"].astype(int),
        published=False,
    )
    frames = []
    for _, search in found.groupby("search", sort=False):
        step = search.groupby("step")
        lines = step.tail(1).set_index("step").sort_index()
        lines = lines.assign(value=step["value"].median(), low=step["low"].min(), high=step["high"].max())
        frames.append(lines.reset_index())
    return [lines for lines in frames if lines["step"][0] == 0]  # else the default did not work


def burst_and_sustained(run):
    """Rates of a sustained run in its first half minute and in its last third, NaN where it was too short."""
    rows = run[["elapsed_seconds", "seconds", "items"]].itertuples(index=False, name=None)
    return tuple(math.nan if rate is None else rate for rate in verdict.burst_and_sustained(list(rows)))


def add_peak_fraction(summary, rows):
    """The columns `of_peak` and `of_bandwidth`: TFLOP/s and GB/s over the machine's own best ones among all rows.

    They are blank unless both were measured here.
    """
    best = peaks.measured_peaks(rows[rows["model"] == "matmul-peak"].to_dict("records"))
    moved = peaks.measured_bandwidths(rows[rows["throughput"] > 0].to_dict("records"))
    known = summary[["machine", "device", "precision", "tflops"]].to_dict("records")
    of_peak = pd.Series([peaks.fraction_of_peak(row, best) for row in known], index=summary.index, dtype=float)
    read = summary[["machine", "device", "bandwidth"]].to_dict("records")
    of_bandwidth = pd.Series(
        [peaks.fraction_of_bandwidth(row, moved) for row in read], index=summary.index, dtype=float
    )
    own = ~summary["published"]
    return summary.assign(of_peak=of_peak.where(own), of_bandwidth=of_bandwidth.where(own))


def limit_rows(frame, limit):
    """At most so many lines: own before published ones, and each machine's first before any machine's second."""
    turns = pd.DataFrame({"published": frame["published"], "turn": frame.groupby("machine", sort=False).cumcount()})
    return frame[frame.index.isin(turns.sort_values(["published", "turn"], kind="stable").index[:limit])]


def name_line(row):
    """A line's work in words, and its setup where the machine has several."""
    return ", ".join(filter(None, [columns.describe_work(row), row.get("setup")]))


def figure(value, pattern="{:.4g}"):
    """A number as text, blank where it is unknown."""
    if value is None or pd.isna(value) or value == "":
        return ""
    return columns.without_exponent(pattern.format(float(value)))


def interval(row):
    """A line's interval in words, blank where there is none."""
    if pd.isna(row["low"]) or pd.isna(row["high"]):
        return ""
    runs = f", {row['rows']} runs" if row["rows"] > 1 else ""
    return f"{figure(row['low'])} to {figure(row['high'])}{runs}"


def describe_rate(row):
    """A line's result with its unit: a rate, or the seconds of a source that gives no rate."""
    if pd.notna(row["value"]):
        return f"{figure(row['value'])} {row['per']}"
    if pd.notna(row["seconds"]):
        return f"{figure(row['seconds'])} s" + (f" for {row['items']:,.0f} items" if pd.notna(row["items"]) else "")
    return f"{figure(row['step_seconds_median'])} s a step"


def say_flags(row):
    """A line's doubts: its flags, and whether it was interrupted."""
    return f"{row['flags']}{' interrupted' if row['status'] == 'interrupted' else ''}".strip()


# The columns of a table: {title: function that gives the cell of a line}.
CELLS = {
    "work": name_line,
    "framework": lambda row: f"{row['framework']} {row['framework_version']}".strip(),
    "on": lambda row: row["kind"],
    "result": describe_rate,
    "interval": interval,
    "TFLOP/s": lambda row: "" if row["workload"] in OPERATORS else figure(row["tflops"], "{:.3g}"),
    "of peak": lambda row: figure(100 * row["of_peak"], "{:.0f} %"),
    "GB/s": lambda row: figure(row["bandwidth"], "{:.3g}"),
    "of bandwidth": lambda row: figure(100 * row["of_bandwidth"], "{:.0f} %"),
    "GB": lambda row: figure(row["peak_memory_bytes"] / 1e9, "{:.2f}"),
    "W": lambda row: figure(row["power_watts"], "{:.0f}"),
    "J/item": lambda row: figure(row["joules_per_item"], "{:.3g}"),
    "flags": say_flags,
}


class Markdown(str):
    """A cell that is Markdown already."""


ESCAPES = {ord(letter): f"&#{ord(letter)};" for letter in "&<>|[]`"} | dict.fromkeys((*range(32), *range(127, 160)))


def escape(cell):
    """A cell as plain text in Markdown: no HTML, links, pictures, code or control characters."""
    return cell if isinstance(cell, Markdown) else str(cell).translate(ESCAPES)


def markdown(cells, rows):
    """A Markdown table of these rows; a column without any cell is left out."""
    lines = [[escape(cell(row)) for cell in cells.values()] for row in rows]
    kept = [i for i in range(len(cells)) if any(line[i] for line in lines)]
    lines = [list(cells), ["---"] * len(cells), *lines]
    return "\n".join("| " + " | ".join(line[i] for i in kept) + " |" for line in lines)


def main():
    """Print this machine's latest rows; the exit status is 1 where it has none."""
    settings = read_settings("table")
    host = environment.describe_host(settings.machine)
    path = settings.results_dir / f"{host.machine}.csv"
    if not path.exists():
        print(f"{path} does not exist: `make image` measures something, or name a MACHINE", file=sys.stderr)
        return 1
    rows = read_rows([path], lambda line: print(line, file=sys.stderr))
    summary = add_peak_fraction(summarize(rows), rows)
    if summary.empty:
        print(f"{path} has no row with a result", file=sys.stderr)
        return 1
    print(f"{host.machine}: {host.cpu_name}, {host.memory_gb} GB, {host.os}, driver {host.driver or 'none'}\n")
    print(markdown(CELLS, summary.to_dict("records")))
    return 0


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
