"""Every setting and every framework, each declared once, and the reading of settings from the environment.

`python -m bench.settings` prints docs/settings.md, which `make settings` shows. Standard library only.
"""

import difflib
import os
import re
import sys
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

SCOPES = ("device", "input", "end_to_end")
AUTO = 0  # BATCH_SIZE=auto, until launch.py has chosen one
ALL = 0  # NUM_DEVICES=all, until launch.py has counted them
ROOT = Path(__file__).resolve().parent.parent
SYNONYMS = {"IMAGE_MODEL": "MODEL"}
# Variables of the Makefile, which are not settings of a run.
MAKE_VARIABLES = {
    "PYTHON": "interpreter to use instead of .venv; make then installs nothing",
    "A": "first machine or results file to compare",
    "B": "second machine or results file to compare",
    "FAIL_ON_SLOWER": "1: the exit status is 1 if B is slower in anything, or if nothing can be compared",
}
MOST_WORKERS = 16  # by default, for each device; each worker needs shared memory
MOST_POSITIONS = 131_072  # tokens in a sequence, of the language model that allows the most
NOT_MISSPELT = ("COMPILER", "TARGET_CC")  # ordinary variables one letter away from a setting


class SettingError(Exception):
    """A mistake in what the user asked for: one line that names the setting, its value and the fix."""


@dataclass(frozen=True)
class ByDevice:
    """A default that depends on the device."""

    gpu: Any
    cpu: Any

    def __str__(self):
        return f"{self.gpu} ({self.cpu} on a CPU)"


MEMORY_FORMATS = ("channels_first", "channels_last")


@dataclass(frozen=True)
class Framework:
    """What is known about a framework before it is imported; its code is bench/frameworks/on_<name>.py."""

    title: str  # as its makers write it
    memory_formats: tuple[str, ...] = MEMORY_FORMATS  # of image models, the default first
    # On Linux some frameworks need an environment of their own, .venv-<name> from requirements-cuda-<name>.txt, because
    # their CUDA wheels overwrite files of PyTorch's. The Makefile follows the file names.
    has_own_environment: bool = False
    runs_on_many: bool = False  # devices: NUM_DEVICES, torchrun
    runs_language_models: bool = False
    lacks: tuple[str, ...] = ()  # "mixed" precision, "float64", a number of CPU "threads"
    always_compiles: bool = False  # COMPILE=0 means 1


FRAMEWORKS = {
    "torch": Framework("PyTorch", runs_on_many=True, runs_language_models=True),
    "tensorflow": Framework("TensorFlow", ("channels_last",), has_own_environment=True),
    "jax": Framework("JAX", ("channels_last",), has_own_environment=True, always_compiles=True),
    "mlx": Framework("MLX", ("channels_last",), True, runs_language_models=True, lacks=("mixed", "float64", "threads")),
}
FRAMEWORK_SYNONYMS = {"pytorch": "torch", "tf": "tensorflow"}


def environment_of(framework):
    """Return the folder into which make installs a framework on this system."""
    apart = sys.platform != "darwin" and FRAMEWORKS[framework].has_own_environment
    return ROOT / (f".venv-{framework}" if apart else ".venv")


# Kinds: each parses the text of a setting, or raises ValueError with the words that complete "must be ...".


def whole(minimum, maximum=10**9, **words):
    """Parse a whole number, or one of the words in any case: whole(1, auto=AUTO)."""

    def parse(text):
        if text.lower() in words:
            return words[text.lower()]
        if not re.fullmatch("[0-9]{1,10}", text) or not minimum <= int(text) <= maximum:
            raise ValueError(", or ".join([f"a whole number from {minimum} to {maximum}", *words]))
        return int(text)

    return parse


def one_of(*names, **synonyms):
    """Parse one of the names, or a synonym of one, in any case."""

    def parse(text):
        value = synonyms.get(text.lower(), text.lower())
        if value not in names:
            raise ValueError("one of: " + ", ".join(names))
        return value

    return parse


def framework_name(text):
    return one_of(*FRAMEWORKS, **FRAMEWORK_SYNONYMS)(text)


