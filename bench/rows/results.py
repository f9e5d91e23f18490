"""Rows: one CSV a machine, append-only, one row per measured quantity.

An append is a single write under a file lock: parallel runs do not mix their rows, and a kill loses at most the row
being measured.
"""

import csv
import errno
import io
import os
import re
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from bench.machine.environment import ALLOCATOR_VARIABLES
from bench.rows.columns import COLUMNS, SCHEMA
from bench.settings import SettingError

LOCK_SECONDS = 60
CONTROLS = re.compile("[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # nobody writes them; a terminal obeys them
# Columns of every version: a header without one of them is foreign.
OURS = {"schema", "run_id", "status", "machine", "workload", "model", "throughput"}


class ResultsError(SettingError):
    """A results file that must not be written to: one line with the file and the cure."""


def prepare(path):
    """Raise ResultsError unless rows can be appended to this file; writes nothing but its lock.

    Called before anything is measured, so that no result is lost to a file that cannot take it.
    """
    path = Path(path)
    try:
        _columns_to_write(path)
        nearest = next(place for place in path.parents if place.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            raise OSError(0, f"{nearest} is no folder to write in")
        if path.exists() and not os.access(path, os.W_OK):
            raise OSError(0, f"{path} is read-only")
        if path.parent.is_dir():
            with _locked(path):
                pass
    except OSError as error:
        raise ResultsError(
            f"RESULTS_DIR={str(path.parent)!r} cannot be written to ({error.strerror}): "
            "name a folder that can, or change its permissions"
        ) from None


def append(path, row):
    """Append one row, a dict with any of COLUMNS; None is written as blank.

    Raises:
        ResultsError: a foreign header, an incomplete last line, a stuck lock, a full disk.
        ValueError: the row has a key that is not a column.
    """
    path = Path(path)
    unknown = set(row) - set(COLUMNS)
    if unknown:
        raise ValueError(f"no such columns: {', '.join(sorted(unknown))}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            columns = _columns_to_write(path)
            if columns != _columns_of(path):
                _migrate(path, columns)
            line = _as_line(columns or COLUMNS, row)
            _write_at_once(path, line if columns else _as_line(COLUMNS, {c: c for c in COLUMNS}) + line)
    except OSError as error:
        raise ResultsError(
            f"{path} cannot be written to ({error.strerror}): the row is lost, free or mend it"
        ) from None


def check(path):
    """Raise ResultsError for a file that is empty or foreign, of a newer version, or ends in the midst of a row."""
    if not _columns_to_write(path):
        raise ResultsError(f"{path} is empty")


def read(path):
    """The rows of a file as dicts of text, blank where a column is missing; raises ResultsError."""
    columns, rows = read_cells(path)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def read_cells(path):
    """(columns, rows): what read() gives, each row a list of text; raises ResultsError."""
    _columns_of(path)
    columns, rows = _parse(path)
    lacking = [column for column in COLUMNS if column not in columns]
    columns, rows = columns + lacking, [row + [""] * len(lacking) for row in rows]
    newer = {row[columns.index("schema")] for row in rows} - {"", *map(str, range(1, SCHEMA + 1))}
    if newer:
        raise ResultsError(f"{path} was written by a newer version (schema {min(newer)}): update this repository")
    note, allocator = columns.index("note"), columns.index("allocator")
    for row in rows:
        row[allocator] = row[allocator] or allocator_in(row[note])
    return columns, rows


def _parse(path):
    """(header, rows) of a CSV file; ResultsError names a line that has more or fewer cells than the header."""
    rows = []
    try:
        text = CONTROLS.sub("", Path(path).read_bytes().decode())
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        for row in filter(None, reader):
            rows.append(row)
            if len(row) != len(rows[0]):
                raise csv.Error(f"it has {len(row)} cells, the header {len(rows[0])}")
    except csv.Error as error:
        raise ResultsError(f"{path}: mend or delete its line {reader.line_num} ({error})") from None
    except UnicodeDecodeError:
        raise ResultsError(f"{path} is not UTF-8: save it as UTF-8") from None
    return (rows[0], rows[1:]) if rows else ([], [])


def allocator_in(note):
    """The allocator's cell of an older row, which has "NAME=value; NAME=value" in its note among other words."""
    return " ".join(part for part in note.split("; ") if part.partition("=")[0] in ALLOCATOR_VARIABLES)


def _columns_of(path):
    """The columns of a file of ours, [] where there is none or an empty one; raises ResultsError."""
    try:
        with open(path, "rb") as lines:
            header = lines.readline()
            if not header:
                return []
            lines.seek(-1, os.SEEK_END)
            complete = lines.read() == b"\n"
    except FileNotFoundError:
        return []
    columns = header.decode(errors="replace").strip().split(",")
    if not set(columns) >= OURS:
        raise ResultsError(f"{path} has a foreign header: move the file away, or name another MACHINE")
    if not complete:
        raise ResultsError(f"{path}: its last line is cut short: complete it or delete that line, then run again")
    return columns


def _columns_to_write(path):
    """The columns that the next row is to have: the file's own, then those that it lacks; [] where it is new."""
    columns = _columns_of(path)
    unknown = [column for column in columns if column not in COLUMNS]
    if unknown:
        raise ResultsError(f"{path} was written by a newer version (column {unknown[0]}): update this repository")
    return columns + [column for column in COLUMNS if column not in columns] if columns else []


def _migrate(path, columns):
    rows = read(path)
    beside = path.with_suffix(".migrating")
    try:
        text = _as_line(columns, {c: c for c in columns}) + "".join(_as_line(columns, row) for row in rows)
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _as_line(columns, row):
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow([_plain(row.get(column)) for column in columns])
    return line.getvalue()


def _plain(value):
    """One cell: blank for None, and no line break, so that a row is a line."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())


def _write_at_once(path, text):
    """One write; when the disk is full, nothing of it stays."""
    data = text.encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(file).st_size
        if os.write(file, data) != len(data):
            os.ftruncate(file, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def _locked(path):
    try:
        with FileLock(f"{path}.lock", timeout=LOCK_SECONDS):
            yield
    except Timeout:
        raise ResultsError(f"{path}.lock has been held for {LOCK_SECONDS} s: end the program that holds it") from None
