"""Measure the standard set on this machine, and draw a card that shows the results.

    make all                              20 to 30 minutes on two CPU cores
    QUICK=1 make all                      a few minutes: fewer workloads, one short process each, wider intervals
    FRAMEWORK=tensorflow make all

bench/workloads/standard_set.py lists what is measured: the machine's peaks, then each workload in several fresh
processes. They are measured in passes, one process of each work, then the second of each: those of one work are minutes
apart, and a card is drawn after each pass, on a GPU also after the first lines. After an interruption, run the same
command again: it goes on where it was. What other programs or swapping disturbed is then measured once more.
"""

import json
import math
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from tqdm import tqdm

from bench import doctor, processes
from bench.host import resources
from bench.host.ranks import refuse_ranks
from bench.parent import find_device, plan_processes, read_machine, run_processes, store
from bench.plots import card, table
from bench.records import columns, report, results
from bench.records.columns import disturbing_flags, format_number
from bench.records.rows import combine, complete_row
from bench.settings import Run, SettingError, read_fixed_run
from bench.workloads import standard_set
from bench.workloads.standard_set import STANDARD_SET

LIMIT = 600  # seconds after which a process is ended, except the first one
COMPILE_LIMIT = 240  # the same if it compiles, which may never end
FAST = 0.9  # a precision of 16 bits is left out if its best matmul is slower than this, compared with float32
FASTER = 1.1  # float16 takes the place of bfloat16 if its best matmul is faster than this: T4, V100, M1
UNFINISHED = ("crashed", "timed_out")  # such as by LIMIT on a busy machine: tried once more
# Columns that agree in all processes of a set: others are of another set.
AGREEING = ("commit", "python", "framework", "framework_version", "machine", "device", "device_name", "allocator")
AGREEING += ("num_threads", "seed")


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
        if not line.suits(device.kind, settings.framework) or (is_quick and not line.is_quick):
            continue
        if line.below_gb and not is_shared and memory_gb >= line.below_gb and settings.framework == "torch":
            continue  # the larger batch is measured
        if line.compile and device.why_not_compiled:
            uncompiled.append(line.title)
            continue
        usual = 1 if is_quick or line.is_latency else standard_set.RUNS
        for precision in line.list_precisions(device.kind, sixteen):
            if is_quick and device.kind == "cpu" and precision != "float32":
                continue
            needed = line.needed_gb(precision, is_shared)
            if memory_gb < needed:
                small.append(f"{line.title} {line.phase}, batch {line.batch_size} ({needed} GB)")
                continue
            change = line.environ(device.kind, settings.framework, precision, device.why_not_compiled == "")
            if is_quick:
                change |= standard_set.QUICK
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


class SetFile:
    """The processes of a set in a file next to the results, so that each one adds to the rows of its work there.

    Attributes:
        rows_of: {name of the set and the work: [the rows of each of its processes]}.
    """

    def __init__(self, folder, blank):
        """Read the processes of the set that a row without a result, blank, belongs to."""
        self.blank = blank
        self.path = Path(folder, f"{blank['machine']}.set.jsonl")
        self.name = " ".join(str(blank[name]) for name in AGREEING) + ": "
        self.rows_of = defaultdict(list)
        for work, rows in map(json.loads, results.read_text(self.path).splitlines()):
            if work.startswith(self.name):
                self.rows_of[work].append(rows)

    def add(self, work, rows):
        """Store and return the combined rows of a work with one process more; a kill or a full disk loses no other."""
        self.rows_of[work].append(rows)
        run_ids = {row["run_id"] for each in self.rows_of[work] for row in each}
        combined = combine(self.rows_of[work])
        store(self.path.parent, combined, replaced=run_ids)
        with results.writing(self.path):
            text = results.read_text(self.path) + json.dumps([work, rows], default=str) + "\n"
            results.replace_file(self.path, text.encode())
        return combined

    def is_missing(self, work, count):
        """Return whether a work needs another process, because fewer than `count` have a result.

        It needs none after a failure, but what crashed or timed out is tried once more.
        """
        failed = [rows for rows in self.rows_of[work] if all(row["status"] != "ok" for row in rows)]
        is_hopeless = len(failed) > 1 or any(rows[-1]["status"] not in UNFINISHED for rows in failed)
        return not is_hopeless and len(self.rows_of[work]) - len(failed) < count


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
    """Describe the combined rows of a run, a line each."""
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


