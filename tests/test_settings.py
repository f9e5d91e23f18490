"""Settings: what users type, and the one line they get when it is wrong."""

from pathlib import Path

import pytest

from bench.settings import ALL, AUTO, MOST_POSITIONS, SYNONYMS, SettingError, as_markdown, list_runs, read_settings
from llm_benchmark import DECODERS

# Names that resemble ours, in the environment of a shell, a Mac, a cluster, a container, a notebook or a build.
ORDINARY = """
SECONDS MODE MODES RUN RUNNER SIZE DATE DEVICE DEVICES BATCH BATCHES MODELS MODEL_DIR MODEL_NAME MODEL_ID DATASET SEEDS
WORKERS COMPILER TARGET TARGET_CC TARGET_CXX TARGET_CPU TARGET_ARCH TARGET_DIR MACHINE_NAME MACHINE_TYPE RESULT RESULTS
OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_MAX_THREADS THREADS MAX_THREADS MAX_JOBS LOCAL_RANK RANK
ImageOS IMAGE IMAGES IMAGE_NAME IMAGE_TAG SCOPES PHASES EPOCHREALTIME FRAMEWORK_DIR PYTHONPATH MAKEFLAGS WORLD_SIZE a b
"""


def refusal(script="image", **environ):
    """Return the message of a refusal, which is one line."""
    with pytest.raises(SettingError) as error:
        read_settings(script, environ)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_defaults_depend_on_the_script_and_the_device():
    image, mlp, llm = (read_settings(script, {}) for script in ("image", "mlp", "llm"))
    assert (image.use_gpu, image.framework, image.phase, mlp.phase) == (None, "torch", "inference", "training")
    assert (image.scope, mlp.scope, image.epochs, mlp.epochs) == (("device", "input", "end_to_end"), None, None, 0)
    assert [image.on(device).batch_size for device in ("cpu", "cuda", "mps")] == [16, 64, 64]
    found = [(s.model, s.precision, s.batch_size) for s in (llm.on("cpu"), llm.on("cuda"), llm.on("mps"))]
    assert found == [("smollm2-135m", "float32", 1), *[("llama-3.2-1b", "bfloat16", 1)] * 2]
    asked = read_settings("llm", {"MODEL": "qwen3-4b", "PRECISION": "float16"}).on("cuda")
    assert (asked.model, asked.precision) == ("qwen3-4b", "float16")


@pytest.mark.parametrize(
    ("script", "environ", "values"),
    [
        ("image", {"USE_GPU": "1", "BATCH_SIZE": "64", "IMAGE_MODEL": "resnet18"}, (True, 64, "resnet18")),
        ("image", {"BATCH_SIZE": " 8 ", "PRECISION": "Float32", "FRAMEWORK": "PyTorch"}, (8, "float32", "torch")),
        ("image", {"BATCH_SIZE": "AUTO", "COMPILE": "Max-Autotune"}, (AUTO, "max-autotune")),
        ("image", {"NUM_DEVICES": "All", "BATCH_SIZE": "4"}, (ALL, 4)),
        ("image", {"SCOPE": "input,device", "MACHINE": "../../tmp/x"}, (("input", "device"), "tmp-x")),
        ("image", {"FRAMEWORK": "tf", "MEMORY_FORMAT": "channels_last"}, ("tensorflow", "channels_last")),
        ("llm", {"PHASE": "Decode", "NUM_DEVICES": "all"}, ("decode", ALL)),
        ("tflops", {"SIZES": "64, 8X16x32"}, (((64, 64, 64), (8, 16, 32)),)),
        ("another", {"MODEL": "", "BATCH_SIZE": "many", "SEED": "3"}, (None, None, 3)),  # not its settings
    ],
)
def test_what_users_type_becomes_values(script, environ, values):
    settings = read_settings(script, environ)
    assert tuple(getattr(settings, SYNONYMS.get(name, name).lower()) for name in environ) == values


