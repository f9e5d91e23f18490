"""The standard set as tables in Markdown, to read in a terminal and to paste into a text.

`make compare` prints those of all machines, and `make all` that of the machine that it has measured.
"""

import shutil

from bench.plots import frames
from bench.records import report, tables
from bench.records.columns import format_number
from bench.records.likeness import MODELS, choose_peaks, few_threads
from bench.records.verdict import ratio_of
from bench.workloads.standard_set import STANDARD_SET

SIDE = ["machine", "framework", "device"]  # whose results are in a column


def describe_set(folder, warn, side=None):
    """Describe the results of the standard set: a row for each work, a column for each SIDE; "" if there are none.

    CPUs and GPUs have tables of their own, because their benchmarks differ. Ratios are those to the first side of
    a table, which has the most works. A disturbed result has none.

    Args:
        warn: called with a line for each file or row that cannot be read.
        side: the cells of the only SIDE; None: all that have results.
    """
    own = frames.select_valid(tables.latest(tables.read(folder, warn)))
    own = own[~own["published"]]
    if side:
        own = own[(own[SIDE] == side).all(axis=1)]
    kinds = {}  # {kind: {side: {work: row}}}
    for work, row in list_works(own):
        kinds.setdefault(row["kind"], {}).setdefault(tuple(map(row.get, SIDE)), {})[work] = row
    drawn = []
    units = {}
    for kind in sorted(kinds):
        sides = sorted(kinds[kind].items(), key=lambda each: (-len(each[1]), each[0]))
        works = sorted(set().union(*kinds[kind].values()))
        columns = [["", "", *(name for *_, name in works)]]
        for (machine, *how), rows in sides:
            base = {} if rows is sides[0][1] else sides[0][1]
            cells = [describe_cell(rows.get(work), base.get(work)) for work in works]
            columns.append([machine, ", ".join(how), *cells])
            units |= {row["workload"]: row["per"] for row in rows.values()}
        drawn += draw_tables(columns)
    if not drawn:
        return ""
    ratio = "" if side else "ratio to the first column (none if one is disturbed), "
    legend = f"Rate +- the larger side of its interval (number of processes), {ratio}flags. Units:"
    legend += f" {', '.join(f'{workload} {unit}' for workload, unit in units.items())}."
    return "\n\n".join([*drawn, report.wrap(legend)])


def list_works(own):
    """Yield ((three numbers for its place in the table, name), row) of the peaks, a copy, and the set."""
    peaks = [*choose_peaks(own, SIDE).to_dict("records"), *own[own["model"] == "copy"].to_dict("records")]
    for row in (row for row in peaks if row["precision"] in frames.SHOWN):
        name = f"{MODELS.get(row['model'], row['model'])}, {row['precision']}"
        yield (0, row["model"] == "copy", frames.SHOWN.index(row["precision"]), name), row
    for row in frames.select_set(own):
        name = f"{row['benchmark'].title}, {row['settings']}, {row['class']}"
        yield (1, STANDARD_SET.index(row["benchmark"]), row["class"] != "float32", name), row


def describe_cell(row, base):
    """Describe a result and its ratio to another one, if there is one: "13.45 +-8 % (5) 0.82x uneven".

    Args:
        row, base: None: there is no such result.
    """
    if row is None:
        return ""
    reach = max(row["high"] - row["value"], row["value"] - row["low"]) / row["value"]  # NaN: unknown
    is_of_two = row["processes"] == 2  # the interval is not around the slower one
    interval = f"+-{format_number(100 * reach, '{:.2g}')} %" if reach > 0 and not is_of_two else ""
    count = f"({'slower of ' if is_of_two else ''}{row['processes']})"
    ratio = ratio_of(row, base) if base else None
    times = f"{ratio.throughput:.3g}x" if ratio else ""
    parts = interval, count, times, few_threads(row), row["flags"]
    return " ".join([format_number(row["value"]), *filter(None, parts)])


def draw_tables(columns):
    """Draw the first column with as many others as fit in the terminal, and with those left; return the tables."""
    labels, *others = columns
    width = shutil.get_terminal_size((10**6, 0)).columns - max(map(len, labels)) - 4
    count = max(1, width // max(len(cell) + 3 for column in others for cell in column))
    drawn = []
    for start in range(0, len(others), count):
        block = [labels, *others[start : start + count]]
        rows = [cells for cells in zip(*block, strict=True) if any(cells[1:])]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["| " + " | ".join(map(str.ljust, cells, widths)) + " |" for cells in rows]
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        drawn.append("\n".join(lines))
    return drawn
