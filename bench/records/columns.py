"""Declare the columns of a results file, each once: role, meaning, what a cell may hold, its words; and the flags."""

import functools
import re
from dataclasses import dataclass

from bench import settings
from bench.timing import METHOD_VERSION

SCHEMA = 2  # raised if the meaning of a column changes, but not for a new column
MOST_LETTERS = 10_000  # of a cell; what is longer is cut before it is stored

# What the cells of a column that holds this may be, unless they are blank: a pattern, and what completes "must be ...".
DIGITS = r"[0-9]{1,15}(\.[0-9]{1,20})?([eE](\+?[01]?|-[0-9]?)[0-9])?"
TIME = r"20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9](:[0-5][0-9]){2}\+00:00"
HOLDS = {
    "text": (r".{1,200}", "at most 200 printable characters"),
    "long": (rf".{{1,{MOST_LETTERS}}}", f"at most {MOST_LETTERS} printable characters"),
    "word": (r"[\w -]{1,200}", "letters, digits, _ and - (a spreadsheet makes numbers of some)"),
    "slug": ("[a-z0-9-]{1,100}", "a name of a-z, 0-9 and hyphens"),
    "time": (TIME, "a time such as 2026-11-20T11:34:42+00:00, which spreadsheets change"),
    "date": (rf"[0-9]{{4}}(-[01][0-9](-[0-3][0-9])?)?|{TIME}", "a date such as 2024, 2024-06 or 2024-06-30"),
    "whole": ("0|[1-9][0-9]{0,9}", "a whole number"),
    "count": ("[1-9][0-9]{0,9}", "a whole number above 0"),
    "rates": (f"{DIGITS}( {DIGITS})*", "numbers such as 1234.5, separated by spaces"),
    "positive": (f"(?=[0.]*[1-9]){DIGITS}", "a number above 0 such as 1234.5"),
    **dict.fromkeys(("decimal", "number", "meter"), (DIGITS, "a number such as 1234.5")),
}
MEASURED = ("number", "positive", "meter")  # columns that hold these are numbers in a frame, see tables.py
OF_PUBLISHED = {"timestamp": "date", "framework": "text", "precision": "text", "status": "word"}  # hold this instead
# What must not be blank: in a row of ours, in one with a result, and in a published figure, which has a source.
OF_OURS = ("schema", "status", "machine", "timestamp", "process")
OF_RESULTS = (*OF_OURS, "framework", "workload", "model", "device", "unit", "throughput")
OF_OTHERS = ("schema", "status", "machine", "workload", "scope")


@dataclass(frozen=True)
class Column:
    """One column. Unknown is blank, never 0; times are wall seconds."""

    # "work": rows are comparable only if these agree. "setup": settings of the machine that change the speed of the
    # same work. "version": software and method; repetitions agree in it. "identity": which row of which machine.
    # "result": what was measured.
    role: str
    meaning: str
    # What a cell may hold: one of HOLDS, or of these names. A "meter" is 0 only if it is stuck.
    holds: str | tuple[str, ...] = "text"
    blank: str = ""  # the value that an empty cell means
    # How a value of work or setup is worded: a pattern, or words for some values; "" means not at all.
    words: str | dict[str, str] | None = None


DATA = {"synthetic": "synthetic images", "cifar10": "cifar10 images", "jpeg": "files of quality 90", "jpeg_q96": ""}
COMPILE_WORDS = {"0": "", "1": "compiled"} | {mode: f"compiled ({mode})" for mode in settings.COMPILE_MODES}
METHODS = tuple(map(str, range(1, METHOD_VERSION + 1)))
# What a row of ours may say: a result, why a process has none, and what a check refused.
STATUSES = ("ok", "interrupted", "out_of_memory", "unsupported", "failed", "crashed", "timed_out")
STATUSES += ("wrong_output", "wrong_model", "work_skipped")
PHASES = (*settings.TRAINING, "inference", "prefill", "decode")
PRECISIONS = (*settings.PRECISIONS, *settings.MIXED, "int8", "float8_e4m3")
WORKLOADS = (*settings.WORKLOADS, "matmul", "convolution", "bandwidth")
UNITS = ("images/s", "sequences/s", "tokens/s", "steps/s", "matmuls/s", "calls/s", "GB/s")

