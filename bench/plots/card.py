"""A machine's card: its peaks and the standard set, next to published machines, as an image.

`make all` and `make plot` write it to results/cards/<machine>-<framework>.png.
"""

import math
import textwrap

from bench.plots import draw, frames
from bench.plots.draw import GREY, NAME, NOTE, WIDE
from bench.records import report, results, tables
from bench.records.columns import FLAGS, format_number
from bench.records.likeness import choose_peaks, describe_how, few_threads
from bench.records.verdict import ratio_of
from bench.settings import FRAMEWORKS

LEAST = 2  # results that a card needs
MOST_PUBLISHED = 3  # machines on a card
PALE = "#EEF3F8"
WIDTH = 115  # letters
FOOTER = (
    "Filled: measured here (range of its processes: {}). Hollow: published, same work; 2x: ours is twice as fast.",
    "Bars for the same work share a scale. Peak: the best matmul in that precision; for decode, the bandwidth.",
)


def make_card(latest, machine, framework):
    """Return what the card of a machine and framework shows, a dict; None if the machine has too little of the set.

    Its `blocks` are the results of each benchmark of the set, each own one followed by published ones of its work.

    Args:
        latest: the results of all machines, as frames.select_valid() selects them.
    """
    latest = latest[latest["value"].notna()]
    own = latest[latest["machine"].eq(machine) & ~latest["published"]]
    mine = frames.select_set(own[own["framework"] == framework])
    on_gpu = [row for row in mine if row["kind"] == "gpu"]
    shown = on_gpu if len(on_gpu) >= LEAST else [row for row in mine if row["kind"] == "cpu"]
    if len(shown) < LEAST:
        return None
    last = max(shown, key=lambda row: row["timestamp"])
    names = [name_chip(last), machine]
    if last["shown"] == machine:  # several machines call their chips by this name
        names.reverse()
    host = "host " if last["device"] == "cuda" else ""  # the card has its own
    about = [names[1], f"{host}{last['memory_gb']} GiB" if last["memory_gb"] else "", last["os"].partition(",")[0]]
    about += [f"{FRAMEWORKS[framework]} {last['framework_version']}", last["timestamp"][:10]]
    others = choose_published(latest[latest["published"]], shown)
    blocks = {}
    for row in shown:
        blocks.setdefault(row["benchmark"], []).extend([row, *others.get(row["work"], [])])
    return {
        "file": f"{machine}-{framework}.png",
        "name": names[0],
        "subtitle": "   ".join(filter(None, about)),
        "tiles": list_tiles(own, last),
        "blocks": list(blocks.values()),
        "warnings": list_warnings(shown),
    }


def choose_published(published, shown):
    """Return published results of the same work as shown ones, {work: results}, of the devices that have most of them.

    The highest of several of a device counts. Among devices that have equally many, those of the same kind come first,
    then the fastest. The framework of the shown ones is not named again.
    """
    own = {row["work"]: row for row in shown}
    of_work = published[published["work"].isin(own)].sort_values("value", kind="stable")
    of_work = of_work.drop_duplicates(["work", "device_name", "kind"], keep="last")
    devices = {}
    for row in of_work.replace({"framework": shown[0]["framework"]}, "").to_dict("records"):
        row["ratio"] = ratio_of(own[row["work"]], row)
        devices.setdefault((row["device_name"], row["kind"]), []).append(row)

    def place(device):
        ratios = [row["ratio"].throughput for row in devices[device] if row["ratio"]]
        return -len(devices[device]), device[1] != shown[0]["kind"], min(ratios, default=math.inf), *device

    found = {}
    for device in sorted(devices, key=place)[:MOST_PUBLISHED]:
        for row in devices[device]:
            found.setdefault(row["work"], []).append(row)
    return found


def name_chip(result):
    """Name what ran: the GPU, or the CPU with its number of cores."""
    if result["kind"] == "cpu":
        return f"{result['cpu_name'] or result['device_name']}, {result['cpu_count']} cores"
    return result["device_name"] + (f", {result['gpu_cores']} GPU cores" if result["gpu_cores"] else "")


def list_tiles(own, last):
    """List the chip's best matmul in each precision and its memory bandwidth: (figure with its unit, what, how).

    What another framework than that of `last` reached names it.
    """
    own = own[own["device"].eq(last["device"]) & own["undisturbed"]]
    copies = own[own["workload"] == "bandwidth"].sort_values("value", kind="stable").tail(1)
    peaks = {row["precision"]: row for row in choose_peaks(own, []).to_dict("records")}
    known = [(row, "TFLOP/s", f"{name} matmul") for name in frames.SHOWN if (row := peaks.get(name))]
    known += [(row, "GB/s", "memory bandwidth") for row in copies.to_dict("records")]
    tiles = []
    for row, unit, what in known:
        other = f"in {FRAMEWORKS[row['framework']]}" if row["framework"] != last["framework"] else ""
        highest = row["highest_clock_mhz"]
        clock = f"{row['clock_mhz']:,.0f} of {highest:,.0f} MHz" if highest > 0 else ""
        how = ", ".join(filter(None, [other, clock]))
        tiles.append((f"{format_number(row['value'], '{:.3g}')} {unit}", what, how))
    return tiles


