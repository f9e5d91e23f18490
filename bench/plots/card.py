"""A machine's card: its peaks and the standard set, next to published machines, as an image.

`make all` and `make plot` write it to results/cards/<machine>-<framework>.png.
"""

import functools
import math
import textwrap
from contextlib import suppress
from typing import NamedTuple

from bench.plots import draw, frames
from bench.plots.draw import COLOURS, GREY
from bench.plots.frames import NUMBERS, is_work
from bench.records import columns, peaks, report, results
from bench.records.columns import FLAGS, disturbing_flags, format_number
from bench.settings import FRAMEWORKS, SettingError, parse_settings
from bench.workloads.standard_set import FORMATS, RUNS, STANDARD_SET

LEAST = 4  # works of the set that a machine needs for a card
MOST_PUBLISHED = 3  # machines on a card
MOST_MISSING = 6  # works that a card names
MOST_TIMES_LARGER = 8  # is the batch of a published figure, compared with a GPU's
DIFFERS = ("precision", "batch_size", "compile")  # columns that are named next to a published figure
# Inches
WIDE = 8.0
MARGIN = 0.35
ROW = 0.2
FULL = WIDE - 2 * MARGIN
NAME = 1.72
BAR = 3.4
BAR_END = 4.68
VALUE = 5.93
NOTE = 6.03
SHARE = WIDE - MARGIN
OWN = dict(zip(NUMBERS, (COLOURS[0], COLOURS[5], COLOURS[2]), strict=True))
LINE = 115  # letters
PUBLISHED = COLOURS[1]
PALE = "#EEF3F8"
FOOTER = (
    "Filled: measured by this program, with the range of its processes ({}) and their intervals. Hollow: published.",
    "The bars of a workload share a scale. Peak: the best matmul in that precision, or for decode the bandwidth.",
)


class Card(NamedTuple):
    """What the card of a machine shows, apart from its layout."""

    file: str
    name: str
    subtitle: str  # chip or machine, memory, system, software and date
    tiles: list[tuple[str, str]]  # (figure with its unit, what it is)
    blocks: dict[object, list[dict]]  # {work of the set: its lines, own ones first and with `numbers`}
    processes: str
    limits: list[str]
    doubts: list[str]


def make_card(stored, machine, framework):
    """Build the Card of a machine and framework from frames.load(); None if it has too little of the set."""
    lines = stored.valid[stored.valid["machine"].eq(machine) | stored.valid["published"]]
    resident = frames.of_usual_size(lines).to_dict("records")
    mine = [line for line in resident if not line["published"] and line["framework"] == framework]
    kind = "gpu" if any(line["kind"] == "gpu" for line in mine) else "cpu"
    mine = [line for line in mine if line["kind"] == kind]
    by_work = {work: lines_of_work for work in STANDARD_SET if (lines_of_work := frames.of_set(mine, work))}
    if len(by_work) < LEAST:
        return None
    others = choose_published([line for line in resident if line["published"]], by_work, kind)
    shown = [line for lines_of_work in by_work.values() for line in lines_of_work]
    last = max(shown, key=lambda line: line["timestamp"])
    counts = [line["processes"] for line in shown]
    software = f"{FRAMEWORKS[framework].title} {last['framework_version']}"
    host = "host " if last["device"] == "cuda" else ""  # the card has its own
    memory = f"{host}{last['memory_gb']} GiB" if last["memory_gb"] else ""
    names = [name_chip(last), machine]
    if last["shown"] == machine:  # several machines call their chips by this name
        names.reverse()
    subtitle = [names[1], memory, last["os"].partition(",")[0], software, last["timestamp"][:10]]
    wholes = frames.rates(lines, published=False, framework=framework, kind=kind, precision="float32")
    wholes = wholes[wholes["bottleneck"] != ""].to_dict("records")
    return Card(
        file=f"{machine}-{framework}.png",
        name=names[0],
        subtitle="   ".join(filter(None, subtitle)),
        tiles=list_tiles(lines[~lines["published"]].to_dict("records"), last, {line["numbers"] for line in shown}),
        blocks={work: lines_of_work + others[work] for work, lines_of_work in by_work.items()},
        processes=" to ".join(dict.fromkeys(map(str, (min(counts), max(counts))))),
        limits=describe_limits(wholes[-1:], shown) + name_slower(by_work),
        doubts=name_missing(by_work, last) + list_doubts(by_work, shown),
    )


