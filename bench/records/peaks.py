"""Compare rows with what a chip can do: by its specification (peaks.csv names each source), and as measured here."""

import csv
import functools
from collections import defaultdict
from pathlib import Path

from bench.records.likeness import choose_peaks

CHIP_PEAKS = Path(__file__).with_name("peaks.csv")


@functools.cache
def chip_peaks():
    """Return {(device, GPU cores): {precision: TFLOP/s, "bandwidth": GB/s}}.

    A device is named as its driver reports it. Apple sells one name with several numbers of GPU cores; others have "".
    """
    known = defaultdict(dict)
    with open(CHIP_PEAKS, newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            chip = known[row["driver_name"] or row["device"], row["gpu_cores"]]
            for name, text in ((row["precision"], row["peak_tflops"]), ("bandwidth", row["bandwidth_gb_s"])):
                if text:
                    chip[name] = float(text)
    return known


def rated_peaks(row):
    """Return what a row's GPU is rated at, as measured_peaks() returns what it reached; {} for a CPU.

    float32 that was measured as TF32 has TF32's rate. A card that is not in the file has the bandwidth of its driver.
    """
    if row["device"] == "cpu":
        return {}
    chip = row["device_name"], str(row["gpu_cores"] or "")
    of_driver = {"bandwidth": row["rated_bandwidth"]} if row.get("rated_bandwidth") else {}
    rates = of_driver | chip_peaks().get(chip, {})
    if "tf32" in str(row.get("measured_precision")):
        rates = rates | {"float32": rates.get("tf32")}
    return {(row["machine"], row["device"], name): rate for name, rate in rates.items()}


def measured_peaks(found):
    """Return the best that each machine reached in a frame of results, in any framework.

    It is {(machine, device, precision): TFLOP/s, (machine, device, "bandwidth"): GB/s}.
    """
    own = found[found["undisturbed"] & ~found["published"]]
    matmuls = choose_peaks(own, ["machine", "device"]).set_index(["machine", "device", "precision"])["value"]
    copies = own[own["workload"] == "bandwidth"].groupby(["machine", "device"])["value"].max()
    return dict(matmuls) | {(*key, "bandwidth"): rate for key, rate in copies.items()}


def fraction_of(known, row, quantity):
    """Return a row's "tflops" or "bandwidth" over the peak of its chip; None if either is unknown.

    It may exceed 1: convolutions can be faster than the best matmul, and some machines read faster than they copy. The
    rate of several GPUs is compared with several times the best of one; processes on a CPU share it.

    Args:
        known: as measured_peaks() or rated_peaks() returns it. TFLOP/s are compared in the same precision.
    """
    name = "bandwidth" if quantity == "bandwidth" else (row["precision"] or "").removeprefix("mixed_")
    peak = known.get((row["machine"], row["device"], name))
    devices = 1 if row["device"] == "cpu" else int(row.get("world_size") or 1)
    return float(row[quantity]) / (devices * peak) if peak and row.get(quantity) else None
