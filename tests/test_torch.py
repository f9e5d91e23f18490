"""PyTorch for real: small networks, few steps. Where an accelerator is found, the same tests run on it."""

import csv

import pytest
import torch

from bench import frameworks, measure
from bench.frameworks import on_torch
from bench.settings import SettingError, read_settings
from image_benchmark import image_workload
from tests import count_flops

DEVICE = on_torch.choose_device(None)


def open_session(**environ):
    settings = read_settings("image", {"BATCH_SIZE": "2", "MODEL": "squeezenet1_1"} | environ).on(DEVICE)
    workload = image_workload(settings)
    return on_torch.open_session(workload, settings, settings.phase, "device")


@pytest.mark.parametrize("phase", ["inference", "training"])
@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("memory_format", ["channels_first", "channels_last"])
def test_a_real_measurement(phase, precision, memory_format):
    session = open_session(PHASE=phase, PRECISION=precision, MEMORY_FORMAT=memory_format)
    result = measure.measure(session, 2, measure.Limits(max_seconds=0.3))
    assert result.throughput > 0
    assert session.measured_precision == {"float32": "float32", "mixed_bfloat16": "bfloat16"}[precision]
    assert (session.peak_memory_bytes() is None) == (DEVICE == "cpu")
    session.close()


def test_training_changes_the_weights_and_inference_does_not():
    for phase, changes in (("training", True), ("inference", False)):
        session = open_session(PHASE=phase)
        before = [p.detach().clone() for p in session._model.parameters()]
        session.step()
        session.synchronize()
        changed = [not torch.equal(a, b) for a, b in zip(before, session._model.parameters(), strict=True)]
        assert any(changed) == changes
        assert session._model.training == changes


def test_the_batches_rotate():
    session = open_session()
    values = []
    for _ in range(8):
        session.step()
        values.append(session.probe())
    assert len(set(values[:4])) == 4
    assert values[:4] == pytest.approx(values[4:], rel=1e-5)


def test_the_same_seed_gives_the_same_work():
    def first_output(seed):
        session = open_session(SEED=seed)
        session.step()
        return session.probe()

    assert first_output("1") == pytest.approx(first_output("1"), rel=1e-5)
    assert first_output("1") != pytest.approx(first_output("2"), rel=1e-3)


# One of each kind of trouble: auxiliary heads, 299 pixels, a head of zeros, no BatchNorm, grouped convolutions.
@pytest.mark.parametrize("model", ["googlenet", "inception_v3", "vit_b_32", "vgg11", "shufflenet_v2_x0_5", "swin_t"])
def test_models_pass_their_checks_and_look_at_their_input(model):
    measure.prove_output_varies(open_session(MODEL=model, BATCH_SIZE="1"))


def test_a_depth_of_random_layers_keeps_two_images_apart():
    session = open_session(MODEL="resnet50")
    session._model.eval()
    with torch.no_grad():
        a, b = session._model(next(session._batches)[0]).double()
    assert (a - b).norm() > 0.01 * a.norm()


def test_an_unknown_model_names_the_nearest():
    with pytest.raises(SettingError) as error:
        open_session(MODEL="resnet5O")
    assert str(error.value).startswith("MODEL='resnet5O' is not in torchvision: did you mean resnet50, ")


def test_another_number_of_parameters_is_refused(monkeypatch):
    build = on_torch.BUILDERS["image"]

    def smaller(workload):
        model = build(workload)
        next(model.parameters()).requires_grad = False
        return model

    monkeypatch.setitem(on_torch.BUILDERS, "image", smaller)
    with pytest.raises(measure.MeasurementError, match="trainable parameters, not 1235496"):
        open_session()


def test_a_workload_without_a_builder_is_refused(monkeypatch):
    monkeypatch.delitem(on_torch.BUILDERS, "image")
    with pytest.raises(SettingError, match="FRAMEWORK='torch' cannot run image"):
        open_session()


def test_silent_fallback_to_the_cpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("mps"))
    assert on_torch.choose_device(None) == "mps"
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    with pytest.raises(SettingError, match="unset it, or set USE_GPU=0"):
        on_torch.choose_device(None)
    assert on_torch.choose_device(False) == "cpu"


def test_use_gpu_decides():
    assert on_torch.find_device(False).device == "cpu"
    assert on_torch.find_device(True) == on_torch.find_device(None)
    assert on_torch.find_device(None).framework_version == torch.__version__


def test_float32_is_float32():
    torch.backends.fp32_precision = "tf32"
    on_torch.set_float32()
    backends = torch.backends
    rooms = (backends, backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul)
    assert {room.fp32_precision for room in rooms} == {"ieee"}


def test_failures_are_told_apart():
    assert frameworks.describe_failure(torch.OutOfMemoryError("CUDA out of memory. Tried"))[0] == "out_of_memory"
    cpu = RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")
    assert frameworks.describe_failure(cpu)[0] == "out_of_memory"
    assert frameworks.describe_failure(RuntimeError("odd\nthing")) == ("failed", "RuntimeError: odd thing")


@pytest.mark.parametrize("model", ["resnet50", "mobilenet_v2", "vgg11"])
def test_the_counts_are_those_of_the_counter(model):
    with open("bench/flops.csv", newline="") as lines:
        stored = {row["model"]: row for row in csv.DictReader(lines)}
    assert {name: str(value) for name, value in count_flops.count(model).items()} == stored[model]


def test_every_model_is_counted():
    with open("bench/flops.csv", newline="") as lines:
        counted = {row["model"] for row in csv.DictReader(lines)}
    assert counted == set(on_torch.list_models())


def test_resnet_50_counts_as_published():
    # 4.09 GMACs at 224 pixels, 25.6 million parameters: the table in torchvision's documentation of its weights.
    row = count_flops.count("resnet50")
    assert row["inference_flops"] / 2e9 == pytest.approx(4.09, abs=0.01)
    assert row["parameters"] == 25_557_032
