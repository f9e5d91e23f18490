"""Select the rows that plots and tables show, as frames."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from bench.records import columns, tables, verdict
from bench.settings import TRAINING
from bench.workloads import TRAIN_IMAGES
from bench.workloads.workload import BYTES

WRONG_CLOCKS = ("cpu_time", "unsynchronised")  # statuses of published figures
WHO = ["published", "machine", "kind", "framework"]
# With WHO, the work that is compared over numbers of devices.
SCALED = ["method_version", *(name for name in columns.WORK if name not in ("framework", "world_size", "nodes"))]
WHOLE = ("inference", "training", "prefill", "decode")  # phases that are not parts of a training step
SQUARE = r"^matmul(?:-\d+)?$"  # models with a curve over sizes
DECODE = ("model", "precision", "compile", "batch_size")  # of a curve over the depth of the cache


@dataclass(frozen=True)
class Stored:
    """Hold the rows of results/. The frames but `rows` are those of tables.summarize()."""

    rows: pd.DataFrame  # as tables.read_rows() returns them
    many: pd.DataFrame  # of any number of devices; implausible lines are left out, as in all other frames
    believed: pd.DataFrame  # of one device
    pipelines: pd.DataFrame  # from runs that measured the model and its input together
    runs: list[pd.DataFrame]  # sustained runs, the rows of one each
    searches: list[pd.DataFrame]  # each `make best`, a line for each step


def load(folder, warn):
    """Read the CSV files of a folder; warn() gets a line for each file that cannot be read."""
    return arrange(tables.read_rows(sorted(Path(folder).glob("*.csv")), warn))


def arrange(rows):
    """Merge rows into everything that is drawn."""
    many = believe(tables.summarize(rows))
    # A later run of only the model is not part of a pipeline's run.
    of_pipelines = rows[rows["run_id"].isin(rows.loc[rows["scope"] == "end_to_end", "run_id"])]
    pipelines = believe(tables.summarize(of_pipelines))
    return Stored(
        rows=rows,
        many=many,
        believed=many[many["world_size"] == "1"],
        pipelines=pipelines[pipelines["world_size"] == "1"],
        runs=tables.sustained_runs(believe(rows)),
        searches=tables.searches(believe(rows)),
    )


def believe(summary):
    return summary[~summary["flags"].str.contains("implausible")]


def having(summary, **cells):
    """Select the lines that have a rate and these cells."""
    return summary[(summary[list(cells)] == pd.Series(cells)).all(axis=1) & summary["value"].notna()]


def best(found, *apart):
    """Select the highest line of each machine, kind of device, framework and these columns; the highest comes first."""
    return found.sort_values("value", ascending=False).drop_duplicates([*WHO, *apart])


def scaling(many):
    """Select own rates on resident batches of work that was measured on several numbers of `devices`."""
    found = many[many["phase"].isin(["inference", "training"]) & (many["scope"] == "device") & ~many["published"]]
    found = found.assign(devices=found["world_size"].astype(float))
    found = best(found, *SCALED, "devices")
    several = found.groupby([*WHO, *SCALED])["devices"].transform("nunique") > 1
    return found[several].sort_values("devices")


def messages(many):
    """Compute the bus bandwidth of all-reduce in GB/s, with its interval, over its size in `kib`."""
    found = having(many, workload="all-reduce")
    ranks = found["world_size"].astype(float)
    found = found.assign(**{name: verdict.bus_bandwidth(found[name], ranks) for name in tables.RATE})
    found = found.assign(kib=found["message_bytes"].astype(float) / 1024)
    return best(found, "world_size", "nodes", "kib").sort_values("kib")


def resident(summary):
    """Select rates of resident batches, of images and sequences of the usual size."""
    usual = summary["image_size"].isin(["", "224"]) | (summary["workload"] != "image")
    usual &= summary["sequence_length"].isin(["", "128"])
    return summary[usual & (summary["scope"] == "device") & summary["value"].notna()]


def depths(summary):
    """Select training of mlp-<depth>x1024 with the settings of its first benchmark: the fastest of WHO and depth.

    Adds `depth`, and `seconds_an_epoch` with its _low and _high.
    """
    found = summary.assign(value=summary["value"].fillna(summary["items"] / summary["seconds"]))
    found = having(found, workload="mlp", phase="training", batch_size="32", precision="float32", scope="device")
    found = found[found["compile"].isin(["", "0"]) & found["optimizer"].isin(["", "sgd"])]
    found = found.assign(
        depth=pd.to_numeric(found["model"].str.extract(r"^mlp-(\d+)x1024$")[0]),
        seconds_an_epoch=TRAIN_IMAGES / found["value"],
        seconds_an_epoch_low=TRAIN_IMAGES / found["high"],
        seconds_an_epoch_high=TRAIN_IMAGES / found["low"],
    )
    found = found[found["depth"].notna()]
    found = found.sort_values(["data", "value"], ascending=[True, False])  # CIFAR-10, else synthetic
    return found.drop_duplicates([*WHO, "depth"]).sort_values("depth")


def generation(summary):
    """Select tokens/s of one sequence in prefill and decode: the fastest of WHO, model, phase, prompt and depth.

    Only precisions that this program measures: quantised weights are other work.
    """
    found = having(summary, workload="llm", batch_size="1", scope="device")
    found = found[found["precision"].isin(BYTES) & ~found["phase"].isin(TRAINING)]
    return best(found, "model", "phase", "prompt_tokens", "depth")


def training_of_llm(summary):
    """Select training of language models: the fastest of WHO, model, sequence length and rank of LoRA."""
    found = having(summary, workload="llm", phase="training", scope="device")
    return best(found, "model", "sequence_length", "lora_rank")


def cache_depths(summary):
    """Select decode of machines that have several depths, the `tokens` in the cache; no quantised weights."""
    found = having(summary, workload="llm", phase="decode", scope="device")
    found = found.assign(tokens=pd.to_numeric(found["depth"], errors="coerce"))
    found = best(found[found["tokens"].notna() & found["precision"].isin(BYTES)], *DECODE, "tokens")
    return found[found.groupby([*WHO, *DECODE])["tokens"].transform("size") > 1].sort_values("tokens")


def sizes(summary):
    """Select TFLOP/s over the size of matmuls: `side` is the cube root of M N K."""
    found = summary[summary["model"].str.match(SQUARE) & summary["value"].notna()]
    sides = found["matrix_size"].str.extract(r"^(\d+)x(\d+)x(\d+)$").astype(float)
    found = found.assign(side=sides.prod(axis=1, skipna=False) ** (1 / 3))
    return best(found[found["side"].notna()], "precision", "model", "matrix_size").sort_values("side")


def matmul_peaks(summary):
    """Select the best matmul of each machine, kind, framework and precision: own peaks, and all published matmuls."""
    matmuls = summary["model"].eq("matmul-peak") | (summary["published"] & (summary["workload"] == "matmul"))
    found = best(summary[matmuls & summary["value"].notna()], "precision")
    how = found["memory_format"].where(found["memory_format"] == "", "as a 1x1 convolution")
    return found.assign(memory_format=how, batch_size="")


def eight_bits(summary):
    """Divide the rates of 8-bit matmuls by bfloat16's of the same machine and size, the highest first."""
    same = [*WHO, "matrix_size"]
    eight = best(having(summary, model="matmul-8bit"), "precision", "matrix_size")
    half = best(having(summary, model="matmul", precision="bfloat16"), "matrix_size")
    both = eight.merge(half[[*same, *tables.RATE]], on=same, suffixes=("", "_half"))
    return both.assign(**tables.divide_rates(both, "_half")).sort_values("value", ascending=False)


