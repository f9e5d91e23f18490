"""Every setting and every framework, each declared once, and the reading of settings from the environment.

docs/settings.md, which `make settings` shows, says what each setting means. Standard library only.
"""

import difflib
import os
import re
import sys
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

# What SCOPE may select: the model with batches that are on the device; the input pipeline alone, which prepares batches
# from JPEG files; both together. Rows also have "epoch" and "sustained".
SCOPES = ("device", "input", "end_to_end")
AUTO = 0  # BATCH_SIZE=auto, until parent.py has chosen one
ALL = 0  # NUM_DEVICES=all, until parent.py has counted them
ROOT = Path(__file__).resolve().parent.parent
SYNONYMS = {"IMAGE_MODEL": "MODEL"}
MAKE_VARIABLES = ("PYTHON", "A", "B", "ISSUE")  # only the Makefile or its command reads these
MOST_WORKERS = 16  # by default, for each device; each worker needs shared memory


class SettingError(Exception):
    """A mistake in what the user asked for: one line that names the setting, its value and the fix."""


@dataclass(frozen=True)
class ByDevice:
    """A default that depends on the device."""

    gpu: Any
    cpu: Any


MEMORY_FORMATS = ("channels_first", "channels_last")
MIXED = ("mixed_float16", "mixed_bfloat16")
WORKLOADS = ("image", "mlp", "transformer", "llm", "diffusion")


@dataclass(frozen=True)
class Framework:
    """What is known about a framework before it is imported; its code is bench/frameworks/on_<name>.py."""

    title: str  # as its makers write it
    memory_formats: tuple[str, ...] = MEMORY_FORMATS  # for image models, the default first
    runs_on_many: bool = False  # devices: NUM_DEVICES, torchrun
    workloads: tuple[str, ...] = ("image", "mlp", "transformer")
    lacks: tuple[str, ...] = ()  # precisions; "threads": the number of CPU threads cannot be set
    always_compiles: bool = False  # COMPILE=0 means 1


FRAMEWORKS = {
    "torch": Framework("PyTorch", runs_on_many=True, workloads=WORKLOADS),
    "tensorflow": Framework("TensorFlow", ("channels_last",), lacks=("float64",)),
    "jax": Framework("JAX", ("channels_last",), lacks=("float64",), always_compiles=True),
    "mlx": Framework("MLX", ("channels_last",), workloads=WORKLOADS[:4], lacks=(*MIXED, "float64", "threads")),
}
FRAMEWORK_SYNONYMS = {"pytorch": "torch", "tf": "tensorflow"}


# Kinds: each parses the text of a setting, or raises ValueError with the words that complete "must be ...".


def whole(minimum, maximum=10**9, **words):
    """Return a parser of a whole number, or of one of the words in any case: whole(1, auto=AUTO)."""

    def parse(text):
        if text.lower() in words:
            return words[text.lower()]
        if not re.fullmatch("[0-9]{1,10}", text) or not minimum <= int(text) <= maximum:
            raise ValueError(", or ".join([f"a whole number from {minimum} to {maximum}", *words]))
        return int(text)

    return parse


def one_of(*names, **synonyms):
    """Return a parser of one of the names, or a synonym of one, in any case."""

    def parse(text):
        value = synonyms.get(text.lower(), text.lower())
        if value not in names:
            raise ValueError("one of: " + ", ".join(names))
        return value

    return parse


def zero_or_one(text):
    if text not in ("0", "1"):
        raise ValueError("1 or 0")
    return text == "1"


def bits_or_full(text):
    """Parse the bits of a weight; full is None: those of PRECISION."""
    name = one_of("8", "6", "5", "4", "full")(text)
    return None if name == "full" else int(name)


def above_zero(text):
    if not re.fullmatch("[0-9]*[.]?[0-9]+", text) or float(text) == 0:
        raise ValueError("a number above 0")
    return float(text)


