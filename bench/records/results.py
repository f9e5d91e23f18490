"""Store rows: one append-only CSV per machine, one row per measured quantity.

An append is a single write under a file lock, so parallel runs do not mix their rows, and killing a run loses at most
the row that is being measured.
"""

import csv
import errno
import io
import os
import unicodedata
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from bench.records.columns import COLUMNS, SCHEMA
from bench.settings import SettingError

LOCK_SECONDS = 60
REQUIRED = {"schema", "run_id", "status", "machine", "workload", "model", "throughput"}  # else the file is not ours
# Control, format (bidirectional marks, zero-width spaces) and line-separator characters: a terminal obeys them, and
# two names that differ only in them look the same.
INVISIBLE = ("Cc", "Cf", "Zl", "Zp")


class ResultsError(SettingError):
    """A results file that cannot be used: one line with the file and the fix."""


def prepare(path):
    """Raise ResultsError unless rows can be appended to this file. Only the lock file is written.

    Called before anything is measured, so that no result is lost to a file that cannot be written.
    """
    path = Path(path)
    try:
        _read_header(path)
        nearest = next(place for place in path.parents if place.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            raise OSError(0, f"{nearest} is not a writable folder")
        if path.exists() and not os.access(path, os.W_OK):
            raise OSError(0, f"{path} is read-only")
        if path.parent.is_dir():
            with _locked(path):
                pass
    except OSError as error:
        raise ResultsError(
            f"RESULTS_DIR={str(path.parent)!r} cannot be written to ({error.strerror}): "
            "name a writable folder, or change its permissions"
        ) from None


def append(path, *rows):
    """Append rows, dicts with any of COLUMNS, all or none of them; None is written as blank.

    Raises:
        ResultsError: a foreign header, an incomplete last line, a stuck lock, a full disk.
        ValueError: a row has a key that is not a column.
    """
    path = Path(path)
    unknown = set().union(*rows) - set(COLUMNS)
    if unknown:
        raise ValueError(f"no such columns: {', '.join(sorted(unknown))}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            header = _read_header(path)
            columns = header + [column for column in COLUMNS if column not in header]
            if header and columns != header:  # of an earlier version: its rows are blank in the new columns
                old = [_to_line(row[column] for column in columns) for row in read(path)]
                with replace_file(path) as file:
                    file.write_text("".join([_to_line(columns), *old]), encoding="utf-8")
            lines = "".join(_to_line(row.get(column) for column in columns) for row in rows)
            _write_at_once(path, lines if header else _to_line(columns) + lines)
    except OSError as error:
        raise ResultsError(
            f"{path} cannot be written to ({error.strerror}): the row is lost; free space or change the permissions"
        ) from None


def read(path):
    """Return the rows of a file as dicts of text, blank for missing columns; [] for a missing or empty file.

    Raises:
        ResultsError: the file is foreign, damaged, not UTF-8 or of a newer version.
    """
    header, rows = _read_header(path), []
    if not header:
        return rows
    try:
        text = drop_invisible(Path(path).read_bytes().decode())
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        next(reader)
        for cells in filter(None, reader):
            if len(cells) != len(header):
                raise csv.Error(f"it has {len(cells)} cells, the header {len(header)}")
            rows.append(dict.fromkeys(COLUMNS, "") | dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise ResultsError(f"{path}: fix or delete its line {reader.line_num} ({error})") from None
    except UnicodeDecodeError:
        raise ResultsError(f"{path} is not UTF-8: save it as UTF-8") from None
    newer = {row["schema"] for row in rows} - {"", *map(str, range(1, SCHEMA + 1))}
    if newer:
        raise ResultsError(f"{path} was written by a newer version (schema {min(newer)}): update this repository")
    return rows


@contextmanager
def replace_file(path):
    """Yield a new file to write to, which then replaces `path`.

    A link is replaced and not followed, and a full disk leaves the old file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")  # which git ignores
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def drop_invisible(text):
    """Remove control, format and bidirectional characters, but not line ends."""
    found = {letter for letter in set(text) if unicodedata.category(letter) in INVISIBLE} - {"\n", "\r"}
    return text.translate(dict.fromkeys(map(ord, found)))


def _read_header(path):
    """Return the columns of a file, [] for a missing or empty one; raise ResultsError for a header that is not ours."""
    try:
        with open(path, "rb") as file:
            first = file.readline()
            if not first:
                return []
            file.seek(-1, os.SEEK_END)
            is_complete = file.read() == b"\n"
    except FileNotFoundError:
        return []
    columns = first.decode(errors="replace").strip().split(",")
    if not set(columns) >= REQUIRED:
        raise ResultsError(f"{path} has a foreign header: move the file away, or name another MACHINE")
    if repeated := [column for column in columns if columns.count(column) > 1]:
        raise ResultsError(f"{path} has the column {repeated[0]} twice: delete one of them")
    if unknown := [column for column in columns if column not in COLUMNS]:
        raise ResultsError(f"{path} was written by a newer version (column {unknown[0]}): update this repository")
    if not is_complete:
        raise ResultsError(f"{path}: its last line is incomplete: complete or delete that line, then run again")
    return columns


def _to_line(values):
    """Format cells as a line of CSV: None is blank, floats have six digits, text has no line breaks."""
    cells = []
    for value in values:
        text = f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
        cells.append(drop_invisible(" ".join(text.split())))
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _write_at_once(path, text):
    """Append text in one write; if the disk is full, nothing of it stays."""
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
