"""make best: what it tries, how it runs it, and what it says. The runs here are stand-ins with a table of rates."""

import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import best_settings
from bench import candidates, recipe
from bench.machine.environment import describe_host
from bench.plots import pictures, select
from bench.rows import results
from bench.settings import SEARCH, SEARCH_STEP, SettingError, list_runs, read_search, read_settings
from tests.rows import examples

CPU = {"device": "cpu", "num_threads": "2", "batch_size": "16"}
CUDA = {"device": "cuda", "num_threads": "8", "batch_size": "64"}


@pytest.fixture(autouse=True)
def plain_host(monkeypatch):
    monkeypatch.setattr(candidates.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(candidates.ctypes.util, "find_library", lambda name: None)
    monkeypatch.setattr(candidates, "usable_cores", lambda: 2)
    monkeypatch.setattr(candidates.psutil, "cpu_count", lambda logical=True: 2)


def dimensions(row=CPU, script="image", **environ):
    settings = read_settings(script, environ)
    return {d.name: d for d in candidates.list_dimensions(settings, environ, list_runs(script, environ), row)}


def values(*arguments, **environ):
    return {name: dimension.values for name, dimension in dimensions(*arguments, **environ).items()}


def test_what_is_tried_on_a_cpu():
    assert values() == {
        "PRECISION": ("float32", "bfloat16", "mixed_bfloat16"),
        "COMPILE": ("0", "1"),
        "MEMORY_FORMAT": ("channels_first", "channels_last"),
        "ALLOCATOR": ("", "keep"),
        "BATCH_SIZE": ("16",),
    }
    assert dimensions()["BATCH_SIZE"].doubles


def test_what_is_tried_on_a_gpu():
    found = values(CUDA)
    assert {"tf32", "float16", "mixed_float16"} < set(found["PRECISION"])
    assert {"max-autotune", "reduce-overhead"} < set(found["COMPILE"])
    assert "ALLOCATOR" not in found
    assert "MEMORY_FORMAT" not in values(CUDA, "transformer")


def test_training_keeps_its_weights_in_float32():
    assert values(PHASE="training")["PRECISION"] == ("float32", "mixed_bfloat16")
    assert "float16" not in values(CUDA, PHASE="training")["PRECISION"]


def test_tensorflow_has_no_modes_and_one_memory_format():
    found = values(CUDA, FRAMEWORK="tensorflow")
    assert found["COMPILE"] == ("0", "1")
    assert "MEMORY_FORMAT" not in found
    assert "COMPILE" not in values(CPU | {"device": "mps"}, FRAMEWORK="tensorflow")


def test_what_is_given_is_held_and_a_list_restricts():
    found = values(PRECISION="bfloat16", COMPILE="1,max-autotune", BATCH_SIZE="32", MALLOC_ARENA_MAX="1")
    assert found == {"COMPILE": ("1", "max-autotune"), "MEMORY_FORMAT": ("channels_first", "channels_last")}
    given = dimensions(BATCH_SIZE="8,32")["BATCH_SIZE"]
    assert (given.values, given.doubles) == (("8", "32"), False)


def test_allocators_that_are_installed_and_threads_that_differ(monkeypatch):
    monkeypatch.setattr(candidates.ctypes.util, "find_library", lambda name: {"jemalloc": "libjemalloc.so.2"}.get(name))
    monkeypatch.setattr(candidates, "usable_cores", lambda: 8)
    monkeypatch.setattr(candidates.psutil, "cpu_count", lambda logical=True: 16 if logical else 8)
    found = values(CPU | {"num_threads": "4"})
    assert found["ALLOCATOR"] == ("", "keep", "libjemalloc.so.2")
    assert found["NUM_THREADS"] == ("4", "8")
    known = list(dimensions(CPU | {"num_threads": "4"}).values())
    change = candidates.change_of(known, ("bfloat16", "1", "channels_last", "libjemalloc.so.2", "8", "16"))
    assert change["LD_PRELOAD"] == "libjemalloc.so.2"
    assert candidates.describe(known, ("bfloat16", "1", "channels_last", "libjemalloc.so.2", "8", "32")) == (
        "bfloat16, compiled, channels_last, batch 32, libjemalloc.so.2, 8 threads"
    )


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"RUNS": "3"}, "RUNS='3' is no part of `make best`"),
        ({"SCOPE": "input"}, "SCOPE='input' is no part of"),
        ({"BATCH_SIZE": "auto"}, "BATCH_SIZE='auto' is what `make best` does anyway"),
        ({"MODEL": "resnet18,resnet50"}, "MODEL='resnet18,resnet50' must be one value in `make best`"),
    ],
)
def test_what_a_search_cannot_hold_is_refused(environ, said):
    with pytest.raises(SettingError, match=said):
        candidates.refuse_unusable(environ, list_runs("image", environ))