COLUMNS = {
    # which
    "schema": Column("identity", "version of the meaning of these columns", (str(SCHEMA),)),
    "method_version": Column("version", "METHOD_VERSION of bench/timing", METHODS),
    "run_id": Column("identity", "the run: one combination of settings, in one command, in all its processes", "word"),
    "process": Column("identity", "its number in the run, from 1", "count"),
    "group": Column("identity", "what was compared: pairs have equal group and process; best-...: `make best`", "word"),
    "timestamp": Column("identity", "UTC, when the process ended", "time"),
    "status": Column("result", "ok, or why there is no full result", STATUSES),
    "flags": Column("result", "warnings, separated by spaces (FLAGS explains them)", "word"),
    "source": Column("identity", "of a published figure; blank for a measurement by this program", "long"),
    "note": Column("result", "reason of a status, what limits the end-to-end rate, what a reader has to know", "long"),
    # machine
    "machine": Column("identity", "named after the device that ran (a Mac after its chip), or by MACHINE", "slug"),
    "device": Column("identity", "what ran: cpu, cuda, mps", "word"),
    "device_name": Column("identity", "its name as the system reports it"),
    "gpu_cores": Column("identity", "Apple GPU cores", "count"),
    "rated_bandwidth": Column("identity", "GB/s by the clock and the bus of an NVIDIA card's memory", "positive"),
    "cpu_name": Column("identity", "processor"),
    "cpu_id": Column("identity", "vendor, family, model, stepping; of ARM's: implementer, variant, part, revision"),
    "cpu_count": Column("identity", "logical CPUs", "count"),
    "memory_gb": Column("identity", "installed memory, units of 2**30 bytes", "decimal"),
    "os": Column("version", "operating system"),
    "driver": Column("version", "NVIDIA driver"),
    "power_source": Column("setup", "if known", ("ac", "battery"), blank="ac", words={"battery": "on battery"}),
    "low_power_mode": Column("setup", "if the system has one", ("0", "1"), blank="0", words={"1": "in low-power mode"}),
    "allocator": Column("setup", "environment variables that change the speed", "long", words="{}"),
    "power_limit_watts": Column("setup", "that the (first) NVIDIA card is set to", "count", words="power limit {} W"),
    # software
    "commit": Column("version", "of this repository; -dirty if its programs were changed", "word"),
    "python": Column("version", "version"),
    "framework": Column("work", "its name here", tuple(settings.FRAMEWORKS), words=""),
    "framework_version": Column("version", "with its build"),
    # workload
    "workload": Column("work", "what the model or operator does", WORKLOADS, words=""),
    "model": Column("work", "its name; or matmul, matmul-peak (the best of a sweep, again), copy ...", words="{}"),
    "phase": Column("work", "training is followed by its parts", PHASES, words="{}"),
    "scope": Column("work", "what ran, and how", (*settings.SCOPES, "epoch", "sustained"), words={"device": ""}),
    "epoch": Column("work", "its number, from 1, in the scope epoch", "count", words="epoch {}"),
    "matrix_size": Column("work", "m x n x k", "word", words="{}"),
    "precision": Column("work", "as asked for", PRECISIONS, words="{}"),
    "measured_precision": Column("result", "found by a comparison with float64"),
    "output_error": Column("result", "of two items against the CPU: the larger relative L2 error", "number"),
    "compile": Column("work", "or a mode of torch.compile; in JAX always 1", tuple(COMPILE_WORDS), words=COMPILE_WORDS),
    "memory_format": Column("work", "of images and convolutions", settings.MEMORY_FORMATS, words="{}"),
    "batch_size": Column("work", "items in one step; sequences of an llm", "count", words="batch {}"),
    "image_size": Column("work", "pixels per side", "count", words="{} px"),
    "sequence_length": Column("work", "tokens", "count", words="{} tokens"),
    "prompt_tokens": Column("work", "tokens of each sequence in a step of prefill", "count", words="prompt of {}"),
    "new_tokens": Column("work", "tokens that decode adds before it starts again", "count", words="{} new tokens"),
    "depth": Column("work", "tokens in the cache before decode begins", "whole", words="depth {}"),
    "lora_rank": Column("work", "of LoRA; 0: all weights are trained", "whole", blank="0", words="LoRA of rank {}"),
    "weight_bits": Column("work", "of quantised weights; blank: those of precision", "count", words="{} bits a weight"),
    "data": Column("work", "jpeg_q96: files like ImageNet's", tuple(DATA), words=DATA),
    "optimizer": Column("work", "sgd, adam or adamw", settings.OPTIMIZERS, words="{}"),
    "world_size": Column("work", "devices or processes that shared the work", "count", blank="1", words="{} devices"),
    "nodes": Column("work", "number of machines with these devices", "count", blank="1", words="{} nodes"),
    "num_workers": Column("setup", "input processes of each device", "whole", words="{} workers"),
    "num_threads": Column("setup", "CPU threads of the framework, for each device", "count", words="{} threads"),
    "seed": Column("identity", "of data and weights", "whole"),
    # result
    "unit": Column("result", "of throughput", UNITS),
    "throughput": Column("result", "items per second of all devices", "positive"),
    "throughput_low": Column("result", "lower end of its interval", "positive"),
    "throughput_high": Column("result", "upper end of its interval", "positive"),
    "rates": Column("result", "of windows or groups of them, at most 100; of slices; of 10 s if sustained", "rates"),
    "step_seconds_median": Column("result", "median window / its steps", "positive"),
    "step_seconds_p95": Column("result", "95th percentile of single steps, if there are at least 59", "positive"),
    "windows": Column("result", "number of measured windows", "number"),
    "steps_per_window": Column("result", "steps between two clock readings", "number"),
    "items": Column("result", "total of all windows; items / seconds is the mean throughput", "positive"),
    "seconds": Column("result", "total of all windows", "positive"),
    "first_step_seconds": Column("result", "of the very first step: allocation, autotuning, compilation", "positive"),
    "warmup_seconds": Column("result", "from the first step until the speed is steady", "number"),
    "stop_reason": Column("result", "target_ci, max_seconds, num_images, slices, epoch, sustain, interrupted", "word"),
    # learning
    "parameters": Column("result", "trainable", "number"),
    "loss_mean": Column("result", "mean loss of all steps of an epoch", "number"),
    "accuracy": Column("result", "on test data, 0 to 1", "number"),
    # physics
    "flops_per_item": Column("result", "FLOPs per item of the phase; 1 multiply-add = 2", "positive"),
    "tflops": Column("result", "throughput x flops_per_item / 10**12; of int8 these are TOP/s", "positive"),
    "bytes_per_step": Column("result", "that a step of decode has to read: weights, mean cache", "positive"),
    "bandwidth": Column("result", "bytes_per_step / seconds of a step, in units of 10**9 bytes/s", "positive"),
    "peak_memory_bytes": Column("result", "on the (first) device; of the process if the device is the cpu", "meter"),
    "power_watts": Column("result", "mean from the first to the last change of the counter in the windows", "meter"),
    "power_scope": Column("result", "what power_watts covers on each device; the watts are the sum of all devices"),
    "joules_per_item": Column("result", "joules over items in that time", "meter"),
    "temperature_c": Column("result", "temperature of the device right after the last window", "number"),
    "clock_mhz": Column("result", "clock of the device right after the last window", "meter"),
    "highest_clock_mhz": Column("result", "that the card can have", "meter"),
    "throttle_reasons": Column("result", "NVIDIA driver's reasons for a lower clock right after the last window"),
    "thermal_pressure": Column("result", "that a Mac reports after the last window: nominal, moderate, heavy ..."),
}

