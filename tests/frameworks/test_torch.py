"""PyTorch for real: small networks, few steps. Where an accelerator is found, the same tests run on it."""

import csv
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench import frameworks
from bench.frameworks import on_torch
from bench.settings import SettingError, read_settings
from bench.timing import measure
from bench.work import cifar10, data
from bench.work.workload import ENCODERS
from image_benchmark import image_workload
from mlp_benchmark import mlp_workload
from tests.frameworks import count_flops
from tests.frameworks.torch_reference import TINY
from transformer_benchmark import transformer_workload

DEVICE = on_torch.choose_device(None)
SCRIPTS = {"image": image_workload, "mlp": mlp_workload, "transformer": transformer_workload}
SMALL = {
    "image": {"MODEL": "squeezenet1_1", "BATCH_SIZE": "2"},
    "mlp": {"MODEL": "mlp-16", "DATA": "synthetic", "BATCH_SIZE": "8"},
    "transformer": {"MODEL": "tiny-bert", "SEQUENCE_LENGTH": "8", "BATCH_SIZE": "2"},
}
ENCODERS.update(TINY)


def open_session(script="image", part=None, scope=None, **environ):
    settings = read_settings(script, SMALL[script] | environ).on(DEVICE)
    workload = SCRIPTS[script](settings)
    return on_torch.open_session(workload, settings, part or settings.phase, scope or environ.get("SCOPE", "device"))


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


@pytest.mark.parametrize("script", ["mlp", "transformer"])
@pytest.mark.parametrize("phase", ["inference", "training"])
@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_other_workloads_are_measured(script, phase, precision):
    session = open_session(script, PHASE=phase, PRECISION=precision)
    assert measure.measure(session, 2, measure.Limits(max_seconds=0.2)).throughput > 0
    session.close()


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
    session = open_session(script, USE_GPU="0", PHASE=phase, **environ)
    settings = read_settings(script, SMALL[script] | {"PHASE": phase} | environ)
    # Without it the CPU's attention is one operator that the counter does not know.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        session.step()
    assert counter.get_total_flops() == SCRIPTS[script](settings).flops_per_item * settings.batch_size


@pytest.mark.parametrize("model", ["distilbert", "bert-base", "bert-large"])
def test_encoders_have_the_published_parameters(model):
    workload = transformer_workload(read_settings("transformer", {"MODEL": model}))
    with torch.device("meta"):
        network = on_torch.build_transformer(workload)
    assert on_torch.count_parameters(network) == workload.parameters
    assert network.network.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_optimizer_is_the_one_asked_for(optimizer):
    session = open_session("mlp", OPTIMIZER=optimizer)
    assert type(session.optimizer).__name__.lower() == optimizer
    assert session.optimizer.defaults["lr"] == {"sgd": 0.01, "adam": 1e-5}[optimizer]