def test_settings_of_the_search_and_of_its_workload():
    own, settings, _ = read_search({"WORKLOAD": "mlp", "MAX_MINUTES": "3", "MAKEFLAGS": " -- MODEL=mlp-8 WORKLOAD=mlp"})
    assert (own.workload, own.max_minutes, settings.model) == ("mlp", 3, "mlp-5x1024")
    for makeflags in ("IMAGE_SIZE=64 WORKLOAD=mlp", "NONSENSE=1"):
        with pytest.raises(SettingError):
            read_search({"WORKLOAD": "mlp", "MAKEFLAGS": f" -- {makeflags}"})
    with pytest.raises(SettingError, match="MAX_MINUTES is no setting of this command"):
        read_settings("image", {"MAKEFLAGS": "MAX_MINUTES=3"})


# Runs of a real script's place: it obeys what it is asked for, and leaves a row.
STAND_IN = """
import os, signal, sys
sys.path.insert(0, os.environ["PYTHONPATH"])
from bench.rows import results
from tests.rows import examples
what = os.environ["PRECISION"]
assert os.environ["MAKEFLAGS"] == "" and os.environ["RUNS"] == "1"
if what == "tf32": os.kill(os.getpid(), signal.SIGKILL)
if what == "float64": print("a mistake", file=sys.stderr)
if what == "float64": sys.exit(2)
if what == "float16": os.kill(os.getppid(), signal.SIGINT); signal.pause()
row = examples.BASE | {"run_id": os.environ["BENCH_RUN"], "search": os.environ["BENCH_SEARCH"], "precision": what}
results.append(os.environ["PATH_OF_ROWS"], row | {"search_step": os.environ.get("BENCH_SEARCH_STEP")})
print("never shown")
"""


@pytest.fixture
def runs(monkeypatch, tmp_path):
    (tmp_path / "image_benchmark.py").write_text(STAND_IN)
    monkeypatch.setattr(best_settings, "ROOT", tmp_path)
    monkeypatch.setenv("PATH_OF_ROWS", str(tmp_path / "here.csv"))
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path))
    return best_settings.Runs(
        "image", {"MAKEFLAGS": ""}, describe_host("here"), tmp_path / "here.csv", begun=0.0, ends=0.0
    )


def test_a_run_is_a_process_and_its_row_is_found(runs, capfd):
    row = runs.run({"PRECISION": "bfloat16"}, 1)
    assert (row["precision"], row["search"], row["search_step"]) == ("bfloat16", runs.search_id, "")
    assert runs.run({"PRECISION": "float32"}, 1, step="2")["search_step"] == "2"
    assert capfd.readouterr() == ("", "")


def test_a_run_that_is_killed_is_a_row_and_a_mistake_is_its_reason(runs):
    row = runs.run({"PRECISION": "tf32"}, 1)
    assert (row["status"], row["search"]) == ("out_of_memory", runs.search_id)
    assert best_settings.look_of(row).note.startswith("out_of_memory: the process was ended by signal 9")
    with pytest.raises(SettingError, match="a mistake"):
        runs.run({"PRECISION": "float64"}, 1)


def test_ctrl_c_during_a_run_ends_the_search(runs):
    with pytest.raises(KeyboardInterrupt):
        runs.run({"PRECISION": "float16"}, 1)


RATES = {"bfloat16": 3.0, "mixed_bfloat16": 2.0, "compiled": 1.5, "channels_last": 1.2, "keep": 1.1}


FAILS = [("mixed_bfloat16", "1")]
FAILS_AGAIN = []
SLOW_AGAIN = ""


class StandIn:
    """In place of Runs.run(): rows of a table of rates on a machine without noise; Ctrl-C after so many."""

    def __init__(self, last=10**6, last_again=10**6):
        self.last, self.last_again, self.count, self.again = last, last_again, 0, 0

    def __call__(self, runs, change, seconds, step=None):
        self.count += 1
        self.again += step is not None
        if self.count > self.last or self.again > self.last_again:
            raise KeyboardInterrupt
        change = runs.held | change
        compiled, precision = change.get("COMPILE", "0"), change.get("PRECISION", "float32")
        keeps = "MALLOC_TRIM_THRESHOLD_" in change
        rate = 10 * RATES.get(precision, 1) * (RATES["compiled"] if compiled == "1" else 1)
        rate *= RATES.get(change.get("MEMORY_FORMAT"), 1) * (RATES["keep"] if keeps else 1)
        row = {
            "precision": precision,
            "compile": compiled,
            "num_threads": 2,
            "search": runs.search_id,
            "phase": "inference",
        }
        row |= {"memory_format": change.get("MEMORY_FORMAT", "channels_first"), "first_step_seconds": 12 / self.count}
        row |= {"search_step": step or "", "run_id": str(self.count), "batch_size": change.get("BATCH_SIZE", "16")}
        row |= {"allocator": candidates.cells_of(change)["allocator"], "timestamp": f"2026-11-22T00:{self.count:02}"}
        row |= {"output_error": "0.0062" if precision != "float32" else ""}
        rate *= 0.3 if keeps and step and SLOW_AGAIN else 1
        if (precision, compiled) in FAILS + FAILS_AGAIN * (step is not None):
            row |= {
                "status": "wrong_output",
                "note": "NaN",
                "throughput": "",
                "throughput_low": "",
                "throughput_high": "",
            }
        else:
            row |= examples.rate(rate)
        results.append(runs.path, examples.BASE | row)
        return results.read(runs.path)[-1]


