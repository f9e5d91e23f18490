"""Rows to begin with, of machines that do not exist: ROW is complete, and a test changes the cells that it is about.

Numbers are numbers, as in a run; write() stores rows as a run does.
"""

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

from bench.records import results, tables
from bench.records.columns import COLUMNS, SCHEMA
from bench.records.verdict import Comparison, Rate
from bench.workloads.standard_set import STANDARD_SET

ROW = dict.fromkeys(COLUMNS) | {"schema": SCHEMA, "method_version": 2, "run_id": "0123456789ab"}
ROW |= {"timestamp": "2026-11-20T11:34:42+00:00", "commit": "0123456789ab", "status": "ok", "flags": "", "note": ""}
ROW |= {"machine": "example-cpu", "device": "cpu", "device_name": "Example CPU", "cpu_name": "Example CPU"}
ROW |= {"cpu_id": "family 25", "cpu_count": 2, "memory_gb": 23.5, "os": "Debian GNU/Linux 12, Linux 6.18"}
ROW |= {"python": "3.11.7", "framework": "torch", "framework_version": "2.15", "world_size": 1, "seed": 0}
ROW |= {"workload": "image", "model": "resnet50", "phase": "training", "scope": "device", "precision": "float32"}
ROW |= {"measured_precision": "float32", "compile": 0, "batch_size": 16, "image_size": 224, "unit": "images/s"}
ROW |= {"throughput": 100.0, "throughput_low": 99.0, "throughput_high": 101.0, "step_seconds_median": 0.16}
ROW |= {"windows": 20, "steps_per_window": 2, "items": 640, "seconds": 6.5, "first_step_seconds": 1.2}
ROW |= {"flops_per_item": 2.4e10, "tflops": 2.4}
GPU = {"machine": "example-gpu", "device": "cuda", "device_name": "Example GPU", "driver": "580.65"}

NUMBERS = itertools.count()  # of runs

OPERATOR = {"phase": None, "batch_size": None, "image_size": None, "flops_per_item": None}
MATMUL = OPERATOR | {"workload": "matmul", "model": "matmul", "matrix_size": "64x64x64", "unit": "matmuls/s"}
PEAK = MATMUL | {"model": "matmul-peak"}
COPY = OPERATOR | {"workload": "bandwidth", "model": "copy", "unit": "GB/s", "tflops": None}
LLM = {"workload": "llm", "model": "smollm2-135m", "batch_size": 1, "image_size": None, "unit": "tokens/s"}
MLP = {"workload": "mlp", "model": "mlp-5x1024", "batch_size": 32, "image_size": 32, "data": "synthetic"}


def rate(throughput, width=0.01):
    """Return the cells of a rate whose interval is this wide to both sides."""
    ends = {"throughput_low": throughput * (1 - width), "throughput_high": throughput * (1 + width)}
    return {"throughput": float(throughput)} | ends


