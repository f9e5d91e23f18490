"""All of JAX is here; its models are in keras_networks.py. Every timed function is compiled, as JAX's users do."""

import os
from functools import partial

os.environ["KERAS_BACKEND"] = "jax"  # not what ~/.keras/keras.json says
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes 75 % of a card's memory

import jax
import jax.extend
import jax.numpy as jnp
import keras

from bench.frameworks import Device, base, session
from bench.frameworks.keras_jax_tf import keras_networks
from bench.frameworks.keras_jax_tf.keras_networks import KerasContext, KerasModel
from bench.host import environment
from bench.host.resources import usable_cores
from bench.process import TAKEN
from bench.settings import SettingError


def find_device(settings):
    """Return the Device to run on, and set the number of threads, which XLA reads when it starts."""
    if settings.num_threads or not os.environ.get("NPROC", "").isdecimal():
        os.environ["NPROC"] = str(settings.num_threads or usable_cores())
    about = jax.__version__, int(os.environ["NPROC"])
    try:
        device = choose_device(settings.use_gpu)
    except RuntimeError:  # the session fails with the reason, in the file of that card
        return Device("cuda", getattr(environment.find_card(), "name", None), *about)
    if device.platform == "cpu":
        return Device("cpu", None, *about)
    memory = (device.memory_stats() or {}).get("bytes_limit")  # by default 75 % of a card's
    kind = device.platform.replace("gpu", "cuda")
    return Device(kind, device.device_kind, *about, memory_bytes=memory, why_not_compiled="")


def choose_device(use_gpu):
    """Return JAX's device, a GPU if there is one and use_gpu allows it; the same at every call.

    Raises SettingError if what was asked for is not there, RuntimeError if another process has the card or its memory.
    """
    if use_gpu is not False:
        try:
            return jax.devices()[0]
        except (AssertionError, RuntimeError) as error:
            if TAKEN in str(error) or "out of memory" in str(error).lower():
                jax.extend.backend.clear_backends()  # or the next call would return the CPU
                raise
            if platforms := os.environ.get("JAX_PLATFORMS"):
                raise SettingError(f"JAX finds no device of JAX_PLATFORMS={platforms!r}: unset it") from None
            if use_gpu:
                words = f"USE_GPU=1, but JAX cannot open the GPU: {str(error).splitlines()[0]}: unset USE_GPU"
                raise SettingError(words) from None
    jax.config.update("jax_platforms", "cpu")  # a GPU is then not even opened
    return jax.devices("cpu")[0]


LAYOUT = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
convolve = jax.jit(partial(jax.lax.conv_general_dilated, window_strides=(1, 1), padding="SAME", **LAYOUT))
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


class Model(KerasModel):
    """A Keras model with its optimizer, if it is trained. The contract is in base.py.

    The weights are here and not in the Keras model: a step of training is a pure function, whose inputs are donated to
    its outputs. Every result of a compiled function is computed, whether it is read or not.
    """

    def __init__(self, context, keras_model, workload, is_trained):
        super().__init__(context, keras_model, workload, is_trained)
        self._infer = self._jit(lambda *state: keras_model.stateless_call(*state, training=False)[0])
        weights = keras_model.trainable_variables
        self.optimizer = optimizer = keras_networks.build_optimizer(context, weights) if is_trained else None
        self.trained = [each.value for each in weights]
        self.others = [each.value for each in keras_model.non_trainable_variables]
        self.slots = [variable.value for variable in optimizer.variables] if optimizer else []
        if not is_trained:
            return

        def losses(trained, others, slots, *batch):
            """Return (the loss scaled for the optimizer, (loss, the other variables))."""
            *inputs, target = batch
            outputs, others = keras_model.stateless_call(trained, others, inputs, training=True)
            loss = keras_networks.cross_entropy(outputs, target)
            with keras.StatelessScope(state_mapping=list(zip(optimizer.variables, slots, strict=True))):
                return optimizer.scale_loss(loss), (loss, others)

        def train(trained, others, slots, *batch):
            gradients, (loss, others) = jax.grad(losses, has_aux=True)(trained, others, slots, *batch)
            trained, slots = optimizer.stateless_apply(slots, gradients, trained)
            return trained, others, slots, loss

        self._train = self._jit(train, donate_argnums=(0, 1, 2))

    def write_variables(self):
        variables = self.keras_model.trainable_variables + self.keras_model.non_trainable_variables
        for variable, value in zip(variables, self.trained + self.others, strict=True):
            variable.assign(value)

    def _jit(self, function, **options):
        return jax.jit(self.context.counted(function), **options)

    def infer(self, *inputs):
        return self._infer(self.trained, self.others, list(inputs))

    def train(self, *batch):
        self.trained, self.others, self.slots, self.loss = self._train(self.trained, self.others, self.slots, *batch)
        return self.trained[-1]

    def gradients(self, *batch):
        def scaled_loss(trained, others, *batch):
            *inputs, target = batch
            outputs, _ = self.keras_model.stateless_call(trained, others, inputs, training=False)
            return base.LOSS_SCALE * keras_networks.cross_entropy(outputs, target), outputs

        run = jax.grad(scaled_loss, has_aux=True)
        run = self._jit(run) if self.optimizer else run  # the reference runs op by op
        with keras.device(self.context.place):
            gradients, outputs = run(self.trained, self.others, *batch)
        return self.context.to_numpy(outputs), [float(jnp.linalg.norm(each.astype(jnp.float32))) for each in gradients]

    def trained_weights(self):
        return dict(zip((each.path for each in self.keras_model.trainable_variables), self.trained, strict=True))


class DeviceContext(KerasContext):
    """Where and how JAX computes."""

    operators = OPERATORS
    model_class = Model
    take = staticmethod(jax.jit(partial(jnp.take, axis=0, mode="clip")))  # unchecked

    def __init__(self, settings):
        self.place = choose_device(settings.use_gpu)
        super().__init__(self.place.platform.replace("gpu", "cuda"), settings)
        jax.config.update("jax_default_device", self.place)
        jax.config.update("jax_default_matmul_precision", "tensorfloat32" if self.precision == "tf32" else "highest")

    def synchronize(self):
        jax.block_until_ready(jax.live_arrays())  # a device computes in the order of submission


open_session = partial(session.open_session, DeviceContext)
