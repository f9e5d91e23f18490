"""Store rows: one CSV file for each machine, one row for each measured quantity.

A file gets rows under its lock, by a new file in its place. Parallel runs do not mix their rows, and a kill or a full
disk leaves the file as it was. tables.py reads them.
"""

import csv
import io
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

from bench.records.columns import COLUMNS
from bench.settings import ROOT, SettingError

PUBLISHED = ROOT / "results"  # the folder of the published results, whatever RESULTS_DIR is
LOCK_SECONDS = 60
HEADER = ",".join(COLUMNS) + "\n"


class ResultsError(SettingError):
    """A results file that cannot be used: one line with the file and the fix."""


def path_of(folder, row):
    """Return the path of a row's file in the folder of results: that of its machine."""
    return Path(folder, f"{row['machine']}.csv")


def display_path(path):
    """Return a path as a user can type it: relative if it is below the working directory, else absolute."""
    relative = os.path.relpath(path)
    return os.path.abspath(path) if relative.startswith("..") else relative


def append(path, *rows):
    """Append rows, dicts with any of COLUMNS, all or none of them; without any, find out whether rows can be stored.

    A file with another header (other columns, or saved by a spreadsheet) gets today's.

    Raises:
        ResultsError: a file that cannot be read in full, or is a folder, a stuck lock, a full disk.
    """
    from filelock import FileLock  # only here: a child never writes a file

    path = Path(os.path.realpath(path))  # a symbolic link stays one
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=LOCK_SECONDS, mode=0o666):  # its Timeout is an OSError
            text = read_text(path)
            if text and not text.startswith(HEADER):
                found, unfit = parse(text, path)
                if unfit:  # they would be lost
                    fix = "fix or delete it, or move the file away"
                    raise ResultsError(f"{path}: line {min(unfit)} has {unfit[min(unfit)][1]}: {fix}")
                text = HEADER + to_text(dict(zip(COLUMNS, cells, strict=True)) for cells in found.values())
            if text or rows:
                line_end = "" if text.endswith("\n") or not text else "\n"
                text = (text or HEADER) + line_end + to_text(rows)
                replace_file(path, text.encode(errors="surrogateescape"))
    except OSError as error:
        # Without flock, also a lock that was copied is taken.
        fix = f"free space, delete {path.name}.lock if no other command runs, or set RESULTS_DIR to your own folder"
        name = error.filename or path
        reason = error.strerror or "its lock stays taken"
        raise ResultsError(f"{name} cannot be written to ({reason}): {fix}") from None


def to_text(rows):
    """Return rows as lines of a file, without its header: unknown is blank, floats have six digits."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    for row in rows:
        cells = {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()}
        writer.writerow({name: "" if cell in ("nan", "inf", "-inf") else cell for name, cell in cells.items()})
    return text.getvalue()


def replace_file(path, content):
    """Replace a file or a symbolic link, whose mode and owner stay; a kill or a full disk leaves what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)  # may be a link, too
    with open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    with suppress(OSError):  # there was none, or it has another owner
        old = path.stat()
        part.chmod(old.st_mode & 0o777)
        os.chown(part, -1, old.st_gid)
        os.chown(part, old.st_uid, -1)
    part.replace(path)


def read_text(path):
    """Return the text of a file, "" if it is missing; bytes that are not UTF-8 are kept as surrogates."""
    return path.read_bytes().decode(errors="surrogateescape") if path.exists() else ""


def parse(text, path):
    """Return ({number of a line: its cells, texts of all COLUMNS}, {that of one left out: (its run_id, what it has)}).

    Spreadsheets write a byte order mark, `sep=;`, other delimiters. A later header, as of a file that `cat >>` added,
    names the columns of the lines below it. No cell has a line break.

    Raises:
        ResultsError: the file is foreign, or of another version.
    """
    lines = text.removeprefix("\ufeff").splitlines() or [""]
    delimiter = max(",;\t", key=lines[0].count)
    header, rows, unfit = [], {}, {}
    for number, line in enumerate(lines, 1):
        cells = next(csv.reader([line], delimiter=delimiter), [])
        if not any(cells) or cells[0].startswith("sep="):
            continue
        if not header or {"schema", "machine"} <= set(cells):
            if wrong := sorted({"schema", "machine"} - set(cells) or Counter(cells) - Counter([*COLUMNS])):
                why = f"missing, unknown or twice: {wrong[0][:40]!r}"
                raise ResultsError(f"{path} is not a results file of this version ({why}): move it away")
            header = cells
        elif line.count('"') % 2 or len(cells) != len(header) or not "".join(cells).isprintable():
            unfit[number] = dict(zip(header, cells, strict=False)).get("run_id"), "other cells than its header"
        else:
            row = dict(zip(header, cells, strict=True))
            rows[number] = [row.get(name, "") for name in COLUMNS]
    return rows, unfit
