"""Summarise rows: read files, merge repetitions, derive what tables, plots and comparisons show.

python -m bench.records.tables     prints the latest rows of this machine, to paste into an issue (`make table`)
"""

import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from bench import cli
from bench.host import environment
from bench.records import columns, layout, peaks, results
from bench.records.columns import format_number
from bench.records.verdict import Rate
from bench.settings import read_settings

# A row's work: its columns of this role, and whether a CPU or a GPU did it.
WORK = (*columns.WORK, "kind")
NUMBERS = columns.of_kind("number", "positive", "meter")
RATE = ["value", "low", "high"]
MEDIANS = ["tflops", "bandwidth", "peak_memory_bytes", "power_watts", "joules_per_item", "canary_seconds"]
ENOUGH_REPETITIONS = 3  # to know how much processes differ
OPERATORS = ("matmul", "convolution", "attention")
SINGLE = (*OPERATORS, "gemv", "bandwidth")  # one operator instead of a model
DONE = ("ok", "interrupted")  # rows with any other status have no result
LARGEST = 1e18  # of any number in a row: twice that of the largest computers' FLOP/s
RETIRED = rf"\b(?:{'|'.join(columns.RETIRED_FLAGS)})\b"
SMALLEST = 1e-18  # of any number that cannot be 0


def read_rows(paths, warn=print):
    """Read all rows of these CSV files as one frame, the oldest first.

    It has all columns: numbers as floats (NaN: unknown), the rest as text. Added are `file`, the name of a row's file,
    and `kind`, "cpu" or "gpu". A file that is foreign, newer or damaged is left out, and warn() gets one line.
    """
    frames = [_type_columns([])]
    for path in paths:
        try:
            if not Path(path).is_file():
                raise ValueError("it is not a regular file")
            rows = results.read(path)
            if not rows:
                raise ValueError("it has no rows")
            frames.append(_type_columns(rows).assign(file=Path(path).name))
        except (results.ResultsError, OSError, ValueError) as error:
            warn(f"{path} is left out: {' '.join(str(error).split())}")
    rows = pd.concat(frames[1:]) if len(frames) > 1 else frames[0].assign(file="")
    return rows.sort_values("timestamp", kind="stable", ignore_index=True)


def _type_columns(rows):
    """Turn rows of text into a frame; raise ValueError for a number that cannot be one, as 0 cannot be a rate."""
    frame = pd.DataFrame(rows, columns=list(columns.COLUMNS), dtype=str)
    for name in NUMBERS:
        try:
            found = frame[name].replace("", "nan").astype(float)
        except ValueError as error:
            raise ValueError(f"its {name} is not a number: {error}") from None
        if found.abs().between(LARGEST, math.inf, inclusive="neither").any():
            raise ValueError(f"its {name} is larger than {LARGEST:g}")
        is_sound = (found > 0) & np.isfinite(found)
        kind = columns.COLUMNS[name].kind
        if kind == "positive" and not (is_sound | found.isna()).all():
            raise ValueError(f"its {name} is not always above 0 and finite")
        if kind != "number" and (is_sound & (found < SMALLEST)).any():
            raise ValueError(f"its {name} is smaller than {SMALLEST:g}")
        frame[name] = found if kind == "number" else found.where(is_sound)
    if (frame["throughput_low"] > frame["throughput_high"]).any():
        raise ValueError("its throughput_low is above its throughput_high")
    for name in (*columns.WORK, *columns.SETUP):
        frame[name] = frame[name].replace("", columns.COLUMNS[name].blank)
    frame["flags"] = frame["flags"].str.replace(RETIRED, "", regex=True).str.split().str.join(" ")
    return frame.assign(kind=frame["device"].where(frame["device"].isin(["cpu", ""]), "gpu"))


