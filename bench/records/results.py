"""Store rows: one append-only CSV per machine, one row per measured quantity.

An append is a single write under a file lock, so parallel runs do not mix their rows, and a kill or a full disk leaves
whole rows.
"""

import csv
import errno
import io
import os
from pathlib import Path

from bench.records.columns import COLUMNS, SCHEMA
from bench.settings import SettingError

LOCK_SECONDS = 60


class ResultsError(SettingError):
    """A results file that cannot be used: one line with the file and the fix."""


def prepare(path):
    """Raise ResultsError unless rows can be appended to this file.

    Called before anything is measured, so that no result is lost.
    """
    try:
        read(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path), open(path, "a"):
            pass
    except OSError as error:
        raise ResultsError(
            f"RESULTS_DIR={str(path.parent)!r} cannot be written to ({error.strerror or error}): "
            "name a writable folder, or change its permissions"
        ) from None


def append(path, *rows):
    """Append rows, dicts with any of COLUMNS, all or none of them; None is written as blank.

    Raises:
        ResultsError: a file that read() refuses, a stuck lock, a full disk.
        ValueError: a row has a key that is not a column.
    """
    if unknown := set().union(*rows) - set(COLUMNS):
        raise ValueError(f"no such columns: {', '.join(sorted(unknown))}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            stored = read(path)
            if stored and path.read_text().partition("\n")[0] != _to_line(COLUMNS).strip():  # new columns
                part = path.with_suffix(".part")
                part.write_text("".join([_to_line(COLUMNS), *(_to_line(row.values()) for row in stored)]))
                part.replace(path)
            lines = "".join(_to_line(row.get(column) for column in COLUMNS) for row in rows)
            _write_at_once(path, lines if stored else _to_line(COLUMNS) + lines, keeps=bool(stored))
    except OSError as error:
        reason = error.strerror or error
        raise ResultsError(f"{path} cannot be written to ({reason}): free space or change the permissions") from None


def read(path):
    """Return the rows of a file as dicts of text with all COLUMNS in order; [] for a missing or empty file.

    Raises:
        ResultsError: the file is foreign, damaged, or of another version.
    """
    try:
        return parse(Path(path).read_bytes().decode(), path)
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise ResultsError(f"{path} is not UTF-8: save it as UTF-8") from None


def parse(text, path):
    """Return the rows of a file's text, as read() does; `path` is for messages."""
    header, *lines = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    if not lines:
        return []
    if unknown := set(header) - set(COLUMNS) or {"schema", "machine"} - set(header):
        raise ResultsError(f"{path} is not a results file of this version ({unknown}): move it away")
    rows = []
    for number, cells in enumerate(lines, 2):
        if len(cells) != len(header):
            raise ResultsError(f"{path}: fix or delete its line {number}: {len(cells)} cells instead of {len(header)}")
        row = dict.fromkeys(COLUMNS, "") | dict(zip(header, cells, strict=True))
        if row["schema"] != str(SCHEMA):
            raise ResultsError(f"{path}: line {number} has schema {row['schema']!r}, not {SCHEMA}: move the file away")
        rows.append(row)
    if not text.endswith("\n"):
        raise ResultsError(f"{path}: its last line is incomplete: complete or delete that line, then run again")
    return rows


def _to_line(values):
    """Format cells as a line of CSV: None is blank, floats have six digits, text has no line breaks."""
    texts = (f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value) for value in values)
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow([" ".join(text.split()) for text in texts])
    return line.getvalue()


def _write_at_once(path, text, keeps):
    """Append text in one write, or begin the file with it; if the disk is full, nothing of it stays."""
    data = text.encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | (0 if keeps else os.O_TRUNC), 0o644)
    try:
        size = os.fstat(file).st_size
        if os.write(file, data) != len(data):
            os.ftruncate(file, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file)
    finally:
        os.close(file)


def _locked(path):
    from filelock import FileLock  # only here: `make submit` reads files without any package

    return FileLock(f"{path}.lock", timeout=LOCK_SECONDS)  # its Timeout is an OSError
