"""Decide which figures may stand side by side: those of the same work. Card, plots, tables and page ask here."""

from bench.records.columns import COLUMNS, words_of
from bench.settings import unmixed
from bench.workloads.standard_set import SIXTEEN, SIXTEEN_BITS
from bench.workloads.workload import MODELS

# Columns in which the same work agrees. Precision and compilation also count, see work_of(). What may differ is said in
# words, see describe_how(): framework, which 16 bits, memory format, optimizer, data.
SIZES = ("batch_size", "image_size", "sequence_length", "prompt_tokens", "new_tokens", "depth")
WEIGHTS = ("lora_rank", "weight_bits")
AGREE = ("workload", "model", "phase", "scope", "epoch", "matrix_size", *SIZES, *WEIGHTS, "world_size", "nodes")
HOW = ("memory_format", "optimizer", "data")
# A source that states no size used the usual one: {workload: {column: value}}.
USUAL: dict[str, dict[str, str]] = {
    "image": {"image_size": "224"},
    "mlp": {"image_size": "32"},
    "transformer": {"sequence_length": "128"},
}
# Lengths of a language model have no usual value: {phase: its columns}.
LENGTHS: dict[str, tuple[str, ...]] = {
    "training": ("sequence_length",),
    "prefill": ("prompt_tokens",),
    "decode": ("depth", "new_tokens"),
}
NOT_STATED = "length not stated"
PEAKS = ("matmul-peak", "matmul-best")  # of one shape or the best of several; a source's own search is matmul-mamf-...


def class_of_model(precision):
    """Return the class of the precision of a model: "16 bits", mixed or not, or another precision."""
    return SIXTEEN_BITS if unmixed(precision) in SIXTEEN else precision


def class_of(row):
    """Return the class of a row's precision: "16 bits" (mixed or not), "tf32", "float32" or another name.

    float32 that was measured as TF32 is TF32. An operator's precision is its work: bfloat16 is not float16.
    """
    precision = row["precision"]
    if precision == "float32" and "tf32" in str(row.get("measured_precision") or ""):
        return "tf32"
    return class_of_model(precision) if row["phase"] else precision


def is_peak(row):
    """Return whether a row is the best matmul of its machine, at whatever size."""
    return row["model"] in PEAKS or row["model"].startswith("matmul-mamf-")


def work_of(row):
    """Return the work of a row, a dict of text: two figures may stand side by side only if this is equal for both."""
    cells = {name: str(row.get(name) or COLUMNS[name].blank) for name in AGREE}
    for name, usual in (USUAL.get(row["workload"]) or {}).items():
        cells[name] = cells[name] or usual
    if row["workload"] == "llm":
        cells |= {name: cells[name] or NOT_STATED for name in LENGTHS.get(row["phase"]) or ()}
    if is_peak(row):
        cells |= {"model": "matmul-peak", "matrix_size": "", "batch_size": ""}
    elif row["workload"] == "matmul" and row["model"] != "matmul-8bit":
        cells |= {"model": "matmul", "batch_size": ""}
    return (*cells.items(), ("precision", class_of(row)), ("compile", row["compile"] not in ("", "0")))


def name_work(row):
    """Name the work of a row: "ResNet-50, training, batch 64, 16 bits, compiled"."""
    cells = dict(work_of(row))
    usual = USUAL.get(row["workload"]) or {}
    sizes = {name: text for name, text in cells.items() if text not in (NOT_STATED, usual.get(name))}
    words = words_of(sizes, [name for name in AGREE if name not in ("workload", "model")])
    is_unknown = NOT_STATED in cells.values()
    model = MODELS.get(str(cells["model"])) or cells["model"]
    compiled = "compiled" if cells["compile"] else ""
    parts = [model, *words.values(), NOT_STATED if is_unknown else "", cells["precision"], compiled]
    return ", ".join(filter(None, parts))


def describe_how(row):
    """Describe what may differ between rows of the same work: "torch, mixed_float16, channels_last"."""
    precision = row["precision"] if class_of(row) != row["precision"] else ""
    mode = row["compile"] if row["compile"] not in ("", "0", "1") else ""
    size = row["matrix_size"] if is_peak(row) else ""
    words = words_of(row, HOW).values()
    return ", ".join(filter(None, [row["framework"], precision, mode, size, *words]))