def summarize(rows, statuses=DONE):
    """Merge the latest repetitions: one line for each machine, work and setup; sustained runs are left out.

    Repetitions are processes that agree in all versions, the method's among them. Adds to the columns of the latest
    row: `value`, its unit in `per` (TFLOP/s for operators), `low` and `high` (see Rate.merge); `rows`, the number of
    repetitions; `spread`, the fastest of at least three of them over the slowest; `published`: whether others measured
    it; `setup`: in words, if a machine has several for the same work.
    """
    done = rows[rows["status"].isin(statuses) & (rows["scope"] != "sustained")]
    is_operator = done["workload"].isin(OPERATORS)
    value = done["tflops"].where(is_operator, done["throughput"])
    scale = (value / done["throughput"]).where(is_operator | value.isna(), 1.0)
    done = done.assign(
        value=value,
        low=done["throughput_low"] * scale,
        high=done["throughput_high"] * scale,
        per=done["unit"].mask(is_operator, "TFLOP/s").mask(is_operator & (done["precision"] == "int8"), "TOP/s"),
        published=done["source"] != "",
        joules_per_item=done["joules_per_item"].fillna(done["power_watts"] / done["throughput"]),
    )
    # Published figures are of different sources and setups: none of them repeats another.
    single = pd.Series(done.index, index=done.index).where(done["published"], -1)
    work = done.groupby(["machine", *WORK, single], sort=False).ngroup()
    group = done.groupby([work, *columns.SETUP], sort=False).ngroup()
    repetition = done.groupby([group, *columns.VERSIONS], sort=False).ngroup()
    # Copies of a row count once, an interrupted one only if there is no complete one, a trial of a search (too short to
    # compare with a whole measurement) only if there is nothing else.
    copy = pd.DataFrame({"work": work, "run": done["run_id"], "at": done["timestamp"]}).duplicated()
    is_whole = done["status"] != "interrupted"
    is_trial = (done["search"] != "") & (done["search_step"] == "")
    counts = ~(copy & (done["run_id"] != "")) & (is_whole | ~is_whole.groupby(work).transform("any"))
    counts &= ~is_trial | is_trial.groupby(group).transform("all")
    current = counts & (repetition == repetition.where(counts).groupby(group).transform("last"))
    lines = _merge_repetitions(done[current], group[current])
    several = lines.duplicated(["published", "machine", *WORK], keep=False) & ~lines["published"]
    setups = [columns.describe_setup(row) for row in lines.loc[several, list(columns.SETUP)].to_dict("records")]
    lines.loc[several, "setup"] = setups
    return lines


def _merge_repetitions(rows, group):
    """Return the last row of each group; if it has several rows, with the merged rate, medians and all flags."""
    lines = rows[~group.duplicated(keep="last")].assign(rows=1, setup="", spread=math.nan)
    is_several = group.duplicated(keep=False)
    several = rows[is_several].groupby(group[is_several])
    found = (
        several[MEDIANS]
        .median()
        .assign(
            rows=several.size(),
            flags=[" ".join(dict.fromkeys(" ".join(flags).split())) for _, flags in several["flags"]],
        )
    )
    merged = [Rate.merge(list_rates(repetitions)) for _, repetitions in several]
    found[RATE] = pd.DataFrame(merged, found.index, RATE, dtype=float)
    found["spread"] = (several["value"].max() / several["value"].min()).where(several.size() >= ENOUGH_REPETITIONS)
    lines.index = group[lines.index]
    lines.loc[found.index, found.columns] = found
    return lines.reset_index(drop=True)


def unseen_spread(summary):
    """Return for each line the factor by which its interval may be too narrow: 1 if it has several processes.

    A line with one process does not show how much processes differ. Its machine's other lines may: the factor is the
    median spread of those of the same workload, or else of all; 1 if there are none. Published lines have 1.
    """
    machine, spread = summary["machine"], summary["spread"]
    alike = spread.groupby([machine, summary["kind"], summary["workload"]]).transform("median")
    known = alike.fillna(spread.groupby(machine).transform("median"))
    return known.where((summary["rows"] == 1) & ~summary["published"]).fillna(1.0)


def list_rates(lines, suffix=""):
    """List the Rate of each line of a frame with `value`, `low` and `high`, or these names with a suffix."""
    return [Rate.parse(*cells) for cells in lines[[name + suffix for name in RATE]].itertuples(index=False)]


def divide_rates(lines, suffix):
    """Divide the rates of a frame by those in its columns with a suffix: a frame of `value`, `low` and `high`."""
    both = zip(list_rates(lines), list_rates(lines, suffix), strict=True)
    return pd.DataFrame([rate.ratio(other) for rate, other in both], lines.index, RATE, dtype=float)


def sustained_runs(rows):
    """List the latest sustained run of each machine and work, a frame with a row for every ten seconds."""
    found = rows[(rows["scope"] == "sustained") & rows["status"].isin(DONE) & rows["throughput"].notna()]
    latest = found.groupby(["machine", *WORK], sort=False)["run_id"].transform("last")
    found = found[found["run_id"] == latest]
    found = found.assign(published=False, rate=found["items"] / found["seconds"])
    return [run.sort_values("elapsed_seconds") for _, run in found.groupby("run_id", sort=False)]


def searches(rows):
    """List the latest `make best` of each machine, workload, model, phase and framework, a frame with a line per step.

    A line is its latest row with the merged rate of its repetitions in `value`, `low` and `high`. Steps are in order:
    the first is the default, each next one has one more change.
    """
    found = rows[rows["search_step"].str.fullmatch(r"\d+") & (rows["status"] == "ok") & rows["throughput"].notna()]
    of = ["machine", "kind", "framework", "workload", "model", "phase"]
    found = found[found["search"] == found.groupby(of, sort=False)["search"].transform("last")]
    found = found.rename(columns={"throughput": "value", "throughput_low": "low", "throughput_high": "high"})
    found = found.assign(step=found["search_step"].astype(int), published=False)
    frames = []
    for _, search in found.groupby("search", sort=False):
        step = search.groupby("step")
        lines = step.tail(1).set_index("step").sort_index()
        merged = [Rate.merge(list_rates(repetitions)) for _, repetitions in step]
        lines[RATE] = pd.DataFrame(merged, lines.index, RATE, dtype=float)
        frames.append(lines.reset_index())
    return [lines for lines in frames if lines["step"][0] == 0]  # otherwise the default did not work


