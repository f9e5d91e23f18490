"""Decide which results are of the same work, and find those of other machines."""

import re

from bench.records.columns import COLUMNS, WORK, describe_work, format_number
from bench.records.verdict import ratio_of
from bench.workloads.standard_set import SIXTEEN, SIXTEEN_BITS
from bench.workloads.workload import MODELS

# Columns of work that may differ between rows of the same work, which describe_how() then tells, and the other ones.
# Of precision and compile only the class counts, see work_key().
HOW = ("memory_format", "optimizer", "data")
AGREE = tuple(name for name in WORK if name not in ("framework", "precision", "compile", *HOW))
# A source that states no size used the usual one: {workload: {column: value}}.
USUAL: dict[str, dict[str, str]] = {
    "image": {"image_size": "224"},
    "mlp": {"image_size": "32"},
    "transformer": {"sequence_length": "128"},
}
# Models that are the best matmul of their machine, at whatever size: of one shape, of several, or of a source's search.
PEAK = r"matmul-(peak|best|mamf-.*)"
NOT_OF_CHIP = r" GeForce| \(.*"  # drivers print the first; "Apple M1 (GPU)" is an Apple M1
MOST_SHOWN = 3  # results of other machines, below one of this machine


def precision_class(row):
    """Return the class of a row's precision: "16 bits" (mixed or not), "tf32", "float32" or another name.

    float32 that was measured as TF32 is TF32. An operator's precision is its work: bfloat16 is not float16.
    """
    precision = row["precision"] or ""
    if precision == "float32" and "tf32" in str(row.get("measured_precision") or ""):
        return "tf32"
    return SIXTEEN_BITS if row["phase"] and precision.removeprefix("mixed_") in SIXTEEN else precision


def choose_peaks(found, sides):
    """Choose the best matmul in each precision from a frame of results, of each side, rows that agree in `sides`.

    An undisturbed one comes before a disturbed one, then the fastest one.
    """
    peaks = found[found["model"].str.fullmatch(PEAK)]
    peaks = peaks.sort_values(["undisturbed", "value"], kind="stable")
    return peaks.drop_duplicates([*sides, "precision"], keep="last")


def cells_of_work(row):
    """Return the cells of a row's work, {column: text}, as they are for all rows of the same work."""
    usual = USUAL.get(row["workload"]) or {}
    cells = {name: str(row.get(name) or COLUMNS[name]["blank"] or usual.get(name, "")) for name in AGREE}
    if re.fullmatch(PEAK, row["model"]):
        cells |= {"model": "matmul-peak", "matrix_size": "", "batch_size": ""}
    elif row["workload"] == "matmul" and row["model"] != "matmul-8bit":
        cells |= {"model": "matmul", "batch_size": ""}
    is_compiled = str(row["compile"] or "0") != "0"
    return cells | {"precision": precision_class(row), "compile": "compiled" if is_compiled else ""}


def work_key(row):
    """Return the work of a row as a text: figures may stand side by side only if it is equal for both."""
    return ";".join(f"{name}={text}" for name, text in cells_of_work(row).items())


def work_title(row):
    """Name the work of a row: "ResNet-50, training, batch 64, 16 bits, compiled"."""
    model = cells_of_work(row)["model"]
    return ", ".join(filter(None, [MODELS.get(model, model), describe_settings(row)]))


def describe_settings(row):
    """Describe the work of a row without its model: "training, batch 64, 16 bits, compiled"."""
    cells = cells_of_work(row)
    usual = USUAL.get(row["workload"]) or {}
    words = describe_work(cells, [name for name in AGREE if name != "model" and cells[name] != usual.get(name)])
    return ", ".join(filter(None, [words, cells["precision"], cells["compile"]]))


def describe_who(result):
    """Name the machine or the source's device of a result of tables.latest(): "example-cpu (CPU)"."""
    return result["shown"] + (" (CPU)" if result["kind"] == "cpu" and not result["published"] else "")


def describe_how(row):
    """Describe what may differ between rows of the same work: "torch, mixed_float16, channels_last, 1 thread"."""
    precision = row["precision"] if precision_class(row) != row["precision"] else ""
    mode = row["compile"] if row["compile"] not in ("", "0", "1") else ""
    size = row["matrix_size"] if re.fullmatch(PEAK, row["model"]) else ""
    return ", ".join(filter(None, [row["framework"], precision, mode, size, describe_work(row, HOW), few_threads(row)]))


def few_threads(row):
    """Describe the threads of a row if they are fewer than the cores of its CPU, as its name says: "1 thread"."""
    threads = float(row["num_threads"] or "inf") * int(row["world_size"] or 1)
    is_few = row["device"] == "cpu" and threads < float(row["cpu_count"] or 0)
    return describe_work(row, ["num_threads"]) if is_few else ""


def describe_elsewhere(result, latest):
    """Describe where else a new result's work was measured, in one result of each machine; "" without any.

    First come those on the same chip, then those in the same framework, then the fastest. Disturbed ones are not shown.
    `latest` are those of tables.latest().
    """
    if result["status"] != "ok" or result["scope"] != "device":
        return ""
    is_elsewhere = latest["published"] | (latest["machine"] != result["machine"])
    is_like = (latest["work"] == result["work"]) & (latest["kind"] == result["kind"])
    others = latest[is_like & latest["undisturbed"] & (latest["value"] > 0) & is_elsewhere]
    by = "cpu_id" if result["device"] == "cpu" and result["cpu_id"] else "device_name"
    chips = others[by].str.replace(NOT_OF_CHIP, "", regex=True)
    others = others.assign(
        who=[*map(describe_who, others.to_dict("records"))],
        same_framework=others["framework"] == result["framework"],
        same_chip=chips == re.sub(NOT_OF_CHIP, "", result[by]),
    )
    others = others.sort_values(["same_chip", "same_framework", "value"], ascending=False).drop_duplicates("who")
    known = describe_how(result).split(", ")
    texts = []
    for other in others[:MOST_SHOWN].to_dict("records"):
        how = [words for words in describe_how(other).split(", ") if words not in known]
        how.append("published" if other["published"] else f"processes: {other['processes']}")
        if other["same_chip"]:
            how, other["who"] = [other["who"], *how], "on the same chip"
        if ratio := ratio_of(result, other):
            how[-1] += f"; yours is {ratio.throughput:.3g}x"
        texts.append(f"{other['who']} {format_number(other['value'])} {other['per']} ({', '.join(how)})")
    return f"same work elsewhere: {', '.join(texts)}" if texts else ""
