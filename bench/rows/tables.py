"""Rows set side by side: which belong to the same work, what they say together, and as Markdown.

python -m bench.rows.tables     the latest rows of this machine, to paste into an issue (`make table`)
"""

import io
import math
import sys
from pathlib import Path

import pandas as pd

from bench.machine import environment
from bench.rows import peaks, results, verdict
from bench.settings import SettingError, read_settings

# Rows are of the same work when these agree; which machine and which versions did it is what one compares.
WORK = (
    *("workload", "model", "phase", "scope", "epoch", "kind", "framework", "precision", "compile", "memory_format"),
    *("batch_size", "image_size", "sequence_length", "matrix_size", "data", "optimizer"),
)
# How a machine was set up for it: each way is a line of its own.
SETUP = ("num_threads", "num_workers", "power_source")
# Rows of the same work and setup are repetitions of each other when these agree; the latest such group counts.
VERSIONS = ("framework_version", "driver", "os", "python", "commit")
NUMBERS = (
    *("throughput", "throughput_low", "throughput_high", "tflops", "seconds", "items", "peak_memory_bytes"),
    *("power_watts", "joules_per_item", "step_seconds_median", "loss_mean", "accuracy"),
    *("elapsed_seconds", "temperature_c"),
)
# Unknown is blank, so that there is no 0: a file that has one in the figures themselves is broken, and one in a meter's
# column is a meter that stood still. What a network learns can be anything.
METERS = ("peak_memory_bytes", "power_watts", "joules_per_item")
POSITIVE = tuple(column for column in NUMBERS if column not in (*METERS, "loss_mean", "accuracy", "temperature_c"))
TEXTS = (
    *("timestamp", "status", "flags", "source", "note", "machine", "device", "device_name", "unit", "bottleneck"),
    *("run_id", *(column for column in (*WORK, *SETUP, *VERSIONS) if column != "kind")),
)
OPERATORS = ("matmul", "convolution")
SINGLE = (*OPERATORS, "bandwidth")  # one operator in place of a network
DONE = ("ok", "interrupted")


def read_rows(paths, warn=print):
    """All rows of these CSV files, a machine's oldest first: TEXTS, blank where unknown, NUMBERS, `file` and `kind`.

    The other columns stay unread: no table or picture has them, and most of the time goes into reading.
    A foreign, newer or broken file is named in one line and left out.
    """
    alike = {}  # header: [(path, rows, text)], which pandas reads at once: a call for each file doubles the time
    for path in paths:
        try:
            results.check(path)
            header, _, text = Path(path).read_bytes().partition(b"\n")
            alike.setdefault(header, []).append((path, _count_rows(header, text), text))
        except (results.ResultsError, OSError, ValueError) as error:
            _leave_out(path, error, warn)
    frames = [frame for header, files in alike.items() for frame in _parse_all(header, files, warn)]
    rows = pd.concat(frames, ignore_index=True) if frames else _complete(pd.DataFrame())
    rows["kind"] = rows["device"].where(rows["device"].isin(["cpu", ""]), "gpu")
    return rows if _is_in_order(rows) else rows.sort_values("timestamp", kind="stable", ignore_index=True)


def _is_in_order(rows):
    """Whether the measured rows of each machine stand together, oldest first, as they do in a file of its own."""
    own = rows.loc[rows["source"] == "", ["machine", "timestamp"]]
    machines, times = own["machine"].to_numpy(), own["timestamp"].to_numpy()
    is_same = machines[1:] == machines[:-1]
    return len(set(machines)) >= (~is_same).sum() + 1 and not (is_same & (times[1:] < times[:-1])).any()


def _leave_out(path, error, warn):
    warn(f"{path} is left out: {' '.join(str(error).split())}")


def _count_rows(header, text):
    """Lines that are not blank; ValueError for one with more or fewer cells than the header, which pandas forgives."""
    wanted, lines = header.count(b","), text.splitlines()
    for number, line in enumerate(lines, 2):
        if line.count(b",") != wanted and line and b'"' not in line:
            raise ValueError(f"its line {number} has {line.count(b',') + 1} columns, its header {wanted + 1}")
    return sum(map(bool, lines))


def _parse_all(header, files, warn):
    """One frame of all these files, or one of each where that fails, without those that cannot be read."""
    try:
        return [_parse(header, files)]
    except ValueError as error:  # pandas' own are ValueErrors
        if len(files) > 1:
            return [frame for file in files for frame in _parse_all(header, [file], warn)]
        _leave_out(files[0][0], error, warn)
        return []


