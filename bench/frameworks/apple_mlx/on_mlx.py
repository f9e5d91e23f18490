"""MLX: devices, models, losses. Its networks and language models are in on_mlx_*.py.

MLX is lazy: an operator only adds to a graph, and mx.synchronize() waits for what was evaluated but evaluates nothing.
So every step here ends in mx.async_eval() of everything that it produced, and Model.updates() refuses a step of
training that leaves something unevaluated.
"""

import io
import os
import zlib
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn, optimizers
from mlx.utils import tree_flatten

from bench.frameworks import Device, base, session
from bench.frameworks.apple_mlx import on_mlx_llm, on_mlx_networks
from bench.frameworks.apple_mlx.on_mlx_networks import calibrate, leaves
from bench.timing import MeasurementError, proof
from bench.workloads.workload import LEARNING_RATES, RESNETS

BUILDERS = on_mlx_networks.BUILDERS | {"llm": on_mlx_llm.build_trainable}
OPTIMIZERS = {
    "sgd": optimizers.SGD,
    "adam": partial(optimizers.Adam, bias_correction=True),
    "adamw": partial(optimizers.AdamW, bias_correction=True),
}


def find_device(settings):
    """Return the Device to run on."""
    kind = choose_device(settings.use_gpu)
    name = None if kind == "cpu" else mx.device_info()["device_name"]
    # On a CPU the operators of a stream run one after the other in one thread; the BLAS of a Mac may use more.
    version = mx.__version__  # pyright: ignore[reportAttributeAccessIssue]  # not in MLX's stubs
    return Device(kind, name, version, num_threads=1)


def choose_device(use_gpu):
    """Return the name of the device, "cpu", "cuda" or "mps", and make it the default of all operators.

    mx.cuda.is_available() only says how MLX was built.
    """
    has_gpu = mx.device_count(mx.gpu) > 0
    kind = "cpu" if use_gpu is False or not has_gpu else "mps" if mx.metal.is_available() else "cuda"
    mx.set_default_device(mx.cpu if kind == "cpu" else mx.gpu)
    return kind


# The calls that users write. MLX allocates its outputs itself: `out` is not used.
OPERATORS = {
    "matmul": mx.matmul,
    "conv1x1": mx.conv2d,
    "conv3x3": partial(mx.conv2d, padding=1),
    "copy": lambda x, out: x + 0,  # MLX's own copies share their memory with the original
    "add": lambda x, y, out: x + y,
    "triad": mx.compile(lambda x, y, out: 2.0 * x + y),  # otherwise two operators, which move more bytes
}


def cross_entropy(outputs, target):
    """Return the mean over items, or over all tokens of all items, of logits (..., classes) and classes (...).

    GPUs have a fused kernel, which reads logits of 16 bits and computes in float32.
    """
    if mx.default_device() == mx.gpu:
        return mx.fast.cross_entropy(outputs, target).mean()
    return nn.losses.cross_entropy(outputs.astype(mx.float32), target, reduction="mean")


def as_numpy(array):
    """Return an MLX array in NumPy, which has no bfloat16."""
    return np.array(array.astype(mx.float32))


class DeviceContext(base.DeviceContext):
    """Where and how MLX computes."""

    builders = BUILDERS
    operators = OPERATORS

    @staticmethod
    def image_models():
        return list(RESNETS)

    as_array = staticmethod(as_numpy)
    synchronize = staticmethod(mx.synchronize)
    release = staticmethod(mx.clear_cache)
    has_float64_convolutions = False

    def __init__(self, settings):
        super().__init__(choose_device(settings.use_gpu), settings)
        # MLX reads it once: in a process with both precisions, the probe refuses the later one.
        os.environ["MLX_ENABLE_TF32"] = str(int(self.precision == "tf32"))
        mx.random.seed(self.seed)
        self.dtype = getattr(mx, "float32" if self.precision == "tf32" else self.precision)
        mx.clear_cache()
        self.used_before = mx.get_active_memory()

    def probe(self, name, left, right):
        left, right = self.put(left, right)
        if self.weight_bits:
            return on_mlx_llm.probe_quantised(left, right, self.weight_bits)
        output = left @ right if name == "matmul" else mx.conv2d(left, right).transpose(0, 3, 1, 2)
        return as_numpy(output), output.dtype == mx.float16

    def compiled(self, function, *state):
        """Return the function, compiled with COMPILE=1; `state`: trees of arrays that it reads or replaces as well."""
        if not self.compile:
            return function
        return mx.compile(self.counted(function), inputs=list(state), outputs=list(state))

    def build(self, workload, is_trained):
        module = BUILDERS[workload.name](workload)
        calibrate(module, self.put(*self.calibration_inputs(workload), dtype=mx.float32))
        module.set_dtype(self.dtype)
        mx.eval(module.eval().parameters())
        mx.clear_cache()
        return Model(self, module, workload, is_trained)

    def build_cached(self, workload):
        return on_mlx_llm.CachedModel(self, workload)

    def operator(self, name):
        def call(*operands):
            result = OPERATORS[name](*operands)
            mx.async_eval(result)
            return result

        return call

    def put(self, *arrays, dtype=None):
        """Return arrays of a batch in MLX: floats in this type, integers in MLX's own, images channels last."""
        arrays = [np.ascontiguousarray(each.transpose(0, 2, 3, 1) if each.ndim == 4 else each) for each in arrays]
        copies = tuple(mx.array(each, dtype or self.dtype if each.dtype.kind == "f" else mx.int32) for each in arrays)
        mx.eval(copies)
        return copies

    def put_operands(self, arrays):
        return self.put(*arrays)  # a kernel is output, height, width, input

    def sample(self, output, indices):
        if len(indices) == 4:
            indices = indices[0], indices[2], indices[3], indices[1]
        return as_numpy(output[tuple(map(mx.array, indices))]).astype(np.float64)

    def read(self, values):
        return mx.linalg.norm(values.astype(mx.float32)).item()

    def reset_peak_memory(self):
        mx.clear_cache()
        mx.reset_peak_memory()

    def peak_memory_bytes(self):
        return None if self.device == "cpu" else mx.get_peak_memory() - self.used_before


