"""Compare rows with what a chip can do: by its specification (peaks.csv names each source), and as measured here."""

import csv
import functools
import math
from pathlib import Path

CHIP_PEAKS = Path(__file__).with_name("peaks.csv")
IMPLAUSIBLE = 1.3  # cards run above their rated clock, and published peaks contradict each other
# Winograd's F(2x2, 3x3) needs 16 multiplications where a direct 3 x 3 convolution needs 36; see section 4.1 of
# https://arxiv.org/abs/1509.09308. The FLOPs of a row are those of the direct one.
WINOGRAD = 36 / 16
CONVOLUTIONS = ("image", "convolution")  # workloads
FRAMEWORKS_DIFFER = 1.1
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
def chip_bandwidths(column="bandwidth_gb_s"):
    """Return {(device, GPU cores): GB/s, or another column}, with keys as in chip_peaks()."""
    return {key[:2]: value for key, value in chip_peaks(column).items()}


def fastest_chip(precision):
    """Return the highest (TFLOP/s, GB/s) of any chip; twice that of 16 bits in a precision that none has."""
    precision = SIXTEEN_BITS.get(precision, precision)
    rates = [rate for (*_, name), rate in chip_peaks().items() if name == precision]
    return max(rates or [2 * max(chip_peaks().values())]), max(chip_bandwidths().values())


def limits_of(row, unknown=(math.inf, math.inf)):
    """Return 1.3 times the peak (TFLOP/s, GB/s) of a row's GPUs; inf for a CPU.

    Convolutions in float32 may exceed the peak by Winograd's factor as well.

    Args:
        unknown: the peaks of a GPU that is not in the file.
    """
    if row["device"] == "cpu":
        return math.inf, math.inf
    device, precision = (row["device_name"], str(row["gpu_cores"] or "")), row["precision"]
    most = IMPLAUSIBLE * int(row.get("world_size") or 1)  # the rates are those of all devices
    peak = chip_peaks().get((*device, SIXTEEN_BITS.get(precision, precision)), unknown[0])
    if precision == "float32" and row.get("workload") in CONVOLUTIONS:
        peak *= WINOGRAD
    return most * peak, most * chip_bandwidths().get(device, unknown[1])


def is_implausible(row):
    """Return whether a row exceeds limits_of() its GPUs."""
    tflops, bandwidth = limits_of(row)
    moved = row.get("throughput" if row.get("workload") == "bandwidth" else "bandwidth")
    return (row.get("tflops") or 0) > tflops or (moved or 0) > bandwidth


def flag_implausible(row):
    """Return the row, with a flag if it exceeds what its chip can do."""
    return row | {"flags": f"{row['flags']} implausible".strip()} if is_implausible(row) else row


def measured_peaks(rows):
    """Return {(machine, device, precision): row} of the best measured peaks, of any framework.

    Args:
        rows: dicts of text, from results.read().
    """
    best = {}
    for row in rows:
        if is_peak(row) and "implausible" not in row["flags"]:
            key = row["machine"], row["device"], row["precision"]
            if key not in best or float(row["tflops"]) > float(best[key]["tflops"]):
                best[key] = row
    return best


def is_peak(row):
    """Return whether a row, as text, is a measured peak with a figure."""
    if row["model"] != "matmul-peak" or row["status"] != "ok":
        return False
    try:
        return float(row["tflops"]) > 0
    except ValueError:  # blank
        return False


def fraction_of_peak(row, best):
    """Return a row's TFLOP/s over its machine's measured peak in the same precision; None if either is unknown.

    It may exceed 1, because convolutions can be faster than the best matmul.
    """
    precision = SIXTEEN_BITS.get(row["precision"], row["precision"])
    peak = best.get((row["machine"], row["device"], precision))
    return float(row["tflops"]) / float(peak["tflops"]) if peak and row.get("tflops") else None


def measured_bandwidths(rows):
    """Return {(machine, device): GB/s} of the fastest bandwidth operator, from rows of text."""
    best = {}
    for row in rows:
        is_right = row["status"] == "ok" and "implausible" not in row["flags"]
        if row["workload"] == "bandwidth" and is_right and row["throughput"]:
            key = row["machine"], row["device"]
            best[key] = max(best.get(key, 0.0), float(row["throughput"]))
    return best


def fraction_of_bandwidth(row, best):
    """Return a row's GB/s over its machine's measured bandwidth; None if either is unknown.

    It may exceed 1, because decode only reads, which some machines do faster than they copy.
    """
    measured = best.get((row["machine"], row["device"]))
    return float(row["bandwidth"]) / measured if measured and row.get("bandwidth") else None


def compare_frameworks(rows, device):
    """Return a sentence for each precision in which two frameworks' latest peaks on a device differ by over 10 %."""
    latest = {}
    for row in rows:
        if is_peak(row) and row["device"] == device:
            latest.setdefault(row["precision"], {})[row["framework"]] = float(row["tflops"])
    said = []
    for precision, by_framework in latest.items():
        ranked = sorted(by_framework.items(), key=lambda item: -item[1])
        (fast, high), (slow, low) = ranked[0], ranked[-1]
        if high > FRAMEWORKS_DIFFER * low:
            said.append(
                f"{precision}: {slow} reaches {low:.4g} TFLOP/s of the {high:.4g} that {fast} reaches on this machine"
            )
    return said
