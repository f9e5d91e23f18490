"""Report the results of a run as text: what is printed when it has ended."""

import re
import shutil
import statistics
import sys
import textwrap

from bench.records import likeness, peaks
from bench.records.columns import FLAGS, SETUP, describe_work, format_number, format_ratio
from bench.records.verdict import ENOUGH_PAIRS, rank, read_rates, verdict_of
from bench.settings import TRAINING

BURST_RATES = 3  # rates of ten seconds at the beginning of a long run
LEAST_WIDTH = 60  # columns; narrower terminals wrap by themselves


def wrap(line, indent=""):
    """Break a line at the terminal's width, with later lines indented; leave it whole if stdout is not a terminal."""
    if not sys.stdout.isatty():
        return line
    width = max(LEAST_WIDTH, shutil.get_terminal_size().columns)
    return textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False)


def describe_run(results, latest):
    """Describe the results of one run, dicts: what ran, each with its interval and details, and all warnings.

    Args:
        latest: those of all machines, as tables.latest() chooses them.
    """
    first = results[0]
    who = f"{first['framework']} {first['framework_version']} on {first['device_name']}"
    family = " ".join(re.findall(r"(?:family|model) \d+", first["cpu_id"] or "")) if first["device"] == "cpu" else ""
    where = ", ".join(filter(None, [first["device"], family, describe_work(first, SETUP)]))
    texts = [wrap(f"{describe_work(first)}, {who} ({where})", "  ")]
    texts += [describe_result(row, latest) for row in results]
    if any(row["tflops"] for row in results) and not any(row["of_peak"] for row in results):
        texts.append("  run `make tflops` to compare this with the machine's peak")
    return "\n".join(filter(None, [*texts, explain_flags(results)]))


def describe_rate(row):
    """Describe in a few words what a row measured: "device 11.9 images/s"."""
    if not row.get("throughput"):
        return f"{row['scope'] or 'all'}: {row['status']}: {row['note']}"
    rate = f"{row['scope'] or 'all'} {format_number(row['throughput'])} {row['unit']}"
    return rate if row["status"] == "ok" else f"{rate} ({row['status']})"


def describe_result(row, latest):
    """Describe one result in lines: its rate, its interval, its details, the same work elsewhere, and its warnings."""
    lines = []
    rate, low, high = (format_number(row[name]) for name in ("throughput", "throughput_low", "throughput_high"))
    rate = f"{rate} {row['unit']}"
    windows = f"windows {low} to {high}" if low else "too few windows for an interval"
    if row.get("epoch") and row["throughput"]:
        times = f"{row['seconds']:.4g} s, {1e6 * row['seconds'] / row['items']:.4g} us per image"
        learnt = f"mean loss {row['loss_mean']:.4f}, test accuracy {row['accuracy']:.4f}"
        lines.append(f"{rate}  {times}, {learnt}")
    elif row.get("throughput"):
        if row["processes"] > 1:
            which = "the slower" if row["processes"] == 2 else "median"
            lines.append(f"{rate} ({which} of {row['processes']} processes; with their {windows})")
            lines.append(", ".join(map(format_number, row["process_rates"])))
        else:
            lines.append(f"{rate} (one process; {'its ' if low else ''}{windows})")
        elsewhere = likeness.describe_elsewhere(row, latest)
        sustained = describe_sustained(row) if row["scope"] == "sustained" else ""
        lines += filter(None, [describe_details(row), sustained, elsewhere])
    if row["status"] != "ok":
        reason = row["note"] or ("the rate is that of the complete windows" if row["throughput"] else "")
        lines.append(f"{row['status']}: {reason}")
    elif row["note"]:
        lines.append(row["note"] if row["bottleneck"] else f"note: {row['note']}")
    if row["flags"]:
        lines.append("flags: " + ", ".join(row["flags"].split()))
    label = f"{row['scope'] or 'all'} {row.get('epoch') or ''}".strip()
    indent = " " * 14
    lines = [f"  {label:<11} {lines[0]}", *(indent + line for line in lines[1:])]
    return "\n".join(wrap(line, indent) for line in lines)


def join_some(texts, most):
    """Join `most` texts or fewer, and say how many more there are."""
    more = f", and {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more


