"""Read results files as one frame of rows, combine the rows of a run, and choose the results that count.

A row is what one process measured of one work. A result is what a run, all processes of one combination of settings,
measured of it. A published row is a result already.
"""

import csv
import math
from collections import Counter, defaultdict

import numpy as np
import pandas as pd

from bench.records import peaks, results
from bench.records.columns import COLUMNS, DISTURBING, NUMBERS, SCHEMA, SETUP, WORK, describe_work
from bench.records.likeness import few_threads, work_key
from bench.records.verdict import IN_TFLOPS, Rate, name_bottleneck
from bench.settings import SCOPES

ENOUGH = 3  # processes; a result of fewer is a quick check
RATE = ["throughput", "throughput_low", "throughput_high"]
MACHINE = ["machine", "device"]  # a Mac has one name for its CPU and its GPU


def load(paths, warn=lambda line: None):
    """Read the rows of CSV files as one frame: see complete(); one line to `warn` for a file with lines left out."""
    frames = [frame_of([])]
    for path in paths:
        try:
            text, unfit = parse(results.read_text(path), path)
        except (results.ResultsError, OSError) as error:
            warn(f"left out: {error}")
            continue
        frame = complete(text)
        wrong = (text[NUMBERS] != "") & ~((frame[NUMBERS] >= 0) & (frame[NUMBERS] < math.inf))
        wrong = wrong.assign(schema=text["schema"] != str(SCHEMA), machine=text["machine"] == "")
        fits = ~wrong.any(axis=1)
        for number, name in wrong.loc[~fits].idxmax(axis=1).items():
            needed = {"schema": SCHEMA, "machine": "a name"}.get(name, "a number such as 16.29")
            unfit[number] = text.at[number, "run_id"], f"{name} {text.at[number, name]!r} instead of {needed}"
        if unfit:
            count, (line, (_, why)) = f"{len(unfit)} of {fits.sum() + len(unfit)} rows", min(unfit.items())
            warn(f"{path}: {count} cannot be read, and their runs are left out: line {line} has {why}")
        is_whole = ~frame["run_id"].isin([run_id for run_id, _ in unfit.values() if run_id])
        frames.append(frame.assign(is_whole=is_whole)[fits])
    found = pd.concat(frames, ignore_index=True)
    # Each published figure is a result by itself.
    return found.assign(run_id=found["run_id"].mask(found["published"], "published " + found.index.astype(str)))


def frame_of(rows):
    """Return rows that were just measured, dicts of typed cells, as load() returns those of files."""
    rows = [{name: row.get(name) for name in COLUMNS} for row in rows]
    return complete(parse(results.HEADER + results.to_text(rows), "the rows")[0])


def complete(text):
    """Return a frame of text with its numbers as floats (NaN: unknown), and the usual values of blank cells.

    Added are `kind`, "cpu" or "gpu", `published` (by others), and `is_whole` (all rows of its run could be read).
    """
    return text.assign(
        **{name: text[name].mask(text[name] == "", column.blank) for name, column in COLUMNS.items() if column.blank},
        **text[NUMBERS].apply(pd.to_numeric, errors="coerce").astype(float),
        kind=text["device"].where(text["device"].isin(["cpu", ""]), "gpu"),
        published=text["source"] != "",
        is_whole=text["source"].notna(),
    )


def parse(text, path):
    """Return (frame of a file's text with all COLUMNS, {number of a line that is left out: (its run_id, what it has)}).

    The frame's index are the numbers of the lines. Spreadsheets write a byte order mark, `sep=;`, other delimiters. A
    later header, as of a file that `cat >>` added, names the columns of the lines below it. No cell has a line break.

    Raises:
        ResultsError: the file is foreign, or of another version.
    """
    lines = text.removeprefix("\ufeff").splitlines() or [""]
    delimiter = max(",;\t", key=lines[0].count)
    header, rows, unfit = [], {}, {}
    for number, line in enumerate(lines, 1):
        cells = next(csv.reader([line], delimiter=delimiter), [])
        if not any(cells) or cells[0].startswith("sep="):
            continue
        if not header or {"schema", "machine"} <= set(cells):
            if wrong := sorted({"schema", "machine"} - set(cells) or Counter(cells) - Counter([*COLUMNS])):
                why = f"it begins with {cells[0][:40]!r}; missing, unknown or twice: {wrong[0][:40]!r}"
                fix = "name one such as results/<machine>.csv, or move it away"
                raise results.ResultsError(f"{path} is not a results file of this version ({why}): {fix}")
            header = cells
        elif line.count('"') % 2 or len(cells) != len(header) or not "".join(cells).isprintable():
            unfit[number] = dict(zip(header, cells, strict=False)).get("run_id"), "other cells than its header"
        else:
            row = dict(zip(header, cells, strict=True))
            rows[number] = [row.get(name, "") for name in COLUMNS]
    return pd.DataFrame.from_dict(rows, "index", str, list(COLUMNS)), unfit


