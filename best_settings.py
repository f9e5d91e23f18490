"""Find the fastest settings of a workload on this machine, and the gain of each change.

    make best
    MODEL=mobilenet_v2 PHASE=training make best
    WORKLOAD=transformer MAX_MINUTES=40 make best
    PRECISION=float32 COMPILE=0,1 make best             one value is held fixed, a list restricts what is tried

bench/search.py decides what is compared next. docs/best.md says how to set the answer in a script of one's own. See
`make settings`.
"""

import functools
import logging
import os
import shlex
import sys
import time
from contextlib import suppress
from itertools import pairwise

from bench import processes
from bench.host.ranks import refuse_ranks
from bench.parent import find_device, has_result, measure_rounds, read_machine
from bench.records import report, results
from bench.records.columns import FINAL, SEARCH, describe_change, describe_work, format_number
from bench.records.combine import combine
from bench.search import Search, compare
from bench.settings import DECLARED, PARTS, WORKLOADS, Run, SettingError, is_used, new_id, read_runs

log = logging.getLogger("bench")

# {setting: {device: values that may be faster, the fastest first}}. Those after the default's own are not tried.
TRIED = {
    "PRECISION": {
        "cpu": ("bfloat16", "mixed_bfloat16"),
        "cuda": ("float16", "bfloat16", "mixed_float16", "mixed_bfloat16", "tf32"),
        "mps": ("float16", "bfloat16", "mixed_float16", "mixed_bfloat16"),
    },
    "COMPILE": {"cpu": ("1",), "cuda": ("1", "reduce-overhead"), "mps": ("1",)},
    "MEMORY_FORMAT": dict.fromkeys(("cpu", "cuda", "mps"), ("channels_last",)),
}
LISTS = (*TRIED, "BATCH_SIZE")  # settings that may be a list
# Weights in 16 bits lose small updates: such a training is fast and does not learn.
NOT_IN_TRAINING = ("bfloat16", "float16")
LEAST_LIMIT, LIMIT_SHARE = 120, 0.15  # a process is ended after the longer of: these seconds, this share of the time
ALLOWED = {"RUNS": "1", "NUM_DEVICES": "1", "SCOPE": "device", "EPOCHS": "0"}
ALLOWED |= dict.fromkeys(("SUSTAIN", "NUM_IMAGES"))
NOT_REPEATED = ("MAX_SECONDS", "RESULTS_DIR")


def read_search(environ):
    """Read the settings of `make best`.

    Returns:
        (settings of the search, the runs of its workload, as read_runs() returns them).

    Raises:
        SettingError: also for other quantities, and lists of other settings.
    """
    search, *_ = read_runs("best", environ, also=WORKLOADS)
    runs = read_runs(search.settings.workload, environ, also=("best",))
    for name, only in ALLOWED.items():
        if environ.get(name) not in (None, only):
            raise SettingError(f"{name}={environ[name]!r} does not suit `make best`, which measures one rate: unset it")
    for name in sorted(runs[0].choices.keys() - set(LISTS)):
        if name in environ:
            raise SettingError(f"{name}={environ[name]!r} must be one value in `make best`: run it once for each")
    if runs[0].settings.phase in PARTS:
        raise SettingError(f"PHASE={environ['PHASE']!r} does not suit `make best`: set PHASE=training")
    return search.settings, runs


def list_values(run: Run, runs, device):
    """Return what a search tries, {setting: its values, the default first}, and whether the batch size is doubled.

    Args:
        run: the default run; its environment has what the user set.
        runs: what the lists of the environment ask for, as read_runs() returns them.
        device: the Device that they run on.
    """
    settings = run.settings.on(device.type, device.emulates_bfloat16)
    left_out = NOT_IN_TRAINING if settings.phase == "training" else ()
    if device.emulates_bfloat16 and settings.phase != "decode":  # which reads half of the bytes
        left_out += ("bfloat16", "mixed_bfloat16")
    values = {}
    for name in filter(run.environ.__contains__, LISTS):
        values[name] = list(dict.fromkeys(str(other.settings.cell(name.lower())) for other in runs))
    for name, on in TRIED.items():
        if name in values or not is_used(name.lower(), run.command):
            continue
        default, faster = str(settings.cell(name.lower())), on.get(device.type, ())
        values[name] = [default]
        for value in faster[: faster.index(default)] if default in faster else faster:
            with suppress(SettingError):  # this framework does not have it in this phase
                run.with_settings(**{name: value})
                values[name] += [value] if value not in left_out else []
    # In prefill and decode a larger batch is another task: more sequences at once.
    doubles = "BATCH_SIZE" not in values and settings.phase not in ("prefill", "decode")
    values = {name: some for name, some in values.items() if len(some) > 1}
    if doubles:
        values["BATCH_SIZE"] = [str(settings.batch_size)]
    return values, doubles


def measure(find_run, values, host, limit, group, candidates, numbers, is_final, choose):
    """Measure candidates, as Search takes it, and log the gain of each.

    Args:
        find_run: candidate -> its Run, the same each time.
        values: as list_values() returns them.
        group: the name of the search; the last comparison has another one.
        limit: seconds after which a process is ended; the first ones may download data or compile kernels.
    """
    base, *changes = candidates
    log.info("the fastest so far (%s) and %s", describe(values, base), list_in_words(values, changes, base))
    candidate_of = {find_run(each): each for each in candidates}

    def choose_runs(rows_of):
        chosen = choose({candidate_of[each]: rows for each, rows in rows_of.items()})
        return [each for each in rows_of if candidate_of[each] in chosen]

    rounds = []
    limit = limit if numbers[0] > 1 else processes.FIRST_LIMIT
    group = group + FINAL if is_final else group
    with report.progress(len(numbers) * len(candidates)) as show:
        options = {"group": group, "limit": limit, "choose": choose_runs, "warns": False}
        for rows_of in measure_rounds(list(candidate_of), host, show, numbers, **options):
            rounds.append({candidate_of[each]: rows for each, rows in rows_of.items()})
            yield rounds[-1]
    for change in changes:
        log.info("    + %s: %s", describe(values, change, base), describe_gain(rounds, change, base))


