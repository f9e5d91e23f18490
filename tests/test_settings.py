"""Settings: what users type, and the refusal they get when it is wrong."""

import re
import subprocess
from pathlib import Path

import pytest

from bench.settings import DECLARED, MAKE_VARIABLES, SETTING_NAMES, SYNONYMS, SettingError, read_runs, read_settings
from diffusion_benchmark import DENOISERS
from llm_benchmark import DECODERS
from transformer_benchmark import ENCODERS

# Names that resemble ours, in the environment of a shell, a Mac, a cluster, a container, a notebook or a build.
ORDINARY = """
SECONDS MODE RUN RUNNER SIZE DATE DEVICE DEVICES BATCH MODELS MODEL_DIR MODEL_NAME DATASET SEEDS WORKERS COMPILER
TARGET TARGET_DIR MACHINE_NAME MACHINE_TYPE RESULTS OMP_NUM_THREADS THREADS MAX_THREADS MAX_JOBS LOCAL_RANK RANK
ImageOS IMAGE IMAGES IMAGE_NAME SCOPES PHASES EPOCHREALTIME FRAMEWORK_DIR PYTHONPATH MAKEFLAGS WORLD_SIZE a b
"""


def refusal(command, environ):
    """Return the message of a refusal."""
    with pytest.raises(SettingError) as error:
        read_runs(command, environ)
    return str(error.value)


def test_defaults_depend_on_the_command_and_the_device():
    image, mlp, llm = (read_settings(command, {}) for command in ("image", "mlp", "llm"))
    assert (image.framework, image.phase, mlp.phase, mlp.scope) == ("torch", "inference", "training", None)
    assert [image.on(device).batch_size for device in ("cpu", "cuda", "mps")] == [16, 64, 64]
    found = [(s.model, s.precision, s.batch_size) for s in (llm.on("cpu"), llm.on("cuda"))]
    assert found == [("smollm2-135m", "float32", 1), ("llama-3.2-1b", "bfloat16", 1)]
    old = [read_settings("llm", {"PHASE": phase}).on("cuda", True).precision for phase in ("decode", "backward")]
    assert old == ["float16", "mixed_float16"]


@pytest.mark.parametrize(
    ("command", "environ", "values"),
    [
        ("image", {"USE_GPU": "1", "BATCH_SIZE": "64", "IMAGE_MODEL": "resnet18"}, (True, 64, "resnet18")),
        ("image", {"BATCH_SIZE": " 8 ", "PRECISION": "Float32", "NUM_DEVICES": "All"}, (8, "float32", "all")),
        ("image", {"SCOPE": "input,device", "MACHINE": "../../tmp/x"}, (("input", "device"), "tmp-x")),
        ("image", {"FRAMEWORK": "tf", "MEMORY_FORMAT": "channels_last"}, ("tensorflow", "channels_last")),
        ("image", {"COMPILE": "Max-Autotune", "PRECISION": "half"}, ("max-autotune", "float16")),
        ("tflops", {"SIZES": "64, 8X16x32, 64x64x64"}, (((64, 64, 64), (8, 16, 32)),)),  # each once
        ("tflops", {"PRECISION": "fp32,fp16,bf16,fp64,Float16"}, (("float32", "float16", "bfloat16", "float64"),)),
        ("llm", {"WEIGHT_BITS": "Full"}, (None,)),
        ("another", {"MODEL": "", "BATCH_SIZE": "many", "SEED": "3"}, (None, None, 3)),  # not its settings
    ],
)
def test_what_users_type_becomes_values(command, environ, values):
    settings = read_settings(command, environ)
    assert tuple(getattr(settings, SYNONYMS.get(name, name).lower()) for name in environ) == values


@pytest.mark.parametrize(
    ("command", "name", "texts", "fix"),
    [
        ("llm", "BATCH_SIZE", ["0", "-1", "1.5", "1e9", "٣", "99999999999", "1,x", "auto"], "whole number"),
        ("llm", "BATCH_SIZE", ["8 16", "8;16"], "a list has commas"),
        ("llm", "BATCH_SIZE", ["", "1,,4", "4,"], "comma at its end"),
        ("llm", "NUM_DEVICES", ["0", "two"], "or all"),
        ("llm", "RUNS", ["0", "two"], "from 1 to 1000"),
        ("llm", "MAX_SECONDS", ["nan", "0", "inf"], "decimals follow a point"),
        ("llm", "MACHINE", ["..", "published"], "letters"),
        ("llm", "WEIGHT_BITS", ["7", "16", "4.5"], "8, 6, 5, 4"),  # that no framework has
        ("llm", "PHASE", ["train"], "did you mean training"),
        ("image", "PRECISION", ["float32,bflaot16"], "did you mean bfloat16"),
        ("image", "COMPILE", ["maxautotune"], "did you mean max-autotune"),
    ],
)
def test_a_wrong_value_is_named_with_its_fix(command, name, texts, fix):
    for text in texts:
        message = refusal(command, {name: text})
        assert message.startswith(tuple(f"{name}={each!r} must be " for each in text.split(",")))
        assert fix in message