# A flag marks a row to check before it is used. Each text is a reason, a colon and the fix.
FLAGS = {
    "drift": "the speed changed by more than 10 % during the measurement: repeat it when the machine is cool and idle",
    "uneven": "the mean rate is over 5 % below the median window's, as by other programs or a slow host: use the mean",
    "page_faults": "over 5 % of the time goes to memory that is allocated again in each step: unset LD_PRELOAD and the "
    "variables MALLOC_...",
    "recompiled": "the framework recompiled during the measurement: a larger MAX_SECONDS reduces the effect",
    "contended": "other programs used more than 10 % of the CPU time, or used the GPU before the run: close them",
    "barrier_shows": "synchronisation takes more than 5 % of this part's time: a larger BATCH_SIZE reduces its share",
    "launch_bound": "the host submits the work as slowly as the device computes it: a larger BATCH_SIZE "
    "(uncompiled: or COMPILE=1) shows more of the device",
    "short": "so few batches were measured that those prepared in advance may inflate the rate: set a larger "
    "MAX_SECONDS",
    "swapping": "the system swapped during the measurement: choose a smaller BATCH_SIZE or MODEL",
    "throttled": "the system reports that heat or power slows the device: cool it, or plug it in",
    "not_finite": "the output contains inf or NaN: choose another PRECISION",
    "implausible": "more than such a chip can do (docs/method-details.md): report it as an issue",
}
DISTURBING = ("contended", "swapping")  # but not throttled, which is normal on a Mac without a fan

