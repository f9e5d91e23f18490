"""All of TensorFlow is here; its models are in keras_networks.py. CUDA and Metal share one path."""

import ctypes
import os
import platform
import re
from contextlib import suppress
from functools import partial

os.environ["KERAS_BACKEND"] = "tensorflow"  # not what ~/.keras/keras.json says
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf
from tensorflow.python.client import device_lib  # nothing public says how much memory a card has
from tensorflow.python.eager import context as eager  # nothing public says where an operator of a graph runs

from bench.frameworks import Device, base, session
from bench.frameworks.keras_jax_tf import keras_networks
from bench.frameworks.keras_jax_tf.keras_networks import KerasContext, KerasModel
from bench.host.resources import USABLE_CPUS, usable_cores
from bench.settings import SettingError
from bench.timing import MeasurementError

# The starts of the names of operators that make up a step's time. Metal lacks kernels for small ones around them.
EXPENSIVE = ("MatMul", "BatchMatMul", "_FusedMatMul", "Einsum", "Conv", "_FusedConv", "Depthwise", "FusedBatchNorm")


def find_device(settings):
    """Return the Device to run on, and set the number of threads, which TensorFlow allows only before it computes."""
    threads = settings.num_threads or usable_cores()
    if threads != len(USABLE_CPUS):  # TensorFlow's own number
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    kind = choose_device(settings.use_gpu)
    if kind != "cuda":  # Metal's plug-in calls every chip METAL
        return Device(kind, None, tf.__version__, threads)
    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
    name = details.get("device_name")
    note = explain_new_card(details.get("compute_capability"))
    memory = None
    with suppress(Exception):  # another process may have the card: the session says so
        devices = device_lib.list_local_devices(tf.compat.v1.ConfigProto(gpu_options={"allow_growth": True}))
        memory = next(each.memory_limit for each in devices if each.device_type == "GPU")
    return Device(kind, name, tf.__version__, threads, memory_bytes=memory, note=note, why_not_compiled="")


def explain_new_card(capability):
    """Return a clause if a card's kernels are compiled from PTX, which no log shows; SettingError if that fails."""
    build = tf.sysconfig.get_build_info()
    built = build.get("cuda_compute_capabilities", [])  # "sm_89"; "compute_90" is PTX
    own = [each for each in built if capability and re.search(rf"_{capability[0]}\d\D?$", each)]
    if not (capability and built) or any(each.startswith("sm") for each in own):
        return ""
    needed = [int(part) for part in str(build.get("cuda_version", "0.0")).split(".")[:2]]
    if (capability[0] >= 10 and not own) or read_driver_cuda() < needed:
        words = f"TensorFlow {tf.__version__} has no kernels for this card and driver: set FRAMEWORK=torch or jax"
        raise SettingError(words)
    return f"TensorFlow first compiles kernels for compute capability {capability[0]}.x, which may take half an hour"


