"""What is special to PyTorch: small models, few steps. Where an accelerator is found, the same tests run on it."""

import csv
import functools
import pickle
import subprocess
import sys
import warnings
from multiprocessing import queues
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from bench.frameworks.pytorch import on_torch, on_torch_images
from bench.settings import SettingError, read_settings
from bench.timing import MeasurementError
from bench.workloads import data
from checks import count_flops
from diffusion_benchmark import DENOISERS
from image_benchmark import COUNTS, image_workload
from llm_benchmark import DECODERS, cache_bytes
from tests import fakes
from tests.card import machines
from tests.frameworks.sessions import TINY_DENOISERS, Opener, assert_measured, open_llm
from tests.frameworks.torch_reference import TINY, TINY_DECODERS, TRAINED_DECODERS

open_session = Opener("torch")


# Of a single token in a cache of one: there the counter, which does not know of masks, counts no empty slots.
SINGLE = {"PROMPT_TOKENS": "1", "DEPTH": "0", "NEW_TOKENS": "1"}
COUNTED = [("mlp", phase, {"MODEL": "mlp-3000-1000"}) for phase in ("inference", "training")]
COUNTED += [("transformer", "training", {"MODEL": model}) for model in TINY]
COUNTED += [("llm", phase, SINGLE | {"MODEL": model}) for model in TINY_DECODERS for phase in ("prefill", "decode")]
COUNTED += [("llm", "training", SINGLE | {"MODEL": model}) for model in TRAINED_DECODERS]
COUNTED += [("llm", phase, SINGLE | {"MODEL": "tiny-qwen", "LORA_RANK": "4"}) for phase in ("training", "forward")]


@pytest.mark.parametrize(("script", "phase", "environ"), COUNTED)
def test_the_formulas_agree_with_the_counter(script, phase, environ):
    session = open_session(script, phase, USE_GPU="0", **environ)
    if environ["MODEL"] == "tiny-moe":
        session.model.uncompiled.decoder.config._experts_implementation = "batched_mm"  # the counter knows no other
    # Without this the CPU's attention is one operator that the counter does not know.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        session.step()
    assert counter.get_total_flops() == session.workload.flops_per_item * session.workload.items_per_step


def test_every_image_model_is_counted():
    with COUNTS.open(newline="") as lines:
        counts = {row["model"]: row for row in csv.DictReader(lines)}
    assert set(counts) == set(on_torch_images.MODELS)
    for model in ("resnet18", "mobilenet_v2"):
        assert {name: str(value) for name, value in count_flops.count(model).items()} == counts[model]
    # 4.09 GMACs at 224 pixels, 25.6 million parameters: the table in torchvision's documentation of its weights.
    assert float(counts["resnet50"]["inference_flops"]) / 2e9 == pytest.approx(4.09, abs=0.01)
    assert counts["resnet50"]["parameters"] == "25557032"


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_has_its_optimizer_and_training_mode(optimizer):
    model = open_session("mlp", "training", OPTIMIZER=optimizer).model
    assert type(model.optimizer).__name__.lower() == optimizer
    assert model.uncompiled.training


def test_only_a_model_with_grouped_convolutions_is_compared_in_one_thread(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    for model, threads in (("resnet18", 7), ("mobilenet_v2", 1)):
        assert open_session("image", "inference", MODEL=model).context.reference_threads == threads


def test_images_lie_in_the_memory_format_asked_for():
    for memory_format, is_last in (("channels_first", False), ("channels_last", True)):
        (images,), _ = next(open_session("image", "inference", MEMORY_FORMAT=memory_format).batches)
        assert images.is_contiguous(memory_format=torch.channels_last) == is_last


def test_silent_fallback_to_the_cpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("mps"))
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda *version: True)
    assert on_torch.choose_device(None) == "mps"
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    with pytest.raises(SettingError, match="USE_GPU=0"):
        on_torch.choose_device(None)
    assert on_torch.choose_device(False) == "cpu"


# Devices that are not here


@pytest.mark.parametrize("cpu", ["x86_64 AVX2", "x86_64 DEFAULT", "x86_64 AVX512", "aarch64 DEFAULT"])
def test_a_cpu_that_emulates_bfloat16_is_known(monkeypatch, cpu):
    monkeypatch.setattr(on_torch.platform, "machine", lambda: cpu.split()[0])
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: cpu.split()[1])
    found = on_torch.find_device(read_settings("mlp", {"USE_GPU": "0"}))
    assert found.emulates_bfloat16 == (cpu in ("x86_64 AVX2", "x86_64 DEFAULT"))


