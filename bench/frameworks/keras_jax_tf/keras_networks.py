"""What TensorFlow and JAX share: models in pure Keras, with layers, sizes and initial weights as in torchvision and
transformers; their optimizers; a part of the DeviceContext.

Whoever imports this sets KERAS_BACKEND first.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from bench.frameworks import base
from bench.settings import TRAINING
from bench.timing import MeasurementError
from bench.workloads.data import CLASSES
from bench.workloads.workload import LEARNING_RATES, RESNETS, find_model

OPTIMIZERS = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}
# An initialiser gives the same values at every call: each layer has its own.
small_normal = functools.partial(keras.initializers.RandomNormal, stddev=0.02)


class KerasContext(base.DeviceContext):
    """The part of a DeviceContext that needs only NumPy and Keras: images and kernels are channels_last."""

    model_class: Callable[..., base.Model]  # takes a context, a Keras model, a workload and whether it is trained
    place: Any  # this device, as keras.device() takes it
    release = staticmethod(keras.backend.clear_session)

    def __init__(self, device, settings):
        super().__init__(device, settings)
        keras.utils.set_random_seed(self.seed)
        keras.config.set_image_data_format("channels_last")
        self.policy = keras.dtype_policies.get("float32" if self.precision == "tf32" else self.precision)

    def build(self, workload, phase, inputs):
        keras_model = self.build_layers(workload)
        with keras.device(self.place):
            calibrate(keras_model, self.put(*inputs))
            return self.model_class(self, keras_model, workload, phase in TRAINING)

    def build_layers(self, workload):
        """Return a Keras model on this device, whose new layers have this precision."""
        keras.config.set_dtype_policy(self.policy)
        with keras.device(self.place):
            return BUILDERS[workload.name](workload)

    def probe(self, name, left, right):
        operands = [ops.cast(each, self.policy.compute_dtype) for each in self.put(left, right)]
        output: Any = self.operators[{"convolution": "conv3x3"}.get(name, name)](*operands)
        whole = slice(None) if name == "matmul" else (..., slice(1, -1), slice(1, -1))  # without the padded border
        return self.to_numpy(output)[whole], output.dtype == "float16"

    def put(self, *arrays):
        tensors = []
        for array in arrays:
            if array.ndim == 4:  # images; behind them an operator's kernels: height, width, inputs, outputs
                array = array.transpose((2, 3, 1, 0) if tensors else (0, 2, 3, 1))
            with keras.device(self.place):
                tensor = ops.convert_to_tensor(array)
                is_float = keras.backend.is_float_dtype(tensor.dtype)
                tensors.append(ops.cast(tensor, self.policy.variable_dtype) if is_float else tensor)
        return tuple(tensors)

    def to_numpy(self, values):
        array = np.asarray(values)
        array = array if array.dtype.kind in "iu" else array.astype(np.float32)
        return array.transpose(0, 3, 1, 2) if array.ndim == 4 else array

    def read(self, values):
        # By NumPy: it takes less time than a few operators, and reads the CPU's memory without a copy. An array of JAX
        # on a GPU keeps the first copy on the host, so that only the first read of the same array would take time.
        values = base.end_of(np.asarray(values)) if self.device == "cpu" else ops.copy(base.end_of(values))
        return float(np.linalg.norm(np.asarray(values).astype(np.float32)))

    def on_cpu(self):
        context = super().on_cpu()
        context.place = "cpu:0"
        context.policy = keras.dtype_policies.get("float32")
        return context


class KerasModel(base.Model):
    """The part of a Model that the check against the CPU needs."""

    write_variables = staticmethod(lambda: None)  # writes weights that are elsewhere into the Keras model

    def __init__(self, context, keras_model, workload, is_trained):
        self.context = context
        self.keras_model = keras_model
        self.workload = workload
        self.size = keras_model.count_params()

    def output(self, *inputs):
        self.write_variables()
        with keras.device(self.context.place):
            return self.context.to_numpy(self.keras_model(list(inputs), training=False))

    def on_cpu(self):
        context = self.context.on_cpu()
        self.write_variables()
        keras_model = context.build_layers(self.workload)
        keras.config.set_dtype_policy(self.context.policy)
        with keras.device(context.place):
            keras_model.set_weights([np.asarray(each.value).astype(np.float32) for each in self.keras_model.weights])
            return type(self)(context, keras_model, self.workload, is_trained=False)


def build_optimizer(context, weights):
    """Return the optimizer of these weights; it scales the loss if small gradients would become zero."""
    if (context.optimizer, context.precision) == ("adam", "bfloat16"):
        raise MeasurementError("unsupported", "bfloat16 weights lose Adam's steps: set PRECISION=mixed_bfloat16")
    optimizer = OPTIMIZERS[context.optimizer](LEARNING_RATES[context.optimizer])
    if context.precision == "mixed_float16":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=base.LOSS_SCALE)
    optimizer.build(weights)
    return optimizer


def cross_entropy(outputs, target):
    """Return the mean over items, or over all tokens of all items, of logits (..., classes) and classes (...)."""
    return ops.mean(ops.sparse_categorical_crossentropy(target, ops.cast(outputs, "float32"), from_logits=True))


def build_image(workload):
    """Build one of torchvision's models in Keras layers; it returns logits."""
    shape = workload.sizes, workload.sizes, 3
    if find_model(workload.model, [*RESNETS, "mobilenet_v2"]) in RESNETS:  # raises SettingError for another one
        return build_resnet(*RESNETS[workload.model], shape)
    body = keras.applications.MobileNetV2(input_shape=shape, weights=None, include_top=False, pooling="avg")
    # torchvision's dropout before the classifier, which Keras leaves out
    return keras.Model([body.input], layers.Dense(CLASSES)(layers.Dropout(0.2)(body.output)))


