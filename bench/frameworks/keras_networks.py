"""What TensorFlow and JAX share: models in pure Keras, with layers, sizes and initial weights as in torchvision and
transformers; their optimizers; a part of the DeviceContext.

Whoever imports this sets KERAS_BACKEND first.
"""

import inspect
import math
from abc import abstractmethod

import keras
import numpy as np
from keras import layers, ops

from bench.frameworks import base, session
from bench.settings import SettingError
from bench.timing import check
from bench.workloads.networks import RESNETS
from bench.workloads.workload import LEARNING_RATES

POLICIES = {"tf32": "float32"}  # the other precisions have the same name in Keras
OPTIMIZERS = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}


class KerasContext(base.DeviceContext):
    """The part of a DeviceContext that needs only NumPy and Keras: images and kernels are channels_last."""

    def __init__(self, device, settings):
        super().__init__(device, settings)
        keras.backend.clear_session()  # forgets earlier models
        keras.utils.set_random_seed(self.seed)
        keras.config.set_image_data_format("channels_last")
        keras.config.set_dtype_policy(POLICIES.get(self.precision, self.precision))
        policy = keras.config.dtype_policy()
        self.dtype, self.compute_dtype = policy.variable_dtype, policy.compute_dtype
        self.magnification = 2 ** check.lost_bits(self.compute_dtype)

    @abstractmethod
    def put_array(self, array):
        """Return one array on the device, floats in this precision."""

    def put(self, *arrays):
        return tuple(map(self.put_array, map(channels_last, arrays)))

    def put_operands(self, arrays):
        if arrays[0].ndim == 4:  # the kernel as height, width, input, output
            arrays = channels_last(arrays[0]), arrays[1].transpose(2, 3, 1, 0)
        return [self.put_array(each) for each in arrays]

    def as_array(self, values):
        return np.asarray(values).astype(np.float32)

    def read(self, values):
        # By NumPy: it takes less time than a few operators.
        return float(np.linalg.norm(self.as_array(values)))

    def last_row(self, output):
        # NumPy reads the CPU's memory without a copy; from a GPU only the row is copied.
        return super().last_row(np.asarray(output) if self.device == "cpu" else output)

    def release(self):
        keras.backend.clear_session()


def channels_last(array):
    """Return images of NumPy with channels last, and anything else as it is: TensorFlow's pipeline has them so."""
    return array.transpose(0, 2, 3, 1) if isinstance(array, np.ndarray) and array.ndim == 4 else array


def build_optimizer(name, precision, weights):
    """Return the optimizer of these weights; it scales the loss if small gradients would become zero."""
    optimizer = OPTIMIZERS[name](LEARNING_RATES[name])
    if precision == "mixed_float16":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=base.LOSS_SCALE)
    optimizer.build(weights)
    return optimizer


# Each layer gets an initialiser of its own: one of Keras's gives the same numbers at every call.


def he_normal():
    return keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")


def small_normal():
    return keras.initializers.RandomNormal(stddev=0.02)


def build_image(workload):
    """Build one of torchvision's models in Keras layers, or a Keras application with random weights; gives logits."""
    shape, classes, name = (workload.sizes.side, workload.sizes.side, 3), workload.sizes.classes, workload.model
    if name in RESNETS:
        return build_resnet(name, shape, classes)
    if name in VGGS:
        return build_vgg(name, shape, classes)
    if name == "mobilenet_v2":
        return build_mobilenet_v2(shape, classes)
    application = list_applications()[name if name.startswith("keras-") else SAME[name]]
    options = {"input_shape": shape, "classes": classes, "classifier_activation": None}
    if "include_preprocessing" in inspect.signature(application).parameters:
        options["include_preprocessing"] = False
    return application(weights=None, **options)


def list_applications():
    """Return {"keras-" and the name in lower case: function} of Keras's own image models."""
    return {f"keras-{n.lower()}": f for n, f in vars(keras.applications).items() if inspect.isfunction(f)}


# torchvision's models that Keras has too, with the same trainable parameters and the same dropout.
SAME = {f"densenet{depth}": f"keras-densenet{depth}" for depth in (121, 169, 201)}
SAME |= {f"efficientnet_b{i}": f"keras-efficientnetb{i}" for i in range(8)}
SAME |= {"efficientnet_v2_s": "keras-efficientnetv2s"}
SAME |= {f"mobilenet_v3_{size}": f"keras-mobilenetv3{size}" for size in ("small", "large")}


def list_models():
    """Return the names of all image models here."""
    return [*RESNETS, *VGGS, "mobilenet_v2", *SAME, *list_applications()]