@pytest.mark.parametrize(
    ("name", "values", "fix"),
    [
        ("BATCH_SIZE", "0 -1 abc 1.5 1e9 1_000 ٣ 99999999999", "from 1 to 1000000000, or auto"),
        ("BATCH_SIZE", "1,,4", "remove the extra comma"),
        ("BATCH_SIZE", "1,4,1", "name it once"),
        ("BATCH_SIZE", "1,x", "or auto, in every entry"),
        ("USE_GPU", "yes 2", "1 or 0"),
        ("PRECISION", "fp8", "float32, tf32, float16, bfloat16, float64, mixed_float16, mixed_bfloat16"),
        ("NUM_DEVICES", "0", "from 1 to 1000000000, or all"),
        ("RUNS", "0 1,2", "from 1 to 1000"),  # not a list
        ("PHASE", "decode", "inference, training"),
        ("MAX_SECONDS", "nan 0 inf", "above 0"),
        ("MACHINE", ".. published", "letters or digits, and not 'published'"),
    ],
)
def test_a_wrong_value_is_named_with_its_fix(name, values, fix):
    for value in values.split():
        message = refusal(**{name: value})
        assert message.startswith(f"{name}={value!r} ")
        assert fix in message


@pytest.mark.parametrize("name", ["BATCH_SIZE", "IMAGE_MODEL", "RESULTS_DIR"])
def test_an_empty_value_is_refused(name):
    assert refusal(**{name: " "}).startswith(f"{name}='' is empty")


@pytest.mark.parametrize(
    ("script", "environ"),
    [
        ("image", {"SUSTAIN": "60", "SCOPE": "input"}),
        ("mlp", {"SUSTAIN": "60", "EPOCHS": "1"}),
        ("mlp", {"PHASE": "inference", "EPOCHS": "1"}),
        ("image", {"COMPILE": "reduce-overhead", "FRAMEWORK": "tensorflow"}),
        ("mlp", {"NUM_DEVICES": "all", "FRAMEWORK": "tf"}),
        ("image", {"NUM_DEVICES": "2", "BATCH_SIZE": "auto"}),
        ("mlp", {"NUM_DEVICES": "2", "EPOCHS": "1"}),
        ("llm", {"FRAMEWORK": "tensorflow"}),
        ("diffusion", {"FRAMEWORK": "mlx"}),
        ("llm", {"PRECISION": "mixed_float16"}),
        ("llm", {"PHASE": "inference"}),
        ("mlp", {"OPTIMIZER": "adamw"}),
        ("image", {"PRECISION": "mixed_float16", "FRAMEWORK": "mlx"}),
        ("tflops", {"PRECISION": "float32,float64", "FRAMEWORK": "mlx"}),
        ("mlp", {"NUM_THREADS": "2", "FRAMEWORK": "mlx"}),
        ("image", {"MEMORY_FORMAT": "channels_first", "FRAMEWORK": "jax"}),
        ("llm", {"COMPILE": "1", "FRAMEWORK": "mlx"}),
        ("tflops", {"OPS": "convolution"}),
    ],
)
def test_contradictions_are_refused_with_all_that_was_given(script, environ):
    message = refusal(script, **environ)
    assert all(f"{name}={text!r}" in message for name, text in environ.items())


@pytest.mark.parametrize(
    ("phase", "name"), [("prefill", "PROMPT_TOKENS"), ("decode", "DEPTH"), ("decode", "NEW_TOKENS")]
)
def test_more_tokens_than_any_model_allows_are_refused_before_a_framework_is_imported(phase, name):
    assert max(decoder.max_position_embeddings for decoder in DECODERS.values()) == MOST_POSITIONS
    assert refusal("llm", PHASE=phase, **{name: "999999999"}).startswith(f"{name}='999999999' ")


# Misspelt names


@pytest.mark.parametrize(
    ("names", "meant"),
    [
        ("BATCHSIZE batch_size Batch__Size BATCH_SIZES BATCH_SIZ", "BATCH_SIZE"),
        ("EPOCH epochs", "EPOCHS"),
        ("model Model", "MODEL"),
        ("OPTIMISER", "OPTIMIZER"),
        ("IMAGEMODEL", "IMAGE_MODEL"),
    ],
)
def test_a_misspelt_variable_is_refused(names, meant):
    for name in names.split():
        message = refusal(**{name: "64"})
        assert message.startswith(f"{name}='64' ")
        assert message.endswith(f"did you mean {meant}?")


