"""The main function of every benchmark: reads the settings and runs what they ask for."""

import logging
import os
import time
from dataclasses import replace

from bench import combinations, door
from bench.machine import environment, ranks
from bench.rows import peaks, report, results
from bench.run import open_bench, run_once
from bench.settings import ALL, SettingError, list_runs, read_settings, refuse_many

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
        changes, settings, me = list_runs(script), read_settings(script), ranks.read_ranks()
        if me.are_many:
            settings = as_rank(settings, me, len(changes) * settings.runs)
        host = environment.describe_host(settings.machine)
        path = settings.results_dir / f"{host.machine}.csv"
        results.prepare(path)
        if not me.are_many and (len(changes) * settings.runs > 1 or settings.num_devices != 1):
            return combinations.run_all(script, changes, settings.runs, host, path, describe_workload)
        try:
            bench = open_bench(settings, host)
            with bench.group:
                return (run_alone or run_workload)(bench, path, describe_workload)
        except ranks.LostRank:
            return ranks.LOST
        except KeyboardInterrupt:
            missing, is_first = ranks.find_missing(me) if me.are_many and not me.started_here else ([], False)
            if missing and is_first:
                combinations.report_death(
                    settings, host, path, describe_workload, ranks.describe_lost(missing, me.world_size)
                )
                time.sleep(ranks.STAY_SECONDS)
            raise

    return door.enter(run)


def as_rank(settings, me, runs):
    """The settings of one of several ranks; raises SettingError for what they cannot do together."""
    if runs > 1:
        raise SettingError(
            f"WORLD_SIZE='{me.world_size}' (torchrun) runs one combination of settings, and {runs} are asked for: name "
            "one value of each (MODEL above all), or leave torchrun out and set NUM_DEVICES"
        )
    if "NUM_DEVICES" in os.environ and settings.num_devices not in (me.world_size, ALL):
        raise SettingError(f"NUM_DEVICES='{settings.num_devices}' and torchrun's {me.world_size} must agree: unset it")
    refuse_many(settings, me.world_size, "WORLD_SIZE")
    if me.rank:  # rank 0 speaks
        logging.getLogger("bench").setLevel(logging.ERROR)
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("OMP_NUM_THREADS") == "1":
        del os.environ["OMP_NUM_THREADS"]  # torchrun's, not the user's: each rank gets its share of the cores
    return replace(settings, num_devices=me.world_size)


def run_workload(bench, path, describe_workload):
    """Run one combination in this process; show and store each row as soon as it is measured."""
    rows = []
    stored = results.read(path) if path.exists() else []
    best, moved = peaks.measured_peaks(stored), peaks.measured_bandwidths(stored)
    for row in run_once(bench, describe_workload):
        rows.append(row)
        if not bench.reports and row["status"] in EXIT_STATUS:
            continue
        try:
            results.append(path, row)
        finally:  # show the row even if it cannot be stored
            if len(rows) == 1 or not bench.reports:
                print(report.describe_task(row))
            shares = peaks.fraction_of_peak(row, best), peaks.fraction_of_bandwidth(row, moved)
            print(report.describe_result(row, *shares), flush=True)
    if not bench.reports:
        return EXIT_STATUS.get(rows[-1]["status"], 1)
    flags = {flag for row in rows for flag in row.get("flags", "").split()}
    closing = [report.describe_sustained([row for row in rows if row.get("elapsed_seconds")]), report.explain(flags)]
    if rows[-1].get("tflops") and peaks.fraction_of_peak(rows[-1], best) is None:
        precision = peaks.SIXTEEN_BITS.get(rows[-1]["precision"], rows[-1]["precision"])
        closing.append(f"  `make tflops` measures this machine's peak in {precision}, to compare with")
    print("\n".join([*filter(None, closing), f"added to {os.path.relpath(path)}"]))
    return EXIT_STATUS.get(rows[-1]["status"], 1)
