"""The standard set as tables in Markdown, to read in a terminal and to paste into a text.

`make compare` prints those of all machines, and `make all` that of the machine that it has measured.
"""

import shutil
import statistics

from bench.plots import frames
from bench.plots.frames import NUMBERS
from bench.records import report
from bench.records.columns import disturbing_flags, format_number
from bench.workloads.standard_set import STANDARD_SET

SIDE = ["machine", "framework", "device"]  # whose results are in a column
LEAST_WIDTH = 100  # letters of a table in a terminal; more columns are in the next one
NO_LIMIT = 10**6  # in a file there is one table
PEAKS = {"matmul-peak": "best matmul", "copy": "memory copy"}
WORKS = [*PEAKS.values(), *dict.fromkeys(f"{work.title} {work.phase}" for work in STANDARD_SET)]


def describe_set(folder, warn, side=None):
    """Describe the results of the standard set: a row for each work, a column for each SIDE; "" if there are none.

    Ratios are those to the first side, which has the most works. A disturbed result has none.

    Args:
        warn: called with a line for each file or row that cannot be read.
        side: the cells of the only SIDE; None: all that have results.
    """
    lines = frames.load(folder, warn).valid
    lines = lines.loc[~lines["published"]]
    if side:
        lines = lines.loc[(lines[SIDE] == side).all(axis=1)]
    sides = [(names, works) for names, mine in lines.groupby(SIDE) if (works := find_works(mine))]
    sides.sort(key=lambda each: -len(each[1]))
    if not sides:
        return ""
    rows = [("", "")]
    for numbers in NUMBERS:
        of_format = [(numbers, work) for work in WORKS if any((numbers, work) in works for _, works in sides)]
        rows += [(numbers, ""), *of_format] if of_format else []
    columns = [["", *(work for _, work in rows), "geometric mean of ratios"]]
    base = {}
    for (machine, *how), works in sides:
        rates = {row: line["value"] for row, line in works.items() if not disturbing_flags(line)}
        ratios = {row: rate / base[row] for row, rate in rates.items() if row in base}
        base = base or rates
        cells = {row: describe_cell(line, ratios.get(row)) for row, line in works.items()}
        cells |= {(numbers, ""): numbers for numbers, _ in works} | {("", ""): ", ".join(how)}
        of_models = [ratio for (_, work), ratio in ratios.items() if work not in PEAKS.values()]
        mean = f"{statistics.geometric_mean(of_models):.3g}x (n = {len(of_models)})" if of_models else ""
        columns.append([machine, *(cells.get(row, "") for row in rows), mean])
    units = {line["workload"]: line["per"] for _, works in sides for line in works.values()}
    (machine, *how), _ = sides[0]
    ratio = f"ratio to {machine} ({', '.join(how)}), " if sides[1:] else ""
    legend = f"Rate +- the farther end of its interval (number of processes), {ratio}flags. Units:"
    legend += f" {', '.join(f'{workload} {unit}' for workload, unit in units.items())}."
    return "\n\n".join([*draw_tables(columns), report.wrap(legend)])


def find_works(lines):
    """Return {(format of numbers, one of WORKS): its line} of the lines of a side."""
    peaks = lines[lines["model"].isin(PEAKS) & lines["precision"].isin(NUMBERS)].to_dict("records")
    works = {(line["precision"], PEAKS[line["model"]]): line for line in peaks}
    resident = frames.of_usual_size(lines).to_dict("records")
    for work in STANDARD_SET:
        works |= {(line["numbers"], f"{work.title} {work.phase}"): line for line in frames.of_set(resident, work)}
    return works


def describe_cell(line, ratio):
    """Describe a result: "13.45 +-8 % (5) 0.82x drift"."""
    reach = max(line["high"] - line["value"], line["value"] - line["low"]) / line["value"]  # NaN: unknown
    interval = f"+-{format_number(100 * reach, '{:.2g}')} %" if reach > 0 else ""
    parts = interval, f"({line['processes']})", f"{ratio:.3g}x" if ratio else "", line["flags"]
    return " ".join([format_number(line["value"]), *filter(None, parts)])


def draw_tables(columns):
    """Draw the first column with as many others as fit in the terminal, and with those left; return the tables."""
    width = max(LEAST_WIDTH, shutil.get_terminal_size((NO_LIMIT, 0)).columns)
    labels, *others = columns
    blocks = [[labels]]
    for column in others:
        if len(blocks[-1]) > 1 and sum(max(map(len, each)) + 3 for each in (*blocks[-1], column)) >= width:
            blocks.append([labels])
        blocks[-1].append(column)
    tables = []
    for block in blocks:
        rows = [cells for cells in zip(*block, strict=True) if any(cells[1:])]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["| " + " | ".join(map(str.ljust, cells, widths)) + " |" for cells in rows]
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        tables.append("\n".join(lines))
    return tables
