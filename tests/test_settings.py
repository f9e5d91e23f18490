"""Settings: what users type, and the one line they get when it is wrong."""

from dataclasses import fields

import pytest

from bench.settings import (
    MAKE_VARIABLES,
    SettingError,
    Settings,
    as_markdown,
    cpu_quota,
    known_names,
    list_runs,
    read_settings,
    slug,
)


def refusal(**environ):
    with pytest.raises(SettingError) as error:
        read_settings("image", environ)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_defaults():
    settings = read_settings("image", {})
    assert (settings.use_gpu, settings.framework, settings.model, settings.phase) == (
        None,
        "torch",
        "resnet50",
        "inference",
    )
    assert settings.on("cpu").batch_size == 16
    assert settings.on("cuda").batch_size == settings.on("mps").batch_size == 64


def test_what_the_ancestors_users_type():
    settings = read_settings("image", {"USE_GPU": "1", "BATCH_SIZE": "64", "IMAGE_MODEL": "resnet18"})
    assert (settings.use_gpu, settings.on("cpu").batch_size, settings.model) == (True, 64, "resnet18")


def test_modes_of_the_compiler_are_torchs_alone():
    assert read_settings("image", {"COMPILE": "max-autotune"}).compile == "max-autotune"
    said = refusal(COMPILE="reduce-overhead", FRAMEWORK="tensorflow")
    assert said == "COMPILE='reduce-overhead' is a mode of torch: set 1 or 0"


def test_a_value_may_have_spaces_around_it_and_capitals():
    settings = read_settings("image", {"BATCH_SIZE": " 8 ", "PRECISION": "Float32", "FRAMEWORK": "PyTorch"})
    assert (settings.batch_size, settings.precision, settings.framework) == (8, "float32", "torch")


@pytest.mark.parametrize("value", ["0", "-1", "abc", "1.5", "1e9", "1_000", "٣", "99999999999"])
def test_batch_size(value):
    assert refusal(BATCH_SIZE=value) == f"BATCH_SIZE={value!r} must be a whole number from 1 to 1000000000, or auto"


@pytest.mark.parametrize(
    ("name", "value", "cure"),
    [
        ("USE_GPU", "yes please", "1 or 0"),
        ("PRECISION", "fp8", "one of: float32, tf32, mixed_float16, mixed_bfloat16, float16, bfloat16, float64"),
        ("NUM_IMAGES", "0", "a whole number from 1 to 1000000000"),
        ("NUM_WORKERS", "-1", "a whole number from 0 to 1024"),
        ("IMAGE_SIZE", "7", "a whole number from 32 to 4096"),
        ("RUNS", "0", "a whole number from 1 to 1000"),
        ("COMPILE", "2", "one of: 0, 1, reduce-overhead, max-autotune, max-autotune-no-cudagraphs"),
        ("SCOPE", "gpu", "one of: device, input, end_to_end"),
        ("PHASE", "train", "one of: inference, training"),
        ("MEMORY_FORMAT", "nhwc", "one of: channels_first, channels_last"),
        ("MAX_SECONDS", "nan", "a finite number above 0"),
        ("MAX_SECONDS", "0", "a finite number above 0"),
        ("TARGET_CI", "inf", "a finite number above 0"),
        ("SEED", "-1", "a whole number from 0 to 1000000000"),
        ("MACHINE", "..", "a name with letters or digits, and not 'published'"),
        ("MACHINE", "published", "a name with letters or digits, and not 'published'"),
    ],
)
def test_a_wrong_value_is_named_with_its_cure(name, value, cure):
    assert refusal(**{name: value}) == f"{name}={value!r} must be {cure}"


@pytest.mark.parametrize("name", [n for n in known_names() if n not in MAKE_VARIABLES])
def test_an_empty_value_is_refused(name):
    only = {field.name.upper(): field.metadata["only"] for field in fields(Settings)}.get(name) or ("image",)
    with pytest.raises(SettingError) as error:
        read_settings(only[0], {name: " "})
    assert str(error.value) == f"{name}='' is empty: give it a value, or unset it for the default"


def test_synonyms_must_agree():
    assert "must agree" in refusal(MODEL="resnet18", IMAGE_MODEL="resnet50")
    assert read_settings("image", {"MODEL": "vgg11", "IMAGE_MODEL": "vgg11"}).model == "vgg11"


def test_a_machine_is_a_name_and_never_a_path():
    assert slug("../../etc/x") == "etc-x"
    assert slug("Alice's MacBook") == "alice-s-macbook"
    assert read_settings("image", {"MACHINE": "/tmp/x"}).machine == "tmp-x"