# Results


def combine(rows):
    """Return a frame of the results of rows, which may be those of many runs, in their order.

    A result is that of a run on one device: the row of the median process (of two in the middle the slower one), with
    an interval from the lowest end of all processes to the highest one. Processes that others disturbed, or that failed
    or were interrupted, do not count if the run has others; the note says so. Added are `processes`, how many count (of
    failures none), `process_rates` and `first_steps`, texts, `disturbed`, and `bottleneck`, what limits a pipeline.
    """
    # A file may have been added to itself.
    rows = rows.drop_duplicates(["run_id", "device", *WORK, "process", "status"])
    is_ok = rows["status"] == "ok"
    disturbed = rows["flags"].str.contains(DISTURBING)
    rows = rows.assign(
        disturbed=disturbed,
        grade=np.select([is_ok & ~disturbed, is_ok, rows["throughput"].notna()], [3, 2, 1], 0),
        result=rows.groupby(["run_id", "device", *WORK], sort=False).ngroup(),
        low=rows["throughput_low"].fillna(rows["throughput"]),
        high=rows["throughput_high"].fillna(rows["throughput"]),
        why=rows["flags"].where(is_ok, (rows["status"] + ": " + rows["note"]).str.removesuffix(": ")),
    )
    counts = rows["grade"] == rows.groupby("result")["grade"].transform("max")
    counted = rows[counts]
    of = counted.groupby("result")
    size = of.size()
    texts = defaultdict(list)  # by pandas they would take four times as long
    names = "result", "flags", "note", "throughput", "first_step_seconds"
    for result, *cells in zip(*(counted[name] for name in names), strict=True):
        texts[result].append(cells)
    joined = [join_cells(*zip(*texts[result], strict=True)) for result in size.index]
    ordered = counted.sort_values("throughput", kind="stable")
    is_median = ordered.groupby("result").cumcount() == (ordered["result"].map(size) - 1) // 2
    found = ordered[is_median].set_index("result").sort_index()
    found = found.assign(
        throughput_low=of["low"].min().where(size > 1, found["throughput_low"]),
        throughput_high=of["high"].max().where(size > 1, found["throughput_high"]),
        output_error=of["output_error"].max(),
        **pd.DataFrame(joined, size.index, ["flags", "note", "process_rates", "first_steps"], str),
        processes=size.where((found["grade"] > 0) | found["published"], 0),
        bottleneck="",
    )
    for result, reasons in rows[~counts].groupby("result")["why"]:
        why = f"{size[result]} of {size[result] + len(reasons)} processes count: {join_notes(reasons)}"
        found.loc[result, "note"] = join_notes([found.at[result, "note"], why])
    return name_bottlenecks(found.reset_index(drop=True))


def join_notes(texts):
    return "; ".join(dict.fromkeys(filter(None, texts)))


def join_cells(flags, notes, *numbers):
    flags = " ".join(dict.fromkeys(" ".join(flags).split()))
    return flags, join_notes(notes), *(" ".join(f"{each:.4g}" for each in some if each > 0) for some in numbers)


