"""The main function of every benchmark: reads the settings and runs what they ask for."""

import os

from bench import combinations, door
from bench.machine import environment
from bench.rows import peaks, report, results
from bench.run import open_bench, run_once
from bench.settings import list_runs, read_settings

EXIT_STATUS = {"ok": 0, "interrupted": 130}


def main(script, describe_workload, run_alone=None):
    """Run one benchmark from the environment's settings.

    Args:
        script: its name in the settings' declarations ("image").
        describe_workload: Settings -> Workload.
        run_alone: (Bench, path, describe_workload) -> exit status, where a run is not one workload after the other.

    Returns:
        The exit status: 0 measured, 1 tried and failed (the rows say why), and those of bench/door.py.
    """

    def run():
        changes, settings = list_runs(script), read_settings(script)
        host = environment.describe_host(settings.machine)
        path = settings.results_dir / f"{host.machine}.csv"
        results.prepare(path)
        if len(changes) * settings.runs > 1:
            return combinations.run_all(script, changes, settings.runs, host, path, describe_workload)
        return (run_alone or run_workload)(open_bench(settings, host), path, describe_workload)

    return door.enter(run)


def run_workload(bench, path, describe_workload):
    """Run one combination in this process; show and store each row as soon as it is measured."""
    rows = []
    stored = results.read(path) if path.exists() else []
    best, moved = peaks.measured_peaks(stored), peaks.measured_bandwidths(stored)
    for row in run_once(bench, describe_workload):
        try:
            results.append(path, row)
        finally:  # show the row even if it cannot be stored
            if not rows:
                print(report.describe_task(row))
            shares = peaks.fraction_of_peak(row, best), peaks.fraction_of_bandwidth(row, moved)
            print(report.describe_result(row, *shares), flush=True)
        rows.append(row)
    flags = {flag for row in rows for flag in row.get("flags", "").split()}
    closing = [report.describe_sustained([row for row in rows if row.get("elapsed_seconds")]), report.explain(flags)]
    if rows[-1].get("tflops") and peaks.fraction_of_peak(rows[-1], best) is None:
        precision = peaks.SIXTEEN_BITS.get(rows[-1]["precision"], rows[-1]["precision"])
        closing.append(f"  `make tflops` measures this machine's peak in {precision}, to compare with")
    print("\n".join([*filter(None, closing), f"added to {os.path.relpath(path)}"]))
    return EXIT_STATUS.get(rows[-1]["status"], 1)
