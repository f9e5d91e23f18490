"""TensorFlow for real: small networks, few steps, and the same numbers as PyTorch for the same weights."""

import os
import platform
import re
import subprocess
import sys
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from bench.frameworks import on_tensorflow
from bench.settings import SettingError, read_settings
from bench.timing import check, measure
from bench.work import data, operators
from bench.work.workload import ENCODERS, encoder_counts
from image_benchmark import IMAGE_SIZE, image_workload
from mlp_benchmark import mlp_workload
from tests.frameworks import torch_reference
from transformer_benchmark import transformer_workload

DEVICE = on_tensorflow.choose_device(None)
SCRIPTS = {"image": image_workload, "mlp": mlp_workload, "transformer": transformer_workload}
SMALL = {
    "image": {"MODEL": "resnet18", "IMAGE_SIZE": "32", "BATCH_SIZE": "2"},
    "mlp": {"MODEL": "mlp-16", "DATA": "synthetic", "BATCH_SIZE": "8"},
    "transformer": {"MODEL": "tiny-bert", "SEQUENCE_LENGTH": "8", "BATCH_SIZE": "2"},
}
ENCODERS.update(torch_reference.TINY)


def open_session(script="mlp", part=None, scope="device", **environ):
    settings = read_settings(script, {"FRAMEWORK": "tensorflow"} | SMALL[script] | environ).on(DEVICE)
    return on_tensorflow.open_session(SCRIPTS[script](settings), settings, part or settings.phase, scope)


def weights_of(session):
    return [weight.numpy() for weight in session.model.trainable_variables]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(
    ("phase", "precision"), [("inference", "float32"), ("training", "float32"), ("training", "mixed_bfloat16")]
)
def test_a_real_measurement(script, phase, precision):
    session = open_session(script, PHASE=phase, PRECISION=precision)
    result = measure.measure(session, 2, measure.Limits(max_seconds=0.2))
    assert result.throughput > 0
    assert "recompiled" not in result.flags
    assert session.measured_precision == {"float32": "float32", "mixed_bfloat16": "bfloat16"}[precision]
    assert (session.peak_memory_bytes() is None) == (DEVICE != "cuda")
    session.close()


@pytest.mark.parametrize(("script", "phase"), [("mlp", "inference"), ("mlp", "training"), ("transformer", "training")])
def test_xla_compiles_the_step(script, phase):
    session = open_session(script, PHASE=phase, COMPILE="1")
    assert all(function._jit_compile is True for function in session.functions)
    for _ in range(3):
        session.step()
    session.synchronize()
    assert np.isfinite(session.probe())
    assert session.trace_count() == 1
    assert not any(function._jit_compile for function in open_session(script, PHASE=phase).functions)


def test_training_changes_the_weights_and_inference_does_not():
    for phase, changes in (("training", True), ("inference", False)):
        session = open_session(PHASE=phase)
        before = weights_of(session)
        session.step()
        changed = [not np.array_equal(a, b) for a, b in zip(before, weights_of(session), strict=True)]
        assert any(changed) == changes


def test_a_step_is_traced_once_for_each_shape():
    session = open_session()
    session.step()
    before = session.trace_count()
    for _ in range(3):
        session.step()
    assert session.trace_count() == before == 1
    session.step(3)
    assert session.trace_count() == 2


def test_the_batches_rotate_and_the_seed_decides():
    def probes(seed):
        session = open_session(PHASE="inference", SEED=seed)
        values = []
        for _ in range(8):
            session.step()
            values.append(session.probe())
        return values

    values = probes("1")
    assert len(set(values[:4])) == 4
    assert values[:4] == pytest.approx(values[4:], rel=1e-5)
    assert values == pytest.approx(probes("1"), rel=1e-5)
    assert values != pytest.approx(probes("2"), rel=1e-3)


@pytest.mark.parametrize(
    ("precision", "measured"), [("mixed_float16", "float16"), ("float16", "float16"), ("bfloat16", "bfloat16")]
)
def test_lower_precisions_are_what_they_say_and_train(precision, measured):
    session = open_session(PRECISION=precision)
    assert session.measured_precision == measured
    session.step()
    before = session.probe()
    for _ in range(3):
        session.step()
    assert np.isfinite(session.probe())
    assert session.probe() != before