def refuse_unknown_model(name):
    """Raise SettingError, with the nearest names, for a model that is not here."""
    own = "keras-" + name.removeprefix("keras-").replace("_", "").lower()
    if name not in list_models() and own in list_applications():
        raise SettingError(f"MODEL={name!r} is another model in Keras: MODEL={own} measures that")
    session.refuse_unknown_model(name, list_models(), "Keras")


def build_mobilenet_v2(shape, classes):
    """Return Keras's model with torchvision's dropout before the classifier, which Keras leaves out."""
    body = keras.applications.MobileNetV2(input_shape=shape, weights=None, include_top=False, pooling="avg")
    return keras.Model(body.input, layers.Dense(classes)(layers.Dropout(0.2)(body.output)))


def build_resnet(name, shape, classes):
    """Build ResNet v1.5 with torchvision's names of layers: the stride is in the 3 x 3 convolution. Keras has v1."""
    bottleneck, stages = RESNETS[name]
    inputs = keras.Input(shape)
    x = ops.relu(normed_convolution(inputs, 64, 7, 2, "conv1", "bn1"))
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            x = residual_block(x, 64 * 2**stage, stride, bottleneck, f"layer{stage + 1}.{block}.")
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(classes, name="fc")(x))


def residual_block(x, filters, stride, bottleneck, name):
    if bottleneck:
        sizes = ((filters, 1, 1), (filters, 3, stride), (4 * filters, 1, 1))
    else:
        sizes = ((filters, 3, stride), (filters, 3, 1))
    short, out = x, sizes[-1][0]
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
    x = layers.Conv2D(filters, size, stride, padding, use_bias=False, kernel_initializer=he_normal(), name=name)(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=norm_name)(x)


# 3 x 3 convolutions in each of the five stages (Simonyan and Zisserman 2014, table 1).
VGGS = {"vgg11": (1, 1, 2, 2, 2), "vgg13": (2, 2, 2, 2, 2), "vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}


def build_vgg(name, shape, classes):
    """Build VGG as in torchvision: for images of any size, and with dropout. Keras's VGG has neither."""
    x = inputs = keras.Input(shape)
    for count, filters in zip(VGGS[name], (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            x = ops.relu(layers.Conv2D(filters, 3, padding="same", kernel_initializer=he_normal())(x))
        x = layers.MaxPooling2D(2)(x)
    if x.shape[1:3] != (7, 7):
        x = layers.AdaptiveAveragePooling2D(7)(x)
    x = layers.Flatten()(x)
    for _ in range(2):
        x = layers.Dropout(0.5)(dense_relu(x, 4096))
    return keras.Model(inputs, layers.Dense(classes)(x))


def dense_relu(x, width):
    # Metal gave wrong results for a fused MatMul, BiasAdd and Relu: maximum() is not fused.
    return ops.maximum(layers.Dense(width)(x), 0.0)


def build_mlp(workload):
    """Build dense layers, Glorot-uniform with zero biases (Keras's own defaults), with ReLU between them."""
    width, *hidden, classes = workload.sizes
    x = inputs = keras.Input((width,))
    for width in hidden:
        x = dense_relu(x, width)
    return keras.Model(inputs, layers.Dense(classes)(x))


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
    return keras.Model(inputs, normal_dense(encoder.labels, "classifier")(first))


def normal_dense(width, name):
    return layers.Dense(width, kernel_initializer=small_normal(), name=name)


def encoder_layer(x, encoder, name):
    """Add self-attention and a feed-forward part; each has a residual connection and a normalisation after it."""
    width, dropout = encoder.hidden_size, encoder.dropout
    attention = layers.MultiHeadAttention(
        encoder.num_heads,
        width // encoder.num_heads,
        dropout=dropout,
        kernel_initializer=small_normal(),
        name=name + "attention",
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


def count_parameters(model):
    """Return how many of a model's parameters are trainable."""
    return sum(math.prod(v.shape) for v in model.trainable_variables)


def call(model, inputs, training):
    """Return a model's output for a list of inputs, which Keras takes bare if there is one."""
    return model(inputs[0] if len(inputs) == 1 else list(inputs), training=training)


def calibrate(model, inputs, call=call):
    """Set the BatchNorm statistics from one batch: with the initial ones, activations explode or vanish with depth.

    `call` must keep what a call with training=True changes.
    """
    # _flatten_layers: nothing public lists the layers of nested models.
    norms = [layer for layer in model._flatten_layers() if isinstance(layer, layers.BatchNormalization)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    if norms:
        call(model, inputs, training=True)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


BUILDERS = {"image": build_image, "mlp": build_mlp, "transformer": build_transformer}
