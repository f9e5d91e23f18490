"""MLX: devices, models, losses, checks. Its networks and language models are in on_mlx_*.py.

MLX is lazy: an operator only adds to a graph, and mx.synchronize() waits for what was evaluated but evaluates nothing.
So every step here ends in mx.async_eval() of everything that it produced, and Model.updates() refuses a step of
training that leaves something unevaluated.
"""

import functools
import io
import os
import sys

import mlx.core as mx
import numpy as np
from mlx import nn, optimizers
from mlx.utils import tree_flatten, tree_map

from bench.frameworks import Device, base, jpeg_stream, on_mlx_llm, on_mlx_networks, session
from bench.frameworks.on_mlx_networks import calibrate, convolve, count_parameters, leaves
from bench.frameworks.on_mlx_networks import refuse_unknown_model as refuse_unknown_model
from bench.timing import check
from bench.timing.measure import MeasurementError
from bench.workloads.workload import LEARNING_RATES

BUILDERS = on_mlx_networks.BUILDERS | {"llm": on_mlx_llm.Trainable}
OPTIMIZERS = {
    "sgd": optimizers.SGD,
    "adam": functools.partial(optimizers.Adam, bias_correction=True),
    "adamw": functools.partial(optimizers.AdamW, bias_correction=True),
}
TF32_VARIABLE = "MLX_ENABLE_TF32"


def find_device(settings):
    """Return the Device to run on."""
    kind = choose_device(settings.use_gpu)
    name = None if kind == "cpu" else mx.device_info()["device_name"]
    # On a CPU the operators of a stream run one after the other in one thread; the BLAS of a Mac may use more.
    return Device(kind, name, mx.__version__, num_threads=1, has_own_memory=kind == "cuda")


def choose_device(use_gpu):
    """Return the name of the device, "cpu", "cuda" or "mps", and make it the default of all operators."""
    found = "mps" if mx.metal.is_available() else "cuda" if mx.cuda.is_available() else "cpu"
    kind = "cpu" if use_gpu is False else found
    mx.set_default_device(mx.cpu if kind == "cpu" else mx.gpu)
    return kind


def open_session(workload, settings, phase, scope):
    """Return the session of a workload; raises SettingError or MeasurementError."""
    session.refuse_unknown_workload("mlx", workload, BUILDERS, OPERATORS, LOSSES)
    if workload.name == "image":
        refuse_unknown_model(workload.model)
    return session.open_session(DeviceContext(settings), workload, settings, phase, scope)


def evaluated(function):
    """Return the function with its result evaluated in the background."""

    def call(*operands):
        result = function(*operands)
        mx.async_eval(result)
        return result

    return call