@pytest.mark.parametrize(
    ("names", "meant"),
    [
        (("BATCHSIZE", "batch_size", "Batch__Size", "BATCH_SIZES", "BATCH_SIZ", "BATCH_SIZA"), "BATCH_SIZE"),
        (("PRECISON", "PRECISIONS"), "PRECISION"),
        (("EPOCH",), "EPOCHS"),
    ],
)
def test_a_misspelt_variable_is_refused(names, meant):
    for name in names:
        assert refusal(**{name: "64"}) == f"{name}='64' is not a setting: did you mean {meant}?"


def test_other_programs_variables_are_left_alone():
    environ = dict.fromkeys(("BATCHES", "MODELS", "HOME", "a", "_", "MODE", "RUN", "SIZE"), "1")
    assert read_settings("image", environ).batch_size.gpu == 64


@pytest.mark.parametrize(
    ("script", "environ", "said"),
    [
        ("image", {"SUSTAIN": "60", "SCOPE": "input"}, "SUSTAIN='60' measures one workload alone: unset SCOPE"),
        ("image", {"SUSTAIN": "60", "NUM_IMAGES": "9"}, "SUSTAIN='60' measures one workload alone: unset NUM_IMAGES"),
        ("mlp", {"SUSTAIN": "60", "EPOCHS": "1"}, "SUSTAIN='60' measures one workload alone: unset EPOCHS"),
        ("mlp", {"PHASE": "inference", "EPOCHS": "1"}, "EPOCHS='1' is training: set PHASE=training, or unset EPOCHS"),
    ],
)
def test_contradictions_are_refused(script, environ, said):
    with pytest.raises(SettingError) as error:
        read_settings(script, environ)
    assert str(error.value) == said


def test_a_containers_quota_limits_the_cores(tmp_path):
    file = tmp_path / "cpu.max"
    assert cpu_quota(file) is None
    for text, quota in (("max 100000", None), ("150000 100000", 1.5)):
        file.write_text(text)
        assert cpu_quota(file) == quota


@pytest.mark.parametrize(
    ("makeflags", "said"),
    [
        (" -- BATCHSIZE=64", "BATCHSIZE is not a setting: did you mean BATCH_SIZE?"),
        ("s -- BATCH_SIZES=64", "BATCH_SIZES is not a setting: did you mean BATCH_SIZE?"),
        (" -- MODEL=a MACHINES=b\\ c", "MACHINES is not a setting: did you mean MACHINE?"),
        ("XYZZY=1", "XYZZY is not a setting: see `make help`"),
        ("EPOCHS=1", "EPOCHS is no setting of this command: leave it out (`make help` lists who uses it)"),
    ],
)
def test_an_unknown_name_on_makes_command_line_is_refused(makeflags, said):
    assert refusal(MAKEFLAGS=makeflags) == said


def test_known_names_on_makes_command_line_are_taken():
    flags = " --no-print-directory -j2 --jobserver-auth=3,4 -- PYTHON=python3 MACHINE=a\\ X=b BATCH_SIZE=64"
    assert read_settings("image", {"MAKEFLAGS": flags, "BATCH_SIZE": "64"}).batch_size == 64


def test_a_setting_that_the_script_does_not_use_is_not_looked_at():
    settings = read_settings("another", {"MODEL": "", "BATCH_SIZE": "many", "SEED": "3"})
    assert (settings.model, settings.batch_size, settings.seed) == (None, None, 3)


def test_the_page_of_settings_is_as_generated():
    with open("docs/settings.md") as page:
        assert page.read() == as_markdown() + "\n"


def test_lists_ask_for_every_combination():
    environ = {"BATCH_SIZE": "1,4,16", "USE_GPU": "0,1", "PHASE": "inference,training", "SEED": "1"}
    changes = list_runs("image", environ)
    assert len(changes) == 12
    assert changes[0] == {"USE_GPU": "0", "PHASE": "inference", "BATCH_SIZE": "1"}
    runs = [read_settings("image", environ | change) for change in changes]
    assert len({(run.use_gpu, run.phase, run.batch_size) for run in runs}) == 12


def test_without_lists_there_is_one_run_that_changes_nothing():
    assert list_runs("image", {"BATCH_SIZE": "4"}) == [{}]
    assert list_runs("image", {"SCOPE": "device,input"}) == [{}]


def test_a_list_under_a_synonym():
    changes = list_runs("image", {"IMAGE_MODEL": "vgg11, vgg16"})
    assert changes == [{"IMAGE_MODEL": "vgg11"}, {"IMAGE_MODEL": "vgg16"}]


