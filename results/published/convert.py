"""Published results in this project's own columns: results.csv beside this file becomes results/published.csv.

    .venv/bin/python results/published/convert.py

Figures stay as published. What was published as a time per item or for a whole run is in the note and in `seconds`,
and has no throughput: only a source's own rate is one, or a row of results.csv that says how it was derived.
"""

import csv
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from bench import results  # noqa: E402
from bench.settings import slug  # noqa: E402

WRONG_CLOCKS = ("cpu_time", "unsynchronised")  # kept as the row's status, and never drawn as speed
COMPILED = {"eager": 0, "graph": 0, "xla": 1, "torch.compile": 1, "unknown": None}
RATES = {"images/s": "images/s", "sequences/s": "sequences/s", "GB/s": "GB/s"}
SAMPLES = {"mlp": "images/s", "transformer": "sequences/s"}  # what "samples" are
SECONDS = {"seconds": 1.0, "minutes": 60.0}
IMAGES_IN_AN_EPOCH = 50_000  # of CIFAR-10
MODELS = {"vgg16-bn": "vgg16_bn", "vgg16-cifar10-32px": "vgg16", "resnet50-128px": "resnet50"}
# What a note says of a rate that has the input pipeline in it.
WITH_INPUT = re.compile("^end-to-end|data loading included|decode and resize included|ImageNet")


def convert(published):
    """One row of results.csv as a dict of results.COLUMNS."""
    workload = {"tflops": "matmul"}.get(published["workload"], published["workload"])
    is_operator = workload in ("matmul", "bandwidth")
    return {
        "schema": results.SCHEMA,
        "timestamp": published["date"],
        "status": status_of(published["timing_note"]),
        "source": published["source"],
        "note": f"published as {published['value']} {published['unit']}; {published['timing_note']}",
        "machine": slug(published["device"]),
        "device": device_of(published),
        "device_name": published["device"],
        "framework": published["framework"],
        "framework_version": published["framework_version"].replace("unknown", ""),
        "workload": workload,
        "model": model_of(published),
        "phase": None if is_operator else published["mode"],
        "scope": "end_to_end" if WITH_INPUT.search(published["timing_note"]) else "device",
        "precision": published["precision"],
        "compile": None if is_operator else COMPILED[published["compiler"]],
        "memory_format": memory_format_of(published["timing_note"]),
        "batch_size": published["batch_size"],
        "image_size": image_size_of(published),
        "sequence_length": sequence_length_of(published),
        "matrix_size": matrix_size_of(published["model"]),
        "power_watts": published["power_w"],
        "peak_memory_bytes": round(float(published["memory_gb"]) * 1e9) if published["memory_gb"] else None,
        **result_of(published),
    }


def result_of(published):
    """The columns that hold the figure itself."""
    value, unit = float(published["value"]), published["unit"]
    if unit == "TFLOPS":
        return {"tflops": value}
    if unit in SECONDS and is_of_a_step(published):
        return {"step_seconds_median": value * SECONDS[unit]}
    if unit in SECONDS:
        return {"seconds": value * SECONDS[unit], "items": items_of(published)}
    if unit == "us/sample":
        return {"step_seconds_median": value * 1e-6 * float(published["batch_size"])}
    return {"throughput": value, "unit": RATES.get(unit) or SAMPLES[published["workload"]]}


def is_of_a_step(published):
    """Whether seconds are those of one step; benchmark-pytorch-mps has no other."""
    return "seconds per iteration" in published["timing_note"] or "benchmark-pytorch-mps" in published["source"]


def items_of(published):
    """How many items went through in published seconds, None where that is not said."""
    note, batch = published["timing_note"], int(published["batch_size"])
    epochs, steps = found(r"epochs=(\d+)", note), found(r"(\d+) (?:steps|batches)", note)
    images = found(r"(\d+) images", note)
    if epochs:
        return IMAGES_IN_AN_EPOCH * int(epochs)
    return int(steps) * batch if steps else int(images) if images else None


def found(pattern, text):
    """The first group of a pattern, None where it is not in the text."""
    match = re.search(pattern, text)
    return match[1] if match else None


def model_of(published):
    """Its name here; another one where not all of it is trained."""
    is_part = "only the last transformer block" in published["timing_note"]
    name = MODELS.get(published["model"], published["model"])
    return f"{name}-last-block" if is_part else name


def status_of(note):
    return next((clock for clock in WRONG_CLOCKS if clock in re.findall("[a-z_]+", note)), "ok")


def device_of(published):
    if published["device_kind"] == "cpu":
        return "cpu"
    return "mps" if published["device"].startswith("Apple") else "cuda"


def memory_format_of(note):
    return "channels_last" if "nhwc" in note else "channels_first" if "nchw" in note else None


def image_size_of(published):
    return found(r"-(\d+)px", published["model"]) or {"mlp": 32}.get(published["workload"])


def sequence_length_of(published):
    """Tokens, None where they are not stated; the figures derived from a source's own do not repeat them."""
    is_of_128 = "pytorch-apple-silicon-benchmarks" in published["source"]
    return found(r"sequence length (\d+)", published["timing_note"]) or (128 if is_of_128 else None)


def matrix_size_of(model):
    """m x n x k of a model's name, where it has one."""
    sides = re.findall(r"\d+", model) if model.startswith(("matmul", "linear")) else []
    return "x".join(sides * 3 if len(sides) == 1 else sides) or None


def main():
    target = HERE.parent / "published.csv"
    with (HERE / "results.csv").open(newline="", encoding="utf-8") as lines:
        rows = [convert(published) for published in csv.DictReader(lines)]
    target.unlink(missing_ok=True)
    for row in rows:
        results.append(target, row)
    Path(f"{target}.lock").unlink(missing_ok=True)
    print(f"{len(rows)} rows in {target.relative_to(HERE.parents[1])}")


if __name__ == "__main__":
    main()