def add_peak_fraction(summary, rows):
    """Add `of_peak` and `of_bandwidth`: TFLOP/s and GB/s over the best ones that `rows` have of the same machine.

    They are NaN unless both were measured by this program.
    """
    best, moved = measured_limits(rows)
    names = ["machine", "device", "device_name", "cpu_id", "precision", "tflops", "bandwidth"]
    lines = summary[names].to_dict("records")
    of_peak = pd.Series([peaks.fraction_of_peak(row, best) for row in lines], summary.index, dtype=float)
    of_bandwidth = pd.Series([peaks.fraction_of_bandwidth(row, moved) for row in lines], summary.index, dtype=float)
    own = ~summary["published"]
    return summary.assign(of_peak=of_peak.where(own), of_bandwidth=of_bandwidth.where(own))


def measured_limits(rows):
    """Return peaks.measured_peaks() and peaks.measured_bandwidths() of a frame's own rows."""
    own = rows[(rows["source"] == "") & (rows["throughput"] > 0)]
    own = own[(own["model"] == "matmul-peak") | (own["workload"] == "bandwidth")].to_dict("records")
    return peaks.measured_peaks(own), peaks.measured_bandwidths(own)


def limit_rows(frame, limit):
    """Keep at most `limit` lines: own before published ones, and each machine's first before any machine's second."""
    turns = pd.DataFrame({"published": frame["published"], "turn": frame.groupby("machine", sort=False).cumcount()})
    return frame[frame.index.isin(turns.sort_values(["published", "turn"], kind="stable").index[:limit])]


def name_line(row):
    """Describe a line's work, and its setup if the machine has several."""
    return ", ".join(filter(None, [columns.describe_work(row), row.get("setup")]))


def interval(row):
    """Format a line's interval, blank if there is none."""
    if pd.isna(row["low"]) or pd.isna(row["high"]):
        return ""
    processes = f", {row['rows']} processes" if row["rows"] > 1 else ""
    return f"{format_number(row['low'])} to {format_number(row['high'])}{processes}"


def describe_rate(row):
    """Format a line's result with its unit: a rate, or the seconds of a source that has no rate."""
    if pd.notna(row["value"]):
        return f"{format_number(row['value'])} {row['per']}"
    if pd.notna(row["seconds"]):
        return f"{format_number(row['seconds'])} s" + (
            f" for {row['items']:,.0f} items" if pd.notna(row["items"]) else ""
        )
    return f"{format_number(row['step_seconds_median'])} s per step"


def list_flags(row):
    """List a line's warnings: its flags, and its status if that is not ok."""
    return " ".join(filter(None, [row["flags"], row["status"].replace("ok", "")]))


# The columns of a table: {title: function that returns the cell of a line}.
CELLS = {
    "work": name_line,
    "framework": lambda row: f"{row['framework']} {row['framework_version']}".strip(),
    "on": lambda row: row["kind"],
    "result": describe_rate,
    "interval": interval,
    "TFLOP/s": lambda row: "" if row["workload"] in OPERATORS else format_number(row["tflops"], "{:.3g}"),
    "of peak": lambda row: format_number(100 * row["of_peak"], "{:.0f} %"),
    "GB/s": lambda row: format_number(row["bandwidth"], "{:.3g}"),
    "of bandwidth": lambda row: format_number(100 * row["of_bandwidth"], "{:.0f} %"),
    "GB": lambda row: format_number(row["peak_memory_bytes"] / 1e9, "{:.2f}"),
    "W": lambda row: format_number(row["power_watts"], "{:.0f}"),
    "J/item": lambda row: format_number(row["joules_per_item"], "{:.3g}"),
    "flags": list_flags,
}


def main():
    """Print this machine's latest rows; the exit status is 1 if it has none."""
    settings = read_settings("table")
    host = environment.describe_host(settings.machine)
    path = settings.results_dir / f"{host.machine}.csv"
    if not path.exists():
        print(f"{path} does not exist: measure something with `make image`, or name a MACHINE", file=sys.stderr)
        return 1
    rows = read_rows([path], lambda line: print(line, file=sys.stderr))
    summary = add_peak_fraction(summarize(rows), rows)
    if summary.empty:
        print(f"{path} has no row with a result", file=sys.stderr)
        return 1
    about = f"{host.machine}: {host.cpu_name}, {host.memory_gb} GB, {host.os}, driver {host.driver or 'none'}"
    print(layout.wrap(about, "  ") + "\n\n" + layout.table(CELLS, summary.to_dict("records")))
    return 0


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
