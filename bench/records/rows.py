"""Make rows, {column: value}: what one process measured of one quantity."""

import os
from datetime import UTC, datetime

from bench.host.environment import name_machine
from bench.process import BEGUN
from bench.records.columns import COLUMNS, SCHEMA, WORK
from bench.settings import DECLARED
from bench.timing import METHOD_VERSION

MOST_LETTERS = 10_000  # in a cell


def work_cells(settings, workload, scope):
    """Return the cells that describe the work: {column: value}.

    A setting fills the column of its own name, if there is one: DEPTH fills `depth`. Those of the workload replace it.
    """
    has_pipeline = scope in ("input", "end_to_end")
    names = [name for name in (*WORK, "seed") if name in DECLARED]
    if has_pipeline:
        names.append("num_workers")
    return {
        **{name: getattr(settings, name) for name in names},
        "method_version": METHOD_VERSION,
        "workload": workload.name,
        "model": workload.model,
        "scope": scope,
        "unit": f"{workload.unit}/s",
        **workload.columns,
        **({"data": "jpeg_q96"} if has_pipeline else {}),
    }


def machine_of(row):
    """Return the name of a row's machine without MACHINE: that of its GPU, or of its CPU; a Mac has one name for both.

    Raises:
        ValueError: a GPU's name has no letters or digits.
    """
    gpu_name = None if row["device"] in (None, "", "cpu", "mps") else row["device_name"]
    return name_machine(row, gpu_name)


def make_rows(host, lines, death=None, **run_cells):
    """Make the row of each work from its last line that has a result: typed cells.

    Args:
        lines: those of a child.
        death: the status and the note of the row of what the child had begun when it died; None if it did not.
        run_cells: as of complete_row().
    """
    found = [line for line in lines if line.get("status", BEGUN) != BEGUN]
    if death and lines and lines[-1].get("status") == BEGUN:
        status, note = death
        found.append(lines[-1] | {"status": status, "note": note, "throughput": None})
    rows = [complete_row(host, line, **run_cells) for line in found]
    return list({tuple(row[name] for name in WORK): row for row in rows}.values())


def complete_row(host, line, **run_cells):
    """Return the row of a child's line: every column, with the cells of the host.

    Args:
        host: as read_host() returns it.
        run_cells: the cells run_id, process and group.
    """
    row = dict.fromkeys(COLUMNS) | {name: cell for name, cell in host.items() if name in COLUMNS}
    row |= {"schema": SCHEMA, "timestamp": datetime.now(UTC).isoformat(timespec="seconds"), "note": "", "flags": ""}
    row |= run_cells | line
    row["machine"] = row["machine"] or machine_of(row)
    row["device_name"] = row["device_name"] or row["cpu_name"]
    if row["device"] != "cuda":
        row["power_limit_watts"] = None
    row["note"] = row["note"].replace(f"{os.path.expanduser('~')}/", "~/")  # as a compiler's command quotes it
    for name, text in row.items():
        if isinstance(text, str):  # a compiler's colours control a terminal, and a cell has no line breaks
            words = " ".join(text[:MOST_LETTERS].split())
            row[name] = "".join(letter if letter.isprintable() else "\ufffd" for letter in words)
    return row
