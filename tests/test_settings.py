"""Settings: what users type, and the refusal they get when it is wrong."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.settings import DECLARED, MAKE_VARIABLES, SETTING_NAMES, SYNONYMS, SettingError, read_runs, read_settings
from diffusion_benchmark import DENOISERS
from llm_benchmark import DECODERS
from transformer_benchmark import ENCODERS

# Names that resemble ours, in the environment of a shell, a Mac, a cluster, a container, a notebook or a build.
ORDINARY = "SECONDS MODE RUN RUNNER SIZE DATE DEVICES BATCH MODELS SEEDS WORKERS COMPILER TARGET MACHINE_TYPE "
ORDINARY += "OMP_NUM_THREADS MAX_THREADS LOCAL_RANK ImageOS IMAGE_NAME SCOPES PHASES EPOCHREALTIME FRAMEWORK_DIR a b"


def refusal(command, **environ):
    """Return the message of a refusal."""
    with pytest.raises(SettingError) as error:
        read_runs(command, environ)
    return str(error.value)


def test_defaults_depend_on_the_command_the_device_and_the_framework():
    image, mlp = (read_settings(command, {}) for command in ("image", "mlp"))
    assert (image.framework, image.phase, mlp.phase, mlp.scope) == ("torch", "inference", "training", None)
    assert [read_settings("image", {}, device).batch_size for device in ("cpu", "cuda", "mps")] == [16, 64, 64]
    found = [(s.model, s.precision, s.batch_size) for s in (read_settings("llm", {}, each) for each in ("cpu", "cuda"))]
    assert found == [("smollm2-135m", "float32", 1), ("llama-3.2-1b", "bfloat16", 1)]
    old = [read_settings("llm", {"PHASE": phase}, "cuda", True).precision for phase in ("decode", "backward")]
    assert old == ["float16", "mixed_float16"]
    torch, jax = (run.settings for run in read_runs("image", {"FRAMEWORK": "torch,jax"}))
    assert (torch.compile, torch.memory_format) == (False, "channels_first")
    assert (jax.compile, jax.memory_format) == (True, "channels_last")


@pytest.mark.parametrize(
    ("command", "environ", "values"),
    [
        ("image", {"NUM_DEVICES": "All", "BATCH_SIZE": " 8 ", "IMAGE_MODEL": "resnet18"}, ("all", 8, "resnet18")),
        ("image", {"SCOPE": "input,device", "MACHINE": "../../tmp/x"}, (("input", "device"), "tmp-x")),
        ("image", {"COMPILE": "Max-Autotune", "PRECISION": "half"}, ("max-autotune", "float16")),
        ("image", {"FRAMEWORK": "tf", "COMPILE": "1"}, ("tensorflow", True)),
        ("tflops", {"SIZES": "64, 8X16x32, 64x64x64"}, (((64, 64, 64), (8, 16, 32)),)),  # each once
        ("tflops", {"PRECISION": "fp32,fp16,bf16,fp64,Float16"}, (("float32", "float16", "bfloat16", "float64"),)),
        ("another", {"MODEL": "x", "BATCH_SIZE": "8", "SEED": "3"}, (None, None, 3)),  # not its settings
        ("image", {"MODEL": "a", "IMAGE_MODEL": "a", "MACHINE": "Ümlaut straße"}, ("a", "a", "umlaut-strasse")),
    ],
)
def test_what_users_type_becomes_values(command, environ, values):
    settings = read_runs(command, environ)[0].settings
    assert tuple(getattr(settings, SYNONYMS.get(name, name).lower()) for name in environ) == values


@pytest.mark.parametrize(
    ("command", "name", "texts", "fix"),
    [
        ("llm", "BATCH_SIZE", ["0", "-1", "1.5", "1e9", "٣", "99999999999", "1,x"], "whole number"),
        ("llm", "BATCH_SIZE", ["8 16", "8,16 32"], "8,16"),
        ("llm", "BATCH_SIZE", ["", "1,,4", "4,"], "filled in"),
        ("llm", "NUM_DEVICES", ["0", "two"], "from 1 to 9999"),
        ("llm", "MAX_SECONDS", ["nan", "0", "inf"], "decimals follow a point"),
        ("llm", "MACHINE", ["..", "published", "機械1"], "letters"),
        ("llm", "NUM_THREADS", ["1,2"], "RESULTS_DIR"),  # it takes no list
        ("mlp", "DEPTH", ["abc", "0,abc"], "whole number"),  # not its setting
        ("llm", "PHASE", ["train"], "did you mean training"),
        ("llm", "PRECISION", ["float32,bflaot16"], "did you mean bfloat16"),
        ("all", "FRAMEWORK", ["torch,jax"], "one of"),  # the set is that of one framework
    ],
)
def test_a_wrong_value_is_named_with_its_fix(command, name, texts, fix):
    for text in texts:
        message = refusal(command, **{name: text})
        assert message.startswith(tuple(f"{name}={each!r} must be " for each in [text, *text.split(",")]))
        assert fix in message


@pytest.mark.parametrize(
    ("command", "environ", "fix"),
    [
        ("image", {"SUSTAIN": "60", "SCOPE": "input"}, "SCOPE"),
        ("mlp", {"FRAMEWORK": "jax", "NUM_DEVICES": "all"}, "FRAMEWORK=torch"),
        ("llm", {"WEIGHT_BITS": "4"}, "FRAMEWORK=mlx"),
        ("llm", {"FRAMEWORK": "mlx", "PHASE": "decode", "COMPILE": "1"}, "COMPILE=0"),
        ("image", {"PHASE": "prefill"}, "PHASE=inference"),
        ("tflops", {"PRECISION": "float32,mixed_float16"}, "PRECISION"),
        ("image", {"FRAMEWORK": "jax", "COMPILE": "0"}, "leave it out"),  # it always compiles
        ("image", {"FRAMEWORK": "torch,mlx", "PRECISION": "float64"}, "FRAMEWORK=torch"),
        ("llm", {"LORA_RANK": "0,8"}, "PHASE=training"),  # of which no run uses the setting
        ("tflops", {"SIZES": "32", "OPS": "bandwidth,int8"}, "OPS=matmul"),
    ],
)
def test_contradictions_are_refused_with_all_that_was_given_and_a_fix(command, environ, fix):
    message = refusal(command, **environ)
    given = [f"{name}={text.removeprefix('torch,')!r}" for name, text in environ.items() if name != "OPS"]
    assert [each for each in [*given, fix] if each not in message] == []
    assert "is not used" not in message or read_runs(command, environ | dict([fix.split("=")]))


def test_a_misspelt_name_is_refused_and_ordinary_variables_are_left_alone():
    for name, meant in (("BATCHSIZE", "BATCH_SIZE"), ("batch_size", "BATCH_SIZE"), ("IMAGEMODEL", "IMAGE_MODEL")):
        assert re.match(f"{name}='64' .*{meant}", refusal("image", **{name: "64"}))
    assert read_settings("image", dict.fromkeys(ORDINARY.split(), "1")).batch_size == 64
    # On make's command line any unknown name is refused.
    makeflags = " --jobserver-auth=3,4 -- PYTHON=a IMAGE_MODEL=a MACHINE=a\\ X=b\\\\ SEEDS=b"
    assert refusal("image", MAKEFLAGS=makeflags, SEEDS="b").startswith("SEEDS='b' ")
    assert "before `make`" in refusal("image", MAKEFLAGS="CUDA_VISIBLE_DEVICES:=1")
    assert "MODEL='b'" in refusal("image", IMAGE_MODEL="a", MODEL="b")


@pytest.mark.parametrize("line", ["image EPOCHS=3", "plot MODEL=a", "best DEPTH=3", "submit B=a"])
def test_a_setting_of_no_command_of_the_line_is_refused_there_and_a_warning_elsewhere(capsys, line):
    command, name, text = re.split("[ =]", line)
    environ = {name: text, "COMMANDS_OF_LINE": command}
    assert f"{name}='{text}'" in refusal(command, MAKEFLAGS=f"k -- {name}={text}", **environ)
    others = {"COMMANDS_OF_LINE": f"{command} mlp llm compare", "MAKEFLAGS": f"{name}={text}"}
    read_runs(command, environ | others)
    assert not capsys.readouterr().err
    for goals in (command, f"clean {command} tflops"):  # one warning, whatever follows
        for each in goals.split():
            read_runs(each, environ | {"COMMANDS_OF_LINE": goals})
        assert capsys.readouterr().err.count(name) == (name != "B")  # which other programs have, too


DECODE = [{"PHASE": "decode", "DEPTH": depth} for depth in "09"]  # prefill does not use DEPTH


@pytest.mark.parametrize(
    ("command", "environ", "changes"),
    [
        ("image", {"BATCH_SIZE": "4", "SCOPE": "device,input"}, [{}]),
        ("image", {"IMAGE_MODEL": "vgg11, vgg16"}, [{"MODEL": "vgg11"}, {"MODEL": "vgg16"}]),
        ("llm", {"PHASE": " Prefill,decode", "DEPTH": "0,9"}, [{"PHASE": "Prefill", "DEPTH": "0"}, *DECODE]),
        ("image", {"PRECISION": "fp32,float32", "BATCH_SIZE": "8,08"}, [{"PRECISION": "fp32", "BATCH_SIZE": "8"}]),
    ],
)
def test_runs_that_the_lists_ask_for(command, environ, changes):
    runs = read_runs(command, environ)
    assert [run.choices for run in runs] == changes
    for run in runs:  # a child reads the same settings without a list
        assert run.environ == {SYNONYMS.get(name, name): text for name, text in environ.items()} | run.choices
        assert read_settings(command, run.environ) == run.settings


@pytest.mark.parametrize("command", ["image", "llm", "diffusion"])
def test_a_cpu_and_a_gpu_are_compared_with_the_defaults_of_a_cpu(command):
    on_cpu = read_settings(command, {"USE_GPU": "0", "PHASE": "training"}, "cpu")
    for run in read_runs(command, {"USE_GPU": "1,0", "PHASE": "training"}):
        assert replace(read_settings(command, run.environ, "cuda"), use_gpu=False) == on_cpu


def test_the_page_of_settings_has_each_with_its_commands_and_defaults_and_each_model():
    page = Path("docs/settings.md").read_text()
    rows = re.findall(r"^\| ([A-Z_]+) \| (.*?) \| (.*?) \| ", page, re.M)
    assert sorted(name for name, *_ in rows) == sorted({*SETTING_NAMES, *MAKE_VARIABLES} - {*SYNONYMS})
    for name, shown, used_by in rows[: len(DECLARED)]:
        declared = DECLARED[name.lower()]
        assert used_by == (", ".join(declared.defaults) if "" not in declared.defaults else "every")
        for text in declared.defaults.values():
            texts = text if isinstance(text, tuple) else [text]
            assert all((each or "").rpartition("/")[2] in shown for each in texts)
    names = [name for name in (*DECODERS, *ENCODERS, *DENOISERS) if "tiny" not in name]  # which other tests add
    assert [f"{name} is missing in docs/settings.md" for name in names if name not in page] == []
