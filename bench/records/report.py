"""Report a run: a progress bar while it measures, then its result as text that fits the terminal."""

import statistics
import sys
import time
from contextlib import contextmanager

from tqdm import tqdm

from bench.host.ranks import read_ranks
from bench.records import layout
from bench.records.columns import WORK, describe_setup, describe_work, format_number
from bench.records.flags import FLAGS
from bench.records.verdict import MACHINE_CHANGED, Rate, burst_and_sustained, find_slowdown
from bench.settings import SCOPES
from bench.timing.intervals import MOST_IN_RANGE, coverage
from bench.timing.measure import ENOUGH_WINDOWS

REFRESH_SECONDS = 0.25


@contextmanager
def progress(workload, items_per_step):
    """Show a bar on stderr, in items per second of all ranks; yields what measure() calls after each window.

    The bar moves only between windows and has no monitor thread. Its figure is the median of the windows.
    There is no bar if stderr is not a terminal.
    """
    tqdm.monitor_interval = 0
    options = {"bar_format": "{desc}: {n_fmt}{unit} [{elapsed}{postfix}]", "disable": None, "leave": False}
    with tqdm(desc=workload.model, unit=f" {workload.unit}", file=sys.stderr, **options) as bar:
        bar.set_postfix_str("first step and warm-up")
        shown = time.perf_counter()

        def on_window(windows, steps):
            nonlocal shown
            if bar.disable or time.perf_counter() - shown < REFRESH_SECONDS:
                return
            items = items_per_step * steps
            bar.set_postfix_str(
                f"median {format_number(items / statistics.median(windows))} {workload.unit}/s", refresh=False
            )
            bar.update(items * len(windows) - bar.n)
            shown = time.perf_counter()

        yield on_window


def describe_task(row):
    """Describe what runs, from the first of its rows: work, framework, device and setup."""
    who = f"{row['framework']} {row.get('framework_version', '')} on {row.get('device_name') or row['cpu_name']}"
    where = ", ".join(filter(None, [row.get("device", "ended early"), describe_setup(row)]))
    return layout.wrap(f"{describe_work(row)}, {who} ({where})", "  ")


def describe_result(row, peak_fraction=None, bandwidth_fraction=None):
    """Describe one row in lines: its result, its interval and its warnings.

    Args:
        peak_fraction, bandwidth_fraction: of what `make tflops` measured on this machine; None if that is unknown.
    """
    label = f"{name_part(row)} {row['epoch']}" if row.get("epoch") else name_part(row)
    lines = []
    if row.get("throughput"):
        rate = f"{format_number(row['throughput'])} {row['unit']}"
        if row.get("elapsed_seconds"):
            return f"  {row['elapsed_seconds']:>7.0f} s   {', '.join([rate, *describe_physics(row)])}  {row['flags']}"
        if row.get("epoch"):
            each = f"{row['seconds']:.4g} s, {1e6 * row['seconds'] / row['items']:.4g} us per image"
            learnt = f"mean loss {row['loss_mean']:.4f}, test accuracy {row['accuracy']:.4f}"
            lines.append(f"{rate}  {each}, {learnt}")
        else:
            lines += [f"{rate}  {describe_interval(row)}", describe_details(row, peak_fraction, bandwidth_fraction)]
    if row["status"] != "ok" or not lines:
        is_partial = row["status"] == "interrupted" and lines
        note = row["note"] or ("the row contains the completed windows" if is_partial else "")
        lines.append(f"{row['status']}: {note}")
    if row.get("flags"):
        lines.append("flags: " + ", ".join(row["flags"].split()))
    if row["status"] == "ok" and row.get("note"):
        lines.append(row["note"].partition(";")[0] if row.get("bottleneck") else f"note: {row['note']}")
    indent = " " * 14
    lines = [f"  {label:<11} {lines[0]}", *(indent + line for line in lines[1:])]
    return "\n".join(layout.wrap(line, indent) for line in lines)


def describe_physics(row):
    """List power and temperature if they are known."""
    said = []
    if row.get("power_watts"):
        per_item = f", {row['joules_per_item']:.3g} J per item"
        idle = f", idle {row['idle_watts']:.3g} W" if row.get("idle_watts") is not None else ""
        said.append(f"{row['power_watts']:.4g} W of the {row['power_scope']}{per_item}{idle}")
    if row.get("temperature_c") is not None:
        said.append(f"{row['temperature_c']:.0f} C")
    return said


def describe_sustained(rows):
    """Describe what heat did to the speed in a sustained run, in one line; "" if it was too short to tell."""
    parts = [[row[name] for name in ("elapsed_seconds", "seconds", "items")] for row in rows if row.get("throughput")]
    burst, sustained = burst_and_sustained(parts) if parts else (None, None)
    if burst is None or sustained is None:
        return ""
    rates = f"burst {format_number(burst)} (first 30 s), sustained {format_number(sustained)}"
    return layout.wrap(
        f"  {rates} {rows[0]['unit']} (last third): sustained is {sustained / burst:.3f} of burst", "    "
    )


