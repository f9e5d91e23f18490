"""Measure the standard set on this machine, and draw a card that shows the results.

    make all                              20 to 30 minutes on two CPU cores, an estimated 15 on a GPU
    QUICK=1 make all                      three minutes: fewer workloads, one short process each, wider intervals
    FRAMEWORK=tensorflow make all

bench/workloads/standard_set.py lists what is measured: the machine's peaks, then each workload in several fresh
processes. After an interruption, run the same command again: it skips processes whose rows are stored. The run_id of a
process is derived from its settings, the commit and the versions; its rows are stored together when it ends.
"""

import hashlib
import os
import sys
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tqdm import tqdm

from bench import cli, doctor
from bench.host import environment
from bench.host.ranks import refuse_ranks
from bench.launch import Launcher, find_device
from bench.plots import card
from bench.records import columns, peaks, report, results, tables
from bench.records.columns import format_number
from bench.records.verdict import Rate
from bench.settings import (
    FRAMEWORKS,
    MIXED,
    REPEATED,
    ROOT,
    RUN,
    SCOPES,
    SettingError,
    list_runs,
    list_unused,
    read_settings,
)
from bench.workloads import standard_set
from bench.workloads.standard_set import STANDARD_SET
from best_settings import WORKLOADS
from tflops_sweep import first_size

LIMIT = 600  # seconds after which a process is ended
PEAKS_WEIGHT = 3  # the peaks take as long as this number of other processes
FAST = 0.9  # a format of 16 bits is left out if its best matmul is slower than this, compared with float32


@dataclass(frozen=True)
class Combination:
    """Some work in one precision: a script, and the change of the environment for each of its processes."""

    script: str
    changes: tuple[dict[str, str], ...]


def plan_peaks(settings, device):
    """Return the Combination that measures the machine's peaks."""
    formats = ["float32", *list_formats(device)]
    sizes = standard_set.QUICK_PEAKS if settings.quick else standard_set.PEAKS
    return Combination("tflops", ({"PRECISION": ",".join(formats)} | sizes,))


def list_formats(device):
    """Return the formats of 16 bits to try on a device."""
    return [name for name in standard_set.FORMATS if device != "cpu" or name != "float16"]


def plan_work(settings, device, formats):
    """Return the Combinations of the set.

    Args:
        formats: of 16 bits that are fast on the device.
    """
    found, runs = [], settings.runs or (1 if settings.quick else standard_set.RUNS)
    for work in STANDARD_SET:
        if (work.needs_gpu and device == "cpu") or (settings.quick and not work.is_quick):
            continue
        if work.script == "llm" and not FRAMEWORKS[settings.framework].runs_language_models:
            continue
        for numbers in ["float32", *([] if settings.quick else formats)]:
            if work.precision(numbers) in MIXED and "mixed" in FRAMEWORKS[settings.framework].lacks:
                continue
            change = {"MODEL": work.model, "PHASE": work.phase, "BATCH_SIZE": str(work.batch_size)}
            change |= {"PRECISION": work.precision(numbers)} | (standard_set.QUICK if settings.quick else {})
            change |= {"DATA": "synthetic"} if work.script == "mlp" else {}
            changes = [change | ({"SCOPE": "device"} if work.script == "image" else {})] * runs
            if work.has_pipeline and numbers == "float32" and not settings.quick:
                changes[0] = change | {"SCOPE": ",".join(SCOPES)}
            found.append(Combination(work.script, tuple(changes)))
    return found