def choose_published(published, by_work, kind):
    """Choose published lines next to a machine's own: {work: lines}, of the devices that compare with most of them.

    A line is comparable if it has the same model, phase and format of numbers, was not compiled, and is a rate of
    resident batches of the usual size, as in the other plots. Its batch size may differ, and is shown; next to a GPU it
    is at most MOST_TIMES_LARGER, because a small batch leaves most of a fast GPU idle.
    """
    offers = {}  # {device: {(work, numbers): line}}
    for work, lines in by_work.items():
        for line in lines:
            for other in sorted(published, key=lambda other: other["value"]):  # the fastest replaces the others
                is_same = peaks.SIXTEEN_BITS.get(other["precision"], other["precision"]) == line["numbers"]
                is_same &= other["compile"] in ("", "0") and other["prompt_tokens"] in ("", line["prompt_tokens"])
                is_same &= other["weight_bits"] == line["weight_bits"]
                largest = math.inf if kind == "cpu" else MOST_TIMES_LARGER * float(line["batch_size"])
                if is_same and is_work(other, work) and float(other["batch_size"]) <= largest:
                    of_device = offers.setdefault((other["device_name"], other["kind"] == kind), {})
                    of_device.setdefault(work, {})[line["numbers"]] = other
    # Devices of the same kind come first among those that compare with equally many.
    best = sorted(offers, key=lambda device: (len(offers[device]), device[1]), reverse=True)[:MOST_PUBLISHED]
    return {work: [line for device in best for line in offers[device].get(work, {}).values()] for work in by_work}


def name_chip(line):
    """Name what ran: the GPU, or the CPU with its number of cores."""
    if line["kind"] == "cpu":
        return f"{line['cpu_name'] or line['device_name']}, {line['cpu_count']} cores"
    return line["device_name"] + (f", {line['gpu_cores']} GPU cores" if line["gpu_cores"] else "")


def list_tiles(lines, last, formats):
    """List the chip's best matmul in each of the formats and its memory bandwidth: [(figure with its unit, what)].

    What another framework than that of `last` reached names it.
    """
    best = peaks.measured_peaks(lines)
    tiles = [(numbers, "TFLOP/s", f"{numbers} matmul") for numbers in NUMBERS if numbers in formats]
    tiles.append(("bandwidth", "GB/s", "memory bandwidth"))
    known = []
    for name, unit, what in tiles:
        key = (*peaks.chip_of(last), name)
        if rate := best.get(key):
            by = [line["framework"] for line in lines if peaks.measured_peaks([line]).get(key) == rate]
            other = "" if last["framework"] in by else f", in {FRAMEWORKS[by[0]].title}"
            known.append((f"{format_number(rate, '{:.3g}')} {unit}", f"{what}{other}"))
    return known


def describe_limits(wholes, lines):
    """List sentences on what limits the machine: in a whole pipeline, and compared with its peaks."""
    limits = []
    for whole in wholes:
        # The line above is of a later run if the sentence has another rate of the model.
        is_shown = any(f" {format_number(line['value'])} images/s" in whole["note"] for line in lines)
        when = "" if is_shown else " in an earlier run"
        limits.append(f"{whole['model']} {whole['phase']} from JPEG files{when}, {whole['note'].partition(';')[0]}.")
    shares = {
        "The models reach {} of the best matmul.": [line["of_peak"] for line in lines if line["phase"] != "decode"],
        "Decode reads at {} of the memory bandwidth.": [line["of_bandwidth"] for line in lines],
    }
    for words, of_lines in shares.items():
        if known_shares := [share for share in of_lines if share > 0]:
            ends = dict.fromkeys(map(format_percent, (min(known_shares), max(known_shares))))
            limits.append(words.format(" to ".join(ends) + " %"))
    return limits


