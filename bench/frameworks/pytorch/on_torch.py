"""PyTorch: devices, precisions, operators, memory. Its models and ranks are in on_torch_*.py.

CUDA and MPS share one path, torch.accelerator: a run on either tests the lines of both.
"""

import functools
import gc
import importlib
import os
import platform
import sys
import warnings
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional

from bench import process
from bench.frameworks import Device, base, session
from bench.frameworks.pytorch.on_torch_model import Model
from bench.host import environment
from bench.host.ranks import read_ranks
from bench.host.resources import usable_cores
from bench.settings import TRAINING, SettingError
from bench.timing import MeasurementError
from bench.workloads import data

SMALL_MAC_GIB = 32  # memory that it shares with its GPU: with less, training with large batches swaps
AUTOCAST = {"mixed_float16": torch.float16, "mixed_bfloat16": torch.bfloat16}
WHOLE_MODEL = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
WHOLE_MODEL |= {"float8_e4m3": torch.float8_e4m3fn}  # only operators have it
MEMORY_FORMATS = {"channels_first": torch.contiguous_format, "channels_last": torch.channels_last}


def find_device(settings):
    """Prepare this process (CPU threads, this rank's GPU, memory limit on MPS) and return the Device to run on.

    Raises:
        SettingError: operators would move to the CPU silently, or PyTorch is too old.
    """
    # Before 2.15 fused optimizers ignore the gradient scaler on MPS; 2.9 has cudnn.conv.fp32_precision.
    oldest = "2.15" if sys.platform == "darwin" else "2.9"
    if torch.__version__ < f"{oldest}.0a0":  # as NVIDIA's containers name it
        words = f"PYTHON={sys.executable!r} has PyTorch {torch.__version__}, which is too old"
        raise SettingError(f"{words}: `pip install 'torch>={oldest}'` there, or unset PYTHON")
    # Of a CPU without bfloat16; 117 lines of C++ follow, and the row has the measured precision.
    warnings.filterwarnings("ignore", "mkldnn_matmul failed")
    ranks = read_ranks()
    kind = choose_device(settings.use_gpu)
    count = 0 if kind == "cpu" else torch.accelerator.device_count()
    if 0 < count < ranks.local_world_size:
        raise SettingError(f"NUM_DEVICES={ranks.local_world_size}, but the GPUs here are {count}: set a number")
    if ranks.are_many and count:
        torch.accelerator.set_device_index(ranks.local_rank)
    if settings.num_threads or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(settings.num_threads or ranks.share(min(torch.get_num_threads(), usable_cores())))
    # By default a small Mac swaps until its time limit instead of running out of memory.
    is_small = kind == "mps" and environment.INSTALLED_BYTES < SMALL_MAC_GIB * environment.GIB
    if is_small and "PYTORCH_MPS_HIGH_WATERMARK_RATIO" not in os.environ:
        torch.mps.set_per_process_memory_fraction(1.0)  # all that the system recommends
    properties = torch.cuda.get_device_properties() if kind == "cuda" else None
    is_integrated = bool(getattr(properties, "is_integrated", False)) if properties else None
    is_nvidia = kind == "cuda" and not torch.version.hip
    is_old_card = is_nvidia and torch.cuda.get_device_capability() < (8, 0)
    cpu = f"{kind} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    # Two transfers in each period of the memory's clock (kHz); 0 if the driver does not tell.
    kilobits = 2 * getattr(properties, "memory_clock_rate", 0) * getattr(properties, "memory_bus_width", 0)
    return Device(
        type=kind,
        device_name=None if kind in ("cpu", "mps") else torch.get_device_module(kind).get_device_name(),
        framework_version=torch.__version__,
        num_threads=torch.get_num_threads(),
        emulates_bfloat16=cpu in ("cpu x86_64 AVX2", "cpu x86_64 DEFAULT") or is_old_card,
        is_integrated=is_integrated,
        memory_bytes=getattr(properties, "total_memory", None),
        rated_bandwidth=(kilobits / 8e6 or None) if is_nvidia and not is_integrated else None,
        why_not_compiled=environment.explain_missing_compiler() if is_nvidia else None,
    )


def choose_device(use_gpu):
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if use_gpu is False or accelerator is None:
        return "cpu"
    if accelerator.type == "mps" and not torch.backends.mps.is_macos_or_newer(15, 0):
        return "cpu"  # PyTorch does not check it, and would abort in the middle of a run
    if accelerator.type == "mps" and os.environ.get("PYTORCH_ENABLE_MPS_FALLBACK") == "1":
        words = "PYTORCH_ENABLE_MPS_FALLBACK='1' moves operators to the CPU silently: unset it, or set USE_GPU=0"
        raise SettingError(words)
    return accelerator.type


