"""Check the rows that a machine adds to results/, before they are sent, and in CI when they arrive.

    make submit           checks this machine's rows and prints how to send them; it sends nothing
    make check-results    checks what changed since BASE (default: the merge base with origin/main, or else main)

The files in the folder count, committed or not. Exit status 1: problems, one line each. Standard library only.
"""

import math
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from bench import process
from bench.host import environment
from bench.records import peaks, results
from bench.records.columns import COLUMNS, MEASURED, STATUSES
from bench.records.rows import name_chip
from bench.settings import ROOT, SettingError, read_settings

AGAIN = "remove the row, and measure it again"


def find_faults(row, machine, is_named_after_chip):
    """Yield (column, reason and fix) for what is wrong with a row that can be read, in the file of a machine."""
    if row["machine"] != machine:
        yield "machine", f"must be the name of the file, {machine}: send one file for each machine"
    if row["source"]:
        yield "source", "must be blank: leave the figures of others to results/published.csv"
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
    """Yield what does not fit in the numbers of a result, or exceeds its GPUs. Unknown numbers count as 0."""
    n = SimpleNamespace(**{name: float(row[name] or 0) for name in COLUMNS if COLUMNS[name].holds in MEASURED})
    steps = n.windows * n.steps_per_window
    # The rate of an epoch, a pipeline or NUM_IMAGES is that of the whole time, any other one that of the median window.
    seconds = n.seconds, steps * n.step_seconds_median
    if not n.items or not any(agree(n.throughput * each, n.items) for each in seconds):
        yield "throughput", f"does not agree with items, seconds, windows and step_seconds_median: {AGAIN}"
    if not (n.throughput_low or n.throughput) <= n.throughput <= (n.throughput_high or n.throughput):
        yield "throughput", f"is outside its interval, {n.throughput_low:g} to {n.throughput_high:g}: {AGAIN}"
    if not agree(n.tflops, n.throughput * n.flops_per_item / 1e12):
        yield "tflops", f"does not agree with throughput and flops_per_item: {AGAIN}"
    if not agree(n.bandwidth * n.items, n.throughput * steps * n.bytes_per_step / 1e9):
        yield "bandwidth", f"does not agree with throughput and bytes_per_step: {AGAIN}"
    if peaks.is_implausible(row | vars(n)):
        yield "throughput", "is more than a GPU can do: remove the row, or add the chip to bench/records/peaks.csv"


def agree(value, expected):
    """Return whether two products of up to three cells, which have six digits each, are equal."""
    return math.isclose(value, expected, rel_tol=2e-5)


class Repository:
    """The git repository of a folder, read only."""

    def __init__(self, root=ROOT, base=None):
        self.root = Path(root)
        if self.git("rev-parse", "HEAD") is None:
            raise SettingError(environment.explain_commit(None, self.root))
        for tip in [base] if base else ["origin/main", "main"]:
            if commit := self.git("merge-base", tip, "HEAD"):
                self.tip = tip  # the last commit of the main branch
                self.base = commit.strip()  # the commit at which the folder's branch left it
                return
        raise SettingError(f"BASE={base or 'main'!r} has no commit in common with this branch: fetch it")

    def git(self, *command):
        """Return what a git command prints; None if it fails."""
        return environment.ask_git(self.root, *command)

    def list_changes(self):
        """List files in results/ that differ from the base, committed or not; returns (those of machines, others)."""
        changed = self.git("diff", "--name-only", "--no-renames", self.base, "-z", "--", "results")
        new = self.git("ls-files", "--others", "--exclude-standard", "-z", "--", "results")
        if changed is None or new is None:
            raise SettingError(environment.explain_commit(None, self.root))
        paths = (changed + new).split("\0")[:-1]
        files = [path for path in paths if re.fullmatch(r"results/(?!published\.csv)[a-z0-9-]+\.csv", path)]
        return files, [path for path in paths if path not in files]

    def find_fault(self, commit):
        """Return (column, reason and fix) unless a row's commit has the programs of a commit of the main branch."""
        shared = re.fullmatch("[0-9a-f]{12,40}", commit) and self.git("merge-base", self.tip, commit)
        # A later commit may have added rows.
        if not shared or self.git("diff", "--quiet", shared.strip(), commit, "--", ".", ":!results") is None:
            return "commit", "must be in the main branch, without changes: measure again in a clone of that branch"
        return None


def check_file(repository, path):
    """Check the rows that a machine's file adds to the base; returns (their number, problems as lines)."""
    lines = results.parse(results.read_text(repository.root / path), path)
    before = results.parse(repository.git("show", f"{repository.base}:{path}") or "", path)
    for place, old in enumerate(before):
        if place == len(lines) or lines[place].row != old.row:
            return 0, [f"{path}, line {old.number}: a published row is changed or missing: restore it"]
    added = lines[len(before) :]
    machine = Path(path).stem
    is_named_after_chip = any(find_chip(line.row) == machine for line in before)  # and not by MACHINE
    commits = {commit: repository.find_fault(commit) for commit in {line.row["commit"] for line in added}}
    rows = [line.row for line in lines]
    faults = []
    for line in added:
        fault = line.fault or next(find_faults(line.row, machine, is_named_after_chip), commits[line.row["commit"]])
        if fault or rows.count(line.row) > 1:
            faults.append((line, fault or ("", "the row is there twice: remove one of them")))
    return len(added), list(results.describe_faults(path, faults))


def check_results(repository, paths):
    """Check these files of machines, and print the number of new rows; returns the problems as lines."""
    checked = [check_file(repository, path) for path in paths]
    print(f"{sum(count for count, _ in checked)} new rows")
    return [line for _, problems in checked for line in problems]


def submit(settings, repository):
    """Check the new rows of MACHINE, or of all, and print how to send them; returns the problems as lines."""
    if settings.results_dir.resolve() != (repository.root / "results").resolve():
        raise SettingError(f"RESULTS_DIR='{settings.results_dir}' is not results/: move its files there, and unset it")
    files, _ = repository.list_changes()
    paths = [path for path in files if settings.machine in (None, Path(path).stem)]
    if not paths:
        raise SettingError(f"results/{settings.machine or '*'}.csv has no new rows: run `make image` first")
    problems = check_results(repository, paths)
    if not problems:
        print("There are no problems, and nothing has been sent. To send the rows:")
        print(f"1. git switch -c new-rows && git add {' '.join(paths)} && git commit -m 'New rows'")
        print("2. push that branch to your fork and open a pull request")
    return problems


def main():
    """Run `submit` or `check`, as the command line says; returns the exit status."""
    if sys.argv[1:] == ["submit"]:
        problems = submit(read_settings("submit"), Repository())
    else:
        repository = Repository(ROOT, os.environ.get("BASE"))
        paths, others = repository.list_changes()
        problems = check_results(repository, paths)
        if others:
            print(f"also changed, for you to look at: {', '.join(map(repr, others))}")
    sys.stderr.writelines(f"{line}\n" for line in problems)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(process.run_script(main, "submit", "check"))
