"""A machine's card: its peaks and the standard set, next to published machines, as an image.

`make all` and `make plot` write it to results/cards/<machine>-<framework>.png.
"""

import functools
import textwrap
from typing import NamedTuple

from bench.plots import draw, frames
from bench.plots.draw import COLOURS, GREY
from bench.records import peaks, report, results
from bench.records.columns import FLAGS, disturbing_flags, format_number
from bench.records.likeness import SIXTEEN_BITS, describe_how, work_of
from bench.settings import FRAMEWORKS, unmixed
from bench.workloads.standard_set import RUNS, SIXTEEN, STANDARD_SET

MOST_PUBLISHED = 3  # machines on a card
MOST_MISSING = 6  # works that a card names
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
PRECISIONS = ("float32", *SIXTEEN)
OWN = dict(zip(PRECISIONS, (COLOURS[0], COLOURS[5], COLOURS[2]), strict=True))
LINE = 115  # letters
PUBLISHED = COLOURS[1]
PALE = "#EEF3F8"
FOOTER = (
    "Filled: measured by this program, with the range of its processes ({}) and their intervals. Hollow: published, of "
    "the same work; 2x: ours is twice as fast.",
    "The bars of a work share a scale. Peak: the best matmul in that precision, or for decode the bandwidth.",
)
OF_DIFFUSION = "Diffusion: a step is one call of the model for each image; with guidance a step of an image takes two."


class Card(NamedTuple):
    """What the card of a machine shows, apart from its layout."""

    file: str
    name: str
    subtitle: str  # chip or machine, memory, system, software and date
    tiles: list[tuple[str, str, str]]  # (figure with its unit, what it is, how it was reached)
    blocks: dict[object, list[dict]]  # {line of the set: its rows, each own one followed by published ones of its work}
    processes: str
    limits: list[str]
    doubts: list[str]


def make_card(stored, machine, framework):
    """Build the Card of a machine and framework from frames.load(); None if it has too little of the set."""
    lines = stored.valid[stored.valid["machine"].eq(machine) | stored.valid["published"]]
    rows = lines[lines["value"].notna()].to_dict("records")
    of_framework = [row for row in rows if not row["published"] and row["framework"] == framework]
    for kind in ("gpu", "cpu"):
        mine = frames.of_newest_chip([row for row in of_framework if row["kind"] == kind])
        resident = [row for row in mine if row["scope"] == "device"]
        by_line = {line: of_line for line in STANDARD_SET if (of_line := frames.of_line(resident, line))}
        if len(by_line) >= frames.LEAST:
            break
    else:
        return None
    shown = [row for of_line in by_line.values() for row in of_line.values()]
    others = choose_published([row for row in rows if row["published"]], shown, kind)
    blocks = {line: list_bars(of_line.values(), others) for line, of_line in by_line.items()}
    last = max(shown, key=lambda line: line["timestamp"])
    counts = [row["processes"] for row in shown]
    software = f"{FRAMEWORKS[framework].title} {last['framework_version']}"
    host = "host " if last["device"] == "cuda" else ""  # the card has its own
    memory = f"{host}{last['memory_gb']} GiB" if last["memory_gb"] else ""
    names = [name_chip(last), machine]
    if last["shown"] == machine:  # several machines call their chips by this name
        names.reverse()
    subtitle = [names[1], memory, last["os"].partition(",")[0], software, last["timestamp"][:10]]
    both = [row for row in mine if row["scope"] == "end_to_end" and row["bottleneck"]]
    wholes = [row for line in STANDARD_SET if line.has_pipeline for row in frames.of_line(both, line).values()]
    return Card(
        file=f"{machine}-{framework}.png",
        name=names[0],
        subtitle="   ".join(filter(None, subtitle)),
        tiles=list_tiles([row for row in rows if not row["published"]], last),
        blocks=blocks,
        processes=" to ".join(dict.fromkeys(map(str, (min(counts), max(counts))))),
        limits=describe_limits(wholes[:1], shown) + name_slower(by_line),
        doubts=name_missing(by_line, last) + list_doubts(by_line, shown),
    )


