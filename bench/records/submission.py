"""Check the rows that a machine adds to results/, before they are sent and when they arrive.

    make submit           checks this machine's rows and prints how to send them; it sends nothing
    make check-results    checks what was added since BASE (default: the merge base with main or origin/main)

The files in the folder count, committed or not. Exit status: 0 no problems, 1 problems, one line each. Standard library
only.
"""

import getpass
import os
import platform
import re
import sys
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

from bench import cli
from bench.host import environment
from bench.records import peaks, results
from bench.records.columns import COLUMNS
from bench.settings import ROOT, SettingError, read_settings

NUMBER = r"[0-9]{1,30}(\.[0-9]{1,30})?(e[+-]?[0-9]{1,2})?"
HOME = r"/(?:home|Users|root)/|[A-Za-z]:\\Users\\"
NEEDED = ("framework", "workload", "model", "device", "device_name", "unit", "throughput", "items", "seconds")
SHOWN = ("device_name", "cpu_name", "cpu_count", "memory_gb", "os", "framework_version", "workload", "commit")
FREE_TEXT = ("note", "allocator")  # may quote the system
ROUNDING = 2e-5  # cells have six digits, and a product has three of them
AGAIN = "remove the row, and measure it again"
EDITED = "the row was published, and is changed or missing: restore it, and add rows only at the end"


def find_faults(row, machine, names=()):
    """Yield (column, reason and fix) for what is wrong with a row; later checks rely on the earlier ones.

    Args:
        row: a dict of text with all COLUMNS.
        machine: the name of its file, without the ending.
        names: of this computer and its user, which must not be sent.
    """
    if row["machine"] != machine:
        yield "machine", f"must be the name of the file, {machine}: send one file for each machine"
    if row["source"]:
        yield "source", "must be blank: leave the figures of others to results/published.csv"
    for name, column in COLUMNS.items():
        text = row[name]
        if text and (column.kind != "text" or name == "world_size") and not re.fullmatch(NUMBER, text):
            yield name, f"must be a number: {AGAIN}"
        if text and column.kind == "positive" and not float(text):
            yield name, f"must be above 0: {AGAIN}"
        if not text and name in NEEDED and row["status"] == "ok":
            yield name, f"must not be blank: {AGAIN}"
        if re.search(HOME, text):
            yield name, "has the path of a home folder: remove it from the cell"
        if name in FREE_TEXT and any(re.search(rf"\b{re.escape(own)}\b", text, re.I) for own in names):
            yield name, "has the name of this computer or of its user: remove it from the cell"
    if row["status"] == "ok":
        yield from find_wrong_numbers(row)


def find_wrong_numbers(row):
    """Yield what does not fit in the numbers of a result, or exceeds its devices. Unknown numbers count as 0."""
    numbers = {name: float(row[name] or 0) for name, column in COLUMNS.items() if column.kind != "text"}
    n = SimpleNamespace(**numbers)
    # The rate of NUM_IMAGES is that of all of them, and a whole epoch has no windows.
    steps, is_given = n.windows * n.steps_per_window * (n.step_seconds_median > 0), row["stop_reason"] == "num_images"
    by_totals = not steps or is_given or row["scope"] in ("input", "end_to_end")
    expected = {
        "throughput": n.items / n.seconds if by_totals else n.items / steps / n.step_seconds_median,
        "tflops": n.throughput * n.flops_per_item / 1e12,
        "bandwidth": n.throughput * steps / n.items * n.bytes_per_step / 1e9,
    }
    for name, value in expected.items():
        if abs(numbers[name] - value) > ROUNDING * value:
            yield name, f"must be {value:.6g} by the other numbers of the row: {AGAIN}"
    low, high = n.throughput_low or n.throughput, n.throughput_high or n.throughput
    if not low * (1 - ROUNDING) <= n.throughput <= high * (1 + ROUNDING):
        yield "throughput", f"must be within its interval, {low:g} to {high:g}: {AGAIN}"
    if peaks.is_implausible(row | numbers):
        fix = "remove the row; if it is right, add the chip to bench/records/peaks.csv or open an issue"
        yield "throughput", f"is more than such a chip can do: {fix}"


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
        return environment.output_of("git", "-C", str(self.root), *command)

    def changed_files(self):
        """List the machines' files that differ from the base: changed, removed or new, committed or not."""
        files = "-z", "--", "results/*.csv", ":!results/published.csv"
        changed = self.git("diff", "--name-only", "--no-renames", self.base or "HEAD", *files) or ""
        new = self.git("ls-files", "--others", "--exclude-standard", *files) or ""
        return (changed + new).split("\0")[:-1]

    def find_fault(self, commit):
        """Return (column, reason and fix) unless a row's commit has the programs of a commit of the main branch."""
        shared = re.fullmatch("[0-9a-f]{12,40}", commit) and self.git("merge-base", self.tip, commit)
        # A later commit may have added rows.
        if not shared or self.git("diff", "--quiet", shared.strip(), commit, "--", ".", ":!results") is None:
            return "commit", "must be in the main branch, without changes: measure again in a clone of that branch"
        return None


def check_file(repository, path, names=()):
    """Check the rows that a machine's file adds to the base; returns (those rows, problems as lines)."""
    found, problems = {}, []
    try:
        rows = results.read(repository.root / path)
        before = results.parse(repository.git("show", f"{repository.base}:{path}") or "", path)
    except results.ResultsError as error:
        return [], [str(error)]
    commits = {commit: repository.find_fault(commit) for commit in {row["commit"] for row in rows}}
    for line, (row, old) in enumerate(zip_longest(rows, before), 2):
        if old is None and (fault := next(find_faults(row, PurePosixPath(path).stem, names), commits[row["commit"]])):
            column, words = fault
            found.setdefault(f"{column}={row[column][:80]!r} {words}", []).append(line)
        elif old not in (None, row):
            found.setdefault(EDITED, []).append(line)
    for words, lines in found.items():
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        problems.append(f"{path}, line {lines[0]}: {words}{more}")
    return rows[len(before) :], problems


def check_results(repository):
    """Check the machines' files that changed below results/; returns (number of added rows, problems as lines)."""
    if not repository.base:
        raise SettingError("BASE has no common commit with this branch: fetch it, or name another one")
    checked = [check_file(repository, path) for path in repository.changed_files()]
    return sum(len(added) for added, _ in checked), [line for _, problems in checked for line in problems]


def own_names():
    """Return the names of this computer and its user, except those that are everybody's."""
    names = {platform.node().partition(".")[0]}
    with suppress(KeyError, OSError):  # a container's user without a name
        names.add(getpass.getuser())
    return names - {"", "root", "user", "localhost"}


def submit(settings, repository):
    """Check MACHINE's rows, or the only new ones, and print how to send them; returns the problems as lines."""
    changed = [PurePosixPath(path).stem for path in repository.changed_files()]
    if not settings.machine and len(changed) != 1:
        found = " or ".join(changed) or "but there is none: run `make image` first"
        raise SettingError(f"set MACHINE to the file with new rows to send, {found}")
    machine = settings.machine or changed[0]
    file = settings.results_dir / f"{machine}.csv"
    if not file.is_file():
        raise SettingError(f"MACHINE={machine!r} has no file {cli.display_path(file)}: run `make image` first")
    path = os.path.relpath(file.resolve(), repository.root.resolve())
    added, problems = check_file(repository, path, own_names())
    if problems or not added:
        return problems or [f"{path} adds no row to the main branch: measure something first"]
    print(f"Rows of {machine}\n")
    for name in SHOWN:
        print(f"{name}: {', '.join(dict.fromkeys(row[name] for row in added if row[name]))}")
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