# The names of the columns with a role.
WORK, SETUP, VERSIONS = (
    tuple(name for name, column in COLUMNS.items() if column.role == role) for role in ("work", "setup", "version")
)


def pattern_of(holds):
    """Return (pattern of what a Column holds, what its cells must be in words)."""
    return HOLDS.get(holds) or ("|".join(map(re.escape, holds)), f"one of {', '.join(holds)}")


def find_fault(row):
    """Return the first cell that a row, a dict of text, cannot have, and why; "" if all can be read."""
    is_published = row["source"] != ""
    needed = OF_OTHERS if is_published else OF_RESULTS if row["status"] == "ok" else OF_OURS
    for name, text in row.items():
        if not text and name in needed:
            return f"{name} must not be blank"
        if text and (words := find_wrong(name, text, is_published)):
            return f"{name}={text[:80]!r} must be {words}"
    return ""


@functools.lru_cache(100_000)  # most cells of a file are equal
def find_wrong(name, text, is_published):
    """Return what a cell of this column must be, in words; "" if it is that."""
    holds = COLUMNS[name].holds
    pattern, words = pattern_of(OF_PUBLISHED.get(name, holds) if is_published else holds)
    return "" if re.fullmatch(pattern, text) and text.isprintable() else words


def disturbing_flags(row):
    """List the flags of a row, a dict, by which something else slowed the machine; [] if the row is undisturbed."""
    return [flag for flag in DISTURBING if flag in (row["flags"] or "").split()]


def words_of(row, names=WORK):
    """Describe a row's cells: {column: words}, without those of usual values."""
    in_words = {}
    for name in names:
        column = COLUMNS[name]
        text = "" if row.get(name) is None else str(row[name])
        is_usual = name == "data" and row.get("workload") != "mlp" and text != "jpeg"
        if text in ("", column.blank) or is_usual:
            continue
        if isinstance(column.words, dict):
            in_words[name] = column.words.get(text, text)
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
    """Describe how work and setup differ between two rows: "bfloat16, compiled, on battery"."""
    changed = [name for name in (*WORK, *SETUP) if str(before.get(name) or "") != str(after.get(name) or "")]
    in_words = words_of(after, changed)
    return ", ".join(in_words.get(name) or f"{name} {after.get(name) or 'default'}" for name in changed)


def format_number(value, pattern="{:.4g}"):
    """Format a number with all digits of a large one written out; blank if it is unknown."""
    if value in (None, "") or value != value:  # NaN is unequal to itself
        return ""
    text = pattern.format(float(value))
    return f"{float(text):.0f}" if "e+" in text else text


def describe_columns():
    """Describe all columns as docs/columns.md does, in Markdown."""
    lines = ["# Columns", "", "Of the results files, written from `bench/records/columns.py`. Blank means unknown.", ""]
    lines += ["| column | role | meaning | holds |", "|---|---|---|---|"]
    for name, column in COLUMNS.items():
        holds = pattern_of(column.holds)[1]
        lines.append(f"| {name} | {column.role} | {column.meaning} | {holds} |".replace("<", "&lt;"))
    roles = "work: rows are comparable only if these agree; setup: settings of the machine that change the speed; "
    roles += "version: software and method; identity: which row of which machine; result: what was measured."
    return "\n".join([*lines, "", f"Roles. {roles[0].upper()}{roles[1:]}", ""])


def make_printable(text):
    """Replace what controls a terminal in a text by U+FFFD, and white space by one blank."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in " ".join(text.split()))


if __name__ == "__main__":
    print(describe_columns(), end="")
