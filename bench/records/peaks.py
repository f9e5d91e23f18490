"""Compare rates with what chips can do by their specifications; peaks.csv names each source."""

import csv
import functools
from collections import defaultdict
from pathlib import Path

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


def rated_share(row, quantity):
    """Return a row's "tflops" or "bandwidth" over what its GPUs are rated at; None if unknown, as for any CPU.

    float32 that was measured as TF32 has TF32's rate. A card that is not in the file has the bandwidth of its driver.
    """
    if row["device"] == "cpu" or not row.get(quantity):
        return None
    name = "bandwidth" if quantity == "bandwidth" else row["precision"].removeprefix("mixed_")
    if name == "float32" and "tf32" in str(row.get("measured_precision")):
        name = "tf32"
    chip = row["device_name"], str(row["gpu_cores"] or "")
    rates = {"bandwidth": row.get("rated_bandwidth")} | chip_peaks().get(chip, {})
    return row[quantity] / (rates[name] * int(row["world_size"])) if rates.get(name) else None
