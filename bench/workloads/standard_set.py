"""The standard set: what `make all` measures on every machine, and what a machine's card shows.

Batch sizes are the same on all devices, and small enough for two CPU cores; only GPUs measure larger ones as well.
"""

from dataclasses import dataclass

from bench.host.resources import SHARED_GB

# Fresh processes for each line below and each precision, unless RUNS is set; with QUICK=1 one. The range of three
# covers the median of all processes with a probability of 75 %. Five (94 %) would take too long on two CPU cores.
RUNS = 3
# `make tflops` skips sizes that take too long: the largest ones are for GPUs.
PEAKS = {"SIZES": "1024,2048,4096,8192"}
QUICK_PEAKS = {"SIZES": "1024,4096", "MAX_SECONDS": "0.5"}
QUICK = {"MAX_SECONDS": "1"}
FORMATS = ("bfloat16", "float16")  # formats of 16 bits; float16 only on a GPU


@dataclass(frozen=True)
class Work:
    """One line of the set. It is measured in those of `numbers` that the device is fast in."""

    title: str
    workload: str  # "image" is image_benchmark.py
    model: str
    phase: str
    batch_size: int
    is_quick: bool = False  # QUICK=1 measures it too, in float32 only
    devices: tuple[str, ...] = ("cpu", "gpu")  # they measure it; a GPU is any device except a CPU
    framework: str = ""  # the only one that measures it; "": all
    numbers: tuple[str, ...] = ("float32", *FORMATS)
    settings: tuple[tuple[str, str], ...] = ()  # those other than the defaults
    has_pipeline: bool = False  # in float32 the input pipeline is measured too
    shared_gb: int = 0  # memory in units of 2**30 bytes that it needs if the GPU shares the system's
    card_gb: int = 0  # the same of an NVIDIA card

    def suits(self, device, framework):
        """Return whether it is measured on a device of this kind ("mps") in this framework, which may lack it."""
        names = {device, "cpu" if device == "cpu" else "gpu"}
        return not names.isdisjoint(self.devices) and self.framework in ("", framework)

    def precision(self, numbers):
        """Return the PRECISION for a format of numbers: weights in 16 bits would lose the small updates of training."""
        is_mixed = self.phase == "training" and self.workload != "llm" and numbers in FORMATS  # LoRA's are frozen
        return f"mixed_{numbers}" if is_mixed else numbers

    def change(self, numbers):
        """Return the environment of a run in a format of numbers."""
        environ = {"MODEL": self.model, "PHASE": self.phase, "BATCH_SIZE": str(self.batch_size)}
        if self.workload == "mlp":
            environ["DATA"] = "synthetic"
        if self.workload == "image" and (numbers != "float32" or not self.has_pipeline):
            environ["SCOPE"] = "device"
        return environ | dict(self.settings) | {"PRECISION": self.precision(numbers)}


LARGE_BATCH = {"devices": ("gpu",), "numbers": ("bfloat16",), "settings": (("MEMORY_FORMAT", "channels_last"),)}
# The memory is that of the weights, and of their copy in float32 that checks them on the CPU.
LARGE = {"devices": ("gpu",), "shared_gb": 12}
BITS = {"numbers": ("bfloat16",), "settings": (("WEIGHT_BITS", "4"),), "shared_gb": 8}
ON_MACS = BITS | {"devices": ("mps",), "framework": "mlx"}
ON_CUDA = BITS | {"devices": ("cuda",), "framework": "torch", "settings": (("WEIGHT_BITS", "4"), ("COMPILE", "1"))}
COMPILED = LARGE | {"devices": ("cuda",), "numbers": ("bfloat16",), "settings": (("COMPILE", "reduce-overhead"),)}
EXPERTS_ON_MACS = ON_MACS | {"shared_gb": 32}  # 17 GB
EXPERTS_ON_CUDA = {"devices": ("cuda",), "framework": "torch", "numbers": ("bfloat16",)}
EXPERTS_ON_CUDA |= {"shared_gb": 80, "card_gb": 64}  # 61 GB
LORA = LARGE | {"numbers": ("bfloat16",), "settings": (("LORA_RANK", "8"),)}
DIFFUSION = LARGE | {"numbers": ("bfloat16",), "shared_gb": 8}
PHASES = ("prefill", "decode")
STANDARD_SET = (
    Work("ResNet-50", "image", "resnet50", "inference", 16, is_quick=True, has_pipeline=True),
    Work("ResNet-50", "image", "resnet50", "training", 16, is_quick=True),
    Work("MobileNetV2", "image", "mobilenet_v2", "inference", 16, is_quick=True),
    Work("MobileNetV2", "image", "mobilenet_v2", "training", 16),
    Work("MLP 5x1024", "mlp", "mlp-5x1024", "training", 32, is_quick=True),
    Work("DistilBERT", "transformer", "distilbert", "training", 8, is_quick=True),
    Work("SmolLM2-135M", "llm", "smollm2-135m", "prefill", 1, is_quick=True),
    Work("SmolLM2-135M", "llm", "smollm2-135m", "decode", 1, is_quick=True),
    Work("Llama-3.2-1B", "llm", "llama-3.2-1b", "prefill", 1, **LARGE),
    Work("Llama-3.2-1B", "llm", "llama-3.2-1b", "decode", 1, **LARGE),
    Work("Llama-3.2-1B, compiled", "llm", "llama-3.2-1b", "decode", 1, **COMPILED),
    *(Work("Llama-3.2-1B, 4 bits", "llm", "llama-3.2-1b", phase, 1, **ON_MACS) for phase in PHASES),
    *(Work("Llama-3.2-1B, 4 bits", "llm", "llama-3.2-1b", phase, 1, **ON_CUDA) for phase in PHASES),
    *(Work("Qwen3-30B-A3B, 4 bits", "llm", "qwen3-30b-a3b", phase, 1, **EXPERTS_ON_MACS) for phase in PHASES),
    *(Work("Qwen3-30B-A3B", "llm", "qwen3-30b-a3b", phase, 1, **EXPERTS_ON_CUDA) for phase in PHASES),
    Work("Llama-3.2-1B, LoRA", "llm", "llama-3.2-1b", "training", 1, **LORA),
    Work("Stable Diffusion 1.5", "diffusion", "sd-1.5", "inference", 1, **DIFFUSION),
    Work("ResNet-50, channels_last", "image", "resnet50", "inference", 256, **LARGE_BATCH, shared_gb=8),
    Work("ResNet-50, channels_last", "image", "resnet50", "training", 256, **LARGE_BATCH, shared_gb=SHARED_GB),
)
