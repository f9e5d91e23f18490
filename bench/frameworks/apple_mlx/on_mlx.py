"""MLX: devices, models, losses. Its networks and language models are in on_mlx_*.py.

MLX is lazy: an operator only adds to a graph, and mx.synchronize() waits for what was evaluated but evaluates nothing.
So every step here ends in mx.async_eval() of everything that it produced.
"""

import os
from functools import partial

import mlx.core as mx
import numpy as np
from mlx import nn, optimizers
from mlx.utils import tree_flatten, tree_map

from bench.frameworks import Device, base, session
from bench.frameworks.apple_mlx import on_mlx_llm, on_mlx_networks
from bench.frameworks.apple_mlx.on_mlx_networks import calibrate
from bench.settings import TRAINING
from bench.workloads.workload import LEARNING_RATES

BUILDERS = on_mlx_networks.BUILDERS | {"llm": on_mlx_llm.build_llm}
OPTIMIZERS = {
    "sgd": optimizers.SGD,
    "adam": partial(optimizers.Adam, bias_correction=True),
    "adamw": partial(optimizers.AdamW, bias_correction=True),
}


def find_device(settings):
    """Return the Device to run on."""
    kind = choose_device(settings.use_gpu)
    about = mx.device_info() if kind != "cpu" else {}
    # On a CPU the operators of a stream run one after the other in one thread; the BLAS of a Mac may use more.
    version = mx.__version__  # pyright: ignore[reportAttributeAccessIssue]  # not in MLX's stubs
    memory = about.get("total_memory")  # only CUDA tells it
    return Device(kind, about.get("device_name"), version, num_threads=1, memory_bytes=memory)


def choose_device(use_gpu):
    """Return the name of the device, "cpu", "cuda" or "mps", and make it that of all operators."""
    has_gpu = mx.device_count(mx.gpu) > 0  # mx.cuda.is_available() only says how MLX was built
    kind = "cpu" if use_gpu is False or not has_gpu else "mps" if mx.metal.is_available() else "cuda"
    mx.set_default_device(mx.cpu if kind == "cpu" else mx.gpu)
    return kind


def evaluated(function):
    """Return an operator that evaluates its output."""

    def call(*operands):
        output = function(*operands)
        mx.async_eval(output)
        return output

    return call


# The calls that users write. MLX allocates its outputs itself: `out` is not used.
OPERATORS = {
    "matmul": mx.matmul,
    "conv1x1": mx.conv2d,
    "conv3x3": partial(mx.conv2d, padding=1),
    "copy": lambda x, out: x + 0,  # MLX's own copies share their memory with the original
    "add": lambda x, y, out: x + y,
    "triad": mx.compile(lambda x, y, out: 2.0 * x + y),  # otherwise two operators, which move more bytes
}
OPERATORS = {name: evaluated(function) for name, function in OPERATORS.items()}


def cross_entropy(outputs, target):
    """Return the mean over items, or over all tokens of all items, of logits (..., classes) and classes (...).

    GPUs have a fused kernel, which reads logits of 16 bits and computes in float32.
    """
    if mx.default_device() == mx.gpu:
        return mx.fast.cross_entropy(outputs, target).mean()
    return nn.losses.cross_entropy(outputs.astype(mx.float32), target, reduction="mean")


def to_numpy(array):
    """Return an MLX array in NumPy, which has no bfloat16; images with channels first."""
    array = np.array(array.astype(mx.float32) if array.dtype == mx.bfloat16 else array)
    array = array.astype(np.float32) if array.dtype == np.float16 else array
    return array.transpose(0, 3, 1, 2) if array.ndim == 4 else array