def describe(values, candidate, before=None):
    """Return in words how a candidate differs from another one, or from the default."""
    before = before or [each[0] for each in values.values()]
    cells = [dict(zip(map(str.lower, values), each, strict=True)) for each in (before, candidate)]
    return describe_change(*cells) or "the default"


def list_in_words(values, changes, base):
    return "; ".join(f"+ {describe(values, change, base)}" for change in changes)


def describe_gain(rounds, candidate, base):
    """Describe how much faster a candidate is than another one in the rounds that have both, or why it is unknown."""
    rows = [rows_of[candidate][-1] for rows_of in rounds if candidate in rows_of]
    comparison = compare(rounds, candidate, base)
    if rows and rows[-1]["status"] != "ok":
        return f"{rows[-1]['status']}: {rows[-1]['note']}"
    if not comparison:
        return "no complete pair"
    ratio, low, high = comparison.ratio
    interval = f"{low:.2f} to {high:.2f}, " if comparison.pairs > 1 else ""
    return f"{ratio:.2f} times as fast ({interval}{report.describe_pairs(comparison)})"


def combine_path(search):
    """Return {candidate: the result of its processes}, from the default to the answer; {} without the default."""
    combined = {}
    for step in search.answer():
        rows = [row for rows_of in (*search.rounds, *search.final) for row in rows_of.get(step, [])]
        if not has_result(rows):
            break
        combined[step] = combine(rows)[0]
    return combined


def describe_answer(search: Search, rows):
    """Return the lines of the answer; the rows are those of combine_path()."""
    default, fastest, answer = search.path[0], search.path[-1], list(rows)[-1]
    row = rows[answer]
    lines = [f"{describe_work(rows[default])}, {row['framework']} {row['framework_version']} on {row['device_name']}"]
    gain = describe_gain(search.final, fastest, default)
    words = describe(search.values, fastest)
    if fastest == default:
        headline = "the default is the fastest"
    elif answer == default:
        headline = (
            f"the default is the fastest; {words} was faster in the search, but not in the last comparison: {gain}"
        )
    elif compare(search.final, fastest, default):
        headline = f"{gain.replace('as fast', 'as fast as the default', 1)}: {words}"
    else:
        headline = f"the fastest so far, without the last comparison: {words}"
    lines += [headline, f"  the default: {format_number(rows[default]['throughput'])} {row['unit']}"]
    for before, step in pairwise(rows):
        rate = f"{format_number(rows[step]['throughput'])} {row['unit']}"
        lines.append(
            f"  + {describe(search.values, step, before)}: {rate}, {describe_gain(search.rounds, step, before)}"
        )
    if row["flags"]:
        lines.append(report.explain_flags(row["flags"].split()))
    for candidate, failed in search.failures().items():
        lines.append(f"failed: {describe(search.values, candidate)}: {failed['status']}: {failed['note']}")
    if untried := search.list_changes():
        lines.append(f"not tried: {list_in_words(search.values, untried, fastest)} (a larger MAX_MINUTES tries more)")
    return lines


def finish(search, find_run):
    """Print the answer; without a result of the default there is none."""
    rows = combine_path(search)
    if not rows:
        return
    print("\n".join(describe_answer(search, rows)))
    run = find_run(search.answer()[-1])
    names = [name.upper() for name in DECLARED if is_used(name, run.command) and name.upper() in run.environ]
    words = [f"{name}={shlex.quote(run.environ[name])}" for name in names if name not in NOT_REPEATED]
    print(f"\nTo measure it again:\n    make {run.command} {' '.join(words)}")
    print("To set the same in a script of your own: docs/best.md\n")
    path = results.path_of(run.settings.results_dir, rows[search.path[0]])
    print(f"added to {results.display_path(path)}", flush=True)


def main():
    """Search, and print the answer; the exit status is 0 if something was measured."""
    refuse_ranks("make best")
    begun = time.monotonic()
    search_settings, runs = read_search(os.environ)
    available = 60 * search_settings.max_minutes
    run = runs[0].with_settings(SCOPE="device") if is_used("scope", search_settings.workload) else runs[0]
    host = read_machine([run])
    log.info("Ctrl-C ends the search and prints the best so far")
    device = find_device(run)
    settings = run.settings.on(device.type)
    run = run.with_settings(MODEL=settings.model, PHASE=settings.phase)
    values, doubles = list_values(run, runs, device)
    if not values:
        raise SettingError(f"nothing is left to try on {device.type}: unset {', '.join(LISTS)}, or set lists of them")
    find_run = functools.cache(lambda candidate: run.with_settings(**dict(zip(values, candidate, strict=True))))
    limit = max(LEAST_LIMIT, LIMIT_SHARE * available)
    measure_candidates = functools.partial(measure, find_run, values, host, limit, SEARCH + new_id())
    search = Search(values, doubles, measure_candidates, lambda: (time.monotonic() - begun) / available)
    try:
        search.run()
    finally:  # also after Ctrl-C
        with processes.interrupts_held():
            finish(search, find_run)
    if not combine_path(search):
        note = search.failures()[search.path[0]]["note"]
        raise SettingError(f"the default failed ({note}): `make {run.command}` shows more")
    return 0


if __name__ == "__main__":
    sys.exit(processes.run_script(main))
