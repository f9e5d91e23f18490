"""Store rows: one CSV file for each machine, one row for each measured quantity.

An append writes a new file under a lock and puts it in the place of the old one, so parallel runs do not mix their
rows, and a kill or a full disk leaves whole rows.
"""

import csv
import io
import math
import os
import textwrap
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.records.columns import COLUMNS, MOST_LETTERS, find_fault, make_printable
from bench.settings import ROOT, SettingError

PUBLISHED = ROOT / "results"  # the folder of the published results, whatever RESULTS_DIR is
LOCK_SECONDS = 60
csv.field_size_limit(2**30)  # find_fault() refuses a longer cell


class ResultsError(SettingError):
    """A results file that cannot be used: one line with the file and the fix."""


class Line(NamedTuple):
    """A line of a results file below its header."""

    number: int  # in the file, from 1
    text: str
    row: dict[str, str]  # all COLUMNS in order
    fault: tuple[str, str] | None  # (column or "" if the number of cells is wrong, reason and fix): it cannot be read


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
    append(Path(folder, ".csv"))  # without rows it is written and removed
    for machine in machines:
        with writing(Path(folder, f"{machine}.csv")):  # its lock may be another user's
            pass


def append(path, *rows):
    """Append rows, dicts with any of COLUMNS, all or none of them; None is written as blank.

    Lines that read() leaves out stay. Stored rows gain the new columns. Without rows, it only tries to write.

    Raises:
        ResultsError: a file that read() refuses, a stuck lock, a full disk.
        ValueError: a row has a key that is not a column.
    """
    with writing(path):
        lines = parse(read_text(path), path)
        replace_file(path, to_text(lines, rows).encode(errors="surrogateescape"))
        if not (lines or rows):
            path.unlink()


@contextmanager
def writing(path):
    """Hold the lock of a file, and raise ResultsError for an OSError in the block, with what cannot be written."""
    from filelock import FileLock  # only here: `make submit` reads files without any package

    with explaining(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=LOCK_SECONDS, mode=0o666):  # its Timeout is an OSError
            yield


@contextmanager
def explaining(path):
    """Raise ResultsError for an OSError in the block, which writes a file of this path."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise ResultsError(f"{error.filename or path} is a file, but has to be a folder: set RESULTS_DIR") from None
    except OSError as error:
        reason = error.strerror or error
        raise ResultsError(
            f"{error.filename or path} cannot be written to ({reason}): free space, make it yours "
            "(`sudo chown -R $USER results`), or set RESULTS_DIR"
        ) from None


def to_text(lines, rows):
    """Return the text of a file: a header, the Lines that were there, and new rows."""
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    for line in lines:
        if line.fault and not line.fault[0]:
            text.write(f"{line.text}\n")
        else:
            table.writerow(line.row)
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
    return Path(path).read_bytes().decode(errors="surrogateescape") if Path(path).exists() else ""


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

    A row that cannot be read is left out, and warn() gets a line for each kind of fault.

    Raises:
        ResultsError: the file is foreign, or of another version.
    """
    lines = parse(read_text(path), path)
    for words in describe_faults(path, [(line, line.fault) for line in lines if line.fault]):
        warn(words)
    return [line.row for line in lines if not line.fault]


def parse(text, path):
    """Return the Lines of a file's text, without blank ones and headers; raises ResultsError as read() does.

    A later header, as of a file that `cat >>` added, names the columns of the lines below it.
    Spreadsheets write a byte order mark, other line ends and delimiters. A quote without its end ends with the line.
    """
    texts = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    delimiter = max(",;\t", key=texts[0].count)
    header, lines = [], []
    blank = dict.fromkeys(COLUMNS, "")
    is_published = Path(path).stem == "published"
    for number, line in enumerate(texts, 1):
        cells = next(csv.reader([line], delimiter=delimiter), [])
        if not any(cells):
            continue
        if not header or {"schema", "machine"} <= set(cells):
            header = cells
            if wrong := sorted({"schema", "machine"} - set(header) or Counter(header) - Counter([*COLUMNS])):
                names = [name[:40] for name in wrong[:3]]
                why = f"it begins with {header[0][:40]!r}, and columns are missing, unknown or twice: {names}"
                fix = "name one such as results/<machine>.csv, or move it away"
                raise ResultsError(f"{path} is not a results file of this version ({why}): {fix}")
            continue
        row = blank | {name: cell for name, cell in zip(header, cells, strict=False) if name in COLUMNS}
        fault = find_fault(row, is_published)
        if len(cells) != len(header):
            fault = "", f"{len(cells)} cells, not {len(header)}"
        lines.append(Line(number, line, row, fault and (fault[0], f"{fault[1]}: fix or delete the line")))
    return lines


def describe_faults(path, faults):
    """Yield a line for each fault, (Line, (column, reason and fix)): the first value, the reason and the fix."""
    lines_by_fault = {}
    for line, fault in faults:
        lines_by_fault.setdefault(fault, []).append(line)
    for (name, words), lines in lines_by_fault.items():
        numbers = textwrap.shorten(", ".join(str(line.number) for line in lines), 50, placeholder=" ...")
        value = f"{name}={lines[0].row[name][:80]!r} " if name else ""
        yield f"{path}, {'line' if len(lines) == 1 else 'lines'} {numbers}: {value}{words}"


def to_cell(value):
    """Format a cell: unknown is blank, floats have six digits, text is printable and has no line breaks."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return make_printable(f"{value:.6g}" if isinstance(value, float) else str(value))[:MOST_LETTERS]
