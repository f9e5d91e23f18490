"""Check the rows that a machine adds to results/, before they are sent and when they arrive.

    make submit           checks this machine's rows and prints how to send them; it sends nothing
    make check-results    checks what was added since BASE (default: the merge base with main or origin/main)

The files in the folder count, committed or not. Exit status: 0 no problems, 1 problems, one line each. Standard library
only.
"""

import csv
import getpass
import io
import os
import platform
import re
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from statistics import median_high, median_low
from types import SimpleNamespace

from bench import cli
from bench.host import environment
from bench.records import peaks
from bench.records.columns import COLUMNS, SCHEMA
from bench.records.flags import FLAGS
from bench.settings import ROOT, SettingError, read_settings

GENERATED = r"results/(README\.md|index\.html|(?:plots|cards)/[\w.-]+\.png)"
MACHINE_FILE = r"results/(?!published\.csv)[a-z0-9]+(-[a-z0-9]+)*\.csv"
NUMBER = r"[0-9]{1,30}(\.[0-9]{1,30})?(e[+-]?[0-9]{1,2})?"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"
HOME = r"/(?:home|Users|root)/|[A-Za-z]:\\Users\\|~/"
ALWAYS = ("run_id", "status", "framework", "workload", "model")
WITH_A_RATE = ("device", "device_name", "precision", "unit", "throughput", "items", "seconds")
SHOWN = ("device_name", "cpu_name", "cpu_count", "memory_gb", "os", "framework_version", "workload", "commit")
FREE_TEXT = ("note", "allocator")  # may quote the system
ROUNDING = 2e-5  # cells have six digits, and a product has three of them
AGAIN = "remove the row, and measure it again"


def find_faults(row, machine, names=()):
    """Yield (column, reason, fix) for what is wrong with a row; the first one counts, and later checks rely on it.

    Args:
        row: a dict of text with all COLUMNS.
        machine: the name of its file, without the ending.
        names: of this computer and its user, which must not be sent.
    """
    needed = (*ALWAYS, *(WITH_A_RATE if row["status"] == "ok" else ()))
    if row["schema"] != str(SCHEMA):
        yield "schema", f"must be {SCHEMA}", "measure again with the current version of this repository"
    if row["machine"] != machine:
        yield "machine", f"must be the name of the file, {machine}", "send one file for each machine"
    for name, column in COLUMNS.items():
        text = row[name]
        if not text.isprintable() or "\ufffd" in text:
            yield name, "must have printable characters in UTF-8", "remove the others"
        if text and (column.kind != "text" or name == "world_size") and not re.fullmatch(NUMBER, text):
            yield name, "must be a number", AGAIN
        if text and column.kind == "positive" and not float(text):
            yield name, "must be above 0", AGAIN
        if not text and name in needed:
            yield name, "must not be blank", AGAIN
        if re.search(HOME, text):
            yield name, "has the path of a home folder", "remove it from the cell"
        if name in FREE_TEXT and any(re.search(rf"\b{re.escape(own)}\b", text, re.I) for own in names):
            yield name, "has the name of this computer or of its user", "remove it from the cell"
    if not re.fullmatch(TIME, row["timestamp"]) or row["timestamp"] > datetime.now(UTC).isoformat():
        yield "timestamp", "must be a time in the past, in UTC", "set the clock, then measure again"
    if unknown := set(row["flags"].split()) - FLAGS.keys():
        yield "flags", f"has {min(unknown)}, which bench/records/flags.py does not list", AGAIN
    if row["source"]:
        yield "source", "must be blank", "leave the figures of others to results/published.csv"
    if row["status"] == "ok":
        yield from find_wrong_numbers(row)


