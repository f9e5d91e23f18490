"""A machine's card: its peaks and the standard set, next to published machines, as an image.

`make all` and `make plot` write it to results/cards/<machine>-<framework>.png.
"""

import textwrap
from typing import NamedTuple

from bench.plots import draw, frames
from bench.plots.draw import COLOURS, GREY, PUBLISHED, ROW
from bench.records import report, results, tables
from bench.records.columns import FLAGS, format_number
from bench.records.likeness import describe_how
from bench.settings import FRAMEWORKS, unmixed
from bench.workloads.standard_set import SIXTEEN, STANDARD_SET

MOST_PUBLISHED = 3  # machines on a card
MOST_MISSING = 6  # works that a card names
PRECISIONS = ("float32", *SIXTEEN)
OWN = dict(zip(PRECISIONS, (COLOURS[0], COLOURS[5], COLOURS[2]), strict=True))
PALE = "#EEF3F8"
LINE = 115  # letters
NAME, BAR, BAR_END, VALUE, NOTE, WIDE = 1.37, 3.05, 4.33, 5.58, 5.68, 7.3  # inches from the left
FOOTER = (
    "Filled: measured here (range of its processes: {}). Hollow: published, same work; 2x: ours is twice as fast.",
    "The bars of a work share a scale. Peak: the best matmul in that precision, or for decode the bandwidth.",
)
OF_DIFFUSION = "Diffusion: a step is one call of the model for each image; with guidance a step of an image takes two."


class Card(NamedTuple):
    """What the card of a machine shows, apart from its layout."""

    file: str
    name: str
    subtitle: str  # chip or machine, memory, system, software and date
    tiles: list[tuple[str, str, str]]  # (figure with its unit, what it is, framework and clock)
    blocks: dict[object, list[dict]]  # {line of the set: its rows, each own one followed by published ones of its work}
    processes: str
    limits: list[str]
    doubts: list[str]


def make_card(lines, machine, framework):
    """Build the Card of a machine and framework from frames.select_valid(); None if it has too little of the set."""
    lines = lines[lines["machine"].eq(machine) | lines["published"]]
    rows = lines[lines["value"].notna()].to_dict("records")
    of_framework = [row for row in rows if not row["published"] and row["framework"] == framework]
    for kind in ("gpu", "cpu"):
        mine = [row for row in of_framework if row["kind"] == kind]
        resident = [row for row in mine if row["scope"] == "device"]
        by_line = {line: of_line for line in STANDARD_SET if (of_line := frames.of_line(resident, line))}
        if len(by_line) >= frames.LEAST:
            break
    else:
        return None
    shown = [row for of_line in by_line.values() for row in of_line.values()]
    others = choose_published([row for row in rows if row["published"]], shown, kind)
    last = max(shown, key=lambda row: row["timestamp"])
    counts = [row["processes"] for row in shown]
    host = "host " if last["device"] == "cuda" else ""  # the card has its own
    names = [name_chip(last), machine]
    if last["shown"] == machine:  # several machines call their chips by this name
        names.reverse()
    about = [names[1], f"{host}{last['memory_gb']} GiB" if last["memory_gb"] else "", last["os"].partition(",")[0]]
    about += [f"{FRAMEWORKS[framework]} {last['framework_version']}", last["timestamp"][:10]]
    whole = [row for row in mine if row["scope"] == "end_to_end" and row["bottleneck"]]
    pipelines = [row for line in STANDARD_SET if line.has_pipeline for row in frames.of_line(whole, line).values()]
    blocks = {}
    for line, of_line in by_line.items():
        blocks[line] = [bar for row in of_line.values() for bar in (row, *others[row["work"]])]
    return Card(
        file=f"{machine}-{framework}.png",
        name=names[0],
        subtitle="   ".join(filter(None, about)),
        tiles=list_tiles([row for row in rows if not row["published"]], last),
        blocks=blocks,
        processes=" to ".join(dict.fromkeys(map(str, (min(counts), max(counts))))),
        limits=describe_limits(pipelines[:1], shown),
        doubts=name_missing(by_line, last) + list_doubts(by_line),
    )


def choose_published(published, shown, kind):
    """Return published rows of the same work as shown ones, {work: rows}, of the devices that have most of them.

    The highest of several of a device counts. Among devices that have equally many, those of the same kind come first,
    then the fastest.
    """
    own = {row["work"]: row["value"] for row in shown}
    offers = {}  # {(device, whether it is of this kind): {work: row}}
    for row in sorted(published, key=lambda row: row["value"]):
        if row["work"] in own:
            of_device = offers.setdefault((row["device_name"], row["kind"] == kind), {})
            framework = row["framework"] if row["framework"] != shown[0]["framework"] else ""
            of_device[row["work"]] = row | {"framework": framework, "ratio": own[row["work"]] / row["value"]}

    def rank(device):
        return len(offers[device]), device[1], -min(row["ratio"] for row in offers[device].values())

    best = sorted(offers, key=rank, reverse=True)[:MOST_PUBLISHED]
    return {work: [offers[device][work] for device in best if work in offers[device]] for work in own}