def describe_scaling(rows):
    """Describe the scaling over NUM_DEVICES: rate, rate per device, efficiency with its interval; "" if none compare.

    The efficiency is the rate per device over that of the fewest devices.

    Args:
        rows: as text, of one list of NUM_DEVICES.
    """
    same = [name for name in WORK if name not in ("world_size", "nodes")]
    groups, lines = {}, []
    for row in rows:
        if row["status"] == "ok" and row["throughput"] and row["scope"] != "sustained":
            by_size = groups.setdefault(tuple(row[name] for name in same), {})
            by_size.setdefault(int(row["world_size"] or 1), []).append(row)
    for by_size in groups.values():
        fewest, *more = sorted(by_size)
        if not more:
            continue
        unit, base = by_size[fewest][0]["unit"], Rate.merge(list(map(Rate.of_row, by_size[fewest])))
        lines.append(f"scaling: {describe_work(by_size[fewest][0] | {'world_size': '1'})}")
        for size in (fewest, *more):
            rate = Rate.merge(list(map(Rate.of_row, by_size[size])))
            efficiency, low, high = (end if end is None else end * fewest / size for end in rate.ratio(base))
            span = f" ({low:.3f} to {high:.3f})" if low is not None and size != fewest else ""
            rates = f"{format_number(rate.throughput):>9} {unit} {format_number(rate.throughput / size):>9} per device"
            count = f"{size:>4} {'device' if size == 1 else 'devices':<7}"
            lines.append(f"  {count} {rates}   efficiency {efficiency:.3f}{span}")
    return "\n".join(lines)


def describe_slowdown(rows, stored):
    """Say if the machine is over 10 % slower than at its best in its file; "" if not. All rows are text."""
    times, when = find_slowdown(rows, stored) or (1.0, "")
    if times < MACHINE_CHANGED:
        return ""
    said = f"a small matmul (the canary) takes {times:.2f} times as long as on {when[:16].replace('T', ' ')} UTC"
    return layout.wrap(f"  {said}: this machine is slower now, expect lower rates", "    ")


def explain(flags):
    """Explain the flags of a run, a line each."""
    return "\n".join(layout.wrap(f"  {flag}: {words}", "    ") for flag, words in FLAGS.items() if flag in flags)


def name_part(row):
    """Name what a row measured: its part of training, or else its scope."""
    return row["phase"] if row["phase"] in ("forward", "backward", "optimizer") else row["scope"] or "all"


def list_rates(rows):
    """List the rates of one process: "device 16.9 images/s, input 912 images/s"."""
    done = [row for row in rows if row["throughput"]]
    return ", ".join(f"{name_part(row)} {format_number(float(row['throughput']))} {row['unit']}" for row in done)


def describe_processes(rows):
    """Describe what several processes measured of the same work: the median of their rates, its interval, the flags.

    Args:
        rows: of one combination of settings, as text or as numbers. Epochs and sustained runs are left out.
    """
    by_part = {}
    for row in rows:
        if row["scope"] in SCOPES and row["status"] == "ok":
            by_part.setdefault(name_part(row), []).append(row)
    most, lines = max(map(len, by_part.values()), default=0), []
    if most == 1:
        lines = ["  one process only: the interval does not include variation between processes"]
        lines[0] += "" if read_ranks().are_many else "; RUNS=5 measures it"
    elif most > 1:
        lines = [f"{most} processes:", *(describe_merged(part, found) for part, found in by_part.items())]
    flags = {flag for row in rows for flag in (row.get("flags") or "").split()}
    return "\n".join(filter(None, [*lines, explain(flags)]))


def describe_merged(part, rows):
    """Describe the common result of several processes: their median, its interval, and each process with its flags."""
    merged, unit = Rate.merge(list(map(Rate.of_row, rows))), rows[0]["unit"]
    ends = "" if merged.low is None else f"{format_number(merged.low)} to {format_number(merged.high)}"
    line, indent = f"  {part:<11} {format_number(merged.throughput)} {unit}  {ends}", " " * 14
    if len(rows) == 1:
        return layout.wrap(f"{line} (one process)", indent)
    level = 100 * coverage(len(rows)) if len(rows) <= MOST_IN_RANGE else 95
    each = ", ".join(f"{format_number(float(row['throughput']))} {row['flags']}".strip() for row in rows)
    about = f"{line} ({level:.0f} % interval, from {len(rows)} processes)"
    return layout.wrap(about, indent) + "\n" + layout.wrap(indent + each, indent)


def describe_details(row, peak_fraction, bandwidth_fraction):
    """Describe in one line what a row has besides its rate: first step, memory, TFLOP/s, GB/s, sensors."""
    details = [f"first step {row['first_step_seconds']:.3g} s"]
    if row["phase"] == "prefill":
        details.append(f"time to first token {1e3 * row['step_seconds_median']:.4g} ms")
    if row.get("peak_memory_bytes"):
        scope = "of the process" if row["device"] == "cpu" else "on the device"
        details.append(f"peak memory {row['peak_memory_bytes'] / 1e9:.2f} GB {scope}")
    if row.get("tflops"):
        share = ""
        if peak_fraction is not None:
            above = ", which is that of matmuls" if peak_fraction > 1 else ""
            share = f" ({100 * peak_fraction:.3g} % of this machine's measured peak{above})"
        details.append(
            f"{format_number(row['tflops'], '{:.3g}')} TFLOP/s{share}, {row['measured_precision']} as measured"
        )
    if row.get("bandwidth"):
        known = bandwidth_fraction is not None
        share = f" ({100 * bandwidth_fraction:.3g} % of the bandwidth that `make tflops` measured)" if known else ""
        details.append(f"reads {format_number(row['bandwidth'], '{:.3g}')} GB/s{share}")
    return ", ".join(details + describe_physics(row))


def describe_interval(row):
    """Describe the interval of a row's throughput and the number of its windows."""
    low, high = row["throughput_low"], row["throughput_high"]
    if low is None:
        return f"no interval (windows: {row['windows']})"
    if row["windows"] < ENOUGH_WINDOWS:
        return f"range of {row['windows']} windows in this process: {format_number(low)} to {format_number(high)}"
    percent = format_number(50 * (high - low) / row["throughput"], "{:.2g}")
    return f"+- {percent} % within this process ({row['windows']} windows)"