def choose_published(published, shown, kind):
    """Return published rows of the same work as shown ones, {work: rows}, of the devices that have most of them.

    The highest of several of a device counts. Among devices that have equally many, those of the same kind come first,
    then the fastest.
    """
    own = {work_of(row): row["value"] for row in shown}
    offers = {}  # {(device, whether it is of this kind): {work: row}}
    for row in sorted(published, key=lambda row: row["value"]):
        if (work := work_of(row)) in own:
            offers.setdefault((row["device_name"], row["kind"] == kind), {})[work] = row

    def rank(device):
        share = max(row["value"] / own[work] for work, row in offers[device].items())
        return len(offers[device]), device[1], share

    best = sorted(offers, key=rank, reverse=True)[:MOST_PUBLISHED]
    return {work: [offers[device][work] for device in best if work in offers[device]] for work in own}


def list_bars(rows, others):
    """List the rows of a line, each followed by the published ones of its work with `how`, and `ratio` to them."""
    bars = []
    for row in rows:
        bars.append(row)
        for other in others[work_of(row)]:
            framework = other["framework"] if other["framework"] != row["framework"] else ""
            how = describe_how(other | {"framework": framework})
            bars.append(other | {"ratio": row["value"] / other["value"], "how": how})
    return bars


def name_chip(line):
    """Name what ran: the GPU, or the CPU with its number of cores."""
    if line["kind"] == "cpu":
        return f"{line['cpu_name'] or line['device_name']}, {line['cpu_count']} cores"
    return line["device_name"] + (f", {line['gpu_cores']} GPU cores" if line["gpu_cores"] else "")


def list_tiles(rows, last):
    """List the chip's best matmul in each precision and its memory bandwidth: (figure with its unit, what, how).

    What another framework than that of `last` reached names it.
    """
    best = peaks.measured_peaks(rows)
    tiles = [(name, "TFLOP/s", f"{name} matmul") for name in PRECISIONS]
    tiles.append(("bandwidth", "GB/s", "memory bandwidth"))
    known = []
    for name, unit, what in tiles:
        key = (*peaks.chip_of(last), name)
        if rate := best.get(key):
            found = next(row for row in rows if peaks.measured_peaks([row]).get(key) == rate)
            other = "" if last["framework"] == found["framework"] else f"in {FRAMEWORKS[found['framework']].title}"
            figure = f"{format_number(rate, '{:.3g}')} {unit}"
            how = [other, count_sizes(rows, found), describe_clock(found)]
            known.append((figure, what, ", ".join(filter(None, how))))
    return known


def count_sizes(rows, peak):
    """Describe how many sizes of a matmul were tried for a peak; "" for a bandwidth, or if that is unknown."""
    same = ("machine", "device_name", "framework", "precision")
    tried = [row for row in rows if row["model"] == "matmul" and all(row[name] == peak[name] for name in same)]
    count = len({row["matrix_size"] for row in tried}) if peak["workload"] == "matmul" else 0
    return f"best of {count} sizes" if count > 1 else ""


def describe_clock(row):
    """Describe the clock at which a row was measured, and the highest one: "1,575 of 1,980 MHz"."""
    if not row["clock_mhz"] > 0:
        return ""
    highest = f" of {row['highest_clock_mhz']:,.0f}" if row["highest_clock_mhz"] > 0 else ""
    return f"{row['clock_mhz']:,.0f}{highest} MHz"


def describe_limits(wholes, lines):
    """List sentences on what limits the machine: in a whole pipeline, and compared with its peaks."""
    limits = []
    for whole in wholes:
        when = "" if any(line["run_id"] == whole["run_id"] for line in lines) else " in another run"
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


def name_slower(by_line):
    """List a sentence on the lines that are slower in 16 bits than in float32, if there are any.

    It needs several processes of both: of one, each fourth verdict on equal work would be wrong.
    """
    slower = []
    for line, rows in by_line.items():
        sound = {name: row for name, row in rows.items() if row["processes"] >= RUNS and not disturbing_flags(row)}
        if {SIXTEEN_BITS, "float32"} <= sound.keys() and sound[SIXTEEN_BITS]["high"] < sound["float32"]["low"]:
            slower.append(f"{line.title} {line.phase}")
    return [f"Slower in 16 bits than in float32: {'; '.join(slower)}."] if slower else []


def format_percent(share):
    """Return a share in percent, with one significant digit if it is small."""
    return f"{100 * share:.0f}" if share >= 0.015 else f"{100 * share:.1g}"


