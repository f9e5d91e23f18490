"""Read results files as one frame of rows, combine the rows of a run, and choose the results that count.

A row is what one process measured of one work. A result is what a run, all processes of one combination of settings,
measured of it. A published row is a result already.
"""

import math
from collections import defaultdict

import pandas as pd

from bench.records import results
from bench.records.columns import COLUMNS, DISTURBING, NUMBERS, SCHEMA, SETUP, WORK, describe_work
from bench.records.likeness import choose_peaks, few_threads, work_key
from bench.records.verdict import ENOUGH, IN_TFLOPS, name_bottleneck
from bench.settings import SCOPES
from bench.timing.windows import IS_ENOUGH

RATE = ["throughput", "throughput_low", "throughput_high"]
RESULT = ["run_id", "device", *WORK]  # rows that agree in these are of one result
# What join_processes() reads of each row, and what it returns.
PROCESS = [*RATE, "grade", "status", "flags", "note", "published", "first_step_seconds", "output_error"]
CELLS = ["place", *RATE[1:], "flags", "note", "output_error"]
CELLS += ["processes", "process_rates", "first_steps", "undisturbed", "sound"]
UNDISTURBED = 3  # the highest grade of a row: ok, and nothing disturbed it; 2: ok; 1: it has a rate
MACHINE = ["machine", "device"]  # a Mac has one name for its CPU and its GPU


def load(paths, warn=lambda line: None):
    """Read the rows of CSV files as one frame; one line to `warn` for a file with lines left out.

    Numbers are floats (NaN: unknown), and blank cells have the usual values. Added are `kind`, "cpu" or "gpu",
    `published` (by others), `is_disturbed` (ok, but by a process that other programs or swapping disturbed), and
    `is_whole` (all rows of its run could be read).
    """
    frames = [pd.DataFrame(columns=[*COLUMNS], dtype=str).assign(is_whole=False).astype(dict.fromkeys(NUMBERS, float))]
    for path in paths:
        try:
            rows, unfit = results.parse(results.read_text(path), path)
        except (results.ResultsError, OSError) as error:
            warn(f"left out: {error}")
            continue
        text = pd.DataFrame.from_dict(rows, "index", str, list(COLUMNS))
        numbers = text[NUMBERS].apply(pd.to_numeric, errors="coerce").astype(float)
        wrong = (text[NUMBERS] != "") & ~((numbers >= 0) & (numbers < math.inf))
        wrong = wrong.assign(schema=text["schema"] != str(SCHEMA), machine=text["machine"] == "")
        fits = ~wrong.any(axis=1)
        for number, name in wrong.loc[~fits].idxmax(axis=1).items():
            needed = {"schema": SCHEMA, "machine": "a name"}.get(name, "a number such as 16.29")
            unfit[number] = text.at[number, "run_id"], f"{name} {text.at[number, name]!r} instead of {needed}"
        if unfit:
            count, (line, (_, why)) = f"{len(unfit)} of {fits.sum() + len(unfit)} rows", min(unfit.items())
            warn(f"{path}: {count} cannot be read, and their runs are left out: line {line} has {why}")
        is_whole = ~text["run_id"].isin([run_id for run_id, _ in unfit.values() if run_id])
        frames.append(text.assign(**numbers, is_whole=is_whole)[fits])
    found = pd.concat(frames, ignore_index=True)
    usual = {name: column["blank"] for name, column in COLUMNS.items() if column["blank"]}
    found = found.assign(
        **{name: found[name].mask(found[name] == "", text) for name, text in usual.items()},
        kind=found["device"].where(found["device"].isin(["cpu", ""]), "gpu"),
        published=found["source"] != "",
        is_disturbed=(found["status"] == "ok") & found["flags"].str.contains(DISTURBING),
    )
    # Each published figure is a result by itself.
    return found.assign(run_id=found["run_id"].mask(found["published"], "published " + found.index.astype(str)))


# Results


def combine(rows):
    """Return a frame of the results of rows, which may be those of many runs, in their order.

    A result is that of a run on one device: the row of its median process with the cells of join_processes(). Added
    are `value`, its unit in `per` (TFLOP/s for operators) and its interval, `low` and `high`; `work`, see
    likeness.work_key(); `bottleneck`, what limits a pipeline; and the shares of add_shares().
    """
    # A file may have been added to itself.
    rows = rows.drop_duplicates([*RESULT, "process", "status"], ignore_index=True)
    has_rate = (rows["throughput"] > 0).astype(int)
    rows = rows.assign(grade=has_rate.mask(rows["status"] == "ok", UNDISTURBED).mask(rows["is_disturbed"], 2))
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
    return add_shares(name_bottlenecks(found))