def set_float32(precision):
    """Compute float32 matmuls and convolutions in "ieee" or in "tf32".

    Sets each backend by name, because cuDNN's convolutions start at tf32 whatever the general setting is, and
    torch.set_float32_matmul_precision("medium") lets oneDNN use bfloat16 on a CPU with AMX. The older
    allow_tf32 comes first and must agree: PyTorch raises an error when it is read after a different newer setting, and
    Inductor still reads it on ROCm.
    """
    backends: Any = torch.backends
    for older in (backends.cuda.matmul, backends.cudnn):
        older.allow_tf32 = precision == "tf32"
    cuda = backends.cuda.matmul, backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn
    cpu = backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn
    for backend in (backends, *cuda, *cpu):
        backend.fp32_precision = precision
    # Autotuning happens on the first step of a shape, which is never inside a window.
    backends.cudnn.benchmark = True


def part(name):
    """Import another file of this folder, only if it is needed: torchvision takes as long as torch."""
    return importlib.import_module(f"bench.frameworks.pytorch.on_torch_{name}")


def join_ranks(ranks, device):
    """Return the Group of all ranks as a context, which begins and ends together. device: "cpu", "cuda" ..."""
    return part("ranks").join_ranks(ranks, device)


def build_mlp(workload):
    """Build dense layers, Glorot-uniform with zero biases, with ReLU between them."""
    layers = []
    for inputs, outputs in pairwise(workload.sizes):
        layer = torch.nn.Linear(inputs, outputs)
        torch.nn.init.xavier_uniform_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def build_transformer(workload):
    """Build an encoder and its classifier by transformers, with scaled_dot_product_attention and without a mask."""
    import transformers  # takes ten seconds, so only if needed

    encoder = workload.sizes
    name = "Bert" if encoder.is_bert else "DistilBert"
    sizes = {"vocab_size": encoder.vocab_size, "max_position_embeddings": encoder.max_position_embeddings}
    sizes |= {"num_hidden_layers": encoder.num_layers, "hidden_size": encoder.hidden_size}
    sizes |= {"num_attention_heads": encoder.num_heads, "num_labels": encoder.labels}
    sizes |= {"intermediate_size" if encoder.is_bert else "hidden_dim": encoder.intermediate_size}
    config = getattr(transformers, f"{name}Config")(**sizes, attn_implementation="sdpa")
    module = getattr(transformers, f"{name}ForSequenceClassification")(config)
    module.register_forward_hook(lambda module, inputs, outputs: outputs.logits)  # not all outputs
    return module


BUILDERS = {
    "image": lambda workload: part("images").build_image(workload),
    "mlp": build_mlp,
    "transformer": build_transformer,
    "llm": lambda workload: part("llm").TorchDecoder(workload),
    "diffusion": lambda workload: part("llm").TorchDenoiser(workload),
}


@functools.cache
def scale_of_one(device):
    return torch.ones((), device=device)


def matmul_of_bytes(a, b):
    """Multiply A by the transpose of B: int8 gives int32, float8 gives bfloat16."""
    if a.dtype == torch.int8:
        return torch._int_mm(a, b.t())
    if not hasattr(functional, "ScalingType"):
        raise MeasurementError("unsupported", f"float8 needs PyTorch 2.10, and this is {torch.__version__}")
    scale = scale_of_one(a.device)
    scaling = functional.ScalingType.TensorWise
    return functional.scaled_mm(a, b.t(), scale, scaling, scale, scaling)


# The calls that users write. Those with `out` move as many bytes as their operands have.
OPERATORS = {
    "matmul": torch.mm,
    "matmul-8bit": matmul_of_bytes,
    "conv1x1": functional.conv2d,
    "conv3x3": functools.partial(functional.conv2d, padding=1),
    "copy": lambda x, out: out.copy_(x),
    "add": lambda x, y, out: torch.add(x, y, out=out),
    "triad": lambda x, y, out: torch.add(y, x, alpha=2.0, out=out),
}
OPERATORS = {name: torch.inference_mode()(function) for name, function in OPERATORS.items()}


@torch.no_grad()
def calibrate(module, inputs):
    """Give each BatchNorm the mean 0 and one variance, the mean square of all its inputs, layer after layer.

    With the initial statistics, activations explode or vanish with depth. With statistics for each channel, random
    networks magnify rounding: ResNet-50 in bfloat16 is wrong by 30 %, with these by less than 1 %.
    """

    def set_statistics(norm, inputs):
        norm.running_mean.zero_()
        norm.running_var.fill_(inputs[0].square().mean())

    norms = [each for each in module.modules() if isinstance(each, torch.nn.modules.batchnorm._BatchNorm)]
    hooks = [each.register_forward_pre_hook(set_statistics) for each in norms]
    if norms:
        module.eval()(*inputs)
    for hook in hooks:
        hook.remove()


@contextmanager
def without_onednn(num_threads):
    """Compute inside as the reference does, which is another way than that of a CPU that is measured."""
    mkldnn: Any = torch.backends.mkldnn
    usual = mkldnn.enabled
    usual_threads = torch.get_num_threads()
    mkldnn.enabled = False
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(usual_threads)
        mkldnn.enabled = usual


