"""Measure the standard set on this machine, and draw a card that shows the results.

    make all                              20 to 30 minutes on two CPU cores
    QUICK=1 make all                      a few minutes: fewer workloads, one short process each, wider intervals
    FRAMEWORK=tensorflow make all

bench/workloads/standard_set.py lists what is measured: the machine's peaks, then each workload in several fresh
processes. They are measured in passes, one process of each work, then the second of each: those of one work are minutes
apart, and a card is drawn after each pass, on a GPU also after the first lines. After an interruption, run the same
command again: it goes on where it was. What other programs or swapping disturbed is measured again.
"""

import hashlib
import math
import sys
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace

from bench import processes  # isort: skip  # first, because it tells of a missing package

from tqdm import tqdm

from bench.host import resources
from bench.host.ranks import refuse_ranks
from bench.parent import find_device, has_result, make_child, plan_processes, read_machine, run_children
from bench.plots import card, table
from bench.records import columns, report, results
from bench.records.columns import disturbing_flags, format_number
from bench.records.combine import combine, convert
from bench.records.rows import complete_row
from bench.settings import Run, SettingError, read_runs
from bench.workloads import standard_set
from bench.workloads.standard_set import STANDARD_SET

LIMIT = 600  # seconds after which a process is ended, except the first one
FAST = 0.9  # a precision of 16 bits is left out if its best matmul is slower than this, compared with float32
FASTER = 1.1  # float16 takes the place of bfloat16 if its best matmul is faster than this: T4, V100, M1
UNFINISHED = ("crashed", "timed_out")  # such as by LIMIT on a busy machine: tried once more
# Columns that agree in all processes of a run of the set.
AGREEING = ("commit", "python", "framework", "framework_version", "machine", "device", "device_name", "allocator")
AGREEING += ("cpu_id", "num_threads", "seed")


def plan_lines(run: Run, device, sixteen, memory_gb=math.inf, is_shared=True):
    """Return {name: run} of the lines of the set on this Device, in the order of measuring; say what is left out.

    Args:
        run: the Run of `make all`.
        sixteen: the precision of 16 bits that is fast on the device; "" if none is.
        memory_gb: the device's memory in units of 2**30 bytes, if it is known.
        is_shared: whether that is the system's.
    """
    settings = run.settings
    is_quick = settings.quick
    runs = {}
    uncompiled = []
    small = []
    for line in STANDARD_SET:
        if not line.suits(device.type, settings.framework) or (is_quick and not line.is_quick):
            continue
        if line.below_gb and not is_shared and memory_gb >= line.below_gb and settings.framework == "torch":
            continue  # the larger batch is measured
        if line.compile and device.why_not_compiled:
            uncompiled.append(line.title)
            continue
        usual = 1 if is_quick or line.is_latency else standard_set.RUNS
        for precision in line.list_precisions(device.type, sixteen):
            needed = line.needed_gb(precision, is_shared)
            if memory_gb < needed:
                small.append(f"{line.title} {line.phase}, batch {line.batch_size} ({needed} GB)")
                continue
            change = line.environ(device.type, settings.framework, precision, device.why_not_compiled == "")
            if is_quick:
                change["MAX_SECONDS"] = "1"
                if line.workload == "image":
                    change["SCOPE"] = "device"
            with suppress(SettingError):  # this framework does not have it
                count = str(settings.runs or usual)
                runs[f"{line.workload} {change}"] = run.with_settings(line.workload, **change, RUNS=count)
    if uncompiled:
        say(f"{'; '.join(uncompiled)} are skipped: {device.why_not_compiled}")
    if small:
        memory = "shared memory" if is_shared else "memory of the card"
        say(f"{'; '.join(small)}: skipped, because the {memory} has {memory_gb:.3g} GB")
    return runs


