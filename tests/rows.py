"""Rows to begin with, of machines that do not exist: ROW is complete, and a test changes the cells that it is about.

Numbers are numbers, as in a run; write() stores rows as a run does, and as_text() is what reading them back returns.
"""

from bench.records import results
from bench.records.columns import COLUMNS, SCHEMA

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


def as_text(row):
    return {name: "" if value is None else str(value) for name, value in row.items()}


def write(folder, rows, machine="a"):
    """Append rows, each as changes of ROW, to <machine>.csv; returns the path."""
    if rows:
        results.append(folder / f"{machine}.csv", *(ROW | {"machine": machine} | row for row in rows))
    return folder / f"{machine}.csv"
