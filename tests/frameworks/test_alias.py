"""Our branches for cuda and mps, walked on the CPU: see alias_device.py. A real GPU runs test_torch.py itself."""

from types import SimpleNamespace

import pytest
import torch

from bench.frameworks import base, on_torch
from bench.settings import SettingError, read_settings
from bench.timing import measure
from bench.workloads import operators
from tests.frameworks import alias_device
from tests.frameworks.sessions import Opener

open_session = Opener("torch")
WATERMARK = "PYTORCH_MPS_HIGH_WATERMARK_RATIO"


@pytest.fixture(params=["cuda", "mps"])
def gpu(request, monkeypatch):
    """The Allocator of a GPU of that name."""
    return alias_device.pretend(monkeypatch, request.param)


def step(session):
    if session.prepare:
        session.prepare()
    session.step()


def test_the_device_is_described(gpu):
    found = on_torch.find_device(read_settings("mlp", {}))
    assert found == on_torch.find_device(read_settings("mlp", {"USE_GPU": "1"}))
    on_cuda = found.device == "cuda"
    assert found.device_name == ("NVIDIA Alias" if on_cuda else None)
    assert on_torch.find_device(read_settings("mlp", {"USE_GPU": "0"})).device == "cpu"


@pytest.mark.parametrize(("gib", "environ", "fraction"), [(16, {}, 1), (32, {}, None), (16, {WATERMARK: "0"}, None)])
def test_a_small_mac_runs_out_of_memory_instead_of_swapping(monkeypatch, gib, environ, fraction):
    allocator = alias_device.pretend(monkeypatch, "mps")
    monkeypatch.setattr(on_torch.psutil, "virtual_memory", lambda: SimpleNamespace(total=gib * 2**30))
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    on_torch.find_device(read_settings("mlp", {}))
    assert allocator.fraction == fraction


@pytest.mark.parametrize("phase", ["inference", "training", "forward", "backward", "optimizer"])
def test_a_session_runs_and_counts_the_devices_memory(gpu, phase):
    session = open_session("mlp", phase)
    gpu.allocate(1000)  # by the first step
    step(session)
    gpu.free(400)
    session.after_first_step()
    before = gpu.synchronized
    session.synchronize()
    assert gpu.synchronized == before + 1
    first = session.read()
    step(session)
    assert session.read() != first
    assert session.context.peak_memory_bytes() == 600
    gpu.free(600)
    session.close()


@pytest.mark.parametrize(
    ("script", "phase", "optimizer", "precision"),
    [
        ("image", "inference", "sgd", "float32"),
        ("mlp", "inference", "sgd", "mixed_bfloat16"),
        ("diffusion", "inference", "sgd", "bfloat16"),
        ("diffusion", "training", "adamw", "bfloat16"),
        *(
            ("mlp", "training", optimizer, precision)
            for optimizer in ("sgd", "adam")
            for precision in ("float32", "mixed_bfloat16", "mixed_float16")
        ),
        ("transformer", "training", "adam", "float32"),
        ("llm", "training", "adamw", "bfloat16"),
        ("llm", "prefill", "adamw", "bfloat16"),
        ("llm", "decode", "adamw", "bfloat16"),
    ],
)
def test_a_step_waits_for_nothing_and_makes_no_float64(gpu, tiny_decoders, script, phase, optimizer, precision):
    asked = {"PHASE": phase} if script == "llm" else {}
    session = open_session(script, phase, PRECISION=precision, OPTIMIZER=optimizer, **asked)
    step(session)  # creates the optimizer's state
    with alias_device.Watch():
        step(session)


def test_the_watch_sees_what_it_is_there_for():
    for wrong, said in ((lambda x: x.double(), "float64"), (lambda x: x.sum().item(), "reads a value back")):
        with pytest.raises(AssertionError, match=said), alias_device.Watch():
            wrong(torch.ones(2))


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), True), ((8, 0), False)])
def test_a_card_that_emulates_bfloat16_is_known(monkeypatch, capability, expected):
    alias_device.pretend(monkeypatch, "cuda", capability)
    assert on_torch.find_device(read_settings("llm", {})).emulates_bfloat16 == expected


@pytest.mark.parametrize(
    ("device", "properties", "expected"),
    [
        ("cuda", {"is_integrated": 0}, False),
        ("cuda", {"is_integrated": 1}, True),
        ("xpu", {"is_integrated_gpu": False}, False),
        ("xpu", {"is_integrated_gpu": True}, True),
        ("mps", {}, None),
    ],
)
def test_a_gpu_that_shares_the_systems_memory_is_known(monkeypatch, device, properties, expected):
    alias_device.pretend(monkeypatch, device, **properties)
    assert on_torch.find_device(read_settings("llm", {})).is_integrated is expected


def test_several_devices_that_cannot_work_together_are_refused(monkeypatch):
    alias_device.pretend(monkeypatch, "xpu")
    with pytest.raises(SettingError, match=r"NUM_DEVICES='2'.*xpu"):
        on_torch.find_device(read_settings("mlp", {"NUM_DEVICES": "2"}))