def name_bottlenecks(found):
    """Return results with the bottleneck, and its reason, of each run that measured all three scopes."""
    of_scopes = found[(found["status"] == "ok") & ~found["published"] & found["scope"].isin(SCOPES)]
    runs, named = defaultdict(dict), {}
    for row in of_scopes[["run_id", "scope", "device", "flags", "note", *RATE]].reset_index().to_dict("records"):
        runs[row["run_id"], row["device"]][row["scope"]] = row
    for scopes in runs.values():
        if len(scopes) == len(SCOPES):
            rates = (Rate(*map(scopes[scope].get, RATE)) for scope in ("device", "input", "end_to_end"))
            row = scopes["end_to_end"]
            name, why = name_bottleneck(*rates, shares_cores=row["device"] == "cpu")
            # If the queue was full at the end, too, being full at the start added nothing.
            flags = row["flags"].replace("short", "").strip() if name == "device" else row["flags"]
            named[row["index"]] = name, join_notes([why, row["note"]]), flags
    if named:
        found.loc[list(named), ["bottleneck", "note", "flags"]] = list(named.values())
    return found


def latest(found):
    """Choose the result of each machine, work and setup that counts, and all published figures; the oldest comes first.

    Of several a sound one counts (undisturbed, of three processes or more), then an undisturbed one, else that of most
    processes; then one of the newest METHOD_VERSION, of a clean commit, the newest. No sustained run counts.

    Added are `value`, its unit in `per` (TFLOP/s for operators) and its interval, `low` and `high`; `work`, see
    likeness.work_key(); `setup`, in words if those of this device differ, `shown`, how it is told from others;
    `of_peak` and `of_bandwidth`, TFLOP/s and GB/s over the best ones that its machine reached.
    """
    found = found[(found["status"].eq("ok") & found["is_whole"] | found["published"]) & (found["scope"] != "sustained")]
    ranked = found.assign(
        undisturbed=~found["disturbed"],
        most=found["processes"].where(found["disturbed"], 0),
        method_version=found["method_version"].str.zfill(9),
        sound=~found["disturbed"] & (found["processes"] >= ENOUGH),
        clean=~found["commit"].str.endswith("-dirty"),
    ).sort_values(["sound", "undisturbed", "most", "method_version", "clean", "timestamp"], kind="stable")
    is_last = ~ranked.duplicated(["published", *MACHINE, *WORK, *SETUP], keep="last")
    lines = found[found["published"] | is_last].sort_values("timestamp", kind="stable", ignore_index=True)
    is_in_tflops = lines["workload"].isin(IN_TFLOPS)
    value = lines["tflops"].where(is_in_tflops, lines["throughput"])
    scale = (value / lines["throughput"]).where(is_in_tflops | value.isna(), 1.0)
    of_machines = lines.groupby(["source", "device_name"])["machine"].transform("nunique")
    names = lines["device_name"].str.replace(" GeForce", "")  # drivers print it, sources do not
    needed = [*MACHINE, "cpu_count", "published", "measured_precision", "tflops", "bandwidth", *WORK, *SETUP]
    rows = lines[needed].to_dict("records")
    rows = [row | {"num_threads": ""} if few_threads(row) else row for row in rows]  # describe_how() names them
    lines = lines.assign(
        value=value,
        low=lines["throughput_low"] * scale,
        high=lines["throughput_high"] * scale,
        per=lines["unit"].mask(is_in_tflops, "TFLOP/s").mask(is_in_tflops & (lines["precision"] == "int8"), "TOP/s"),
        work=[work_key(row) for row in rows],
        setup=["" if row["published"] else describe_work(row, SETUP) for row in rows],
        shown=names.where(lines["published"] | ((of_machines == 1) & (lines["kind"] == "gpu")), lines["machine"]),
    )
    setups = lines.groupby(["published", "device_name", "device", *WORK])["setup"].transform("nunique")
    lines["setup"] = lines["setup"].where(setups > 1, "")
    reached = peaks.measured_peaks(lines)
    for name, quantity in (("of_peak", "tflops"), ("of_bandwidth", "bandwidth")):
        shares = [peaks.fraction_of(reached, row, quantity) for row in rows]
        lines[name] = pd.Series(shares, dtype=float).mask(lines["published"])
    return lines


def read(folder, warn=lambda line: None):
    """Return the results that count of all CSV files of a folder, and published ones: see load() and latest()."""
    return latest(combine(load(results.list_files(folder), warn)))


def combine_rows(rows):
    """Return the results of rows that were just measured, dicts of typed cells, as dicts; None: unknown."""
    return to_rows(combine(frame_of(rows)))


def to_rows(frame):
    """Return the lines of a frame as dicts; None: unknown."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")
