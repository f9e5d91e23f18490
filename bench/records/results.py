"""Store rows: one CSV file for each machine, one row for each measured quantity.

Rows are added in one write at the end of a file, under its lock. Parallel runs do not mix their rows, a kill leaves
whole rows, and a full disk leaves the file as it was.
"""

import csv
import errno
import io
import math
import os
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from bench.records.columns import COLUMNS, MOST_LETTERS, find_fault, make_printable
from bench.settings import ROOT, SettingError

PUBLISHED = ROOT / "results"  # the folder of the published results, whatever RESULTS_DIR is
LOCK_SECONDS = 60
HEADER = ",".join(COLUMNS) + "\n"
csv.field_size_limit(2**30)  # find_fault() refuses a longer cell


class ResultsError(SettingError):
    """A results file that cannot be used: one line with the file and the fix."""


def path_of(folder, row):
    """Return the path of a row's file in the folder of results: that of its machine."""
    return Path(folder, f"{row['machine']}.csv")


def list_files(folder):
    """List the CSV files of a folder, and the published results if it has none, without hidden ones (._a.csv)."""
    files = {path.name: path for path in (*PUBLISHED.glob("published.csv"), *sorted(Path(folder).glob("*.csv")))}
    return [path for name, path in files.items() if not name.startswith(".")]


def display_path(path):
    """Return a path as a user can type it: relative if it is below the working directory, else absolute."""
    relative = os.path.relpath(path)
    return os.path.abspath(path) if relative.startswith("..") else relative


def check_writable(folder, machines):
    """Raise ResultsError unless rows of these machines can be stored in this folder; called before any is measured."""
    for machine in machines:
        append(Path(folder, f"{machine}.csv"))


def append(path, *rows):
    """Append rows, dicts with any of COLUMNS, all or none of them; None is written as blank.

    A file with another header (other columns, or saved by a spreadsheet) is written anew first. Without rows, nothing
    else is written.

    Raises:
        ResultsError: a file that read() refuses or is not a regular one, a stuck lock, a full disk.
    """
    from filelock import FileLock  # only here: `make submit` reads files without any package

    path = Path(os.path.realpath(path))  # a symbolic link stays one
    with explaining(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=LOCK_SECONDS, mode=0o666):  # its Timeout is an OSError
            text = read_text(path)
            if text and not text.startswith(HEADER):
                stored, left_out = parse(text, path)
                if left_out:  # they would be lost
                    raise ResultsError(f"{left_out}: fix or delete them, or move the file away")
                text = to_text(stored, [])
                replace_file(path, text.encode())
            before = HEADER if not text else "" if text.endswith("\n") else "\n"
            add_bytes(path, (before + to_text([], rows).removeprefix(HEADER)).encode() if rows else b"")


def add_bytes(path, content):
    """Write bytes at the end of a file, all or none of them; a file that is then empty is removed.

    Raises:
        OSError: the file has its old length.
    """
    with open(path, "ab", buffering=0) as file:  # a buffer would be written again on closing
        size = file.tell()
        try:
            if file.write(content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise
        finally:
            if not os.fstat(file.fileno()).st_size:
                path.unlink()


@contextmanager
def explaining(path):
    """Raise ResultsError for an OSError in the block, which writes a file of this path."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ResultsError(
            f"{error.filename or path} cannot be written to ({reason}): free space, make it yours "
            "(`sudo chown -R $USER results`), or set RESULTS_DIR to a folder"
        ) from None


def to_text(stored, rows):
    """Return the text of a file: its header, rows that read() returned, and new rows."""
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(stored)
    table.writerows({name: to_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def replace_file(path, content):
    """Put bytes in the place of a file, or of a symbolic link; a kill or a full disk leaves what was there."""
    part = path.with_suffix(".part")
    with explaining(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)  # may be a link, too
        with open(part, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)


def read_text(path):
    """Return the text of a file, "" if it is missing; bytes that are not UTF-8 are kept as surrogates."""
    path = Path(path)
    if not path.exists():
        return ""
    if not path.is_file():
        raise ResultsError(f"{path} is not a regular file: move it away, or set RESULTS_DIR")
    return path.read_bytes().decode(errors="surrogateescape")


def read_files(paths, warn):
    """Return the rows of several files; warn() also gets a line for each file that is left out."""
    rows = []
    for path in paths:
        try:
            rows += read(path, warn)
        except (ResultsError, OSError) as error:
            warn(f"left out: {error}")
    return rows


def read(path, warn=lambda line: None):
    """Return the rows of a file as dicts of text with all COLUMNS in order; [] for a missing or empty file.

    Lines that do not fit are left out, and warn() gets one line that says how many, and what is wrong with the first.

    Raises:
        ResultsError: the file is foreign, or of another version.
    """
    rows, left_out = parse(read_text(path), path)
    if left_out:
        warn(left_out)
    return rows


def parse(text, path):
    """Return (rows of a file's text as read() returns them, what read() says of lines that are left out or "").

    Spreadsheets write a byte order mark and other delimiters. A later header, as of a file that `cat >>` added, names
    the columns of the lines below it.
    """
    lines = text.removeprefix("\ufeff").splitlines() or [""]
    delimiter = max(",;\t", key=lines[0].count)
    header, rows, faults = [], [], []
    for number, line in enumerate(lines, 1):
        cells = next(csv.reader([line], delimiter=delimiter), [])
        if not any(cells):
            continue
        if not header or {"schema", "machine"} <= set(cells):
            header = cells
            if wrong := sorted({"schema", "machine"} - set(header) or Counter(header) - Counter([*COLUMNS])):
                why = f"it begins with {header[0][:40]!r}; missing, unknown or twice: {wrong[0][:40]!r}"
                fix = "name one such as results/<machine>.csv, or move it away"
                raise ResultsError(f"{path} is not a results file of this version ({why}): {fix}")
            continue
        row = dict.fromkeys(COLUMNS, "") | dict(zip(header, cells, strict=False))
        is_whole = len(cells) == len(header) and line.count('"') % 2 == 0
        fault = find_fault(row) if is_whole else "it is cut, or has a cell or a quote too many"
        if fault:
            faults.append(f"line {number}: {fault}")
        else:
            rows.append(row)
    count = f"{len(faults)} of {len(faults) + len(rows)} rows"
    return rows, f"{path}: {count} cannot be read and are left out, first {faults[0]}" if faults else ""


def to_cell(value):
    """Format a cell: unknown is blank, floats have six digits, text is printable and has no line breaks."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return make_printable(f"{value:.6g}" if isinstance(value, float) else str(value))[:MOST_LETTERS]
