"""Store rows: one append-only CSV per machine, one row per measured quantity.

An append writes a new file under a lock and puts it in the place of the old one, so parallel runs do not mix their
rows, and a kill or a full disk leaves whole rows.
"""

import csv
import io
import os
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from bench.records.columns import COLUMNS, SCHEMA
from bench.settings import SettingError

LOCK_SECONDS = 60


class ResultsError(SettingError):
    """A results file that cannot be used: one line with the file and the fix."""


def path_of(folder, row):
    """Return the path of a row's file in the folder of results: that of its machine."""
    return Path(folder, f"{row['machine']}.csv")


def check_writable(folder, machines):
    """Raise ResultsError unless rows of these machines can be stored in this folder; called before any is measured."""
    append(Path(folder, ".csv"))  # without rows no such file appears
    for machine in machines:
        with writing(Path(folder, f"{machine}.csv")):  # its lock may be another user's
            pass


def append(path, *rows):
    """Append rows, dicts with any of COLUMNS, all or none of them; None is written as blank.

    Raises:
        ResultsError: a file that read() refuses, a stuck lock, a full disk.
        ValueError: a row has a key that is not a column.
    """
    with writing(path):
        write(path, [*read(path), *rows])  # stored rows gain the columns that are new


@contextmanager
def writing(path):
    """Hold the lock of a file, and raise ResultsError for an OSError in the block, with what cannot be written."""
    from filelock import FileLock  # only here: `make submit` reads files without any package

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=LOCK_SECONDS, mode=0o666):  # its Timeout is an OSError
            yield
    except OSError as error:
        reason = error.strerror or error
        raise ResultsError(
            f"{error.filename or path} cannot be written to ({reason}): free space, make it yours "
            "(`sudo chown -R $USER results`), or set RESULTS_DIR"
        ) from None


def read_others(folder, rows):
    """Return the readable rows of the file of these rows that other runs have stored; [] if it cannot be read."""
    try:
        stored = read(path_of(folder, rows[0]))
    except (ResultsError, OSError):
        return []
    own = {row["run_id"] for row in rows}
    return [row for row in stored if row["run_id"] not in own]


def to_block(rows):
    """Return rows as a block of text that `make receive` reads."""
    return f"```\n{to_text(rows)}{len(rows)} rows\n```"


def write(path, rows):
    """Replace a file's rows, in the form of append(); without rows only try it. OSError leaves the file as it was."""
    replace_file(path, to_text(rows).encode())
    if not rows:
        path.unlink()


def to_text(rows):
    """Return rows as the text of a file, with a header."""
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows({name: _to_text(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def replace_file(path, content):
    """Put bytes in the place of a file, or of a symbolic link; a kill or a full disk leaves what was there."""
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)  # may be a link, too
    with open(part, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


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
    # The difference has unknown columns, and those that are there twice.
    if wrong := set(Counter(header) - Counter(list(COLUMNS))) or {"schema", "machine"} - set(header):
        raise ResultsError(f"{path} is not a results file of this version (columns {sorted(wrong)[:3]}): move it away")
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


def _to_text(value):
    """Format a cell: None is blank, floats have six digits, text has no line breaks."""
    text = f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
    return " ".join(text.split())