def describe_details(row):
    """Describe in one line what a row has besides its rate: seconds, memory, TFLOP/s, GB/s, sensors."""
    what = {"prefill": "time to first token"}.get(row["phase"], "batch" if row["scope"] == "input" else "step")
    step = [f"{what} {1e3 * row['step_seconds_median']:.4g} ms"] if row["step_seconds_median"] else []
    if row["stop_reason"] == "num_images":
        step.append(f"{row['items']:.0f} {row['unit'].removesuffix('/s')} in {row['seconds']:.4g} s")
    mean = [f"mean {format_number(row['items'] / row['seconds'])} {row['unit']}"] if "uneven" in row["flags"] else []
    first, *later = row["first_steps"]
    usual = statistics.median(later or [first])
    after = " after the check" if row["phase"] in TRAINING else ""
    apart = "" if 0.5 <= first / usual <= 2 else f", later processes {usual:.3g} s"
    details = [*step, *mean, f"first step{after} {first:.3g} s{apart}"]
    if row["peak_memory_bytes"]:
        scope = "of the process" if row["device"] == "cpu" else "on the device"
        details.append(f"peak memory {row['peak_memory_bytes'] / 1e9:.2f} GB {scope}")
    if row["tflops"]:
        rate = f"{format_number(row['tflops'], '{:.3g}')} TFLOP/s{describe_shares(row, 'tflops', 'of_peak')}"
        details.append(f"{rate}, measured precision {row['measured_precision']}")
    if row["bandwidth"]:
        shares = describe_shares(row, "bandwidth", "of_bandwidth")
        details.append(f"reads {format_number(row['bandwidth'], '{:.3g}')} GB/s{shares}")
    if row["power_watts"]:
        joules = f"{row['joules_per_item']:.3g} J per {row['unit'].removesuffix('s/s')}"
        details.append(f"{row['power_watts']:.4g} W ({row['power_scope']}), {joules}")
    if row["temperature_c"] is not None:
        details.append(f"{row['temperature_c']:.0f} C")
    return ", ".join(details)


def describe_shares(row, quantity, measured):
    """Describe a rate's shares of what its machine reached, in the column `measured`, and of what its chip is rated at.

    "" if neither is known.
    """
    name = measured.removeprefix("of_")
    shares = {"this machine's measured": row[measured], "the rated": peaks.rated_share(row, quantity)}
    words = ", ".join(f"{100 * share:.3g} % of {whose} {name}" for whose, share in shares.items() if share)
    return f" ({words})" if words else ""


def describe_sustained(row):
    """Describe what heat did to the speed in a sustained run; "" if it was too short to tell."""
    rates = read_rates(row)
    third = len(rates) // 3
    if len(rates) - third < BURST_RATES:
        return ""
    burst = statistics.fmean(rates[:BURST_RATES])
    kept = statistics.fmean(rates[-third:])
    first, last = (f"{format_number(rate)} {row['unit']}" for rate in (burst, kept))
    seconds = f"{BURST_RATES * row['seconds'] / len(rates):.0f} s"
    return f"burst {first} (first {seconds}), sustained {last} (last third): {100 * kept / burst:.3g} % of the burst"


def describe_comparison(comparison, base):
    """Describe how much faster a run is than another one, called `base`; None: no pair of processes can be compared."""
    if not comparison:
        return f"not compared with {base}: no pair of processes is whole and undisturbed"
    if comparison.differing:
        settings = " and ".join(name.upper() for name in comparison.differing).replace("DEVICE", "USE_GPU")
        return f"not compared with {base}: they also differ in {settings}, set {settings} for both"
    ratio, low, high = map(format_ratio, comparison.ratio)
    slices = ", from neighbouring slices" if comparison.in_slices else ""
    few = f"no verdict below {ENOUGH_PAIRS} pairs" if comparison.pairs < ENOUGH_PAIRS else ""
    pairs = f"{low} to {high}, {comparison.pairs} pairs" if comparison.pairs > 1 else "1 pair"
    return f"{ratio}x {base}{slices}: {few or verdict_of(comparison.ratio)} ({pairs})"


def describe_list(runs):
    """Draw a table of runs, (settings, results, comparison with another run in words), the fastest first.

    The rate of each is the one that is compared; if it has none, the reason.
    """
    lines = [("", runs[0][1][0]["unit"], "interval", "memory", "ratio")]
    found = [(settings, min(rows, key=rank), comparison) for settings, rows, comparison in runs]
    for settings, row, comparison in sorted(found, key=lambda each: -(each[1]["throughput"] or 0)):
        rate, low, high = (format_number(row[name]) for name in ("throughput", "throughput_low", "throughput_high"))
        memory = f"{row['peak_memory_bytes'] / 1e9:.2f} GB" if row["peak_memory_bytes"] else ""
        failure = "" if row["status"] == "ok" else f"{row['status']}: {row['note']}".removesuffix(": ")
        lines.append((settings, rate, f"{low} to {high}" if low else "", memory, comparison or failure))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(wrap("  ".join(map(str.ljust, line, widths)).rstrip(), "    ") for line in lines)


def explain_flags(rows):
    """Explain the flags of a run's results, a line each."""
    flags = " ".join(row["flags"] for row in rows).split()
    can_unset = re.search(r"\b(LD_PRELOAD|MALLOC_\w+)=", " ".join(row["allocator"] or "" for row in rows))
    known = FLAGS if can_unset else FLAGS | {"page_faults": FLAGS["page_faults"].partition(":")[0]}
    return "\n".join(wrap(f"  {flag}: {words}", "    ") for flag, words in known.items() if flag in flags)