def list_warnings(shown):
    """List the flags of all rows in words."""
    named = {}
    for row in shown:
        for flag in row["flags"].split():
            if flag in FLAGS:
                named.setdefault(flag, {})[f"{row['benchmark'].title}, {row['phase']}"] = None
    return [f"{', '.join(works)}: {FLAGS[flag].partition(':')[0]}." for flag, works in named.items()]


def describe_bar(row):
    """Describe a row next to its bar: (name, interval or ratio and how a source did it, share of peak or bandwidth)."""
    if row["published"]:
        ratio = f"{row['ratio'].throughput:.2g}x" if row["ratio"] else ""
        return row["device_name"], ": ".join(filter(None, [ratio, describe_how(row)])), ""
    share = row["of_bandwidth"] if row["phase"] == "decode" else row["of_peak"]
    ends = f"{format_number(row['low'])} to {format_number(row['high'])}" if row["low"] > 0 else "no interval"
    name = ", ".join(filter(None, [row["precision"], few_threads(row)]))  # what differs within a block
    disturbed = "" if row["undisturbed"] else "disturbed, "
    percent = format_number(100 * share, "{:.0f}" if share > 0.1 else "{:.2g}")
    return name, disturbed + ends, f"{percent} %" if share > 0 else ""


def draw_card(card, folder):
    """Draw a card of make_card() and return its path."""
    sheet = draw.Sheet()
    sheet.write(card["name"], 0, 0.12, WIDE, 19, "bold")
    sheet.write(card["subtitle"], 0, 0.44, WIDE, 8.5, color=GREY)
    sheet.top += 0.7
    for i, (rate, what, how) in enumerate(card["tiles"]):
        wide = (WIDE + 0.12) / len(card["tiles"]) - 0.12
        left = i * (wide + 0.12)
        sheet.axes.barh(sheet.top + 0.36, wide, 0.72, left=left, color=PALE)
        sheet.write(rate, left + 0.12, 0.22, wide - 0.24, 15, "bold")
        sheet.write(what, left + 0.12, 0.45, wide - 0.24, 8, color=GREY)
        sheet.write(how, left + 0.12, 0.61, wide - 0.24, 7, color=GREY)
    if card["tiles"]:
        sheet.top += 0.9
    for x, words, side in ((NAME, "precision", "left"), (NOTE, "interval", "left"), (WIDE, "of peak", "right")):
        sheet.write(words, x, 0.08, 1.5, 7.5, color=GREY, ha=side)
    sheet.top += 0.24
    for rows in card["blocks"]:
        sheet.block(rows[0]["benchmark"].title, rows[0]["settings"], rows, describe_bar)
    sheet.write("Warnings", 0, 0.12, WIDE, 9, "bold")
    for line in (line for words in card["warnings"] or ["None."] for line in textwrap.wrap(words, WIDTH)):
        sheet.top += 0.165
        sheet.write(line, 0, 0.14, WIDE, 8.2)
    sheet.top += 0.3
    counts = [row["processes"] for rows in card["blocks"] for row in rows if not row["published"]]
    ends = " to ".join(dict.fromkeys(map(str, (min(counts), max(counts)))))
    for words in FOOTER:
        sheet.write(words.format(ends), 0, 0.1, WIDE, 7.2, color=GREY)
        sheet.top += 0.15
    return draw.save(sheet.end(), folder / "cards" / card["file"])


def draw_all(latest, folder):
    """Draw the card of every machine and framework that has enough of the set; return the paths."""
    measured = latest.loc[~latest["published"], ["machine", "framework"]].drop_duplicates()
    cards = [make_card(latest, *side) for side in measured.itertuples(index=False)]
    return [draw_card(card, folder) for card in cards if card]


def finish(folder, machine, framework):
    """Draw one card; return what to print: its sentences and path, or that the machine has too little of the set."""
    text = []
    latest = tables.latest(tables.read(folder, text.append))
    card = make_card(frames.select_valid(latest), machine, framework)
    if card is None:
        return [*text, "too few workloads were measured for a card"]
    text += ["", card["name"], *(report.wrap(f"  {words}", "    ") for words in card["warnings"])]
    return [*text, f"card: {results.display_path(draw_card(card, folder))}"]
