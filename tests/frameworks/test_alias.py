"""Our branches for cuda and mps, walked on the CPU: see alias_device.py. A real GPU runs test_torch.py itself."""

from types import SimpleNamespace

import pytest
import torch

from bench import doctor
from bench.frameworks import base, on_torch, on_torch_ranks
from bench.host.ranks import Ranks
from bench.settings import SettingError, read_settings
from bench.timing import check, measure
from bench.workloads import operators
from tests.frameworks import alias_device
from tests.frameworks.sessions import Opener

open_session = Opener("torch")


@pytest.fixture(params=["cuda", "mps"])
def gpu(request, monkeypatch):
    """The Allocator of a GPU of that name."""
    return alias_device.pretend(monkeypatch, request.param)


@pytest.fixture
def fresh_probes(monkeypatch):
    """Probe the device's precision anew, and forget it after the test."""
    monkeypatch.setattr(base, "_probed", {})


def step(session):
    if session.prepare:
        session.prepare()
    session.step()


def test_the_device_is_described(gpu):
    found = on_torch.find_device(read_settings("mlp", {}))
    assert found == on_torch.find_device(read_settings("mlp", {"USE_GPU": "1"}))
    on_cuda = found.device == "cuda"
    assert found.device_name == ("NVIDIA Alias" if on_cuda else None)
    assert found.has_own_memory == on_cuda
    assert on_torch.find_device(read_settings("mlp", {"USE_GPU": "0"})).device == "cpu"


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
    assert session.context.peak_memory_bytes() == session.context.reserved_memory_bytes() == 600
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
    ],
)
def test_a_step_waits_for_nothing_and_makes_no_float64(gpu, script, phase, optimizer, precision):
    session = open_session(script, phase, PRECISION=precision, OPTIMIZER=optimizer)
    step(session)  # creates the optimizer's state
    with alias_device.Watch():
        step(session)


def test_the_watch_sees_what_it_is_there_for():
    for wrong, said in ((lambda x: x.double(), "float64"), (lambda x: x.sum().item(), "reads a value back")):
        with pytest.raises(AssertionError, match=said), alias_device.Watch():
            wrong(torch.ones(2))


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


def test_small_pictures_are_no_wrong_output(monkeypatch):
    alias_device.pretend(monkeypatch, "cuda")
    # With BatchNorm's statistics of two images, float32's own rounding was 8e-3 here.
    assert open_session("image", "inference", MODEL="mobilenet_v2").output_error < check.MAX_RELATIVE_ERROR


def in_11_bits(work):
    """A matmul as an M5 may compute it in float32; in float64 it is exact."""

    def cut(tensor):
        mantissa, exponent = torch.frexp(tensor)
        return torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)

    def call(left, right, *rest):
        return work(cut(left), cut(right), *rest) if left.dtype == torch.float32 else work(left, right, *rest)

    return call


def test_a_gpu_that_computes_float32_with_11_bits_is_named_tf32(monkeypatch, fresh_probes):
    alias_device.pretend(monkeypatch, "mps")
    probe, linear = torch.matmul, torch.nn.functional.linear
    monkeypatch.setattr(torch, "matmul", in_11_bits(probe))
    monkeypatch.setattr(torch.nn.functional, "linear", in_11_bits(linear))
    assert open_session("mlp", "inference").measured_precision == "tf32"
    assert open_session("image", "inference").measured_precision == "matmul tf32, convolution float32"


def test_a_convolution_of_few_bits_lets_no_wrong_output_pass(monkeypatch, fresh_probes):
    """MPS computes some convolutions in bfloat16 with an error of 6 %, which is no known precision."""
    alias_device.pretend(monkeypatch, "mps")
    convolve = torch.nn.functional.conv2d
    rough = lambda *x, **how: convolve(*x, **how) * 1.06  # noqa: E731
    with monkeypatch.context() as probed:
        probed.setattr(torch.nn.functional, "conv2d", rough)
        session = open_session("image", "inference", PRECISION="bfloat16")
    assert session.measured_precision == "matmul bfloat16, convolution lower"
    assert open_session("mlp", "inference", PRECISION="bfloat16").measured_precision == "bfloat16"
    corrupt(monkeypatch, 2)
    with pytest.raises(measure.MeasurementError, match="differs from the CPU's"):
        open_session("image", "inference", PRECISION="bfloat16")


# Ranks


@pytest.mark.parametrize(("name", "asked"), [("cpu", "gloo"), ("mps", "gloo"), ("cuda", "cpu:gloo,cuda:nccl")])
def test_one_rank_needs_no_collectives_of_its_device(monkeypatch, name, asked):
    found = []
    monkeypatch.setattr(on_torch_ranks.cli, "handle", lambda *_: None)
    monkeypatch.setattr(on_torch_ranks.dist, "init_process_group", lambda backends, **_: found.append(backends))
    on_torch.join_ranks(Ranks(are_many=True), name)
    assert found == [asked]
    monkeypatch.setattr(on_torch_ranks.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(on_torch_ranks.dist, "get_world_size", lambda: 1)
    module = torch.nn.Linear(1, 1)
    assert on_torch_ranks.replicate(module) is module


# Cards and memory


def test_memory_that_lay_in_the_cache_before_is_not_subtracted(gpu):
    gpu.allocate(10**9)  # a larger batch that failed
    gpu.free(10**9)
    session = open_session()
    gpu.allocate(10**6)
    assert session.context.reserved_memory_bytes() == session.context.peak_memory_bytes() == 10**6
    session.close()


@pytest.mark.parametrize(
    ("capability", "built", "runs"),
    [
        ((6, 1), "sm_75 sm_80 sm_120 compute_120", False),
        ((7, 5), "sm_75 sm_80", True),
        ((12, 1), "sm_75 sm_90a compute_120", True),
        ((7, 0), "", True),  # it does not list them
    ],
)
def test_a_card_that_torch_has_no_kernels_for_is_one_line(monkeypatch, capsys, capability, built, runs):
    alias_device.pretend(monkeypatch, "cuda", capability=capability)
    monkeypatch.setattr(torch.cuda, "get_arch_list", built.split)
    settings = read_settings("mlp", {})
    if runs:
        assert on_torch.find_device(settings).device == "cuda"
        return
    with pytest.raises(SettingError) as caught:
        on_torch.find_device(settings)
    said = str(caught.value)
    assert f"compute capability {capability[0]}.{capability[1]} (it has 7.5" in said
    assert "USE_GPU=0" in said
    assert doctor.report_framework("torch") == 1
    assert said in capsys.readouterr().out


def test_a_card_without_memory_of_its_own_is_known(monkeypatch):
    alias_device.pretend(monkeypatch, "cuda", SimpleNamespace(name="NVIDIA GB10", is_integrated=1))
    assert not on_torch.find_device(read_settings("mlp", {})).has_own_memory