def matrix_size(text):
    """Parse M for M x M x M, or MxNxK for an M x K by K x N matmul, as (m, n, k)."""
    sides = text.lower().split("x")
    if len(sides) not in (1, 3) or not all(re.fullmatch("[1-9][0-9]{0,5}", side) for side in sides):
        raise ValueError("M or MxNxK, whole numbers from 1 to 999999")
    m, n, k = (int(side) for side in sides * (3 // len(sides)))
    return m, n, k


def version(text):
    if not re.fullmatch("[0-9]+[.][0-9]+[.][0-9]+[a-z0-9]*", text):
        raise ValueError("a version, such as 2.14.1")
    return text


def slug(text):
    """Parse a name that is safe as a file name: lower case, digits and single hyphens."""
    name = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")
    if not name or name == "published":
        raise ValueError("a name with letters or digits, and not 'published'")
    return name[:100]


# What a comma list means: a run for each entry, or one run that uses all entries, whose value is a tuple.
EACH, TOGETHER = "each", "together"


def setting(kind, default, *, commands=None, lists=None) -> Any:
    """Declare one setting; docs/settings.md says what it means. Kind, default and lists may be dicts by command.

    Args:
        kind: text -> value, or ValueError with what the text must be.
        default: the value if the setting is unset; a tuple is a list.
        commands: the commands that use the setting; None means every command.
        lists: what a comma list means: EACH or TOGETHER; None allows one value only.
    """
    return field(metadata={"kind": kind, "default": default, "commands": commands, "lists": lists})


OPTIMIZERS = ("sgd", "adam", "adamw")
PRECISIONS = ("float32", "tf32", "float16", "bfloat16", "float64")
OPS = ("matmul", "convolution", "bandwidth", "int8", "float8", "gemv", "attention")
PARTS = ("forward", "backward", "optimizer")  # of a step of training; each is a phase, too
TRAINING = ("training", *PARTS)
# {setting: the phases that use it}, if only some do.
PHASES_OF = {"optimizer": TRAINING, "lora_rank": TRAINING, "checkpointing": TRAINING}
PHASES_OF |= {"prompt_tokens": ("prefill", *TRAINING), "new_tokens": ("decode",), "depth": ("decode",)}
COMPILE_MODES = ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")  # torch.compile's own names
MLPS = ("mlp-5x1024", "mlp-10x1024", "mlp-15x1024", "mlp-20x1024")
SQUARES = tuple((m, m, m) for m in (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192))


@dataclass(frozen=True)
class Settings:
    """The settings of one run. A setting that the command does not use is None.

    A default that depends on the device is a ByDevice until on().
    """

    use_gpu: bool | None = setting(zero_or_one, None, lists=EACH)  # None: the GPU if there is one
    num_devices: int = setting(whole(1, all=ALL), 1, commands=WORKLOADS, lists=EACH)
    framework: str = setting(one_of(*FRAMEWORKS, **FRAMEWORK_SYNONYMS), "torch")
    model: str = setting(
        str,
        {"image": "resnet50", "mlp": MLPS, "transformer": ("distilbert", "bert-large")}
        | {"llm": ByDevice(gpu="llama-3.2-1b", cpu="smollm2-135m")}
        | {"diffusion": ByDevice(gpu="sd-1.5", cpu="ddpm-cifar10")},
        commands=WORKLOADS,
        lists=EACH,
    )
    phase: str = setting(
        dict.fromkeys(WORKLOADS, one_of("inference", *TRAINING)) | {"llm": one_of("prefill", "decode", *TRAINING)},
        {"image": "inference", "mlp": "training", "transformer": "training", "llm": ("prefill", "decode")}
        | {"diffusion": "inference"},
        commands=WORKLOADS,
        lists=EACH,
    )
    batch_size: int = setting(
        whole(1, auto=AUTO),
        {"image": ByDevice(gpu=64, cpu=16), "mlp": 32, "transformer": ByDevice(gpu=32, cpu=4), "llm": 1}
        | {"diffusion": 1},
        commands=WORKLOADS,
        lists=EACH,
    )
    framework_version: str | None = setting(version, None, commands=WORKLOADS, lists=EACH)  # None: the installed one
    num_images: int | None = setting(whole(1), None, commands=("image", "mlp"))  # None: as many as the interval needs
    # pixels; None: the model's
    image_size: int | None = setting(whole(32, 4096), None, commands=("image", "diffusion"))
    precision: Any = setting(
        dict.fromkeys(WORKLOADS, one_of(*PRECISIONS, *MIXED)) | {"tflops": one_of(*PRECISIONS)},
        {"image": "float32", "mlp": "float32", "transformer": "float32"}
        | dict.fromkeys(("llm", "diffusion"), ByDevice(gpu="bfloat16", cpu="float32"))
        | {"tflops": ("float32", "tf32", "float16", "bfloat16")},
        commands=(*WORKLOADS, "tflops"),
        lists=dict.fromkeys(WORKLOADS, EACH) | {"tflops": TOGETHER},
    )
    compile: str = setting(one_of("0", "1", *COMPILE_MODES), "0", commands=WORKLOADS, lists=EACH)
    # "": the framework's first one
    memory_format: str = setting(one_of(*MEMORY_FORMATS), "", commands=("image", "diffusion"), lists=EACH)
    optimizer: str = setting(
        dict.fromkeys(WORKLOADS, one_of("sgd", "adam")) | dict.fromkeys(("llm", "diffusion"), one_of(*OPTIMIZERS)),
        {"image": "sgd", "mlp": "sgd", "transformer": "adam", "llm": "adamw", "diffusion": "adamw"},
        commands=WORKLOADS,
        lists=EACH,
    )
    sequence_length: int = setting(whole(1, 512), 128, commands=("transformer",), lists=EACH)  # tokens
    prompt_tokens: int = setting(whole(1), 512, commands=("llm",), lists=EACH)
    lora_rank: int = setting(whole(0, 1024), 0, commands=("llm",), lists=EACH)  # 0: train all weights
    checkpointing: bool = setting(zero_or_one, False, commands=("llm",), lists=EACH)
    weight_bits: int | None = setting(bits_or_full, None, commands=("llm",), lists=EACH)  # None: those of PRECISION
    new_tokens: int = setting(whole(1), 128, commands=("llm",))
    depth: int = setting(whole(0), 0, commands=("llm",), lists=EACH)  # tokens
    # None: cifar10 if it can be had
    data: str | None = setting(one_of("cifar10", "synthetic"), None, commands=("mlp",))
    epochs: int = setting(whole(0, 1000), 0, commands=("mlp",))
    sustain: int | None = setting(whole(60, 86_400), None, commands=WORKLOADS)  # seconds
    # (m, n, k) of each
    sizes: tuple[tuple[int, int, int], ...] = setting(matrix_size, SQUARES, commands=("tflops",), lists=TOGETHER)
    ops: tuple[str, ...] = setting(one_of(*OPS), OPS, commands=("tflops",), lists=TOGETHER)
    # None: all in the first process of a run, "device" in the others
    scope: tuple[str, ...] | None = setting(one_of(*SCOPES), None, commands=("image",), lists=TOGETHER)
    # None: the number of cores, up to MOST_WORKERS
    num_workers: int | None = setting(whole(0, 1024), None, commands=("image",))
    num_threads: int | None = setting(whole(1, 4096), None)  # None: the framework's own number
    max_seconds: float = setting(  # limit of one measurement
        above_zero, dict.fromkeys(WORKLOADS, 3.0) | {"tflops": 1.0}, commands=(*WORKLOADS, "tflops")
    )
    runs: int | None = setting(whole(1, 1000), None)  # processes; None: parent.plan_processes() decides
    machine: str | None = setting(slug, None)  # None: the name of the GPU or CPU
    results_dir: Path = setting(lambda text: Path(text).expanduser(), ROOT / "results")
    seed: int = setting(whole(0), 0)
    workload: str = setting(one_of(*WORKLOADS), "image", commands=("best",))
    max_minutes: float = setting(above_zero, 20.0, commands=("best",))
    quick: bool = setting(zero_or_one, False, commands=("all",))

    @property
    def has_ranks(self):
        """Whether NUM_DEVICES starts several processes that share the work, under torchrun."""
        return self.num_devices not in (None, 1)  # ALL is 0

    def on(self, device, emulates_bfloat16=False):
        """Return the settings with the defaults that depend on the device ("cpu", "cuda", "mps" ...)."""
        by_device = {name: value for name, value in vars(self).items() if isinstance(value, ByDevice)}
        chosen = {name: v.cpu if device == "cpu" else v.gpu for name, v in by_device.items()}
        if emulates_bfloat16 and "precision" in chosen:  # training in float16 needs a scaled loss
            chosen["precision"] = "mixed_float16" if self.phase in TRAINING else "float16"
        return replace(self, **chosen)


DECLARED = {declared.name: declared.metadata for declared in fields(Settings)}
# Every variable that has a meaning here.
KNOWN_NAMES = [*map(str.upper, DECLARED), *SYNONYMS, *MAKE_VARIABLES]


@dataclass(frozen=True, eq=False)  # compared by identity, so that it can be the key of a dict
class Run:
    """One combination of the settings of a command, measured in as many processes as RUNS says.

    Each process gets its environment, and parses it once.
    """

    command: str  # "image": what follows make
    settings: Settings
    environ: dict[str, str]  # the whole environment, without MAKEFLAGS
    choices: dict[str, str] = field(default_factory=dict)  # {variable: text}: this run's entry of each comma list
    python: str = sys.executable  # of its processes; another one has another version of the framework

    def with_settings(self, command=None, **texts):
        """Return the run after a change of its environment, or the same one of another command.

        Args:
            texts: {variable: text, or None to unset it}.

        Raises:
            SettingError: a wrong value, or settings that exclude each other.
        """
        environ = {name: text for name, text in (self.environ | texts).items() if text is not None}
        command = command or self.command
        return replace(self, command=command, settings=parse_settings(command, environ), environ=environ)


def read_runs(command, environ=os.environ, also=()):
    """Read the runs that a command's settings and their comma lists ask for: at least one.

    Runs that differ only in settings which their phase does not use count once.

    Args:
        command: what follows make: "image".
        also: other commands whose settings may be on make's command line.

    Raises:
        SettingError: a wrong value, a misspelt name, or settings that exclude each other.
    """
    refuse_misspelt((command, *also), environ)
    environ = {name: text for name, text in environ.items() if name != "MAKEFLAGS"}
    lists = []
    for name in DECLARED:
        entries = read_entries(name, command, environ)
        if len(entries) > 1 and declared_for(name, "lists", command) == EACH:
            given = find_given(name, environ)
            texts = [text.strip() for text in environ[given].split(",")] if given else entries
            lists.append([(given or name.upper(), text) for text in texts])
    runs = {}
    for choices in map(dict, product(*lists)):  # without lists: once, {}
        run = Run(command, parse_settings(command, environ | choices), environ | choices, choices)
        names = [SYNONYMS.get(variable, variable).lower() for variable in choices]
        used = (name for name in names if is_used_in(name, run.settings.phase))
        runs.setdefault(tuple(getattr(run.settings, name) for name in used), run)
    return list(runs.values())


def read_settings(command, environ=os.environ):
    """Read the settings of a command that has one run; raises SettingError as read_runs() does."""
    refuse_misspelt((command,), environ)
    return parse_settings(command, environ)


def read_fixed_run(command, environ=os.environ):
    """Read the run of a command of fixed work ("all"); raises SettingError for a setting that would change the work."""
    runs = read_runs(command, environ)
    for given in (find_given(name, environ) for name in DECLARED if not is_used(name, command)):
        if given:
            raise SettingError(f"{given}={environ[given]!r} would change the work of `make {command}`: unset {given}")
    if len(runs) > 1:
        raise SettingError(f"USE_GPU={environ['USE_GPU']!r}: `make {command}` measures one device: set a single value")
    return runs[0]


def parse_settings(command, environ):
    """Parse the settings of one run; of a list that asks for several runs, the first entry counts.

    Raises:
        SettingError: a wrong value, or settings that exclude each other.
    """
    values = {}
    for name in DECLARED:
        entries = read_entries(name, command, environ)
        is_list = is_used(name, command) and declared_for(name, "lists", command) == TOGETHER
        is_list = is_list and entries != (None,)  # SCOPE's default is None, not a list of it
        values[name] = entries if is_list else entries[0]
    framework = FRAMEWORKS[values["framework"]]
    if values["memory_format"] == "":
        values["memory_format"] = framework.memory_formats[0]
    if values["compile"] == "0" and framework.always_compiles:
        values["compile"] = "1"
    settings = Settings(**values)
    refuse_contradictions(command, settings, environ)
    return settings


def is_used_in(name, phase):
    """Return whether a phase uses the setting of this name ("depth")."""
    return name not in PHASES_OF or phase in PHASES_OF[name]


def declared_for(name, key, command):
    """Return what the declaration of a setting says about a command: its "kind", "default" or "lists"."""
    value = DECLARED[name][key]
    return value.get(command) if isinstance(value, dict) else value


def is_used(name, command):
    """Return whether a command uses a setting."""
    commands = DECLARED[name]["commands"]
    return commands is None or command in commands


def find_given(name, environ):
    """Return the variable of the environment that sets a setting, which may be a synonym; None if it is unset."""
    names = [name.upper(), *(synonym for synonym, meant in SYNONYMS.items() if meant == name.upper())]
    return next((variable for variable in names if variable in environ), None)


def read_entries(name, command, environ):
    """Return the values of a setting as a tuple: one, or one for each entry of a list."""
    if not is_used(name, command):
        return (None,)
    variable = find_given(name, environ)
    if not variable:
        default = declared_for(name, "default", command)
        return default if isinstance(default, tuple) else (default,)
    text = environ[variable].strip()
    entries = list(dict.fromkeys(map(str.strip, text.split(",")))) if declared_for(name, "lists", command) else [text]
    if not all(entries):
        raise SettingError(f"{variable}={text!r} has an empty value: fill it in, or unset {variable}")
    try:
        return tuple(map(declared_for(name, "kind", command), entries))
    except ValueError as error:
        every = ", in every entry" if len(entries) > 1 else ""
        raise SettingError(f"{variable}={text!r} must be {error}{every}") from None


def refuse_contradictions(command, settings, environ):
    """Raise SettingError for settings that exclude each other; none of them is dropped silently."""
    s = settings
    framework = FRAMEWORKS[settings.framework]
    precisions = s.precision if isinstance(s.precision, tuple) else (s.precision,)
    is_generation = s.phase in ("prefill", "decode")
    is_channels_first = s.memory_format and s.memory_format not in framework.memory_formats
    can_have_bits = is_generation or (s.framework == "mlx" and s.lora_rank)
    able = " and ".join(name for name, known in FRAMEWORKS.items() if command in known.workloads)
    table = [  # (whether they exclude each other, their names, the reason or the fix)
        (command in WORKLOADS and command not in framework.workloads, "framework", f"only {able} can run {command}"),
        (s.framework != "torch" and s.compile in COMPILE_MODES, "framework compile", "the mode is torch's: set 1 or 0"),
        (is_channels_first, "framework memory_format", "it supports only channels_last here"),
        (set(precisions) & set(framework.lacks), "framework precision", "it lacks this precision: set another one"),
        (s.precision in MIXED and is_generation, "phase precision", "mixed precision needs PHASE=training"),
        (s.framework == "mlx" and s.compile == "1" and is_generation, "framework compile", "its cache uses Python"),
        (s.weight_bits in (5, 6) and s.framework == "torch", "framework weight_bits", "PyTorch has 8 and 4: set one"),
        (s.weight_bits and not can_have_bits, "framework phase lora_rank weight_bits", "set LORA_RANK=8 in mlx"),
        (s.num_threads and "threads" in framework.lacks, "framework num_threads", "it has no such setting"),
        (s.ops and "convolution" in s.ops and "matmul" not in s.ops, "ops", "convolution needs matmul: add it"),
        (s.has_ranks and not framework.runs_on_many, "framework num_devices", "it runs on one device here"),
        (s.has_ranks and s.batch_size == AUTO, "num_devices batch_size", "auto works only on one device"),
        (s.has_ranks and s.epochs, "num_devices epochs", "epochs are trained only on one device"),
        (s.epochs and s.batch_size == AUTO, "batch_size epochs", "epochs need a batch size"),
        (s.epochs and s.phase != "training", "phase epochs", "epochs need PHASE=training"),
        (s.phase in PARTS and s.batch_size == AUTO, "phase batch_size", "set a batch size, or PHASE=training"),
        (s.phase in PARTS and {*(s.scope or ())} - {"device"}, "phase scope", "set SCOPE=device, or PHASE=training"),
        (s.phase in PARTS and s.sustain, "phase sustain", "set PHASE=training, or unset SUSTAIN"),
    ]
    for name in ("scope", "num_images", "epochs"):
        table.append((s.sustain and name.upper() in environ and getattr(s, name), f"sustain {name}", "unset one"))
    for excludes, names, reason in table:
        if excludes:
            given = ((name.upper(), getattr(s, name)) for name in names.split())
            words = " with ".join(f"{name}={environ.get(name, value)!r}" for name, value in given)
            raise SettingError(f"{words} cannot run: {reason}")


def refuse_misspelt(commands, environ):
    """Raise SettingError for a name that is not a setting but was probably meant as one.

    On make's command line (in MAKEFLAGS) any unknown name is refused, and so is a setting that none of the commands
    uses. The environment has many names of other programs: there only near misses of our settings are refused.
    """
    # A backslash escapes a space within a value.
    for name in re.findall(r"(?:^|(?<!\\)\s)([A-Za-z_]\w*)[:+?]*=", environ.get("MAKEFLAGS", "")):
        if name not in KNOWN_NAMES:
            near = difflib.get_close_matches(name.upper(), KNOWN_NAMES, n=1)
            raise SettingError(f"{name} is not a setting: {f'did you mean {near[0]}?' if near else 'see `make help`'}")
        meant = SYNONYMS.get(name, name).lower()
        if name not in MAKE_VARIABLES and not any(is_used(meant, command) for command in commands):
            raise SettingError(f"{name} is not used by this command: leave it out (`make settings` lists what uses it)")
    ours = [name for name in KNOWN_NAMES if name not in MAKE_VARIABLES]
    for name in sorted(environ.keys() - {*KNOWN_NAMES, "COMPILER"}):  # COMPILER is not a misspelt COMPILE
        # MODE, RUN and SIZE are ordinary names: a short setting is recognised only in the wrong case.
        similar = [each for each in ours if len(each) >= 6 or each == name.upper()]
        for near in difflib.get_close_matches(name.upper(), similar, n=1, cutoff=0.88):
            raise SettingError(f"{name}={environ[name]!r} is not a setting: did you mean {near}?")