def test_mixed_float16_scales_the_loss_and_takes_it_out_again():
    scaled, plain = open_session(part="backward", PRECISION="mixed_float16"), open_session(part="backward")
    assert isinstance(scaled.optimizer, keras.mixed_precision.LossScaleOptimizer)
    for session in (scaled, plain):
        session.forward()
        session.backward()
    assert float(scaled.scaled) == pytest.approx(256 * float(scaled.loss))
    assert float(plain.scaled) == float(plain.loss)
    ratio = np.linalg.norm(scaled.gradients[-1]) / np.linalg.norm(plain.gradients[-1])
    assert ratio == pytest.approx(256, rel=0.01)
    changes = []
    for session in (scaled, plain):
        before = weights_of(session)[-1]
        session.update()
        changes.append(weights_of(session)[-1] - before)
    np.testing.assert_allclose(*changes, rtol=0.02, atol=1e-7)


@pytest.mark.skipif(DEVICE != "cpu", reason="for a device without TF32")
def test_tf32_is_not_promised_where_there_is_none():
    with pytest.raises(measure.MeasurementError, match="no TF32: it computes in float32") as error:
        open_session(PRECISION="tf32")
    assert error.value.status == "unsupported"
    open_session(PRECISION="float32")
    assert not tf.config.experimental.tensor_float_32_execution_enabled()


def test_channels_first_is_told_to_be_unsupported():
    with pytest.raises(measure.MeasurementError, match="channels_last here") as error:
        open_session("image", MEMORY_FORMAT="channels_first")
    assert error.value.status == "unsupported"


def test_the_parts_of_training_do_their_part():
    forward = open_session(part="forward")
    before = weights_of(forward)
    forward.step()
    assert forward.prepare is None
    backward = open_session(part="backward")
    backward.prepare()
    backward.step()
    assert backward.probe() > 0
    optimizer = open_session(part="optimizer")
    optimizer.prepare()
    for session, changes in ((forward, False), (backward, False), (optimizer, True)):
        before = weights_of(session)
        if session is optimizer:
            session.step()
        assert np.array_equal(before[-1], weights_of(session)[-1]) != changes


@pytest.mark.parametrize("script", ["transformer", "image"])
@pytest.mark.parametrize("part", ["forward", "backward", "optimizer"])
def test_the_parts_of_every_network_are_measured(script, part):
    session = open_session(script, part=part, PHASE="training")
    assert measure.measure(session, 2, measure.Limits(max_seconds=0.2)).throughput > 0


def test_the_probe_tells_batches_apart_in_sixteen_bits():
    for precision in ("bfloat16", "float16"):
        session = open_session(PHASE="inference", PRECISION=precision, BATCH_SIZE="1024", MODEL="mlp-5x256")
        assert measure.prove_output_varies(session) is None
        session.watched = tf.fill((1000, 1000), tf.constant(60_000, precision))
        assert np.isfinite(session.probe())


def test_the_parts_together_are_the_whole():
    whole, parts = open_session(), open_session(part="optimizer")
    whole.step()
    parts.prepare()
    parts.step()
    for a, b in zip(weights_of(whole), weights_of(parts), strict=True):
        assert a == pytest.approx(b, abs=1e-6)


@pytest.fixture
def small_dataset(monkeypatch):
    """150 images to learn from and 40 to test on."""

    def few(kind, seed):
        from bench.work import cifar10

        images, labels = cifar10.synthetic_images(190, seed)
        images = cifar10.as_floats(images)
        return images[:150], labels[:150], images[150:], labels[150:]

    monkeypatch.setattr("bench.work.cifar10.dataset", few)


def test_epochs_see_every_image_without_retracing(small_dataset):
    session = open_session(scope="epoch", BATCH_SIZE="32")
    fresh = open_session(BATCH_SIZE="32")
    for a, b in zip(weights_of(session), weights_of(fresh), strict=True):
        assert np.array_equal(a, b)  # the warm-up has left no trace
    traces = session.trace_count()
    losses = []
    for epoch in range(1, 4):
        measure.measure_epoch(session, data.epoch_order(150, 0, epoch))
        losses.append(np.mean(session.losses()))
    assert len(session.losses()) == 5
    assert session.trace_count() == traces
    assert losses[2] < losses[0]
    assert 0 <= session.evaluate() <= 1


