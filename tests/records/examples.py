"""Rows to begin with."""

from bench.records import results

BASE = {
    **{"schema": "2", "run_id": "", "status": "ok", "machine": "a", "device": "cpu", "framework": "torch"},
    **{"framework_version": "2.15", "workload": "image", "model": "resnet50", "phase": "training", "scope": "device"},
    **{"precision": "float32", "compile": "0", "batch_size": "16", "image_size": "224", "unit": "images/s"},
    **{"throughput": "100", "throughput_low": "99", "throughput_high": "101", "tflops": "2.4"},
}
MATMUL = {"workload": "matmul", "model": "matmul", "phase": "", "matrix_size": "64x64x64", "unit": "matmuls/s"}


def rate(throughput, width=0.01):
    return {
        "throughput": str(throughput),
        "throughput_low": str(throughput * (1 - width)),
        "throughput_high": str(throughput * (1 + width)),
    }


def write(folder, rows, machine="a"):
    """Append rows, each as changes of BASE, to <machine>.csv; gives the path."""
    if rows:
        results.append(folder / f"{machine}.csv", *(BASE | {"machine": machine} | row for row in rows))
    return folder / f"{machine}.csv"
