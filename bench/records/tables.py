"""Read results files as frames of rows, and choose the latest result of each machine, work and setup."""

import pandas as pd

from bench.records import columns, peaks, results
from bench.records.columns import disturbing_flags
from bench.records.verdict import IN_TFLOPS

# A row's work: its columns of this role, and whether a CPU or a GPU did it.
WORK = (*columns.WORK, "kind")
RATE = ["value", "low", "high"]
COMPUTER = ["cpu_name", "cpu_id", "cpu_count", "memory_gb", "gpu_cores"]  # a machine's rows may be from several
# {column of numbers: whether 0 is possible}
NUMBERS = {
    name: column.holds == "number" for name, column in columns.COLUMNS.items() if column.holds in columns.MEASURED
}


def read_rows(paths, warn=print):
    """Read all rows of these CSV files as one frame, in the order of the files.

    It has all columns: numbers as floats (NaN: unknown), the rest as text. Added are `kind`, "cpu" or "gpu",
    `published`, whether others measured it, `disturbed`, and `shown`, the name of the device, or of the machine if
    several have this device. A file that is foreign or newer is left out, and so is a row that cannot be read: warn()
    gets a line.
    """
    frames = []
    for path in paths:
        try:
            frames.append(convert(results.read(path, warn)))
        except (results.ResultsError, OSError) as error:
            warn(f"left out: {error}")
    rows = pd.concat(frames, ignore_index=True) if frames else convert([])
    of_machines = rows.groupby(["source", "device_name"])["machine"].transform("nunique")
    return rows.assign(shown=rows["device_name"].where(rows["published"] | (of_machines == 1), rows["machine"]))


def convert(rows):
    """Convert rows of results.read() to a frame; an unknown number, and the 0 of a stuck meter, is NaN."""
    frame = pd.DataFrame(rows, columns=list(columns.COLUMNS), dtype=str)
    numbers = frame[list(NUMBERS)].apply(pd.to_numeric).astype(float)  # objects without rows
    frame[numbers.columns] = numbers.where((numbers > 0) | list(NUMBERS.values()))
    for name in (*columns.WORK, *columns.SETUP):
        frame[name] = frame[name].replace("", columns.COLUMNS[name].blank)
    kind = frame["device"].where(frame["device"].isin(["cpu", ""]), "gpu")
    disturbed = [bool(disturbing_flags(row)) for row in rows]
    return frame.assign(kind=kind, published=frame["source"] != "", disturbed=disturbed)


def choose_rows(rows):
    """Choose the row of each machine, work and setup that counts, and all published figures; the oldest comes first.

    Only rows of the newest METHOD_VERSION count. An undisturbed row counts before a disturbed one, then one of several
    processes before a quick check of one, among those of several one of its own before one of a comparison (the column
    `search`), then the newest one. What Ctrl-C left does not replace more processes of its commit.
    """
    repeated, compared = rows["process_rates"].str.contains(" "), rows["search"] != ""
    done = rows.assign(repeated=repeated, compared=compared, pushed_out=repeated & compared)
    by = {"disturbed": False, "repeated": True, "pushed_out": False, "timestamp": True}
    done = done.sort_values(list(by), ascending=list(by.values()))
    own = done.loc[~done["published"]]
    newest = own.groupby(["machine", *WORK])["method_version"].transform("max")
    own = own.loc[own["method_version"] == newest]
    work = ["machine", *WORK, *columns.SETUP]
    processes = own["process_rates"].str.count(" ")
    most = processes.groupby([own[name] for name in (*work, "commit", "compared")]).transform("max")
    own = own.loc[processes == most].drop_duplicates(work, keep="last")
    # Published figures are of different setups: none of them replaces another.
    chosen = done.loc[done["published"] | done.index.isin(own.index)]
    return chosen.sort_values("timestamp", kind="stable", ignore_index=True)


def latest(rows):
    """Select the latest result of each machine, work and setup, and all published figures, whatever their status.

    The rows of sustained runs are left out. Adds to their columns: `value`, its unit in `per` (TFLOP/s for operators)
    and its interval, `low` and `high`; `processes`, how many; `computers`, how many its machine's own rows are
    from; `setup`: in words, if a machine has several for the same work, or cards of one name several power limits;
    `of_peak` and `of_bandwidth`, TFLOP/s and GB/s over the best ones measured on its chip.
    """
    done = rows[((rows["status"] == "ok") | rows["published"]) & (rows["scope"] != "sustained")]
    lines = choose_rows(done)
    published = lines["published"]
    is_in_tflops = lines["workload"].isin(IN_TFLOPS)
    several = lines.duplicated(["machine", "source", *WORK], keep=False)
    several |= lines.groupby(["device_name", *WORK])["power_limit_watts"].transform("nunique") > 1  # cards of one name
    several &= ~published
    setups = zip(several, lines[list(columns.SETUP)].to_dict("records"), strict=True)
    computers = done[~done["published"]].drop_duplicates(["machine", *COMPUTER])["machine"].value_counts()
    value = lines["tflops"].where(is_in_tflops, lines["throughput"])
    scale = (value / lines["throughput"]).where(is_in_tflops | value.isna(), 1.0)
    lines = lines.assign(
        value=value,
        low=lines["throughput_low"] * scale,
        high=lines["throughput_high"] * scale,
        per=lines["unit"].mask(is_in_tflops, "TFLOP/s").mask(is_in_tflops & (lines["precision"] == "int8"), "TOP/s"),
        processes=lines["process_rates"].str.split().str.len().clip(lower=1),
        computers=lines["machine"].map(computers),
        setup=[columns.describe_setup(row) if is_one_of_several else "" for is_one_of_several, row in setups],
    )
    measured = lines[~published]
    rows = measured.to_dict("records")
    reached = peaks.measured_peaks(rows)
    shares = {
        f"of_{name}": pd.Series([peaks.fraction_of(reached, row, quantity) for row in rows], measured.index, float)
        for name, quantity in (("peak", "tflops"), ("bandwidth", "bandwidth"))
    }
    return lines.assign(**shares)
