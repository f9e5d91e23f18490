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
from bench.records.columns import NUMBERS
from bench.records.rows import machine_of
from bench.settings import ROOT, SettingError, read_runs

AGAIN = "remove the row, and measure it again"
RATED = {"matmul": "tflops", "bandwidth": "bandwidth"}  # quantities of workloads that cannot exceed the rated peak
HOW = """There are no problems, and nothing has been sent. To send the rows:
1. git switch -c new-rows && git add {} && git commit -m 'New rows'
2. push that branch to your fork and open a pull request"""


def find_faults(rows, machine):
    """Return {what is wrong with rows, and the fix: which rows, as a series of bools} in the file of a machine."""
    n = rows[NUMBERS].fillna(0)
    steps = n["windows"] * n["steps_per_window"]
    # The rate of an epoch, a pipeline or NUM_IMAGES is that of the whole time, any other one that of the median window.
    is_rate = [agree(n["throughput"] * each, n["items"]) for each in (n["seconds"], steps * n["step_seconds_median"])]
    is_above = n["throughput"] < n["throughput_low"]
    is_below = (n["throughput"] > n["throughput_high"]) & (n["throughput_high"] > 0)
    tflops = n["throughput"] * n["flops_per_item"] / 1e12
    bytes_read = n["throughput"] * steps * n["bytes_per_step"] / 1e9
    rates = rows.assign(bandwidth=n["throughput"], rated_bandwidth=None)  # that of peaks.csv counts
    shares = rates.apply(
        lambda row: peaks.fraction_of(peaks.rated_peaks(row), row, RATED.get(row["workload"])) or 0, axis=1
    )
    of_numbers = {
        "throughput does not agree with items, seconds, windows and step_seconds_median": ~(is_rate[0] | is_rate[1])
        | (n["items"] == 0),
        "throughput is outside its interval": is_above | is_below,
        "tflops does not agree with throughput and flops_per_item": ~agree(n["tflops"], tflops),
        "bandwidth does not agree with throughput and bytes_per_step": ~agree(n["bandwidth"] * n["items"], bytes_read),
        "tflops or GB/s is more than 1.5 times what the chip is rated at": shares > 1.5,
    }
    chips = rows.apply(machine_of, axis=1)
    return {
        f"machine must be the name of the file, {machine}: send one file for each machine": rows["machine"] != machine,
        "source must be blank: leave the figures of others to results/published.csv": rows["source"] != "",
        f"device_name is of another chip than the first row: {AGAIN} with a name in MACHINE": chips != chips.iloc[0],
        **{f"{fault}: {AGAIN}": wrong & (rows["status"] == "ok") for fault, wrong in of_numbers.items()},
    }


def agree(values, expected):
    """Return whether products of up to three cells, which have six digits each, are equal."""
    return (values - expected).abs() <= 2e-5 * expected.abs()


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
