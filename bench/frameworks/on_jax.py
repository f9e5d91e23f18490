"""All of JAX is here; its models are in keras_networks.py. Every function is compiled, as JAX's users do."""

import functools
import os
import platform

os.environ["KERAS_BACKEND"] = "jax"  # not what ~/.keras/keras.json says
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes 75 % of a card's memory

import jax
import jax.numpy as jnp
import keras
import numpy as np

from bench.frameworks import Device, base, jpeg_stream, session
from bench.frameworks.keras_networks import (
    BUILDERS,
    KerasContext,
    build_optimizer,
    calibrate,
    count_parameters,
    refuse_unknown_model,
)
from bench.host.cpus import usable_cores
from bench.timing import check
from bench.timing.measure import MeasurementError


def find_device(settings):
    """Return the Device to run on, and set the number of threads, which XLA reads when it starts."""
    if settings.num_threads:
        os.environ["NPROC"] = str(settings.num_threads)
    device = choose_device(settings.use_gpu)
    kind = name_of(device)
    threads = int(os.environ.get("NPROC") or usable_cores())
    name = None if kind == "cpu" else device.device_kind
    return Device(kind, name, jax.__version__, threads, has_own_memory=kind == "cuda")


def choose_device(use_gpu):
    """Return JAX's device, a GPU if there is one and use_gpu allows it; the same at every call."""
    if use_gpu is False:
        jax.config.update("jax_platforms", "cpu")  # a GPU is then not even opened
        return jax.devices("cpu")[0]
    return jax.devices()[0]


def name_of(device):
    """Return "cpu", "cuda" (which JAX calls gpu) or, on a Mac, "mps"."""
    if device.platform != "cpu" and platform.system() == "Darwin":
        return "mps"
    return {"gpu": "cuda"}.get(device.platform, device.platform)


def open_session(workload, settings, phase, scope):
    """Return the session of a workload; raises SettingError or MeasurementError."""
    session.refuse_unknown_workload("jax", workload, BUILDERS, OPERATORS, LOSSES)
    if workload.name == "image":
        refuse_unknown_model(workload.model)
    return session.open_session(DeviceContext(settings), workload, settings, phase, scope)


@jax.jit
def convolve(images, kernels):
    return jax.lax.conv_general_dilated(images, kernels, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


# JAX allocates its outputs itself: `out` is not used.
OPERATORS = {
    "matmul": jnp.matmul,
    "conv1x1": convolve,
    "conv3x3": convolve,
    "copy": lambda x, out: jnp.copy(x),
    "add": lambda x, y, out: x + y,
    # Uncompiled, it would be two operators, which move more bytes than the single one of PyTorch.
    "triad": jax.jit(lambda x, y, out: 2.0 * x + y),
}


def cross_entropy(outputs, target):
    """Return the mean over items, or over all tokens of all items, of logits (..., classes) and classes (...)."""
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(outputs), target[..., None], -1))


def mean_squared_error(outputs, target):
    """Return the mean over all numbers."""
    return jnp.mean(jnp.square(outputs - target.astype(outputs.dtype)))


LOSSES = {"cross_entropy": cross_entropy, "mean_squared_error": mean_squared_error}  # of outputs in float32 or float64