def test_an_epoch_takes_the_batches_in_the_given_order(small_dataset):
    session = open_session(scope="epoch", BATCH_SIZE="64")
    seen = []
    session.train = lambda inputs, labels: seen.append((inputs.numpy(), labels.numpy())) or tf.constant(0.0)
    order = data.epoch_order(150, 3, 1)
    session.train_epoch(order)
    assert [len(labels) for _, labels in seen] == [64, 64, 22]
    images, labels = (each.numpy() for each in session.train_data)
    assert np.array_equal(np.concatenate([inputs for inputs, _ in seen]), images[order])
    assert np.array_equal(np.concatenate([some for _, some in seen]), labels[order])


# Networks


@pytest.mark.parametrize(
    "model", ["resnet50", "mobilenet_v2", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "mobilenet_v3_small"]
)
def test_networks_of_the_same_name_have_the_same_parameters(model):
    settings = read_settings("image", {"FRAMEWORK": "tensorflow", "MODEL": model, "BATCH_SIZE": "1"})
    workload = image_workload(settings)
    with keras.StatelessScope():  # shapes alone: no weight is drawn
        network = on_tensorflow.build_image(workload)
    assert on_tensorflow.count_parameters(network) == workload.parameters


@pytest.mark.parametrize(("model", "size"), [("vgg11", "32"), ("vgg16", "224"), ("vgg19", "32")])
def test_vgg_has_the_same_parameters_for_images_of_any_size(model, size):
    workload = image_workload(read_settings("image", {"MODEL": model, "IMAGE_SIZE": size, "BATCH_SIZE": "1"}))
    with keras.StatelessScope():
        assert on_tensorflow.count_parameters(on_tensorflow.build_image(workload)) == workload.parameters


@pytest.mark.parametrize("model", ["distilbert", "bert-large"])
def test_encoders_have_the_published_parameters(model):
    workload = transformer_workload(read_settings("transformer", {"MODEL": model}))
    with keras.StatelessScope():
        network = on_tensorflow.build_transformer(workload)
    assert on_tensorflow.count_parameters(network) == workload.parameters == encoder_counts(ENCODERS[model], 128, "")[0]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("inception_v3", "is another network in Keras: MODEL=keras-inceptionv3 measures that"),
        ("keras-inception_v3", "is another network in Keras: MODEL=keras-inceptionv3 measures that"),
        ("xception", "is another network in Keras: MODEL=keras-xception measures that"),
        ("convnext_tiny", "is another network in Keras: MODEL=keras-convnexttiny measures that"),
        ("alexnet", "is not in Keras: did you mean "),
        ("resnet5O", "is not in Keras: did you mean resnet50, "),
    ],
)
def test_a_network_that_is_not_the_same_is_refused(model, said):
    with pytest.raises(SettingError, match=said):
        open_session("image", MODEL=model)


def test_kerass_networks_have_their_own_size():
    def side(model):
        return image_workload(read_settings("image", {"MODEL": model, "BATCH_SIZE": "1"})).item_shape[-1]

    assert [side(model) for model in ("keras-inceptionv3", "keras-xception", "keras-nasnetlarge")] == [299, 299, 331]
    assert {name for name in IMAGE_SIZE if name.startswith("keras-")} <= set(on_tensorflow.list_applications())


def test_kerass_own_network_runs_under_its_own_name():
    session = open_session("image", MODEL="keras-mobilenet")
    session.step()
    assert session.parameters == 4_231_976  # another one than torchvision's, so that its FLOPs are not known


def test_a_size_that_does_not_suit_the_model_is_a_mistake():
    with pytest.raises(SettingError, match="does not suit keras-inceptionv3"):
        open_session("image", MODEL="keras-inceptionv3", IMAGE_SIZE="32")


PRODUCTS = {
    "MatMul": lambda op: 2 * size(op.outputs[0]) * op.inputs[0].shape[0 if op.get_attr("transpose_a") else 1],
    "BatchMatMulV2": lambda op: 2 * size(op.outputs[0]) * op.inputs[0].shape[-2 if op.get_attr("adj_x") else -1],
    "Conv2D": lambda op: 2 * size(op.outputs[0]) * size(op.inputs[1]) // op.inputs[1].shape[-1],
    "Conv2DBackpropInput": lambda op: 2 * size(op.inputs[2]) * size(op.inputs[1]) // op.inputs[1].shape[-1],
    "Conv2DBackpropFilter": lambda op: 2 * size(op.inputs[2]) * size(op.outputs[0]) // op.inputs[2].shape[-1],
}


def size(tensor):
    return int(np.prod(tensor.shape))


