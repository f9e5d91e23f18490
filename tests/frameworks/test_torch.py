"""What is special to PyTorch: small models, few steps. Where an accelerator is found, the same tests run on it."""

import csv
import os
import pickle
import weakref
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench import frameworks
from bench.frameworks import on_torch, on_torch_images, on_torch_llm
from bench.host import resources
from bench.settings import SettingError, read_settings
from bench.timing import measure
from bench.workloads import data
from image_benchmark import COUNTS, image_workload
from tests.frameworks import count_flops
from tests.frameworks.sessions import Opener, open_llm
from transformer_benchmark import transformer_workload

open_session = Opener("torch")


@pytest.mark.parametrize(
    ("script", "environ"),
    [
        ("mlp", {"MODEL": "mlp-3000-1000"}),
        ("transformer", {"MODEL": "tiny-bert"}),
        ("transformer", {"MODEL": "tiny-distilbert"}),
    ],
)
@pytest.mark.parametrize("phase", ["inference", "training"])
def test_the_formulas_agree_with_the_counter(script, environ, phase):
    session = open_session(script, phase, USE_GPU="0", **environ)
    work = open_session.workload(script, phase, **environ)
    # Without this the CPU's attention is one operator that the counter does not know.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        session.step()
    assert counter.get_total_flops() == work.flops_per_item * work.items_per_step


@pytest.mark.parametrize("model", ["distilbert", "bert-base", "bert-large"])
def test_encoders_have_the_published_parameters(model):
    workload = transformer_workload(read_settings("transformer", {"MODEL": model}))
    with torch.device("meta"):
        module = on_torch.build_transformer(workload)
    assert on_torch.count_parameters(module) == workload.parameters
    assert module.model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_optimizer_is_the_one_asked_for(optimizer):
    used = open_session("mlp", OPTIMIZER=optimizer).model.optimizer
    assert type(used).__name__.lower() == optimizer
    assert used.defaults["lr"] == {"sgd": 0.01, "adam": 1e-5}[optimizer]


def test_images_lie_in_the_memory_format_asked_for():
    for memory_format, is_last in (("channels_first", False), ("channels_last", True)):
        images, _ = next(open_session("image", "inference", MEMORY_FORMAT=memory_format).batches)
        assert images.is_contiguous(memory_format=torch.channels_last) == is_last


def test_a_worker_can_be_started_on_a_mac_which_pickles_what_it_gets():
    dataset = on_torch_images.JpegDataset(data.jpeg_files(0), 224, 1000, training=True)
    sent, _ = pickle.loads(pickle.dumps((dataset, on_torch_images.silence_worker)))
    assert sent[0][0].shape == (3, 224, 224)