@pytest.fixture
def small_dataset(monkeypatch):
    """150 images to learn from and 40 to test on."""
    images, labels = cifar10.synthetic_images(190, seed=0)
    images = cifar10.as_floats(images)
    split = images[:150], labels[:150], images[150:], labels[150:]
    monkeypatch.setattr(cifar10, "dataset", lambda kind, seed: split)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_warm_up_of_epochs_leaves_no_trace(small_dataset, optimizer):
    session, fresh = (open_session("mlp", scope=s, BATCH_SIZE="32", OPTIMIZER=optimizer) for s in ("epoch", "device"))
    for a, b in zip(session.model.parameters(), fresh.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not session.optimizer.state_dict()["state"]


def test_epochs_see_every_image_and_learn(small_dataset):
    session = open_session("mlp", scope="epoch", BATCH_SIZE="32")
    losses = []
    for epoch in range(1, 4):
        seconds, flags = measure.measure_epoch(session, data.epoch_order(150, 0, epoch))
        losses.append(np.mean(session.losses()))
    assert seconds > 0
    assert flags == []
    assert len(session.losses()) == 5
    assert losses[2] < losses[0]
    assert 0 <= session.evaluate() <= 1


def test_an_epoch_takes_the_batches_in_the_given_order(small_dataset):
    session = open_session("mlp", scope="epoch", BATCH_SIZE="64")
    seen, forward = [], session.model.forward
    session.model.forward = lambda inputs: seen.append(inputs.cpu()) or forward(inputs)
    order = data.epoch_order(150, 3, 1)
    session.train_epoch(order)
    assert [len(inputs) for inputs in seen] == [64, 64, 22]
    assert torch.equal(torch.cat(seen), session.train[0].cpu()[order])


def test_training_changes_the_weights_and_inference_does_not():
    for phase, changes in (("training", True), ("inference", False)):
        session = open_session(PHASE=phase)
        before = [p.detach().clone() for p in session.model.parameters()]
        session.step()
        session.synchronize()
        changed = [not torch.equal(a, b) for a, b in zip(before, session.model.parameters(), strict=True)]
        assert any(changed) == changes
        assert session.model.training == changes


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


@pytest.mark.parametrize(
    ("precision", "measured"), [("mixed_float16", "float16"), ("float16", "float16"), ("bfloat16", "bfloat16")]
)
def test_lower_precisions_are_what_they_say_and_train(precision, measured):
    session = open_session(PRECISION=precision, PHASE="training", BATCH_SIZE="1")
    assert session.measured_precision == measured
    session.step()
    before = session.probe()
    for _ in range(3):
        session.step()
    assert np.isfinite(session.probe())
    assert session.probe() != before


@pytest.mark.skipif(DEVICE != "cpu", reason="for a device without TF32")
def test_tf32_is_not_promised_where_there_is_none():
    with pytest.raises(measure.MeasurementError, match="no TF32: it computes in float32") as error:
        open_session(PRECISION="tf32")
    assert error.value.status == "unsupported"


def test_the_parts_of_training_do_their_part():
    forward = open_session(part="forward", PHASE="training")
    forward.step()
    assert forward.prepare is None
    assert forward.last_weight.grad is None
    backward = open_session(part="backward", PHASE="training")
    before = backward.last_weight.detach().clone()
    backward.prepare()
    assert backward.last_weight.grad is None
    backward.step()
    assert backward.probe() > 0
    assert torch.equal(backward.last_weight, before)
    optimizer = open_session(part="optimizer", PHASE="training")
    optimizer.prepare()
    before = optimizer.last_weight.detach().clone()
    optimizer.step()
    assert not torch.equal(optimizer.last_weight, before)


def test_a_step_can_take_the_first_items_of_its_batch():
    session = open_session(BATCH_SIZE="3")
    session.step(2)
    assert session.watched.shape == (2, 1000)


@pytest.fixture(scope="module")
def stream_settings():
    settings = read_settings("image", {"BATCH_SIZE": "4", "NUM_WORKERS": "2", "USE_GPU": "0"})
    return image_workload(settings), settings


@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_the_pipeline_survives_every_start_method(stream_settings, context):
    stream = on_torch.JpegStream(*stream_settings, "inference", context)
    images, labels = next(stream)
    assert (images.shape, images.dtype, len(labels)) == ((4, 3, 224, 224), torch.float32, 4)
    assert stream.queue_steps == 6
    stream.close()


def test_the_pipeline_never_ends_and_looks_at_every_file(stream_settings):
    sampler = iter(on_torch.EndlessSampler(10, seed=0))
    first, second = ([next(sampler) for _ in range(10)] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_images_are_transformed_as_for_imagenet(tmp_path):
    """Against the definition, on the CPU in NumPy and PIL: resize the short side to 256, cut 224, normalise."""
    (path,) = data.write_jpegs(tmp_path, 1, seed=1)
    got, label = on_torch.JpegDataset([path], 224, 1000, training=False)[0]
    image = Image.open(path).convert("RGB")
    scale = 256 / min(image.size)
    image = image.resize([int(side * scale) for side in image.size], Image.Resampling.BILINEAR)
    left, top = ((side - 224) / 2 for side in image.size)
    cut = np.asarray(image.crop((round(left), round(top), round(left) + 224, round(top) + 224)), np.float32) / 255
    expected = ((cut - data.IMAGENET_MEAN) / data.IMAGENET_STD).transpose(2, 0, 1)
    assert np.abs(got.numpy() - expected).mean() < 0.05
    assert label == 0


def test_training_images_are_cropped_at_random(tmp_path):
    dataset = on_torch.JpegDataset(data.write_jpegs(tmp_path, 1, seed=1), 224, 1000, training=True)
    (first, _), (second, _) = dataset[0], dataset[0]
    assert first.shape == second.shape == (3, 224, 224)
    assert not torch.equal(first, second)


def test_the_jpeg_pool_is_seeded_and_like_photographs(tmp_path):
    def pool(name, seed):
        (tmp_path / name).mkdir()
        return [Path(path).read_bytes() for path in data.write_jpegs(tmp_path / name, 8, seed)]

    assert pool("a", 0) == pool("b", 0) != pool("c", 1)
    sizes = [Image.open(path).size for path in (tmp_path / "a").iterdir()]
    assert all(200 <= side <= 500 for size in sizes for side in size)
    bits = 8 * sum(len(file) for file in pool("d", 0)) / sum(width * height for width, height in sizes)
    assert 1 < bits < 3  # a pixel; noise would take over 6


@pytest.mark.parametrize("scope", ["input", "end_to_end"])
def test_a_stream_is_measured(scope):
    session = open_session(SCOPE=scope, NUM_WORKERS="1")
    result = measure.measure(session, 2, measure.Limits(max_seconds=0.3))
    assert result.items == 2 * result.windows * result.steps_per_window
    assert (session.parameters is None) == (scope == "input")
    session.close()


def test_a_stream_without_workers_is_measured():
    session = open_session(SCOPE="input", NUM_WORKERS="0")
    assert session.queue_steps == 0
    assert measure.measure(session, 2, measure.Limits(max_seconds=0.3)).throughput > 0
    session.close()


# One of each kind of trouble: auxiliary heads, 299 pixels, a head of zeros, no BatchNorm, grouped convolutions.
@pytest.mark.parametrize("model", ["googlenet", "inception_v3", "vit_b_32", "vgg11", "shufflenet_v2_x0_5", "swin_t"])
def test_models_pass_their_checks_and_look_at_their_input(model):
    assert measure.prove_output_varies(open_session(MODEL=model, BATCH_SIZE="1")) is None


def test_a_depth_of_random_layers_keeps_two_images_apart():
    session = open_session(MODEL="resnet50")
    session.model.eval()
    with torch.no_grad():
        a, b = session.model(next(session.batches)[0]).double()
    assert (a - b).norm() > 0.01 * a.norm()


def test_a_size_that_does_not_suit_the_model_is_a_mistake():
    with pytest.raises(SettingError, match="does not suit vit_b_32"):
        open_session(MODEL="vit_b_32", IMAGE_SIZE="32")


def test_vgg_takes_the_size_of_cifar_images():
    session = open_session(MODEL="vgg11", IMAGE_SIZE="32")
    session.step()
    assert np.isfinite(session.probe())


@pytest.mark.parametrize("scope", ["device", "input"])
def test_an_unknown_model_is_refused_in_every_scope(scope):
    with pytest.raises(SettingError, match="is not in torchvision"):
        open_session(MODEL="resnet5O", SCOPE=scope)


def test_the_forward_pass_holds_one_graph_at_a_time():
    session = open_session(part="forward", PHASE="training")
    session.step()
    assert session.watched.grad_fn is None
    first = weakref.ref(session.loss)
    model, seen = session.model, []
    session.model = lambda images: seen.append(first()) or model(images)
    session.step()
    assert seen == [None]


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
    def found(**environ):
        return on_torch.find_device(read_settings("image", environ))

    assert found(USE_GPU="0").device == "cpu"
    assert found(USE_GPU="1") == found()
    assert found().framework_version == torch.__version__


def test_num_threads_are_set_and_reported():
    usual = torch.get_num_threads()
    try:
        assert on_torch.find_device(read_settings("image", {"NUM_THREADS": "1"})).num_threads == 1
    finally:
        torch.set_num_threads(usual)


def test_float32_is_float32():
    backends = torch.backends
    rooms = (backends, backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    for precision in ("tf32", "ieee"):
        on_torch.set_float32(precision)
        assert {room.fp32_precision for room in rooms} == {precision}


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_what_is_compiled_wrongly_is_refused(monkeypatch, phase):
    def settle(compiler, **environ):
        monkeypatch.setattr(torch, "compile", compiler)
        session = open_session(PHASE=phase, COMPILE="1", **{"MODEL": "resnet18"} | environ)
        session.step()
        session.settle()
        session.close()

    def right(model, dynamic):
        return model

    def wrong(model, dynamic):
        return lambda images: model(images) * (1.01 if phase == "inference" else 1.5)

    settle(right)
    with pytest.raises(measure.MeasurementError, match="compiled, the output differs by") as caught:
        settle(wrong)
    assert caught.value.status == "wrong_output"
    settle(wrong, PRECISION="mixed_bfloat16")  # rounding alone makes more of a difference there
    if phase == "training":
        settle(wrong, MODEL="mobilenet_v2")  # dropout drops something else each time
        settle(wrong, MODEL="swin_t")  # which has stochastic depth in its place


def test_what_was_compiled_is_forgotten(monkeypatch):
    resets = []
    monkeypatch.setattr(torch._dynamo, "reset", lambda: resets.append(None))
    for is_compiled in (False, True):
        session = open_session()
        session.place.compile = is_compiled
        session.close()
    assert len(resets) == 1


def test_failures_are_told_apart():
    assert frameworks.describe_failure(torch.OutOfMemoryError("CUDA out of memory. Tried"))[0] == "out_of_memory"
    cpu = RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")
    assert frameworks.describe_failure(cpu)[0] == "out_of_memory"
    for words, status in (
        ("FIND was unable to find an engine to execute this computation", "out_of_memory"),
        ("failed to allocate memory [Op:AddV2]", "out_of_memory"),
        ("Could not satisfy device specification '/device:GPU:0'. enable_soft_placement=0.", "unsupported"),
        ("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.", "unsupported"),
        ("MPS: _linalg_svd is not supported at the MPS device", "unsupported"),
    ):
        assert frameworks.describe_failure(RuntimeError(words)) == (status, words)
    exhausted = type("ResourceExhaustedError", (Exception,), {})
    assert frameworks.describe_failure(exhausted("as it is"))[0] == "out_of_memory"
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