def count_flops(function, *arguments):
    operations = function.get_concrete_function(*arguments).graph.get_operations()
    unknown = {op.type for op in operations if "atmul" in op.type.lower() or "conv2d" in op.type.lower()} - set(
        PRODUCTS
    )
    assert not unknown | ({op.type for op in operations} & {"Einsum"})
    # What nobody reads is never computed: the images' own gradient.
    return sum(PRODUCTS[op.type](op) for op in operations if op.type in PRODUCTS and op.outputs[0].consumers())


@pytest.mark.parametrize(
    ("script", "environ"),
    [
        ("mlp", {"MODEL": "mlp-3000-1000"}),
        ("transformer", {"MODEL": "tiny-bert"}),
        ("transformer", {"MODEL": "tiny-distilbert"}),
        ("image", {"MODEL": "resnet50", "IMAGE_SIZE": "224"}),
    ],
)
@pytest.mark.parametrize("phase", ["inference", "training"])
def test_the_graph_takes_the_flops_that_the_row_says(script, environ, phase):
    settings = read_settings(script, {"FRAMEWORK": "tensorflow", "PHASE": phase} | SMALL[script] | environ)
    workload = SCRIPTS[script](settings)
    session = open_session(script, PHASE=phase, **environ)
    inputs, labels = session.next_batch()
    step = (session.infer, inputs) if phase == "inference" else (session.train, inputs, labels)
    assert count_flops(*step) == workload.flops_per_item * settings.batch_size