def find_wrong_numbers(row):
    """Yield what does not fit in the numbers of a result, or exceeds its devices. Unknown numbers count as 0."""
    numbers = {name: float(row[name] or 0) for name, column in COLUMNS.items() if column.kind != "text"}
    n = SimpleNamespace(**numbers)
    low, high = n.throughput_low or n.throughput, n.throughput_high or n.throughput
    if not low * (1 - ROUNDING) <= n.throughput <= high * (1 + ROUNDING):
        yield "throughput", f"must be within its interval, {low:g} to {high:g}", AGAIN
    if not re.fullmatch(f"({NUMBER}( |$))*", row["process_rates"]):
        yield "process_rates", "must be numbers with a space between them", AGAIN
    rates = [float(text) for text in row["process_rates"].split()] or [n.throughput]
    if not any(is_equal(n.throughput, median(rates), 1e-3) for median in (median_low, median_high)):
        yield "process_rates", f"must have the median {n.throughput:g}, which is the throughput", AGAIN
    # NUM_IMAGES leaves some steps over after the last window, and a whole epoch has no windows.
    steps, has_tail = n.windows * n.steps_per_window * (n.step_seconds_median > 0), row["stop_reason"] == "num_images"
    if not steps or has_tail or row["scope"] in ("input", "end_to_end"):
        expected, how = n.items / n.seconds, "items / seconds"
    else:
        expected, how = n.items / steps / n.step_seconds_median, "items of a step / step_seconds_median"
    if not is_equal(n.throughput, expected):
        yield "throughput", f"must be {how} = {expected:.6g}", AGAIN
    if not is_equal(n.tflops, tflops := n.throughput * n.flops_per_item / 1e12):
        yield "tflops", f"must be throughput x flops_per_item / 10**12 = {tflops:.6g}", AGAIN
    if steps and not is_equal(n.bandwidth, bandwidth := n.throughput * steps / n.items * n.bytes_per_step / 1e9):
        yield "bandwidth", f"must be bytes_per_step / seconds of a step / 10**9 = {bandwidth:.6g}", AGAIN
    if peaks.is_implausible(row | numbers):
        fix = "remove the row; if it is right, add the chip to bench/records/peaks.csv or open an issue"
        yield "throughput", "is more than such a chip can do", fix


def is_equal(value, expected, rounding=ROUNDING):
    return abs(value - expected) <= rounding * expected


class Repository:
    """The git repository of a folder, read only."""

    def __init__(self, root=ROOT, base=None):
        self.root = Path(root)
        self.tip, self.base = "HEAD", None  # of the main branch, and where the folder's branch left it
        for tip in [base] if base else ["main", "origin/main"]:
            if commit := self.git("merge-base", tip, "HEAD"):
                self.tip, self.base = tip, commit.strip()

    def git(self, *command):
        """Return what a git command prints; None if it fails."""
        return environment.read_command("git", "-C", str(self.root), *command)

    def changes(self):
        """Return {path below results/: "A", "M", "D" ...} since the base."""
        cells = (self.git("diff", "--name-status", "--no-renames", "-z", self.base, "--", "results") or "").split("\0")
        new = self.git("ls-files", "--others", "--exclude-standard", "-z", "--", "results") or ""
        return dict(zip(cells[1::2], cells[:-1:2], strict=True)) | dict.fromkeys(new.split("\0")[:-1], "A")

    def read(self, path, commit=None):
        """Return the [(line, row)] of a CSV file in a commit, by default in the folder; raises ValueError."""
        if commit:
            text = self.git("show", f"{commit}:{path}") or ""
        else:
            text = (self.root / path).read_bytes().decode(errors="replace")
        reader, rows = csv.DictReader(io.StringIO(text, newline=""), strict=True, restkey="a cell too many"), []
        try:
            for row in reader:
                if unknown := row.keys() - COLUMNS.keys():
                    raise csv.Error(f"{min(unknown)!r} is not a column of this version: move the file away")
                if None in row.values():
                    raise csv.Error("it has fewer cells than the header: restore or remove it")
                rows.append((reader.line_num, dict.fromkeys(COLUMNS, "") | row))
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from None
        return rows

    def find_fault(self, commit):
        """Return (column, reason, fix) unless a row's commit has the programs of a commit of the main branch."""
        shared = re.fullmatch("[0-9a-f]{12,40}", commit) and self.git("merge-base", self.tip, commit)
        # A later commit may have added rows.
        if not shared or self.git("diff", "--quiet", shared.strip(), commit, "--", ".", ":!results") is None:
            return "commit", "must be in the main branch, without changes", "measure again in a clone of that branch"
        return None


