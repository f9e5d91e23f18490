"""The standard set: what `make all` measures, one list for CPUs and one for GPUs, in the order of measuring.

Batches of 1 to 32 keep two CPU cores busy. On a GPU they measure how fast Python submits kernels, so its list has those
of the ancestors (docs/published.md) and 256.
"""

from dataclasses import dataclass

# Fresh processes for each benchmark and precision. The range of three covers the median of all processes with a
# probability of 75 %. Five (94 %) would take too long on two CPU cores.
RUNS = 3
# Settings of the sweep that finds the peaks, by "cpu" or "gpu". A size that would take too long is skipped.
SWEEP = {
    "cpu": {"SIZES": "1024,2048,4096,8192", "PRECISION": "float32,bfloat16"},
    "gpu": {"SIZES": "2048,4096,8192", "PRECISION": "float32,bfloat16,float16", "OPS": "matmul,bandwidth,float8"},
}
SIXTEEN_BITS = "16 bits"
SIXTEEN = ("bfloat16", "float16")  # the precisions of 16 bits; float16 only on a GPU


@dataclass(frozen=True)
class Benchmark:
    """One entry of the set."""

    title: str
    workload: str  # "image" is image_benchmark.py
    model: str
    phase: str
    batch_size: int
    # What it needs, in GiB: of an NVIDIA card, of a system that shares its memory with the GPU, and there in float32.
    card_gb: int = 0
    shared_gb: int = 0
    shared_float32_gb: int = 0
    devices: tuple[str, ...] = ("gpu",)  # "gpu" is any device except a CPU
    frameworks: tuple[str, ...] = ()  # those that measure it; (): all
    # On a CPU all of them. A GPU has 16 bits, and float32 if that is the only one, on a Mac, or if 16 bits are slow.
    precisions: tuple[str, ...] = (SIXTEEN_BITS,)
    compile: str = ""  # COMPILE on NVIDIA cards; a mode of PyTorch's is 1 in other frameworks
    settings: tuple[tuple[str, str], ...] = ()  # those other than the defaults
    has_pipeline: bool = False  # the input pipeline is measured, too: on a CPU in float32 only
    is_quick: bool = False  # QUICK=1 measures it, too
    is_latency: bool = False  # the host limits it: one process, and in no ranking
    below_gb: int = 0  # a card with more of it measures a larger batch instead

    def suits(self, device, framework):
        """Return whether it is measured on a device of this kind ("mps") in this framework, which may lack it."""
        names = {device, "cpu" if device == "cpu" else "gpu"}
        return not names.isdisjoint(self.devices) and framework in (self.frameworks or (framework,))

    def list_precisions(self, device, sixteen):
        """List the precisions in which a device measures it; `sixteen` is its fast one of 16 bits, "" if none is."""
        has_float32 = device in ("cpu", "mps") or not sixteen or self.precisions == ("float32",)
        chosen = {"float32": "float32" if has_float32 else "", SIXTEEN_BITS: sixteen}
        return [chosen[name] for name in self.precisions if chosen[name]]

    def precision(self, name):
        """Return the PRECISION for a precision: weights in 16 bits would lose the small updates of training."""
        is_mixed = name in SIXTEEN and self.workload != "llm" and self.phase == "training"  # LoRA's are frozen
        return f"mixed_{name}" if is_mixed else name

    def needed_gb(self, precision, is_shared):
        """Return the GiB that it needs: of the system if it shares them with the GPU, else of the card."""
        if not is_shared:
            return self.card_gb
        return self.shared_float32_gb if precision == "float32" else self.shared_gb

    def environ(self, device, framework, precision, compiles):
        """Return the environment of a run of it; `compiles`: on a device on which the set compiles."""
        environ = {"MODEL": self.model, "PHASE": self.phase, "BATCH_SIZE": str(self.batch_size)}
        if self.workload == "mlp":
            environ["DATA"] = "synthetic"
        if self.workload == "image" and not (self.has_pipeline and (device != "cpu" or precision == "float32")):
            environ["SCOPE"] = "device"
        if self.compile and compiles and framework != "mlx":
            environ["COMPILE"] = self.compile if framework == "torch" else "1"
        return environ | dict(self.settings) | {"PRECISION": self.precision(precision)}


