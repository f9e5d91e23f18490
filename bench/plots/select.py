"""Select the lines that plots and tables show, as frames of tables.latest()."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from bench.records import columns, tables
from bench.settings import SCOPES, TRAINING
from bench.workloads import TRAIN_IMAGES
from bench.workloads.workload import BYTES

WHO = ["published", "machine", "kind", "framework"]
# With WHO, the work that is compared over numbers of devices.
SCALED = ["method_version", *(name for name in columns.WORK if name not in ("framework", "world_size", "nodes"))]


@dataclass(frozen=True)
class Stored:
    """Hold the rows of results/, and the frames that are drawn."""

    rows: pd.DataFrame  # as tables.read_rows() returns them
    lines: pd.DataFrame  # tables.latest() of them
    many: pd.DataFrame  # those with a rate, of any number of devices, without implausible ones and wrong clocks
    believed: pd.DataFrame  # those of one device


def load(folder, warn):
    """Read the CSV files of a folder; warn() gets a line for each file that cannot be read."""
    rows = tables.read_rows(sorted(Path(folder).glob("*.csv")), warn)
    lines = tables.latest(rows)
    many = believe(lines)
    return Stored(rows, lines, many, many[many["world_size"] == "1"])


def believe(lines):
    return lines[(lines["status"] == "ok") & ~lines["flags"].str.contains("implausible")]


def having(lines, **cells):
    """Select the lines that have a rate and these cells."""
    return lines[(lines[list(cells)] == pd.Series(cells)).all(axis=1) & lines["value"].notna()]


def best(found, *apart):
    """Select the highest line of each machine, kind of device, framework and these columns; the highest comes first."""
    return found.sort_values("value", ascending=False, kind="stable").drop_duplicates([*WHO, *apart])


def resident(lines):
    """Select rates of resident batches, of images and sequences of the usual size."""
    usual = lines["image_size"].isin(["", "224"]) | (lines["workload"] != "image")
    usual &= lines["sequence_length"].isin(["", "128"])
    return lines[usual & (lines["scope"] == "device") & lines["value"].notna()]


def generation(lines):
    """Select tokens/s of one sequence in prefill and decode: the fastest of WHO, model, phase, prompt and depth.

    Only precisions that this program measures: quantised weights are other work.
    """
    found = having(lines, workload="llm", batch_size="1", scope="device")
    found = found[found["precision"].isin(BYTES) & ~found["phase"].isin(TRAINING)]
    return best(found, "model", "phase", "prompt_tokens", "depth")


def training_of_llm(lines):
    """Select training of language models: the fastest of WHO, model, sequence length and rank of LoRA."""
    found = having(lines, workload="llm", phase="training", scope="device")
    return best(found, "model", "sequence_length", "lora_rank")


def depths(lines):
    """Select training of mlp-<depth>x1024 with the settings of its first benchmark: the fastest of WHO and depth.

    Adds `depth`, and `seconds_an_epoch` with its _low and _high.
    """
    found = lines.assign(value=lines["value"].fillna(lines["items"] / lines["seconds"]))
    found = having(found, workload="mlp", phase="training", batch_size="32", precision="float32", scope="device")
    found = found[found["compile"].isin(["", "0"]) & found["optimizer"].isin(["", "sgd"])]
    found = found.assign(
        depth=pd.to_numeric(found["model"].str.extract(r"^mlp-(\d+)x1024$")[0]),
        seconds_an_epoch=TRAIN_IMAGES / found["value"],
        seconds_an_epoch_low=TRAIN_IMAGES / found["high"],
        seconds_an_epoch_high=TRAIN_IMAGES / found["low"],
    )
    found = found.sort_values(["data", "value"], ascending=[True, False])  # CIFAR-10, else synthetic
    return found[found["depth"].notna()].drop_duplicates([*WHO, "depth"]).sort_values("depth")


def sizes(lines):
    """Select TFLOP/s over the size of matmuls: `side` is the cube root of M N K."""
    found = lines[lines["model"].str.match(r"^matmul(?:-\d+)?$") & lines["value"].notna()]
    sides = found["matrix_size"].str.extract(r"^(\d+)x(\d+)x(\d+)$").astype(float)
    found = found.assign(side=sides.prod(axis=1, skipna=False) ** (1 / 3))
    return best(found[found["side"].notna()], "precision", "model", "matrix_size").sort_values("side")


def matmul_peaks(lines):
    """Select the best matmul of WHO and precision: own peaks, the best of 8 bits, and all published matmuls."""
    matmuls = lines["model"].isin(["matmul-peak", "matmul-8bit"])
    matmuls |= lines["published"] & (lines["workload"] == "matmul")
    found = best(lines[matmuls & lines["value"].notna()], "precision")
    how = found["memory_format"].where(found["memory_format"] == "", "as a 1x1 convolution")
    return found.assign(memory_format=how, batch_size="")


def scaling(many):
    """Select own rates on resident batches of work that was measured on several numbers of `devices`."""
    found = many[many["phase"].isin(["inference", "training"]) & (many["scope"] == "device") & ~many["published"]]
    found = found.assign(devices=found["world_size"].astype(float))
    found = best(found, *SCALED, "devices")
    several = found.groupby([*WHO, *SCALED])["devices"].transform("nunique") > 1
    return found[several].sort_values("devices")


def scopes(lines):
    """List the work of images that was measured in all three scopes, the latest last: {scope: line as a dict}."""
    same = ["machine", *(name for name in tables.WORK if name not in ("scope", "data"))]
    found = {}
    for line in lines[(lines["workload"] == "image") & ~lines["published"]].to_dict("records"):
        found.setdefault(tuple(line[name] for name in same), {})[line["scope"]] = line
    whole = [parts for parts in found.values() if set(SCOPES) <= parts.keys()]
    return sorted(whole, key=lambda parts: parts["end_to_end"]["timestamp"])


def searches(rows):
    """List the path of the latest `make best` of each machine, framework, model and phase, the default first."""
    found = believe(rows[(rows["search"] != "") & rows["throughput"].notna()])
    of = ["machine", "kind", "framework", "workload", "model", "phase"]
    found = found[found["search"] == found.groupby(of, sort=False)["search"].transform("last")]
    names = {"throughput": "value", "throughput_low": "low", "throughput_high": "high", "device_name": "shown"}
    found = found.rename(columns=names).assign(published=False)
    return [path for _, path in found.groupby("search", sort=False)]


def sustained_runs(rows):
    """List the latest sustained run of each machine and work, a frame with a row for every ten seconds."""
    found = believe(rows[(rows["scope"] == "sustained") & rows["throughput"].notna()])
    found = found[found["run_id"] == found.groupby(["machine", *tables.WORK], sort=False)["run_id"].transform("last")]
    found = found.assign(rate=found["items"] / found["seconds"], shown=found["device_name"], published=False)
    return [run.sort_values("elapsed_seconds") for _, run in found.groupby("run_id", sort=False)]