@pytest.mark.parametrize(
    ("command", "environ", "fix"),
    [
        ("image", {"SUSTAIN": "60", "SCOPE": "input"}, "SCOPE"),
        ("mlp", {"NUM_DEVICES": "all", "FRAMEWORK": "tf"}, "FRAMEWORK=torch"),
        ("mlp", {"PHASE": "forward", "EPOCHS": "2"}, "PHASE=training"),
        ("image", {"PHASE": "backward", "SCOPE": "device,input"}, "SCOPE=device"),
        ("image", {"PHASE": "forward", "SUSTAIN": "60"}, "SUSTAIN"),
        ("mlp", {"FRAMEWORK": "jax", "PHASE": "backward"}, "PHASE"),
        ("image", {"FRAMEWORK": "tensorflow", "SCOPE": "device,end_to_end"}, "SCOPE"),
        ("llm", {"FRAMEWORK": "tensorflow"}, "FRAMEWORK=torch"),
        ("llm", {"FRAMEWORK": "torch", "WEIGHT_BITS": "4"}, "FRAMEWORK=mlx"),
        ("llm", {"WEIGHT_BITS": "4", "PHASE": "training"}, "PHASE=prefill"),  # they are not trained
        ("llm", {"FRAMEWORK": "mlx", "PHASE": "decode", "COMPILE": "1"}, "COMPILE=0"),
        ("llm", {"PHASE": "inference"}, "PHASE=prefill,decode"),
        ("image", {"PHASE": "prefill"}, "PHASE=inference"),
        ("mlp", {"OPTIMIZER": "adamw"}, "OPTIMIZER=adam"),
        ("tflops", {"PRECISION": "float32,mixed_float16"}, "PRECISION"),
        ("image", {"FRAMEWORK": "jax", "COMPILE": "0"}, "COMPILE"),  # it always compiles
        ("image", {"FRAMEWORK": "torch,mlx", "PRECISION": "float64"}, "FRAMEWORK=torch"),
    ],
)
def test_contradictions_are_refused_with_all_that_was_given_and_a_fix(command, environ, fix):
    message = refusal(command, environ)
    assert all(f"{name}={text.removeprefix('torch,')!r}" in message for name, text in environ.items())
    assert fix in message.partition("because")[2]


@pytest.mark.parametrize(
    ("command", "environ", "fix"),
    [
        ("llm", {"LORA_RANK": "0,8"}, "PHASE=training"),
        ("llm", {"DEPTH": "9", "PHASE": "prefill"}, "PHASE=decode"),
        ("llm", {"OPTIMIZER": "sgd"}, "PHASE=training"),
        ("tflops", {"SIZES": "64", "OPS": "int8"}, "OPS=matmul"),
        ("tflops", {"PRECISION": "float32", "OPS": "bandwidth,int8"}, "OPS=matmul"),
    ],
)
def test_a_setting_that_no_run_uses_is_refused_with_what_uses_it(command, environ, fix):
    name, text = next(iter(environ.items()))
    with pytest.raises(SettingError, match=f"{name}='{text}' .*{fix},"):
        read_runs(command, environ)
    assert read_runs(command, environ | dict([fix.split("=")]))
    assert read_runs("mlp" if command == "tflops" else "tflops", {name: text})  # which has no such setting
    assert f"{name}={text!r}" in refusal("all", {name: text})  # whose work is fixed


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("BATCHSIZE", "BATCH_SIZE"),
        ("batch_size", "BATCH_SIZE"),
        ("PRECISON", "PRECISION"),
        ("IMAGEMODEL", "IMAGE_MODEL"),
    ],
)
def test_a_misspelt_variable_is_refused_with_what_was_meant(name, meant):
    message = refusal("image", {name: "64"})
    assert message.startswith(f"{name}='64' ")
    assert meant in message


def test_ordinary_variables_are_left_alone():
    assert read_settings("image", dict.fromkeys(ORDINARY.split(), "1")).on("cuda").batch_size == 64


