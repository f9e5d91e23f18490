"""make best: what it tries, how it runs it, and what it prints. The processes are stand-ins with a table of rates."""

import functools
import math
import re
import shlex
from collections import Counter
from dataclasses import asdict

import pytest

import best_settings
from bench import process
from bench.frameworks import Device
from bench.settings import SettingError, read_runs
from tests.fakes import FakeChild
from tests.rows import combine, rate, read_rows

CPU, CUDA = (Device(kind, None, "2.15", 2) for kind in ("cpu", "cuda"))
AVX2, OLD = (Device(kind, None, "2.15", 2, emulates_bfloat16=True) for kind in ("cpu", "cuda"))
FORMATS = {"MEMORY_FORMAT": "channels_last"}
ON_CPU = {"PRECISION": "bfloat16 mixed_bfloat16", "COMPILE": "1"} | FORMATS
GIVEN = {"PRECISION": "bfloat16", "COMPILE": "1,max-autotune", "BATCH_SIZE": "32"}
TRAINING = {"PHASE": "training", "BATCH_SIZE": "8"}
MODES = {"COMPILE": "1 reduce-overhead"}


@pytest.mark.parametrize(
    ("device", "script", "environ", "tried"),
    [
        (CPU, "image", {}, ON_CPU),
        (CPU, "image", {"PHASE": "training"}, ON_CPU | {"PRECISION": "mixed_bfloat16"}),  # weights in float32
        (CPU, "image", GIVEN, {"COMPILE": "max-autotune"} | FORMATS),
        (CUDA, "image", TRAINING, {"PRECISION": "mixed_float16 mixed_bfloat16 tf32"} | MODES | FORMATS),
        (CUDA, "llm", {}, {"PRECISION": "float16"} | MODES),
        (OLD, "llm", {}, MODES),  # float16 is the default
        (AVX2, "image", {}, {"COMPILE": "1"} | FORMATS),
        (AVX2, "llm", {"PHASE": "decode"}, {"PRECISION": "bfloat16", "COMPILE": "1"}),
        (CUDA, "mlp", {"PRECISION": "tf32", "FRAMEWORK": "jax"}, {}),  # always compiled
    ],
)
def test_what_is_tried(device, script, environ, tried):
    values = best_settings.list_values(read_runs(script, environ), device)
    assert {name: " ".join(texts) for name, texts in values.items() if texts} == tried


@pytest.mark.parametrize(("name", "text"), [("PHASE", "backward"), ("RUNS", "3"), ("IMAGE_MODEL", "a,b")])
def test_what_a_search_cannot_hold_fixed_is_refused(name, text):
    with pytest.raises(SettingError, match=f"{name.removeprefix('IMAGE_')}='{text}'"):
        best_settings.read_search({name: text})


RATES = {"bfloat16": 3.0, "mixed_bfloat16": 2.0, "1": 1.5, "channels_last": 1.2}
FASTEST = "bfloat16 with compiled and channels_last"
DEFAULTS = {"PRECISION": "float32", "COMPILE": "0", "MEMORY_FORMAT": "channels_first", "BATCH_SIZE": "16"}


@pytest.fixture
def search(monkeypatch, tmp_path, capsys):
    """Run make best on a table of rates, one second for each process; returns (status, output, rows, what was asked).

    Args:
        last: the number of processes before Ctrl-C.
        luck: the number of processes before all are equally fast.
        fails: (precision, compile) of processes that fail after as many others as `after`.
    """

    def call(last=10**6, luck=10**6, fails=(("mixed_bfloat16", "1"),), after=0):
        asked = []

        def work(child):
            if child.finds_device:
                child.lines.append(asdict(CPU))
                return
            if len(asked) == last:
                raise KeyboardInterrupt
            asked.append(child.environ)
            row = {name.lower(): child.environ.get(name, text) for name, text in DEFAULTS.items()}
            rates = RATES if len(asked) <= luck else {}
            row |= rate(10.0 * math.prod(rates.get(row[name.lower()], 1) for name in DEFAULTS)) | {"output_error": None}
            if (row["precision"], row["compile"]) in fails and len(asked) > after:
                row |= {"status": "wrong_output", "note": "NaN", "throughput": None}
            child.write(**row)
            return
            yield

        monkeypatch.setattr(process, "Child", functools.partial(FakeChild, work))
        monkeypatch.setattr(best_settings.time, "monotonic", lambda: float(len(asked)))
        status = process.run_script(best_settings.main)
        stored = [row for path in (tmp_path / "results").glob("*.csv") for row in read_rows(path)]
        return status, "".join(capsys.readouterr()), stored, asked

    return call


