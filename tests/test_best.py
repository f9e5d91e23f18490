"""make best: what it tries, how it runs it, and what it prints. The processes are stand-ins with a table of rates."""

import functools
import math
import re
import shlex
from unittest.mock import Mock

import pytest

import best_settings
from bench import parent
from bench.records import results
from bench.settings import SettingError, read_runs
from bench.tune import candidates
from tests.fakes import FakeChild
from tests.rows import rate

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
        (CUDA, "mlp", {"PRECISION": "fp16,bf16", "COMPILE": "0,0"}, {"PRECISION": "float16 bfloat16"} | DOUBLES),
        (CUDA, "mlp", {"PRECISION": "tf32", "FRAMEWORK": "jax"}, DOUBLES),  # always compiled
    ],
)
def test_what_is_tried(row, script, environ, tried):
    runs = read_runs(script, environ)
    found = candidates.list_dimensions(runs[0], runs, row)
    found = {each.name: "doubles" if each.doubles else " ".join(each.gains) for each in found}
    assert found == {name: text for name, text in tried.items() if " " in text or text == "doubles"}


def test_a_part_of_training_is_not_tuned():
    with pytest.raises(SettingError, match="PHASE='backward'"):
        best_settings.read_search({"PHASE": "backward"})


RATES = {"bfloat16": 3.0, "mixed_bfloat16": 2.0, "1": 1.5, "channels_last": 1.2, "keep": 1.1}
FASTEST = "bfloat16, compiled, channels_last, allocator keeps memory"
DEFAULTS = {"PRECISION": "float32", "COMPILE": "0", "MEMORY_FORMAT": "channels_first", "BATCH_SIZE": "16"}


@pytest.fixture
def search(monkeypatch, tmp_path, capsys):
    """Run make best on a table of rates, one second for each process; returns (status, out, rows, what was asked for).

    Args:
        last: the number of processes before Ctrl-C.
        fails, fails_in_full: (precision, compile) of trials and of long processes that fail.
    """

    def call(last=10**6, rates=RATES, fails=(("mixed_bfloat16", "1"),), fails_in_full=()):
        asked = []

        def work(child):
            if len(asked) == last:
                raise KeyboardInterrupt
            change = child.environ
            asked.append(change | child.task)
            row = {name.lower(): change.get(name, text) for name, text in DEFAULTS.items()}
            keeps = "keep" if "MALLOC_TRIM_THRESHOLD_" in change else ""
            gains = [rates.get(text, 1) for text in (*(row[name.lower()] for name in DEFAULTS), keeps)]
            row |= rate(10.0 * math.prod(gains))
            row |= {
                "output_error": 0.0062 if row["precision"] != "float32" and child.task["compares_with_cpu"] else None
            }
            if (row["precision"], row["compile"]) in (fails_in_full if change["MAX_SECONDS"] == "10" else fails):
                child.write(**row | {"status": "wrong_output", "note": "NaN", "throughput": None})
                return 1
            child.write(**row)
            return
            yield

        monkeypatch.setattr(parent.processes, "Child", functools.partial(FakeChild, work))
        monkeypatch.setattr(best_settings.time, "monotonic", lambda: float(len(asked)))
        status = best_settings.main()
        stored = [row for path in (tmp_path / "results").glob("*.csv") for row in results.read(path)]
        return status, capsys.readouterr().out, stored, asked

    return call


def test_the_rows_of_the_answers_path_are_stored(search):
    status, out, rows, asked = search()
    assert status == 0
    assert re.search(rf"{FASTEST}\n +5.94 times \(5.94 to 5.94\) as fast as the default \(5 pairs", out)
    assert [float(row["throughput"]) for row in rows] == pytest.approx([10, 30, 45, 54, 59.4])
    assert {len(row["process_rates"].split()) for row in rows} == {5}
    assert len({row["search"] for row in rows}) == 1
    assert (rows[0]["allocator"], rows[-1]["allocator"][:7]) == ("", "MALLOC_")
    assert {change["MAX_SECONDS"] for change in asked} == {"3", "10"}
    assert not any(each["has_extras"] for each in asked)


@pytest.mark.parametrize("last", [3, 30])
def test_ctrl_c_prints_the_best_so_far(search, last):
    status, out, *_ = search(last=last)
    assert (status, "make image" in out) == (130, True)
    assert re.search(r"fastest of \d+ tried.*: bfloat16", out)


def test_ctrl_c_in_the_first_round_leaves_the_answer_of_the_trials(search):
    *_, stored, asked = search()
    first_full = [change["MAX_SECONDS"] for change in asked].index("10")
    status, out, rows, _ = search(last=first_full + 2)
    assert (status, rows, "short trial" in out, f"tried: {FASTEST}\n" in out) == (130, stored, True, True)


def test_a_short_search_keeps_to_the_time(search, monkeypatch):
    monkeypatch.setenv("MAX_MINUTES", "0.05")  # three processes
    status, _, rows, asked = search()
    assert (status, len(rows), len(asked) <= 5) == (0, 2, True)


@pytest.mark.parametrize(
    ("options", "has_search", "fastest"),
    [
        ({"rates": dict.fromkeys(RATES, 0.5)}, [True], "the default"),
        ({"fails": [("float32", "0")]}, [False] * 4, FASTEST),  # a default that fails is not the begin of a path
        ({"fails_in_full": [("bfloat16", "1")]}, [True, True], "bfloat16"),
    ],
)
def test_answers_of_other_machines(search, options, has_search, fastest):
    status, out, rows, _ = search(**options)
    assert f"tried: {fastest}\n" in out
    assert (status, [row["search"] != "" for row in rows]) == (0, has_search)


def test_what_cannot_be_stored_is_printed_with_the_answer(search, monkeypatch):
    monkeypatch.setattr(results, "append", Mock(side_effect=results.ResultsError("full")))
    monkeypatch.setattr(results, "check_writable", lambda *arguments: None)
    status, out, rows, _ = search()
    assert (status, rows, f"tried: {FASTEST}\n" in out) == (2, [], True)
    printed = results.parse(out[out.index("schema,") :], "the terminal")
    assert len([line for line in printed if not line.fault]) == 5


def test_what_can_be_pasted_means_the_same(search, monkeypatch):
    monkeypatch.setenv("SEED", "3")
    monkeypatch.setenv("MACHINE", "a machine; rm *")
    words = shlex.split(next(line for line in search()[1].splitlines() if line.endswith("make image")))
    assert {"PRECISION=bfloat16", "COMPILE=1", "SCOPE=device", "MACHINE=a machine; rm *", "SEED=3"} < set(words)