class DeviceContext(KerasContext):
    """Where and how JAX computes."""

    def __init__(self, settings):
        self.place, self.cpu = choose_device(settings.use_gpu), jax.devices("cpu")[0]
        super().__init__(name_of(self.place), settings)
        self.compares_with_cpu, self.compares_compiled = True, False  # prove() compares what is compiled with the CPU
        jax.config.update("jax_default_device", self.place)
        jax.config.update("jax_enable_x64", self.precision == "float64")
        jax.config.update("jax_default_matmul_precision", "tensorfloat32" if self.precision == "tf32" else "highest")
        self.used_before, self.peak_before = self._read_memory()
        self.measured_precision = self._measure_precision()
        self.require_tf32()

    def build(self, workload, is_trained):
        keras_model = BUILDERS[workload.name](workload)
        self.prove(keras_model, workload, is_trained)
        return Model(self, keras_model, LOSSES[workload.loss] if is_trained else None)

    def prove(self, model, workload, is_trained):
        """Raise MeasurementError unless this is the right model, and it computes the right things for a pair of items.

        The reference is the model in float64 on the CPU: for inference operator by operator, for training compiled,
        because that is faster. The rounding error of float32 is computed only if the strictest limits are exceeded.
        """
        check.check_parameters(count_parameters(model), workload.parameters)
        pairs = workload.make_batches(2, self.seed)
        calibrate(model, self.put(*map(np.concatenate, zip(*map(workload.inputs_of, pairs), strict=True))), call)
        arguments = values_of(model), *self.put(*pairs[0])
        evaluate = evaluation(model, workload, is_trained)
        compiled = jax.jit(evaluate)
        got, again = (as_arrays(compiled(*arguments)) for _ in range(2))
        with jax.default_device(self.cpu), jax.enable_x64(True):
            evaluate_exactly = evaluation(build_exactly(workload), workload, is_trained)
            run = jax.jit(evaluate_exactly) if is_trained else evaluate_exactly
            exact = as_arrays(run(*as_float64(arguments)))
        try:
            self.compare(got, again, exact, rounded=exact)
        except MeasurementError:
            with jax.default_device(self.cpu):
                rounded = as_arrays(evaluate(*jax.device_put(arguments, self.cpu)))
            self.compare(got, again, exact, rounded)

    def read(self, values):
        # An array on a GPU keeps the first copy on the host, so that only the first read would take time.
        return super().read(values if self.device == "cpu" else jnp.copy(values))

    def open_stream(self, workload, settings, phase):
        return jpeg_stream.open_stream(workload, settings, phase)

    def operator(self, name):
        return OPERATORS[name]

    def put_array(self, array):
        # Without self.place, the default device: arrays that are bound to a device make XLA compile again.
        array = jax.device_put(array)
        return array.astype(self.dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array

    def gather(self, data, order, batch_size):
        for start in range(0, len(order), batch_size):
            yield take(data, order[start : start + batch_size])

    def sample(self, output, indices):
        if len(indices) == 4:
            indices = indices[0], indices[2], indices[3], indices[1]
        return np.asarray(output[tuple(indices)]).astype(np.float64)

    def synchronize(self):
        jax.block_until_ready(jax.live_arrays())  # a device computes in the order of submission

    def peak_memory_bytes(self):
        # JAX cannot reset its peak: a session that does not raise it, like a part of training, has an unknown one.
        _, peak = self._read_memory()
        return peak - self.used_before if peak > self.peak_before else None

    def _read_memory(self):
        """Return (bytes in use, the most bytes so far); zeros if the device does not report them, as a CPU."""
        stats = self.place.memory_stats() or {}
        return stats.get("bytes_in_use", 0), stats.get("peak_bytes_in_use", 0)

    def _measure_precision(self):
        errors = []
        for work, operands, exact in probes():
            got = work(*(jax.device_put(each).astype(self.compute_dtype) for each in operands))
            errors.append(check.relative_error(got, exact))
        return check.name_precision(*errors, is_float16=self.compute_dtype == "float16")


@functools.cache
def probes():
    """Return [(operator, operands, result in float64 on the CPU)] that show the precision."""
    (a, b), (x, w) = check.probe_inputs()
    works = (jnp.matmul, a, b), (convolve, x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0))
    with jax.default_device(jax.devices("cpu")[0]), jax.enable_x64(True):
        return [(work, operands, np.asarray(work(*as_float64(operands)))) for work, *operands in works]


@jax.jit
def take(data, rows):
    """Return these rows of each array, which it must have."""
    return tuple(jnp.take(each, rows, axis=0, mode="clip") for each in data)


def build_exactly(workload):
    """Build a model in float64, without weights: stateless calls bring their own."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        with keras.StatelessScope(initialize_variables=False):
            return BUILDERS[workload.name](workload)
    finally:
        keras.config.set_dtype_policy(policy)


def values_of(model):
    """Return a model's values: (trainable, all others), as call_stateless() takes them."""
    return tuple([v.value for v in each] for each in (model.trainable_variables, model.non_trainable_variables))


def call_stateless(model, weights, inputs, training):
    """Return (output, the other variables after the call) of a model that has these weights."""
    return model.stateless_call(*weights, inputs[0] if len(inputs) == 1 else list(inputs), training=training)


def call(model, inputs, training):
    """Call a model, compiled, and assign what that changes."""
    run = jax.jit(lambda weights, *inputs: call_stateless(model, weights, inputs, training)[1])
    for variable, value in zip(model.non_trainable_variables, run(values_of(model), *inputs), strict=True):
        variable.assign(value)


def inference(model):
    """Return the function (weights, *inputs) -> output."""
    return lambda weights, *inputs: call_stateless(model, weights, inputs, training=False)[0]


def mean_loss(loss_of, outputs, target):
    """Return the mean loss, in float32 or float64."""
    return loss_of(outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32)), target)


