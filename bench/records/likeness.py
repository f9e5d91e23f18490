"""Decide which results are of the same work, and find those of other machines."""

import re

from bench.records import peaks
from bench.records.columns import COLUMNS, WORK, format_number, words_of
from bench.settings import SettingError, unmixed
from bench.workloads.standard_set import SIXTEEN, SIXTEEN_BITS
from bench.workloads.workload import MODELS

# Columns of work that may differ between rows of the same work, which describe_how() then tells, and the other ones.
# Of precision and compile only the class counts, see work_of().
HOW = ("memory_format", "optimizer", "data")
AGREE = tuple(name for name in WORK if name not in ("framework", "precision", "compile", *HOW))
# A source that states no size used the usual one: {workload: {column: value}}.
USUAL: dict[str, dict[str, str]] = {
    "image": {"image_size": "224"},
    "mlp": {"image_size": "32"},
    "transformer": {"sequence_length": "128"},
}
PEAKS = ("matmul-peak", "matmul-best")  # of one shape or the best of several; a source's own search is matmul-mamf-...
MOST_SHOWN = 3  # results of other machines, below one of this machine


def class_of_model(precision):
    """Return the class of the precision of a model: "16 bits", mixed or not, or another precision."""
    return SIXTEEN_BITS if unmixed(precision) in SIXTEEN else precision


def class_of(row):
    """Return the class of a row's precision: "16 bits" (mixed or not), "tf32", "float32" or another name.

    float32 that was measured as TF32 is TF32. An operator's precision is its work: bfloat16 is not float16.
    """
    precision = row["precision"] or ""
    if precision == "float32" and "tf32" in str(row.get("measured_precision") or ""):
        return "tf32"
    return class_of_model(precision) if row["phase"] else precision


def is_peak(row):
    """Return whether a row is the best matmul of its machine, at whatever size."""
    return row["model"] in PEAKS or row["model"].startswith("matmul-mamf-")


def cells_of_work(row):
    """Return the cells of a row's work, {column: text}, as they are for all rows of the same work."""
    cells = {name: str(row.get(name) or COLUMNS[name].blank) for name in AGREE}
    for name, usual in (USUAL.get(row["workload"]) or {}).items():
        cells[name] = cells[name] or usual
    if is_peak(row):
        cells |= {"model": "matmul-peak", "matrix_size": "", "batch_size": ""}
    elif row["workload"] == "matmul" and row["model"] != "matmul-8bit":
        cells |= {"model": "matmul", "batch_size": ""}
    is_compiled = str(row["compile"] or "0") != "0"
    return cells | {"precision": class_of(row), "compile": "compiled" if is_compiled else ""}


def work_of(row):
    """Return the work of a row as a text: figures may stand side by side only if it is equal for both."""
    return ";".join(f"{name}={text}" for name, text in cells_of_work(row).items())


def name_work(row):
    """Name the work of a row: "ResNet-50, training, batch 64, 16 bits, compiled"."""
    cells = cells_of_work(row)
    usual = USUAL.get(row["workload"]) or {}
    words = words_of(cells, [name for name in AGREE[2:] if cells[name] != usual.get(name)])
    model = MODELS.get(cells["model"], cells["model"])
    return ", ".join(filter(None, [model, *words.values(), cells["precision"], cells["compile"]]))


def describe_how(row):
    """Describe what may differ between rows of the same work: "torch, mixed_float16, channels_last"."""
    precision = row["precision"] if class_of(row) != row["precision"] else ""
    mode = row["compile"] if row["compile"] not in ("", "0", "1") else ""
    size = row["matrix_size"] if is_peak(row) else ""
    words = words_of(row, HOW).values()
    return ", ".join(filter(None, [row["framework"], precision, mode, size, *words]))


def find_name(side, typed, names):
    """Return the name that a user typed, or the only one that has all its words, as "rtx 3090"; None without one.

    Raises:
        SettingError: the setting of this side, A or B, may mean several of the names.
    """
    exact = [name for name in names if name.lower() == typed.lower()]
    found = exact or [name for name in names if words_in(typed) <= words_in(name)]
    if len(found) > 1:
        raise SettingError(f"{side}={typed!r} is several machines: set {side} to one of {'; '.join(found)}")
    return found[0] if found else None


def words_in(name):
    """Return the words and numbers of a name in lower case: "GeForce RTX 3090" is that of "NVIDIA RTX 3090"."""
    return set(re.findall("[a-z]+|[0-9]+", name.lower())) - {"geforce"}


def describe_elsewhere(row, lines):
    """Describe the results of a row's work elsewhere: on the same chip, then the fastest; "" without any.

    Of each machine the fastest result in the same framework is shown, or if there is none, in any framework. A row that
    is disturbed or implausible itself gets no ratios.

    Args:
        row: a result that has just been measured.
        lines: those of all machines, as tables.latest() chooses them.
    """
    if row["status"] != "ok":
        return ""
    is_here = ~lines["published"] & (lines["machine"] == row["machine"])
    is_like = (lines["work"] == work_of(row)) & (lines["kind"] == ("cpu" if row["device"] == "cpu" else "gpu"))
    is_sound = (lines["status"] == "ok") & (lines["value"] > 0) & ~lines["flags"].str.contains(peaks.UNFIT)
    others = lines[is_like & is_sound & ~is_here].to_dict("records")
    machines = {}  # {name: its result}
    for other in sorted(others, key=lambda other: (other["framework"] != row["framework"], -other["value"])):
        machines.setdefault(other["device_name"] if other["published"] else other["machine"], other)

    def distance(item):
        mine, its = (words_in(str(each["device_name"]).partition(" (")[0]) for each in (row, item[1]))  # not "(CPU)"
        ids = {str(each["cpu_id"] or "").partition(" stepping")[0] for each in (row, item[1])} - {""}
        return mine != its or (row["device"] == "cpu" and len(ids) > 1), -item[1]["value"]

    known = describe_how(row).split(", ")
    texts = []
    for name, other in sorted(machines.items(), key=distance)[:MOST_SHOWN]:
        count = other["processes"]
        made_by = "published" if other["published"] else "1 process" if count == 1 else f"{count} processes"
        how = [words for words in describe_how(other).split(", ") if words not in known]
        is_fit = not re.search(peaks.UNFIT, row["flags"])
        ratio = f"; yours is {row['throughput'] / other['throughput']:.3g}x" if is_fit else ""
        texts.append(f"{name} {format_number(other['throughput'])} {row['unit']} ({', '.join([*how, made_by])}{ratio})")
    return f"same work elsewhere: {', '.join(texts)}" if texts else ""
