"""Rows set side by side: which belong to the same work, what they say together, and as Markdown.

python -m bench.tables     the latest rows of this machine, to paste into an issue (`make table`)
"""

import csv
import sys
from pathlib import Path

import pandas as pd

from bench import environment, peaks, results
from bench.settings import SettingError, read_settings

# Rows are of the same work when these agree; which machine and which versions did it is what one compares.
WORK = (
    *("workload", "model", "phase", "scope", "epoch", "kind", "framework", "precision", "compile", "memory_format"),
    *("batch_size", "image_size", "sequence_length", "matrix_size", "data", "optimizer"),
)
# Rows of the same work are repetitions of each other when these agree as well; the latest such group counts.
VERSIONS = ("framework_version", "driver", "os", "python", "commit", "num_threads", "num_workers", "power_source")
NUMBERS = (
    *("throughput", "throughput_low", "throughput_high", "tflops", "seconds", "items", "peak_memory_bytes"),
    *("power_watts", "joules_per_item", "step_seconds_median"),
)
OPERATORS = ("matmul", "convolution")
DONE = ("ok", "interrupted")


def read_rows(paths, warn=print):
    """All rows of these CSV files, as text, in a frame with the columns of results.py, `file` and `kind`.

    A foreign, newer or broken file is named in one line and left out.
    """
    frames = [frame for path in paths if (frame := _read_file(path, warn)) is not None]
    columns = [*results.COLUMNS, "file"]
    rows = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns, dtype=str)
    rows["kind"] = rows["device"].where(rows["device"].isin(["cpu", ""]), "gpu")
    return rows


def _read_file(path, warn):
    try:
        results.check(path)
        read = pd.read_csv(path, dtype=str, keep_default_na=False, on_bad_lines="error", quoting=csv.QUOTE_MINIMAL)
    except (results.ResultsError, OSError, ValueError) as error:  # pandas' own are ValueErrors
        warn(f"{path} is left out: {' '.join(str(error).split())}")
        return None
    if not isinstance(read.index, pd.RangeIndex):
        warn(f"{path} is left out: its rows have more columns than the header")
        return None
    return read.reindex(columns=list(results.COLUMNS), fill_value="").assign(file=Path(path).name)


def summarize(rows):
    """One line for each machine and work: the latest repetitions together.

    Adds to the latest row's columns, numbers as floats: `value`, its unit in `per` (TFLOP/s for operators), `low` and
    `high`: the row's own interval, or, where there are several rows, what covers all of theirs; `rows`, their number.
    """
    done = rows[rows["status"].isin(DONE)].copy()
    for column in NUMBERS:
        done[column] = pd.to_numeric(done[column], errors="coerce")
    is_operator = done["workload"].isin(OPERATORS)
    scale = (done["tflops"] / done["throughput"]).where(is_operator & done["throughput"].notna(), 1.0)
    done["value"] = done["tflops"].where(is_operator, done["throughput"])
    done["low"], done["high"] = done["throughput_low"] * scale, done["throughput_high"] * scale
    done["per"] = done["unit"].mask(is_operator, "TFLOP/s")
    done["own_value"] = done["value"]
    if done.empty:
        return done.assign(rows=pd.Series(dtype=int))
    # Published figures are of different sources and setups: none of them repeats another.
    done["alone"] = done.index.where(done["source"] != "", -1)
    same_work = ["machine", *WORK, "alone"]
    group = done.groupby(same_work, sort=False, dropna=False).ngroup()
    repetition = done.groupby([*same_work, *VERSIONS], sort=False, dropna=False).ngroup()
    latest = repetition.groupby(group).transform("last")
    current = done[repetition == latest]
    group = group[current.index]
    together = current.groupby(group)
    last = together.tail(1).set_index(group[together.tail(1).index])
    last["rows"] = together.size()
    middles = ["value", "tflops", "peak_memory_bytes", "power_watts", "joules_per_item"]
    last[middles] = together[middles].median()
    last["low"] = together[["low", "own_value"]].min().min(axis=1).where(last["rows"] > 1, last["low"])
    last["high"] = together[["high", "own_value"]].max().max(axis=1).where(last["rows"] > 1, last["high"])
    return last.reset_index(drop=True)


def add_peak_fraction(summary, rows):
    """The column `of_peak`: TFLOP/s over the machine's own best measured peak among all rows, as text."""
    best = peaks.measured_peaks(rows[rows["model"] == "matmul-peak"].to_dict("records"))
    fractions = [
        peaks.fraction_of_peak(row | {"tflops": row["tflops"] if row["tflops"] == row["tflops"] else None}, best)
        for row in summary.to_dict("records")
    ]
    return summary.assign(of_peak=pd.Series(fractions, index=summary.index, dtype=float))


def name_work(row):
    """What a line's work is, in words: model, phase, and the settings that it has."""
    words = [row["model"], row["phase"], row["scope"] if row["scope"] not in ("device", "") else ""]
    words += [f"epoch {row['epoch']}" if row["epoch"] else "", row["matrix_size"], row["precision"]]
    words += ["compiled" if row["compile"] == "1" else "", row["memory_format"]]
    words += [f"batch {row['batch_size']}" if row["batch_size"] else ""]
    words += [f"{row['sequence_length']} tokens" if row["sequence_length"] else ""]
    words += [f"{row['image_size']} px" if row["workload"] == "image" and row["image_size"] else ""]
    return ", ".join(word for word in words if word)


def figure(value, pattern="{:.4g}"):
    """A number as text, blank where it is unknown."""
    return "" if value is None or pd.isna(value) or value == "" else pattern.format(float(value))


def interval(row):
    """A line's interval in words, blank where there is none."""
    if pd.isna(row["low"]) or pd.isna(row["high"]):
        return ""
    of = f", {row['rows']} runs" if row["rows"] > 1 else ""
    return f"{row['low']:.4g} to {row['high']:.4g}{of}"


def markdown(header, lines):
    """A Markdown table; what is in no line is left out as a column."""
    kept = [i for i in range(len(header)) if any(str(line[i]) for line in lines)]
    cells = [[str(line[i]).replace("|", "/") for i in kept] for line in [header, ["---"] * len(header), *lines]]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


HEADER = ("work", "framework", "on", "result", "interval", "TFLOP/s", "of peak", "GB", "W", "J/item", "flags")


def describe(row):
    """The cells of HEADER for one line."""
    if pd.notna(row["value"]):
        rate = f"{figure(row['value'])} {row['per']}"
    elif pd.notna(row["seconds"]):
        rate = f"{figure(row['seconds'])} s"
    else:
        rate = f"{figure(row['step_seconds_median'])} s a step"
    of_peak = figure(100 * row["of_peak"], "{:.0f} %") if pd.notna(row["of_peak"]) else ""
    tflops = "" if row["workload"] in OPERATORS else figure(row["tflops"], "{:.3g}")
    memory = figure(row["peak_memory_bytes"] / 1e9, "{:.2f}") if pd.notna(row["peak_memory_bytes"]) else ""
    watts, joules = figure(row["power_watts"], "{:.0f}"), figure(row["joules_per_item"], "{:.3g}")
    framework = f"{row['framework']} {row['framework_version']}".strip()
    cells = (name_work(row), framework, row["kind"], rate, interval(row), tflops, of_peak, memory, watts, joules)
    return [*cells, row["flags"]]


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