def check_file(repository, path, names=()):
    """Check the rows that a machine's file adds to the base; returns (those rows, problems as lines)."""
    before = []
    with suppress(ValueError):  # of an earlier schema
        before = repository.read(path, repository.base) if repository.base else []
    try:
        rows = repository.read(path)
    except ValueError as error:
        return [], [str(error)]
    found, faults = {}, {commit: repository.find_fault(commit) for commit in {row["commit"] for _, row in rows}}
    for index, (line, row) in enumerate(rows):
        if index >= len(before):
            fault = next(find_faults(row, PurePosixPath(path).stem, names), faults[row["commit"]])
        elif changed := [name for name in COLUMNS if row[name] != before[index][1][name]]:
            was = before[index][1][changed[0]]
            fault = changed[0], f"was {was!r} when it was published", "restore it, and add rows only at the end"
        else:
            fault = None
        if fault:
            column, reason, fix = fault
            found.setdefault(f"{column}={row[column][:80]!r} {reason}: {fix}", []).append(line)
    problems = [
        f"{path}, line {lines[0]}: {words}" + f" (and {len(lines) - 1} more)" * (len(lines) > 1)
        for words, lines in found.items()
    ]
    if len(rows) < len(before):
        problems.append(f"{path}, line {before[len(rows)][0]}: rows are missing that were published: restore them")
    return rows[len(before) :], problems


def check_results(repository):
    """Check everything that changed below results/; returns (number of added rows, problems as lines)."""
    if not repository.base:
        raise SettingError("BASE has no common commit with this branch: fetch it, or name another one")
    count, problems = 0, []
    for path, change in repository.changes().items():
        if re.fullmatch(MACHINE_FILE, path) and change in ("A", "M"):
            added, found = check_file(repository, path)
            count, problems = count + len(added), problems + found
        elif not re.fullmatch(GENERATED, path):
            problems.append(f"{path!r} is removed, or is not a machine's file of rows: restore it, or leave it out")
    return count, problems


def own_names():
    """Return the names of this computer and its user, except those that are everybody's."""
    names = {platform.node().partition(".")[0]}
    with suppress(KeyError, OSError):  # a container's user without a name
        names.add(getpass.getuser())
    return names - {"", "root", "user", "localhost"}


def submit(settings, repository):
    """Check this machine's rows and print how to send them; returns the problems as lines."""
    machine = environment.describe_host(settings.machine).machine
    file = settings.results_dir / f"{machine}.csv"
    if not file.is_file():
        raise SettingError(f"MACHINE={machine!r} has no file {cli.display_path(file)}: run `make image` first")
    path = os.path.relpath(file.resolve(), repository.root.resolve())
    added, problems = check_file(repository, path, own_names())
    if problems or not added:
        return problems or [f"{path} adds no row to the main branch: measure something first"]
    print(f"Rows of {machine}\n")
    for name in SHOWN:
        print(f"{name}: {', '.join(dict.fromkeys(row[name] for _, row in added if row[name]))}")
    branch = f"rows-{machine}"
    print(f"\n{path}: {len(added)} new rows, no problems. Nothing has been sent. To send them:")
    print(f"1. git switch {branch} || git switch -c {branch}; git add {path} && git commit -m 'Rows of {machine}'")
    print("2. push that branch to your fork and open a pull request with the text above")
    print(f"3. or, without git: open the issue form 'Add my machine' on GitHub and attach {path}")
    return []


def main():
    """Run `check` or `submit`, as the command line says; returns the exit status."""
    if sys.argv[1:] == ["submit"]:
        problems = submit(read_settings("submit"), Repository())
    else:
        count, problems = check_results(Repository(ROOT, os.environ.get("BASE")))
        print(f"{count} new rows, {len(problems) or 'no'} problems")
    for line in problems:
        print(line, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
