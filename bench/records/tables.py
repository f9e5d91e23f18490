"""Read results files as one frame of rows, combine the rows of a run, and choose the results that count.

A row is what one process measured of one work. A result is what a run, all processes of one combination of settings,
measured of it. A published row is a result already.
"""

import math
import re
from collections import defaultdict

import pandas as pd

from bench.records import peaks, results
from bench.records.columns import COLUMNS, NUMBERS, SCHEMA, SETUP, WORK, describe_work
from bench.records.likeness import few_threads, work_key
from bench.records.verdict import ENOUGH, IN_TFLOPS, Rate, is_disturbed, name_bottleneck
from bench.settings import SCOPES

RATE = ["throughput", "throughput_low", "throughput_high"]
RESULT = ["run_id", "device", *WORK]  # rows that agree in these are of one result
# What join_processes() reads of each row, and what it returns.
PROCESS = [*RATE, "status", "flags", "note", "published", "first_step_seconds", "output_error"]
CELLS = ["place", *RATE[1:], "flags", "note", "output_error"]
CELLS += ["processes", "process_rates", "first_steps", "undisturbed", "sound"]
UNDISTURBED = 3  # the highest grade of a row
MACHINE = ["machine", "device"]  # a Mac has one name for its CPU and its GPU


def load(paths, warn=lambda line: None):
    """Read the rows of CSV files as one frame: see complete(); one line to `warn` for a file with lines left out."""
    frames = [complete(pd.DataFrame(columns=[*COLUMNS], dtype=str))]
    for path in paths:
        try:
            rows, unfit = results.parse(results.read_text(path), path)
        except (results.ResultsError, OSError) as error:
            warn(f"left out: {error}")
            continue
        text = pd.DataFrame.from_dict(rows, "index", str, list(COLUMNS))
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


# Results


def combine(rows):
    """Return a frame of the results of rows, which may be those of many runs, in their order.

    A result is that of a run on one device: the row of its median process with the cells of join_processes(). Added
    are `value`, its unit in `per` (TFLOP/s for operators) and its interval, `low` and `high`; `work`, see
    likeness.work_key(); and `bottleneck`, what limits a pipeline.
    """
    # A file may have been added to itself.
    rows = rows.drop_duplicates([*RESULT, "process", "status"], ignore_index=True)
    processes = defaultdict(list)
    numbers = rows.groupby(RESULT, sort=False).ngroup()
    for place, (number, row) in enumerate(zip(numbers, rows[PROCESS].to_dict("records"), strict=True)):
        processes[number].append(row | {"place": place})
    cells = pd.DataFrame(map(join_processes, processes.values()), columns=CELLS)
    cells = cells.astype({"undisturbed": bool, "sound": bool})  # also without any
    found = rows.loc[cells.pop("place")].reset_index(drop=True).assign(**cells)
    is_in_tflops = found["workload"].isin(IN_TFLOPS)
    value = found["tflops"].where(is_in_tflops, found["throughput"])
    scale = (value / found["throughput"]).where(is_in_tflops | value.isna(), 1.0)
    found = found.assign(
        value=value,
        low=found["throughput_low"] * scale,
        high=found["throughput_high"] * scale,
        per=found["unit"].mask(is_in_tflops, "TFLOP/s").mask(is_in_tflops & (found["precision"] == "int8"), "TOP/s"),
        work=[*map(work_key, found[[*WORK, "measured_precision"]].to_dict("records"))],
        bottleneck="",
    )
    return name_bottlenecks(found)