def name_slower(by_work):
    """List a sentence on the works that are slower in 16 bits than in float32, if there are any."""
    slower = []
    for work, lines in by_work.items():
        sound = {line["numbers"]: line for line in lines if not disturbing_flags(line)}
        highs = [sound[name]["high"] for name in FORMATS if name in sound]
        if highs and "float32" in sound and max(highs) < sound["float32"]["low"]:
            slower.append(f"{work.title} {work.phase}")
    return [f"Slower in 16 bits than in float32: {'; '.join(slower)}."] if slower else []


def format_percent(share):
    """Return a share in percent, with one significant digit if it is small."""
    return f"{100 * share:.0f}" if share >= 0.015 else f"{100 * share:.1g}"


def name_missing(by_work, line):
    """List a sentence on the works that the set has for this line's device and framework, but by_work has not."""
    missing = []
    for work in STANDARD_SET:
        if work not in by_work and work.suits(line["device"], line["framework"]):
            with suppress(SettingError):  # the framework does not have it
                parse_settings(work.workload, {"FRAMEWORK": line["framework"]} | work.change(work.numbers[0]))
                missing.append(f"{work.title} {work.phase}")
    return [f"Not measured: {report.join_some(missing, MOST_MISSING)}."] if missing else []


def list_doubts(by_work, lines):
    """List reasons to doubt the figures: few processes, flags in words, several setups, changed or mixed versions."""
    doubts = []
    if few := sum(line["processes"] < RUNS for line in lines):
        doubts.append(f"{few} of {len(lines)} intervals may be too narrow: they come from fewer than {RUNS} processes.")
    named = {}
    setups = {}
    for work, lines_of_work in by_work.items():
        for flag in " ".join(line["flags"] for line in lines_of_work).split():
            named.setdefault(flag, {})[f"{work.title} {work.phase}"] = None
        for setup in filter(None, (line["setup"] for line in lines_of_work)):
            setups.setdefault(setup, {})[f"{work.title} {work.phase}"] = None
    doubts += [
        f"{', '.join(works)}: {FLAGS[flag].partition(':')[0]}." for flag, works in named.items() if flag in FLAGS
    ]
    doubts += [f"{', '.join(works)}: one of several setups, {setup}." for setup, works in setups.items()]
    if any(line["commit"].endswith("-dirty") for line in lines):
        doubts.append("The programs were changed: a commit ends in -dirty.")
    if len(limits := sorted({line["power_limit_watts"] for line in lines} - {""})) > 1:
        doubts.append(f"The figures come from power limits of {' and '.join(limits)} W.")
    for name in ("commit", "framework_version", "method_version"):
        if len(versions := {line[name] for line in lines}) > 1:
            doubts.append(f"The figures come from {len(versions)} versions ({name}).")
    return doubts


def describe_bar(line):
    """Describe a line next to its bar: (name, interval or what a source states, share of the peak or bandwidth)."""
    if line["published"]:
        return line["device_name"], ", ".join([*columns.words_of(line, DIFFERS).values(), line["framework"]]), ""
    share = line["of_bandwidth"] if line["phase"] == "decode" else line["of_peak"]
    ends = f"{format_number(line['low'])} to {format_number(line['high'])}" if line["low"] > 0 else "no interval"
    return line["precision"], ends, f"{format_percent(share)} %" if share > 0 else ""


