"""Compare rates with what chips can do by their specifications; peaks.csv names each source."""

import csv
import functools
from pathlib import Path

CHIP_PEAKS = Path(__file__).with_name("peaks.csv")


@functools.cache
def chip_peaks():
    """Return {(device, GPU cores, precision): its line of the file}; each device has one for float32.

    A device is named as its driver reports it. Apple sells one name with several numbers of GPU cores; others have "".
    """
    with open(CHIP_PEAKS, newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    return {(row["driver_name"] or row["device"], row["gpu_cores"], row["precision"]): row for row in rows}


def rated_share(row, quantity):
    """Return a row's "tflops" or "bandwidth" over what its GPUs are rated at; None if unknown, as for any CPU.

    float32 that was measured as TF32 has TF32's rate. A card that is not in the file has the bandwidth of its driver.
    """
    if row["device"] == "cpu" or not row.get(quantity):
        return None
    precision = row["precision"].removeprefix("mixed_")
    if precision == "float32" and "tf32" in str(row.get("measured_precision")):
        precision = "tf32"
    chip = row["device_name"], str(row["gpu_cores"] or "")
    if quantity == "bandwidth":
        peak = chip_peaks().get((*chip, "float32"), {}).get("bandwidth_gb_s") or row.get("rated_bandwidth")
    else:
        peak = chip_peaks().get((*chip, precision), {}).get("peak_tflops")
    return row[quantity] / (float(peak) * int(row["world_size"])) if peak else None
