"""All the TensorFlow and Keras there is here. CUDA and Metal take one path; what is special to Metal says so."""

import difflib
import inspect
import itertools
import math
import os
import platform
import sys
from contextlib import contextmanager


@contextmanager
def quiet():
    """No stderr inside: TensorFlow says twice, past every setting of its log, that it has been loaded."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


os.environ["KERAS_BACKEND"] = "tensorflow"  # whatever ~/.keras/keras.json says
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

try:
    with quiet():
        import tensorflow as tf
except ModuleNotFoundError as error:
    if platform.system() == "Darwin" and sys.version_info >= (3, 13):
        raise ImportError(
            "has no Metal plug-in for Python 3.13 or newer: `make clean` and `make image FRAMEWORK=tensorflow` with "
            "Python 3.11 or 3.12, or PYTHON=python3.12"
        ) from error
    raise
except Exception as error:  # of a plug-in that was linked with another TensorFlow it is a NotFoundError
    cure = "install it again, as requirements-cuda-tensorflow.txt says"
    if platform.system() == "Darwin":
        cure = "tensorflow-metal 1.2.0 needs TensorFlow 2.16 to 2.19, `pip install -r requirements-mac.txt` pairs them"
    raise ImportError(f"cannot be loaded (... {' '.join(str(error).split())[-200:]}): {cure}") from error

import keras
import numpy as np
from keras import layers, ops
from tensorflow.python.eager import context  # nothing public says on which device an operator of a graph runs

from bench.frameworks import Device, describe_failure
from bench.settings import SettingError, usable_cores
from bench.timing import check
from bench.timing.measure import MeasurementError
from bench.work import data
from bench.work.workload import ENCODERS, LEARNING_RATES, mlp_widths

POLICIES = {"tf32": "float32"}  # Keras's names of the precisions are ours otherwise
# Operators that make up a step's time, by how their names begin. Metal lacks kernels for much of the bookkeeping in
# integers beside them (random keys, counters of steps), which TensorFlow then leaves to the CPU.
EXPENSIVE = ("MatMul", "BatchMatMul", "_FusedMatMul", "Einsum", "Conv", "_FusedConv", "Depthwise", "_FusedDepthwise")
EXPENSIVE += ("FusedBatchNorm", "_FusedBatchNorm", "MaxPool", "AvgPool", "Relu", "BiasAdd", "Softmax", "SparseSoftmax")
EXPENSIVE += ("Gather", "ResourceGather", "StatelessRandomUniform")
OPTIMIZERS = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}
LOSS_SCALE = 256  # the usual 32,768 overflows until it has been halved often enough, and skips those updates
PREFETCH = 2


def find_device(settings):
    """The Device to run on; sets the number of threads, which TensorFlow allows before its first operation only."""
    if settings.num_threads:
        tf.config.threading.set_intra_op_parallelism_threads(settings.num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(settings.num_threads)
    kind = choose_device(settings.use_gpu)
    name = None
    if kind == "cuda":  # Metal's plug-in calls every chip METAL
        name = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0]).get("device_name")
    threads = tf.config.threading.get_intra_op_parallelism_threads() or usable_cores()
    return Device(kind, name, tf.__version__, threads)


def choose_device(use_gpu):
    """ "cpu", "cuda" or, on a Mac, "mps"; the same answer as often as it is asked."""
    gpus = tf.config.list_physical_devices("GPU")
    if use_gpu is False or not gpus:
        tf.config.set_visible_devices([], "GPU")
        return "cpu"
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    return "mps" if platform.system() == "Darwin" else "cuda"


def open_session(workload, settings, phase, scope):
    """A session of this file, checked and on its device; raises SettingError or MeasurementError."""
    if workload.name not in BUILDERS and workload.model not in OPERATORS:
        raise SettingError(f"FRAMEWORK='tensorflow' cannot run {workload.name}: it has {', '.join(BUILDERS)}")
    if workload.name == "image":
        refuse_unknown_model(workload.model)
    if settings.memory_format == "channels_first":
        raise MeasurementError("unsupported", "TensorFlow runs image networks in channels_last here")
    if settings.compile and choose_device(settings.use_gpu) == "mps":
        raise MeasurementError("unsupported", "COMPILE=1 is XLA, which the Metal plug-in does not have")
    keras.backend.clear_session()
    keras.utils.set_random_seed(settings.seed)
    place = Place(settings)
    if workload.model in OPERATORS:
        return Operator(place, workload)
    if scope == "input":
        return InputSession(place, JpegStream(workload, settings, phase))
    try:
        with place.scope():
            model = place.prove(BUILDERS[workload.name](workload), workload, is_trained=phase != "inference")
    except ValueError as error:
        if settings.image_size is None or describe_failure(error)[0] != "failed":
            raise
        raise SettingError(
            f"IMAGE_SIZE={str(settings.image_size)!r} does not suit {workload.model} ({' '.join(str(error).split())}): "
            "leave it out for the model's own size"
        ) from None
    if scope == "epoch":
        return Epochs(place, model, workload)
    streams = scope == "end_to_end"
    batches = JpegStream(workload, settings, phase) if streams else resident_batches(place, workload)
    return STEPS[phase](place, model, batches)


# Networks. Each layer gets an initialiser of its own: Keras's give the same numbers as often as they are called.


def he_normal():
    return keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")


def small_normal():
    return keras.initializers.RandomNormal(stddev=0.02)


def build_image(workload):
    """One of torchvision's networks in Keras layers, or a Keras application with random weights; logits."""
    _, height, width = workload.item_shape
    shape, name = (height, width, 3), workload.model
    if name in RESNETS:
        return build_resnet(name, shape, workload.classes)
    if name in VGGS:
        return build_vgg(name, shape, workload.classes)
    if name == "mobilenet_v2":
        return build_mobilenet_v2(shape, workload.classes)
    application = list_applications()[name if name.startswith("keras-") else SAME[name]]
    plain = {"include_preprocessing"} & inspect.signature(application).parameters.keys()
    how = {"input_shape": shape, "classes": workload.classes, "classifier_activation": None}
    return application(weights=None, **how, **dict.fromkeys(plain, False))