def name_chip(line):
    """Name what ran: the GPU, or the CPU with its number of cores."""
    if line["kind"] == "cpu":
        return f"{line['cpu_name'] or line['device_name']}, {line['cpu_count']} cores"
    return line["device_name"] + (f", {line['gpu_cores']} GPU cores" if line["gpu_cores"] else "")


def list_tiles(rows, last):
    """List the chip's best matmul in each precision and its memory bandwidth: (figure with its unit, what, how).

    What another framework than that of `last` reached names it.
    """
    best = {}  # {precision, or "bandwidth": its row}
    for row in sorted(rows, key=lambda row: row["value"]):
        if row["device"] == last["device"] and not row["disturbed"]:
            best[row["precision"] if row["model"] == "matmul-peak" else row["workload"]] = row
    known = []
    for name in (*PRECISIONS, "bandwidth"):
        unit, what = ("GB/s", "memory bandwidth") if name == "bandwidth" else ("TFLOP/s", f"{name} matmul")
        if row := best.get(name):
            other = f"in {FRAMEWORKS[row['framework']]}" if row["framework"] != last["framework"] else ""
            highest = row["highest_clock_mhz"]
            clock = f"{row['clock_mhz']:,.0f} of {highest:,.0f} MHz" if highest > 0 else ""
            how = ", ".join(filter(None, [other, clock]))
            known.append((f"{format_number(row['value'], '{:.3g}')} {unit}", what, how))
    return known


def describe_limits(pipelines, lines):
    """List sentences on what limits the machine: in a whole pipeline, and compared with its peaks."""
    limits = []
    for row in pipelines:
        when = "" if row["run_id"] in [line["run_id"] for line in lines] else " in another run"
        limits.append(f"{row['model']} {row['phase']} from JPEG files{when}, {row['note'].partition(')')[0]}).")
    shares = {
        "The models reach {} of the best matmul.": [line["of_peak"] for line in lines if line["phase"] != "decode"],
        "Decode reads at {} of the memory bandwidth.": [line["of_bandwidth"] for line in lines],
    }
    for words, of_lines in shares.items():
        if known_shares := [share for share in of_lines if share > 0]:
            ends = dict.fromkeys(map(format_percent, (min(known_shares), max(known_shares))))
            limits.append(words.format(" to ".join(ends) + " %"))
    return limits


def format_percent(share):
    """Return a share in percent, with one significant digit if it is small."""
    return f"{100 * share:.0f}" if share >= 0.015 else f"{100 * share:.1g}"


def name_missing(by_line, row):
    """List a sentence on the lines that the set has for a row's device and framework, but by_line has not."""
    device, framework = row["device"], row["framework"]
    missing = []
    for line in STANDARD_SET:
        is_optional = line.below_gb and device == "cuda"  # instead of a larger batch
        if line not in by_line and line.suits(device, framework) and not is_optional:
            compiles = frames.compiles_on(row)
            if any(frames.cells_of(line, device, framework, name, compiles) for name in PRECISIONS):
                missing.append(f"{line.title} {line.phase}, batch {line.batch_size}")
    return [f"Not measured: {report.join_some(missing, MOST_MISSING)}."] if missing else []


def list_doubts(by_line):
    """List the flags of all lines in words."""
    named = {}
    for line, of_line in by_line.items():
        for flag in " ".join(row["flags"] for row in of_line.values()).split():
            if flag in FLAGS:
                named.setdefault(flag, {})[f"{line.title} {line.phase}"] = None
    return [f"{', '.join(works)}: {FLAGS[flag].partition(':')[0]}." for flag, works in named.items()]


def describe_bar(row):
    """Describe a row next to its bar: (name, interval or ratio and how a source did it, share of peak or bandwidth)."""
    if row["published"]:
        return row["device_name"], ": ".join(filter(None, [f"{row['ratio']:.2g}x", describe_how(row)])), ""
    share = row["of_bandwidth"] if row["phase"] == "decode" else row["of_peak"]
    ends = f"{format_number(row['low'])} to {format_number(row['high'])}" if row["low"] > 0 else "no interval"
    name = ", ".join(filter(None, [row["precision"], row["memory_format"].replace("channels_first", "")]))
    return name, ends, f"{format_percent(share)} %" if share > 0 else ""


