"""Check the rows that a machine adds to results/, before they are sent, and in CI when they arrive.

    make submit           checks this machine's rows and prints how to send them; it sends nothing
    make check-results    checks what changed since BASE (default: the merge base with origin/main, or else main)

The files in the folder count, committed or not. Exit status: 0 no problems, 1 problems, one line each. Standard library
only.
"""

import getpass
import os
import platform
import re
import shlex
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

from bench import processes
from bench.host import environment
from bench.records import peaks, results
from bench.records.columns import COLUMNS, MEASURED, STATUSES, WORK, disturbing_flags
from bench.records.rows import name_chip
from bench.settings import ROOT, SettingError, read_settings

HOME = r"/(?:home|Users|root)/|[A-Za-z]:\\Users\\"
NEEDED = ("framework", "workload", "model", "device", "device_name", "unit", "items", "seconds")
SHOWN = ("device_name", "cpu_name", "cpu_count", "memory_gb", "os", "framework_version", "workload", "commit")
FREE_TEXT = ("note", "allocator")  # may quote the system
ROUNDING = 2e-5  # cells have six digits, and a product has three of them
AGAIN = "remove the row, and measure it again"
EDITED = "the row was published, and is changed or missing: restore it, and add rows only at the end"
PUBLISHED = "results/published.csv"
MACHINE_FILE = r"results/(?!published\.csv)[a-z0-9-]+\.csv"
DRAWN = r"results/(index\.html|README\.md|(plots|cards)/[\w-]+\.(png|svg))"
# {page: what differs between two that `make plot` draws}; the data of index.html have no "<".
REDRAWN = {"results/index.html": r'(?<=id="data">)[^<]*', "results/README.md": r"!\[[\w-]+\]\(\w+/[\w-]+\.png\)\s*"}
KEY = itemgetter(*WORK, "elapsed_seconds")  # agree in rows of the same quantity
OF_A_PROCESS = itemgetter("run_id", "process", "status", *WORK, "elapsed_seconds")  # no two rows agree in all of these


def find_faults(row, machine, names=(), is_named_after_chip=False):
    """Yield (column, reason and fix) for what is wrong with a row that can be read.

    Args:
        row: a dict of text with all COLUMNS.
        machine: the name of its file, without the ending.
        names: names of this computer and its user, which must not be sent.
        is_named_after_chip: the machine's other rows show that its name is that of its chip, not the user's own.
    """
    if row["machine"] != machine:
        yield "machine", f"must be the name of the file, {machine}: send one file for each machine"
    if row["source"]:
        yield "source", "must be blank: leave the figures of others to results/published.csv"
    for name in COLUMNS:
        text = row[name]
        if not text and name in NEEDED and row["status"] == "ok":
            yield name, f"must not be blank: {AGAIN}"
        if text.startswith(tuple("=+-@")):
            yield name, "begins as a formula does (=, +, -, @): remove that character"
        if re.search(HOME, text):
            yield name, "has the path of a home folder: remove it from the cell"
        if name in FREE_TEXT and any(re.search(rf"\b{re.escape(private)}\b", text, re.I) for private in names):
            yield name, "has the name of this computer or of its user: remove it from the cell"
    if row["timestamp"] > (datetime.now(UTC) + timedelta(days=1)).isoformat():
        yield "timestamp", f"is in the future: set this machine's clock, then {AGAIN}"
    if row["device"] == "cpu" and row["device_name"] != row["cpu_name"]:
        yield "device_name", f"must be the cpu_name, as device=cpu: {AGAIN}"
    if is_named_after_chip and find_chip(row) != machine:
        yield "device_name", f"is another chip than {machine}: {AGAIN} with a new name in MACHINE, or without MACHINE"
    if row["status"] not in STATUSES:
        yield "status", f"must be one of {', '.join(STATUSES)}: {AGAIN}"
    if row["status"] == "ok":
        yield from find_wrong_numbers(row)


def find_chip(row):
    """Return the name of a row's machine without MACHINE; None if its cells make no name."""
    with suppress(ValueError):
        return name_chip(row)