class Session:
    """The processes of one `make all`: those that are stored already, and those that are still to run."""

    def __init__(self, settings, host, version):
        self.host, self.path = host, settings.results_dir / f"{host.machine}.csv"
        of = host.machine, host.commit, host.python, host.allocator, version
        self.conditions = repr((replace(settings, results_dir=ROOT, runs=None), of))
        self.rows, self.stored = [], {}
        for row in results.read(self.path):
            if row["status"] == "crashed":  # such as by LIMIT on a busy machine: the whole process runs again
                self.stored.pop(row["run_id"], None)
            else:
                self.stored.setdefault(row["run_id"], []).append(row)

    def identify(self, combination, number):
        """Return the run_id of one process of a Combination: equal conditions have equal ones."""
        what = repr((self.conditions, combination.script, sorted(combination.changes[number].items()), number))
        return hashlib.sha256(what.encode()).hexdigest()[:12]

    def count_stored(self, combinations):
        """Count the processes that need not run again."""
        return sum(self.identify(each, i) in self.stored for each in combinations for i in range(len(each.changes)))

    def measure(self, combination, advance):
        """Measure the processes of a Combination that are missing; after a failure the remaining ones are left out.

        Args:
            advance: called with (number of processes, whether they ran now).

        Returns:
            (rows of all its processes as text, whether some of them are new).

        Raises:
            SettingError: the work was refused, and has no row.
        """
        rows, count, is_new = [], len(combination.changes), False
        for number in range(count):
            run_id = self.identify(combination, number)
            runs_now = run_id not in self.stored
            rows += self.launch(combination, number, run_id) if runs_now else self.stored[run_id]
            is_new |= runs_now
            failed = any(row["status"] != "ok" for row in rows)
            advance(count - number if failed else 1, runs_now)
            if failed:
                break
        self.rows += rows
        return rows, is_new

    def launch(self, combination, number, run_id):
        """Run one process and store its rows in one piece, so that an interruption leaves all of them or none."""
        file = "tflops_sweep.py" if combination.script == "tflops" else f"{combination.script}_benchmark.py"
        describe_workload = WORKLOADS.get(combination.script, first_size)
        launcher = Launcher(combination.script, describe_workload, [str(ROOT / file)], self.host)
        with tempfile.TemporaryDirectory() as folder:
            change = {RUN: run_id, REPEATED: "1", "RESULTS_DIR": folder, "MAKEFLAGS": None}
            rows = launcher.launch_silently(combination.changes[number] | change, LIMIT)
        results.append(self.path, *rows)
        return rows


def find_fast(rows, formats):
    """Return the formats of 16 bits in which the best matmul is as fast as in float32 or faster, and why not others.

    A device without an arithmetic unit for a format emulates it, which is slower than float32.
    """
    best = {row["precision"]: float(row["tflops"]) for row in rows if peaks.is_peak(row)}
    rates = {name: f"{format_number(rate, '{:.3g}')} TFLOP/s" for name, rate in best.items()}
    fast, left_out = [], []
    for name in formats:
        if name not in best:
            left_out.append(f"{name} is skipped because no matmul in it was measured")
        elif best[name] >= FAST * best.get("float32", 0):
            fast.append(name)
        else:
            why = f"it is slow on this device (best matmul: {rates[name]}, float32: {rates['float32']})"
            left_out.append(f"{name} is skipped because {why}")
    return fast, left_out


def describe(rows):
    """Describe in one line what a Combination gave."""
    ok = [row for row in rows if row["status"] == "ok" and row["scope"] == "device"]
    if not ok:
        return f"{columns.describe_work(rows[0])}: {rows[0]['status']}: {rows[0]['note']}"
    if ok[0]["workload"] in tables.SINGLE:
        said = [
            f"{row['precision']} {format_number(row['tflops'], '{:.3g}')} TFLOP/s" for row in ok if peaks.is_peak(row)
        ]
        moved = [row for row in ok if row["workload"] == "bandwidth"]
        said += [f"{row['model']} {format_number(row['throughput'], '{:.3g}')} GB/s" for row in moved]
        return f"peaks: {', '.join(said)}"
    rate = Rate.merge(list(map(Rate.of_row, ok)))
    ends = "" if rate.low is None else f", {format_number(rate.low)} to {format_number(rate.high)}"
    count = f"{len(ok)} process{'es' * (len(ok) > 1)}"
    words = f"{columns.describe_work(ok[0])}: {format_number(rate.throughput)} {ok[0]['unit']}{ends} ({count})"
    return "; ".join([words, *(f"{row['status']}: {row['note']}" for row in rows if row["status"] != "ok")])