def draw_card(card):
    """Draw the card and return the figure."""
    figure, axes = draw.sheet(WIDE)
    write = functools.partial(draw.write, axes)
    write(card.name, MARGIN, 0.42, FULL, size=19, weight="bold")
    write(card.subtitle, MARGIN, 0.74, FULL, size=8.5, color=GREY)
    top = 1.0
    count = len(card.tiles)
    for i, (rate, what) in enumerate(card.tiles):
        wide = (FULL - 0.12 * (count - 1)) / count
        left = MARGIN + i * (wide + 0.12)
        axes.barh(top + 0.3, wide, 0.6, left=left, color=PALE)
        write(rate, left + 0.12, top + 0.22, wide - 0.24, size=15, weight="bold")
        write(what, left + 0.12, top + 0.47, wide - 0.24, size=8, color=GREY)
    if card.tiles:
        top += 0.78
    for at, words, side in ((NAME, "precision", "left"), (NOTE, "interval", "left"), (SHARE, "of peak", "right")):
        write(words, at, top + 0.08, 1.5, size=7.5, color=GREY, ha=side)
    top += 0.24
    for work, bars in card.blocks.items():
        top = draw_block(axes, work, bars, top)
    for title, sentences in (("What limits it", card.limits), ("Doubts", card.doubts or ["None."])):
        lines = [line for words in sentences for line in textwrap.wrap(words, LINE)]
        write(title, MARGIN, top + 0.12, 2, size=9, weight="bold")
        for line in lines:
            top += 0.165
            write(line, MARGIN, top + 0.14, FULL, size=8.2)
        top += 0.3
    for words in FOOTER:
        write(words.format(card.processes), MARGIN, top + 0.1, FULL, size=7.2, color=GREY)
        top += 0.15
    figure.set_figheight(top + 0.2)
    axes.set_ylim(top + 0.2, 0)
    return figure


def draw_block(axes, work, bars, top):
    """Draw the bars of one work, on a scale of their own; return the y below them."""
    write = functools.partial(draw.write, axes)
    axes.plot([MARGIN, WIDE - MARGIN], [top, top], color="#D5DBE2", linewidth=0.7)
    write(work.title, MARGIN, top + 0.14, NAME - MARGIN - 0.1, size=9.5, weight="bold")
    settings = f"{work.phase}, batch {work.batch_size}"
    write(settings, MARGIN, top + 0.33, NAME - MARGIN - 0.1, size=8, color=GREY)
    scale = (BAR_END - BAR) / max(max(line["value"], line["high"] if line["high"] > 0 else 0) for line in bars)
    for i, line in enumerate(bars):
        y = top + 0.14 + i * ROW
        value = line["value"]
        published = line["published"]
        colour = PUBLISHED if published else OWN[line["numbers"]]
        name, note, share = describe_bar(line)
        write(name, NAME, y, BAR - NAME - 0.08, size=8.5, color=PUBLISHED if published else "black")
        inside = "white" if published else colour
        axes.barh(y, max(value * scale, 0.015), 0.12, left=BAR, color=inside, edgecolor=colour, linewidth=0.9)
        if line["low"] > 0:
            axes.plot([BAR + line["low"] * scale, BAR + line["high"] * scale], [y, y], color="#222222", linewidth=1.1)
        weight = "normal" if published else "bold"
        rate = f"{format_number(value)} {line['per']}"
        write(rate, VALUE, y, VALUE - BAR_END - 0.05, size=8.5, ha="right", weight=weight)
        room = SHARE - NOTE - 0.45 if share else SHARE - NOTE
        write(note, NOTE, y, room, size=7.4, color=GREY)
        write(share, SHARE, y, 0.4, size=8.2, ha="right")
    return top + max(2, len(bars)) * ROW + 0.13


def save_card(card, folder):
    return draw.save(draw_card(card), folder / "cards" / card.file)


def draw_all(stored, folder):
    """Draw the card of every machine and framework that has enough of the set; return the paths."""
    measured = stored.valid.loc[~stored.valid["published"], ["machine", "framework"]].drop_duplicates()
    cards = [make_card(stored, *of) for of in measured.itertuples(index=False)]
    return [save_card(card, folder) for card in cards if card]


def finish(folder, machine, framework):
    """Draw one card; return what to print: its sentences and path, or that the machine has too little of the set."""
    text = []
    card = make_card(frames.load(folder, text.append), machine, framework)
    if card is None:
        return [*text, "too few workloads were measured for a card"]
    text += ["", card.name, *(report.wrap(f"  {words}", "    ") for words in (*card.limits, *card.doubts))]
    return [*text, f"card: {results.display_path(save_card(card, folder))}"]