ON_CPU = {"devices": ("cpu",), "precisions": ("float32", SIXTEEN_BITS)}
BOTH = {"precisions": (SIXTEEN_BITS, "float32"), "compile": "1"}
PIPELINE = {"has_pipeline": True, "is_quick": True}
IMAGES = {"settings": (("MEMORY_FORMAT", "channels_last"),)}
LARGE = {"settings": (*IMAGES["settings"], ("IMAGE_SIZE", "1024"))}
BITS = {"settings": (("WEIGHT_BITS", "4"),)}
LORA = {"settings": (("LORA_RANK", "8"),)}
CARDS = {"devices": ("cuda",), "frameworks": ("torch",)}
MACS = {"devices": ("mps",), "frameworks": ("mlx",)}
NOT_KERAS = {"frameworks": ("torch", "mlx")}  # TensorFlow and JAX have only those of the ancestors
LATENCY = {"is_latency": True} | NOT_KERAS
GRAPHS = {"compile": "reduce-overhead"}  # CUDA graphs: Python submits a step at once
LONG = {"settings": (("PROMPT_TOKENS", "4096"),)}  # 2,048 are 8.5 ms of work for an H200, in 10.7 ms of launches
STANDARD_SET = (
    Benchmark("ResNet-50", "image", "resnet50", "inference", 16, **PIPELINE, **ON_CPU),
    Benchmark("ResNet-50", "image", "resnet50", "training", 16, is_quick=True, **ON_CPU),
    Benchmark("MobileNetV2", "image", "mobilenet_v2", "inference", 16, is_quick=True, **ON_CPU),
    Benchmark("MobileNetV2", "image", "mobilenet_v2", "training", 16, **ON_CPU),
    Benchmark("MLP 5x1024", "mlp", "mlp-5x1024", "training", 32, is_quick=True, **ON_CPU),
    Benchmark("DistilBERT", "transformer", "distilbert", "training", 8, is_quick=True, **ON_CPU),
    Benchmark("SmolLM2 135M", "llm", "smollm2-135m", "prefill", 1, is_quick=True, **ON_CPU),
    Benchmark("SmolLM2 135M", "llm", "smollm2-135m", "decode", 1, is_quick=True, **ON_CPU),
    # timm's published rates have 1,024 images, which smaller cards cannot hold.
    Benchmark("ResNet-50", "image", "resnet50", "inference", 1024, 11, 24, 24, **CARDS, **IMAGES),
    Benchmark("ResNet-50", "image", "resnet50", "inference", 256, 4, 8, 8, below_gb=11, **NOT_KERAS, **IMAGES),
    # As on the ancestor's RTX 3090 and M1 Max; 256 images fill the largest cards, and milabench has them. Each of a
    # pipeline's workers holds three batches: of 1,024 images 16 workers need a minute until the queue has passed.
    Benchmark("ResNet-50", "image", "resnet50", "training", 64, 4, 8, 16, **PIPELINE, **IMAGES, **BOTH),
    Benchmark("ResNet-50", "image", "resnet50", "training", 256, 14, 32, 32, frameworks=("torch",), **IMAGES),
    Benchmark("DistilBERT", "transformer", "distilbert", "training", 64, 4, 8, 8, **BOTH),
    Benchmark("BERT-large", "transformer", "bert-large", "training", 32, 11, 16, 24, is_quick=True, **BOTH),
    Benchmark("Llama 3.2 1B", "llm", "llama-3.2-1b", "prefill", 1, 4, 12, 12, **LONG),
    Benchmark("Llama 3.2 1B", "llm", "llama-3.2-1b", "decode", 1, 4, 12, 12, is_quick=True, **GRAPHS),
    Benchmark("SDXL", "diffusion", "sdxl", "inference", 2, 11, 24, 24, **LARGE),  # one step with guidance
    Benchmark("MobileNetV2", "image", "mobilenet_v2", "training", 128, 7, 16, 24, **IMAGES, **BOTH | GRAPHS),
    Benchmark("Llama 3.2 1B, 4 bits", "llm", "llama-3.2-1b", "decode", 1, 3, 8, 8, **MACS, **BITS),
    Benchmark("Llama 3.2 1B, LoRA", "llm", "llama-3.2-1b", "training", 8, 14, 24, 24, **LORA),
    Benchmark("FLUX.2 klein 4B", "diffusion", "flux.2-klein-4b", "inference", 1, 11, 32, 32, **LARGE),
    Benchmark("Qwen3-30B-A3B", "llm", "qwen3-30b-a3b", "decode", 1, 64, 80, 80, **CARDS),
    Benchmark("Qwen3-30B-A3B, 4 bits", "llm", "qwen3-30b-a3b", "decode", 1, 32, 32, 32, **MACS, **BITS),
    Benchmark("ResNet-50, latency", "image", "resnet50", "inference", 1, 4, 8, 8, **IMAGES, **LATENCY),
    Benchmark("Llama 3.2 1B, latency", "llm", "llama-3.2-1b", "decode", 1, 4, 12, 12, **LATENCY),
    Benchmark("MLP 5x1024, latency", "mlp", "mlp-5x1024", "training", 32, precisions=("float32",), **LATENCY),
)