def test_scopes_are_all_measured_in_one_run():
    assert read_settings("image", {}).scope == ("device", "input", "end_to_end")
    assert read_settings("image", {"SCOPE": "input,device"}).scope == ("input", "device")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("BATCH_SIZE", "1,,4", "has an empty entry: remove the extra comma"),
        ("MODEL", "vgg11,", "has an empty entry: remove the extra comma"),
        ("BATCH_SIZE", "1,4,1", "has 1 more than once: name it once"),
        ("SCOPE", "device,device", "has device more than once: name it once"),
        ("BATCH_SIZE", "1,x", "must be a whole number from 1 to 1000000000, or auto, in every entry"),
        ("PRECISION", "float32,fp8", "must be one of: float32, tf32, "),
    ],
)
def test_a_wrong_list_is_named_with_its_cure(name, value, said):
    assert refusal(**{name: value}).startswith(f"{name}={value!r} {said}")


def test_settings_that_take_one_value_take_no_list():
    assert refusal(RUNS="1,2") == "RUNS='1,2' must be a whole number from 1 to 1000"


def test_each_script_has_its_defaults():
    mlp, transformer = read_settings("mlp", {}), read_settings("transformer", {})
    assert (mlp.phase, mlp.on("cuda").batch_size, mlp.optimizer, mlp.epochs, mlp.scope) == (
        "training",
        32,
        "sgd",
        0,
        None,
    )
    assert (transformer.phase, transformer.optimizer, transformer.sequence_length) == ("training", "adam", 128)
    assert (transformer.on("cuda").batch_size, transformer.on("cpu").batch_size) == (32, 4)
    assert transformer.num_images is None


def test_a_default_may_be_a_list():
    assert list_runs("transformer", {"SEED": "1"}) == [{"MODEL": "distilbert"}, {"MODEL": "bert-large"}]
    assert list_runs("transformer", {"MODEL": "bert-base"}) == [{}]
    assert read_settings("transformer", {}).model == "distilbert"


def test_language_models_have_defaults_by_device():
    llm = read_settings("llm", {})
    found = [(s.model, s.precision, s.batch_size) for s in (llm.on("cpu"), llm.on("cuda"), llm.on("mps"))]
    assert found == [("smollm2-135m", "float32", 1), *[("llama-3.2-1b", "bfloat16", 1)] * 2]
    assert (llm.prompt_tokens, llm.new_tokens, llm.depth, llm.optimizer) == (512, 128, 0, None)
    assert list_runs("llm", {}) == [{"PHASE": "prefill"}, {"PHASE": "decode"}]
    asked = read_settings("llm", {"MODEL": "qwen3-4b", "PRECISION": "float16"}).on("cuda")
    assert (asked.model, asked.precision) == ("qwen3-4b", "float16")


def test_each_script_has_its_phases():
    assert read_settings("llm", {"PHASE": "Decode"}).phase == "decode"
    for script, phase, said in (("llm", "training", "prefill, decode"), ("image", "decode", "inference, training")):
        with pytest.raises(SettingError, match=f"PHASE='{phase}' must be one of: {said}"):
            read_settings(script, {"PHASE": phase})


def test_a_phase_is_not_repeated_for_a_setting_that_it_does_not_use():
    runs = list_runs("llm", {"DEPTH": "0,512", "PROMPT_TOKENS": "8,16,32", "BATCH_SIZE": "1,4"})
    assert len(runs) == len({tuple(run.items()) for run in runs}) == 2 * 3 + 2 * 2
    prefill = [run for run in runs if run["PHASE"] == "prefill"]
    assert {(run["PROMPT_TOKENS"], run["DEPTH"]) for run in prefill} == {("8", "0"), ("16", "0"), ("32", "0")}
    decode = [run for run in runs if run["PHASE"] == "decode"]
    assert {(run["PROMPT_TOKENS"], run["DEPTH"]) for run in decode} == {("8", "0"), ("8", "512")}
    assert list_runs("llm", {"PHASE": " Prefill", "DEPTH": "0,512"}) == [{"DEPTH": "0"}]
    assert list_runs("llm", {"PHASE": "decode", "DEPTH": "0,512"}) == [{"DEPTH": "0"}, {"DEPTH": "512"}]


def test_the_memory_format_follows_the_framework_unless_it_is_named():
    assert read_settings("image", {}).memory_format == "channels_first"
    assert read_settings("image", {"FRAMEWORK": "tf"}).memory_format == "channels_last"
    assert (
        read_settings("image", {"FRAMEWORK": "tf", "MEMORY_FORMAT": "channels_first"}).memory_format == "channels_first"
    )
