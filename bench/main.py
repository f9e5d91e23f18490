"""The door of every script: reads the settings, runs what they ask for, and turns mistakes into one line."""

import logging
import os
import sys

from bench import combinations
from bench.machine import environment
from bench.rows import peaks, report, results
from bench.run import run_once
from bench.settings import SettingError, list_runs, read_settings

EXIT_STATUS = {"ok": 0, "interrupted": 130}


def main(script, describe_workload, run_alone=None):
    """Run one benchmark from the environment's settings.

    Args:
        script: its name in the settings' declarations ("image").
        describe_workload: Settings -> Workload.
        run_alone: runs one combination in this process, where that is not one workload after the other.

    Returns:
        The exit status: 0 measured, 1 tried and failed (the rows say why), 2 asked for wrongly,
        130 interrupted.
    """
    logging.basicConfig(format="%(asctime)s  %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("bench").setLevel(logging.INFO)
    try:
        environment.refuse_rosetta()
        changes, settings = list_runs(script), read_settings(script)
        host = environment.describe_host(settings.machine)
        path = settings.results_dir / f"{host.machine}.csv"
        results.prepare(path)
        if len(changes) * settings.runs > 1:
            return combinations.run_all(script, changes, settings.runs, host, path, describe_workload)
        return (run_alone or run_workload)(settings, host, path, describe_workload)
    except (SettingError, results.ResultsError) as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read our words has gone, as `head` does; the rows are stored
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("interrupted: windows that were not complete are not in the results", file=sys.stderr)
        return 130


def run_workload(settings, host, path, describe_workload):
    """Run one combination in this process, each row shown and stored as soon as it is measured."""
    status, flags, sustained = None, set(), []
    best = peaks.measured_peaks(results.read(path)) if path.exists() else {}
    for row in run_once(settings, host, describe_workload):
        try:
            results.append(path, row)
        finally:  # what cannot be stored is shown all the same
            if status is None:
                print(report.describe_task(row))
            print(report.describe_result(row, peaks.fraction_of_peak(row, best)), flush=True)
        status = row["status"]
        flags.update(row.get("flags", "").split())
        sustained += [row] if row.get("elapsed_seconds") else []
    kept = report.describe_sustained(sustained)
    if kept:
        print(kept)
    if flags:
        print(report.explain(flags))
    if row.get("tflops") and peaks.fraction_of_peak(row, best) is None:
        print(f"  `make tflops` measures this machine's peak in {row['precision']}, to compare with")
    print(f"added to {os.path.relpath(path)}")
    return EXIT_STATUS.get(status, 1)
