"""All of TensorFlow is here; its models are in keras_networks.py. CUDA and Metal share one path."""

import math
import os
import platform

os.environ["KERAS_BACKEND"] = "tensorflow"  # not what ~/.keras/keras.json says
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
os.dup2(nowhere, 2)  # TensorFlow prints twice that it was loaded, whatever the level of its log
try:
    import tensorflow as tf
finally:
    os.dup2(stderr, 2)
    os.close(stderr)
    os.close(nowhere)

import numpy as np
from tensorflow.python.eager import context as eager  # nothing public says where an operator of a graph runs

from bench.frameworks import Device, base, keras_networks, session
from bench.frameworks.keras_networks import BUILDERS, LAST_KERNEL, LOSSES, KerasContext, refuse_unknown_model
from bench.host.cpus import usable_cores
from bench.timing import MeasurementError
from bench.workloads import data

# The starts of the names of operators that make up a step's time. Metal lacks kernels for small ones around them.
EXPENSIVE = ("MatMul", "BatchMatMul", "_FusedMatMul", "Einsum", "Conv", "_FusedConv", "Depthwise", "FusedBatchNorm")
PREFETCH = 2  # batches that tf.data may hold ready


def find_device(settings):
    """Return the Device to run on, and set the number of threads, which TensorFlow allows only before it computes."""
    if settings.num_threads:
        tf.config.threading.set_intra_op_parallelism_threads(settings.num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(settings.num_threads)
    kind = choose_device(settings.use_gpu)
    name = None
    if kind == "cuda":  # Metal's plug-in calls every chip METAL
        name = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0]).get("device_name")
    threads = tf.config.threading.get_intra_op_parallelism_threads() or usable_cores()
    return Device(kind, name, tf.__version__, threads, has_own_memory=kind == "cuda")


def choose_device(use_gpu):
    """Return the name of the device: "cpu", "cuda" or, on a Mac, "mps"; the same at every call."""
    gpus = tf.config.list_physical_devices("GPU")
    if use_gpu is False or not gpus:
        tf.config.set_visible_devices([], "GPU")
        return "cpu"
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    return "mps" if platform.system() == "Darwin" else "cuda"


def open_session(workload, settings, phase, scope, compares=True):
    """Return the session of a workload; raises SettingError or MeasurementError."""
    session.refuse_unknown_workload("tensorflow", workload, BUILDERS, OPERATORS, LOSSES)
    if workload.name == "image":
        refuse_unknown_model(workload.model)
    if settings.compile == "1" and choose_device(settings.use_gpu) == "mps":
        raise MeasurementError("unsupported", "COMPILE=1 is XLA, which the Metal plug-in does not have")
    return session.open_session(DeviceContext(settings, compares), workload, settings, phase, scope)


def convolve(images, kernels):
    return tf.nn.conv2d(images, kernels, strides=1, padding="SAME")


# The calls that users write. TensorFlow allocates its outputs itself: `out` is not used.
OPERATORS = {
    "matmul": tf.linalg.matmul,
    "conv1x1": convolve,
    "conv3x3": convolve,
    "copy": lambda x, out: tf.raw_ops.Snapshot(input=x),
    "add": lambda x, y, out: x + y,
    # Eager execution runs two operators, which move more bytes than the single one of PyTorch.
    "triad": tf.function(lambda x, y, out: 2.0 * x + y, jit_compile=platform.system() != "Darwin"),
}


class Model(base.Model):
    """A Keras model with its optimizer; it is trained if it has a loss, one of LOSSES. The contract is in base.py."""

    def __init__(self, context, keras_model, loss_of):
        self.context, self.keras_model, self.loss_of = context, keras_model, loss_of
        self.weights = keras_model.trainable_variables
        self.last_weight = self.weights[-1]
        self.parameters = keras_networks.count_parameters(keras_model)
        self.functions = []
        self._infer = self._function(lambda *inputs: keras_model(list(inputs), training=False))
        if loss_of:
            self.optimizer = keras_networks.build_optimizer(context, self.weights)
            self.train_step, self.losses_of = self._function(self._train), self._function(self._losses_of)
            self.apply = self._function(lambda gradients: self.optimizer.apply(gradients, self.weights))

    def _function(self, python_function):
        self.functions.append(self.context.function(python_function))
        return self.functions[-1]

    def _losses_of(self, *batch):
        """Return (loss, the loss scaled for the optimizer) of a batch."""
        *inputs, target = batch
        loss = self.loss_of(self.keras_model(inputs, training=True), target)
        return loss, self.optimizer.scale_loss(loss)

    def _train(self, *batch):
        with tf.GradientTape() as tape:
            loss, scaled = self._losses_of(*batch)
        self.optimizer.apply(tape.gradient(scaled, self.trained_weights()), self.weights)
        return loss

    def infer(self, *inputs):
        return self._infer(*inputs)

    def train(self, *batch):
        """Run all of it in one graph."""
        self.loss = self.train_step(*batch)

    # The parts: a graph each, because a tape keeps the values between them.

    def forward(self, *batch):
        self.loss = self.tape = None  # frees what the last step kept
        with tf.GradientTape() as self.tape:
            self.loss, self.scaled = self.losses_of(*batch)

    def backward(self):
        self.gradients = self.tape.gradient(self.scaled, self.trained_weights())
        self.last_gradient = self.gradients[-1]

    def update(self):
        self.apply(self.gradients)

    def trained_weights(self):
        return [weight.value for weight in self.weights]

    def updates(self):
        return None if self.context.precision == "mixed_float16" else int(self.optimizer.iterations)

    def trace_count(self):
        return sum(function.experimental_get_tracing_count() for function in self.functions)