def list_applications():
    """{"keras-" and the name in lower case: function} of Keras's own image networks."""
    return {f"keras-{n.lower()}": f for n, f in vars(keras.applications).items() if inspect.isfunction(f)}


# Torchvision's networks that Keras has too: the same trainable parameters, and the same dropout in training.
SAME = {f"densenet{depth}": f"keras-densenet{depth}" for depth in (121, 169, 201)}
SAME |= {f"efficientnet_b{i}": f"keras-efficientnetb{i}" for i in range(8)}
SAME |= {"efficientnet_v2_s": "keras-efficientnetv2s"}
SAME |= {f"mobilenet_v3_{size}": f"keras-mobilenetv3{size}" for size in ("small", "large")}


def list_models():
    return [*RESNETS, *VGGS, "mobilenet_v2", *SAME, *list_applications()]


def refuse_unknown_model(name):
    """Raise SettingError, with the nearest names, for a network that is not here."""
    if name in list_models():
        return
    own = "keras-" + name.removeprefix("keras-").replace("_", "").lower()
    if own in list_applications():
        raise SettingError(f"MODEL={name!r} is another network in Keras: MODEL={own} measures that")
    near = difflib.get_close_matches(name.lower(), list_models(), n=3) or list_models()[:3]
    raise SettingError(f"MODEL={name!r} is not in Keras: did you mean {', '.join(near)}?")


def build_mobilenet_v2(shape, classes):
    """Keras's network with the dropout before the classifier that torchvision's has and its own has not."""
    body = keras.applications.MobileNetV2(input_shape=shape, weights=None, include_top=False, pooling="avg")
    return keras.Model(body.input, layers.Dense(classes)(layers.Dropout(0.2)(body.output)))


# Bottlenecks or pairs of 3 x 3 convolutions, and how many in each of the four stages (He et al. 2015, table 1).
RESNETS = {
    "resnet18": (False, (2, 2, 2, 2)),
    "resnet34": (False, (3, 4, 6, 3)),
    "resnet50": (True, (3, 4, 6, 3)),
    "resnet101": (True, (3, 4, 23, 3)),
    "resnet152": (True, (3, 8, 36, 3)),
}


