"""make best: what it tries, how it runs it, and what it prints. The processes are stand-ins with a table of rates."""

import math
import re
import shlex
from types import SimpleNamespace

import pytest

import best_settings
from bench.records import results
from bench.settings import read_runs
from bench.tune import candidates
from tests.rows import ROW, rate

CPU, CUDA = ({"device": device, "batch_size": 16} for device in ("cpu", "cuda"))


@pytest.fixture(autouse=True)
def plain_host(monkeypatch):
    monkeypatch.setattr(candidates.platform, "libc_ver", lambda: ("glibc", "2.36"))


FORMATS = {"MEMORY_FORMAT": "channels_first channels_last"}
KEEPS, DOUBLES = {"ALLOCATOR": " keep"}, {"BATCH_SIZE": "doubles"}
ON_CPU = {"PRECISION": "float32 bfloat16 mixed_bfloat16", "COMPILE": "0 1"} | FORMATS | KEEPS | DOUBLES
GIVEN = {"PRECISION": "bfloat16", "COMPILE": "1,max-autotune", "BATCH_SIZE": "32", "MALLOC_ARENA_MAX": "1"}


@pytest.mark.parametrize(
    ("row", "script", "environ", "tried"),
    [
        (CPU, "image", {}, ON_CPU),
        (CPU, "image", {"PHASE": "training"}, ON_CPU | {"PRECISION": "float32 mixed_bfloat16"}),  # weights in float32
        (CPU, "image", GIVEN, {"COMPILE": "1 max-autotune"} | FORMATS),
        (CUDA, "llm", {}, {"PRECISION": "bfloat16 float16", "COMPILE": "0 1 reduce-overhead"}),
        (CUDA, "mlp", {"PRECISION": "tf32", "FRAMEWORK": "jax"}, DOUBLES),  # always compiled
    ],
)
def test_what_is_tried(row, script, environ, tried):
    runs = read_runs(script, environ)
    found = candidates.list_dimensions(runs[0], runs, row)
    found = {each.name: "doubles" if each.doubles else " ".join(each.gains) for each in found}
    assert found == {name: text for name, text in tried.items() if " " in text or text == "doubles"}


RATES = {"bfloat16": 3.0, "mixed_bfloat16": 2.0, "1": 1.5, "channels_last": 1.2, "keep": 1.1}
FASTEST = "bfloat16, compiled, channels_last, allocator keeps memory"
DEFAULTS = {"PRECISION": "float32", "COMPILE": "0", "MEMORY_FORMAT": "channels_first", "BATCH_SIZE": "16"}


@pytest.fixture
def search(monkeypatch, tmp_path, capsys):
    """Run make best on a table of rates, without noise, one second for each run; returns (status, out, rows, changes).

    Args:
        last: the number of processes before Ctrl-C.
        fails, fails_in_full: (precision, compile) of trials and of full runs that fail.
    """

    def call(last=10**6, rates=RATES, fails=(("mixed_bfloat16", "1"),), fails_in_full=()):
        asked = []

        def run_child(run, host, has_extras, compares_with_cpu, limit):
            if len(asked) == last:
                raise KeyboardInterrupt
            change, compares = run.environ, compares_with_cpu
            asked.append(change | {"compares": compares})
            row = ROW | {name.lower(): change.get(name, text) for name, text in DEFAULTS.items()}
            keeps = "keep" if "MALLOC_TRIM_THRESHOLD_" in change else ""
            gains = [rates.get(text, 1) for text in (*(row[name.lower()] for name in DEFAULTS), keeps)]
            row |= {"run_id": str(len(asked)), "phase": "inference"} | rate(10.0 * math.prod(gains))
            row |= {"output_error": 0.0062 if row["precision"] != "float32" and compares else None}
            if (row["precision"], row["compile"]) in (fails_in_full if change["MAX_SECONDS"] == "10" else fails):
                return [row | {"status": "wrong_output", "note": "NaN", "throughput": None}]
            return [row]

        def measure_rounds(runs, host, limit, has_extras):
            assert {(run.settings.runs, has_extras) for run in runs} == {(5, False)}
            for number in range(5):
                rows_of = {}
                try:
                    for run in runs:
                        rows_of[run] = run_child(run, host, False, number == 0, limit)
                except KeyboardInterrupt:
                    if rows_of and number == 0:
                        yield rows_of
                    raise
                runs = [run for run in runs if rows_of[run][-1]["status"] == "ok"]
                yield rows_of

        monkeypatch.setattr(best_settings, "run_child", run_child)
        monkeypatch.setattr(best_settings, "measure_rounds", measure_rounds)
        monkeypatch.setattr(best_settings, "time", SimpleNamespace(monotonic=lambda: float(len(asked))))
        status = best_settings.main()
        stored = [row for path in (tmp_path / "results").glob("*.csv") for row in results.read(path)]
        return status, capsys.readouterr().out, stored, asked

    return call