class Kept:
    """The rows of a machine's file, by run.

    Attributes:
        rows_of: {run_id: rows}; rows that are measured are added.
    """

    def __init__(self, folder, blank):
        """Read the file that a row without a result, blank, belongs to."""
        self.blank = blank
        self.folder = folder
        self.path = results.path_of(folder, blank)
        self.rows_of = defaultdict(list)
        for row in results.read(self.path):
            self.rows_of[row["run_id"]].append(convert(row))

    def name_run(self, work, run: Run):
        """Return the run with the name that the same work on the same machine and versions has in each command."""
        words = repr((work, [str(self.blank[name]) for name in AGREEING]))
        return replace(run, run_id=hashlib.sha256(words.encode()).hexdigest()[:12])

    def list_processes(self, run):
        """List the rows of each process of a run, in order."""
        by_process = defaultdict(list)
        for row in self.rows_of.get(run.run_id, []):
            by_process[int(row["process"])].append(row)
        return list(by_process.values())

    def is_missing(self, run):
        """Return whether a run needs another process, because fewer than RUNS have an undisturbed result.

        It needs none after a failure, but what crashed or timed out is tried once more, nor after twice RUNS processes.
        """
        of_run = self.list_processes(run)
        failed = [rows for rows in of_run if not has_result(rows)]
        if len(failed) > 1 or any(rows[-1]["status"] not in UNFINISHED for rows in failed):
            return False
        sound = [rows for rows in of_run if has_result(rows) and not any(map(disturbing_flags, rows))]
        count = plan_processes(run)
        return len(sound) < count and len(of_run) - len(failed) < 2 * count


def find_peaks(rows):
    """Return {precision: TFLOP/s of the best matmul} of rows of `make tflops`."""
    peaks = [row for row in rows if row["model"] == "matmul-peak" and row["status"] == "ok"]
    return {row["precision"]: float(row["tflops"]) for row in sorted(peaks, key=lambda row: float(row["tflops"]))}


def choose_sixteen(peaks, device):
    """Return the precision of 16 bits for a kind of device, "" if none is fast, which it says.

    A device without an arithmetic unit for a precision emulates it, which is slower than float32.

    Args:
        peaks: as find_peaks() returns them.
    """
    bfloat16, float16 = (peaks.get(name, 0) for name in standard_set.SIXTEEN)
    name = "float16" if device != "cpu" and float16 > FASTER * bfloat16 else "bfloat16"
    if peaks.get(name, 0) >= max(FAST * peaks.get("float32", 0), 1e-9):
        return name
    say("16 bits are skipped: their best matmul failed or is slower than that of float32")
    return ""


def describe_lines(rows, _):
    """Describe the results of a run, a line each."""
    lines = []
    for row in rows:
        result = f"{row['status']}: {row['note']}"
        if row["status"] == "ok":
            flags = f" [{row['flags']}]" if row["flags"] else ""
            result = f"{format_number(row['throughput'])} {row['unit']}, {report.describe_interval(row)}{flags}"
        lines.append(f"{columns.describe_work(row)}: {result}")
    return "\n".join(lines)


def say(words):
    """Print a line above the bar."""
    tqdm.write(words, file=sys.stdout)
    sys.stdout.flush()


def measure_passes(works, kept: Kept, host, describe_rows=describe_lines, first_card=""):
    """Measure one process of each work, then the second of each, and so on; say each result so far.

    Args:
        works: {name: run}.
        first_card: the work after which a card is drawn in the first pass, too.

    Returns:
        The results of all of them.
    """
    runs = {work: kept.name_run(work, run) for work, run in works.items()}
    missing = [work for work, run in runs.items() if kept.is_missing(run)]
    if len(missing) < len(runs):
        say(f"skipping {len(runs) - len(missing)} of {len(runs)}: {results.display_path(kept.path)} has them")
    begun = {work: len(kept.list_processes(run)) for work, run in runs.items()}
    with report.progress(sum(max(1, plan_processes(runs[work]) - begun[work]) for work in missing)) as show:
        while missing:
            least = min(begun[work] for work in missing)  # an interrupted pass goes on
            for work in [work for work in missing if begun[work] == least]:
                run = runs[work]
                limit = LIMIT if any(begun.values()) else processes.FIRST_LIMIT
                try:
                    measure_process(run, kept, host, show, limit)
                    say(describe_rows(combine(kept.rows_of[run.run_id]), None))
                except SettingError as error:
                    say(f"{run.command} {run.settings.model or ''}: {error}")
                    if isinstance(error, results.ResultsError):
                        raise
                    del runs[work]
                begun[work] += 1
                if least == 0 and work == first_card:
                    draw_card(kept)
            missing = [work for work, run in runs.items() if kept.is_missing(run)]
            if missing:
                draw_card(kept)
    return [row for run in runs.values() for row in combine(kept.rows_of[run.run_id])]