MEMORY = {"memory_clock_rate": 10_501_000, "memory_bus_width": 384, "total_memory": 10**10}  # of an RTX 4090, but


@pytest.mark.parametrize(
    ("capability", "properties", "expected"),
    [
        ((7, 5), {"is_integrated": 0} | MEMORY, (True, False, 1008.096, 10**10)),
        ((8, 9), {"is_integrated": 0} | MEMORY | {"memory_clock_rate": 0}, (False, False, None, 10**10)),
        ((12, 1), {"is_integrated": 1} | MEMORY, (False, True, None, 10**10)),
    ],
)
def test_a_card_and_its_memory_are_known(monkeypatch, capability, properties, expected):
    monkeypatch.setattr(on_torch, "choose_device", lambda use_gpu: "cuda")
    module = SimpleNamespace(get_device_name=lambda: "NVIDIA Alias", device_count=lambda: 1)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: SimpleNamespace(**properties))
    found = on_torch.find_device(read_settings("llm", {}))
    assert (found.type, found.device_name) == ("cuda", "NVIDIA Alias")
    assert (found.emulates_bfloat16, found.is_integrated, found.rated_bandwidth, found.memory_bytes) == expected


# The pipeline


def read_images(workers, phase="inference", side=32, **options):
    """Return the batches of two images that workers read; options: of the DataLoader."""
    names = {"BATCH_SIZE": "2", "NUM_WORKERS": str(workers), "USE_GPU": "0", "IMAGE_SIZE": str(side), "PHASE": phase}
    settings = read_settings("image", names)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(on_torch_images, "DataLoader", functools.partial(DataLoader, **options))
        return on_torch_images.open_stream(data.jpeg_files(0), image_workload(settings), settings, False)