class DeviceContext(KerasContext):
    """Where and how TensorFlow computes."""

    model_class = Model

    def __init__(self, settings, compares):
        super().__init__(choose_device(settings.use_gpu), settings, compares)
        tf.config.experimental.enable_tensor_float_32_execution(self.precision == "tf32")
        self.reset_peak_memory()
        self.used_before = tf.config.experimental.get_memory_info("GPU:0")["current"] if self.device == "cuda" else 0

    def on(self, device):
        return tf.device("CPU:0" if device == "cpu" else "GPU:0")

    def function(self, python_function):
        """Return a graph of a function on this device; compiled by XLA with COMPILE=1."""

        def placed(*arguments):
            with self.on(self.device):  # a graph ignores the scope that it is called in
                return python_function(*arguments)

        return tf.function(placed, jit_compile=self.compile)

    def evaluator(self, keras_model, workload, loss_of, compiled):
        weights, is_on_gpu = keras_model.trainable_variables, compiled and self.device != "cpu"
        # On a GPU also the other gradients, because it may lack a kernel for them.
        weights = [each.value for each in [weights[LAST_KERNEL], *(weights if is_on_gpu else [])]]

        def evaluate(*batch):
            with tf.GradientTape() as tape:
                outputs = keras_model(list(workload.inputs_of(batch)), training=False)
                if not loss_of:
                    return [outputs]
                loss = base.LOSS_SCALE * loss_of(outputs, batch[-1])
            return [outputs, *tape.gradient(loss, weights)]

        run = self.function(evaluate) if compiled else evaluate
        run = refuse_cpu_work(run) if is_on_gpu else run
        return lambda *batch: run(*batch)[:2]

    def open_stream(self, workload, settings, phase):
        """Return the Stream of batches that tf.data reads from JPEG files and prepares in its own threads."""
        paths, workers = data.jpeg_files(settings.seed), settings.num_workers
        size, classes = workload.sizes.side, workload.sizes.classes
        options = tf.data.Options()
        options.autotune.enabled = False
        options.threading.private_threadpool_size = max(1, workers)
        options.threading.max_intra_op_parallelism = 1
        files = tf.data.Dataset.from_tensor_slices((paths, np.arange(len(paths)) % classes))
        files = files.shuffle(len(paths), settings.seed).repeat()
        prepare = cut_at_random if phase == "training" else resize_and_cut
        images = files.map(
            lambda path, label: (prepare(tf.io.decode_jpeg(tf.io.read_file(path), channels=3), size), label),
            num_parallel_calls=workers or None,
        ).batch(workload.items_per_step)
        queue_steps = 0
        if workers:
            images = images.prefetch(PREFETCH)
            # The ready batches, the one in the making, and single images that the threads have finished early.
            queue_steps = PREFETCH + 1 + math.ceil(workers / workload.items_per_step)
        return base.Stream(iter(images.with_options(options)), workers, queue_steps)

    def operator(self, name):
        return OPERATORS[name]

    def put_array(self, array, dtype):
        array = tf.identity(array)
        return tf.cast(array, dtype) if array.dtype.is_floating else array

    def gather(self, data, order, batch_size):
        (order,) = self.put(order)
        for start in range(0, len(order), batch_size):
            yield tuple(tf.gather(each, order[start : start + batch_size]) for each in data)

    def sample(self, output, indices):
        if self.device != "cpu" and "CPU" in output.backing_device:
            raise MeasurementError("unsupported", "TensorFlow runs this operator on the CPU, not on the GPU")
        return super().sample(output, indices)

    def synchronize(self):
        tf.test.experimental.sync_devices()  # does nothing on Metal: there the read after it waits

    def reset_peak_memory(self):
        if self.device == "cuda":
            tf.config.experimental.reset_memory_stats("GPU:0")

    def peak_memory_bytes(self):
        if self.device != "cuda":  # Metal does not say
            return None
        return tf.config.experimental.get_memory_info("GPU:0")["peak"] - self.used_before


def refuse_cpu_work(function):
    """Return a tf.function that raises MeasurementError if its graph leaves EXPENSIVE operators to the CPU.

    TensorFlow does that if a device lacks a kernel. set_soft_device_placement(False) forbids it, but then no Keras
    model runs on Metal: https://developer.apple.com/forums/thread/759438
    """

    def checked(*batch):
        with eager.collect_graphs() as graphs:
            results = function(*batch)
        on_cpu = {node.op for graph in graphs for node in graph.node if "CPU" in node.device}
        if moved := sorted(name for name in on_cpu if name.startswith(EXPENSIVE)):
            raise MeasurementError("unsupported", f"TensorFlow would run {', '.join(moved)} on the CPU, not on the GPU")
        return results

    return checked


def resize_and_cut(image, size):
    """Prepare an image for inference as usual on ImageNet: short side 256 for 224 pixels, cut the middle, normalise."""
    short = size * 256 // 224
    sides = tf.cast(tf.shape(image)[:2], tf.float32)
    sides = tf.cast(sides * (short / tf.reduce_min(sides)), tf.int32)
    image = tf.image.resize(image, tf.maximum(sides, short), antialias=True)
    return normalise(tf.image.resize_with_crop_or_pad(image, size, size))


def cut_at_random(image, size):
    """Prepare an image for training as usual on ImageNet: cut 8 to 100 % of the area, mirror at random, normalise."""
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