@contextmanager
def progress(total):
    """Show a bar on stderr with the time left, and redraw it every second; yields the bar."""
    words = "{percentage:3.0f} % |{bar:40}| {elapsed} so far, about {remaining} left"
    bar = tqdm(total=total, bar_format=words, smoothing=0, disable=None, leave=False, file=sys.stderr)
    ended = threading.Event()

    def tick():
        while not ended.wait(1):
            bar.refresh()

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield bar
    finally:
        ended.set()
        thread.join()
        bar.close()


def say(words):
    """Print a line above the bar."""
    tqdm.write(words, file=sys.stdout)
    sys.stdout.flush()


def measure_set(settings, session, device):
    """Measure everything that is missing; say each result, or why there is none, in a line."""
    peak_work, formats = plan_peaks(settings, device), list_formats(device)
    works = plan_work(settings, device, formats)
    stored = session.count_stored([peak_work, *works])
    if stored:
        say(f"skipping {stored} process{'es' * (stored > 1)} already measured with these settings and versions")

    def advance(count, runs_now):
        bar.update(count)
        if not (runs_now or bar.disable):
            bar.initial += count  # the time left follows from those that run now

    with progress(PEAKS_WEIGHT + sum(len(each.changes) for each in works)) as bar:
        rows, is_new = session.measure(peak_work, lambda count, runs_now: advance(PEAKS_WEIGHT, runs_now))
        say(describe(rows))
        formats, left_out = find_fast(rows, formats)
        for words in left_out * (not settings.quick):
            say(words)
        works = plan_work(settings, device, formats)
        bar.total = PEAKS_WEIGHT + sum(len(each.changes) for each in works)
        for combination in works:
            try:
                rows, is_new = session.measure(combination, advance)
            except SettingError as error:
                say(f"{' '.join(combination.changes[0].values())}: {error}")
                advance(len(combination.changes), False)
                continue
            if is_new or any(row["status"] != "ok" for row in rows):
                say(describe(rows))


def main():
    """Measure the set, print and draw the card, and return the exit status: 1 if nothing was measured."""
    refuse_ranks("make all")
    settings = read_settings("all")
    refuse_changes(os.environ)
    if not settings.quick and doctor.examine(settings.results_dir, (settings.framework,)):
        return 1
    found = find_device(settings)
    host = environment.describe_host(settings.machine)
    session = Session(settings, host, found.framework_version)
    results.prepare(session.path)
    version = f"{settings.framework} {found.framework_version}"
    say(f"\nmeasuring the standard set on {host.machine} ({found.device}), {version}")
    if settings.quick:
        say("QUICK=1: one short process per workload, so the intervals do not include variation between processes")
    if not FRAMEWORKS[settings.framework].runs_language_models:
        say(f"language models are skipped: {settings.framework} does not run them here")
    try:
        measure_set(settings, session, found.device)
    except KeyboardInterrupt:
        say("run the same command again to measure the rest")
        raise
    if said := report.describe_slowdown(session.rows, results.read(session.path)):
        say(said)
    for words in card.finish(settings.results_dir, host.machine, settings.framework):
        say(words)
    say(f"added to {cli.display_path(session.path)}; `make submit` prints how to send the results")
    return 0 if any(row["status"] == "ok" for row in session.rows) else 1


def refuse_changes(environ):
    """Raise SettingError for settings that would change the set, which is the same on every machine."""
    for name in list_unused("all", environ):
        raise SettingError(f"{name}={environ[name]!r} would change the set that `make all` measures: unset {name}")
    if len(list_runs("all", environ)) > 1:
        raise SettingError(f"USE_GPU={environ['USE_GPU']!r}: `make all` measures one device: set a single value")


if __name__ == "__main__":
    sys.exit(cli.run_script(main))