def name_missing(by_line, row):
    """List a sentence on the lines that the set has for a row's device and framework, but by_line has not."""
    compiles = frames.compiles_on(row)
    missing = []
    for line in STANDARD_SET:
        precisions = ("float32",) if line.precisions == ("float32",) else SIXTEEN[:1]
        has_it = any(frames.cells_of(line, row["device"], row["framework"], name, compiles) for name in precisions)
        is_optional = line.below_gb and row["device"] == "cuda"  # instead of a larger batch
        if line not in by_line and line.suits(row["device"], row["framework"]) and has_it and not is_optional:
            missing.append(f"{line.title} {line.phase}, batch {line.batch_size}")
    return [f"Not measured: {report.join_some(missing, MOST_MISSING)}."] if missing else []


def list_doubts(by_line, rows):
    """List reasons to doubt the figures: few processes, flags in words, several setups, changed or mixed versions."""
    doubts = []
    usual = [row for line, of_line in by_line.items() if not line.is_latency for row in of_line.values()]
    if few := sum(row["processes"] < RUNS for row in usual):
        doubts.append(f"{few} of {len(usual)} intervals may be too narrow: they come from fewer than {RUNS} processes.")
    named = {}
    setups = {}
    for line, of_line in by_line.items():
        name = f"{line.title} {line.phase}"
        for flag in " ".join(row["flags"] for row in of_line.values()).split():
            if not (flag == "launch_bound" and line.is_latency):  # which is what it is for
                named.setdefault(flag, {})[name] = None
        for setup in filter(None, (row["setup"] for row in of_line.values())):
            setups.setdefault(setup, {})[name] = None
    doubts += [
        f"{', '.join(works)}: {FLAGS[flag].partition(':')[0]}." for flag, works in named.items() if flag in FLAGS
    ]
    doubts += [f"{', '.join(works)}: one of several setups, {setup}." for setup, works in setups.items()]
    if any(row["commit"].endswith("-dirty") for row in rows):
        doubts.append("The programs were changed: a commit ends in -dirty.")
    if len(limits := sorted({row["power_limit_watts"] for row in rows} - {""})) > 1:
        doubts.append(f"The figures come from power limits of {' and '.join(limits)} W.")
    for name in ("commit", "framework_version", "method_version"):
        if len(versions := {row[name] for row in rows}) > 1:
            doubts.append(f"The figures come from {len(versions)} versions ({name}).")
    return doubts


def describe_bar(row):
    """Describe a row next to its bar: (name, interval or ratio and how a source did it, share of peak or bandwidth)."""
    if row["published"]:
        return row["device_name"], ": ".join(filter(None, [f"{row['ratio']:.2g}x", row["how"]])), ""
    share = row["of_bandwidth"] if row["phase"] == "decode" else row["of_peak"]
    ends = f"{format_number(row['low'])} to {format_number(row['high'])}" if row["low"] > 0 else "no interval"
    bound = ", launch-bound" if "launch_bound" in row["flags"] else ""
    name = ", ".join(filter(None, [row["precision"], row["memory_format"].replace("channels_first", "")]))
    return name, ends + bound, f"{format_percent(share)} %" if share > 0 else ""


