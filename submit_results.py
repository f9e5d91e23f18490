"""Check the rows that a machine adds to results/, before they are sent, and in CI when they arrive.

    make submit           checks this machine's rows and prints how to send them; it sends nothing
    make check-results    checks what changed since BASE (default: the merge base with origin/main, or else main)

The files in the folder count, committed or not. Exit status 1: problems, one line each.
"""

import os
import re
import sys
from pathlib import Path

from bench import process
from bench.host import environment
from bench.records import peaks, results, tables
from bench.records.rows import machine_of
from bench.settings import ROOT, SettingError, read_runs

AGAIN = "remove the row, and measure it again"
RATED = {"matmul": "tflops", "bandwidth": "bandwidth"}  # quantities of workloads that cannot exceed the rated peak
MOST_OF_RATED = 1.5  # chips may run above the clock of their data sheet
HOW = """There are no problems, and nothing has been sent. To send the rows:
1. git switch -c new-rows && git add {} && git commit -m 'New rows'
2. push that branch to your fork and open a pull request"""


def find_faults(rows, machine):
    """Return {what is wrong with rows, and the fix: which rows, as a series of bools} in the file of a machine."""
    rates = rows.assign(bandwidth=rows["throughput"], rated_bandwidth=None)  # what a driver says is not believed
    shares = rates.apply(lambda row: peaks.rated_share(row, RATED.get(row["workload"])) or 0, axis=1)
    chips = rows.apply(machine_of, axis=1)
    is_too_fast = (shares > MOST_OF_RATED) & (rows["status"] == "ok")
    return {
        f"machine must be the name of the file, {machine}: send one file for each machine": rows["machine"] != machine,
        "source must be blank: leave the figures of others to results/published.csv": rows["source"] != "",
        f"device_name is of another chip than the first row: {AGAIN} with a name in MACHINE": chips != chips.iloc[0],
        f"tflops or GB/s is more than {MOST_OF_RATED} times what the chip is rated at: {AGAIN}": is_too_fast,
    }


def git(*command):
    """Return what a git command prints; None if it fails."""
    return environment.ask_git(ROOT, *command)


def find_base(name=None):
    """Return the main branch, or the one of this name, and the commit at which this branch left it."""
    if git("rev-parse", "HEAD") is None:
        raise SettingError(environment.GIT_FAILS)
    for tip in [name] if name else ["origin/main", "main"]:
        if commit := git("merge-base", tip, "HEAD"):
            return tip, commit.strip()
    raise SettingError(f"BASE={name or 'main'!r} has no commit in common with this branch: fetch it")


def list_changes(base):
    """List the files of machines that differ from a commit: changed, removed or new, committed or not."""
    files = "--", ":(glob)results/*.csv", ":!results/published.csv"
    changed = git("diff", "--name-only", "--no-renames", base, *files)
    return (changed + git("ls-files", "--others", "--exclude-standard", *files)).splitlines()


def is_known(commit, tip):
    """Return whether a row's commit has the programs of a commit of the main branch; it may have added rows."""
    shared = re.fullmatch("[0-9a-f]{12,40}", commit) and git("merge-base", tip, commit)
    return bool(shared) and git("diff", "--quiet", shared.strip(), commit, "--", ".", ":!results") is not None


def check_file(path, tip, base):
    """Check the rows that a machine's file adds to the commit `base` of the branch `tip`; returns problems as lines."""
    problems = []
    rows = tables.load([ROOT / path], problems.append)
    texts = results.read_text(ROOT / path), git("show", f"{base}:{path}") or ""
    now, before = ([*results.parse(text, path)[0].values()] for text in texts)
    if rows.empty or now[: len(before)] != before:
        problems.append(f"{path}: published rows are changed, moved or missing: restore them")
    if problems:
        return problems
    faults = find_faults(rows, Path(path).stem)
    known = {commit: is_known(commit, tip) for commit in set(rows["commit"][len(before) :])}
    unknown = rows["commit"].map(known).eq(False)
    faults["commit must be in the main branch, unchanged: measure again in a clone of that branch"] = unknown
    for fault, wrong in faults.items():
        if numbers := [str(number + 1) for number in rows.index[wrong] if number >= len(before)]:
            problems.append(f"{path}, row {', '.join(numbers[:9])}: {fault}")
    return problems


def main(command="check", environ=os.environ):
    """Check the rows of MACHINE or of all, and print how to `submit` them; returns the exit status."""
    settings = read_runs("submit", environ)[0].settings if command == "submit" else None
    if settings and settings.results_dir.resolve() != results.PUBLISHED:
        raise SettingError(f"RESULTS_DIR={environ['RESULTS_DIR']!r} is not sent: unset it, copy its files to results/")
    machine = settings and settings.machine
    tip, base = find_base(environ.get("BASE"))
    paths = [path for path in list_changes(base) if machine in (None, Path(path).stem)]
    print(f"checked: {', '.join(paths) or 'nothing'}")
    problems = [line for path in paths for line in check_file(path, tip, base)]
    if command == "submit" and not paths:
        problems = [f"results/{machine or '*'}.csv has no new rows: run `make image` first, without RESULTS_DIR"]
    elif command == "submit" and not problems:
        latest = tables.latest(tables.combine(tables.load([ROOT / path for path in paths])))
        if count := (~latest["undisturbed"]).sum():
            print(f"{count} of {len(latest)} results are disturbed: close other programs, and measure these again")
        print(HOW.format(" ".join(paths)))
    sys.stderr.writelines(f"{line}\n" for line in problems)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(process.run_script(lambda: main(*sys.argv[1:]), "submit", "check"))