def evaluation(model, workload, is_trained):
    """Return the function (weights, *batch) -> [output, *gradients of the mean loss], without dropout.

    The gradients are scaled by LOSS_SCALE, because small ones would be zero in float16. Inference has none.
    """
    infer = inference(model)

    def scaled_loss(trained, others, *batch):
        outputs = infer((trained, others), *workload.inputs_of(batch))
        return base.LOSS_SCALE * mean_loss(LOSSES[workload.loss], outputs, batch[-1]), outputs

    def differentiate(weights, *batch):
        gradients, outputs = jax.grad(scaled_loss, has_aux=True)(*weights, *batch)
        return [outputs, *gradients]

    return differentiate if is_trained else lambda weights, *batch: [infer(weights, *workload.inputs_of(batch))]


def as_float64(tree):
    """Return copies on the default device: floats in float64, and integers as they are."""

    def convert(each):
        return jnp.asarray(np.asarray(each), jnp.float64 if jnp.issubdtype(each.dtype, jnp.floating) else None)

    return jax.tree.map(convert, tree)


def as_arrays(tree):
    """Return copies in float64 as NumPy arrays."""
    return jax.tree.map(lambda each: np.asarray(each).astype(np.float64), tree)


class Model(base.Model):
    """A Keras model with its optimizer; it is trained if it has a loss, one of LOSSES. The contract is in base.py.

    The weights are here and not in the Keras model: a step of training is a pure function, whose inputs are donated to
    its outputs. Every result of a compiled function is computed, whether it is read or not.
    """

    def __init__(self, context, keras_model, loss_of):
        self.context, self.keras_model = context, keras_model
        self.parameters = count_parameters(keras_model)
        self.traced = []  # an entry for each compilation
        self.optimizer = None
        if loss_of:
            self.optimizer = build_optimizer(context.optimizer, context.precision, keras_model.trainable_variables)
        self.read_variables()
        infer = inference(keras_model)
        self._infer = self._jit(lambda trained, others, *inputs: infer((trained, others), *inputs))
        if loss_of:
            self._compile_training(loss_of)

    def read_variables(self):
        """Take the values of the Keras model and of the optimizer."""
        self.trained, self.others = values_of(self.keras_model)
        self.slots = [variable.value for variable in self.optimizer.variables] if self.optimizer else []

    def _jit(self, function, **options):
        traced = self.traced

        def counted(*arguments):
            traced.append(1)
            return function(*arguments)

        return jax.jit(counted, **options)

    def _compile_training(self, loss_of):
        model, optimizer = self.keras_model, self.optimizer

        def losses(trained, others, slots, *batch):
            """Return (the loss scaled for the optimizer, (loss, the other variables))."""
            *inputs, target = batch
            outputs, others = call_stateless(model, (trained, others), inputs, training=True)
            loss = mean_loss(loss_of, outputs, target)
            with keras.StatelessScope(state_mapping=list(zip(optimizer.variables, slots, strict=True))):
                return optimizer.scale_loss(loss), (loss, others)

        def train(trained, others, slots, *batch):
            gradients, (loss, others) = jax.grad(losses, has_aux=True)(trained, others, slots, *batch)
            trained, slots = optimizer.stateless_apply(slots, gradients, trained)
            return trained, others, slots, loss

        def forward(trained, others, slots, *batch):
            scaled, pull_back, (loss, others) = jax.vjp(
                lambda trained: losses(trained, others, slots, *batch), trained, has_aux=True
            )
            return scaled, pull_back, others, loss

        self._train = self._jit(train, donate_argnums=(0, 1, 2))
        self._forward = self._jit(forward)
        self._backward = self._jit(lambda scaled, pull_back: pull_back(jnp.ones_like(scaled))[0])
        self._update = self._jit(optimizer.stateless_apply, donate_argnums=(0, 2))

    def infer(self, *inputs):
        return self._infer(self.trained, self.others, *inputs)

    def train(self, *batch):
        """Run all of it in one compiled function."""
        self.trained, self.others, self.slots, self.loss = self._train(self.trained, self.others, self.slots, *batch)

    # The parts: a compiled function each. What the backward pass needs is an output of the forward pass.

    def forward(self, *batch):
        self.pull_back = None  # frees what the last step kept
        self.scaled, self.pull_back, self.others, self.loss = self._forward(
            self.trained, self.others, self.slots, *batch
        )

    def backward(self):
        self.gradients, self.pull_back = self._backward(self.scaled, self.pull_back), None

    def update(self):
        self.trained, self.slots = self._update(self.slots, self.gradients, self.trained)

    @property
    def last_weight(self):
        return self.trained[-1]

    @property
    def last_gradient(self):
        return self.gradients[-1]

    def updates(self):
        if self.context.precision == "mixed_float16":
            return None
        place = [variable is self.optimizer.iterations for variable in self.optimizer.variables].index(True)
        return int(self.slots[place])

    def trace_count(self):
        return len(self.traced)