def measure_passes(works, kept: SetFile, host, describe_rows=describe_lines, first_card=""):
    """Measure one process of each work, then the second of each, and so on; say each result so far.

    What is complete is left out, unless it is disturbed and was not repeated.

    Args:
        works: {name: run}.
        first_card: the work after which a card is drawn in the first pass, too.

    Returns:
        The combined rows of all of them.
    """
    runs = {}
    for name, run in works.items():
        work = kept.name + name
        is_disturbed = any(map(disturbing_flags, combine(kept.rows_of[work])))
        is_again = is_disturbed and not kept.is_missing(work, plan_processes(run))
        runs[work + " again" * is_again] = run

    def list_missing():
        return [work for work, run in runs.items() if kept.is_missing(work, plan_processes(run))]

    missing = list_missing()
    if len(missing) < len(runs):
        say(f"skipping {len(runs) - len(missing)} of {len(runs)}: {results.display_path(kept.path)} has them")
    if again := sum(work.endswith(" again") for work in missing):
        say(f"measuring {again} of them again, because other programs disturbed them")
    with report.progress(sum(plan_processes(runs[work]) - len(kept.rows_of[work]) for work in missing)) as show:
        while missing:
            least = min(len(kept.rows_of[work]) for work in missing)  # an interrupted pass goes on
            for work in [work for work in missing if len(kept.rows_of[work]) == least]:
                run = runs[work]
                is_first = all(any(row["status"] in UNFINISHED for row in rows) for rows in kept.rows_of[work])
                limit = LIMIT if any(kept.rows_of.values()) else processes.FIRST_LIMIT
                if run.settings.compile and run.settings.framework == "torch":
                    limit = COMPILE_LIMIT
                rounds = [{}]  # in the first round run_processes() would keep what Ctrl-C leaves
                try:
                    run_processes([run], host, rounds, limit, show, has_extras=is_first, compares_with_cpu=is_first)
                except SettingError as error:
                    say(f"{run.command} {run.settings.model or ''}: {error}")
                    del runs[work]
                finally:
                    with processes.interrupts_held():
                        if rows := rounds[-1].get(run):
                            say(describe_rows(kept.add(work, rows), None))
                if least == 0 and work == kept.name + first_card:
                    draw_card(kept)
            if missing := list_missing():
                draw_card(kept)
    return [row for work in runs for row in combine(kept.rows_of[work])]


def draw_card(kept: SetFile):
    """Draw the card of the results so far, and say its path."""
    say(card.finish(kept.path.parent, kept.blank["machine"], kept.blank["framework"])[-1])


def measure_set(run: Run, host, device, blank):
    """Measure everything that is missing; say each result, or why there is none.

    Args:
        run: the Run of `make all`.
        device: the Device that its framework finds.
        blank: a row of this machine and device without a result.

    Returns:
        Whether there is any result, new or stored.
    """
    kind = "cpu" if device.kind == "cpu" else "gpu"
    change = (standard_set.QUICK_PEAKS if run.settings.quick else standard_set.PEAKS)[kind]
    kept = SetFile(run.settings.results_dir, blank)
    sweep = run.with_settings("tflops", **change, RUNS="1")
    rows = measure_passes({f"tflops {change}": sweep}, kept, host, report.describe_sweep)
    sixteen = choose_sixteen(find_peaks(rows), device.kind)
    is_shared = resources.shares_memory(device)
    memory_gb = host.memory_gb if is_shared else resources.read_card_gb()
    works = plan_lines(run, device, sixteen, memory_gb, is_shared)
    first_card = "" if kind == "cpu" else [*works, ""][min(standard_set.FIRST_CARD, len(works)) - 1]
    rows += measure_passes(works, kept, host, first_card=first_card)
    return any(row["status"] == "ok" for row in rows)


def main():
    """Measure the set, print and draw the card, and return the exit status: 1 if nothing was measured."""
    refuse_ranks("make all")
    run = read_fixed_run("all")  # the set is the same on every machine
    settings = run.settings
    if not settings.quick and doctor.examine((settings.framework,)):
        return 1
    device = find_device(run.with_settings("tflops"))
    host = read_machine([run])
    line = {name: getattr(device, name) for name in ("device_name", "framework_version", "num_threads")}
    line |= {"device": device.kind, "framework": settings.framework, "seed": settings.seed}
    blank = complete_row(host, "", line)
    say(f"\nthe standard set on {blank['machine']} ({device.kind}), {settings.framework} {device.framework_version}")
    say("20 to 30 minutes on two CPU cores, a few minutes with QUICK=1")
    say("measured in passes, one process of each work: Ctrl-C keeps what is complete, and the same command goes on")
    has_result = measure_set(run, host, device, blank)
    for words in card.finish(settings.results_dir, blank["machine"], settings.framework):
        say(words)
    say("\nall results of this machine: earlier ones count where new ones were disturbed, or are of one process")
    say(table.describe_set(settings.results_dir, say, [blank[name] for name in table.SIDE]))
    path = results.path_of(settings.results_dir, blank)
    say(f"added to {results.display_path(path)}: `make plot` draws it, `make submit` prints how to send it")
    if device.kind == "mps" and settings.framework != "mlx":
        say("`FRAMEWORK=mlx make all` measures the language models in MLX")
    return 0 if has_result else 1


if __name__ == "__main__":
    sys.exit(processes.run_script(main))