def draw_card(card):
    """Draw the card and return the figure."""
    sheet = draw.Sheet(WIDE)
    sheet.write(card.name, 0, 0.12, WIDE, 19, "bold")
    sheet.write(card.subtitle, 0, 0.44, WIDE, 8.5, color=GREY)
    top = 0.7
    for i, (rate, what, how) in enumerate(card.tiles):
        wide = (WIDE + 0.12) / len(card.tiles) - 0.12
        left = i * (wide + 0.12)
        sheet.axes.barh(top + 0.36, wide, 0.72, left=left, color=PALE)
        sheet.write(rate, left + 0.12, top + 0.22, wide - 0.24, 15, "bold")
        sheet.write(what, left + 0.12, top + 0.45, wide - 0.24, 8, color=GREY)
        sheet.write(how, left + 0.12, top + 0.61, wide - 0.24, 7, color=GREY)
    if card.tiles:
        top += 0.9
    for x, words, side in ((NAME, "precision", "left"), (NOTE, "interval", "left"), (WIDE, "of peak", "right")):
        sheet.write(words, x, top + 0.08, 1.5, 7.5, color=GREY, ha=side)
    top += 0.24
    has_latency = False
    for line, bars in sorted(card.blocks.items(), key=lambda block: block[0].is_latency):
        if line.is_latency and not has_latency:
            has_latency = True
            sheet.write("Latency: what Python and the host reach", 0, top + 0.14, WIDE, 9, "bold")
            top += 0.28
        top = draw_block(sheet, line, bars, top)
    for title, sentences in (("What limits it", card.limits), ("Doubts", card.doubts or ["None."])):
        sheet.write(title, 0, top + 0.12, WIDE, 9, "bold")
        for line in (line for words in sentences for line in textwrap.wrap(words, LINE)):
            top += 0.165
            sheet.write(line, 0, top + 0.14, WIDE, 8.2)
        top += 0.3
    has_diffusion = any(line.workload == "diffusion" for line in card.blocks)
    for words in [*FOOTER, *[OF_DIFFUSION] * has_diffusion]:
        sheet.write(words.format(card.processes), 0, top + 0.1, WIDE, 7.2, color=GREY)
        top += 0.15
    return sheet.end(top + 0.1)


def draw_block(sheet, line, bars, top):
    """Draw the bars of a line of the set, on a scale of their own; return the y below them."""
    sheet.axes.plot([0, WIDE], [top, top], color="#D5DBE2", linewidth=0.7)
    sheet.write(line.title, 0, top + 0.14, NAME - 0.1, 9.5, "bold")
    sheet.write(frames.describe_settings(line, bars[0]), 0, top + 0.33, NAME - 0.1, 8, color=GREY)
    colours = [PUBLISHED if row["published"] else OWN[unmixed(row["precision"])] for row in bars]
    sheet.bars(bars, colours, top + 0.14, BAR, BAR_END)
    for i, row in enumerate(bars):
        y = top + 0.14 + i * ROW
        name, note, share = describe_bar(row)
        colour, weight = (PUBLISHED, "normal") if row["published"] else ("black", "bold")
        sheet.write(name, NAME, y, BAR - NAME - 0.08, 8.5, color=colour)
        sheet.write(f"{format_number(row['value'])} {row['per']}", VALUE, y, VALUE - BAR_END, 8.5, weight, ha="right")
        sheet.write(note, NOTE, y, WIDE - NOTE - (0.4 if share else 0), 7.4, color=GREY)
        sheet.write(share, WIDE, y, 0.4, 8.2, ha="right")
    return top + max(2, len(bars)) * ROW + 0.13


def save_card(card, folder, form="png"):
    return draw.save(draw_card(card), (folder / "cards" / card.file).with_suffix(f".{form}"))


def draw_all(lines, folder, form):
    """Draw the card of every machine and framework that has enough of the set; return the paths."""
    measured = lines.loc[~lines["published"], ["machine", "framework"]].drop_duplicates()
    cards = [make_card(lines, *of) for of in measured.itertuples(index=False)]
    return [save_card(card, folder, form) for card in cards if card]


def finish(folder, machine, framework):
    """Draw one card; return what to print: its sentences and path, or that the machine has too little of the set."""
    text = []
    card = make_card(frames.select_valid(tables.read(folder, text.append)), machine, framework)
    if card is None:
        return [*text, "too few workloads were measured for a card"]
    text += ["", card.name, *(report.wrap(f"  {words}", "    ") for words in (*card.limits, *card.doubts))]
    return [*text, f"card: {results.display_path(save_card(card, folder))}"]