def zero_or_one(text):
    if text not in ("0", "1"):
        raise ValueError("1 or 0")
    return text == "1"


def above_zero(text):
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError("a finite number above 0")
    return value


def matrix_size(text):
    """Parse M for M x M x M, or MxNxK for an M x K by K x N matmul, as (m, n, k)."""
    sides = text.lower().split("x")
    if len(sides) not in (1, 3) or not all(re.fullmatch("[1-9][0-9]{0,5}", side) for side in sides):
        raise ValueError("M or MxNxK, whole numbers from 1 to 999999")
    m, n, k = (int(side) for side in sides * (3 // len(sides)))
    return m, n, k


def slug(text):
    """Parse a name that is safe as a file name: lower case, digits and single hyphens."""
    name = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")
    if not name or name == "published":
        raise ValueError("a name with letters or digits, and not 'published'")
    return name[:100]


# What a comma list means: a run for each entry, or one run that uses all entries, whose value is a tuple.
EACH, TOGETHER = "each", "together"


def setting(kind, default, meaning, lists=None, shown=None) -> Any:
    """Declare one setting. `kind`, `default` and `lists` may be a dict {script: ...} if scripts differ.

    Args:
        kind: text -> value, or ValueError with what the text must be.
        default: the value if the setting is unset; a tuple is a list. Its dict names the scripts that use the setting.
        meaning: one line for the tables.
        lists: what a comma list means: EACH or TOGETHER; None allows one value only.
        shown: the default in words, if its value says too little.
    """
    about = {"kind": kind, "default": default, "meaning": meaning, "lists": lists, "shown": shown}
    return field(metadata=about)


MODELS = ("image", "mlp", "transformer", "llm")
PRECISIONS = ("float32", "tf32", "float16", "bfloat16", "float64")
MIXED = ("mixed_float16", "mixed_bfloat16")
OPS = ("matmul", "convolution", "bandwidth", "int8", "float8", "gemv", "attention")
TRAINING = ("training", "forward", "backward", "optimizer")  # phases of rows
# The phases that use a setting, if only some do.
PHASES = {"optimizer": TRAINING, "lora_rank": TRAINING, "checkpointing": TRAINING}
PHASES |= {"prompt_tokens": ("prefill", *TRAINING), "new_tokens": ("decode",), "depth": ("decode",)}
COMPILE_MODES = ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")  # torch.compile's own names
MLPS = ("mlp-5x1024", "mlp-10x1024", "mlp-15x1024", "mlp-20x1024")
SQUARES = tuple((m, m, m) for m in (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192))


@dataclass(frozen=True)
class Settings:
    """The settings of one run. A setting that the script does not use is None."""

    use_gpu: bool | None = setting(
        zero_or_one, None, "1: use the GPU, or warn and use the CPU; 0: use the CPU", EACH, "the GPU if there is one"
    )
    num_devices: int = setting(
        whole(1, all=ALL), dict.fromkeys(MODELS, 1), "GPUs, or processes on a CPU (PyTorch); all: every GPU", EACH
    )
    framework: str = setting(framework_name, "torch", "torch, tensorflow, jax or mlx; synonyms pytorch, tf")
    model: str = setting(
        str,
        {"image": "resnet50", "mlp": MLPS, "transformer": ("distilbert", "bert-large")}
        | {"llm": ByDevice(gpu="llama-3.2-1b", cpu="smollm2-135m")},
        "image: any classification model of torchvision (TensorFlow and JAX have a few); mlp: mlp-DEPTHxWIDTH or "
        "mlp-WIDTH-WIDTH-...; transformer: distilbert, bert-base, bert-large; llm: smollm2-135m, qwen3-0.6b, "
        "llama-3.2-1b, llama-3.2-3b, qwen3-4b, llama-3.1-8b; random weights; IMAGE_MODEL is a synonym",
        EACH,
    )
    phase: str = setting(
        dict.fromkeys(MODELS, one_of("inference", "training")) | {"llm": one_of("prefill", "decode", "training")},
        {"image": "inference", "mlp": "training", "transformer": "training", "llm": ("prefill", "decode")},
        "inference or training; llm: prefill, decode, training",
        EACH,
    )
    batch_size: int = setting(
        whole(1, auto=AUTO),
        {"image": ByDevice(gpu=64, cpu=16), "mlp": 32, "transformer": ByDevice(gpu=32, cpu=4), "llm": 1},
        "items per step and device (llm: sequences); auto: the fastest size that fits, found by doubling",
        EACH,
    )
    num_images: int | None = setting(
        whole(1),
        dict.fromkeys(("image", "mlp")),
        "measure N images per scope and process, rounded up to whole batches, regardless of MAX_SECONDS",
        shown="as many as the interval needs",
    )
    image_size: int | None = setting(
        whole(32, 4096), {"image": None}, "pixels on each side", shown="the model's own (224; inception_v3 299)"
    )
    precision: Any = setting(
        dict.fromkeys(MODELS, one_of(*PRECISIONS, *MIXED)) | {"tflops": one_of(*PRECISIONS)},
        dict.fromkeys(MODELS, "float32")
        | {"tflops": ("float32", "tf32", "float16", "bfloat16"), "llm": ByDevice(gpu="bfloat16", cpu="float32")},
        "float32 (TF32 off), tf32, float16, bfloat16, float64 (not in MLX); mixed_float16, mixed_bfloat16 (autocast; "
        "not in tflops, prefill, decode or MLX)",
        dict.fromkeys(MODELS, EACH) | {"tflops": TOGETHER},
        "float32 (tflops: float32,tf32,float16,bfloat16; llm: bfloat16, float16 if that is emulated, float32 on a CPU)",
    )
    compile: str = setting(
        one_of("0", "1", *COMPILE_MODES),
        dict.fromkeys(MODELS, "0"),
        f"1: torch.compile, XLA (JAX: always 1), mx.compile; or a mode of torch: {', '.join(COMPILE_MODES)}",
        EACH,
    )
    memory_format: str = setting(
        one_of(*MEMORY_FORMATS), {"image": ""}, " or ".join(MEMORY_FORMATS), EACH, "channels_first in PyTorch only"
    )
    optimizer: str = setting(
        dict.fromkeys(MODELS, one_of("sgd", "adam")) | {"llm": one_of("sgd", "adam", "adamw")},
        {"image": "sgd", "mlp": "sgd", "transformer": "adam", "llm": "adamw"},
        "optimizer for training: sgd (learning rate 0.01, no momentum), adam (0.00001), llm only: adamw (0.0003)",
        EACH,
    )
    sequence_length: int = setting(whole(1, 512), {"transformer": 128}, "tokens in a sequence, without padding", EACH)
    prompt_tokens: int = setting(
        whole(1, MOST_POSITIONS), {"llm": 512}, "tokens of each sequence in prefill and training", EACH
    )
    lora_rank: int = setting(
        whole(0, 1024), {"llm": 0}, "train only LoRA adapters of this rank on q, k, v and output; 0: all weights", EACH
    )
    checkpointing: bool = setting(
        zero_or_one, {"llm": False}, "1: recompute each layer in the backward pass, which saves memory", EACH
    )
    new_tokens: int = setting(whole(1, MOST_POSITIONS), {"llm": 128}, "tokens that decode adds before it starts over")
    depth: int = setting(whole(0, MOST_POSITIONS), {"llm": 0}, "tokens in the cache before decode begins", EACH)
    data: str | None = setting(
        one_of("cifar10", "synthetic"), {"mlp": None}, "cifar10 (downloads 170 MB once) or synthetic", shown="cifar10"
    )
    epochs: int = setting(
        whole(0, 1000), {"mlp": 0}, "also train N whole epochs; each reports seconds, loss and test accuracy"
    )
    sustain: int | None = setting(
        whole(60, 86_400),
        dict.fromkeys(MODELS),
        "run one workload for N seconds, with a row every ten seconds, to show the effect of heat",
        shown="no",
    )
    sizes: tuple[tuple[int, int, int], ...] = setting(
        matrix_size, {"tflops": SQUARES}, "matmuls: M, or MxNxK for M x K by K x N", TOGETHER, "32,64,128 ... 8192"
    )
    ops: tuple[str, ...] = setting(
        one_of(*OPS),
        {"tflops": OPS},
        "operators: matmul (all SIZES, and the peak); convolution (3x3), which needs matmul; bandwidth; int8 and "
        "float8 (matmuls, compared with bfloat16); gemv (M = 1, as in decode); attention",
        TOGETHER,
        "all",
    )
    scope: tuple[str, ...] = setting(
        one_of(*SCOPES), {"image": SCOPES}, "which of the three throughputs to measure", TOGETHER
    )
    num_workers: int = setting(
        whole(0, 1024),
        {"image": None},
        "input workers: processes, or threads in TensorFlow, JAX and MLX; 0: the main process",
        shown=f"the number of cores, at most {MOST_WORKERS} for each device",
    )
    num_threads: int | None = setting(whole(1, 4096), None, "CPU threads of the framework", shown="the framework's own")
    max_seconds: float = setting(
        above_zero, dict.fromkeys(MODELS, 3.0) | {"tflops": 1.0}, "time limit of one measurement", shown="3 (tflops: 1)"
    )
    target_ci: float = setting(above_zero, 1.0, "stop when the 95 % confidence interval is within +- N percent")
    runs: int | None = setting(
        whole(1, 1000),
        None,
        "fresh processes that measure the same work; the result is that of their median, with the range of all",
        shown="5; 3 if a process takes over a minute, and in `make all`; 1 in tflops, and with SUSTAIN or EPOCHS",
    )
    machine: str | None = setting(
        slug, None, "name of the machine and of its file, results/<MACHINE>.csv", shown="the GPU's name, else the CPU's"
    )
    results_dir: Path = setting(
        lambda text: Path(os.path.expanduser(text)), ROOT / "results", "folder of the results files", shown="results"
    )
    seed: int = setting(whole(0), 0, "seed of the data and the random weights")
    workload: str = setting(
        one_of(*MODELS), {"best": "image"}, "workload to find the fastest settings for: " + ", ".join(MODELS)
    )
    rounds: int = setting(whole(1, 1000), {"noise": 2}, "rounds of A/A tests; a figure to publish needs twelve")
    max_minutes: float = setting(above_zero, {"best": 20.0}, "approximate time for the search")
    quick: bool = setting(
        zero_or_one, {"all": False}, "1: three minutes instead of 20 to 30: fewer workloads, one short process each"
    )

    def on(self, device, emulates_bfloat16=False):
        """Return the settings with the defaults that depend on the device ("cpu", "cuda", "mps" ...)."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        by_device = {name: value for name, value in values.items() if isinstance(value, ByDevice)}
        chosen = {name: v.cpu if device == "cpu" else v.gpu for name, v in by_device.items()}
        if emulates_bfloat16 and "precision" in chosen:  # training in float16 needs a scaled loss
            chosen["precision"] = "mixed_float16" if self.phase == "training" else "float16"
        return replace(self, **chosen)


DECLARED = {declared.name: declared.metadata for declared in fields(Settings)}


def known_names():
    """Return every variable that has a meaning here: settings, their synonyms, and those of the Makefile."""
    return [*map(str.upper, DECLARED), *SYNONYMS, *MAKE_VARIABLES]


def read_settings(script, environ=os.environ):
    """Read the settings of one run of a script ("image") from the environment.

    If a list asks for several runs, its first entry counts; list_runs() returns all of them.

    Raises:
        SettingError: a wrong value, a misspelt name, or settings that exclude each other.
    """
    refuse_misspelt((script,), environ)
    values = {}
    for name in DECLARED:
        entries = read_entries(name, script, environ)
        values[name] = entries if is_used(name, script) and of(name, "lists", script) == TOGETHER else entries[0]
    framework = FRAMEWORKS[values["framework"]]
    if values["memory_format"] == "":
        values["memory_format"] = framework.memory_formats[0]
    if values["compile"] == "0" and framework.always_compiles:
        values["compile"] = "1"
    settings = Settings(**values)
    refuse_contradictions(settings, environ)
    return settings


def list_runs(script, environ=os.environ):
    """Return the runs that comma lists ask for, each as a change of the environment: {variable: text}.

    Runs that differ only in settings which their phase does not use count once.
    """
    choices = []
    for name in DECLARED:
        entries = read_entries(name, script, environ)
        if len(entries) > 1 and of(name, "lists", script) == EACH:
            given = find_given(name, environ)
            texts = [text.strip() for text in environ[given].split(",")] if given else entries
            choices.append([(given or name.upper(), text) for text in texts])
    runs = {}
    for run in map(dict, product(*choices)):
        phase = read_settings(script, {**environ, **run}).phase
        used = ((name, text) for name, text in run.items() if is_used_in(SYNONYMS.get(name, name).lower(), phase))
        runs.setdefault(frozenset(used), run)
    return list(runs.values())


def is_used_in(name, phase):
    """Return whether a phase uses the setting of this name ("depth")."""
    return phase in PHASES.get(name, (phase,))


def of(name, key, script):
    """Return what a setting's declaration says about a script."""
    value = DECLARED[name][key]
    return value.get(script) if isinstance(value, dict) else value


def is_used(name, script):
    default = DECLARED[name]["default"]
    return not isinstance(default, dict) or script in default


def find_given(name, environ):
    """Return the variable of the environment that sets a setting, which may be a synonym; None if it is unset."""
    names = [name.upper(), *(synonym for synonym, meant in SYNONYMS.items() if meant == name.upper())]
    return next((variable for variable in names if variable in environ), None)


def read_entries(name, script, environ):
    """Return the values of a setting as a tuple: one, or one for each entry of a list."""
    if not is_used(name, script):
        return (None,)
    variable = find_given(name, environ)
    if not variable:
        default = of(name, "default", script)
        return default if isinstance(default, tuple) else (default,)
    text = environ[variable].strip()
    if not text:
        raise SettingError(f"{variable}='' is empty: give it a value, or unset it for the default")
    entries = [entry.strip() for entry in text.split(",")] if of(name, "lists", script) else [text]
    if not all(entries):
        raise SettingError(f"{variable}={text!r} has an empty entry: remove the extra comma")
    try:
        values = tuple(map(of(name, "kind", script), entries))
    except ValueError as error:
        every = ", in every entry" if len(entries) > 1 else ""
        raise SettingError(f"{variable}={text!r} must be {error}{every}") from None
    if len(set(values)) < len(values):
        raise SettingError(f"{variable}={text!r} has an entry more than once: name it once")
    return values


def refuse_contradictions(settings, environ):
    """Raise SettingError for settings that exclude each other; none of them is dropped silently."""
    s, framework = settings, FRAMEWORKS[settings.framework]
    precisions = s.precision if isinstance(s.precision, tuple) else (s.precision,)
    is_mixed, is_generation = s.precision in MIXED, s.phase in ("prefill", "decode")
    is_channels_first = s.memory_format and s.memory_format not in framework.memory_formats
    has_many = s.num_devices not in (None, 1)
    able = " and ".join(name for name, known in FRAMEWORKS.items() if known.runs_language_models)
    table = [  # (whether they exclude each other, their names, the reason or the fix)
        (s.prompt_tokens and not framework.runs_language_models, "framework", f"{able} run language models"),
        (s.framework != "torch" and s.compile in COMPILE_MODES, "framework compile", "the mode is torch's: set 1 or 0"),
        (is_channels_first, "framework memory_format", "it supports only channels_last here"),
        (is_mixed and "mixed" in framework.lacks, "framework precision", "set float16 or bfloat16 without mixed_"),
        ("float64" in precisions and "float64" in framework.lacks, "framework precision", "it lacks float64"),
        (is_mixed and is_generation, "phase precision", "mixed precision needs PHASE=training"),
        (s.framework == "mlx" and s.compile == "1" and is_generation, "framework compile", "its cache uses Python"),
        (s.num_threads and "threads" in framework.lacks, "framework num_threads", "it has no such setting"),
        (s.ops and "convolution" in s.ops and "matmul" not in s.ops, "ops", "convolution needs matmul: add it"),
        (has_many and not framework.runs_on_many, "framework num_devices", "it runs on one device here"),
        (has_many and s.batch_size == AUTO, "num_devices batch_size", "auto works only on one device"),
        (has_many and s.epochs, "num_devices epochs", "epochs are trained only on one device"),
        (s.epochs and s.phase == "inference", "phase epochs", "epochs need PHASE=training"),
    ]
    for name in ("scope", "num_images", "epochs"):
        table.append((s.sustain and name.upper() in environ and getattr(s, name), f"sustain {name}", "unset one"))
    for excludes, names, reason in table:
        if excludes:
            given = ((name.upper(), getattr(s, name)) for name in names.split())
            words = " with ".join(f"{name}={environ.get(name, value)!r}" for name, value in given)
            raise SettingError(f"{words} cannot run: {reason}")


def refuse_misspelt(scripts, environ):
    """Raise SettingError for a name that is not a setting but was probably meant as one.

    On make's command line (in MAKEFLAGS) any unknown name is refused, and so is a setting that none of the scripts
    uses. The environment has many names of other programs: there only near misses of our settings are refused.
    """
    known = known_names()
    used = {name.upper() for name in DECLARED if any(is_used(name, script) for script in scripts)} | {*MAKE_VARIABLES}
    # A backslash escapes a space within a value.
    for name in re.findall(r"(?:^|(?<!\\)\s)([A-Za-z_]\w*)[:+?]*=", environ.get("MAKEFLAGS", "")):
        if name not in known:
            near = difflib.get_close_matches(name.upper(), known, n=1)
            raise SettingError(f"{name} is not a setting: {f'did you mean {near[0]}?' if near else 'see `make help`'}")
        if SYNONYMS.get(name, name) not in used:
            raise SettingError(f"{name} is not used by this command: leave it out (`make settings` lists what uses it)")
    ours = [name for name in known if name not in MAKE_VARIABLES]
    for name in sorted(environ.keys() - {*known, *NOT_MISSPELT}):
        # MODE, RUN and SIZE are ordinary names: a short setting is recognised only in the wrong case.
        similar = [each for each in ours if len(each) >= 6 or each == name.upper()]
        for near in difflib.get_close_matches(name.upper(), similar, n=1, cutoff=0.88):
            raise SettingError(f"{name}={environ[name]!r} is not a setting: did you mean {near}?")


PAGE = """# Settings

Generated by `python -m bench.settings`. Settings are environment variables, set before or after `make`, or before a
script. These accept a comma-separated list, and each combination runs in its own processes: {each}. One process
measures the whole list of: {together}. `make best` accepts the settings of its workload: a single value is kept fixed,
a list restricts what is tried.

| setting | default | used by | meaning |
|---|---|---|---|"""


def as_markdown():
    """Return the page docs/settings.md."""
    lists = {name.upper(): str(about["lists"]) for name, about in DECLARED.items()}
    each, together = (", ".join(name for name in lists if kind in lists[name]) for kind in (EACH, TOGETHER))
    lines = [PAGE.format(each=each, together=together.replace("PRECISION", "PRECISION (in `make tflops`)"))]
    for name, about in DECLARED.items():
        by_script = about["default"] if isinstance(about["default"], dict) else {"every command": about["default"]}
        values = (value if isinstance(value, tuple) else (value,) for value in by_script.values())
        texts = [",".join(f"{v:g}" if isinstance(v, float | bool) else str(v) for v in entries) for entries in values]
        shown = about["shown"] or (texts[0] if len(set(texts)) == 1 else " / ".join(texts))
        lines.append(f"| {name.upper()} | {shown} | {', '.join(by_script)} | {about['meaning']} |")
    for name, meaning in MAKE_VARIABLES.items():
        lines.append(f"| {name} |  | {'every command' if name == 'PYTHON' else 'compare'} | {meaning} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(as_markdown())