def build_resnet(is_bottleneck, stages, shape):
    """Build ResNet v1.5 with torchvision's names of layers: the stride is in the 3 x 3 convolution. Keras has v1."""
    inputs = keras.Input(shape)
    x = ops.relu(normed_convolution(inputs, 64, 7, 2, "conv1", "bn1"))
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            x = residual_block(x, 64 * 2**stage, stride, is_bottleneck, f"layer{stage + 1}.{block}.")
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model([inputs], layers.Dense(CLASSES, name="fc")(x))


def residual_block(x, filters, stride, is_bottleneck, name):
    sizes = ((filters, 3, stride), (filters, 3, 1))
    if is_bottleneck:
        sizes = ((filters, 1, 1), (filters, 3, stride), (4 * filters, 1, 1))
    short = x
    out = sizes[-1][0]
    if stride != 1 or x.shape[-1] != out:
        short = normed_convolution(x, out, 1, stride, name + "downsample.0", name + "downsample.1")
    for i, size in enumerate(sizes, start=1):
        x = normed_convolution(x, *size, f"{name}conv{i}", f"{name}bn{i}")
        x = ops.relu(x if i < len(sizes) else x + short)
    return x


def normed_convolution(x, filters, size, stride, name, norm_name):
    if size > 1 and stride > 1:  # "same" pads one side only
        x = layers.ZeroPadding2D(size // 2)(x)
    padding = "same" if stride == 1 else "valid"
    initial = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")  # He-normal
    x = layers.Conv2D(filters, size, stride, padding, use_bias=False, kernel_initializer=initial, name=name)(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=norm_name)(x)


def build_mlp(workload):
    """Build dense layers, Glorot-uniform with zero biases (Keras's own defaults), with ReLU between them."""
    width, *hidden, classes = workload.sizes
    x = inputs = keras.Input((width,))
    for width in hidden:
        x = ops.maximum(layers.Dense(width)(x), 0.0)  # a relu() that is fused gave wrong results on Metal
    return keras.Model([inputs], layers.Dense(classes)(x))


def build_transformer(workload):
    """Build BERT or DistilBERT with a classifier on the first token, as in the transformers library.

    No keras-hub release supports all versions of TensorFlow that run here.
    """
    encoder = workload.sizes
    # JAX has only 32 bits, unless it has 64 in everything.
    inputs = keras.Input((encoder.sequence_length,), dtype="int32" if keras.backend.backend() == "jax" else "int64")
    x = Embeddings(encoder, name="embeddings")(inputs)
    for i in range(encoder.num_layers):
        x = encoder_layer(x, encoder, f"layer.{i}.")
    first = normal_dense(encoder.hidden_size, "pooler")(x[:, 0])
    first = ops.tanh(first) if encoder.is_bert else ops.maximum(first, 0.0)
    first = layers.Dropout(encoder.dropout if encoder.is_bert else 0.2)(first)
    return keras.Model([inputs], normal_dense(encoder.labels, "classifier")(first))


def normal_dense(width, name):
    return layers.Dense(width, kernel_initializer=small_normal(), name=name)


def encoder_layer(x, encoder, name):
    """Add self-attention and a feed-forward part; each has a residual connection and a normalisation after it."""
    width = encoder.hidden_size
    dropout = encoder.dropout
    heads = encoder.num_heads
    initial = small_normal()
    attention = layers.MultiHeadAttention(
        heads, width // heads, dropout=dropout, kernel_initializer=initial, name=name + "attention"
    )
    attended = attention(x, x)
    attended = layers.Dropout(dropout)(attended) if encoder.is_bert else attended
    x = layers.LayerNormalization(epsilon=encoder.norm_epsilon, name=name + "norm1")(x + attended)
    inner = ops.gelu(normal_dense(encoder.intermediate_size, name + "lin1")(x), approximate=False)
    inner = layers.Dropout(dropout)(normal_dense(width, name + "lin2")(inner))
    return layers.LayerNormalization(epsilon=encoder.norm_epsilon, name=name + "norm2")(x + inner)


class Embeddings(layers.Layer):
    """The sum of word, position and, in BERT, segment embeddings (all tokens in segment 0), normalised."""

    def __init__(self, encoder, **kwargs):
        super().__init__(**kwargs)
        self.words, self.positions, self.types = (
            layers.Embedding(count, encoder.hidden_size, embeddings_initializer=small_normal()) if count else None
            for count in (encoder.vocab_size, encoder.max_position_embeddings, encoder.token_types)
        )
        self.norm = layers.LayerNormalization(epsilon=encoder.norm_epsilon)
        self.dropout = layers.Dropout(encoder.dropout)

    def call(self, ids):
        x = self.words(ids) + self.positions(ops.arange(ids.shape[1]))
        if self.types:
            x = x + self.types(ops.zeros_like(ids))
        return self.dropout(self.norm(x))


def calibrate(model, inputs):
    """Give each BatchNorm the mean 0 and one variance; calibrate() of on_torch.py says why."""
    # _flatten_layers: nothing public lists the layers of nested models.
    norms = [layer for layer in model._flatten_layers() if isinstance(layer, layers.BatchNormalization)]
    for norm in norms:
        norm.momentum = 0.0
    if norms:
        model(list(inputs), training=True)
    for norm in norms:
        norm.momentum = 0.9  # as in PyTorch
        square = ops.mean(norm.moving_variance + norm.moving_mean**2)
        norm.moving_variance.assign(ops.full(norm.moving_variance.shape, square))
        norm.moving_mean.assign(0 * norm.moving_mean)


BUILDERS = {"image": build_image, "mlp": build_mlp, "transformer": build_transformer}