# The calls that users write. MLX allocates its outputs itself: `out` is not used.
OPERATORS = {
    "matmul": mx.matmul,
    "conv1x1": mx.conv2d,
    "conv3x3": functools.partial(mx.conv2d, padding=1),
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
    return nn.losses.cross_entropy(widen(outputs), target, reduction="mean")


def mean_squared_error(outputs, target):
    """Return the mean over all numbers, in float32 or float64: 16 bits would lose small squares."""
    outputs = widen(outputs)
    return nn.losses.mse_loss(outputs, target.astype(outputs.dtype))


def widen(outputs):
    return outputs if outputs.dtype == mx.float64 else outputs.astype(mx.float32)


LOSSES = {"cross_entropy": cross_entropy, "mean_squared_error": mean_squared_error}


def as_mlx(array, dtype):
    """Return a NumPy array in MLX: floats in this type, integers in MLX's own, int32."""
    is_float = array.dtype.kind == "f"
    array = mx.array(np.ascontiguousarray(array), dtype=dtype if is_float else mx.int32)
    mx.eval(array)
    return array


def as_numpy(array):
    """Return an MLX array in NumPy, which has no bfloat16."""
    return np.array(widen(array))


class DeviceContext(base.DeviceContext):
    """Where and how MLX computes."""

    def __init__(self, settings):
        super().__init__(choose_device(settings.use_gpu), settings)
        if self.device == "cpu" and sys.platform == "linux":
            self.notes.append("MLX's build for Linux CPUs is for tests: it reaches a few GFLOP/s")
        enable_tf32(self.device, self.precision)
        mx.random.seed(self.seed)
        self.dtype = getattr(mx, "float32" if self.precision == "tf32" else self.precision)
        self.traces = 0
        mx.clear_cache()
        self.used_before = mx.get_active_memory()
        self.measured_precision = measure_precision(self.device, self.precision)
        self.require_tf32()

    def compiled(self, function, *state):
        """Return the function, compiled with COMPILE=1.

        Args:
            state: trees of arrays that the function reads or replaces, beside its arguments.
        """
        if not self.compile:
            return function

        def counted(*arguments):  # Python runs it once for each compilation
            self.traces += 1
            return function(*arguments)

        return mx.compile(counted, inputs=list(state), outputs=list(state))

    def build(self, workload, is_trained):
        module = BUILDERS[workload.name](workload.part or workload)
        mx.eval(module.parameters())
        loss_of = LOSSES[workload.loss] if is_trained else None
        self.prove(module, workload.part or workload, is_trained)
        if workload.part:
            self.check_tokens(module, loss_of, workload.part)
            on_mlx_llm.raise_wired_limit(self)
            module = on_mlx_llm.Trainable(workload, self.dtype)
            check.check_parameters(count_parameters(module), workload.parameters)
            mx.eval(module.parameters())
            self.check_tokens(module, loss_of, workload.part)
        return Model(self, module, loss_of)

    def evaluate(self, module, loss_of, ids, target):
        logits = module(ids)
        return as_numpy(logits), loss_of(logits, target).item()

    def build_cached(self, workload):
        return on_mlx_llm.CachedModel(self, workload)

    def prove(self, module, workload, is_trained):
        """Raise MeasurementError unless this is the right model, and computes the right output and gradients.

        The module is in evaluation mode, and afterwards in this precision. With COMPILE=1 the compiled output and
        gradients are compared.
        """
        check.check_parameters(count_parameters(module), workload.parameters)
        pairs = workload.make_batches(2, self.seed)
        size = sum(each.size for each in leaves(module.parameters()))
        # Weights, gradients and their copies in float64.
        with_gradients = is_trained and self.has_memory_for_gradients(32 * size)
        exact = rounded = None
        with mx.stream(mx.cpu):
            both = [np.concatenate(each) for each in zip(*map(workload.inputs_of, pairs), strict=True)]
            calibrate(module, self.put_as(mx.float32, *both))
            module.eval()
            weights = module.parameters()
            if with_gradients or self.compares_with_cpu:
                rounded, exact = (
                    evaluate(cast(module, weights, dtype), workload, self.put_as(dtype, *pairs[0]), with_gradients)
                    for dtype in (mx.float32, mx.float64)
                )
        cast(module, weights, self.dtype)
        pair = self.put(*pairs[0])
        got, again = (evaluate(module, workload, pair, with_gradients, self.compiled) for _ in range(2))
        self.compare(got, again, exact, rounded)
        if self.compares_compiled:
            check.check_compiled(got[0], as_numpy(module(*workload.inputs_of(pair))))
        mx.clear_cache()

    def open_stream(self, workload, settings, phase):
        return jpeg_stream.open_stream(workload, settings, phase)

    def operator(self, name):
        return evaluated(OPERATORS[name])

    def put(self, *arrays):
        return self.put_as(self.dtype, *arrays)

    def put_as(self, dtype, *arrays):
        """Return arrays of a batch in MLX, floats in this type and images channels last."""
        return tuple(as_mlx(each.transpose(0, 2, 3, 1) if each.ndim == 4 else each, dtype) for each in arrays)

    def put_operands(self, arrays):
        return self.put(*arrays)  # a kernel is output, height, width, input

    def gather(self, data, order, batch_size):
        order = as_mlx(order, None)
        for start in range(0, len(order), batch_size):
            yield tuple(each[order[start : start + batch_size]] for each in data)

    def sample(self, output, indices):
        if len(indices) == 4:
            indices = indices[0], indices[2], indices[3], indices[1]
        return as_numpy(output[tuple(map(mx.array, indices))]).astype(np.float64)

    def as_array(self, values):
        return np.array(values.astype(mx.float32))

    def read(self, values):
        return mx.linalg.norm(values.astype(mx.float32)).item()

    def synchronize(self):
        mx.synchronize()

    def reset_peak_memory(self):
        mx.clear_cache()
        mx.reset_peak_memory()

    def peak_memory_bytes(self):
        return None if self.device == "cpu" else mx.get_peak_memory() - self.used_before

    def release(self):
        mx.clear_cache()


def enable_tf32(device, precision):
    """Switch TF32 on or off; raises MeasurementError if this process has already computed with the other choice."""
    wanted = str(int(precision == "tf32"))
    is_late = _chosen_tf32.setdefault(TF32_VARIABLE, wanted) != wanted
    if is_late and device != "cpu" and precision in ("float32", "tf32"):
        raise MeasurementError(
            "unsupported", f"MLX reads {TF32_VARIABLE} once in a process: measure PRECISION={precision} by itself"
        )
    os.environ[TF32_VARIABLE] = wanted


_chosen_tf32 = {}


@functools.cache
def measure_precision(device, precision):
    """Return the precision in which a device really computes, as check.name_precision() names it."""
    dtype, errors = getattr(mx, "float32" if precision == "tf32" else precision), []
    (a, b), (x, w) = check.probe_inputs()
    convolution = mx.conv2d, convolve, x.transpose(0, 2, 3, 1), w.transpose(0, 2, 3, 1)
    for work, exact_work, *pair in (mx.matmul, mx.matmul, a, b), convolution:
        got = work(*(as_mlx(each, dtype) for each in pair))
        with mx.stream(mx.cpu):
            expected = as_numpy(exact_work(*(as_mlx(each, mx.float64) for each in pair)))
        errors.append(check.relative_error(as_numpy(got), expected))
    return check.name_precision(*errors, is_float16=precision == "float16")


def cast(module, weights, dtype):
    """Return the module with these weights in this type."""
    module.update(tree_map(lambda each: each.astype(dtype), weights))
    mx.eval(module.parameters())
    return module


def evaluate(module, workload, batch, with_gradients, compiled=lambda function, *state: function):
    """Return [output, *gradients of the mean loss] of a batch as NumPy arrays, or only the output.

    The gradients are scaled by LOSS_SCALE: small ones would be zero in float16.
    """

    def scaled_loss(*batch):
        outputs = module(*workload.inputs_of(batch))
        return base.LOSS_SCALE * LOSSES[workload.loss](outputs, batch[-1]), outputs

    if not with_gradients:
        return [as_numpy(compiled(module, module)(*workload.inputs_of(batch)))]
    (_, outputs), gradients = compiled(nn.value_and_grad(module, scaled_loss), module)(*batch)
    mx.eval(outputs, gradients, module.parameters())
    return [as_numpy(each) for each in (outputs, *leaves(gradients))]


class Model(base.Model):
    """A module with its optimizer; it is trained if it has a loss, one of LOSSES. The contract is in base.py."""

    def __init__(self, context, module, loss_of):
        self.context, self.module = context, module.train(bool(loss_of))
        self.parameters, self.traces_before = count_parameters(module), context.traces
        self._infer = context.compiled(module, module)
        self.is_llm = isinstance(module, on_mlx_llm.Trainable)
        self._frozen = self._sum_frozen()
        if loss_of:
            self._open_optimizer(loss_of)

    def _open_optimizer(self, loss_of):
        module, name, random = self.module, self.context.optimizer, mx.random.state
        self.optimizer = optimizer = OPTIMIZERS[name](LEARNING_RATES[name])
        optimizer.init(module.trainable_parameters())
        self.state = [module, optimizer.state, random]  # everything that a step replaces
        differentiate = nn.value_and_grad(module, lambda *batch: loss_of(module(*batch[:-1]), batch[-1]))

        def train(*batch):
            loss, gradients = differentiate(*batch)
            optimizer.update(module, gradients)
            return loss

        def update(gradients):
            optimizer.update(module, gradients)
            return optimizer.step

        self._train = self.context.compiled(train, *self.state)
        self._differentiate = self.context.compiled(differentiate, module, random)
        self._update = self.context.compiled(update, module, optimizer.state)
        mx.eval(self.state)

    def infer(self, *inputs):
        outputs = self._infer(*inputs)
        mx.async_eval(outputs)
        return outputs

    def train(self, *batch):
        """Run all of it as one function."""
        self.loss = self._train(*batch)
        mx.async_eval(self.loss, self.state)

    # The parts share one graph, which MLX evaluates as far as it is asked to: first the loss, then the gradients. What
    # the gradients need of the forward pass is kept, because their graph refers to it.

    def forward(self, *batch):
        self.loss = self.gradients = None  # frees what the last step kept
        self.loss, self.gradients = self._differentiate(*batch)
        mx.async_eval(self.loss, self.state)

    def backward(self):
        mx.async_eval(self.gradients)

    def update(self):
        self._update(self.gradients)
        mx.async_eval(self.state)

    def _last(self, tree):
        """Return the last weight or gradient; of a language model a matrix: in 16 bits its norms stay at 1."""
        return [each for each in leaves(tree) if each.ndim > 1 or not self.is_llm][-1]

    @property
    def last_weight(self):
        return self._last(self.module.trainable_parameters())

    @property
    def last_gradient(self):
        # No counter proves that a part ran, so its read waits for all gradients: microseconds if they are done.
        mx.eval(self.gradients)
        return self._last(self.gradients)

    def updates(self):
        graph = io.StringIO()
        mx.export_to_dot(graph, *leaves(self.state))
        if pending := graph.getvalue().count("[label"):
            raise MeasurementError("work_skipped", f"after the last step {pending} operators are not evaluated")
        return int(self.optimizer.step)

    def predict(self, *inputs):
        outputs = as_numpy(self.module.eval()(*inputs))
        self.module.train()
        return outputs

    def _sum_frozen(self):
        """Return the sum of the bits of each frozen weight, as integers: any change of one number changes its sum."""
        if not self.is_llm:  # BatchNorm's statistics are frozen in MLX's words, and training changes them
            return []
        trained = dict(tree_flatten(self.module.trainable_parameters()))
        weights = [each for name, each in tree_flatten(self.module.parameters()) if name not in trained]
        integers = {2: mx.uint16, 4: mx.uint32}
        return [each.view(integers[each.dtype.size]).sum().item() for each in weights]

    def check_frozen(self):
        check.require(self._frozen == self._sum_frozen(), "training changed a frozen weight")

    def trace_count(self):
        return self.context.traces - self.traces_before
