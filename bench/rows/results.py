"""Rows: one CSV a machine, append-only, one row per measured quantity.

An append is a single write under a file lock, so parallel runs do not mix their rows and a kill at any
moment loses at most the row being measured.
"""

import csv
import errno
import io
import os
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

SCHEMA = 1  # of the columns' meaning; a new column alone does not raise it
LOCK_SECONDS = 60

# Column: meaning. Unknown is blank, never 0; times are wall seconds.
COLUMNS = {
    # which
    "schema": "version of this list's meaning",
    "method_version": "version of the method in bench/timing/measure.py",
    "run_id": "the same for all rows of one run: a combination of settings, in one process",
    "timestamp": "UTC, when the row was written",
    "status": "ok, or why there is no full result: out_of_memory, sync_incomplete, interrupted ...",
    "flags": "doubts about the result, separated by spaces (bench/timing/measure.py has the words)",
    "source": "where a published figure comes from; blank for a measurement of this program",
    "note": "reason of a status, allocator settings in the environment",
    # machine
    "machine": "the host by its best accelerator, whatever ran",
    "device": "what ran: cpu, cuda, mps",
    "device_name": "its name as the system reports it",
    "gpu_cores": "Apple GPU cores",
    "cpu_name": "processor",
    "cpu_count": "logical CPUs",
    "memory_gb": "installed memory, units of 2**30 bytes",
    "os": "operating system",
    "driver": "NVIDIA driver",
    "power_source": "ac or battery",
    "low_power_mode": "1 or 0, where the system has one",
    "allocator": "the memory allocator's environment variables",
    # software
    "commit": "of this repository; -dirty when its programs were changed",
    "python": "version",
    "framework": "torch or tensorflow",
    "framework_version": "with its build",
    # workload
    "workload": "image, mlp, transformer, matmul, convolution or bandwidth",
    "model": "network; or matmul, matmul-peak (the best of a sweep, measured again), conv3x3, copy ...",
    "phase": "inference, training, forward, backward or optimizer; blank for a single operator",
    "scope": "device (resident batches), input (pipeline alone), end_to_end, epoch (all training data once), sustained",
    "precision": "as asked for",
    "measured_precision": "as a probe against float64 found it",
    "compile": "1 or 0",
    "memory_format": "channels_first or channels_last",
    "batch_size": "items in one step",
    "image_size": "pixels a side",
    "sequence_length": "tokens",
    "matrix_size": "m x n x k",
    "num_workers": "input processes, or threads of tf.data",
    "num_threads": "CPU threads of the framework",
    "data": "synthetic, jpeg or cifar10",
    "optimizer": "sgd or adam",
    "epoch": "its number, from 1, in the scope epoch",
    "seed": "of data and weights",
    # result
    "unit": "of throughput",
    "throughput": "items per second: of the median window; of a pipeline or NUM_IMAGES, all items over all seconds",
    "throughput_low": "lower end of its interval",
    "throughput_high": "upper end of its interval",
    "step_seconds_median": "median window / its steps",
    "step_seconds_p95": "95th percentile of single steps, from 59 of them on",
    "step_seconds_min": "fastest window / its steps",
    "windows": "how many were measured",
    "steps_per_window": "steps between two clock readings",
    "items": "in all windows; items / seconds is the mean throughput",
    "seconds": "in all windows",
    "first_step_seconds": "of the very first step: allocation, autotuning, compilation",
    "warmup_seconds": "from there until steady",
    "stop_reason": "target_ci, max_seconds, num_images, epoch, interval (of a sustained run) or interrupted",
    "elapsed_seconds": "in the scope sustained: from the start of the run to the end of this row's ten seconds",
    "bottleneck": "device, input ...",
    # learning
    "parameters": "trainable",
    "loss_first": "of an epoch's first step",
    "loss_last": "of its last step",
    "loss_mean": "of all its steps",
    "accuracy": "on test data, 0 to 1",
    # physics
    "flops_per_item": "of the phase; 1 multiply-add = 2",
    "tflops": "throughput x flops_per_item / 10**12",
    "peak_memory_bytes": "allocated on the device; of the process where the device is the cpu",
    "reserved_memory_bytes": "the most that the framework kept for itself on the device",
    "power_watts": "mean over five seconds or more of the work; in the scope sustained over the row's own",
    "power_scope": "what power_watts covers",
    "joules_per_item": "in those seconds, which follow the windows",
    "idle_watts": "of the same, before the run put any work on the device",
    "temperature_c": "of the device, right after the work",
    "clock_mhz": "of the device, likewise",
    "throttle_reasons": "why NVIDIA's driver keeps the clock below its best, likewise",
    "thermal_pressure": "a Mac's level, likewise: nominal, moderate, heavy ...",
    "canary_ratio": "a small matrix product's time after the measurement over that before the run's first one",
}