def measure_process(run: Run, kept: Kept, host, show, limit):
    """Measure one more process of a run, and keep its rows."""
    before = kept.list_processes(run)
    number = 1 + max((int(rows[0]["process"]) for rows in before), default=0)  # a row may have been removed
    child = make_child(run, show, limit, card_is_shared=host.card_is_shared, warns=number == 1)
    rows_of, error = run_children({run: child}, host, number)
    kept.rows_of[run.run_id] += rows_of.get(run, [])
    if error:
        raise error


def draw_card(kept: Kept):
    """Draw the card of the results so far, and say its path."""
    say(card.finish(kept.folder, kept.blank["machine"], kept.blank["framework"])[-1])


def measure_set(run: Run, host, device, blank):
    """Measure everything that is missing; say each result, or why there is none.

    Args:
        run: the Run of `make all`.
        device: the Device that its framework finds.
        blank: a row of this machine and device without a result.

    Returns:
        Whether there is any result, new or stored.
    """
    kind = "cpu" if device.type == "cpu" else "gpu"
    change = (standard_set.QUICK_PEAKS if run.settings.quick else standard_set.PEAKS)[kind]
    kept = Kept(run.settings.results_dir, blank)
    sweep = run.with_settings("tflops", **change, RUNS="1")
    rows = measure_passes({f"tflops {change}": sweep}, kept, host, report.describe_sweep)
    has_sixteen = kind == "gpu" or not run.settings.quick  # a quick set on a CPU is in float32
    sixteen = choose_sixteen(find_peaks(rows), device.type) if has_sixteen else ""
    is_shared = resources.shares_memory(device)
    memory_gb = host.memory_gb if is_shared else resources.read_card_gb()
    works = plan_lines(run, device, sixteen, memory_gb, is_shared)
    first_card = "" if kind == "cpu" else [*works, ""][min(standard_set.FIRST_CARD, len(works)) - 1]
    rows += measure_passes(works, kept, host, first_card=first_card)
    return has_result(rows)


def find_place(run: Run):
    """Return (Host, Device, a row of both without a result) of what measures here; warn as read_machine() does."""
    host = read_machine([run])
    device = find_device(run.with_settings("tflops"))
    line = {name: getattr(device, name) for name in ("device_name", "framework_version", "num_threads")}
    line |= {"device": device.type, "framework": run.settings.framework, "seed": run.settings.seed}
    return host, device, complete_row(host, line)


def main():
    """Measure the set, print and draw the card, and return the exit status: 1 if nothing was measured."""
    refuse_ranks("make all")
    (run,) = read_runs("all")  # the set is the same on every machine
    settings = run.settings
    host, device, blank = find_place(run)
    say(f"\nthe standard set on {blank['machine']} ({device.type}), {settings.framework} {device.framework_version}")
    say("20 to 30 minutes on two CPU cores, a few minutes with QUICK=1")
    say("measured in passes, one process of each work: Ctrl-C keeps what is complete, and the same command goes on")
    is_ok = measure_set(run, host, device, blank)
    for words in card.finish(settings.results_dir, blank["machine"], settings.framework):
        say(words)
    say("\nall results of this machine: earlier ones count where new ones were disturbed, or are of one process")
    say(table.describe_set(settings.results_dir, say, [blank[name] for name in table.SIDE]))
    path = results.path_of(settings.results_dir, blank)
    say(f"the rows are in {results.display_path(path)}: `make plot` draws them, `make submit` prints how to send them")
    if device.type == "mps" and settings.framework != "mlx":
        say("`FRAMEWORK=mlx make all` measures the language models in MLX")
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(processes.run_script(main))
