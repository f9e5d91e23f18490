"""What a person sees of a run: the progress bar while it measures, the result in words when it is done."""

import statistics
import sys
import time
from contextlib import contextmanager

from tqdm import tqdm

from bench.rows.columns import describe_setup, describe_work, without_exponent
from bench.rows.verdict import burst_and_sustained, scalings
from bench.timing.measure import ENOUGH_WINDOWS, FLAGS

REFRESH_SECONDS = 0.25


@contextmanager
def progress(workload):
    """A bar on stderr, in items per second; yields the function that measure() calls after each window.

    The bar moves between windows only and has no monitor thread. Its figure is the median of the windows.
    There is no bar where stderr is no terminal.
    """
    tqdm.monitor_interval = 0
    look = {"bar_format": "{desc}: {n_fmt}{unit} [{elapsed}{postfix}]", "disable": None, "leave": False}
    with tqdm(desc=workload.model, unit=f" {workload.unit}", file=sys.stderr, **look) as bar:
        bar.set_postfix_str("first step and warm-up")
        shown = time.perf_counter()

        def on_window(windows, steps):
            nonlocal shown
            if bar.disable or time.perf_counter() - shown < REFRESH_SECONDS:
                return
            items = workload.items_per_step * steps
            bar.set_postfix_str(f"median {items / statistics.median(windows):.4g} {workload.unit}/s", refresh=False)
            bar.update(items * len(windows) - bar.n)
            shown = time.perf_counter()

        yield on_window


@contextmanager
def no_progress(workload):
    """The same without a bar, of a rank that another one speaks for."""
    yield None


def describe_task(row):
    """What runs, in one line, from the first of its rows."""
    who = f"{row['framework']} {row.get('framework_version', '')} on {row.get('device_name') or row['cpu_name']}"
    where = ", ".join(filter(None, [row.get("device", "ended early"), describe_setup(row)]))
    return f"{describe_work(row)}, {who} ({where})"


def describe_result(row, peak_fraction=None, bandwidth_fraction=None):
    """The lines of one row: what was measured, how sure that is, and every doubt."""
    label = row["phase"] if row["phase"] in ("forward", "backward", "optimizer") else row["scope"] or "all"
    label = f"{label} {row['epoch']}" if row.get("epoch") else label
    if not row.get("throughput"):
        return f"  {label:<11} {row['status']}: {row['note']}"
    rate = f"{four_digits(row['throughput'])} {row['unit']}"
    if row.get("elapsed_seconds"):
        return f"  {row['elapsed_seconds']:>7.0f} s   {', '.join([rate, *describe_physics(row)])}  {row['flags']}"
    if row.get("epoch"):
        lines = [f"{rate}  {describe_epoch(row)}"]
    else:
        lines = [f"{rate}  {describe_interval(row)}", describe_details(row, peak_fraction, bandwidth_fraction)]
    if row["status"] != "ok":
        lines.append(f"{row['status']}: the row holds the windows that were complete")
    if row["flags"]:
        lines.append("flags: " + ", ".join(row["flags"].split()))
    if row.get("bottleneck"):
        lines.append(row["note"].partition(";")[0])
    elif row.get("note"):
        lines.append(f"note: {row['note']}")
    return f"  {label:<11} " + ("\n" + " " * 14).join(lines)


def describe_epoch(row):
    each = 1e6 * row["seconds"] / row["items"]
    learnt = f"mean loss {row['loss_mean']:.4f}, test accuracy {row['accuracy']:.4f}"
    return f"{row['seconds']:.4g} s, {each:.4g} us an image, {learnt}"


def describe_physics(row):
    """Power and temperature, where they are known."""
    said = []
    if row.get("power_watts"):
        per_item = f", {row['joules_per_item']:.3g} J an item"
        idle = f", idle {row['idle_watts']:.3g} W" if row.get("idle_watts") is not None else ""
        said.append(f"{row['power_watts']:.4g} W of the {row['power_scope']}{per_item}{idle}")
    if row.get("temperature_c") is not None:
        said.append(f"{row['temperature_c']:.0f} C")
    return said


def describe_sustained(rows):
    """What heat did to the speed in a sustained run, in one line; "" where it was too short to tell."""
    parts = [[row[name] for name in ("elapsed_seconds", "seconds", "items")] for row in rows if row.get("throughput")]
    burst, sustained = burst_and_sustained(parts) if parts else (None, None)
    if burst is None or sustained is None:
        return ""
    rates = f"burst {burst:.4g} (first 30 s), sustained {sustained:.4g} {rows[0]['unit']} (last third)"
    return f"  {rates}: sustained is {sustained / burst:.3f} of burst"


def describe_scaling(rows):
    """The lines of a list of NUM_DEVICES: rate, rate a device, efficiency with its interval; "" where none compare.

    Args:
        rows: as text, of the same list.
    """
    lines = []
    for first, sizes in scalings(rows):
        lines.append(f"scaling: {describe_work(first | {'world_size': '1'})}")
        for each in sizes:
            whole, one = each.rate.throughput, each.rate.throughput / each.size
            rates = f"{four_digits(whole):>9} {first['unit']} {four_digits(one):>9} a device"
            span = f" ({each.low:.3f} to {each.high:.3f})" if each.low is not None else ""
            count = f"{each.size:>4} {'device' if each.size == 1 else 'devices':<7}"
            lines.append(f"  {count} {rates}   efficiency {each.efficiency:.3f}{span}")
    return "\n".join(lines)


def explain(flags):
    """The flags of a run in words, each once."""
    return "\n".join(f"  {flag}: {words}" for flag, words in FLAGS.items() if flag in flags)


def describe_details(row, peak_fraction, bandwidth_fraction):
    """What a row has beside its rate (first step, memory, TFLOP/s, GB/s, sensors), in one line.

    Args:
        peak_fraction, bandwidth_fraction: of what `make tflops` reached on this machine; None where that is unknown.
    """
    details = [f"first step {row['first_step_seconds']:.3g} s"]
    if row["phase"] == "prefill":
        details.append(f"time to first token {1e3 * row['step_seconds_median']:.4g} ms")
    if row.get("peak_memory_bytes"):
        scope = "of the process" if row["device"] == "cpu" else "on the device"
        details.append(f"peak memory {row['peak_memory_bytes'] / 1e9:.2f} GB {scope}")
    if row.get("tflops"):
        share = "" if peak_fraction is None else f" ({100 * peak_fraction:.3g} % of this machine's measured peak"
        share += "" if peak_fraction is None else ", which is a matmul's)" if peak_fraction > 1 else ")"
        details.append(f"{row['tflops']:.3g} TFLOP/s{share}, {row['measured_precision']} as measured")
    if row.get("bandwidth"):
        measured = (
            "" if bandwidth_fraction is None else f" ({100 * bandwidth_fraction:.3g} % of what `make tflops` moves)"
        )
        details.append(f"reads {row['bandwidth']:.3g} GB/s{measured}")
    return ", ".join(details + describe_physics(row))


def describe_interval(row):
    low, high = row["throughput_low"], row["throughput_high"]
    if low is None:
        return f"without an interval ({row['windows']} windows)"
    if row["windows"] < ENOUGH_WINDOWS:
        return f"range of {row['windows']} windows: {four_digits(low)} to {four_digits(high)}"
    percent = without_exponent(f"{50 * (high - low) / row['throughput']:.2g}")
    return f"+- {percent} % within this run ({row['windows']} windows)"


def four_digits(value):
    """A rate as text, without an exponent where it is large."""
    return without_exponent(f"{value:.4g}")
