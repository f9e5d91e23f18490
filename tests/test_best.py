"""make best: what it tries, how it runs it, and what it prints. The runs here are stand-ins with a table of rates."""

import itertools
import math
import re
import shlex
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import best_settings
from bench import processes, run
from bench.host.environment import Card, describe_host
from bench.launch import Launcher
from bench.plots import pictures, select
from bench.records import results
from bench.settings import SEARCH, SettingError, list_runs, read_settings
from bench.tune import candidates, recipe
from bench.tune.candidates import LAYOUT
from image_benchmark import image_workload
from tests.records import examples

CPU = {"device": "cpu", "workload": "image", "num_threads": "2", "batch_size": "16"}
CUDA = {"device": "cuda", "workload": "image", "num_threads": "8", "batch_size": "64"}
MPS = CPU | {"device": "mps"}
A100, T4 = Card("", capability=8.0), Card("", capability=7.5)


@pytest.fixture(autouse=True)
def plain_host(monkeypatch):
    monkeypatch.setattr(candidates.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(candidates.ctypes.util, "find_library", lambda name: None)
    monkeypatch.setattr(candidates, "usable_cores", lambda: 2)
    monkeypatch.setattr(candidates.psutil, "cpu_count", lambda logical=True: 2)


def dimensions(row=CPU, script="image", card=None, **environ):
    settings = read_settings(script, environ)
    return {d.name: d for d in candidates.list_dimensions(settings, environ, list_runs(script, environ), row, card)}


def values(*arguments, **environ):
    return {name: dimension.values for name, dimension in dimensions(*arguments, **environ).items()}


def possible(row, script="image", card=None, **environ):
    """The combinations that may be tried, each as a dict."""
    found = dimensions(row, script, card, **environ)
    settings = read_settings(script, environ).on(row["device"])
    for candidate in itertools.product(*(d.gains for d in found.values())):
        if candidates.is_possible(settings, list(found.values()), candidate, card):
            yield dict(zip(found, candidate, strict=True))


ON_CPU = {"PRECISION": ("float32", "bfloat16", "mixed_bfloat16"), "COMPILE": ("0", "1")}
ON_CPU |= {"MEMORY_FORMAT": ("channels_first", "channels_last"), "ALLOCATOR": ("", "keep"), "BATCH_SIZE": ("16",)}


def test_what_is_tried_on_each_device():
    assert values() == ON_CPU
    assert dimensions()["BATCH_SIZE"].doubles
    found = values(CUDA)
    assert {"tf32", "float16", "mixed_float16"} < set(found["PRECISION"])
    assert found["COMPILE"] == ("0", "1", "reduce-overhead")
    assert "ALLOCATOR" not in found
    assert "MEMORY_FORMAT" not in values(CUDA | {"workload": "transformer"}, "transformer")
    llm = {"workload": "llm", "batch_size": "1"}
    own = {"PRECISION": ("float32", "bfloat16"), "COMPILE": ("0", "1"), "ALLOCATOR": ("", "keep")}
    assert values(CPU | llm, "llm") == own
    assert values(CUDA | llm, "llm") == {"PRECISION": ("bfloat16", "float16"), "COMPILE": found["COMPILE"]}
    trained = own | {"PRECISION": ("float32", "mixed_bfloat16"), "BATCH_SIZE": ("1",)}
    assert values(CPU | llm, "llm", PHASE="training") == trained


def test_max_autotune_is_for_the_leaders():
    assert set(dimensions(CUDA, card=A100)["COMPILE"].gains) > {"max-autotune", "max-autotune-no-cudagraphs"}
    given = dimensions(CUDA, card=A100, COMPILE="1,max-autotune")["COMPILE"]
    assert given.values == ("1", "max-autotune")


@pytest.mark.parametrize(("card", "is_tried"), [(A100, True), (T4, False), (None, True)])
def test_compiled_bfloat16_needs_a_gpu_that_computes_it(card, is_tried):
    compiled = [each["PRECISION"] for each in possible(CUDA, card=card) if each["COMPILE"] != "0"]
    assert ("bfloat16" in compiled, "mixed_bfloat16" in compiled) == (is_tried, is_tried)
    assert "float16" in compiled
    assert "bfloat16" in [each["PRECISION"] for each in possible(CUDA, card=card) if each["COMPILE"] == "0"]
    held = [each["COMPILE"] for each in possible(CUDA, card=card, PRECISION="bfloat16")]
    assert ("1" in held) == is_tried


def test_the_layout_of_compiled_training_is_tried_on_a_mac():
    tried = [(each["COMPILE"], each[LAYOUT]) for each in possible(MPS, PHASE="training")]
    assert set(tried) == {("0", ""), ("1", ""), ("1", "0")}
    assert LAYOUT not in values(MPS)  # inference
    assert LAYOUT not in values(CPU, PHASE="training")
    environ = {"PHASE": "training", LAYOUT: "0"}
    assert LAYOUT not in values(MPS, **environ)
    found = list(dimensions(MPS, PHASE="training").values())
    layout = tuple("0" if d.name == LAYOUT else d.values[0] for d in found)
    assert candidates.change_of(found, layout)[LAYOUT] == "0"
    assert recipe.environment_lines({"COMPILE": "1", LAYOUT: "0"}) == [f"export {LAYOUT}=0"]


def test_training_and_tensorflow_have_fewer_choices():
    assert values(PHASE="training")["PRECISION"] == ("float32", "mixed_bfloat16")  # the weights stay in float32
    assert "float16" not in values(CUDA, PHASE="training")["PRECISION"]
    found = values(CUDA, FRAMEWORK="tensorflow")
    assert found["COMPILE"] == ("0", "1")
    assert "MEMORY_FORMAT" not in found
    assert "COMPILE" not in values(MPS, FRAMEWORK="tensorflow") | values(CUDA, FRAMEWORK="jax")  # always compiled


def test_mlx_has_no_mixed_precision_and_no_threads_to_try():
    found = values(MPS, FRAMEWORK="mlx")
    assert (found["PRECISION"], found["COMPILE"]) == (("float32", "bfloat16", "float16"), ("0", "1"))
    assert "NUM_THREADS" not in values(CPU | {"num_threads": "1"}, FRAMEWORK="mlx")


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
    candidate = ("bfloat16", "1", "channels_last", "libjemalloc.so.2", "8", "32")
    assert candidates.change_of(known, candidate)["LD_PRELOAD"] == "libjemalloc.so.2"
    said = "bfloat16, compiled, channels_last, batch 32, libjemalloc.so.2, 8 threads"
    assert candidates.describe(known, candidate) == said


@pytest.mark.parametrize(("name", "text"), [("RUNS", "3"), ("SCOPE", "input"), ("MODEL", "resnet18,resnet50")])
def test_what_a_search_cannot_hold_is_refused(name, text):
    with pytest.raises(SettingError, match=f"{name}='{text}'"):
        candidates.refuse_unusable({name: text}, [{name: ""} if name == "MODEL" else {}])


# A script that takes the place of image_benchmark.py: PRECISION decides how it ends.
STAND_IN = """
import os, signal, sys
sys.path.insert(0, os.environ["PYTHONPATH"])
from bench.records import results
from tests.records import examples
what = os.environ["PRECISION"]
assert os.environ["MAKEFLAGS"] == "" and os.environ["RUNS"] == "1"
if what == "mixed_float16": signal.pause()
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
    monkeypatch.setenv("PATH_OF_ROWS", str(tmp_path / "here.csv"))
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path))
    launcher = Launcher("image", image_workload, [str(tmp_path / "image_benchmark.py")], describe_host("here"))
    return best_settings.Runs(launcher, {"MAKEFLAGS": ""}, "id", 60)


def test_a_run_is_a_process_and_its_row_is_found(runs, capfd):
    row = runs.run({"PRECISION": "bfloat16"}, 1)
    assert (row["precision"], row["search"], row["search_step"]) == ("bfloat16", runs.search_id, "")
    assert runs.run({"PRECISION": "float32"}, 1, step="2")["search_step"] == "2"
    assert capfd.readouterr() == ("", "")


def test_a_run_that_dies_is_a_row_and_a_mistake_is_its_reason(runs, monkeypatch):
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.1)
    for precision, status, note in (("tf32", "out_of_memory", "signal 9"), ("mixed_float16", "crashed", "time limit")):
        row = runs.run({"PRECISION": precision}, 1, limit=1)
        trial = best_settings.trial_of(row)
        assert (row["status"], row["search"], trial.rate) == (status, runs.search_id, None)
        assert note in trial.note
    with pytest.raises(SettingError, match="a mistake"):
        runs.run({"PRECISION": "float64"}, 1)
    with pytest.raises(KeyboardInterrupt):
        runs.run({"PRECISION": "float16"}, 1)


RATES = {"bfloat16": 3.0, "mixed_bfloat16": 2.0, "1": 1.5, "channels_last": 1.2, "keep": 1.1}
KEEPS = "bfloat16, compiled, channels_last, allocator keeps memory"


DEFAULTS = {"PRECISION": "float32", "COMPILE": "0", "MEMORY_FORMAT": "channels_first", "BATCH_SIZE": "16"}


@pytest.fixture
def search(monkeypatch, tmp_path, capsys):
    """Run make best on a table of rates, without noise, one second for each run; returns (status, out, rows, limits).

    Args:
        last, last_full: the number of runs, and of full runs, before Ctrl-C.
        fails: (precision, compile) of runs that fail; fails_in_full of full runs.
        cells: of every row.
    """

    def call(last=10**6, last_full=10**6, rates=RATES, fails=(("mixed_bfloat16", "1"),), fails_in_full=(), **cells):
        limits, steps = [], []

        def launch(launcher, change, limit, captures):
            limits.append(limit)
            step = change.get("BENCH_SEARCH_STEP")
            steps.extend([step] if step else [])
            if len(limits) > last or len(steps) > last_full:
                return 130, []
            row = {name.lower(): change.get(name, text) for name, text in DEFAULTS.items()}
            keeps = "keep" if "MALLOC_TRIM_THRESHOLD_" in change else ""
            rate = 10.0 * math.prod(rates.get(value, 1) for value in (*row.values(), keeps))
            if (row["precision"], row["compile"]) in (fails_in_full if step else fails):
                empty = dict.fromkeys(("throughput", "throughput_low", "throughput_high"), "")
                row |= {"status": "wrong_output", "note": "NaN"} | empty
            else:
                row |= examples.rate(rate)
            row |= {"output_error": "0.0062" if row["precision"] != "float32" else "", "num_threads": "2"}
            row |= {"search": change[SEARCH], "search_step": step or "", "run_id": str(len(limits))}
            row |= {"phase": "inference", "allocator": candidates.cells_of(change)["allocator"]}
            row |= {"first_step_seconds": 12 / len(limits), "timestamp": f"2026-11-22T00:{len(limits):03}"}
            path = launcher.locate(read_settings(launcher.script))
            results.append(path, examples.BASE | row | cells)
            return 0, results.read(path)[-1:]

        monkeypatch.setattr(Launcher, "launch", launch)
        monkeypatch.setattr(best_settings, "time", SimpleNamespace(monotonic=lambda: float(len(limits))))
        status = best_settings.main()
        path = next((tmp_path / "results").glob("*.csv"))
        return status, capsys.readouterr().out, results.read(path), limits

    return call


def test_the_answer(search):
    status, out, rows, _ = search()
    assert status == 0
    steps = [row["search_step"] for row in rows if row["search_step"]]
    assert {step: steps.count(step) for step in steps} == dict.fromkeys([*"01234", "float32"], 5)
    assert steps[:6] == ["0", "4", "float32", "1", "2", "3"]
    said = [line.strip() for line in out.splitlines()]
    assert re.match(r"the default +10 images/s \(9.9 to 10.1, 5 runs\)", said[1])
    assert re.match(r"\+ bfloat16 +30 images/s \(29.7 to 30.3, 5 runs\), 3 times \(2.94 to 3.06\)", said[2])
    assert said[5].startswith("+ allocator keeps memory")
    assert re.search(rf"fastest of \d+ tried: {KEEPS}\n", out)
    assert "5.94 times (5.82 to 6.06) the default" in said
    assert any("0.62 %" in line for line in said)
    assert "fastest in float32: compiled, channels_last, allocator keeps memory" in said
    assert any(line.startswith("failed: mixed_bfloat16, compiled") and "wrong_output: NaN" in line for line in said)
    assert "model = torch.compile(model)" in said
    assert "not tried" not in out
    assert "set_num_threads" not in out


def test_rows_of_a_search_become_a_picture(search, tmp_path):
    search()
    stored = select.load(tmp_path / "results", print)
    (lines,) = stored.searches
    assert lines["value"].tolist() == pytest.approx([10, 30, 45, 54, 59.4])
    (axes,) = pictures.best(stored).axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["the default", "+ bfloat16", "+ compiled", "+ channels_last", "+ allocator keeps memory"]
    assert axes.texts[-1].get_text() == "59.4 (5.9x)"
    many = pictures.best(replace(stored, searches=7 * [lines]))
    assert len(many.axes) == 6
    assert "1 more panel" in many.axes[-1].get_xlabel()


@pytest.mark.parametrize(
    ("limits", "is_full"), [({"last": 2}, False), ({"last_full": 1}, False), ({"last_full": 8}, True)]
)
def test_ctrl_c_gives_the_best_so_far(search, limits, is_full):
    status, out, *_ = search(**limits)
    assert status == 130
    assert re.search(r"fastest of \d+ tried.*: bfloat16", out)
    assert ("images/s in short trials" in out) == (not is_full)
    assert ("+ compiled" in out) == is_full
    assert "make image" in out


def test_a_short_search_keeps_to_the_time_and_says_how_little_it_tried(search, monkeypatch):
    monkeypatch.setenv("MAX_MINUTES", "0.05")  # three runs
    status, out, rows, _ = search()
    assert status == 0
    assert "fastest of 2 tried (22 not tried): " in out
    assert re.search(r"not tried: .* and 21 more \(", out)
    assert len(rows) <= 5
    monkeypatch.setenv("MAX_MINUTES", "0.7")
    _, out, more, _ = search()
    steps = [row["search_step"] for row in more[len(rows) :] if row["search_step"]]
    assert steps.count("0") > steps.count("1") >= 1  # the answers are compared first
    assert "not tried" in out
    assert len(more) - len(rows) <= 43


def test_one_trial_has_a_limit(search, monkeypatch):
    monkeypatch.setenv("MAX_MINUTES", "1")
    assert set(search()[3][1:4]) == {120}
    monkeypatch.setenv("MAX_MINUTES", "60")
    *_, limits = search()
    assert set(limits[1:4]) == {540}
    assert limits[0] == 3600  # the default may have to download what it needs
    assert min(limits[-5:]) > 540  # full runs


def test_the_default_may_be_the_fastest(search):
    status, out, rows, _ = search(rates=dict.fromkeys(RATES, 0.5))
    assert status == 0
    assert {row["search_step"] for row in rows} == {"", "0"}
    assert re.search(r"fastest of \d+ tried: the default\n", out), out


def test_a_default_that_does_not_work_has_no_path_and_no_picture(search, tmp_path):
    status, out, *_ = search(fails=[("float32", "0")], fails_in_full=[("float32", "0")])
    assert status == 0
    assert f": {KEEPS}\n" in out
    assert "failed: the default: wrong_output: NaN" in out
    assert select.load(tmp_path / "results", print).searches == []


def test_nothing_works(search):
    status, out, *_ = search(fails=[(p, c) for p in ("float32", *RATES) for c in "01"])
    assert status == 1
    assert "failed: the default" in out
    assert "To repeat it" not in out


def test_a_candidate_that_fails_in_a_full_run_is_not_the_answer_and_is_not_run_again(search):
    _, out, rows, _ = search(fails_in_full=[("bfloat16", "1")])
    steps = [row["search_step"] for row in rows if row["search_step"]]
    assert {step: steps.count(step) for step in "01234"} == {"0": 5, "1": 5, "2": 1, "3": 1, "4": 1}
    assert re.search(r"fastest of \d+ tried: bfloat16\n", out)


@pytest.mark.parametrize("model", [None, "qwen3-0.6b"])
def test_a_language_model_is_searched_too(search, monkeypatch, model):
    monkeypatch.setenv("WORKLOAD", "llm")
    if model:
        monkeypatch.setenv("MODEL", model)
    llm = {"workload": "llm", "model": model or "smollm2-135m", "phase": "prefill", "unit": "tokens/s"}
    status, out, rows, _ = search(**llm)
    assert status == 0
    assert {row["batch_size"] for row in rows} == {"16"}
    assert re.search(r"fastest of 8 tried: bfloat16, compiled, allocator keeps memory\n", out)
    assert re.search(r"PHASE=prefill.*make llm", out.replace("\\\n", ""))
    assert (f"MODEL={model}" in out) == (model is not None)


def test_what_can_be_pasted_fits_80_columns_and_means_the_same(search, monkeypatch):
    monkeypatch.setenv("MACHINE", "a-rather-long-name-of-a-machine-in-a-rack")
    _, out, *_ = search()
    command = out.partition("To repeat it:\n")[2].partition("\n\n")[0]
    assert max(map(len, command.splitlines())) <= 80
    words = shlex.split(command.replace("\\\n", ""))
    assert words[-2:] == ["make", "image"]
    assert {"PRECISION=bfloat16", "COMPILE=1", "MEMORY_FORMAT=channels_last", "SCOPE=device"} < set(words)
    assert "MALLOC_TRIM_THRESHOLD_=1000000000000" in words


def test_a_value_with_spaces_stays_one_word_of_the_command():
    given = {"MODEL": "resnet18", "RESULTS_DIR": "a folder " + 12 * "long ", "COMPILE": "1"}
    words = shlex.split("\n".join(recipe.lines_of_make("image", given)).replace("\\\n", ""))
    assert words == [*(f"{name}={text}" for name, text in given.items()), "make", "image"]


def test_what_a_run_of_a_search_leaves_out(monkeypatch):
    settings = read_settings("image", {"PHASE": "training", "SCOPE": "device"})
    assert len(list(run.quantities(settings))) == 4
    monkeypatch.setenv(SEARCH, "id")
    assert list(run.quantities(settings)) == [("training", "device")]
    bench = run.Bench(settings, None, None, None, run.meters.Instruments(SimpleNamespace(), dict))
    assert run.look_at_rest(bench).instruments.counter is None


def tiny(settings):
    if settings.sequence_length or settings.prompt_tokens:
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
        ("llm", {"PRECISION": "bfloat16", "PHASE": "prefill", "COMPILE": "max-autotune"}),
        ("llm", {"PRECISION": "mixed_bfloat16", "PHASE": "training"}),
    ],
)
def test_the_lines_for_ones_own_script_run(script, environ, monkeypatch):
    settings = read_settings(script, environ)
    lines = recipe.script_lines(settings, "cpu", environ.get("NUM_THREADS"))
    asked = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: asked.append(options) or model)
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    model = tiny(settings)
    names = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1)}
    names |= {"loss_function": torch.nn.functional.cross_entropy, "labels": torch.tensor([0, 1])}
    names["inputs"] = torch.randint(9, (2, 4)) if script in ("transformer", "llm") else torch.randn(2, 3, 4, 4)
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