def find_wrong_numbers(row):
    """Yield what does not fit in the numbers of a result, or exceeds its devices. Unknown numbers count as 0."""
    numbers = {name: float(row[name] or 0) for name, column in COLUMNS.items() if column.holds in MEASURED}
    n = SimpleNamespace(**numbers)
    # The rate of NUM_IMAGES is that of all of them, and a whole epoch has no windows.
    steps = n.windows * n.steps_per_window if n.step_seconds_median > 0 else 0
    is_fixed_number = row["stop_reason"] == "num_images"
    by_totals = not steps or is_fixed_number or row["scope"] in ("input", "end_to_end")
    expected = {
        "throughput": n.items / n.seconds if by_totals else n.items / steps / n.step_seconds_median,
        "tflops": n.throughput * n.flops_per_item / 1e12,
        "bandwidth": n.throughput * steps / n.items * n.bytes_per_step / 1e9,
    }
    for name, value in expected.items():
        if abs(numbers[name] - value) > ROUNDING * value:
            yield name, f"must be {value:.6g} by the other numbers of the row: {AGAIN}"
    low = n.throughput_low or n.throughput
    high = n.throughput_high or n.throughput
    if not low * (1 - ROUNDING) <= n.throughput <= high * (1 + ROUNDING):
        yield "throughput", f"must be within its interval, {low:g} to {high:g}: {AGAIN}"
    rates = [float(rate) for rate in (row["rates"] or row["process_rates"]).split()]
    rounding = ROUNDING if row["rates"] else 1e-3  # rates of processes have four digits
    if rates and not by_totals and not min(rates) * (1 - rounding) <= n.throughput <= max(rates) * (1 + rounding):
        yield "throughput", f"must be within the rates of its turns or processes: {AGAIN}"
    if peaks.is_implausible(row | numbers):
        fix = "remove the row; if it is right, add the chip to bench/records/peaks.csv or open an issue"
        yield "throughput", f"is more than such a chip can do: {fix}"


class Repository:
    """The git repository of a folder, read only."""

    def __init__(self, root=ROOT, base=None):
        self.root = Path(root)
        if self.git("rev-parse", "HEAD") is None:
            raise SettingError(environment.explain_commit(None, self.root))
        self.tip = "HEAD"  # the last commit of the main branch
        self.base = None  # the commit at which the folder's branch left it
        for tip in [base] if base else ["main", "origin/main"]:
            if commit := self.git("merge-base", tip, "HEAD"):
                self.tip = tip
                self.base = commit.strip()

    def git(self, *command):
        """Return what a git command prints; None if it fails."""
        return environment.ask_git(self.root, *command)

    def changed_files(self):
        """List the files in results/ that differ from the base: changed, removed or new, committed or not."""
        files = "-z", "--", "results"
        changed = self.git("diff", "--name-only", "--no-renames", self.base or "HEAD", *files)
        new = self.git("ls-files", "--others", "--exclude-standard", *files)
        if changed is None or new is None:
            raise SettingError(environment.explain_commit(None, self.root))
        return (changed + new).split("\0")[:-1]

    def find_fault(self, commit):
        """Return (column, reason and fix) unless a row's commit has the programs of a commit of the main branch."""
        shared = re.fullmatch("[0-9a-f]{12,40}", commit) and self.git("merge-base", self.tip, commit)
        # A later commit may have added rows.
        if not shared or self.git("diff", "--quiet", shared.strip(), commit, "--", ".", ":!results") is None:
            return "commit", "must be in the main branch, without changes: measure again in a clone of that branch"
        return None


def check_file(repository, path, names=()):
    """Check the rows that a file adds to the base; returns (those of a machine's file, problems as lines)."""
    try:
        lines = results.parse(results.read_text(repository.root / path), path)
        if path == PUBLISHED:
            return [], list(results.describe_faults(path, [(line, line.fault) for line in lines if line.fault]))
        before = results.parse(repository.git("show", f"{repository.base}:{path}") or "", path)
    except results.ResultsError as error:
        return [], [str(error)]
    stored = [line.row for line in before]
    machine = PurePosixPath(path).stem
    is_named_after_chip = machine in map(find_chip, stored)
    added = {line.row["commit"] for line in lines[len(before) :]}
    commits = {commit: repository.find_fault(commit) for commit in added}
    faults = []
    known = {OF_A_PROCESS(row) for row in stored}
    for place, (line, old) in enumerate(zip_longest(lines, stored), 2):
        if old is None:
            found = find_faults(line.row, machine, names, is_named_after_chip)
            key = OF_A_PROCESS(line.row)
            is_twice = line.row["process"] and key in known
            twice = ("process", f"is there twice for this run and work: {AGAIN}") if is_twice else None
            known.add(key)
            if fault := line.fault or next(found, twice or commits[line.row["commit"]]):
                faults.append((line, fault))
        elif not line or line.row != old:
            faults.append((line or results.Line(place, "", {}, None), ("", EDITED)))
    return [line.row for line in lines[len(before) :]], list(results.describe_faults(path, faults))