class DeviceContext(base.DeviceContext):
    """Where and how MLX computes."""

    operators = OPERATORS
    to_numpy = staticmethod(to_numpy)
    synchronize = staticmethod(mx.synchronize)
    release = staticmethod(mx.clear_cache)

    def __init__(self, settings):
        super().__init__(choose_device(settings.use_gpu), settings)
        # MLX reads it once: in a process with both precisions, the probe refuses the later one.
        os.environ["MLX_ENABLE_TF32"] = str(int(self.precision == "tf32"))
        mx.random.seed(self.seed)
        self.stream = mx.default_device()
        if not mx.metal.is_available():
            self.reference_threads = 1  # a plain BLAS: 3 GFLOP/s
        self.dtype = getattr(mx, "float32" if self.precision == "tf32" else self.precision)

    def probe(self, name, left, right):
        left, right = self.put(left, right)
        if self.weight_bits:
            return on_mlx_llm.probe_quantised(left, right, self.weight_bits)
        output = left @ right if name == "matmul" else mx.conv2d(left, right)
        return to_numpy(output), output.dtype == mx.float16

    def on_cpu(self):
        context = super().on_cpu()
        context.dtype = mx.float32
        context.stream = mx.cpu
        return context

    def compiled(self, function, *state):
        """Return the function, compiled with COMPILE=1; `state`: trees of arrays that it reads or replaces as well."""
        if not self.compile:
            return function
        return mx.compile(self.counted(function), inputs=list(state), outputs=list(state))

    def build(self, workload, phase, inputs):
        module = BUILDERS[workload.name](workload)
        calibrate(module, self.put(*inputs, dtype=mx.float32))
        module.set_dtype(self.dtype)
        kind = CachedModel if phase in ("prefill", "decode") else Model
        return kind(self, module, workload, phase in TRAINING)

    def put(self, *arrays, dtype=None):
        """Return arrays of a batch in MLX: floats in this type, integers in MLX's own, images channels last."""
        arrays = [np.ascontiguousarray(each.transpose(0, 2, 3, 1) if each.ndim == 4 else each) for each in arrays]
        copies = tuple(mx.array(each, dtype or self.dtype if each.dtype.kind == "f" else mx.int32) for each in arrays)
        mx.eval(copies)
        return copies

    def read(self, values):
        return mx.linalg.norm(base.end_of(values).astype(mx.float32)).item()

    def reset_peak_memory(self):
        mx.clear_cache()
        mx.reset_peak_memory()

    def peak_memory_bytes(self):
        return None if self.device == "cpu" else mx.get_peak_memory()


class Model(base.Model):
    """A module with its optimizer, if it is trained. The contract is in base.py."""

    def __init__(self, context, module, workload, is_trained=False):
        self.context = context
        self.workload = workload
        self.module = module.train(is_trained)
        self.size = sum(each.size for _, each in tree_flatten(module.parameters()))
        if context.weight_bits:
            on_mlx_llm.quantise(module, context.weight_bits)
        mx.eval(module.parameters())
        mx.clear_cache()
        self._infer = context.compiled(module, module)
        if not is_trained:
            return
        name = context.optimizer
        self.optimizer = optimizer = OPTIMIZERS[name](LEARNING_RATES[name])
        optimizer.init(module.trainable_parameters())
        matrices = [name for name, each in self.trained_weights().items() if each.ndim > 1]  # 16 bits leave norms at 1
        path, _, self.last_name = matrices[-1].rpartition(".")
        self.last_layer = dict(module.named_modules())[path]
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
        self.loss = self._train(*batch)
        mx.async_eval(self.loss, self.state)
        return self.last_layer[self.last_name]

    def trained_weights(self):
        return dict(tree_flatten(self.module.trainable_parameters()))

    def output(self, *inputs):
        with base.in_evaluation_mode(self.module), mx.stream(self.context.stream):
            return to_numpy(self.module(*inputs))

    def gradients(self, *batch):
        def loss_and_output(*batch):
            output = self.module(*batch[:-1])
            return base.LOSS_SCALE * cross_entropy(output, batch[-1]), output

        with base.in_evaluation_mode(self.module), mx.stream(self.context.stream):
            (_, output), gradients = nn.value_and_grad(self.module, loss_and_output)(*batch)
            norms = [mx.linalg.norm(each.astype(mx.float32)).item() for _, each in tree_flatten(gradients)]
            return to_numpy(output), norms

    def on_cpu(self):
        module = BUILDERS[self.workload.name](self.workload)
        # In memory of their own
        module.update(tree_map(lambda old: mx.array(np.array(old.astype(mx.float32))), self.module.parameters()))
        return type(self)(self.context.on_cpu(), module, self.workload)


class CachedModel(Model):
    """A decoder with mlx-lm's cache, which grows by 256 tokens."""

    def __init__(self, context, module, workload, is_trained=False):
        super().__init__(context, module, workload)
        named = tree_flatten(module.parameters())
        is_read = module.args.tie_word_embeddings
        sizes = {name: each.nbytes for name, each in named if is_read or "embed_tokens" not in name}
        self.weight_bytes = workload.sizes.read_weights(sizes, workload.items_per_step)

    def open_cache(self, prompt, tokens):
        from mlx_lm.models.cache import make_prompt_cache

        self.cache = make_prompt_cache(self.module)
        if prompt.size:
            self.infer(0, prompt)

    def infer(self, place, tokens):
        for layer in self.cache:
            layer.trim(layer.offset - place)
        logits = self.logits(tokens, self.cache)
        mx.async_eval(logits, [layer.state for layer in self.cache])
        return logits

    def output(self, ids):
        with mx.stream(self.context.stream):
            return to_numpy(self.logits(ids))

    def logits(self, tokens, cache=None):
        """Return the logits of the last token; mlx-lm's own call would compute those of all."""
        body = self.module.model
        kept = body(tokens, cache)[:, -1]
        return body.embed_tokens.as_linear(kept) if self.module.args.tie_word_embeddings else self.module.lm_head(kept)


open_session = partial(session.open_session, DeviceContext)