def test_the_answer_and_the_rows_of_its_path(search):
    status, out, rows, asked = search()
    assert status == 0
    assert re.search(rf"{FASTEST}\n +5.94 times \(5.94 to 5.94\) the default, by 5 pairs", out)
    assert [float(row["throughput"]) for row in rows] == pytest.approx([10, 30, 45, 54, 59.4])
    assert {(len(row["process_rates"].split()), row["search"]) for row in rows} == {(5, "1")}
    assert (rows[0]["allocator"], rows[-1]["allocator"][:7]) == ("", "MALLOC_")
    assert {change["MAX_SECONDS"] for change in asked} == {"3", "10"}
    compared = [each for each in asked if each["compares"]]
    assert all(compared.count(each) == 1 for each in compared)  # a repetition needs no comparison
    assert len(compared) < len(asked)


@pytest.mark.parametrize("last", [2, 60])
def test_ctrl_c_prints_the_best_so_far(search, last):
    status, out, *_ = search(last=last)
    assert (status, "make image" in out) == (130, True)
    assert re.search(r"fastest of \d+ tried.*: bfloat16", out)


def test_ctrl_c_in_the_first_round_leaves_the_answer_of_the_trials(search):
    *_, stored, asked = search()
    first_full = [change["MAX_SECONDS"] for change in asked].index("10")
    status, out, rows, _ = search(last=first_full + 2)
    assert (status, rows, "short trials" in out, f"tried: {FASTEST}\n" in out) == (130, stored, True, True)


def test_a_short_search_keeps_to_the_time(search, monkeypatch):
    monkeypatch.setenv("MAX_MINUTES", "0.05")  # three processes
    status, _, rows, asked = search()
    assert (status, len(rows), len(asked) <= 5) == (0, 2, True)


@pytest.mark.parametrize(
    ("options", "searches", "fastest"),
    [
        ({"rates": dict.fromkeys(RATES, 0.5)}, ["1"], "the default"),
        ({"fails": [("float32", "0")]}, [""], FASTEST),  # a default that fails has no path
        ({"fails_in_full": [("bfloat16", "1")]}, ["1", "1"], "bfloat16"),  # nor is it run again
    ],
)
def test_answers_of_other_machines(search, options, searches, fastest):
    status, out, rows, _ = search(**options)
    assert (status, [row["search"] for row in rows], f"tried: {fastest}\n" in out) == (0, searches, True)


def test_what_can_be_pasted_means_the_same(search, monkeypatch):
    monkeypatch.setenv("OPTIMIZER", "sgd")
    monkeypatch.setenv("MACHINE", "a machine; rm *")
    words = shlex.split(next(line for line in search()[1].splitlines() if line.endswith("make image")))
    assert {"PRECISION=bfloat16", "COMPILE=1", "SCOPE=device", "MACHINE=a machine; rm *", "OPTIMIZER=sgd"} < set(words)