class DeviceContext(base.DeviceContext):
    """Where and how PyTorch computes."""

    operators = OPERATORS

    def __init__(self, settings):
        super().__init__(choose_device(settings.use_gpu), settings)  # as find_device() chose
        set_float32("tf32" if self.precision == "tf32" else "ieee")
        for kind in {"cpu", self.device}:
            torch.set_autocast_enabled(kind, False)  # an import may have left it on
        torch.manual_seed(self.seed)
        mixed = AUTOCAST.get(self.precision)
        self.autocast: Any = functools.partial(torch.autocast, self.device, mixed) if mixed else nullcontext
        self.dtype = WHOLE_MODEL.get(self.precision, torch.float32)
        self.format = MEMORY_FORMATS.get(settings.memory_format, torch.channels_last)  # operators have no setting
        if self.compile:  # importing it takes a second
            torch._dynamo.utils.counters.clear()

    @torch.no_grad()
    def probe(self, name, left, right):
        left, right = self.put(left, right)
        with self.autocast():
            got = torch.matmul(left, right) if name == "matmul" else functional.conv2d(left, right)
        return self.to_numpy(got), got.dtype == torch.float16

    def build(self, workload, phase, inputs):
        module = BUILDERS[workload.name](workload)
        if hasattr(module, "fill"):  # it was built without memory
            module.fill(self.device, self.dtype)
        # Groups of a MobileNet are thousands of small operators: 0.6 s in one thread, up to 17 s in two.
        is_grouped = any(getattr(each, "groups", 1) > 1 for each in module.modules())
        self.reference_threads = 1 if is_grouped else torch.get_num_threads()
        calibrate(module, map(torch.from_numpy, inputs))
        module = module.to(self.device, self.dtype, memory_format=self.format)
        kind = part("llm").CachedModel if phase in ("prefill", "decode") else Model
        return kind(self, module, workload, is_trained=phase in TRAINING)

    def open_stream(self, workload, settings):
        paths = data.jpeg_files(settings.seed)  # takes seconds
        with process.deferred_interrupts():
            return part("images").open_stream(paths, workload, settings, pins_memory=self.device == "cuda")

    def on_cpu(self):
        context = super().on_cpu()
        context.dtype = torch.float32
        context.format = torch.contiguous_format
        context.autocast = functools.partial(without_onednn, self.reference_threads)
        return context

    def compiled(self, module):
        """Return the module, compiled if COMPILE asks for it, which is a mode of torch.compile or 1."""
        if not self.compile:
            return module
        compiled = torch.compile(module, dynamic=False, mode="default" if self.compile == 1 else self.compile)

        def step(*inputs, **others):
            torch.compiler.cudagraph_mark_step_begin()  # CUDA graphs may overwrite the last outputs
            return compiled(*inputs, **others)

        return step

    def put(self, *arrays):
        tensors = []
        for array in map(torch.as_tensor, arrays):
            dtype = self.dtype if array.is_floating_point() else array.dtype
            format = self.format if array.ndim == 4 else torch.contiguous_format
            in_background = self.device == "cuda"  # on MPS that is not known to be safe
            tensors.append(array.to(self.device, dtype, memory_format=format, non_blocking=in_background))
        return tuple(tensors)

    def to_numpy(self, values):
        values = torch.as_tensor(values).detach().cpu()
        is_short = values.is_floating_point() and values.itemsize < 4
        return (values.float() if is_short else values).contiguous().numpy()

    def read(self, values):
        return torch.linalg.vector_norm(base.end_of(values.detach()).float()).item()

    def synchronize(self):
        if self.device != "cpu":
            torch.accelerator.synchronize()

    def reset_peak_memory(self):
        if self.device != "cpu":
            torch.accelerator.reset_peak_memory_stats()

    def peak_memory_bytes(self):
        return None if self.device == "cpu" else torch.accelerator.max_memory_allocated()

    def trace_count(self):
        # torch._dynamo takes a second to import: only where models are compiled.
        return torch._dynamo.utils.counters["stats"]["unique_graphs"] if self.compile else 0

    def notes(self):
        # torch.compile runs a part without a CUDA graph if it cannot capture it, and only logs that.
        skips = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] if self.compile else 0
        notes = [f"CUDA graphs skipped by torch.compile: {skips}"] if skips else []
        is_wsl = self.device == "cuda" and "microsoft" in platform.release().lower()
        if is_wsl and torch.cuda.max_memory_reserved() > 0.95 * torch.cuda.get_device_properties().total_memory:
            notes.append("the card's memory is full: Windows may have moved some of it to the system's")
        return "; ".join(notes)

    def release(self):
        if self.compile:
            torch._dynamo.reset()  # after eight models it would stop compiling, and not say so
            gc.collect()  # a model compiled for training holds its weights in a cycle
        if self.device != "cpu":
            torch.accelerator.empty_cache()


open_session = functools.partial(session.open_session, DeviceContext)