def check_results(repository):
    """Check the files that changed in results/; returns (number of added rows, problems as lines)."""
    if not repository.base:
        raise SettingError("BASE has no common commit with this branch: fetch it, or name another one")
    paths = repository.changed_files()
    parts = [(path, part) for path in paths for part in (path, *PurePosixPath(path).parents)]
    links = {path for path, part in parts if (repository.root / part).is_symlink()}  # none is opened
    known = f"{MACHINE_FILE}|{PUBLISHED}|{DRAWN}"
    if foreign := [path for path in paths if path in links or not re.fullmatch(known, path)]:
        return 0, [f"{path!r} is a link, or of no machine and not drawn by `make plot`: remove it" for path in foreign]
    drawn = [path for path in paths if re.fullmatch(DRAWN, path)]
    checked = [check_file(repository, path) for path in paths if path not in drawn]
    count = sum(len(added) for added, _ in checked)
    problems = [line for _, problems in checked for line in problems]
    for path in sorted(REDRAWN.keys() & drawn):
        pages = results.read_text(repository.root / path), repository.git("show", f"{repository.base}:{path}") or ""
        if len({re.sub(REDRAWN[path], "", page) for page in pages}) > 1:
            problems.append(f"{path} differs from the base in more than its data: leave it as it is there")
    if count and drawn:
        problems.append(f"{drawn[0]} ({len(drawn)} such files) is drawn by `make plot`: send new rows without it")
    return count, problems


def own_names():
    """Return the names of this computer and its user, except those that are everybody's."""
    names = {platform.node().partition(".")[0]}
    with suppress(KeyError, OSError):  # a container's user without a name
        names.add(getpass.getuser())
    return names - {"", "root", "user", "localhost"}


def submit(settings, repository):
    """Check MACHINE's rows, or the only new ones, and print how to send them; returns the problems as lines."""
    is_shared = settings.results_dir.resolve() == (repository.root / "results").resolve()
    files = results.list_files(settings.results_dir)
    if is_shared:
        files = [path for path in repository.changed_files() if re.fullmatch(MACHINE_FILE, path)]
    changed = sorted({PurePosixPath(path).stem for path in files} - {"published"})
    if not settings.machine and len(changed) != 1:
        candidates = " or ".join(changed) or "but there is none: run `make image` first"
        raise SettingError(f"set MACHINE to the file with new rows to send, {candidates}")
    machine = settings.machine or changed[0]
    file = settings.results_dir / f"{machine}.csv"
    if not file.is_file():
        raise SettingError(f"MACHINE={machine!r} has no file {results.display_path(file)}: run `make image` first")
    # git has no file of another folder: all of its rows are new.
    path = os.path.relpath(file.resolve(), repository.root.resolve()) if is_shared else str(file.absolute())
    added, problems = check_file(repository, path, own_names())
    if problems or not added:
        return problems or [f"{path} adds no row to the main branch: measure something first"]
    summary = "\n".join(
        f"{name}: {', '.join(dict.fromkeys(row[name] for row in added if row[name]))}" for name in SHOWN
    )
    print(f"Rows of {machine}\n\n{summary}")
    good = {KEY(row) for row in added if not disturbing_flags(row)}
    disturbed = [row for row in added if disturbing_flags(row) and KEY(row) not in good]
    if flags := sorted({flag for row in disturbed for flag in disturbing_flags(row)}):
        count = f"{len(disturbed)} of {len(added)} rows are disturbed ({', '.join(flags)})"
        print(f"\n{count}: measure them again on an idle machine")
    branch = f"rows-{machine}"
    print(f"\n{path}: {len(added)} new rows, no problems. Nothing has been sent. To send them:")
    if is_shared:
        print(f"1. git switch {branch} || git switch -c {branch}; git add {path} && git commit -m 'Rows of {machine}'")
        print("2. push that branch to your fork and open a pull request with the text above")
    else:
        shared = results.display_path(repository.root / "results" / file.name)
        print(f"1. cat {shlex.quote(path)} >>{shlex.quote(shared)}")
        print(f"2. unset RESULTS_DIR; MACHINE={machine} make submit")
    return []


def main():
    """Run `submit` or `check`, as the command line says; returns the exit status."""
    if sys.argv[1:] == ["submit"]:
        problems = submit(read_settings("submit"), Repository())
    else:
        repository = Repository(ROOT, os.environ.get("BASE"))
        count, problems = check_results(repository)
        print(f"{count} new rows, {len(problems) or 'no'} problems")
        if others := [path for path in repository.changed_files() if not re.fullmatch(MACHINE_FILE, path)]:
            print(f"also changed, for you to look at: {', '.join(map(repr, others))}")
    for line in problems:
        print(line, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(processes.run_script(main, "submit", "check"))
