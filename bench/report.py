"""What a person sees of a run: the progress bar while it measures, the result in words when it is done."""

import statistics
import sys
import time
from contextlib import contextmanager

from tqdm import tqdm

from bench.measure import ENOUGH_WINDOWS, FLAGS

REFRESH_SECONDS = 0.25


@contextmanager
def progress(workload):
    """A bar on stderr, in items per second; yields the function that measure() calls after each window.

    Only between windows does it move: no monitor thread, and its figure is the median of the windows.
    Where stderr is no terminal there is no bar.
    """
    tqdm.monitor_interval = 0
    with tqdm(desc=workload.model, unit=f" {workload.unit}", disable=None, leave=False, file=sys.stderr) as bar:
        shown = time.perf_counter()

        def on_window(windows, steps):
            nonlocal shown
            if bar.disable or time.perf_counter() - shown < REFRESH_SECONDS:
                return
            items = workload.items_per_step * steps
            bar.n = items * len(windows)
            bar.set_postfix_str(f"median {items / statistics.median(windows):.4g} {workload.unit}/s")
            shown = time.perf_counter()

        yield on_window


def describe_task(row):
    """What runs, in one line, from a row or the beginning of one."""
    place = f"cpu, {row['num_threads']} threads" if row["device"] == "cpu" else row["device"]
    return (
        f"{row['model']} {row['phase']}, {row['precision']}, {row['memory_format']}, batch {row['batch_size']}, "
        f"{row['framework']} {row['framework_version']} on {row['device_name']} ({place})"
    )


def describe_result(row):
    """The lines that close a run, from its row."""
    lines = [describe_task(row)]
    if not row.get("throughput"):
        return "\n".join([*lines, f"  {row['status']}: {row['note']}"])
    lines.append(f"  {row['throughput']:.4g} {row['unit']}  {describe_interval(row)}")
    scope = "of the process" if row["device"] == "cpu" else "on the device"
    peak = f"{row['peak_memory_bytes'] / 1e9:.2f} GB {scope}" if row.get("peak_memory_bytes") else "unknown"
    lines.append(f"  first step {row['first_step_seconds']:.3g} s, peak memory {peak}")
    if row.get("tflops"):
        lines.append(f"  {row['tflops']:.3g} TFLOP/s, {row['measured_precision']} as measured")
    if row["status"] != "ok":
        lines.append(f"  {row['status']}: the row holds the windows that were complete")
    lines += [f"  {flag}: {FLAGS[flag]}" for flag in row["flags"].split()]
    return "\n".join(lines)


def describe_interval(row):
    low, high = row["throughput_low"], row["throughput_high"]
    if low is None:
        return "from a single window"
    if row["windows"] < ENOUGH_WINDOWS:
        return f"range of {row['windows']} windows: {low:.4g} to {high:.4g}"
    return f"+- {50 * (high - low) / row['throughput']:.2g} % within this run ({row['windows']} windows)"