def _parse(header, files):
    read = pd.read_csv(
        io.BytesIO(b"".join([header, b"\n", *(text for *_, text in files)])),
        dtype=dict.fromkeys(TEXTS, str) | dict.fromkeys(NUMBERS, float),
        usecols=lambda column: column in TEXTS or column in NUMBERS,
        na_values={column: ["", "nan"] for column in NUMBERS},
        keep_default_na=False,
    )
    names = [name for path, rows, _ in files for name in [Path(path).name] * rows]
    if len(read) != len(names):
        raise ValueError(f"{len(names)} lines below its header are {len(read)} rows: a quotation mark stays open")
    for column in (each for each in (*POSITIVE, *METERS) if each in read):
        is_sound = read[column].between(0, math.inf, inclusive="neither")
        if column in POSITIVE and not (is_sound | read[column].isna()).all():
            raise ValueError(f"its {column} is not always above 0 and finite")
        read[column] = read[column].where(is_sound)
    return _complete(read.assign(file=names))


def _complete(read):
    """With the columns that a file of an older version lacks: blank, or NaN where they are numbers."""
    blank = dict.fromkeys(("file", *TEXTS), "") | dict.fromkeys(NUMBERS, math.nan)
    return read.assign(**{column: value for column, value in blank.items() if column not in read})


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
        rows=1,
    )
    # Published figures are of different sources and setups: none of them repeats another.
    alone = pd.Series(done.index, index=done.index).where(done["published"], -1)
    work = done.groupby(["machine", *WORK, alone], sort=False).ngroup()
    setup = [done[column].replace("", "ac") if column == "power_source" else done[column] for column in SETUP]
    group = done.groupby([work, *setup], sort=False).ngroup()
    repetition = done.groupby([group, *VERSIONS], sort=False).ngroup()
    counts = _counts(done, work)
    current = counts & (repetition == repetition.where(counts).groupby(group).transform("last"))
    lines = take_together(done[current], group[current])
    return lines.assign(setup=_name_setups(lines, work[current][~group[current].duplicated(keep="last")]))


def _counts(done, work):
    """Which rows do: none twice, as in a copy of a file, and none that was interrupted where another was not."""
    again = pd.DataFrame({"work": work, "run": done["run_id"], "at": done["timestamp"]}).duplicated()
    again &= done["run_id"] != ""
    is_whole = done["status"] != "interrupted"
    return ~again & (is_whole | ~is_whole.groupby(work).transform("any"))


def _name_setups(lines, work):
    """What sets a line apart from others of the same machine and work, blank where there are none."""
    several = work.duplicated(keep=False).to_numpy()
    words = pd.Series("", index=lines.index)
    words[several] = [
        ", ".join(
            [f"threads: {row.num_threads or 'unknown'}"]
            + ([f"workers: {row.num_workers}"] if row.num_workers else [])
            + (["on battery"] if row.power_source == "battery" else [])
        )
        for row in lines[several].itertuples()
    ]
    return words


def sustained_runs(rows):
    """[frame]: of each machine and work the latest sustained run, a row each ten seconds."""
    found = rows[(rows["scope"] == "sustained") & rows["status"].isin(DONE) & rows["throughput"].notna()]
    if found.empty:
        return []
    latest = found.groupby(["machine", *WORK], sort=False)["run_id"].transform("last")
    found = found[found["run_id"] == latest]
    found = found.assign(published=False, rate=found["items"] / found["seconds"])
    return [run.sort_values("elapsed_seconds") for _, run in found.groupby("run_id", sort=False)]


def burst_and_sustained(run):
    """Rates of a sustained run in its first half minute and in its last third, NaN where it was too short."""
    rows = run[["elapsed_seconds", "seconds", "items"]].itertuples(index=False, name=None)
    return tuple(math.nan if rate is None else rate for rate in verdict.burst_and_sustained(list(rows)))


def take_together(current, group):
    """The last row of each group; of several rows the median, what covers all intervals, all flags, their number."""
    is_last, is_one = ~group.duplicated(keep="last"), ~group.duplicated(keep=False)
    last = current[is_last].set_index(group[is_last])
    several = current[~is_one].groupby(group[~is_one])
    low, high = several[["low", "value"]].min().min(axis=1), several[["high", "value"]].max().max(axis=1)
    middles = several[["value", "tflops", "peak_memory_bytes", "power_watts", "joules_per_item"]].median()
    for column, found in {**middles, "low": low, "high": high, "rows": several.size()}.items():
        last.loc[found.index, column] = found
    flags = _all_flags(current.loc[~is_one, "flags"], group[~is_one])
    last.loc[list(flags), "flags"] = list(flags.values())
    return last.reset_index(drop=True)


def _all_flags(flags, group):
    """{group: its flags, each once}, of groups that have any."""
    found = {}
    different = pd.DataFrame({"group": group, "flags": flags})[flags != ""].drop_duplicates()
    for place, words in zip(different["group"], different["flags"], strict=True):
        found.setdefault(place, {}).update(dict.fromkeys(words.split()))
    return {place: " ".join(words) for place, words in found.items()}