def test_streams_epochs_and_operators_run(gpu, monkeypatch):
    monkeypatch.setattr(operators, "COPY_NUMBERS", 2**16)
    stream = open_session("image", scope="end_to_end", NUM_WORKERS="0")
    step(stream)
    stream.close()
    works = [operators.matmul((48, 40, 56)), operators.convolution_1x1((48, 40, 56))]
    for workload in works + [operators.bandwidth(*item) for item in operators.BANDWIDTHS.items()]:
        session = open_session.operator(workload)
        step(session)
        assert session.read() > 0


# Proofs


def corrupt(monkeypatch, factor):
    """Let nn.Module.to() change one weight."""
    module_to = torch.nn.Module.to

    def to(module, *where, **how):
        moved = module_to(module, *where, **how)
        list(moved.parameters())[-2].data.mul_(factor)
        return moved

    monkeypatch.setattr(torch.nn.Module, "to", to)


@pytest.mark.parametrize(
    ("device", "script", "factor", "environ"),
    [
        ("cuda", "image", 1.05, {}),
        ("mps", "mlp", 1.05, {}),
        ("mps", "transformer", 1.05, {}),
        ("cuda", "mlp", 2, {"PRECISION": "mixed_bfloat16"}),
        ("mps", "mlp", 2, {"PRECISION": "float16"}),
        ("mps", "mlp", 2, {"PRECISION": "mixed_bfloat16", "USE_GPU": "0"}),
    ],
)
def test_a_device_that_corrupts_a_weight_gives_a_wrong_output(monkeypatch, device, script, factor, environ):
    alias_device.pretend(monkeypatch, device)
    open_session(script, **environ)
    corrupt(monkeypatch, factor)
    with pytest.raises(measure.MeasurementError, match="differs from the CPU's") as caught:
        open_session(script, **environ)
    assert caught.value.status == "wrong_output"


@pytest.mark.parametrize("scale", [lambda y: 1.1 * y, lambda y: torch.cat([y[:8], 1.1 * y[8:]])])
def test_a_gpu_that_is_wrong_from_nine_items_on_is_refused(monkeypatch, scale):
    alias_device.pretend(monkeypatch, "mps")
    linear = torch.nn.functional.linear
    wrong = lambda x, *weights: linear(x, *weights) if len(x) < 9 else scale(linear(x, *weights))  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "linear", wrong)
    assert open_session("mlp", "inference", BATCH_SIZE="8").output_error < 1e-5
    with pytest.raises(measure.MeasurementError, match="differs from the CPU's"):
        open_session("mlp", "inference", BATCH_SIZE="9")


@pytest.mark.parametrize(("device", "least"), [("cuda", 0.01), ("mps", 0.3)])
def test_images_in_16_bits_on_mps_may_be_as_wrong_as_winograd_makes_them(monkeypatch, device, least):
    alias_device.pretend(monkeypatch, device)
    context = open_session("image", "inference", PRECISION="bfloat16", IMAGE_SIZE="64").context
    assert context.output_error < context.output_limit
    assert least <= context.output_limit < max(least, 0.29) + 0.01
    assert open_session("transformer", "inference", PRECISION="bfloat16").context.output_limit < 0.1


def in_11_bits(tensor):
    mantissa, exponent = torch.frexp(tensor)
    return torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)


def test_a_gpu_that_computes_float32_with_11_bits_is_named_tf32(monkeypatch):
    """Test with a matmul as an M5 may compute it."""
    monkeypatch.setattr(base, "_probed", {})
    alias_device.pretend(monkeypatch, "mps")
    matmul = torch.matmul
    monkeypatch.setattr(torch, "matmul", lambda left, right: matmul(in_11_bits(left), in_11_bits(right)))
    assert open_session("mlp", "inference").measured_precision == "tf32"
    assert open_session("image", "inference").measured_precision == "matmul tf32, convolution float32"
    assert not open_session("mlp", "inference", COMPILE="1").context.compares_compiled


def test_a_convolution_of_few_bits_lets_no_wrong_output_pass(monkeypatch):
    """MPS computes some convolutions in bfloat16 with an error of 6 %, which is no known precision."""
    monkeypatch.setattr(base, "_probed", {})
    alias_device.pretend(monkeypatch, "mps")
    convolve = torch.nn.functional.conv2d
    with monkeypatch.context() as probed:
        probed.setattr(torch.nn.functional, "conv2d", lambda *x, **how: convolve(*x, **how) * 1.06)
        session = open_session("image", "inference", PRECISION="bfloat16")
    assert session.measured_precision == "matmul bfloat16, convolution lower"
    assert session.context.output_limit == 0.3
    assert open_session("mlp", "inference", PRECISION="bfloat16").measured_precision == "bfloat16"
    corrupt(monkeypatch, 2)
    with pytest.raises(measure.MeasurementError, match="differs from the CPU's"):
        open_session("image", "inference", PRECISION="bfloat16")
