"""Declare the columns of a results file, each once, and the flags.

Roles. Work: rows are comparable only if these agree; setup: settings of the machine that change the speed; version:
software and method; identity: which row of which machine; result: what was measured.
"""

from dataclasses import dataclass

from bench import settings

SCHEMA = 2  # raised if the meaning of a column changes, but not for a new column


@dataclass(frozen=True)
class Column:
    """One column. Unknown is blank, never 0; times are wall seconds."""

    role: str
    meaning: str
    holds: str = "text"  # or "number", which is read as a float
    blank: str = ""  # the value that an empty cell means
    # How a value of work or setup is worded: a pattern, or words for some values; "" means not at all.
    words: str | dict[str, str] | None = None


DATA = {"synthetic": "", "cifar10": "cifar10 images", "jpeg": "files of quality 90", "jpeg_q96": ""}
COMPILE_WORDS = {"0": "", "1": "compiled"} | {mode: f"compiled ({mode})" for mode in settings.COMPILE_MODES}
WORKLOADS = (*settings.WORKLOADS, "matmul", "convolution", "bandwidth")  # in the order of tables

COLUMNS = {
    # which
    "schema": Column("identity", "version of the meaning of these columns"),
    "method_version": Column("version", "METHOD_VERSION of bench/timing"),
    "run_id": Column("identity", "the run: one combination of settings, in one command, in all its processes"),
    "process": Column("identity", "its number in the run, from 1"),
    "group": Column("identity", "what was compared: pairs have equal group and process"),
    "timestamp": Column("identity", "UTC, when the process ended"),
    "status": Column(
        "result",
        "ok; without a full result interrupted, out_of_memory, unsupported, failed, crashed, timed_out; "
        "refused by a check: wrong_output, wrong_model, work_skipped",
    ),
    "flags": Column("result", "warnings, separated by spaces; explained where they are printed"),
    "source": Column("identity", "of a published figure; blank for a measurement by this program"),
    "note": Column("result", "reason of a status, what limits the end-to-end rate, what a reader has to know"),
    # machine
    "machine": Column("identity", "named after the device that ran (a Mac after its chip), or by MACHINE"),
    "device": Column("identity", "what ran: cpu, cuda, mps"),
    "device_name": Column("identity", "its name as the system reports it"),
    "gpu_cores": Column("identity", "Apple GPU cores"),
    "rated_bandwidth": Column("identity", "GB/s by the clock and the bus of an NVIDIA card's memory", "number"),
    "cpu_name": Column("identity", "processor"),
    "cpu_id": Column("identity", "vendor, family, model, stepping; of ARM's: implementer, variant, part, revision"),
    "cpu_count": Column("identity", "logical CPUs"),
    "memory_gb": Column("identity", "installed memory, units of 2**30 bytes"),
    "os": Column("version", "operating system"),
    "driver": Column("version", "NVIDIA driver"),
    "power_source": Column("setup", "if known", blank="ac", words={"battery": "on battery"}),
    "low_power_mode": Column("setup", "if the system has one", blank="0", words={"1": "in low-power mode"}),
    "allocator": Column("setup", "environment variables that change the speed", words="{}"),
    "power_limit_watts": Column("setup", "that the (first) NVIDIA card is set to", words="power limit {} W"),
    # software
    "commit": Column("version", "of this repository; -dirty if its programs were changed"),
    "python": Column("version", "version"),
    "framework": Column("work", "its name here", words=""),
    "framework_version": Column("version", "with its build"),
    # workload
    "workload": Column("work", "what the model or operator does", words=""),
    "model": Column("work", "its name; or matmul, matmul-peak (the best of a sweep, again), copy ...", words="{}"),
    "phase": Column("work", "training; its parts forward, backward, optimizer; inference, prefill, decode", words="{}"),
    "scope": Column("work", "what ran, and how", words={"device": "", "epoch": ""}),
    "epoch": Column("work", "its number, from 1, in the scope epoch", words="epoch {}"),
    "matrix_size": Column("work", "m x n x k", words="{}"),
    "precision": Column("work", "as asked for", words="{}"),
    "measured_precision": Column("result", "found by a comparison with float64"),
    "output_error": Column(
        "result", "of two items against the CPU (in training before the first step): the larger relative L2", "number"
    ),
    "compile": Column("work", "or a mode of torch.compile; in JAX always 1", words=COMPILE_WORDS),
    "memory_format": Column("work", "of images and convolutions", words="{}"),
    "batch_size": Column("work", "items in one step; sequences of an llm", words="batch {}"),
    "image_size": Column("work", "pixels per side", words="{} px"),
    "sequence_length": Column("work", "tokens", words="{} tokens"),
    "prompt_tokens": Column("work", "tokens of each sequence in a step of prefill", words="{} prompt tokens"),
    "new_tokens": Column("work", "tokens that decode adds before it starts again", words="{} new tokens"),
    "depth": Column("work", "tokens in the cache before decode begins", words="depth {}"),
    "lora_rank": Column("work", "of LoRA; 0: all weights are trained", blank="0", words="LoRA of rank {}"),
    "weight_bits": Column("work", "of quantised weights; blank: those of precision", words="{} bits a weight"),
    "data": Column("work", "jpeg_q96: files like ImageNet's", words=DATA),
    "optimizer": Column("work", "sgd, adam or adamw", words="{}"),
    "world_size": Column("work", "devices or processes that shared the work", blank="1", words="{} devices"),
    "nodes": Column("work", "number of machines with these devices", blank="1", words="{} nodes"),
    "num_workers": Column("setup", "input processes of each device", words="{} workers"),
    "num_threads": Column("setup", "CPU threads of the framework, for each device", words="{} threads"),
    "seed": Column("identity", "of data and weights"),
    # result
    "unit": Column("result", "of throughput"),
    "throughput": Column("result", "items per second of all devices", "number"),
    "throughput_low": Column("result", "lower end of its interval", "number"),
    "throughput_high": Column("result", "upper end of its interval", "number"),
    "rates": Column("result", "of windows or groups of them, at most 100; of slices; of 10 s if sustained"),
    "step_seconds_median": Column("result", "median window / its steps", "number"),
    "step_seconds_p95": Column("result", "95th percentile of single steps, if there are at least 59", "number"),
    "windows": Column("result", "number of measured windows", "number"),
    "steps_per_window": Column("result", "steps between two clock readings", "number"),
    "items": Column("result", "total of all windows; items / seconds is the mean throughput", "number"),
    "seconds": Column("result", "total of all windows", "number"),
    "first_step_seconds": Column("result", "of the first step, in training after check G: compilation ...", "number"),
    "warmup_seconds": Column("result", "from the first step until the speed is steady", "number"),
    "stop_reason": Column("result", "target_ci, max_seconds, num_images, slices, epoch, sustain, interrupted"),
    # learning
    "parameters": Column("result", "trainable", "number"),
    "loss_mean": Column("result", "mean loss of all steps of an epoch", "number"),
    "accuracy": Column("result", "on test data, 0 to 1", "number"),
    # physics
    "flops_per_item": Column("result", "FLOPs per item of the phase; 1 multiply-add = 2", "number"),
    "tflops": Column("result", "throughput x flops_per_item / 10**12; of int8 these are TOP/s", "number"),
    "bytes_per_step": Column("result", "that a step of decode has to read: weights, mean cache", "number"),
    "bandwidth": Column("result", "bytes_per_step / seconds of a step, in units of 10**9 bytes/s", "number"),
    "peak_memory_bytes": Column("result", "on the (first) device; of the process if the device is the cpu", "number"),
    "power_watts": Column("result", "mean from the first to the last change of the counter in the windows", "number"),
    "power_scope": Column("result", "what power_watts covers on each device; the watts are the sum of all devices"),
    "joules_per_item": Column("result", "joules over items in that time", "number"),
    "temperature_c": Column("result", "temperature of the device right after the last window", "number"),
    "clock_mhz": Column("result", "clock of the device right after the last window", "number"),
    "highest_clock_mhz": Column("result", "that the card can have", "number"),
    "throttle_reasons": Column("result", "NVIDIA driver's reasons for a lower clock right after the last window"),
    "thermal_pressure": Column("result", "that a Mac reports after the last window: nominal, moderate, heavy ..."),
}

