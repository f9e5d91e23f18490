"""Declare the columns of a results file, each once, with its role, its meaning and how its values are worded."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from bench.settings import COMPILE_MODES

SCHEMA = 2  # raised if the meaning of a column changes, but not for a new column; 2: a row combines all processes


@dataclass(frozen=True)
class Column:
    """One column. Unknown is blank, never 0; times are wall seconds."""

    # "work": rows are comparable only if these agree. "setup": settings of the machine that change the speed of the
    # same work. "version": software and method; repetitions agree in it. "identity": which row of which machine.
    # "result": what was measured.
    role: str
    meaning: str
    # "text"; "number"; "positive": a number that is never 0; "meter": a number that is 0 only if the meter is stuck.
    kind: str = "text"
    blank: str = ""  # the value that an empty cell means
    # How a value of work or setup is worded: a pattern, words for some values, or a function; "" means not at all.
    words: str | dict[str, str] | Callable[[str], str] | None = None
    said_for: tuple[str, ...] = ()  # the workloads that show it; empty: all


def say_allocator(text):
    """Describe the allocator's variables: a preloaded library by its file, what `make best` sets for glibc in words."""
    keeps = re.fullmatch(r"(MALLOC_(MMAP|TRIM)_THRESHOLD_=\d{9,} ?){2}", text)
    return "allocator keeps memory" if keeps else re.sub(r"LD_PRELOAD=(\S*/)?", "", text)


INTERLEAVED = "interleaved"  # in the column search
COMPILE_WORDS = {"0": "", "1": "compiled"} | {mode: f"compiled ({mode})" for mode in COMPILE_MODES}

COLUMNS = {
    # which
    "schema": Column("identity", "version of the meaning of these columns"),
    "method_version": Column("version", "version of the method in bench/timing/measure.py"),
    "run_id": Column("identity", "the process whose cells the row has: the median one of a run"),
    "timestamp": Column("identity", "UTC, when that process ended"),
    "search": Column(
        "identity", "interleaved, in a list that is compared; or the same for the path of one `make best`"
    ),
    "status": Column("result", "ok, or why there is no full result: out_of_memory, work_skipped, interrupted ..."),
    "flags": Column("result", "warnings about the result, separated by spaces (bench/records/flags.py explains them)"),
    "source": Column("identity", "of a published figure; blank for a measurement by this program"),
    "note": Column("result", "the reason of a status, what limits the end-to-end rate, or what a reader has to know"),
    # machine
    "machine": Column("identity", "named after the device that ran (a Mac after its chip), or by MACHINE"),
    "device": Column("identity", "what ran: cpu, cuda, mps"),
    "device_name": Column("identity", "its name as the system reports it"),
    "gpu_cores": Column("identity", "Apple GPU cores"),
    "cpu_name": Column("identity", "processor"),
    "cpu_id": Column("identity", "vendor, family, model, stepping; of ARM's: implementer, variant, part, revision"),
    "cpu_count": Column("identity", "logical CPUs"),
    "memory_gb": Column("identity", "installed memory, units of 2**30 bytes"),
    "os": Column("version", "operating system"),
    "driver": Column("version", "NVIDIA driver"),
    "power_source": Column("setup", "ac or battery", blank="ac", words={"battery": "on battery"}),
    "low_power_mode": Column("setup", "1 or 0, if the system has one", blank="0", words={"1": "in low-power mode"}),
    "allocator": Column("setup", "environment variables that change the speed", words=say_allocator),
    # software
    "commit": Column("version", "of this repository; -dirty if its programs were changed"),
    "python": Column("version", "version"),
    "framework": Column("work", "torch, tensorflow, jax or mlx", words=""),
    "framework_version": Column("version", "with its build"),
    # workload
    "workload": Column("work", "image, mlp, transformer, llm, matmul, convolution, gemv ...", words=""),
    "model": Column("work", "its name; or matmul, matmul-peak (the best of a sweep, again), copy ...", words="{}"),
    "phase": Column("work", "inference, training, forward, backward, optimizer, prefill or decode", words="{}"),
    "scope": Column("work", "device, input, end_to_end, epoch or sustained", words={"device": ""}),
    "epoch": Column("work", "its number, from 1, in the scope epoch", words="epoch {}"),
    "matrix_size": Column("work", "m x n x k", words="{}"),
    "precision": Column("work", "as asked for", words="{}"),
    "measured_precision": Column("result", "found by a comparison with float64"),
    "output_error": Column("result", "of the output against float32 on the CPU, relative L2", "number"),
    "output_limit": Column("result", "of that error: what rounding explains; blank if it explains any", "number"),
    "compile": Column("work", "1 or 0, or a mode of torch.compile; in JAX always 1", words=COMPILE_WORDS),
    "memory_format": Column("work", "channels_first or channels_last", words="{}"),
    "batch_size": Column("work", "items in one step; sequences of an llm", words="batch {}"),
    "image_size": Column("work", "pixels per side", words="{} px"),
    "sequence_length": Column("work", "tokens", words="{} tokens"),
    "prompt_tokens": Column("work", "tokens of each sequence in a step of prefill", words="prompt of {}"),
    "new_tokens": Column("work", "tokens that decode adds before it starts again", words="{} new tokens"),
    "depth": Column("work", "tokens in the cache before decode begins", words="depth {}"),
    "lora_rank": Column("work", "of LoRA's adapters; 0: all weights are trained", blank="0", words="LoRA of rank {}"),
    "checkpointing": Column("work", "1: backward computes layers again", blank="0", words={"1": "checkpointing"}),
    "weight_bits": Column("work", "of quantised weights; blank: those of precision", words="{} bits a weight"),
    "data": Column("work", "synthetic, jpeg or cifar10", words="{} images", said_for=("mlp",)),
    "optimizer": Column("work", "sgd, adam or adamw", words="{}"),
    "world_size": Column("work", "devices or CPU processes that shared the work", blank="1", words="{} devices"),
    "nodes": Column("work", "number of machines with these devices", blank="1", words="{} nodes"),
    "num_workers": Column("setup", "input processes of each device, or threads", words="{} workers"),
    "num_threads": Column("setup", "CPU threads of the framework, for each device", words="{} threads"),
    "seed": Column("identity", "of data and weights"),
    # result
    "unit": Column("result", "of throughput"),
    "throughput": Column("result", "items per second of all devices, in the process with the median rate", "positive"),
    "throughput_low": Column("result", "lowest end of the processes' intervals", "positive"),
    "throughput_high": Column("result", "highest end of the processes' intervals", "positive"),
    "process_rates": Column("result", "throughput of each process, in order, separated by spaces"),
    "step_seconds_median": Column("result", "median window / its steps", "positive"),
    "step_seconds_p95": Column("result", "95th percentile of single steps, if there are at least 59", "positive"),
    "windows": Column("result", "number of measured windows", "number"),
    "steps_per_window": Column("result", "steps between two clock readings", "number"),
    "items": Column("result", "total of all windows; items / seconds is the mean throughput", "positive"),
    "seconds": Column("result", "total of all windows", "positive"),
    "first_step_seconds": Column("result", "of the very first step: allocation, autotuning, compilation", "positive"),
    "warmup_seconds": Column("result", "from the first step until the speed is steady", "number"),
    "stop_reason": Column("result", "target_ci, max_seconds, num_images, epoch, interval (sustained) or interrupted"),
    "elapsed_seconds": Column("result", "in the scope sustained: from the run's start to the row's end", "positive"),
    "bottleneck": Column("result", "device, input ..."),
    # learning
    "parameters": Column("result", "trainable", "number"),
    "loss_mean": Column("result", "mean loss of all steps of an epoch", "number"),
    "accuracy": Column("result", "on test data, 0 to 1", "number"),
    # physics
    "flops_per_item": Column("result", "FLOPs per item of the phase; 1 multiply-add = 2", "positive"),
    "tflops": Column("result", "throughput x flops_per_item / 10**12; of int8 these are TOP/s", "positive"),
    "bytes_per_step": Column("result", "that a step of decode or gemv has to read: weights, mean cache", "positive"),
    "bandwidth": Column("result", "bytes_per_step / seconds of a step, in units of 10**9 bytes/s", "positive"),
    "peak_memory_bytes": Column("result", "on the (first) device; of the process if the device is the cpu", "meter"),
    "power_watts": Column("result", "mean over five seconds of the first process, or over a sustained row", "meter"),
    "power_scope": Column("result", "what power_watts covers on each device; the watts are the sum of all devices"),
    "joules_per_item": Column("result", "joules over items in the seconds of power_watts", "meter"),
    "idle_watts": Column("result", "power_watts before the run starts any work on the device", "meter"),
    "temperature_c": Column("result", "temperature of the device right after the last window", "number"),
    "clock_mhz": Column("result", "clock of the device right after the last window", "meter"),
    "throttle_reasons": Column("result", "NVIDIA driver's reasons for a lower clock right after the last window"),
    "thermal_pressure": Column("result", "that a Mac reports after the last window: nominal, moderate, heavy ..."),
    "canary_seconds": Column("result", "of a small matmul of NumPy before the run, on a cpu", "positive"),
}


