"""Read results/ and select the lines that the plots and the card show, as frames of tables.latest()."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from bench.records import tables
from bench.settings import SCOPES
from bench.workloads import TRAIN_IMAGES

WHO = ["published", "machine", "kind", "framework"]


@dataclass(frozen=True)
class Stored:
    """Hold the rows of results/, and the frames that are drawn."""

    rows: pd.DataFrame  # as tables.read_rows() returns them
    lines: pd.DataFrame  # tables.latest() of them
    believed: pd.DataFrame  # those of one device, without implausible ones and wrong clocks


def load(folder, warn):
    """Read the CSV files of a folder; warn() gets a line for each file that cannot be read."""
    rows = tables.read_rows(sorted(Path(folder).glob("*.csv")), warn)
    lines = tables.latest(rows)
    return Stored(rows, lines, believe(lines[lines["world_size"] == "1"]))


def believe(lines):
    return lines[(lines["status"] == "ok") & ~lines["flags"].str.contains("implausible")]


def having(lines, **cells):
    """Select the lines that have a rate and these cells."""
    return lines[(lines[list(cells)] == pd.Series(cells)).all(axis=1) & lines["value"].notna()]


def best(lines, *apart):
    """Select the highest line of each machine, kind of device, framework and these columns; the highest comes first."""
    return lines.sort_values("value", ascending=False, kind="stable").drop_duplicates([*WHO, *apart])


def resident(lines):
    """Select rates of resident batches, of images and sequences of the usual size."""
    usual = lines["image_size"].isin(["", "224"]) | (lines["workload"] != "image")
    is_llm = (lines["workload"] == "llm") & (lines["sequence_length"] == "512")
    usual &= lines["sequence_length"].isin(["", "128"]) | is_llm
    return lines[usual & (lines["scope"] == "device") & lines["value"].notna()]


def depths(lines):
    """Select training of mlp-<depth>x1024 with the settings of its first benchmark: the fastest of WHO and depth.

    Adds `depth`, and `seconds_an_epoch` with its _low and _high.
    """
    chosen = lines.assign(value=lines["value"].fillna(lines["items"] / lines["seconds"]))
    chosen = having(chosen, workload="mlp", phase="training", batch_size="32", precision="float32", scope="device")
    chosen = chosen[chosen["compile"].isin(["", "0"]) & chosen["optimizer"].isin(["", "sgd"])]
    chosen = chosen.assign(
        depth=pd.to_numeric(chosen["model"].str.extract(r"^mlp-(\d+)x1024$")[0]),
        seconds_an_epoch=TRAIN_IMAGES / chosen["value"],
        seconds_an_epoch_low=TRAIN_IMAGES / chosen["high"],
        seconds_an_epoch_high=TRAIN_IMAGES / chosen["low"],
    )
    chosen = chosen.sort_values(["data", "value"], ascending=[True, False])  # CIFAR-10, else synthetic
    return chosen[chosen["depth"].notna()].drop_duplicates([*WHO, "depth"]).sort_values("depth")


def scopes(lines):
    """List the work of images that was measured in all three scopes, the latest last: {scope: line as a dict}."""
    identity = ["machine", *(name for name in tables.WORK if name not in ("scope", "data"))]
    parts_of_works = {}
    for line in lines[(lines["workload"] == "image") & ~lines["published"]].to_dict("records"):
        parts_of_works.setdefault(tuple(line[name] for name in identity), {})[line["scope"]] = line
    whole = [parts for parts in parts_of_works.values() if set(SCOPES) <= parts.keys()]
    whole = [parts for parts in whole if parts["input"]["data"] == parts["end_to_end"]["data"]]
    return sorted(whole, key=lambda parts: parts["end_to_end"]["timestamp"])