def join_processes(rows):
    """Return the CELLS of a result: the `place` of its median row (of two in the middle the slower one), and others.

    Processes that others disturbed, or that failed or were interrupted, do not count if there are others; the note says
    so. The interval is from the lowest end to the highest one. `processes` is how many count (of failures none),
    `process_rates` and `first_steps` are lists. `undisturbed`: all that count are ok, and others disturbed none;
    `sound`: there are ENOUGH of these.
    """
    best = max(row["grade"] for row in rows)
    counted = [row for row in rows if row["grade"] == best]
    ordered = sorted(counted, key=lambda row: row["throughput"] if row["throughput"] > 0 else 0)
    median = ordered[(len(ordered) - 1) // 2]
    low = median["throughput_low"]
    high = median["throughput_high"]
    if len(counted) > 1:
        low = min(row["throughput_low"] if row["throughput_low"] >= 0 else row["throughput"] for row in counted)
        high = max(row["throughput_high"] if row["throughput_high"] >= 0 else row["throughput"] for row in counted)
    flags = " ".join(dict.fromkeys(" ".join(row["flags"] for row in counted).split()))
    notes = [row["note"] for row in counted]
    if others := [row for row in rows if row["grade"] < best]:
        reasons = (row["flags"] if row["status"] == "ok" else f"{row['status']}: {row['note']}" for row in others)
        reasons = dict.fromkeys(reason.removesuffix(": ") for reason in reasons)
        notes.append(f"{len(counted)} of {len(rows)} processes count: {'; '.join(reasons)}")
    error = max((row["output_error"] for row in counted if row["output_error"] >= 0), default=math.nan)
    count = len(counted) if best or median["published"] else 0
    rates, first_steps = ([row[name] for row in counted if row[name] > 0] for name in (RATE[0], "first_step_seconds"))
    is_undisturbed = best == UNDISTURBED
    is_sound = is_undisturbed and count >= ENOUGH
    note = "; ".join(dict.fromkeys(filter(None, notes)))
    cells = median["place"], low, high, flags, note, error
    return *cells, count, rates, first_steps, is_undisturbed, is_sound


def name_bottlenecks(found):
    """Return results with the bottleneck, and its reason, of each run that measured all three scopes."""
    of_scopes = found[(found["status"] == "ok") & ~found["published"] & found["scope"].isin(SCOPES)]
    runs, named = defaultdict(dict), {}
    for row in of_scopes[["run_id", "scope", "device", "flags", "note", *RATE]].reset_index().to_dict("records"):
        runs[row["run_id"], row["device"]][row["scope"]] = row
    for scopes in runs.values():
        if len(scopes) == len(SCOPES):
            row = scopes["end_to_end"]
            name, why = name_bottleneck(scopes["device"], scopes["input"], row)
            flags = row["flags"].split()
            notes = filter(None, [why, *row["note"].split("; ")])
            if name == "device":  # if the queue was full at the end, too, being full at the start added nothing
                flags = [flag for flag in flags if flag != "short"]
                notes = [note for note in notes if not note.endswith(IS_ENOUGH)]
            named[row["index"]] = name, "; ".join(notes), " ".join(flags)
    if named:
        found.loc[list(named), ["bottleneck", "note", "flags"]] = list(named.values())
    return found


def add_shares(found):
    """Return results with `of_peak` and `of_bandwidth`: TFLOP/s and GB/s over their machine's best.

    NaN: unknown, or published. The best TFLOP/s are those of an undisturbed matmul in the same precision, the best GB/s
    those of a copy, in any framework. A share may exceed 1: convolutions can be faster than the best matmul, and some
    machines read faster than they copy. The rate of several GPUs is compared with several times the best of one;
    processes on a CPU share it.
    """
    own = found[found["undisturbed"] & ~found["published"]]
    matmuls = choose_peaks(own, MACHINE).set_index([*MACHINE, "precision"])["value"]
    copies = own[own["workload"] == "bandwidth"].groupby(MACHINE)["value"].max()
    sides = found[MACHINE].assign(precision=found["precision"].str.removeprefix("mixed_"))
    devices = found["world_size"].astype(int).mask(found["device"] == "cpu", 1).mask(found["published"])
    return found.assign(
        of_peak=found["tflops"] / devices / matmuls.reindex(pd.MultiIndex.from_frame(sides)).array,
        of_bandwidth=found["bandwidth"] / devices / copies.reindex(pd.MultiIndex.from_frame(found[MACHINE])).array,
    )


def latest(found):
    """Choose the result of each machine, work and setup that counts, and all published figures; the oldest comes first.

    Of several a sound one counts, then an undisturbed one, else that of most processes; then one of the newest
    METHOD_VERSION, of a clean commit, the newest. No sustained run counts.

    Added are `setup`, in words if those of this device differ, and `shown`, how it is told from others.
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
    rows = found[["device", "cpu_count", "published", "world_size", *SETUP]].to_dict("records")
    rows = [row | {"num_threads": ""} if few_threads(row) else row for row in rows]  # describe_how() names them
    found = found.assign(
        setup=["" if row["published"] else describe_work(row, SETUP) for row in rows],
        shown=names.where(found["published"] | ((of_machines == 1) & (found["kind"] == "gpu")), found["machine"]),
    )
    setups = found.groupby(["published", "device_name", "device", *WORK])["setup"].transform("nunique")
    return found.assign(setup=found["setup"].where(setups > 1, ""))


def read(folder, warn=lambda line: None):
    """Return all results of the CSV files of a folder, and published ones: see load() and combine().

    Published ones are those of PUBLISHED if the folder has none. Hidden files (._a.csv) are left out.
    """
    paths = *results.PUBLISHED.glob("published.csv"), *sorted(folder.glob("[!.]*.csv"))
    return combine(load({path.name: path for path in paths}.values(), warn))


def to_dicts(found):
    """Return the results of a frame as dicts; None: unknown."""
    return found.astype(object).where(found.notna(), None).to_dict("records")