# What the first file of ours had and every later one will: by these a header is recognised.
OURS = {"schema", "run_id", "status", "machine", "workload", "model", "throughput"}


class ResultsError(Exception):
    """A results file that must not be written to: one line with the file and the cure."""


def prepare(path):
    """Raise ResultsError unless rows can be appended to this file; writes nothing.

    Called before anything is measured, so that no result is lost to a file that cannot take it.
    """
    path = Path(path)
    try:
        _columns_to_write(path)
        nearest = next(place for place in path.parents if place.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            raise OSError(0, f"{nearest} is no folder to write in")
        if path.exists() and not os.access(path, os.W_OK):
            raise OSError(0, f"{path} is read-only")
    except OSError as error:
        raise ResultsError(
            f"RESULTS_DIR={str(path.parent)!r} cannot be written to ({error.strerror}): "
            "name a folder that can, or change its permissions"
        ) from None


def append(path, row):
    """Append one row, a dict with any of COLUMNS; None is written as blank.

    Raises:
        ResultsError: a foreign header, an incomplete last line, a stuck lock, a full disk.
        ValueError: the row has a key that is not a column.
    """
    path = Path(path)
    unknown = set(row) - set(COLUMNS)
    if unknown:
        raise ValueError(f"no such columns: {', '.join(sorted(unknown))}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            columns = _columns_to_write(path)
            if columns != _columns_of(path):
                _migrate(path, columns)
            line = _as_line(columns or COLUMNS, row)
            _write_at_once(path, line if columns else _as_line(COLUMNS, {c: c for c in COLUMNS}) + line)
    except OSError as error:
        raise ResultsError(
            f"{path} cannot be written to ({error.strerror}): the row is lost, free or mend it"
        ) from None


def check(path):
    """Raise ResultsError for a file that is not ours, was written by a newer version, or ends in the midst of a row."""
    if not _columns_to_write(path):
        raise ResultsError(f"{path} is empty")


def read(path):
    """The rows of a file as dicts of text, blank where a column is missing; raises ResultsError."""
    _columns_of(path)
    with open(path, newline="", encoding="utf-8") as lines:
        return [{**dict.fromkeys(COLUMNS, ""), **row} for row in csv.DictReader(lines)]


def _columns_of(path):
    """The columns of a file of ours, [] where there is none or an empty one; raises ResultsError."""
    try:
        with open(path, "rb") as lines:
            header = lines.readline()
            if not header:
                return []
            lines.seek(-1, os.SEEK_END)
            complete = lines.read() == b"\n"
    except FileNotFoundError:
        return []
    columns = header.decode(errors="replace").strip().split(",")
    if not set(columns) >= OURS:
        raise ResultsError(f"{path} has a foreign header: move the file away, or name another MACHINE")
    if not complete:
        raise ResultsError(f"{path}: its last line is cut short: complete it or delete that line, then run again")
    return columns


def _columns_to_write(path):
    """The columns that the next row is to have: the file's own, then those that it lacks; [] where it is new."""
    columns = _columns_of(path)
    unknown = [column for column in columns if column not in COLUMNS]
    if unknown:
        raise ResultsError(f"{path} was written by a newer version (column {unknown[0]}): update this repository")
    return columns + [column for column in COLUMNS if column not in columns] if columns else []


def _migrate(path, columns):
    rows = read(path)
    beside = path.with_suffix(".migrating")
    beside.write_text(_as_line(columns, {c: c for c in columns}) + "".join(_as_line(columns, r) for r in rows))
    os.replace(beside, path)


def _as_line(columns, row):
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow([_plain(row.get(column)) for column in columns])
    return line.getvalue()


def without_exponent(text):
    """A number's text, as it is or, where it has the exponent of a large one, written out."""
    return f"{float(text):.0f}" if "e+" in text else text


def _plain(value):
    """One cell: blank for None, and no line break, so that a row is a line."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())


def _write_at_once(path, text):
    """One write; when the disk is full, nothing of it stays."""
    data = text.encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(file).st_size
        if os.write(file, data) != len(data):
            os.ftruncate(file, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def _locked(path):
    try:
        with FileLock(f"{path}.lock", timeout=LOCK_SECONDS):
            yield
    except Timeout:
        raise ResultsError(f"{path}.lock has been held for {LOCK_SECONDS} s: end the program that holds it") from None
