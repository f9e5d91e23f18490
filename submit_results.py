"""Check the rows that a machine adds to results/, before they are sent, and in CI when they arrive.

    make submit           checks this machine's rows and prints how to send them; it sends nothing
    make check-results    checks what changed since BASE (default: the merge base with origin/main, or else main)

The files in the folder count, committed or not. Exit status 1: problems, one line each.
"""

import os
import re
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

from bench import process
from bench.host import environment
from bench.records import results, tables
from bench.records.columns import NUMBERS
from bench.records.rows import name_chip
from bench.settings import ROOT, SettingError, read_settings

AGAIN = "remove the row, and measure it again"


def find_faults(rows, machine):
    """Return {what is wrong with rows, and the fix: which rows, as a series of bools} in the file of a machine."""
    n = rows[NUMBERS].fillna(0)
    steps = n["windows"] * n["steps_per_window"]
    # The rate of an epoch, a pipeline or NUM_IMAGES is that of the whole time, any other one that of the median window.
    is_rate = [agree(n["throughput"] * each, n["items"]) for each in (n["seconds"], steps * n["step_seconds_median"])]
    is_above = n["throughput"] < n["throughput_low"]
    is_below = (n["throughput"] > n["throughput_high"]) & (n["throughput_high"] > 0)
    of_numbers = {
        "throughput does not agree with items, seconds, windows and step_seconds_median": ~(is_rate[0] | is_rate[1])
        | (n["items"] == 0),
        "throughput is outside its interval": is_above | is_below,
        "tflops does not agree with throughput and flops_per_item": ~agree(
            n["tflops"], n["throughput"] * n["flops_per_item"] / 1e12
        ),
        "bandwidth does not agree with throughput and bytes_per_step": ~agree(
            n["bandwidth"] * n["items"], n["throughput"] * steps * n["bytes_per_step"] / 1e9
        ),
    }
    chips = rows.apply(find_chip, axis=1)
    return {
        f"machine must be the name of the file, {machine}: send one file for each machine": rows["machine"] != machine,
        "source must be blank: leave the figures of others to results/published.csv": rows["source"] != "",
        f"device_name is of another chip than the first row: {AGAIN} with a name in MACHINE": chips != chips.iloc[0],
        **{f"{fault}: {AGAIN}": wrong & (rows["status"] == "ok") for fault, wrong in of_numbers.items()},
    }


def find_chip(row):
    """Return the name of a row's machine without MACHINE; "" if its cells make no name."""
    with suppress(ValueError):
        return name_chip(row)
    return ""


def agree(values, expected):
    """Return whether products of up to three cells, which have six digits each, are equal."""
    return np.isclose(values, expected, rtol=2e-5, atol=0)


class Repository:
    """The git repository of a folder, read only."""

    def __init__(self, root=ROOT, base=None):
        self.root = Path(root)
        if self.git("rev-parse", "HEAD") is None:
            raise SettingError(environment.GIT_FAILS)
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
        """List the files of machines that differ from the base: changed, removed or new, committed or not."""
        files = "--", ":(glob)results/*.csv", ":!results/published.csv"
        changed = self.git("diff", "--name-only", "--no-renames", self.base, *files)
        new = self.git("ls-files", "--others", "--exclude-standard", *files)
        if changed is None or new is None:
            raise SettingError(environment.GIT_FAILS)
        return (changed + new).splitlines()

    def is_published(self, commit):
        """Return whether a row's commit has the programs of a commit of the main branch; it may have added rows."""
        shared = re.fullmatch("[0-9a-f]{12,40}", commit) and self.git("merge-base", self.tip, commit)
        return shared and self.git("diff", "--quiet", shared.strip(), commit, "--", ".", ":!results") is not None

    def check_file(self, path):
        """Check the rows that a machine's file adds to the base; returns the problems as lines."""
        problems = []
        rows = tables.load([self.root / path], problems.append)
        text, _ = tables.parse(results.read_text(self.root / path), path)
        before, _ = tables.parse(self.git("show", f"{self.base}:{path}") or "", path)
        if rows.empty or text[: len(before)].to_numpy().tolist() != before.to_numpy().tolist():
            problems.append(f"{path}: published rows are changed, moved or missing: restore them")
        if problems:
            return problems
        faults = find_faults(rows, Path(path).stem)
        known = {commit: self.is_published(commit) for commit in set(rows["commit"][len(before) :])}
        unknown = rows["commit"].map(known).eq(False)
        faults["commit must be in the main branch, unchanged: measure again in a clone of that branch"] = unknown
        for fault, wrong in faults.items():
            if numbers := [str(number + 1) for number in rows.index[wrong] if number >= len(before)]:
                problems.append(f"{path}, row {', '.join(numbers[:9])}: {fault}")
        return problems


def check_results(repository, paths):
    """Check these files of machines; returns the problems as lines."""
    print(f"checked: {', '.join(paths) or 'nothing'}")
    return [line for path in paths for line in repository.check_file(path)]


def submit(settings, repository):
    """Check the new rows of MACHINE, or of all, and print how to send them; returns the problems as lines."""
    if settings.results_dir.resolve() != (repository.root / "results").resolve():
        raise SettingError(f"RESULTS_DIR='{settings.results_dir}' is not results/: move its files there, and unset it")
    paths = [path for path in repository.list_changes() if settings.machine in (None, Path(path).stem)]
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
        problems = check_results(repository, repository.list_changes())
    sys.stderr.writelines(f"{line}\n" for line in problems)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(process.run_script(main, "submit", "check"))