def test_all_rounds_are_stored_and_the_last_comparison_is_the_headline(search):
    status, out, rows, asked = search()
    assert (status, len(rows)) == (0, len(asked))
    assert re.search(rf"\n{FASTEST} .* 5\.40x .* \(5\.40 to 5\.40, 5 pairs\)\n(.*\n)*.*: {FASTEST}\n", out)
    counts = Counter()
    for row in combine(rows):
        counts[row["throughput"]] += len(row["process_rates"])
    # The steps of the default and of bfloat16; those of the answer, the doubled batch and the last comparison.
    found = {round(rate): count for rate, count in counts.items() if rate in (10, 30, 45, 54)}
    assert found == {10: 3 + 5, 30: 3 + 3, 45: 3 + 3, 54: 3 + 3 + 5 + 3}


@pytest.mark.parametrize(("what", "count"), [({"luck": 6}, 10), ({"fails": [("float32", "1")], "after": 6}, 6)])
def test_luck_in_the_steps_does_not_count_nor_what_fails_at_the_end(search, monkeypatch, what, count):
    for name in ("PRECISION", "MEMORY_FORMAT", "BATCH_SIZE"):
        monkeypatch.setenv(name, DEFAULTS[name])
    _, out, rows, _ = search(**what)
    assert ("settings: the default" in out, "process 1: COMPILE=1: " in out, len(rows)) == (True, True, 6 + count)


@pytest.mark.parametrize(("last", "answer"), [(8, "the default"), (30, "bfloat16 with compiled")])
def test_ctrl_c_prints_the_best_so_far(search, last, answer):
    status, out, rows, _ = search(last=last)
    assert (status, "make image" in out) == (130, True)
    assert re.search(rf"so far .*: {answer}\nnot decided: .*bfloat16", out)
    assert max(float(row["throughput"] or 0) for row in rows) == {8: 30, 30: 54}[last]


def test_a_short_search_keeps_to_the_time(search, monkeypatch):
    for name, text in {"MAX_MINUTES": "0.2", "MAX_SECONDS": "1"}.items():  # twelve processes
        monkeypatch.setenv(name, text)
    status, out, rows, asked = search()
    assert (status, len(rows) == len(asked), 5 <= len(asked) <= 12) == (0, True, True)
    assert re.search(r"not decided: .*; compiled \(1 of 3 rounds\).* \(not tried\)", out)
    monkeypatch.setenv("MAX_MINUTES", "0.001")
    status, out, _, asked = search()
    assert (status, asked, "MAX_MINUTES" in out, "Traceback" in out) == (2, [], True, False)


def test_a_default_without_a_result_is_an_error(search):
    status, out, rows, _ = search(fails=[("float32", "0")])
    assert (status, "NaN" in out, "To measure it again" in out, len(rows) > 1) == (2, True, False, True)


def test_what_can_be_pasted_means_the_same(search, monkeypatch):
    monkeypatch.setenv("MACHINE", "a machine; rm *")
    words = shlex.split(next(line for line in search()[1].splitlines() if line.startswith("    make image")))
    given = {"MODEL=resnet50", "BATCH_SIZE=16", "SCOPE=device", "MACHINE=a machine; rm *"}
    assert given | {"PRECISION=bfloat16", "COMPILE=1"} < set(words)