def test_ordinary_variables_are_left_alone():
    assert read_settings("image", dict.fromkeys(ORDINARY.split(), "1")).on("cuda").batch_size == 64


@pytest.mark.parametrize(
    ("makeflags", "name", "fix"),
    [
        ("s -- BATCHSIZE=64", "BATCHSIZE", "did you mean BATCH_SIZE?"),
        (" -- MODEL=a MACHINES=b\\ c", "MACHINES", "did you mean MACHINE?"),
        ("XYZZY=1", "XYZZY", "`make help`"),
        ("MAX_MINUTES=3", "MAX_MINUTES", "leave it out"),  # make best's
    ],
)
def test_an_unknown_name_on_makes_command_line_is_refused(makeflags, name, fix):
    message = refusal(MAKEFLAGS=makeflags)
    assert message.startswith(f"{name} ")
    assert fix in message


def test_known_names_on_makes_command_line_are_accepted():
    flags = " --no-print-directory -j2 --jobserver-auth=3,4 -- PYTHON=python3 MACHINE=a\\ X=b IMAGE_MODEL=vgg11"
    assert read_settings("image", {"MAKEFLAGS": flags, "IMAGE_MODEL": "vgg11"}).model == "vgg11"


# Lists


@pytest.mark.parametrize(
    ("script", "environ", "changes"),
    [
        ("image", {"BATCH_SIZE": "4"}, [{}]),
        ("image", {"SCOPE": "device,input"}, [{}]),
        ("tflops", {"PRECISION": "float32,tf32", "SIZES": "8,9"}, [{}]),
        ("image", {"PRECISION": "float32,tf32"}, [{"PRECISION": "float32"}, {"PRECISION": "tf32"}]),
        ("image", {"IMAGE_MODEL": "vgg11, vgg16"}, [{"IMAGE_MODEL": "vgg11"}, {"IMAGE_MODEL": "vgg16"}]),
        ("image", {"BATCH_SIZE": "1,AUTO"}, [{"BATCH_SIZE": "1"}, {"BATCH_SIZE": "AUTO"}]),
        ("transformer", {"SEED": "1"}, [{"MODEL": "distilbert"}, {"MODEL": "bert-large"}]),
        ("llm", {}, [{"PHASE": "prefill"}, {"PHASE": "decode"}]),
        ("llm", {"PHASE": " Prefill", "DEPTH": "0,512"}, [{"DEPTH": "0"}]),  # prefill does not use DEPTH
        ("llm", {"PHASE": "decode", "LORA_RANK": "0,8"}, [{"LORA_RANK": "0"}]),
        ("llm", {"PHASE": "training", "LORA_RANK": "0,8"}, [{"LORA_RANK": "0"}, {"LORA_RANK": "8"}]),
    ],
)
def test_runs_that_the_lists_ask_for(script, environ, changes):
    assert list_runs(script, environ) == changes
    for change in changes:  # a child reads the same settings without a list
        assert list_runs(script, environ | change) == [{}]


def test_a_phase_is_not_repeated_for_a_setting_that_it_does_not_use():
    runs = list_runs("llm", {"DEPTH": "0,512", "PROMPT_TOKENS": "8,16,32", "BATCH_SIZE": "1,4"})
    assert len(runs) == len({tuple(run.items()) for run in runs}) == 2 * 3 + 2 * 2
    prefill = [run for run in runs if run["PHASE"] == "prefill"]
    assert {(run["PROMPT_TOKENS"], run["DEPTH"]) for run in prefill} == {("8", "0"), ("16", "0"), ("32", "0")}
    decode = [run for run in runs if run["PHASE"] == "decode"]
    assert {(run["PROMPT_TOKENS"], run["DEPTH"]) for run in decode} == {("8", "0"), ("8", "512")}


# Help


def test_the_page_of_settings_is_as_generated():
    assert Path("docs/settings.md").read_text() == as_markdown() + "\n"
