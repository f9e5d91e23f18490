"""Peaks: what a chip can do by its specification (peaks.csv names each source), and what was measured here."""

import csv
import functools
from pathlib import Path

CHIP_PEAKS = Path(__file__).with_name("peaks.csv")
IMPLAUSIBLE = 1.3  # cards run above their rated clock, and published peaks contradict each other
FRAMEWORKS_DIFFER = 1.1
SIXTEEN_BITS = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}


@functools.cache
def chip_peaks(path=CHIP_PEAKS):
    """{(device, GPU cores, precision): TFLOP/s}; a device has the name that its driver gives.

    Apple sells one name with several numbers of GPU cores; for others these are "".
    """
    with open(path, newline="", encoding="utf-8") as lines:
        return {
            (row["driver_name"] or row["device"], row["gpu_cores"], row["dtype"]): float(row["peak_tflops"])
            for row in csv.DictReader(lines)
            if row["peak_tflops"]
        }


def is_implausible(row):
    """Whether a row's TFLOP/s are over 1.3 times its GPU's peak; False for an unknown device."""
    precision = SIXTEEN_BITS.get(row["precision"], row["precision"])
    peak = chip_peaks().get((row["device_name"], str(row["gpu_cores"] or ""), precision))
    return bool(row["device"] != "cpu" and peak and row.get("tflops") and row["tflops"] > IMPLAUSIBLE * peak)


def flag_implausible(row):
    """A row, with a flag where it exceeds what its chip can do."""
    return row | {"flags": " ".join([*row["flags"].split(), "implausible"])} if is_implausible(row) else row


def measured_peaks(rows):
    """{(machine, device, precision): row} of the best measured peak, whichever framework reached it.

    Args:
        rows: dicts of text as results.read() gives them.
    """
    best = {}
    for row in rows:
        if is_peak(row) and "implausible" not in row["flags"]:
            key = row["machine"], row["device"], row["precision"]
            if key not in best or float(row["tflops"]) > float(best[key]["tflops"]):
                best[key] = row
    return best


def is_peak(row):
    """Whether a row, as text, is a measured peak with a figure."""
    if row["model"] != "matmul-peak" or row["status"] != "ok":
        return False
    try:
        return float(row["tflops"]) > 0
    except ValueError:  # blank
        return False


def fraction_of_peak(row, best):
    """TFLOP/s of a row over its machine's measured peak in the same precision; None where either is unknown.

    It may exceed 1: convolutions can be faster than the best matmul.
    """
    precision = SIXTEEN_BITS.get(row["precision"], row["precision"])
    peak = best.get((row["machine"], row["device"], precision))
    return float(row["tflops"]) / float(peak["tflops"]) if peak and row.get("tflops") else None


def measured_bandwidths(rows):
    """{(machine, device): GB/s} of the fastest bandwidth operator, in rows of text."""
    best = {}
    for row in rows:
        if row["workload"] == "bandwidth" and row["status"] == "ok" and row["throughput"]:
            key = row["machine"], row["device"]
            best[key] = max(best.get(key, 0.0), float(row["throughput"]))
    return best


def fraction_of_bandwidth(row, best):
    """GB/s of a row over its machine's best of measured_bandwidths(); None where either is unknown.

    It may exceed 1: a step of decode only reads, which some machines do faster than they copy.
    """
    measured = best.get((row["machine"], row["device"]))
    return float(row["bandwidth"]) / measured if measured and row.get("bandwidth") else None


def compare_frameworks(rows, device):
    """A sentence for each precision in which two frameworks' latest peaks on a device differ by over 10 %."""
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