def test_an_unknown_name_on_makes_command_line_is_refused():
    makeflags = " --jobserver-auth=3,4 -- PYTHON=a IMAGE_MODEL=a MACHINE=a\\ X=b SEEDS=b"
    assert refusal("image", {"MAKEFLAGS": makeflags, "SEEDS": "b"}).startswith("SEEDS='b' ")
    assert "BATCH_SIZE" in refusal("image", {"MAKEFLAGS": "BATCH=8", "BATCH": "8"})


@pytest.mark.parametrize("typed", ["plot A=x", "plot MACHINE=x", "submit A=x", "compare MODEL=x"])
def test_a_command_that_reads_results_refuses_what_it_would_ignore(typed):
    done = subprocess.run(["make", "-n", *typed.split()], capture_output=True, text=True)
    assert done.returncode
    assert typed.split()[1].replace("=", "='") in done.stderr


DECODE = [{"PHASE": "decode", "DEPTH": depth} for depth in "09"]  # prefill does not use DEPTH


@pytest.mark.parametrize(
    ("command", "environ", "changes"),
    [
        ("image", {"BATCH_SIZE": "4", "SCOPE": "device,input"}, [{}]),
        ("tflops", {"PRECISION": "float32,tf32", "SIZES": "8,9"}, [{}]),
        ("image", {"IMAGE_MODEL": "vgg11, vgg16"}, [{"MODEL": "vgg11"}, {"MODEL": "vgg16"}]),
        ("llm", {"PHASE": " Prefill,decode", "DEPTH": "0,9"}, [{"PHASE": "Prefill", "DEPTH": "0"}, *DECODE]),
        ("image", {"COMPILE": "0,1,0"}, [{"COMPILE": "0"}, {"COMPILE": "1"}]),
        ("tflops", {"FRAMEWORK": "torch,JAX"}, [{"FRAMEWORK": "torch"}, {"FRAMEWORK": "JAX"}]),
        ("image", {"MODEL": "vgg11,vgg11"}, [{"MODEL": "vgg11"}]),  # a list that is not compared
        ("image", {"PRECISION": "fp32,float32", "BATCH_SIZE": "8,08"}, [{"PRECISION": "fp32", "BATCH_SIZE": "8"}]),
    ],
)
def test_runs_that_the_lists_ask_for(command, environ, changes):
    runs = read_runs(command, environ | {"MAKEFLAGS": ""})
    assert [run.choices for run in runs] == changes
    for run in runs:  # a child reads the same settings without a list
        assert run.environ == {SYNONYMS.get(name, name): text for name, text in environ.items()} | run.choices
        assert read_settings(command, run.environ) == run.settings


def test_frameworks_of_a_list_have_their_own_defaults_which_are_named():
    first, second = read_runs("image", {"FRAMEWORK": "torch,jax"})
    assert [run.settings.compile for run in (first, second)] == [False, True]
    assert first.differences == {"FRAMEWORK": "torch", "MEMORY_FORMAT": "channels_first"}
    assert second.differences == {"FRAMEWORK": "jax", "MEMORY_FORMAT": "channels_last"}


@pytest.mark.parametrize("command", ["all", "best", "plot", "compare", "submit", "tests"])
def test_a_command_that_measures_no_list_refuses_one(command):
    for name, text in (("FRAMEWORK", "torch,jax"), ("USE_GPU", "0,1"), ("RUNS", "1,2")):
        assert refusal(command, {name: text}).startswith(f"{name}='{text}' ")


def test_the_page_of_settings_has_each_with_its_commands_and_defaults():
    rows = re.findall(r"^\| ([A-Z_]+) \| (.*?) \| (.*?) \| ", Path("docs/settings.md").read_text(), re.M)
    assert sorted(name for name, *_ in rows) == sorted({*SETTING_NAMES, *MAKE_VARIABLES} - {*SYNONYMS})
    for name, shown, used_by in rows[: len(DECLARED)]:
        _, default, _ = DECLARED[name.lower()]
        assert used_by == (", ".join(default) if isinstance(default, dict) else "every command")
        texts = default.values() if isinstance(default, dict) else [(default or "").rpartition("/")[2]]
        for text in filter(None, texts):
            assert all(each in shown for each in (text if isinstance(text, tuple) else [text])), name


def test_the_page_of_settings_has_each_model():
    page = Path("docs/settings.md").read_text()
    names = [name for name in (*DECODERS, *ENCODERS, *DENOISERS) if "tiny" not in name]  # which other tests add
    assert [f"{name} is missing in docs/settings.md" for name in names if name not in page] == []