@pytest.fixture
def search(monkeypatch, tmp_path, capsys):
    def call(*limits):
        stand_in = StandIn(*limits)
        monkeypatch.setattr(best_settings.Runs, "run", lambda *arguments: stand_in(*arguments))
        monkeypatch.setattr(best_settings, "time", SimpleNamespace(monotonic=lambda: float(stand_in.count)))
        status = best_settings.main()
        path = next((tmp_path / "results").glob("*.csv"))
        return status, capsys.readouterr().out, results.read(path)

    return call


def test_the_answer(search, tmp_path):
    status, out, rows = search()
    assert status == 0
    again = [row["search_step"] for row in rows if row["search_step"]]
    assert {step: again.count(step) for step in again} == {**dict.fromkeys("01234", 3), "float32": 3}
    assert again[:9] == ["0", "1", "2", "3", "4", "float32", "0", "4", "float32"]
    said = [line.strip() for line in out.splitlines()]
    assert said[1].startswith("the default                  10 images/s (9.9 to 10.1, 3 runs)")
    assert said[2].startswith("+ bfloat16")
    assert said[2].endswith("30 images/s (29.7 to 30.3, 3 runs), 3 times (2.94 to 3.06)")
    assert said[5].startswith("+ allocator keeps memory")
    assert any(
        line.startswith("fastest: bfloat16, compiled, channels_last, allocator keeps memory, 5.94 times")
        and line.endswith("; its outputs differ from float32's by 0.62 % (relative L2)")
        for line in said
    )
    assert any(line.startswith("fastest in float32: compiled, channels_last, allocator keeps") for line in said)
    assert any(line.startswith("failed: mixed_bfloat16, compiled") and "wrong_output: NaN" in line for line in said)
    assert any("PRECISION=bfloat16 COMPILE=1 MEMORY_FORMAT=channels_last MALLOC" in line for line in said)
    assert "model = torch.compile(model)" in said
    assert not any(line.startswith("not tried") for line in said)
    assert not any("set_num_threads" in line for line in said)


def test_rows_of_a_search_become_a_picture(search, tmp_path):
    search()
    stored = select.load(tmp_path / "results", print)
    (lines,) = stored.searches
    assert lines["value"].tolist() == pytest.approx([10, 30, 45, 54, 59.4])
    _, frame = pictures.panel_of_search(lines.to_dict("records"), lines)
    assert frame["name"].tolist() == [
        *("the default", "+ bfloat16", "+ compiled", "+ channels_last", "+ allocator keeps memory")
    ]
    assert frame["text"].tolist()[-1] == "59.4 (5.9x)"
    assert pictures.best(stored).axes[-1].get_xlabel() == "items/s, the range of the repetitions"
    many = pictures.best(replace(stored, searches=7 * [lines]))
    assert len(many.axes) == 6
    assert many.axes[-1].get_xlabel().endswith(" (1 more panel is in the tables alone)")


@pytest.mark.parametrize("limits", [(1,), (6,), (10**6, 3), (10**6, 8)])
def test_ctrl_c_gives_the_best_so_far(search, limits):
    status, out, _ = search(*limits)
    assert status == 130
    assert ("fastest: bfloat16" in out) == (limits != (1,))
    assert ("images/s in short looks, not measured again: it may be luck" in out) == (limits != (10**6, 8))
    assert ("+ compiled" in out) == (len(limits) == 2)
    assert "make image" in out


def test_measuring_again_keeps_to_the_time(search, monkeypatch):
    monkeypatch.setenv("MAX_MINUTES", "0.4")  # of runs that take a second
    status, out, rows = search()
    again = [row["search_step"] for row in rows if row["search_step"]]
    assert status == 0
    assert again.count("0") == 3 > again.count("1") >= 1
    assert "not tried: a larger BATCH_SIZE" in out
    assert re.search(r"not tried: .* and \d+ more \(", out)
    assert len(rows) <= 25