# The same numbers as PyTorch


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Runs the program in PyTorch's environment; gives what it wrote for a model."""
    folder = tmp_path_factory.mktemp("torch")
    python = os.environ.get("TORCH_PYTHON", sys.executable)
    done = subprocess.run([python, "-m", "tests.torch_reference", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return lambda model: dict(np.load(folder / f"{model}.npz"))


def convolution(kernel):
    return kernel.transpose(2, 3, 1, 0)


def copy_image(model, torch):
    for layer in model.layers:
        if isinstance(layer, keras.layers.Conv2D):
            layer.set_weights([convolution(torch[layer.name + ".weight"])])
        elif isinstance(layer, keras.layers.BatchNormalization):
            names = ("weight", "bias", "running_mean", "running_var")
            layer.set_weights([torch[f"{layer.name}.{name}"] for name in names])
        elif isinstance(layer, keras.layers.Dense):
            layer.set_weights([torch[layer.name + ".weight"].T, torch[layer.name + ".bias"]])


def copy_mlp(model, torch):
    dense = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    for i, layer in enumerate(dense):
        layer.set_weights([torch[f"{2 * i}.weight"].T, torch[f"{2 * i}.bias"]])


# Layers in the encoder: ours, DistilBERT's and BERT's names in the transformers library.
ENCODER_NAMES = {
    "query": ("attention.q_lin", "attention.self.query"),
    "key": ("attention.k_lin", "attention.self.key"),
    "value": ("attention.v_lin", "attention.self.value"),
    "output": ("attention.out_lin", "attention.output.dense"),
    "norm1": ("sa_layer_norm", "attention.output.LayerNorm"),
    "lin1": ("ffn.lin1", "intermediate.dense"),
    "lin2": ("ffn.lin2", "output.dense"),
    "norm2": ("output_layer_norm", "output.LayerNorm"),
}


def copy_transformer(model, torch):
    bert = any("token_type" in name for name in torch)
    root = "network.bert." if bert else "network.distilbert."

    def pair(name, shape=None):
        weight, bias = torch[name + ".weight"], torch[name + ".bias"]
        return [weight.T if weight.ndim == 2 else weight, bias]

    tables = ["word_embeddings", "position_embeddings", *(["token_type_embeddings"] if bert else [])]
    embedded = [torch[f"{root}embeddings.{table}.weight"] for table in tables]
    model.get_layer("embeddings").set_weights(embedded + pair(root + "embeddings.LayerNorm"))
    count = sum(layer.name.endswith("norm1") for layer in model.layers)
    for i in range(count):
        prefix = f"{root}encoder.layer.{i}." if bert else f"{root}transformer.layer.{i}."
        torch_pair = {ours: pair(prefix + names[bert]) for ours, names in ENCODER_NAMES.items()}
        for name in ("norm1", "lin1", "lin2", "norm2"):
            model.get_layer(f"layer.{i}.{name}").set_weights(torch_pair[name])
        attention = model.get_layer(f"layer.{i}.attention")
        flat = [each for name in ("query", "key", "value", "output") for each in torch_pair[name]]
        shapes = [weight.shape for weight in attention.weights]
        attention.set_weights([each.reshape(shape) for each, shape in zip(flat, shapes, strict=True)])
    model.get_layer("pooler").set_weights(pair(root + "pooler.dense" if bert else "network.pre_classifier"))
    model.get_layer("classifier").set_weights(pair("network.classifier"))


@pytest.mark.parametrize(
    ("model", "copy", "steps"),
    [
        # With two images the normalisations make every further step of these diverge.
        ("resnet18", copy_image, 2),
        ("resnet50", copy_image, 1),
        ("mlp-64-32", copy_mlp, 3),
        ("tiny-distilbert", copy_transformer, 3),
        ("tiny-bert", copy_transformer, 3),
    ],
)
def test_equal_weights_give_equal_outputs_and_learn_the_same(reference, model, copy, steps):
    torch = reference(model)
    workload, settings = torch_reference.describe(model, FRAMEWORK="tensorflow", PHASE="training")
    session = on_tensorflow.open_session(workload, settings, "training", "device")
    copy(session.model, torch)
    inputs, labels = session.place.put(torch["_inputs"], torch["_labels"])
    assert np.array_equal(session.next_batch()[0], inputs)  # the same seed gives the same data

    assert check.relative_error(session.model(inputs, training=False).numpy(), torch["_logits"]) < 1e-4
    if model in torch_reference.TINY:  # dropout draws other numbers
        network, session.model = session.model, lambda x, training: network(x, training=False)
    losses = [float(session.train(inputs, labels)) for _ in range(steps)]
    assert losses == pytest.approx(torch["_losses"][:steps].tolist(), rel=1e-4)
    assert losses == sorted(losses, reverse=True)


# The input pipeline


@pytest.mark.parametrize("scope", ["input", "end_to_end"])
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_stream_is_measured(scope, workers):
    session = open_session("image", scope=scope, NUM_WORKERS=workers)
    result = measure.measure(session, 2, measure.Limits(max_seconds=0.2))
    assert result.items == 2 * result.windows * result.steps_per_window
    assert (session.queue_steps == 0) == (workers == "0")
    assert (session.parameters is None) == (scope == "input")
    session.close()


def test_images_are_transformed_as_for_imagenet(tmp_path):
    """Against the definition, in NumPy and PIL: resize the short side to 256, cut 224, normalise."""
    (path,) = data.write_jpegs(tmp_path, 1, seed=1)
    got = on_tensorflow.resize_and_cut(tf.io.decode_jpeg(tf.io.read_file(path), channels=3), 224)
    image = Image.open(path).convert("RGB")
    scale = 256 / min(image.size)
    image = image.resize([int(side * scale) for side in image.size], Image.Resampling.BILINEAR)
    left, top = ((side - 224) / 2 for side in image.size)
    cut = np.asarray(image.crop((round(left), round(top), round(left) + 224, round(top) + 224)), np.float32) / 255
    expected = (cut - data.IMAGENET_MEAN) / data.IMAGENET_STD
    assert np.abs(got.numpy() - expected).mean() < 0.05


def test_training_images_are_cropped_at_random(tmp_path):
    (path,) = data.write_jpegs(tmp_path, 1, seed=1)
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    first, second = (on_tensorflow.cut_at_random(image, 224).numpy() for _ in range(2))
    assert first.shape == second.shape == (224, 224, 3)
    assert not np.array_equal(first, second)


# Single operators


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16", "float64"])
def test_operators_are_right_and_can_be_measured(monkeypatch, precision):
    monkeypatch.setattr(operators, "COPY_NUMBERS", 2**16)
    size = (48, 40, 56)
    works = [operators.matmul(size), operators.convolution_1x1(size)]
    works += [operators.bandwidth(*item) for item in operators.BANDWIDTHS.items()]
    settings = replace(read_settings("tflops", {"FRAMEWORK": "tensorflow"}), precision=precision)
    for workload in works:
        session = on_tensorflow.open_session(workload, settings, None, "device")
        assert session.measured_precision == precision
        assert measure.measure(session, 1, measure.Limits(max_seconds=0.05)).throughput > 0


def test_a_wrong_operator_is_refused(monkeypatch):
    monkeypatch.setitem(on_tensorflow.OPERATORS, "matmul", lambda a, b: tf.linalg.matmul(a, b) * 1.01)
    settings = replace(read_settings("tflops", {"FRAMEWORK": "tensorflow"}), precision="float32")
    with pytest.raises(measure.MeasurementError, match="the output differs from float64"):
        on_tensorflow.open_session(operators.matmul((32, 32, 32)), settings, None, "device")


# The device


@pytest.mark.skipif(DEVICE != "cpu", reason="TensorFlow has begun to use its GPU in this process")
def test_use_gpu_decides():
    def found(**environ):
        return on_tensorflow.find_device(read_settings("mlp", environ))

    assert found(USE_GPU="0").device == "cpu"
    assert found(USE_GPU="1") == found()
    assert found().framework_version == tf.__version__
    assert found().num_threads >= 1


def test_num_threads_are_set_and_reported():
    program = (
        "from bench.frameworks import on_tensorflow; from bench.settings import read_settings;"
        "print(on_tensorflow.find_device(read_settings('mlp', {'NUM_THREADS': '1'})).num_threads)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("1", "")


def test_a_gpu_is_set_up(monkeypatch):
    calls = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["one"])
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, on: calls.append((gpu, on)))
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert on_tensorflow.choose_device(None) == "cuda"
    assert calls == [("one", True)]
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert on_tensorflow.choose_device(True) == "mps"


@pytest.mark.parametrize("phase", ["inference", "training"])
@pytest.mark.parametrize(("script", "operators"), [("image", "Conv2D"), ("mlp", "MatMul"), ("transformer", "MatMul")])
def test_a_gpu_that_leaves_its_work_to_the_cpu_is_refused(monkeypatch, script, operators, phase):
    # There is no GPU here: what is placed on one runs on the CPU, as TensorFlow does where a kernel is missing.
    monkeypatch.setattr(on_tensorflow, "choose_device", lambda use_gpu: "mps")
    with pytest.raises(measure.MeasurementError, match=f"no kernel on this mps for .*{operators}") as caught:
        open_session(script, PHASE=phase)
    assert caught.value.status == "unsupported"
    assert ("Grad" in str(caught.value) or "Backprop" in str(caught.value)) == (phase == "training")


def test_an_operator_that_runs_on_the_cpu_is_no_result_of_a_gpu(monkeypatch):
    monkeypatch.setattr(on_tensorflow, "choose_device", lambda use_gpu: "mps")
    settings = replace(read_settings("tflops", {"FRAMEWORK": "tensorflow"}), precision="float32")
    with pytest.raises(measure.MeasurementError, match="TensorFlow runs matmul on the CPU"):
        on_tensorflow.open_session(operators.matmul((32, 32, 32)), settings, None, "device")


def test_what_is_compiled_wrongly_is_refused(monkeypatch):
    function = on_tensorflow.Place.function
    wrong = lambda place, work: function(place, lambda *batch: work(*batch) * 1.01)  # noqa: E731
    monkeypatch.setattr(on_tensorflow.Place, "function", wrong)
    with pytest.raises(measure.MeasurementError, match="compiled, the output differs by") as caught:
        open_session(PHASE="inference", COMPILE="1")
    assert caught.value.status == "wrong_output"


@pytest.mark.parametrize("system", ["Linux", "Darwin"])
def test_a_copy_is_one(monkeypatch, system):
    monkeypatch.setattr(platform, "system", lambda: system)
    x = tf.random.normal((64, 64))
    copy = on_tensorflow.OPERATORS["copy"](x, None)
    assert np.array_equal(x, copy)
    assert not np.shares_memory(np.asarray(x), np.asarray(copy))


def test_a_workload_without_a_builder_is_refused(monkeypatch):
    monkeypatch.delitem(on_tensorflow.BUILDERS, "mlp")
    with pytest.raises(SettingError, match="FRAMEWORK='tensorflow' cannot run mlp: it has image, transformer"):
        open_session()


def test_make_runs_it(tmp_path):
    environ = os.environ | SMALL["mlp"] | {"FRAMEWORK": "tf", "MAX_SECONDS": "0.1", "MACHINE": "here"}
    command = ["make", "mlp", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    assert "tensorflow" in done.stdout.splitlines()[0]
    assert (tmp_path / "results" / "here.csv").exists()
    assert [line for line in done.stderr.splitlines() if not re.match("[0-9:]{8}  ", line)] == []  # our log's lines