def join_processes(rows):
    """Return the CELLS of a result: the `place` of its median row (of two in the middle the slower one), and others.

    Processes that others disturbed, or that failed or were interrupted, do not count if there are others; the note says
    so. The interval is from the lowest end to the highest one. `processes` is how many count (of failures none),
    `process_rates` and `first_steps` are lists. `undisturbed`: all that count are ok, and others disturbed none;
    `sound`: there are ENOUGH of these.
    """
    best = max(map(grade, rows))
    counted = [row for row in rows if grade(row) == best]
    ordered = sorted(counted, key=lambda row: row["throughput"] if row["throughput"] > 0 else 0)
    median = ordered[(len(ordered) - 1) // 2]
    low, high = median["throughput_low"], median["throughput_high"]
    if len(counted) > 1:
        low = min(row["throughput_low"] if row["throughput_low"] >= 0 else row["throughput"] for row in counted)
        high = max(row["throughput_high"] if row["throughput_high"] >= 0 else row["throughput"] for row in counted)
    flags = " ".join(dict.fromkeys(" ".join(row["flags"] for row in counted).split()))
    notes = [row["note"] for row in counted]
    others = [row for row in rows if grade(row) < best]
    reasons = (row["flags"] if row["status"] == "ok" else f"{row['status']}: {row['note']}" for row in others)
    if others:
        notes.append(
            f"{len(counted)} of {len(rows)} processes count: {join_notes(text.removesuffix(': ') for text in reasons)}"
        )
    error = max((row["output_error"] for row in counted if row["output_error"] >= 0), default=math.nan)
    count = len(counted) if best or median["published"] else 0
    rates, first_steps = ([row[name] for row in counted if row[name] > 0] for name in (RATE[0], "first_step_seconds"))
    is_undisturbed = best == UNDISTURBED
    is_sound = is_undisturbed and count >= ENOUGH
    cells = median["place"], low, high, flags, join_notes(notes), error
    return *cells, count, rates, first_steps, is_undisturbed, is_sound


def grade(row):
    """Return UNDISTURBED if a row has the status ok and nothing disturbed it, 2 if it is ok, 1 if it has a rate."""
    if row["status"] == "ok":
        return 2 if is_disturbed(row) else UNDISTURBED
    return int(row["throughput"] > 0)


def join_notes(texts):
    return "; ".join(dict.fromkeys(filter(None, texts)))


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
            flags, note = row["flags"], row["note"]
            if name == "device":  # if the queue was full at the end, too, being full at the start added nothing
                flags = flags.replace("short", "").strip()
                note = re.sub(r"MAX_SECONDS=\d+ is enough for this pipeline(; )?", "", note).removesuffix("; ")
            named[row["index"]] = name, join_notes([why, note]), flags
    if named:
        found.loc[list(named), ["bottleneck", "note", "flags"]] = list(named.values())
    return found


def latest(found):
    """Choose the result of each machine, work and setup that counts, and all published figures; the oldest comes first.

    Of several a sound one counts, then an undisturbed one, else that of most processes; then one of the newest
    METHOD_VERSION, of a clean commit, the newest. No sustained run counts.

    Added are `setup`, in words if those of this device differ, `shown`, how it is told from others; `of_peak` and
    `of_bandwidth`, TFLOP/s and GB/s over the best ones that its machine reached.
    """
    found = found[(found["status"].eq("ok") & found["is_whole"] | found["published"]) & (found["scope"] != "sustained")]
    ranked = found.assign(
        most=found["processes"].mask(found["undisturbed"], 0),
        method_version=found["method_version"].str.zfill(9),
        clean=~found["commit"].str.endswith("-dirty"),
    ).sort_values(["sound", "undisturbed", "most", "method_version", "clean", "timestamp"], kind="stable")
    is_last = ~ranked.duplicated(["published", *MACHINE, *WORK, *SETUP], keep="last")
    found = found[found["published"] | is_last].sort_values("timestamp", kind="stable", ignore_index=True)
    of_machines = found.groupby(["source", "device_name"])["machine"].transform("nunique")
    names = found["device_name"].str.replace(" GeForce", "")  # drivers print it, sources do not
    needed = [*MACHINE, "cpu_count", "published", "tflops", "bandwidth", "precision", "world_size", *SETUP]
    rows = found[needed].to_dict("records")
    rows = [row | {"num_threads": ""} if few_threads(row) else row for row in rows]  # describe_how() names them
    found = found.assign(
        setup=["" if row["published"] else describe_work(row, SETUP) for row in rows],
        shown=names.where(found["published"] | ((of_machines == 1) & (found["kind"] == "gpu")), found["machine"]),
    )
    setups = found.groupby(["published", "device_name", "device", *WORK])["setup"].transform("nunique")
    found["setup"] = found["setup"].where(setups > 1, "")
    reached = peaks.measured_peaks(found)
    for name, quantity in (("of_peak", "tflops"), ("of_bandwidth", "bandwidth")):
        shares = [peaks.fraction_of(reached, row, quantity) for row in rows]
        found[name] = pd.Series(shares, dtype=float).mask(found["published"])
    return found


def read(folder, warn=lambda line: None):
    """Return all results of the CSV files of a folder, and published ones: see load() and combine()."""
    return combine(load(results.list_files(folder), warn))


def of_runs(found, run_ids):
    """Return {run_id: its results as dicts} of those of these runs that have results."""
    found = found[found["run_id"].isin(run_ids)]
    return {run_id: to_dicts(some) for run_id, some in found.groupby("run_id", sort=False)}


def to_dicts(found):
    """Return the results of a frame as dicts; None: unknown."""
    return found.astype(object).where(found.notna(), None).to_dict("records")