# The names of the columns with a role.
WORK, SETUP, VERSIONS = (
    tuple(name for name, column in COLUMNS.items() if column.role == role) for role in ("work", "setup", "version")
)


def words_of(row, names=WORK):
    """Describe a row's cells: {column: words}, without those of usual values."""
    in_words = {}
    for name in names:
        column = COLUMNS[name]
        text = "" if row.get(name) is None else str(row[name])
        if text in ("", column.blank) or (column.said_for and row.get("workload") not in column.said_for):
            continue
        if isinstance(column.words, dict):
            in_words[name] = column.words.get(text, text)
        elif callable(column.words):
            in_words[name] = column.words(text)
        else:
            in_words[name] = column.words.format(text).removesuffix("s" if text == "1" else "")
    return {name: words for name, words in in_words.items() if words}


def describe_work(row):
    """Describe a row's work: "resnet50, training, float32, channels_last, batch 16, sgd"."""
    return ", ".join(words_of(row).values())


def describe_setup(row):
    """Describe a row's setup: "2 threads, on battery"."""
    return ", ".join(words_of(row, SETUP).values())


def describe_change(before, after):
    """Describe how work and setup differ between two rows: "bfloat16, compiled, allocator keeps memory"."""
    changed = [name for name in (*WORK, *SETUP) if str(before.get(name) or "") != str(after.get(name) or "")]
    in_words = words_of(after, changed)
    return ", ".join(in_words.get(name) or f"{name} {after.get(name) or 'default'}" for name in changed)


def format_number(value, pattern="{:.4g}"):
    """Format a number with all digits of a large one written out; blank if it is unknown."""
    if value in (None, "") or value != value:  # NaN is unequal to itself
        return ""
    text = pattern.format(float(value))
    return f"{float(text):.0f}" if "e+" in text else text


def make_printable(text):
    """Replace what controls a terminal in a text by U+FFFD, and white space by one blank."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in " ".join(text.split()))
