"""Compare rows with what a chip can do: by its specification (peaks.csv names each source), and as measured here."""

import csv
import functools
import math
from pathlib import Path

CHIP_PEAKS = Path(__file__).with_name("peaks.csv")
IMPLAUSIBLE = 1.3  # cards run above their rated clock, and published peaks contradict each other
# A row's FLOPs are those of the direct convolution. For 36 of its multiplications Winograd's F(2x2, 3x3) needs 16
# (section 4.1 of https://arxiv.org/abs/1509.09308); MLX on Metal has F(6x6, 3x3), which needs 64 for 324.
WINOGRAD, WINOGRAD_MLX = 36 / 16, 324 / 64
CONVOLUTIONS = ("image", "convolution")  # workloads
SIXTEEN_BITS = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}


@functools.cache
def chip_peaks(column="peak_tflops"):
    """Return {(device, GPU cores, precision): TFLOP/s, or another column}, the device named as its driver reports it.

    Apple sells one name with several numbers of GPU cores; other devices have "".
    """
    with open(CHIP_PEAKS, newline="", encoding="utf-8") as lines:
        return {
            (row["driver_name"] or row["device"], row["gpu_cores"], row["dtype"]): float(row[column])
            for row in csv.DictReader(lines)
            if row[column]
        }


@functools.cache
def chip_bandwidths():
    """Return {(device, GPU cores): GB/s}, with keys as in chip_peaks()."""
    return {key[:2]: value for key, value in chip_peaks("bandwidth_gb_s").items()}


def is_implausible(row):
    """Return whether a row, a dict of numbers, is faster than its GPUs can be; of a CPU nothing is known.

    A GPU that is not in the file has the limits of the fastest one. float32 that was measured as TF32 has TF32's.
    Networks with convolutions may be faster by Winograd's factor.
    """
    if row["device"] == "cpu":
        return False
    asked, is_mlx = row["precision"], row["device"] == "mps" and row.get("framework") == "mlx"
    is_tf32 = asked == "float32" and "tf32" in str(row.get("measured_precision"))
    precision = "tf32" if is_tf32 else SIXTEEN_BITS.get(asked, asked)
    chip = row["device_name"], str(row["gpu_cores"] or "")
    fastest = max((rate for (*_, name), rate in chip_peaks().items() if name == precision), default=math.inf)
    tflops = chip_peaks().get((*chip, precision), fastest)
    bandwidth = chip_bandwidths().get(chip, max(chip_bandwidths().values()))
    if row.get("workload") in CONVOLUTIONS and (asked == "float32" or is_mlx):
        tflops *= WINOGRAD_MLX if is_mlx else WINOGRAD
    moved = row.get("throughput" if row.get("workload") == "bandwidth" else "bandwidth")
    devices = IMPLAUSIBLE * float(row.get("world_size") or 1)  # the rates are those of all devices
    return (row.get("tflops") or 0) > devices * tflops or (moved or 0) > devices * bandwidth


def flag_implausible(row):
    """Return the row, with a flag if it exceeds what its chip can do."""
    return row | {"flags": f"{row['flags']} implausible".strip()} if is_implausible(row) else row


def chip_of(row):
    """Return (machine, device, chip): rows of one machine may come from CPUs that differ only in their cpu_id."""
    return row["machine"], row["device"], (row["device"] == "cpu" and row.get("cpu_id")) or row["device_name"]


def measured_peaks(rows):
    """Return {(*chip_of(row), precision): row} of the best measured peaks, of any framework.

    Args:
        rows: dicts of text, from results.read(), or of numbers.
    """
    ok = [row for row in rows if row["model"] == "matmul-peak" and row["status"] == "ok" and row["tflops"]]
    ranked = sorted(ok, key=lambda row: float(row["tflops"]))
    return {(*chip_of(row), row["precision"]): row for row in ranked if "implausible" not in row["flags"]}


def fraction_of_peak(row, best):
    """Return a row's TFLOP/s over its chip's measured peak in the same precision; None if either is unknown.

    It may exceed 1, because convolutions can be faster than the best matmul.
    """
    peak = best.get((*chip_of(row), SIXTEEN_BITS.get(row["precision"], row["precision"])))
    return float(row["tflops"]) / float(peak["tflops"]) if peak and row.get("tflops") else None


def measured_bandwidths(rows):
    """Return {chip_of(row): GB/s} of the fastest bandwidth operator, from rows of text or numbers."""
    moved = [row for row in rows if row["workload"] == "bandwidth" and row["status"] == "ok" and row["throughput"]]
    rates = sorted((float(row["throughput"]), chip_of(row)) for row in moved if "implausible" not in row["flags"])
    return {chip: rate for rate, chip in rates}


def fraction_of_bandwidth(row, best):
    """Return a row's GB/s over its chip's measured bandwidth; None if either is unknown.

    It may exceed 1, because decode only reads, which some machines do faster than they copy.
    """
    measured = best.get(chip_of(row))
    return float(row["bandwidth"]) / measured if measured and row.get("bandwidth") else None