def test_the_default_may_be_the_fastest(search, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "RATES", dict.fromkeys(RATES, 0.5) | {"bfloat16": 0.5})
    status, out, rows = search()
    assert status == 0
    assert {row["search_step"] for row in rows} == {"", "0"}
    assert "fastest: the default\n" in out


def test_a_default_that_does_not_work_has_no_way_and_no_picture(search, monkeypatch, tmp_path):
    monkeypatch.setattr(sys.modules[__name__], "FAILS", [("float32", "0")])
    status, out, _ = search()
    assert status == 0
    assert "fastest: bfloat16, compiled, channels_last, allocator keeps memory; its outputs differ" in out
    assert "failed: the default: wrong_output: NaN" in out
    assert select.load(tmp_path / "results", print).searches == []


def test_nothing_works(search, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "FAILS", [(p, c) for p in ("float32", *RATES) for c in "01"])
    status, out, _ = search()
    assert status == 1
    assert "nothing that was tried works: the rows say why" in out


def test_a_step_of_the_way_that_is_faster_than_the_leader_is_the_answer(search, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SLOW_AGAIN", "keep")
    _, out, rows = search()
    assert "fastest: bfloat16, compiled, channels_last, 5.4 times" in out
    assert "fastest in float32: the default" in out  # the final runs of the other one are slower
    assert [row["search_step"] for row in rows].count("3") == 3
    assert "MALLOC" not in out.partition("To repeat it")[2]


def test_a_candidate_that_fails_in_a_final_run_is_not_the_answer_and_is_not_run_again(search, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "FAILS_AGAIN", [("bfloat16", "1")])
    _, out, rows = search()
    again = [row["search_step"] for row in rows if row["search_step"]]
    assert {step: again.count(step) for step in "01234"} == {"0": 3, "1": 3, "2": 1, "3": 1, "4": 1}
    assert "fastest: bfloat16, 3 times" in out


def test_what_a_run_of_a_search_leaves_out(monkeypatch):
    from bench import run

    settings = read_settings("image", {"PHASE": "training", "SCOPE": "device"})
    assert len(list(run.quantities(settings))) == 4
    monkeypatch.setenv(SEARCH, "id")
    assert list(run.quantities(settings)) == [("training", "device")]
    bench = run.Bench(settings, None, None, None, run.meters.Instruments(SimpleNamespace(), dict))
    assert run.look_at_rest(bench).instruments.counter is None
    assert SEARCH_STEP not in run.os.environ


def tiny(settings):
    if settings.sequence_length:
        return torch.nn.Sequential(torch.nn.Embedding(9, 3), torch.nn.Flatten(), torch.nn.Linear(12, 2))
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 2))


@pytest.mark.parametrize(
    ("script", "environ"),
    [
        ("image", {"PRECISION": "bfloat16", "MEMORY_FORMAT": "channels_last", "COMPILE": "1"}),
        ("image", {"PRECISION": "mixed_bfloat16", "PHASE": "training", "NUM_THREADS": "2"}),
        ("image", {"PRECISION": "mixed_float16", "PHASE": "training"}),
        ("image", {"COMPILE": "max-autotune"}),
        ("transformer", {"PRECISION": "bfloat16", "PHASE": "inference"}),
    ],
)
def test_the_lines_for_ones_own_script_run(script, environ, monkeypatch):
    settings = read_settings(script, environ)
    lines = recipe.torch_lines(settings, "cpu", environ.get("NUM_THREADS"))
    asked = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: asked.append(options) or model)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    model = tiny(settings)
    names = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1)}
    names |= {"loss_function": torch.nn.functional.cross_entropy, "labels": torch.tensor([0, 1])}
    names["inputs"] = torch.randint(9, (2, 4)) if script == "transformer" else torch.randn(2, 3, 4, 4)
    before = next(model.parameters()).detach().clone()
    exec("\n".join(lines), names)
    if settings.phase == "training":
        assert not torch.equal(before, next(model.parameters()))
    else:
        whole = torch.bfloat16 if settings.precision == "bfloat16" else torch.float32
        assert (names["outputs"].dtype, names["outputs"].is_inference()) == (whole, True)
    if settings.compile != "0":
        assert asked == [{} if settings.compile == "1" else {"mode": "max-autotune"}]
    if settings.memory_format == "channels_last":
        assert names["inputs"].is_contiguous(memory_format=torch.channels_last)


def test_the_line_of_make_can_be_pasted_into_a_shell():
    line = recipe.line_of_make("image", {"MODEL": "resnet18", "MACHINE": "a b"}, {"COMPILE": "1", "MODEL": "resnet50"})
    assert line == "MODEL=resnet50 MACHINE='a b' COMPILE=1 make image"