def load(rows):
    """Return rows as a frame, as they are read from a file."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(results.HEADER + results.to_text(rows))
        file.flush()
        return tables.load([Path(file.name)])


def combine(rows):
    """Return the results of rows as dicts."""
    return tables.to_dicts(tables.combine(load(rows)))


def latest_of(*rows):
    """Return the results of rows as a report gets those of all machines."""
    return tables.latest(tables.combine(load(rows)))


def read_rows(path):
    """Return the rows of a file as dicts of text; [] if there is none."""
    rows, _ = results.parse(results.read_text(path) or results.HEADER, path)
    return [dict(zip(COLUMNS, cells, strict=True)) for cells in rows.values()]


def write(folder, rows, machine="a"):
    """Append rows, each as changes of ROW, to <machine>.csv; returns the path.

    A row without a process is a run by itself, with as many equal processes as `processes` says, or one.
    """
    of_processes = [each for row in rows for each in repeat_processes(ROW | {"machine": machine} | row)]
    if of_processes:
        results.append(folder / f"{machine}.csv", *of_processes)
    return folder / f"{machine}.csv"


def repeat_processes(row):
    count = row.pop("processes", 1)
    if row["process"] or row["source"]:
        return [row]
    run = {"run_id": f"run{next(NUMBERS)}"} if row["run_id"] == ROW["run_id"] else {}
    return [row | run | {"process": number} for number in range(1, count + 1)]


# What the commands print in tests/test_outputs.py


def measure(throughput, *cells):
    """Return the row of one process: ROW with this rate, the TFLOP/s that follow from it, and these cells."""
    row = ROW | rate(throughput)
    for more in cells:
        row |= more
    row["tflops"] = throughput * row["flops_per_item"] / 1e12 if row["flops_per_item"] else None
    return row


def processes_of(*rows):
    """Return rows as those of a run with one row for each process."""
    return [row | {"process": number} for number, row in enumerate(rows, 1)]


def repeat(first, *others):
    """Return the rows of five processes that differ by some percent; `others` are what only the first one measured."""
    again = [first | rate(factor * first["throughput"]) for factor in (0.98, 1.01, 0.97, 1.03)]
    return [*processes_of(first, *again), *(row | {"process": 1} for row in others)]


ON_CPU = {"phase": "inference", "memory_format": "channels_first", "num_threads": 2, "flops_per_item": 8.2e9}
ON_CPU |= {"peak_memory_bytes": 1.49e9}
INPUT = ON_CPU | {"scope": "input", "num_workers": 2, "flops_per_item": None, "first_step_seconds": 0.0054}
END_TO_END = ON_CPU | {"scope": "end_to_end", "num_workers": 2, "flags": "short", "stop_reason": "num_images"}
END_TO_END |= {"note": "MAX_SECONDS=9 is enough for this pipeline"}  # not if the model limits
PIPELINES = repeat(measure(13.45, ON_CPU), measure(821.9, INPUT), measure(12.47, END_TO_END))
PIPELINES[0] |= {"first_step_seconds": 22.9}  # it compiled for the later ones
IMAGE = combine(PIPELINES)
OTHER = ON_CPU | {"run_id": "other", "machine": "example-cpu-2", "framework": "jax"}
CITED = ON_CPU | {"source": "https://example.org", "device_name": "Example Chip (CPU)", "memory_format": None}
CITED |= {"cpu_id": None}
ELSEWHERE = latest_of(*repeat(measure(12.9, OTHER)), measure(67.7, CITED))
NOWHERE = latest_of()

ON_GPU = GPU | {"precision": "mixed_bfloat16", "measured_precision": "bfloat16", "optimizer": "sgd", "batch_size": 64}
ON_GPU |= {"items": 2560, "memory_format": "channels_last", "peak_memory_bytes": 11.3e9, "temperature_c": 61}
POWER = {"power_watts": 612.4, "power_scope": "gpu board", "joules_per_item": 0.245}
UNSET = {"flags": "page_faults", "allocator": "MALLOC_ARENA_MAX=2"}
GPU_PEAKS = [
    ROW | GPU | PEAK | {"precision": "float32", "tflops": 51.2, "run_id": "peaks"},
    ROW | GPU | PEAK | {"precision": "bfloat16", "tflops": 710.0, "run_id": "peaks"},
    ROW | GPU | COPY | {"throughput": 3900.0, "run_id": "peaks"},
]
TRAINING = [
    *repeat(measure(2498, ON_GPU, POWER)),
    *repeat(measure(3990, ON_GPU, UNSET, {"phase": "backward", "flops_per_item": 1.58e10})),
    *repeat(measure(152_000, ON_GPU, {"phase": "optimizer", "flops_per_item": None, "flags": "barrier_shows"})),
]
TRAINING = combine([*TRAINING, *GPU_PEAKS])[: -len(GPU_PEAKS)]

ON_MLP = MLP | {"optimizer": "sgd", "num_threads": 2, "flops_per_item": 3.8e7, "peak_memory_bytes": 0.9e9}
EPOCH = {"scope": "epoch", "items": 50_000, "seconds": 28.0, "windows": None}
EPOCHS = [measure(1790, ON_MLP)]
for epoch, loss, accuracy in ((1, 1.8312, 0.4127), (2, 1.5908, 0.4655)):
    EPOCHS.append(measure(1786, ON_MLP, EPOCH, {"epoch": epoch, "loss_mean": loss, "accuracy": accuracy}))
EPOCHS = combine([row | {"process": 1} for row in EPOCHS])

WATTS = {"scope": "sustained", "power_watts": 28.4, "power_scope": "cpu+gpu+dram", "joules_per_item": 0.98}
MAC = {"machine": "example-mac", "device": "mps", "device_name": "Example Mac", "power_source": "battery"}
TENS = {"rates": "31 30.5 30 29 28 27 26.5 26.5 26", "seconds": 90.0, "items": 2545}
SUSTAINED = combine(processes_of(measure(28.3, ON_CPU, MAC, WATTS, TENS)))

ON_LLM = GPU | LLM | {"precision": "bfloat16", "measured_precision": "bfloat16", "flops_per_item": 2.7e8}
ON_LLM |= {"peak_memory_bytes": 0.51e9, "first_step_seconds": 0.0312}
PREFILL = measure(61_200, ON_LLM, {"phase": "prefill", "prompt_tokens": 512, "step_seconds_median": 0.00837})
PREFILL = combine([*repeat(PREFILL), *GPU_PEAKS])[:1]
DECODE = ON_LLM | {"phase": "decode", "new_tokens": 128, "depth": 512, "bytes_per_step": 2.9e8, "bandwidth": 101.5}
DECODE |= {"rated_bandwidth": 4800.0}
DECODE = combine([*repeat(measure(350, DECODE, {"output_error": 0.0062})), *GPU_PEAKS])[:1]

FAILED = dict.fromkeys(name for name, column in COLUMNS.items() if column["role"] == "result")
FAILED |= {"status": "out_of_memory", "note": "CUDA out of memory. Tried to allocate 9.00 GiB", "flags": ""}
DIED = FAILED | {"status": "crashed", "note": "ended by signal 11"}
FAILURES = {
    "one scope": combine(repeat(measure(13.45, ON_CPU), ROW | INPUT | FAILED)),
    "every process": combine(processes_of(ROW | ON_GPU | FAILED)),
    "one process of three": combine(processes_of(measure(100), measure(102), ROW | DIED)),
    "Ctrl-C": combine(processes_of(measure(99, {"status": "interrupted", "throughput_low": None, "windows": 3}))),
}

FAILURES["an epoch"] = combine([ROW | ON_MLP | EPOCH | DIED | {"process": 1, "epoch": 2}])

CONVOLUTION = OPERATOR | {"workload": "convolution", "model": "conv3x3", "memory_format": "channels_last"}
SMALL, LARGE = {"matrix_size": "1024x1024x1024"}, {"matrix_size": "4096x4096x4096"}
BFLOAT16, INT8 = {"precision": "bfloat16"}, {"precision": "int8", "model": "matmul-8bit"}
REFUSED = FAILED | {"status": "unsupported", "note": "no kernel for float8 on this device"}
SWEEP = [
    ROW | MATMUL | SMALL | {"tflops": 0.18},
    ROW | CONVOLUTION | SMALL | {"model": "conv1x1", "tflops": 0.178, "flags": "contended"},
    ROW | PEAK | SMALL | {"tflops": 0.1785, "note": "the best size, measured again"},
    ROW | CONVOLUTION | {"batch_size": 4, "image_size": 256, "tflops": 0.19},
    ROW | MATMUL | SMALL | BFLOAT16 | {"tflops": 0.378},
    ROW | MATMUL | LARGE | BFLOAT16 | {"tflops": 0.41, "flags": "page_faults"},
    ROW | PEAK | LARGE | BFLOAT16 | {"tflops": 0.404},
    ROW | COPY | {"throughput": 35.0},
    ROW | MATMUL | SMALL | INT8 | {"tflops": 0.808},
    ROW | MATMUL | SMALL | {"precision": "float8_e4m3", "model": "matmul-8bit"} | REFUSED,
]

# `make compare` of two files of one machine
FIVE = {"machine": "example-cpu", "processes": 5}
LATER = {"framework_version": "2.16"}
PIPELINE = {"scope": "input", "processes": 1}
BEFORE = [
    FIVE | rate(100),
    FIVE | rate(10) | {"model": "vgg16"},
    FIVE | rate(70, 0.001) | {"model": "convnext_tiny"},
    FIVE | rate(7) | {"model": "alexnet"},
    FIVE | rate(20) | LATER | {"model": "vgg13"},  # the other way round than the rest
    FIVE | FAILED | {"model": "vgg19"},
    FIVE | rate(40) | {"model": "densenet161"},
    FIVE | rate(900) | PIPELINE,
    FIVE | GPU | rate(4000),
    FIVE | PEAK | SMALL | {"tflops": 1.5},
    FIVE | PEAK | LARGE | {"tflops": 2.0},  # the latest peak counts, at any size and by any operator
    # Of two an equal setup counts, else the newest one; then the same framework.
    *(FIVE | rate(100 / n) | {"model": name, "num_threads": n} for name in ("resnet18", "resnet34") for n in (2, 64)),
    *(FIVE | rate(30) | {"model": "resnet101", "framework": name} for name in ("mlx", "torch")),
    FIVE | rate(30) | {"model": "resnet152"},
]
AFTER = [
    FIVE | rate(200) | LATER,
    FIVE | rate(5) | LATER | {"model": "vgg16", "flags": "page_faults contended"},
    FIVE | rate(70.1, 0.001) | LATER | {"model": "convnext_tiny"},
    FIVE | rate(1) | LATER | {"model": "alexnet", "batch_size": 64},
    FIVE | rate(600) | LATER | {"device": "mps", "device_name": "Example Mac"},
    FIVE | PEAK | SMALL | LATER | {"tflops": 2.4, "memory_format": "channels_last", "batch_size": 1},
    FIVE | rate(20) | {"model": "vgg13"},
    FIVE | rate(4) | LATER | {"model": "vgg19"},
    FIVE | rate(60) | LATER | {"model": "densenet161", "processes": 3},
    FIVE | rate(800) | LATER | PIPELINE,
    FIVE | rate(300) | {"group": "0123456789ab", "allocator": "A=1"},  # of `make best`
    FIVE | rate(100) | LATER | {"model": "resnet18", "num_threads": 2},
    FIVE | rate(100) | LATER | {"model": "resnet34", "num_threads": 1},
    *(FIVE | rate(60) | LATER | {"model": name, "framework": "mlx"} for name in ("resnet101", "resnet152")),
]

# Comparisons: faster, undecided, slower, equal, of too few pairs, of one pair, of other work, and of no pair
FASTER = Comparison(Rate(1.2412, 1.22, 1.268), pairs=5, differing=[], in_slices=True)
EQUAL = Comparison(Rate(1.004, 0.98, 1.02), pairs=5, differing=[])
COMPARISONS = [FASTER, EQUAL, Comparison(Rate(0.805, 0.79, 0.82), pairs=5, differing=[])]
COMPARISONS += [replace(FASTER, ratio=Rate(1.001, 0.998, 1.003)), replace(FASTER, pairs=3), replace(EQUAL, pairs=1)]
COMPARISONS += [replace(FASTER, differing=["compile", "device"]), None]


def standard_set(**changes):
    """Yield a row of each benchmark of the set that suits the device: on a CPU in float32, on a GPU in 16 bits."""
    device, framework = (changes.get(name, ROW[name]) for name in ("device", "framework"))
    for i, each in enumerate(each for each in STANDARD_SET if each.suits(device, framework)):
        precision = each.list_precisions(device, "bfloat16")[0]
        environ = each.environ(device, framework, precision, compiles=device == "cuda")
        about = {name.lower(): text for name, text in environ.items()} | {"workload": each.workload, "scope": "device"}
        about["unit"] = {"transformer": "sequences/s", "llm": "tokens/s"}.get(each.workload, "images/s")
        about = {"image_size": None} | about | {"processes": 3, "run_id": f"{changes.get('machine', '')}{i}"}
        yield rate(100 + i) | about | changes


# A card: the standard set, the peaks, an input pipeline, a doubtful row and a published one
CARD = [row | {"tflops": 0.12, "bandwidth": 8.12 if row["phase"] == "decode" else None} for row in standard_set()]
CARD += [PEAK | LARGE | {"tflops": 0.18}, PEAK | LARGE | BFLOAT16 | {"tflops": 0.404}, COPY | {"throughput": 35.0}]
CARD += [PEAK | SMALL | {"tflops": 0.15}, PEAK | {"tflops": 0.3, "flags": "contended"}]
CARD += [row | {"image_size": None, "run_id": "pipelines"} for row in PIPELINES]
DIRTY = {"flags": "page_faults", "commit": "9876543210ab-dirty", "processes": 2, "num_threads": 1, "tflops": 0.2}
CARD.append(rate(240) | BFLOAT16 | DIRTY | {"phase": "inference", "image_size": None})
PUBLISHED = GPU | {"source": "https://example.org", "phase": "inference", "batch_size": 64, "throughput_low": None}