def draw_card(card):
    """Draw the card and return the figure."""
    figure, axes = draw.sheet(WIDE)
    write = functools.partial(draw.write, axes)
    write(card.name, MARGIN, 0.42, FULL, size=19, weight="bold")
    write(card.subtitle, MARGIN, 0.74, FULL, size=8.5, color=GREY)
    top = 1.0
    count = len(card.tiles)
    for i, (rate, what, how) in enumerate(card.tiles):
        wide = (FULL - 0.12 * (count - 1)) / count
        left = MARGIN + i * (wide + 0.12)
        axes.barh(top + 0.36, wide, 0.72, left=left, color=PALE)
        write(rate, left + 0.12, top + 0.22, wide - 0.24, size=15, weight="bold")
        write(what, left + 0.12, top + 0.45, wide - 0.24, size=8, color=GREY)
        write(how, left + 0.12, top + 0.61, wide - 0.2, size=7, color=GREY)
    if card.tiles:
        top += 0.9
    for at, words, side in ((NAME, "precision", "left"), (NOTE, "interval", "left"), (SHARE, "of peak", "right")):
        write(words, at, top + 0.08, 1.5, size=7.5, color=GREY, ha=side)
    top += 0.24
    blocks = sorted(card.blocks.items(), key=lambda block: block[0].is_latency)
    for i, (line, bars) in enumerate(blocks):
        if line.is_latency and not (i and blocks[i - 1][0].is_latency):
            write("Latency: what Python and the host reach", MARGIN, top + 0.14, FULL, size=9, weight="bold")
            top += 0.28
        top = draw_block(axes, line, bars, top)
    for title, sentences in (("What limits it", card.limits), ("Doubts", card.doubts or ["None."])):
        lines = [line for words in sentences for line in textwrap.wrap(words, LINE)]
        write(title, MARGIN, top + 0.12, 2, size=9, weight="bold")
        for line in lines:
            top += 0.165
            write(line, MARGIN, top + 0.14, FULL, size=8.2)
        top += 0.3
    has_diffusion = any(line.workload == "diffusion" for line in card.blocks)
    for words in [*FOOTER, *[OF_DIFFUSION] * has_diffusion]:
        write(words.format(card.processes), MARGIN, top + 0.1, FULL, size=7.2, color=GREY)
        top += 0.15
    figure.set_figheight(top + 0.2)
    axes.set_ylim(top + 0.2, 0)
    return figure


def draw_block(axes, line, bars, top):
    """Draw the bars of a line of the set, on a scale of their own; return the y below them."""
    write = functools.partial(draw.write, axes)
    axes.plot([MARGIN, WIDE - MARGIN], [top, top], color="#D5DBE2", linewidth=0.7)
    write(line.title, MARGIN, top + 0.14, NAME - MARGIN - 0.1, size=9.5, weight="bold")
    write(frames.describe_settings(line, bars[0]), MARGIN, top + 0.33, NAME - MARGIN - 0.1, size=8, color=GREY)
    scale = (BAR_END - BAR) / max(max(row["value"], row["high"] if row["high"] > 0 else 0) for row in bars)
    for i, row in enumerate(bars):
        y = top + 0.14 + i * ROW
        value = row["value"]
        published = row["published"]
        colour = PUBLISHED if published else OWN[unmixed(row["precision"])]
        name, note, share = describe_bar(row)
        write(name, NAME, y, BAR - NAME - 0.08, size=8.5, color=PUBLISHED if published else "black")
        inside = "white" if published else colour
        axes.barh(y, max(value * scale, 0.015), 0.12, left=BAR, color=inside, edgecolor=colour, linewidth=0.9)
        if row["low"] > 0:
            axes.plot([BAR + row["low"] * scale, BAR + row["high"] * scale], [y, y], color="#222222", linewidth=1.1)
        weight = "normal" if published else "bold"
        rate = f"{format_number(value)} {row['per']}"
        write(rate, VALUE, y, VALUE - BAR_END - 0.05, size=8.5, ha="right", weight=weight)
        room = SHARE - NOTE - 0.45 if share else SHARE - NOTE
        write(note, NOTE, y, room, size=7.4, color=GREY)
        write(share, SHARE, y, 0.4, size=8.2, ha="right")
    return top + max(2, len(bars)) * ROW + 0.13


def save_card(card, folder, form="png"):
    return draw.save(draw_card(card), (folder / "cards" / card.file).with_suffix(f".{form}"))


def draw_all(stored, folder, form):
    """Draw the card of every machine and framework that has enough of the set; return the paths."""
    measured = stored.valid.loc[~stored.valid["published"], ["machine", "framework"]].drop_duplicates()
    cards = [make_card(stored, *of) for of in measured.itertuples(index=False)]
    return [save_card(card, folder, form) for card in cards if card]


def finish(folder, machine, framework):
    """Draw one card; return what to print: its sentences and path, or that the machine has too little of the set."""
    text = []
    card = make_card(frames.load(folder, text.append), machine, framework)
    if card is None:
        return [*text, "too few workloads were measured for a card"]
    text += ["", card.name, *(report.wrap(f"  {words}", "    ") for words in (*card.limits, *card.doubts))]
    return [*text, f"card: {results.display_path(save_card(card, folder))}"]