def matrices(tree):
    """Return the weights of layers, or their gradients, in order; in 16 bits norms stay at 1 in training."""
    named: Any = tree_flatten(tree)
    return [each for name, each in named if each.ndim > 1 and name.split(".")[0] not in on_mlx_networks.TABLES]


class Model(base.Model):
    """A module with its optimizer, if it is trained. The contract is in base.py."""

    def __init__(self, context, module, workload, is_trained):
        self.context = context
        self.workload = workload
        self.is_trained = is_trained
        self.module = module.train(is_trained)
        self.size = sum(each.size for each in leaves(module.parameters()))
        self._infer = context.compiled(module, module)
        if not is_trained:
            return
        name = context.optimizer
        self.optimizer = optimizer = OPTIMIZERS[name](LEARNING_RATES[name])
        optimizer.init(module.trainable_parameters())
        self.state = [module, optimizer.state, mx.random.state]  # everything that a step replaces
        differentiate = nn.value_and_grad(module, lambda *batch: cross_entropy(module(*batch[:-1]), batch[-1]))

        def train(*batch):
            loss, gradients = differentiate(*batch)
            optimizer.update(module, gradients)
            return loss

        self._train = context.compiled(train, *self.state)
        mx.eval(self.state)

    def infer(self, *inputs):
        outputs = self._infer(*inputs)
        mx.async_eval(outputs)
        return outputs

    def train(self, *batch):
        """Run all of it as one function."""
        self.loss = self._train(*batch)
        mx.async_eval(self.loss, self.state)

    @property
    def last_weight(self):
        return matrices(self.module.trainable_parameters())[-1]

    def trained_weights(self):
        return leaves(self.module.trainable_parameters())

    def updates(self):
        graph = io.StringIO()
        mx.export_to_dot(graph, *leaves(self.state))
        if pending := graph.getvalue().count("[label"):
            raise MeasurementError("work_skipped", f"after the last step {pending} operators are not evaluated")
        return int(self.optimizer.step)

    def infer_uncompiled(self, *inputs):
        return self.module(*inputs)

    def evaluate(self, batch, items, is_compiled=True):
        rows = mx.array(items)

        def loss_and_output(*batch):
            output = self.module(*batch[:-1])[rows]
            return base.LOSS_SCALE * cross_entropy(output, batch[-1][rows]), output

        self.module.eval()
        run = nn.value_and_grad(self.module, loss_and_output)
        (_, output), gradients = (self.context.compiled(run, self.module) if is_compiled else run)(*batch)
        parts = {proof.OUTPUT: as_numpy(output)} | self.name_gradients(gradients)
        self.module.train()
        return parts

    def name_gradients(self, gradients):
        """Return {part of the proof: array} of a tree of gradients."""
        layers = matrices(gradients)
        parts = {}
        for name, each in tree_flatten(gradients):
            part = f"{proof.ADAPTER} {name}" if "lora_" in name else f"gradient of {name}"
            if each is layers[0] and not self.workload.make_checked:
                part = proof.FIRST
            part = proof.LAST if each is layers[-1] else part
            parts[part] = as_numpy(each if proof.is_whole(part) else proof.sample(each, proof.SAMPLED))
        return parts

    def build_reference(self, pair, precision):
        dtype = getattr(mx, precision)

        def evaluate(spread):
            with on_mlx_llm.on_cpu(self.module, precision, spread):
                batch = self.context.put(*pair, dtype=dtype)
                if self.is_trained:
                    return self.evaluate(batch, list(range(len(pair[0]))), is_compiled=False)
                return {proof.OUTPUT: as_numpy(self.module(*self.workload.inputs_of(batch)))}

        return evaluate, pair

    def damp(self, factor):
        for block in self.module.modules():
            if isinstance(block, on_mlx_networks.Block):
                norm = block[f"bn{block.count}"]
                norm.weight = factor * norm.weight

    def marks(self):
        marks = {}
        layers = self.module.modules()
        norms = [each for each in layers if isinstance(each, nn.BatchNorm)]
        if norms and self.context.dtype == mx.float32:  # 16 bits lose small steps
            marks["statistics of BatchNorm"] = zlib.crc32(as_numpy(norms[-1].running_mean).tobytes())
        if any(isinstance(each, nn.Dropout) and each._p_1 < 1 for each in layers):
            marks["random numbers of dropout"] = zlib.crc32(np.array(mx.random.state[0]).tobytes())
        return marks

    def free_optimizer(self):
        self.optimizer = self._train = self.state = None

    def predict(self, *inputs):
        outputs = as_numpy(self.module.eval()(*inputs))
        self.module.train()
        return outputs


open_session = partial(session.open_session, DeviceContext)