def attention(summary):
    """Select TFLOP/s of attention over its `tokens`."""
    found = best(having(summary, workload="attention"), "precision", "sequence_length")
    return found.assign(tokens=found["sequence_length"].astype(float)).sort_values("tokens")


def bandwidths(summary):
    """Select GB/s of each machine, kind, framework and operator."""
    return best(having(summary, workload="bandwidth"), "model")


def speedups(found):
    """Divide GPU by CPU rates of the same machine, work and method: the ratio as `value`, with its `low` and `high`.

    The machine of a published figure is its source and its chip, the device's name before a parenthesis. If it has no
    rate, its speedup is that of its seconds.
    """
    found = found[(found["scope"] == "device") & ~found["workload"].isin(tables.SINGLE)]
    chip = found["source"] + found["device_name"].where(found["published"], "").str.replace(r" \(.*", "", regex=True)
    found = found.assign(place=chip.where(found["published"], found["machine"]), is_rate=found["value"].notna())
    work = ["place", *(column for column in tables.WORK if column != "kind")]
    gpu, cpu = (found[found["kind"] == kind] for kind in ("gpu", "cpu"))
    both = gpu.merge(cpu, on=[*work, "is_rate", "method_version"], suffixes=("", "_cpu"))
    ratios = tables.divide_rates(both, "_cpu")
    for seconds in ("seconds", "step_seconds_median"):
        ratios["value"] = ratios["value"].fillna(both[f"{seconds}_cpu"] / both[seconds])
    # Of several setups equal ones, else the fastest.
    is_equal = (both["num_threads"] == both["num_threads_cpu"]) & (both["setup"] == both["setup_cpu"])
    batch = pd.to_numeric(both["batch_size"], errors="coerce")
    both = both.assign(**ratios, batch=batch, is_equal=is_equal)
    both = both[both["value"].notna()].sort_values(["is_equal", "value_cpu"], na_position="first", kind="stable")
    # Apple sells one chip, and so one CPU, with several numbers of GPU cores.
    both = both.drop_duplicates([*work, "gpu_cores"], keep="last")
    order = ["published", "model", "phase", "batch", "value"]
    return both.sort_values(order, ascending=[True] * 4 + [False], ignore_index=True)


def per_joule(summary):
    """Compute items per joule if power is known, the best of each machine, framework, model and phase."""
    found = resident(summary)
    found = found[found["power_watts"].notna() & ~found["workload"].isin(tables.SINGLE)]
    rates = {column: found[column] / found["power_watts"] for column in tables.RATE}
    return best(found.assign(**rates), "model", "phase")


def scopes(pipelines):
    """Select runs that measured all three scopes, a line each: `value_device`, `low_device`, `high_device`, and so on.

    `bottleneck` is what limited that run.
    """
    work = ["machine", "run_id", *(column for column in tables.WORK if column not in ("scope", "data"))]
    found = pipelines[(pipelines["workload"] == "image") & pipelines["value"].notna() & ~pipelines["published"]]
    parts = {}
    for scope in ("end_to_end", "device", "input"):
        lines = found[found["scope"] == scope].drop_duplicates(work, keep="last")
        parts[scope] = lines.rename(columns={column: f"{column}_{scope}" for column in tables.RATE})
    wide = parts.pop("end_to_end")
    for scope, lines in parts.items():
        wide = wide.merge(lines[[*work, *(f"{column}_{scope}" for column in tables.RATE)]], on=work)
    return wide.sort_values("value_end_to_end", ascending=False)
