"""Compare rows with what a chip can do: by its specification (peaks.csv names each source), and as measured here."""

import csv
import functools
from collections import defaultdict
from pathlib import Path

from bench.records.columns import DISTURBING
from bench.settings import unmixed

FASTEST = "fastest"
CHIP_PEAKS = Path(__file__).with_name("peaks.csv")
IMPLAUSIBLE = 1.3  # cards run above their rated clock, and published peaks contradict each other
# A row's FLOPs are those of the direct convolution. Winograd's needs fewer multiplications: 16 for 36 in F(2x2, 3x3)
# (section 4.1 of https://arxiv.org/abs/1509.09308), 64 for 324 in F(6x6, 3x3), the largest that a framework has: MLX.
WINOGRAD = 324 / 64
CONVOLUTIONS = ("image", "convolution")  # workloads
UNFIT = f"{DISTURBING}|implausible"  # pattern of the flags of a row that is not a peak


@functools.cache
def chip_peaks():
    """Return {(device, GPU cores): {precision: TFLOP/s, "bandwidth": GB/s}}, and of FASTEST the highest of each.

    A device is named as its driver reports it. Apple sells one name with several numbers of GPU cores; others have "".
    """
    known = defaultdict(dict)
    with open(CHIP_PEAKS, newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            chip = known[row["driver_name"] or row["device"], row["gpu_cores"]]
            for name, text in ((row["precision"], row["peak_tflops"]), ("bandwidth", row["bandwidth_gb_s"])):
                if text:
                    chip[name] = float(text)
                    known[FASTEST][name] = max(chip[name], known[FASTEST].get(name, 0))
    return known


def rated_peaks(row, otherwise=None):
    """Return what a row's GPU is rated at, as measured_peaks() returns what it reached; {} for a CPU.

    float32 that was measured as TF32 has TF32's rate. A card that is not in the file has the bandwidth of its driver.

    Args:
        otherwise: the key in chip_peaks() of the rates of a GPU whose own ones are unknown.
    """
    if row["device"] == "cpu":
        return {}
    chip = row["device_name"], str(row["gpu_cores"] or "")
    of_driver = {"bandwidth": row["rated_bandwidth"]} if row.get("rated_bandwidth") else {}
    rates = chip_peaks().get(otherwise, {}) | of_driver | chip_peaks().get(chip, {})
    if "tf32" in str(row.get("measured_precision")):
        rates = rates | {"float32": rates.get("tf32")}
    return {(row["machine"], row["device"], name): rate for name, rate in rates.items()}


def is_implausible(row):
    """Return whether a row, a dict of numbers, is faster than its GPUs can be; nobody knows that of a CPU.

    A GPU that is not in the file can be as fast as the fastest one. Winograd's convolutions may be faster, but tensor
    cores compute none.
    """
    rated = rated_peaks(row, FASTEST)
    may_be_winograd = row.get("workload") in CONVOLUTIONS and (row["precision"] == "float32" or row["device"] == "mps")
    moved = row | {"bandwidth": row.get("throughput")} if row.get("workload") == "bandwidth" else row
    tflops, bandwidth = fraction_of(rated, row, "tflops") or 0, fraction_of(rated, moved, "bandwidth") or 0
    return tflops > IMPLAUSIBLE * (WINOGRAD if may_be_winograd else 1) or bandwidth > IMPLAUSIBLE


def measured_peaks(lines):
    """Return the best that each machine reached in a frame of results or rows, in any framework.

    It is {(machine, device, precision): TFLOP/s, (machine, device, "bandwidth"): GB/s}.
    """
    sound = lines[(lines["status"] == "ok") & ~lines["published"] & ~lines["flags"].str.contains(UNFIT)]
    matmuls = sound[sound["model"] == "matmul-peak"].groupby(["machine", "device", "precision"])["tflops"].max()
    copies = sound[sound["workload"] == "bandwidth"].groupby(["machine", "device"])["throughput"].max()
    return dict(matmuls) | {(*key, "bandwidth"): rate for key, rate in copies.items()}


def fraction_of(known, row, quantity):
    """Return a row's "tflops" or "bandwidth" over the peak of its chip; None if either is unknown.

    It may exceed 1: convolutions can be faster than the best matmul, and some machines read faster than they copy. The
    rate of several GPUs is compared with several times the best of one; processes on a CPU share it.

    Args:
        known: as measured_peaks() or rated_peaks() returns it. TFLOP/s are compared in the same precision.
    """
    name = "bandwidth" if quantity == "bandwidth" else unmixed(row["precision"] or "")
    peak = known.get((row["machine"], row["device"], name))
    devices = 1 if row["device"] == "cpu" else int(row.get("world_size") or 1)
    return float(row[quantity]) / (devices * peak) if peak and row.get(quantity) else None