def test_a_stream_never_ends_and_reads_every_file():
    settings = read_settings("image", {"BATCH_SIZE": "4", "NUM_WORKERS": "0", "USE_GPU": "0", "IMAGE_SIZE": "32"})
    stream = on_torch_images.open_stream(image_workload(settings), settings, "inference", False)
    count = len(data.jpeg_files(settings.seed))
    first, second = ([int(each) for _ in range(count // 4) for each in next(stream.batches)[1]] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(count))
    assert first != second


def test_the_jpeg_pool_is_seeded_and_like_photographs(tmp_path):
    def pool(seed):
        return [Path(path).read_bytes() for path in data.write_jpegs(tmp_path, 8, seed)]

    assert pool(1) != pool(0) == (files := pool(0))
    sizes = [Image.open(path).size for path in tmp_path.iterdir()]
    assert all(200 <= side <= 500 for size in sizes for side in size)
    assert 1 < 8 * sum(map(len, files)) / sum(width * height for width, height in sizes) < 3  # bits; noise: over 6


# One of each kind of trouble: auxiliary heads, a head of zeros, no BatchNorm, grouped convolutions, stochastic depth.
@pytest.mark.parametrize("model", ["googlenet", "inception_v3", "vit_b_32", "vgg11", "shufflenet_v2_x0_5", "swin_t"])
def test_models_pass_their_checks_and_look_at_their_input(model):
    environ = {"MODEL": model, "BATCH_SIZE": "1", "IMAGE_SIZE": "224" if model == "vit_b_32" else "96"}
    assert measure.prove_output_varies(open_session("image", "inference", **environ)) is None


def test_the_forward_pass_holds_one_graph_at_a_time():
    session = open_session("mlp", "forward")
    session.step()
    assert session.last_result.grad_fn is None
    first = weakref.ref(session.model._loss)
    module, seen = session.model.module, []
    session.model.module = lambda images: seen.append(first()) or module(images)
    session.step()
    assert seen == [None]


@pytest.mark.skipif("ALIAS_DEVICE" in os.environ, reason="the choice is replaced")
def test_silent_fallback_to_the_cpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("mps"))
    assert on_torch.choose_device(None) == "mps"
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    with pytest.raises(SettingError, match="USE_GPU=0"):
        on_torch.choose_device(None)
    assert on_torch.choose_device(False) == "cpu"


def test_num_threads_are_set_and_reported():
    usual = torch.get_num_threads()
    try:
        assert on_torch.find_device(read_settings("image", {"NUM_THREADS": "1"})).num_threads == 1
    finally:
        torch.set_num_threads(usual)


def test_older_and_newer_switches_of_float32_agree():
    backends = torch.backends
    newer = (backends, backends.cuda.matmul, backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn)
    for precision in ("tf32", "ieee", "tf32"):
        on_torch.set_float32(precision)
        assert {each.fp32_precision for each in newer} == {precision}
        older = backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32  # reading them raises where they disagree
        assert set(older) == {precision == "tf32"}


@pytest.mark.parametrize(
    ("system", "version", "needed"),
    [
        ("linux", "2.8.1+cu128", "2.9"),
        ("linux", "2.12.0", None),
        ("darwin", "2.12.0", "2.13"),
        ("darwin", "2.13.0", None),
    ],
)
def test_a_package_that_is_too_old_is_one_line(monkeypatch, system, version, needed):
    monkeypatch.setattr(frameworks.metadata, "version", lambda name: version)
    monkeypatch.setattr(frameworks.sys, "platform", system)
    with pytest.raises(SettingError, match=f"torch {version[:5]}.*torch>={needed}") if needed else nullcontext():
        frameworks.load("torch")


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_a_wrong_compiled_model_is_refused(monkeypatch, phase):
    monkeypatch.setattr(on_torch.DeviceContext, "trace_count", lambda self: 1)

    def finish_first_step(factor, script="mlp", **environ):
        monkeypatch.setattr(torch, "compile", lambda model, **how: lambda *inputs: model(*inputs) * factor)
        session = open_session(script, phase, COMPILE="1", **environ)
        session.step()
        session.after_first_step()
        session.close()

    finish_first_step(1)
    wrong = 1.01 if phase == "inference" else 1.5
    with pytest.raises(measure.MeasurementError, match="compiled") as caught:
        finish_first_step(wrong)
    assert caught.value.status == "wrong_output"
    finish_first_step(wrong, PRECISION="mixed_bfloat16")  # rounding alone can make a larger difference
    if phase == "training":
        finish_first_step(wrong, "transformer")  # dropout drops something else each time


def test_compile_takes_the_modes_of_torch(monkeypatch):
    begun, asked = [], []
    monkeypatch.setattr(torch, "compile", lambda model, dynamic, mode: asked.append(mode) or model)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: begun.append(None))
    for mode in ("0", "1", "reduce-overhead"):
        open_session("mlp", "training", COMPILE=mode).step()
    assert asked == ["default", "reduce-overhead"]
    assert len(begun) == 2  # CUDA graphs have to know that a step begins


def test_close_resets_the_compiler(monkeypatch):
    resets = []
    monkeypatch.setattr(torch._dynamo, "reset", lambda: resets.append(None))
    for is_compiled in (False, True):
        session = open_session()
        session.context.compile = is_compiled
        session.close()
    assert len(resets) == 1


@pytest.fixture(scope="module")
def counts():
    """The rows of flops.csv by model."""
    with COUNTS.open(newline="") as lines:
        return {row["model"]: row for row in csv.DictReader(lines)}


@pytest.mark.parametrize("model", ["resnet18", "mobilenet_v2", "vgg11"])
def test_the_counts_are_those_of_the_counter(counts, model):
    assert {name: str(value) for name, value in count_flops.count(model).items()} == counts[model]


def test_every_model_is_counted_and_resnet_50_as_published(counts):
    assert set(counts) == set(on_torch_images.list_models())
    # 4.09 GMACs at 224 pixels, 25.6 million parameters: the table in torchvision's documentation of its weights.
    assert float(counts["resnet50"]["inference_flops"]) / 2e9 == pytest.approx(4.09, abs=0.01)
    assert counts["resnet50"]["parameters"] == "25557032"


def test_too_few_resources_for_workers_are_unsupported(monkeypatch):
    monkeypatch.setattr(resources, "find_worker_shortage", lambda workers, queued, size: f"{workers} {queued} {size}")
    environ = {"IMAGE_SIZE": "64", "BATCH_SIZE": "2", "NUM_WORKERS": "20", "USE_GPU": "0"}
    with pytest.raises(measure.MeasurementError, match=f"20 3 {2 * 3 * 64 * 64 * 4}") as error:
        open_session("image", scope="input", **environ)
    assert error.value.status == "unsupported"
    open_session("image", scope="input", **environ | {"NUM_WORKERS": "0"}).close()


def test_a_single_item_that_batchnorm_refuses_is_unsupported():
    session = open_session("image", "training", BATCH_SIZE="1")
    with pytest.raises(ValueError, match="Expected more than 1 value") as error:
        session.step()
    assert frameworks.describe_failure(error.value)[0] == "unsupported"


@pytest.mark.parametrize("builds_on_host", [True, False])
def test_a_decoder_is_built_in_float32_on_the_cpu_only_if_its_memory_suffices(
    monkeypatch, tiny_decoders, builds_on_host
):
    filled, fill = [], on_torch_llm.Decoder.fill
    monkeypatch.setattr(resources, "available_bytes", lambda: 10**9 if builds_on_host else 10**4)
    monkeypatch.setattr(on_torch_llm.Decoder, "fill", lambda self, *to: filled.append(to) or fill(self, *to))
    for phase in ("training", "decode"):
        session = open_llm(phase, USE_GPU="0", PRECISION="bfloat16")
        assert filled.pop() == ("cpu", torch.float32 if builds_on_host else torch.bfloat16)
        assert (session.output_error is None) == ("not compared" in session.context.note) != builds_on_host
        assert {weight.dtype for weight in session.model.uncompiled.parameters()} == {torch.bfloat16}