def test_a_stream_reads_every_file():
    count, batches = len(data.jpeg_files(0)), read_images(0)
    first, second = ([int(each) for _ in range(count // 2) for each in next(batches)[1]] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(count))
    assert first != second


def test_images_are_transformed_as_for_imagenet(monkeypatch):
    """Against the definition, in NumPy and PIL: resize the short side to 256, cut 224, normalise."""
    (path,) = data.jpeg_files(1, count=1)
    monkeypatch.setattr(data, "jpeg_files", lambda seed: [path])
    image = Image.open(path).convert("RGB")
    scale = 256 / min(image.size)
    image = image.resize([int(side * scale) for side in image.size], Image.Resampling.BILINEAR)
    left, top = (round((side - 224) / 2) for side in image.size)
    cut = np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32) / 255
    expected = (cut - data.IMAGENET_MEAN) / data.IMAGENET_STD
    first, second = next(read_images(0, side=224))[0].numpy().transpose(0, 2, 3, 1)
    assert np.array_equal(first, second)
    assert np.abs(first - expected).mean() < 0.05
    assert len(next(read_images(0, "training"))[0].unique(dim=0)) == 2  # cut at random


def prepare_to_receive(worker, prepare=on_torch_images.prepare_worker):
    prepare(worker)
    queues._ForkingPickler = SimpleNamespace(loads=pickle.loads)  # and cannot send: it has no dumps


def test_a_worker_that_cannot_send_a_batch_ends(monkeypatch):
    monkeypatch.setattr(on_torch_images, "prepare_worker", prepare_to_receive)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        next(read_images(2, timeout=300))


# Threads, models, the compiler


def test_threads_keep_to_a_quota_unless_they_are_set(monkeypatch):
    usual = torch.get_num_threads()
    monkeypatch.setattr(on_torch, "usable_cores", lambda: 1)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = [on_torch.find_device(read_settings("mlp", given)) for given in ({}, {"NUM_THREADS": "2"})]
    torch.set_num_threads(usual)
    assert [device.num_threads for device in found] == [1, 2]
    with warnings.catch_warnings(record=True) as shown:
        on_torch.find_device(read_settings("mlp", {}))
        warnings.warn("mkldnn_matmul failed, switching to BLAS gemm:\n 116 lines", stacklevel=1)
    assert not shown


def test_an_old_pytorch_has_no_float8(monkeypatch):
    monkeypatch.delattr(on_torch.functional, "ScalingType")
    with pytest.raises(MeasurementError, match=r"2\.10"):
        on_torch.OPERATORS["matmul-8bit"](*[torch.zeros((16, 16), dtype=torch.float8_e4m3fn)] * 2)


def test_compile_takes_the_modes_of_torch(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda model, dynamic, mode: asked.append(mode) or model)
    for mode in ("0", "1", "reduce-overhead"):
        open_session("mlp", "training", COMPILE=mode).close()
    assert asked == ["default", "reduce-overhead"]


def test_a_model_that_the_compiler_skips_is_unsupported(monkeypatch):
    # As Inductor does with bfloat16 on a card without it.
    monkeypatch.setattr(torch, "compile", lambda model, **how: model)
    session = open_session("mlp", "inference", COMPILE="1")
    session.step()
    with pytest.raises(MeasurementError, match="uncompiled") as error:
        session.after_first_step()
    assert error.value.status == "unsupported"


# Language and diffusion models


def test_weights_and_cache_have_the_precision_asked_for():
    model = open_llm("decode", PRECISION="bfloat16").model
    cached = [each for layer in model.cache.layers for each in (layer.keys, layer.values)]
    assert {each.dtype for each in [*model.uncompiled.parameters(), *cached]} == {torch.bfloat16}
    stored = sum(each.nbytes for each in cached)
    assert stored == 2 * cache_bytes(DECODERS["tiny-llama"], 7, "bfloat16")


@pytest.mark.parametrize("old", ["transformers 5.3.1 llm", "diffusers 0.36.1 diffusion"])
def test_an_old_package_is_one_line(monkeypatch, old):
    name, version, script = old.split()
    monkeypatch.setattr(f"{name}.__version__", version)
    with pytest.raises(SettingError, match=f"{name}>="):
        open_session(script, "training")


def test_an_adapter_adds_little_to_what_the_weights_give():
    """A B A x as large as W x would magnify rounding: it explained any gradient of most adapters."""
    module = open_llm("training", MODEL="tiny-qwen", LORA_RANK="4").model.uncompiled
    for layer in module.decoder.model.layers:
        for adapted in (layer.self_attn.q_proj, layer.self_attn.o_proj):
            assert float(adapted.lora_b.detach().std()) * adapted.lora_a.shape[1] ** 0.5 == pytest.approx(1, rel=0.3)


@pytest.mark.parametrize("name", sorted(DENOISERS.keys() - TINY_DENOISERS.keys()))
def test_the_counts_of_denoisers_are_those_of_the_counter(name):
    denoiser = DENOISERS[name]
    expected = denoiser.parameters, denoiser.inference_flops, denoiser.training_flops
    assert count_flops.count_denoiser(name) == expected


def test_the_prompt_of_what_is_compared_is_short():
    batch, *_ = fakes.describe("diffusion", MODEL="flux.2-klein-4b").make_checked(1, 0)
    assert [each.shape for each in batch] == [(1, 64, 128), (1,), (1, 64, 7680), (1, 64, 4), (1, 64, 4), (1, 64, 128)]


@pytest.mark.parametrize("phase", ["inference", "training"])
@pytest.mark.parametrize("model", TINY_DENOISERS)
def test_a_diffusion_model_is_measured_in_16_bits(model, phase):
    session = open_session("diffusion", phase, MODEL=model, PRECISION="bfloat16")
    assert_measured(session, 2)
    assert 1e-5 < session.output_error < 0.05


def test_the_loss_is_the_mean_squared_error_of_the_noise():
    session = open_session("diffusion", "forward")
    *inputs, noise = batch = next(session.batches)[0]
    expected = np.mean((session.model.output(*inputs) - session.context.to_numpy(noise)) ** 2)
    session.model.forward(*batch)
    assert float(session.model.loss) == pytest.approx(expected, rel=1e-5)


# PyTorch's CUDA build on a card made of software: cases.py, in a process of its own


@pytest.mark.skipif(bool(machines.explain_missing()), reason=machines.explain_missing())
def test_what_a_process_can_show_on_a_card(tmp_path):
    command = [sys.executable, "-m", "tests.card.card", "tests/card/cases.py"]
    done = subprocess.run(command, env=machines.build(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