# A flag marks a row to check before it is used. Each text is a reason, a colon and the fix.
FLAGS = {
    "uneven": "some windows stalled, so the mean is over 5 % below the median: quote the mean",
    "page_faults": "over 5 % of the time is spent reallocating memory in each step: unset LD_PRELOAD and the "
    "variables MALLOC_...",
    "recompiled": "the framework recompiled during the measurement: a larger MAX_SECONDS reduces the effect",
    "contended": "other programs used more than 10 % of the CPU time, or used the GPU before the run: close them",
    "barrier_shows": "synchronisation takes more than 5 % of the time: a larger BATCH_SIZE reduces its share",
    "short": "few batches were measured, so those prepared in advance may inflate the rate: set the note's MAX_SECONDS",
    "swapping": "the system swapped during the measurement: choose a smaller BATCH_SIZE or MODEL",
    "throttled": "the system reports that heat or power slows the device: cool it, or plug it in",
    "not_finite": "the loss is inf, NaN, or ten times the first: choose another PRECISION",
}
DISTURBING = "contended|swapping"  # pattern of flags; but not throttled, which is normal on a Mac without a fan

NUMBERS = [name for name, column in COLUMNS.items() if column.holds == "number"]
# The names of the columns with a role.
WORK, SETUP, VERSIONS = (
    tuple(name for name, column in COLUMNS.items() if column.role == role) for role in ("work", "setup", "version")
)


def describe_work(row, names=WORK):
    """Describe a row's work, or other columns, without usual values: "resnet50, training, float32, batch 16, sgd"."""
    found = []
    for name in names:
        text, words = "" if row.get(name) is None else str(row[name]), COLUMNS[name].words
        if text and text != COLUMNS[name].blank:
            worded = words.get(text, text) if isinstance(words, dict) else words.format(text)
            found.append(worded.removesuffix("s") if text == "1" else worded)
    return ", ".join(filter(None, found))


def format_number(value, pattern="{:.4g}"):
    """Format a number with all digits of a large one written out; blank if it is unknown."""
    if value in (None, "") or value != value:  # NaN is unequal to itself
        return ""
    text = pattern.format(float(value))
    return f"{float(text):.0f}" if "e+" in text else text


def format_ratio(value, digits=3):
    """Format a ratio with all significant digits: "1.00"; blank if it is unknown."""
    return format_number(value, f"{{:#.{digits}g}}").removesuffix(".")
