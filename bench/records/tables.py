"""Read results files as frames of results, and choose the one that counts of each chip, work and setup."""

import pandas as pd

from bench.records import columns, peaks, results
from bench.records.columns import disturbing_flags
from bench.records.combine import NUMBERS, combine, convert, count_processes
from bench.records.verdict import IN_TFLOPS

WORK_AND_KIND = (*columns.WORK, "kind")  # and whether a CPU or a GPU did it
RATE = ["value", "low", "high"]
MAY_BE_ZERO = [columns.COLUMNS[name].holds == "number" for name in NUMBERS]
ENOUGH = 3  # processes; a result of fewer is a quick check


def read_rows(paths, warn):
    """Read all results of these CSV files as one frame, in the order of the files.

    It has all columns: numbers as floats (NaN: unknown), the rest as text. Added are `kind`, "cpu" or "gpu",
    `published`, whether others measured it, `disturbed`, `processes`, their number, `bottleneck`, and `shown`, the name
    of the device, or of the machine if several have this device. A file that is foreign or newer is left out, and so is
    a row that cannot be read: warn() gets a line.
    """
    frame = to_frame(list(map(convert, results.read_files(paths, warn))))
    of_machines = frame.groupby(["source", "device_name"])["machine"].transform("nunique")
    names = frame["device_name"].str.replace(" GeForce", "")  # drivers print it, sources do not
    return frame.assign(shown=names.where(frame["published"] | (of_machines == 1), frame["machine"]))


def to_frame(rows):
    """Make a frame of the results of rows, as read_rows() describes it; the 0 of a stuck meter is NaN."""
    found = combine(rows)
    numbers = pd.DataFrame({name: [row[name] for row in found] for name in NUMBERS}, dtype=float)
    numbers = numbers.where((numbers > 0) | MAY_BE_ZERO)
    blanks = {name: column.blank for name, column in columns.COLUMNS.items() if name not in NUMBERS}
    text = {name: [row[name] or blank for row in found] for name, blank in blanks.items()}
    frame = pd.DataFrame(text, dtype=str).join(numbers)
    return frame.assign(
        kind=frame["device"].where(frame["device"].isin(["cpu", ""]), "gpu"),
        published=frame["source"] != "",
        disturbed=[bool(disturbing_flags(row)) for row in found],
        processes=[max(1, count_processes(row)) for row in found],
        bottleneck=[row["bottleneck"] for row in found],
    )


def choose_rows(rows):
    """Choose the result of each chip, work and setup that counts, and all published figures; the oldest comes first.

    Of several one of the newest METHOD_VERSION counts, then an undisturbed one, then one of ENOUGH processes, then one
    by itself before one of a group, then one of a clean commit, then the newest.
    """
    ranked = rows.assign(
        undisturbed=~rows["disturbed"],
        enough=rows["processes"] >= ENOUGH,
        alone=rows["group"] == "",
        clean=~rows["commit"].str.endswith("-dirty"),
    ).sort_values(["method_version", "undisturbed", "enough", "alone", "clean", "timestamp"])
    is_last = ~ranked.duplicated(["published", *peaks.CHIP, *WORK_AND_KIND, *columns.SETUP], keep="last")
    chosen = rows.loc[rows["published"] | is_last.sort_index()]
    return chosen.sort_values("timestamp", kind="stable", ignore_index=True)


def latest(rows):
    """Select the result of each chip, work and setup that counts, and all published figures, whatever their status.

    The rows of sustained runs are left out. Adds to their columns: `value`, its unit in `per` (TFLOP/s for operators)
    and its interval, `low` and `high`; `setup`: in words, if a chip has several for the same work, or cards of one name
    several power limits; `of_peak` and `of_bandwidth`, TFLOP/s and GB/s over the best ones measured on its chip.
    """
    done = rows[((rows["status"] == "ok") | rows["published"]) & (rows["scope"] != "sustained")]
    lines = choose_rows(done)
    published = lines["published"]
    is_in_tflops = lines["workload"].isin(IN_TFLOPS)
    several = lines.duplicated([*peaks.CHIP, "source", *WORK_AND_KIND], keep=False)
    cards = lines.groupby(["device_name", *WORK_AND_KIND])["power_limit_watts"]  # of one name
    several |= cards.transform("nunique") > 1
    several &= ~published
    setups = zip(several, lines[list(columns.SETUP)].to_dict("records"), strict=True)
    value = lines["tflops"].where(is_in_tflops, lines["throughput"])
    scale = (value / lines["throughput"]).where(is_in_tflops | value.isna(), 1.0)
    lines = lines.assign(
        value=value,
        low=lines["throughput_low"] * scale,
        high=lines["throughput_high"] * scale,
        per=lines["unit"].mask(is_in_tflops, "TFLOP/s").mask(is_in_tflops & (lines["precision"] == "int8"), "TOP/s"),
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