def add_peak_fraction(summary, rows):
    """The column `of_peak`: TFLOP/s over the machine's own best peak among all rows, where both were measured here."""
    key = ["machine", "device", "precision"]
    found = rows.loc[rows["model"] == "matmul-peak", [*key, "model", "status", "flags", "tflops"]]
    best = peaks.measured_peaks(found.to_dict("records"))
    lines = [[*each, float(row["tflops"])] for each, row in best.items()]
    ceilings = pd.DataFrame(lines, columns=[*key, "peak"]).astype(dict.fromkeys(key, str))
    mine = summary[key].assign(precision=summary["precision"].replace(peaks.SIXTEEN_BITS))
    ceiling = mine.merge(ceilings, on=key, how="left")["peak"].where(~summary["published"])
    return summary.assign(of_peak=summary["tflops"] / ceiling)


def thin(frame, limit):
    """At most so many lines: own before published ones, and each machine's first before any machine's second."""
    if len(frame) <= limit:
        return frame
    turns = pd.DataFrame({"published": frame["published"], "turn": frame.groupby("machine", sort=False).cumcount()})
    return frame[frame.index.isin(turns.sort_values(["published", "turn"], kind="stable").index[:limit])]


def name_work(row):
    """What a line's work is, in words: model, phase, and the settings that it has."""
    words = [row["model"], row["phase"], row["scope"] if row["scope"] not in ("device", "") else ""]
    words += [f"epoch {row['epoch']}" if row["epoch"] else "", row["matrix_size"], row["precision"]]
    words += ["compiled" if row["compile"] == "1" else "", row["memory_format"]]
    words += [f"batch {row['batch_size']}" if row["batch_size"] else ""]
    words += [f"{row['sequence_length']} tokens" if row["sequence_length"] else ""]
    words += [f"{row['image_size']} px" if row["workload"] == "image" and row["image_size"] else ""]
    words += ["synthetic images" if row["workload"] == "mlp" and row["data"] == "synthetic" else ""]
    words += [row.get("setup", "")]
    return ", ".join(word for word in words if word)


def figure(value, pattern="{:.4g}"):
    """A number as text, blank where it is unknown."""
    if value is None or pd.isna(value) or value == "":
        return ""
    return results.without_exponent(pattern.format(float(value)))


def interval(row):
    """A line's interval in words, blank where there is none."""
    if pd.isna(row["low"]) or pd.isna(row["high"]):
        return ""
    of = f", {row['rows']} runs" if row["rows"] > 1 else ""
    return f"{figure(row['low'])} to {figure(row['high'])}{of}"


def markdown(header, lines):
    """A Markdown table; what is in no line is left out as a column."""
    kept = [i for i in range(len(header)) if any(str(line[i]) for line in lines)]
    cells = [[str(line[i]).replace("|", "/") for i in kept] for line in [header, ["---"] * len(header), *lines]]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


HEADER = ("work", "framework", "on", "result", "interval", "TFLOP/s", "of peak", "GB", "W", "J/item", "flags")


def describe_rate(row):
    """A line's result with its unit: a rate, or the seconds in place of which a source gives none."""
    if pd.notna(row["value"]):
        return f"{figure(row['value'])} {row['per']}"
    if pd.notna(row["seconds"]):
        return f"{figure(row['seconds'])} s" + (f" for {row['items']:,.0f} items" if pd.notna(row["items"]) else "")
    return f"{figure(row['step_seconds_median'])} s a step"


def describe(row):
    """The cells of HEADER for one line."""
    of_peak = figure(100 * row["of_peak"], "{:.0f} %") if pd.notna(row["of_peak"]) else ""
    tflops = "" if row["workload"] in OPERATORS else figure(row["tflops"], "{:.3g}")
    memory = figure(row["peak_memory_bytes"] / 1e9, "{:.2f}") if pd.notna(row["peak_memory_bytes"]) else ""
    watts, joules = figure(row["power_watts"], "{:.0f}"), figure(row["joules_per_item"], "{:.3g}")
    framework = f"{row['framework']} {row['framework_version']}".strip()
    cells = (
        name_work(row),
        framework,
        row["kind"],
        describe_rate(row),
        interval(row),
        tflops,
        of_peak,
        memory,
        watts,
        joules,
    )
    return [*cells, say_flags(row)]


def say_flags(row):
    """A line's doubts: its flags, and whether it was interrupted."""
    return f"{row['flags']}{' interrupted' if row['status'] == 'interrupted' else ''}".strip()


def main():
    """Print this machine's latest rows; the exit status is 1 where it has none."""
    try:
        settings = read_settings("table")
        host = environment.describe_host(settings.machine)
    except SettingError as error:
        print(error, file=sys.stderr)
        return 2
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
    print(markdown(HEADER, [describe(row) for row in summary.to_dict("records")]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