def read_driver_cuda():
    """Return [major, minor] of the CUDA version that the driver knows, or NVIDIA's compatibility package for it."""
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return [version.value // 1000, version.value % 1000 // 10]


def choose_device(use_gpu):
    """Return the name of the device: "cpu", "cuda" or, on a Mac, "mps"; the same at every call."""
    gpus = tf.config.list_physical_devices("GPU")
    if use_gpu is False or not gpus:
        tf.config.set_visible_devices([], "GPU")
        return "cpu"
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    return "mps" if platform.system() == "Darwin" else "cuda"


convolve = partial(tf.nn.conv2d, strides=1, padding="SAME")
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


class Model(KerasModel):
    """A Keras model with its optimizer, if it is trained. The contract is in base.py."""

    def __init__(self, context, keras_model, workload, is_trained):
        super().__init__(context, keras_model, workload, is_trained)
        self.weights = keras_model.trainable_variables
        self.infer = context.function(lambda *inputs: keras_model(list(inputs), training=False))
        self.is_trained = is_trained
        if is_trained:
            self.optimizer = keras_networks.build_optimizer(context, self.weights)
            self.train_step = context.function(self._train)

    def gradients(self, *batch):
        # On the device as it is measured: Metal's wrong results come from operators that a graph fuses.
        run = self.context.function(self._differentiate) if self.is_trained else self._differentiate
        with keras.device(self.context.place):
            outputs, *norms = run(*batch)
        return self.context.to_numpy(outputs), [float(each) for each in norms]

    def _differentiate(self, *batch):
        """Return the output, and the norm of each trained tensor's gradient."""
        *inputs, target = batch
        with tf.GradientTape() as tape:
            outputs = self.keras_model(inputs, training=False)
            loss = base.LOSS_SCALE * keras_networks.cross_entropy(outputs, target)
        gradients = tape.gradient(
            loss, [each.value for each in self.weights], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        # That of an embedding has only some rows.
        return [outputs, *(tf.norm(tf.cast(tf.convert_to_tensor(each), tf.float32)) for each in gradients)]

    def _train(self, *batch):
        *inputs, target = batch
        with tf.GradientTape() as tape:
            loss = keras_networks.cross_entropy(self.keras_model(inputs, training=True), target)
            scaled = self.optimizer.scale_loss(loss)
        self.optimizer.apply(tape.gradient(scaled, [each.value for each in self.weights]), self.weights)
        return loss

    def train(self, *batch):
        self.loss = self.train_step(*batch)
        return self.weights[-1]

    def trained_weights(self):
        return {weight.path: weight.value for weight in self.weights}


class DeviceContext(KerasContext):
    """Where and how TensorFlow computes."""

    operators = OPERATORS
    model_class = Model
    take = staticmethod(tf.gather)
    synchronize = staticmethod(tf.test.experimental.sync_devices)  # on Metal the read after it waits

    def __init__(self, settings):
        super().__init__(choose_device(settings.use_gpu), settings)
        if self.compile and self.device == "mps":
            raise MeasurementError("unsupported", "COMPILE=1 is XLA, which the Metal plug-in does not have")
        self.place = "CPU:0" if self.device == "cpu" else "GPU:0"
        tf.config.experimental.enable_tensor_float_32_execution(self.precision == "tf32")
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision": False})

    def function(self, python_function):
        """Return a graph of a function on this device; compiled by XLA with COMPILE=1."""

        def placed(*arguments):
            with keras.device(self.place):  # a graph ignores the scope that it is called in
                return python_function(*arguments)

        graph = tf.function(self.counted(placed), jit_compile=bool(self.compile))
        return graph if self.device == "cpu" else check_placement(graph)

    def read(self, values):
        if self.device != "cpu" and values.ndim and "CPU" in getattr(values, "backing_device", ""):
            raise MeasurementError("unsupported", "TensorFlow runs this operator on the CPU, not on the GPU")
        return super().read(values)

    def reset_peak_memory(self):
        if self.device == "cuda":
            tf.config.experimental.reset_memory_stats("GPU:0")

    def peak_memory_bytes(self):
        if self.device != "cuda":  # Metal does not say
            return None
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]


def check_placement(graph):
    """Return a tf.function whose first call raises MeasurementError if it leaves EXPENSIVE operators to the CPU.

    TensorFlow does that if a device lacks a kernel. set_soft_device_placement(False) forbids it, but then no Keras
    model runs on Metal: https://developer.apple.com/forums/thread/759438
    """

    def check_first(*batch):
        nonlocal call
        with eager.collect_graphs() as graphs:  # only after a call TensorFlow tells where its operators are
            results = graph(*batch)
        on_cpu = {node.op for graph in graphs for node in graph.node if "CPU" in node.device}
        if moved := sorted(name for name in on_cpu if name.startswith(EXPENSIVE)):
            raise MeasurementError("unsupported", f"TensorFlow would run {', '.join(moved)} on the CPU, not on the GPU")
        call = graph
        return results

    call = check_first
    return lambda *batch: call(*batch)


open_session = partial(session.open_session, DeviceContext)