def build_resnet(name, shape, classes):
    """ResNet v1.5, as torchvision has it: the stride is in the 3 x 3 convolution. Keras has v1, with other parameters.

    Layers have torchvision's names.
    """
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
    if size > 1 and stride > 1:  # "same" would pad one side only
        x = layers.ZeroPadding2D(size // 2)(x)
    padding = "same" if stride == 1 else "valid"
    how = {"use_bias": False, "kernel_initializer": he_normal(), "name": name}
    x = layers.Conv2D(filters, size, stride, padding, **how)(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=norm_name)(x)


# 3 x 3 convolutions in each of the five stages (Simonyan and Zisserman 2014, table 1).
VGGS = {"vgg11": (1, 1, 2, 2, 2), "vgg13": (2, 2, 2, 2, 2), "vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}


def build_vgg(name, shape, classes):
    """VGG as torchvision has it: for images of any size, with dropout; Keras's has neither."""
    x = inputs = keras.Input(shape)
    for count, filters in zip(VGGS[name], (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            x = ops.relu(layers.Conv2D(filters, 3, padding="same", kernel_initializer=he_normal())(x))
        x = layers.MaxPooling2D(2)(x)
    if x.shape[1:3] != (7, 7):
        x = layers.AdaptiveAveragePooling2D(7)(x)
    x = layers.Flatten()(x)
    for _ in range(2):
        x = layers.Dropout(0.5)(relu_of_dense(x, 4096))
    return keras.Model(inputs, layers.Dense(classes)(x))


def relu_of_dense(x, width):
    # Metal has been seen to give wrong results for a fused MatMul, BiasAdd and Relu: maximum() is not fused.
    return ops.maximum(layers.Dense(width)(x), 0.0)


def build_mlp(workload):
    """Dense layers, Glorot-uniform with zero biases (Keras's own defaults), with ReLU between them."""
    x = inputs = keras.Input(workload.item_shape)
    for width in mlp_widths(workload.model):
        x = relu_of_dense(x, width)
    return keras.Model(inputs, layers.Dense(workload.classes)(x))


def build_transformer(workload):
    """BERT or DistilBERT with a classifier on the first token: the same layers, sizes, dropout and initial weights as
    in the transformers library, in Keras layers because no keras-hub release serves all TensorFlows that run here.
    """
    encoder = ENCODERS[workload.model]
    inputs = keras.Input(workload.item_shape, dtype="int64")
    x = Embeddings(encoder, name="embeddings")(inputs)
    for i in range(encoder.layers):
        x = encoder_layer(x, encoder, f"layer.{i}.")
    first = layers.Dense(encoder.width, kernel_initializer=small_normal(), name="pooler")(x[:, 0])
    first = ops.tanh(first) if encoder.is_bert else ops.maximum(first, 0.0)
    first = layers.Dropout(encoder.dropout if encoder.is_bert else 0.2)(first)
    return keras.Model(
        inputs, layers.Dense(workload.classes, kernel_initializer=small_normal(), name="classifier")(first)
    )


def encoder_layer(x, encoder, name):
    """Self-attention and a feed-forward part, each with its residual connection and normalised after it."""
    width, dropout = encoder.width, encoder.dropout
    attention = layers.MultiHeadAttention(
        encoder.heads,
        width // encoder.heads,
        dropout=dropout,
        kernel_initializer=small_normal(),
        name=name + "attention",
    )
    attended = attention(x, x)
    attended = layers.Dropout(dropout)(attended) if encoder.is_bert else attended
    x = layers.LayerNormalization(epsilon=encoder.norm_epsilon, name=name + "norm1")(x + attended)
    inner = layers.Dense(encoder.inner, kernel_initializer=small_normal(), name=name + "lin1")(x)
    inner = layers.Dense(width, kernel_initializer=small_normal(), name=name + "lin2")(
        ops.gelu(inner, approximate=False)
    )
    return layers.LayerNormalization(epsilon=encoder.norm_epsilon, name=name + "norm2")(
        x + layers.Dropout(dropout)(inner)
    )


class Embeddings(layers.Layer):
    """The sum of word, position and, in BERT, segment embeddings (all tokens in segment 0), normalised."""

    def __init__(self, encoder, **kwargs):
        super().__init__(**kwargs)
        self.words, self.positions, self.types = (
            layers.Embedding(count, encoder.width, embeddings_initializer=small_normal()) if count else None
            for count in (encoder.vocabulary, encoder.positions, encoder.token_types)
        )
        self.norm = layers.LayerNormalization(epsilon=encoder.norm_epsilon)
        self.dropout = layers.Dropout(encoder.dropout)

    def call(self, ids):
        x = self.words(ids) + self.positions(ops.arange(ids.shape[1]))
        if self.types:
            x = x + self.types(ops.zeros_like(ids))
        return self.dropout(self.norm(x))


BUILDERS = {"image": build_image, "mlp": build_mlp, "transformer": build_transformer}


def convolve(images, kernels):
    return tf.nn.conv2d(images, kernels, strides=1, padding="SAME")


# The calls that users write. TensorFlow makes outputs of its own: `out`, of what moves bytes, stays unused.
OPERATORS = {
    "matmul": tf.linalg.matmul,
    "conv1x1": convolve,
    "conv3x3": convolve,
    # Metal has no kernel for DeepCopy.
    "copy": lambda x, out: tf.raw_ops.Snapshot(input=x) if platform.system() == "Darwin" else tf.raw_ops.DeepCopy(x=x),
    "add": lambda x, y, out: x + y,
    # Eagerly it would be two operators, which move more bytes than the one that torch has for it.
    "multiply-add": tf.function(lambda x, y, out: 2.0 * x + y, jit_compile=platform.system() != "Darwin"),
}


def count_parameters(model):
    """The trainable ones."""
    return sum(math.prod(v.shape) for v in model.trainable_variables)


def calibrate(model, inputs):
    """Set the BatchNorm statistics from one batch: random weights explode or vanish with the initial ones."""
    norms = [layer for layer in model._flatten_layers() if isinstance(layer, layers.BatchNormalization)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    if norms:
        model(inputs, training=True)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


class Place:
    """Where and how numbers are computed: device, precision, compilation; and the proof that they are right."""

    def __init__(self, settings):
        self.device = choose_device(settings.use_gpu)
        self.seed = settings.seed
        self.optimizer = settings.optimizer
        self.precision = settings.precision
        self.compile = settings.compile
        tf.config.experimental.enable_tensor_float_32_execution(settings.precision == "tf32")
        keras.config.set_image_data_format("channels_last")
        keras.config.set_dtype_policy(POLICIES.get(settings.precision, settings.precision))
        policy = keras.config.dtype_policy()
        self.dtype, self.compute_dtype = policy.variable_dtype, policy.compute_dtype
        self.reset_peak_memory()
        self.used_before = tf.config.experimental.get_memory_info("GPU:0")["current"] if self.device == "cuda" else 0
        self.measured_precision = self._measure_precision()
        if settings.precision == "tf32" and "tf32" not in self.measured_precision:
            raise MeasurementError("unsupported", f"this {self.device} has no TF32: it computes in float32")

    def scope(self):
        return tf.device("CPU:0" if self.device == "cpu" else "GPU:0")

    def function(self, python_function):
        """A compiled function: a graph on this device, by XLA where COMPILE asks for it."""

        def placed(*arguments):
            with self.scope():  # a graph does not take over the scope that it is called in
                return python_function(*arguments)

        return tf.function(placed, jit_compile=bool(self.compile))

    def put(self, inputs, labels):
        """A batch on the device; images become channels_last."""
        if isinstance(inputs, np.ndarray) and inputs.ndim == 4:
            inputs = inputs.transpose(0, 2, 3, 1)
        with self.scope():
            inputs, labels = tf.identity(inputs), tf.identity(labels)
            return tf.cast(inputs, self.dtype) if inputs.dtype.is_floating else inputs, labels

    def put_operands(self, arrays):
        """Operands on the device; of a convolution in channels_last, the kernel as height, width, input, output."""
        if arrays[0].ndim == 4:
            arrays = arrays[0].transpose(0, 2, 3, 1), arrays[1].transpose(2, 3, 1, 0)
        with self.scope():
            return [tf.cast(tf.identity(each), self.dtype) for each in arrays]

    def prove(self, model, workload, is_trained):
        """The model, once it is the right one and its output for a pair of items is right on its device."""
        check.check_parameters(count_parameters(model), workload.parameters)
        (pair, labels), *_ = workload.batches(2, self.seed)
        inputs, labels = self.put(pair, labels)
        calibrate(model, inputs)
        expected = None
        if self.device != "cpu" and self.precision == "float32":
            with tf.device("CPU:0"):
                expected = model(tf.identity(inputs), training=False).numpy()
        # In a graph, as it will be measured: Metal's wrong results come from operators that a graph fuses.
        with expensive_work_stays_on(self.device):
            got = self.function(lambda inputs: model(inputs, training=False))(inputs)
            if is_trained and self.device != "cpu":
                self.function(lambda *batch: differentiate(model, *batch))(inputs, labels)
        check.check_output(tf.cast(got, tf.float32).numpy(), expected)
        if self.compile and self.precision in ("float32", "float64"):
            check.check_compiled(got.numpy(), model(inputs, training=False).numpy())
        self.reset_peak_memory()
        return model

    def reset_peak_memory(self):
        if self.device == "cuda":
            tf.config.experimental.reset_memory_stats("GPU:0")

    def _measure_precision(self):
        (a, b), (x, w) = check.probe_inputs()
        errors = []
        probes = (tf.matmul, a, b), (convolve, x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0))
        for work, *pair in probes:
            with self.scope():
                got = work(*(tf.cast(tf.identity(each), self.compute_dtype) for each in pair))
            with tf.device("CPU:0"):
                expected = work(*(tf.constant(each, tf.float64) for each in pair))
            errors.append(check.relative_error(tf.cast(got, tf.float64).numpy(), expected.numpy()))
        return check.name_precision(*errors, is_float16=self.compute_dtype == "float16")


@contextmanager
def expensive_work_stays_on(device):
    """Raise MeasurementError where a graph that is run inside leaves EXPENSIVE operators on floats to the CPU.

    TensorFlow does that where a device has no kernel. To forbid it altogether, set_soft_device_placement(False), leaves
    no network of Keras's on Metal: https://developer.apple.com/forums/thread/759438
    """
    if device == "cpu":
        yield
        return
    with context.collect_graphs() as graphs:
        yield
    moved = [node for graph in graphs for node in graph.node if "CPU" in node.device and node.op.startswith(EXPENSIVE)]
    if names := sorted({node.op for node in moved if has_floats(node)}):
        reason = f"it has no kernel on this {device} for {', '.join(names)}: TensorFlow would run that on the CPU"
        raise MeasurementError("unsupported", reason)


def has_floats(node):
    types = (value.type for value in node.attr.values() if value.WhichOneof("value") == "type")
    return any(tf.as_dtype(each).is_floating for each in types)


def mean_loss(model, inputs, labels):
    """Of a batch in training, in float32."""
    logits = tf.cast(model(inputs, training=True), tf.float32)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def differentiate(model, inputs, labels):
    """The gradients of a batch's mean loss."""
    with tf.GradientTape() as tape:
        loss = mean_loss(model, inputs, labels)
    return tape.gradient(loss, [weight.value for weight in model.trainable_variables])


def resident_batches(place, workload):
    """Batches that stay on the device and take turns, without end."""
    return itertools.cycle([place.put(*batch) for batch in workload.batches(workload.items_per_step, place.seed)])


class JpegStream:
    """Batches out of JPEG files, decoded and transformed by tf.data in NUM_WORKERS threads, without end."""

    def __init__(self, workload, settings, phase):
        paths = data.jpeg_files(settings.seed)
        size, classes = workload.item_shape[-1], workload.classes
        self.num_workers = settings.num_workers
        options = tf.data.Options()
        options.autotune.enabled = False
        options.threading.private_threadpool_size = max(1, self.num_workers)
        options.threading.max_intra_op_parallelism = 1
        files = tf.data.Dataset.from_tensor_slices((paths, np.arange(len(paths)) % classes))
        files = files.shuffle(len(paths), settings.seed).repeat()
        prepare = cut_at_random if phase == "training" else resize_and_cut
        images = files.map(
            lambda path, label: (prepare(tf.io.decode_jpeg(tf.io.read_file(path), channels=3), size), label),
            num_parallel_calls=self.num_workers or None,
        ).batch(workload.items_per_step)
        self.queue_steps = 0
        if self.num_workers:
            images = images.prefetch(PREFETCH)
            # Ready, one being put together, and the single images that the threads are ahead.
            self.queue_steps = PREFETCH + 1 + math.ceil(self.num_workers / workload.items_per_step)
        self._batches = iter(images.with_options(options))

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._batches)

    def close(self):
        self._batches = None


def resize_and_cut(image, size):
    """As is usual for inference on ImageNet: the short side to 256 for 224 pixels, the middle of it, normalised."""
    short = size * 256 // 224
    sides = tf.cast(tf.shape(image)[:2], tf.float32)
    sides = tf.cast(sides * (short / tf.reduce_min(sides)), tf.int32)
    image = tf.image.resize(image, tf.maximum(sides, short), antialias=True)
    return normalise(tf.image.resize_with_crop_or_pad(image, size, size))


def cut_at_random(image, size):
    """As is usual for training on ImageNet: a cut of 8 to 100 % of the area, perhaps mirrored, normalised."""
    begin, sides, _ = tf.image.sample_distorted_bounding_box(
        tf.shape(image),
        tf.zeros((1, 0, 4)),
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        use_image_if_no_bounding_boxes=True,
    )
    image = tf.image.resize(tf.slice(image, begin, sides), (size, size), antialias=True)
    image = normalise(tf.image.random_flip_left_right(image))
    image.set_shape((size, size, 3))
    return image


def normalise(image):
    return (image / 255.0 - data.IMAGENET_MEAN) / data.IMAGENET_STD


class TensorFlowSession:
    """What all sessions here have in common. The contract is in bench/frameworks/__init__.py."""

    prepare = parameters = measured_precision = None

    def __init__(self, place, batches):
        self.place, self.batches = place, batches
        self.queue_steps = getattr(batches, "queue_steps", None)
        self.num_workers = getattr(batches, "num_workers", None)
        self.functions = []

    def next_batch(self, items=None):
        inputs, labels = next(self.batches)
        if self.queue_steps is not None:
            inputs, labels = self.place.put(inputs, labels)
        return (inputs, labels) if items is None else (inputs[:items], labels[:items])

    def function(self, python_function):
        self.functions.append(self.place.function(python_function))
        return self.functions[-1]

    def synchronize(self):
        tf.test.experimental.sync_devices()
        # That call does nothing for a plug-in's device (Metal), where a read has to wait. On a CPU a function is done
        # when it returns, but its threads still free what it used: a first read has been seen to take 0.4 ms longer.
        if self.place.device != "cuda":
            self.probe()

    def settle(self):
        self.place.reset_peak_memory()  # what is compiled was proved before

    def probe(self):
        # A norm, because one element may be a dead unit's; by NumPy, which takes less time than a few operators.
        return float(np.linalg.norm(np.asarray(self.watched).astype(np.float32)))

    def trace_count(self):
        return sum(function.experimental_get_tracing_count() for function in self.functions)

    def peak_memory_bytes(self):
        if self.place.device != "cuda":  # Metal does not say
            return None
        return tf.config.experimental.get_memory_info("GPU:0")["peak"] - self.place.used_before

    def reserved_memory_bytes(self):
        return None  # TensorFlow does not say

    def close(self):
        if self.queue_steps is not None:
            self.batches.close()
        vars(self).clear()  # whatever holds memory
        keras.backend.clear_session()


class InputSession(TensorFlowSession):
    """A step prepares one batch and copies it to the device; there is no model."""

    def step(self, items=None):
        images, _ = self.next_batch(items)
        self.watched = images[-1, -1, -1]


class Operator(TensorFlowSession):
    """A step is one operator on the next operands, eagerly: that is the call that users write."""

    def __init__(self, place, workload):
        sets = workload.batches(workload.items_per_step, place.seed)
        super().__init__(place, itertools.cycle([place.put_operands(operands) for operands in sets]))
        self.measured_precision = place.measured_precision
        self.work = OPERATORS[workload.model]
        indices, expected = workload.samples(sets[0])
        if len(indices) == 4:
            indices = indices[0], indices[2], indices[3], indices[1]
        with place.scope():
            output = self.work(*next(self.batches))
            if place.device != "cpu" and "CPU" in output.backing_device:
                raise MeasurementError("unsupported", f"TensorFlow runs {workload.model} on the CPU, not the GPU")
            got = tf.gather_nd(output, np.stack(indices, -1))
        check.check_samples(tf.cast(got, tf.float64).numpy(), expected, place.measured_precision)

    def step(self, items=None):
        self.output = None  # a CPU's allocator then takes the same memory again, in place of asking for new pages
        self.output = self.work(*next(self.batches))

    @property
    def watched(self):
        # In the CPU's memory NumPy sees it as it lies there; from a GPU only the slice has to come over.
        output = np.asarray(self.output) if self.place.device == "cpu" else self.output
        return output[-1, -1] if len(output.shape) > 2 else output[-1]


class Inference(TensorFlowSession):
    """A step is one forward pass."""

    def __init__(self, place, model, batches):
        super().__init__(place, batches)
        self.parameters = count_parameters(model)
        self.measured_precision = place.measured_precision
        self.model = model
        self.infer = self.function(lambda inputs: model(inputs, training=False))

    def step(self, items=None):
        inputs, _ = self.next_batch(items)
        self.watched = self.infer(inputs)


class Training(Inference):
    """A step is forward, backward and the optimizer, in one graph."""

    def __init__(self, place, model, batches):
        super().__init__(place, model, batches)
        self.optimizer = OPTIMIZERS[place.optimizer](LEARNING_RATES[place.optimizer])
        if place.precision == "mixed_float16":
            self.optimizer = keras.mixed_precision.LossScaleOptimizer(self.optimizer, initial_scale=LOSS_SCALE)
        self.weights = model.trainable_variables
        with place.scope():
            self.optimizer.build(self.weights)
        self.watched = self.weights[-1]
        self.train, self.losses_of = self.function(self._train), self.function(self._losses_of)
        self.update_by = self.function(lambda gradients: self.optimizer.apply(gradients, self.weights))

    def _losses_of(self, inputs, labels):
        """(loss, the loss as the optimizer wants it scaled) of a batch."""
        loss = mean_loss(self.model, inputs, labels)
        return loss, self.optimizer.scale_loss(loss)

    def _train(self, inputs, labels):
        with tf.GradientTape() as tape:
            loss, scaled = self._losses_of(inputs, labels)
        self.optimizer.apply(tape.gradient(scaled, self.weight_values), self.weights)
        return loss

    @property
    def weight_values(self):
        return [weight.value for weight in self.weights]

    def step(self, items=None):
        self.loss = self.train(*self.next_batch(items))

    # The parts: each a graph of its own, because a tape keeps what lies between them.

    def forward(self, items=None):
        self.loss = self.tape = None  # with it goes what the last step kept
        with tf.GradientTape() as self.tape:
            self.loss, self.scaled = self.losses_of(*self.next_batch(items))

    def backward(self):
        self.gradients = self.tape.gradient(self.scaled, self.weight_values)

    def update(self):
        self.update_by(self.gradients)


class Epochs(Training):
    """Whole passes over the training data, which lie on the device; a batch is gathered there."""

    def __init__(self, place, model, workload):
        super().__init__(place, model, None)
        train_inputs, train_labels, *test = workload.dataset()
        self.train_data, self.test_data = place.put(train_inputs, train_labels), place.put(*test)
        self.batch_size = workload.items_per_step
        self._warm_up()

    def _warm_up(self):
        """Run both shapes of batches, the last one is smaller, and take back what they changed."""
        variables = [*self.model.variables, *self.optimizer.variables]
        before = [variable.numpy() for variable in variables]
        count = len(self.train_data[1])
        self.train_epoch(np.arange(min(count, self.batch_size + (count % self.batch_size or self.batch_size))))
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)

    def train_epoch(self, order):
        with self.place.scope():
            order = tf.identity(order)
            starts = range(0, len(order), self.batch_size)
            some = (order[start : start + self.batch_size] for start in starts)
            self.batches = (tuple(tf.gather(each, indices) for each in self.train_data) for indices in some)
            self._losses = []
            for _ in starts:
                self.step()
                self._losses.append(self.loss)

    def losses(self):
        return [float(loss) for loss in self._losses]

    def evaluate(self):
        inputs, labels = self.test_data
        logits = [self.infer(inputs[start : start + 1000]) for start in range(0, len(labels), 1000)]
        return float(np.mean(np.argmax(tf.concat(logits, 0).numpy(), 1) == labels.numpy()))


class Forward(Training):
    """The forward pass of training alone, with what the backward pass needs of it."""

    def step(self, items=None):
        self.forward(items)
        self.watched = self.loss


class Backward(Training):
    """The backward pass alone."""

    def prepare(self):
        self.forward()

    def step(self, items=None):
        self.backward()
        self.watched = self.gradients[-1]


class Optimizer(Training):
    """The weights' update alone."""

    def prepare(self):
        self.forward()
        self.backward()

    def step(self, items=None):
        self.update()


STEPS = {
    "inference": Inference,
    "training": Training,
    "forward": Forward,
    "backward": Backward,
    "optimizer": Optimizer,
}
