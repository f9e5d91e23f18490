"""Every setting and every framework, each declared once, and the reading of settings from the environment.

    python -m bench.settings image    refuses a wrong setting of a command; `make` asks it before it installs anything

docs/settings.md, which `make settings` shows, says what each setting means. Standard library only.
"""

import difflib
import os
import re
import sys
import unicodedata
import uuid
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

# What SCOPE may select: the model with batches that are on the device; the input pipeline alone, which prepares batches
# from JPEG files; both together. Rows also have "epoch" and "sustained".
SCOPES = ("device", "input", "end_to_end")
ROOT = Path(__file__).resolve().parent.parent
SYNONYMS = {"IMAGE_MODEL": "MODEL"}
MAKE_VARIABLES = ("PYTHON", "CUDA_BUILD", "A", "B")  # only the Makefile or its command reads these
MOST_WORKERS = 16  # by default, for each device; each worker needs shared memory


class SettingError(Exception):
    """A mistake in what the user asked for: one line that names the setting, its value and the fix."""


MEMORY_FORMATS = ("channels_first", "channels_last")
MIXED = ("mixed_float16", "mixed_bfloat16")
WORKLOADS = ("image", "mlp", "transformer", "llm", "diffusion")


def unmixed(precision):
    """Return the precision of the matmuls: with mixed_float16 it is float16."""
    return precision.removeprefix("mixed_")


@dataclass(frozen=True)
class Framework:
    """What is known about a framework before it is imported; its code is bench/frameworks/<folder>/on_<name>.py."""

    title: str  # as its makers write it
    memory_formats: tuple[str, ...] = MEMORY_FORMATS  # of images, the default first
    runs_on_many: bool = False  # devices: NUM_DEVICES, torchrun
    measures_parts: bool = False  # of a step of training, and of a whole pipeline: PHASE=forward, SCOPE=input
    workloads: tuple[str, ...] = ("image", "mlp", "transformer")
    lacks: tuple[str, ...] = ()  # precisions; "threads": the number of CPU threads cannot be set
    always_compiles: bool = False  # unless COMPILE is set, it is 1


FRAMEWORKS = {
    "torch": Framework("PyTorch", runs_on_many=True, measures_parts=True, workloads=WORKLOADS),
    "tensorflow": Framework("TensorFlow", ("channels_last",), lacks=("float64",)),
    "jax": Framework("JAX", ("channels_last",), lacks=("float64",), always_compiles=True),
    "mlx": Framework("MLX", ("channels_last",), workloads=WORKLOADS[:4], lacks=(*MIXED, "float64", "threads")),
}


# Kinds: each parses the text of a setting, or raises ValueError with the words that complete "must be ...".


def whole(minimum, maximum=10**9, words=()):
    """Return a parser of a whole number, or of one of the words in any case, which is the value."""

    def parse(text):
        if text.lower() in words:
            return text.lower()
        if not re.fullmatch("[0-9]{1,10}", text) or not minimum <= int(text) <= maximum:
            raise ValueError(", or ".join([f"a whole number from {minimum} to {maximum}", *words]))
        return int(text)

    return parse


def one_of(*names, **meaning):
    """Return a parser of one of the names, in any case; meaning: {text: value}, if the value is not the text itself."""

    def parse(text):
        name = text.lower()
        if name not in (*names, *meaning):
            near = difflib.get_close_matches(name, names, n=1)
            raise ValueError("one of: " + ", ".join(names) + (f"; did you mean {near[0]}?" if near else ""))
        return meaning.get(name, name)

    return parse


SWITCH = {"0": False, "1": True}
zero_or_one = one_of(*SWITCH, **SWITCH)


def above_zero(text):
    """Parse a number above 0."""
    if not re.fullmatch("[0-9]*[.]?[0-9]+", text) or float(text) == 0:
        raise ValueError("a number above 0, whose decimals follow a point")
    return float(text)


def matrix_size(text):
    """Parse M for M x M x M, or MxNxK for an M x K by K x N matmul, as (m, n, k)."""
    sides = text.lower().split("x")
    if len(sides) not in (1, 3) or not all(re.fullmatch("[1-9][0-9]{0,5}", side) for side in sides):
        raise ValueError("M or MxNxK, whole numbers from 1 to 999999")
    m, n, k = (int(side) for side in sides * (3 // len(sides)))
    return m, n, k


def slug(text):
    """Parse a name that is safe as a file name: lower case, digits and single hyphens."""
    text = unicodedata.normalize("NFKD", text.lower()).encode("ascii", "ignore").decode()  # ü becomes u
    name = re.sub("[^a-z0-9]+", "-", text).strip("-")
    if not name or name == "published":
        raise ValueError("a name with letters or digits, and not 'published'")
    return name[:100]


# What a comma list means: a run for each entry, or one run that uses all entries, whose value is a tuple.
EACH, TOGETHER = "each", "together"


def setting(parse, default=None, commands=None, lists=None) -> Any:
    """Declare one setting; docs/settings.md says what it means.

    Args:
        parse: text -> value, or ValueError with what the text must be. A dict: {command: its parser, "": the others'}.
        default: the text that an unset variable stands for, unless DEFAULTS has another one for the command. None: the
            value is None, and is decided later.
        commands: the commands that use the setting; None means every command.
        lists: what a comma list means: EACH or TOGETHER; None allows one value only. May be a dict like parse.
    """
    return field(metadata={"parse": parse, "default": default, "commands": commands, "lists": lists})


OPTIMIZERS = ("sgd", "adam", "adamw")
PRECISIONS = ("float32", "tf32", "float16", "bfloat16", "float64")
PRECISION_SYNONYMS = {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp64": "float64"}
BITS = {"8": 8, "6": 6, "5": 5, "4": 4, "full": None}  # of each weight; None: those of PRECISION
OPS = ("matmul", "convolution", "bandwidth", "int8", "float8")
PARTS = ("forward", "backward", "optimizer")  # of a step of training; each is a phase, too
TRAINING = ("training", *PARTS)
# {setting: the phases that use it}, if only some do.
PHASES_OF = {"optimizer": TRAINING, "lora_rank": TRAINING}
PHASES_OF |= {"prompt_tokens": ("prefill", *TRAINING), "new_tokens": ("decode",), "depth": ("decode",)}
COMPILE_MODES = ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")  # torch.compile's own names
# Defaults that depend on the command, {command: {setting: text}}, and those that are others on a CPU.
DEFAULTS = {
    "image": {"model": "resnet50", "phase": "inference", "batch_size": "64"},
    "mlp": {"model": "mlp-5x1024,mlp-10x1024,mlp-15x1024,mlp-20x1024", "phase": "training", "batch_size": "32"},
    "transformer": {"model": "distilbert,bert-large", "phase": "training", "batch_size": "32", "optimizer": "adam"},
    "llm": {"model": "llama-3.2-1b", "phase": "prefill,decode", "precision": "bfloat16", "optimizer": "adamw"},
    "diffusion": {"model": "sd-1.5", "phase": "inference", "precision": "bfloat16", "optimizer": "adamw"},
    "tflops": {"precision": "float32,tf32,float16,bfloat16", "max_seconds": "1"},
}
ON_CPU = {
    "image": {"batch_size": "16"},
    "transformer": {"batch_size": "4"},
    "llm": {"model": "smollm2-135m", "precision": "float32"},
    "diffusion": {"model": "ddpm-cifar10", "precision": "float32"},
}
# Settings whose lists are compared in slices; if there are several lists, the first of these.
COMPARED = ("USE_GPU", "FRAMEWORK", "BATCH_SIZE", "PRECISION", "COMPILE", "MEMORY_FORMAT", "OPTIMIZER")
COMPARED += ("SEQUENCE_LENGTH", "PROMPT_TOKENS", "DEPTH", "LORA_RANK", "WEIGHT_BITS")
# Only commands that measure what their settings say take a list of a setting that every command has.
MEASURES_EACH = dict.fromkeys((*WORKLOADS, "tflops", "install"), EACH)


@dataclass(frozen=True)
class Settings:
    """The settings of one run. Those that the command does not use are None, or () if one process takes a list.

    Until on(), unset settings that depend on the device have their values for a GPU.
    """

    use_gpu: bool | None = setting(zero_or_one, lists=MEASURES_EACH)  # None: the GPU if there is one
    num_devices: Any = setting(whole(1, words=("all",)), "1", WORKLOADS, EACH)  # "all": run.py counts them
    framework: str = setting(one_of(*FRAMEWORKS, pytorch="torch", tf="tensorflow"), "torch", lists=MEASURES_EACH)
    model: str = setting(str, None, WORKLOADS, EACH)
    phase: str = setting(
        {"": one_of("inference", *TRAINING), "llm": one_of("prefill", "decode", *TRAINING)}, None, WORKLOADS, EACH
    )
    batch_size: int = setting(whole(1), "1", WORKLOADS, EACH)
    num_images: int | None = setting(whole(1), None, ("image", "mlp"))  # None: as many as the interval needs
    image_size: int | None = setting(whole(32, 4096), None, ("image", "diffusion"))  # pixels; None: the model's
    precision: Any = setting(
        {"": one_of(*PRECISIONS, *MIXED, **PRECISION_SYNONYMS), "tflops": one_of(*PRECISIONS, **PRECISION_SYNONYMS)},
        "float32",
        commands=(*WORKLOADS, "tflops"),
        lists={"": EACH, "tflops": TOGETHER},
    )
    compile: bool | str = setting(one_of(*SWITCH, *COMPILE_MODES, **SWITCH), "0", WORKLOADS, EACH)
    # None: the framework's first one
    memory_format: str = setting(one_of(*MEMORY_FORMATS), None, ("image", "diffusion"), EACH)
    optimizer: str = setting(
        {"": one_of("sgd", "adam")} | dict.fromkeys(("llm", "diffusion"), one_of(*OPTIMIZERS)), "sgd", WORKLOADS, EACH
    )
    sequence_length: int = setting(whole(1, 512), "128", ("transformer",), EACH)  # tokens
    prompt_tokens: int = setting(whole(1), "512", ("llm",), EACH)
    lora_rank: int = setting(whole(0, 1024), "0", ("llm",), EACH)  # 0: train all weights
    weight_bits: int | None = setting(one_of(*BITS, **BITS), "full", ("llm",), EACH)
    new_tokens: int = setting(whole(1), "128", ("llm",))
    depth: int = setting(whole(0), "0", ("llm",), EACH)  # tokens
    data: str | None = setting(one_of("cifar10", "synthetic"), None, ("mlp",))  # None: cifar10 if it is available
    epochs: int = setting(whole(0, 1000), "0", ("mlp",))
    sustain: int | None = setting(whole(60, 86_400), None, WORKLOADS)  # seconds
    # (m, n, k) of each
    sizes: tuple = setting(matrix_size, "32,64,128,256,512,1024,2048,4096,8192", ("tflops",), TOGETHER)
    ops: tuple[str, ...] = setting(one_of(*OPS), ",".join(OPS), ("tflops",), TOGETHER)
    # (): all, or "device" if a list is compared
    scope: tuple[str, ...] = setting(one_of(*SCOPES), None, ("image",), TOGETHER)
    num_workers: int | None = setting(whole(0, 1024), None, ("image",))  # None: the cores, up to MOST_WORKERS
    num_threads: int | None = setting(whole(1, 4096))  # None: the framework's own number
    max_seconds: float = setting(above_zero, "3", (*WORKLOADS, "tflops"))  # limit of one measurement
    runs: int | None = setting(whole(1, 1000))  # processes; None: count_processes() of run.py decides
    machine: str | None = setting(slug)  # None: the name of the GPU or CPU
    results_dir: Path = setting(lambda text: Path(text).expanduser(), str(ROOT / "results"))
    seed: int = setting(whole(0), "0")
    workload: str = setting(one_of(*WORKLOADS), "image", ("best",))
    max_minutes: float = setting(above_zero, "20", ("best",))
    quick: bool = setting(zero_or_one, "0", ("all",))
    format: str = setting(one_of("png", "svg"), "png", ("plot",))
    cpu_defaults: dict[str, Any] = field(default_factory=dict, hash=False)  # not a setting: unset ones, on a CPU

    @property
    def has_ranks(self):
        """Return whether NUM_DEVICES (above 1, or all) starts ranks, which share the work."""
        return self.num_devices not in (None, 1)

    def on(self, device, emulates_bfloat16=False):
        """Return the settings for a device ("cpu", "cuda", "mps" ..., or "gpu" for any other than a CPU)."""
        if device == "cpu":
            return replace(self, **self.cpu_defaults)
        # The precision is a default then, not the user's. Training in float16 needs a scaled loss.
        if emulates_bfloat16 and "precision" in self.cpu_defaults:
            return replace(self, precision="mixed_float16" if self.phase in TRAINING else "float16")
        return self

    def cell(self, name):
        """Return a setting as a cell of a row has it: 1 or 0 instead of True or False."""
        value = getattr(self, name)
        return int(value) if isinstance(value, bool) else value


DECLARED = {declared.name: declared.metadata for declared in fields(Settings) if declared.metadata}
# Every variable that has a meaning here.
KNOWN_NAMES = [*map(str.upper, DECLARED), *SYNONYMS, *MAKE_VARIABLES]


def new_id():
    """Return a name of a run or a group that no other one has."""
    return uuid.uuid4().hex[:12]


@dataclass(frozen=True, eq=False)  # compared by identity, so that it can be the key of a dict
class Run:
    """One combination of the settings of a command, measured in as many processes as RUNS says.

    Each process gets its environment, and parses it once.
    """

    command: str  # "image": what follows make
    settings: Settings
    environ: dict[str, str]  # the whole environment, without MAKEFLAGS
    choices: dict[str, str] = field(default_factory=dict)  # {variable: its entry of each comma list, as it is printed}
    run_id: str = field(default_factory=new_id)  # in its rows

    @property
    def differences(self):
        """Return the choices, with the memory format if that may differ because a list of frameworks is compared."""
        if "FRAMEWORK" in self.choices and self.settings.memory_format:
            return self.choices | {"MEMORY_FORMAT": self.settings.memory_format}
        return self.choices

    def with_settings(self, command=None, **texts):
        """Return the run of a changed environment, {variable: text, or None to unset it}, or of another command."""
        environ = {name: text for name, text in (self.environ | texts).items() if text is not None}
        command = command or self.command
        return Run(command, parse_settings(command, environ), environ, self.choices)


def read_runs(command, environ=os.environ, also=()):
    """Read the runs that a command's settings and their comma lists ask for: at least one.

    Runs that differ only in settings which their phase does not use count once, and so do different texts of one value.

    Args:
        command: what follows make: "image".
        also: other commands whose settings may be on make's command line.

    Raises:
        SettingError: a wrong value, a misspelt name, settings that exclude each other, or one that no run uses.
    """
    check_names((command, *also), environ)
    environ = {SYNONYMS.get(name, name): text for name, text in environ.items() if name != "MAKEFLAGS"}
    texts = {name.upper(): read_texts(name, command, environ) for name in DECLARED}
    lists = [name for name, some in texts.items() if len(some) > 1 and declared_for(name, "lists", command) == EACH]
    runs = {}  # by the values that make them different
    for entries in product(*(texts[name] for name in lists)):  # without lists: once, ()
        choices = dict(zip(lists, entries, strict=True))
        run = Run(command, parse_settings(command, environ | choices), environ | choices, choices)
        used = [name.lower() for name in lists if is_used_in(name.lower(), run.settings.phase)]
        runs.setdefault(tuple(getattr(run.settings, name) for name in used), run)
    check_used(command, runs.values(), environ)
    return list(runs.values())


def read_settings(command, environ=os.environ):
    """Read the settings of a command that has one run; raises SettingError as read_runs() does."""
    check_names((command,), environ)
    return parse_settings(command, {SYNONYMS.get(name, name): text for name, text in environ.items()})


def parse_settings(command, environ):
    """Parse the settings of one run, that of the first entries of its lists; raises SettingError for a wrong one."""
    values = {}
    for name in DECLARED:
        entries = parse_texts(name, command, read_texts(name, command, environ))
        is_list = declared_for(name, "lists", command) == TOGETHER
        values[name] = tuple(dict.fromkeys(entries)) if is_list else next(iter(entries), None)
    framework = FRAMEWORKS[values["framework"]]
    if is_used("memory_format", command) and not values["memory_format"]:
        values["memory_format"] = framework.memory_formats[0]
    if values["compile"] is False and framework.always_compiles and "COMPILE" not in environ:
        values["compile"] = True
    on_cpu = {name: text for name, text in ON_CPU.get(command, {}).items() if name.upper() not in environ}
    cpu_defaults = {name: declared_for(name, "parse", command)(text) for name, text in on_cpu.items()}
    settings = Settings(**values, cpu_defaults=cpu_defaults)
    check_compatible(command, settings, environ)
    return settings


def is_used_in(name, phase):
    """Return whether a phase uses the setting of this name ("depth")."""
    return name not in PHASES_OF or phase in PHASES_OF[name]


def declared_for(name, key, command):
    """Return what the declaration of a setting says about a command: its "parse" or "lists"."""
    value = DECLARED[name.lower()][key]
    return value.get(command, value.get("")) if isinstance(value, dict) else value


def is_used(name, command):
    """Return whether a command uses a setting."""
    commands = DECLARED[name]["commands"]
    return commands is None or command in commands


def read_texts(name, command, environ):
    """Return the texts of a setting's entries; [] if it is unused or decided later."""
    variable = name.upper()
    text = environ.get(variable, DEFAULTS.get(command, {}).get(name, DECLARED[name]["default"]))
    if text is None or not is_used(name, command):
        return []
    texts = [each.strip() for each in (text.split(",") if declared_for(name, "lists", command) else [text])]
    if not all(texts):
        fix = f"fill it in, leave out its comma, or unset {variable}"
        raise SettingError(f"{variable}={text!r} has an empty value: {fix}")
    return texts


def parse_texts(name, command, texts):
    """Return the values of a setting's entries; raises SettingError for a wrong one."""
    try:
        return [declared_for(name, "parse", command)(text) for text in texts]
    except ValueError as error:
        hint = ", in every entry" if len(texts) > 1 else ""
        if not declared_for(name, "lists", command) and "," in texts[0]:
            hint = f"; `make {command}` takes one value of {name.upper()}"
        elif re.search(r"\w[\s;|+]+\w", texts[0]):
            hint = "; a list has commas"
        raise SettingError(f"{name.upper()}={','.join(texts)!r} must be {error}{hint}") from None


def check_compatible(command, settings, environ):
    """Raise SettingError for settings that exclude each other; none of them is dropped silently."""
    s = settings
    framework = FRAMEWORKS[s.framework]
    precisions = {*s.precision} if isinstance(s.precision, tuple) else {s.precision}
    is_generation = s.phase in ("prefill", "decode")
    is_channels_first = s.memory_format and s.memory_format not in framework.memory_formats
    able = " or ".join(name for name, known in FRAMEWORKS.items() if command in known.workloads)
    lacks_matmul = s.ops and "matmul" not in s.ops
    lacks_parts = not framework.measures_parts
    table = [  # (whether they exclude each other, their names, the reason and the fix)
        (command in WORKLOADS and command not in framework.workloads, "framework", f"it has no {command}: set {able}"),
        (is_generation and s.compile and s.framework == "mlx", "phase compile", "mlx compiles no cache: set COMPILE=0"),
        (s.compile in COMPILE_MODES and s.framework != "torch", "framework compile", "it has no modes: set COMPILE=1"),
        (s.compile is False and framework.always_compiles, "framework compile", "it always compiles: set COMPILE=1"),
        (is_channels_first, "framework memory_format", "it only has channels_last here: unset MEMORY_FORMAT"),
        (precisions & set(framework.lacks), "framework precision", "it lacks this precision: set another one"),
        (s.precision in MIXED and is_generation, "phase precision", "it has no autocast: set PRECISION=bfloat16"),
        (s.weight_bits and s.framework != "mlx", "framework weight_bits", "only mlx has them: set FRAMEWORK=mlx"),
        (s.weight_bits and not is_generation, "phase weight_bits", "it is not trained: set PHASE=prefill,decode"),
        (s.num_threads and "threads" in framework.lacks, "framework num_threads", "it has no such setting: unset it"),
        (lacks_matmul and "convolution" in s.ops, "ops", "convolution needs matmul: set OPS=matmul,convolution"),
        (s.has_ranks and not framework.runs_on_many, "framework num_devices", "it uses one device: set NUM_DEVICES=1"),
        (s.has_ranks and s.epochs, "num_devices epochs", "epochs are trained on one device: set NUM_DEVICES=1"),
        (s.epochs and s.phase != "training", "phase epochs", "epochs are training: set PHASE=training"),
        (s.sustain and s.scope, "sustain scope", "a sustained run measures the model: unset SCOPE"),
        (s.sustain and s.num_images, "sustain num_images", "only one can end the run: unset one"),
        (s.sustain and s.epochs, "sustain epochs", "only one can end the run: unset one"),
        (lacks_matmul and "SIZES" in environ, "ops sizes", "only matmul has sizes: add matmul, or unset SIZES"),
        (lacks_matmul and "PRECISION" in environ, "ops precision", "only matmul uses it: add matmul, or unset it"),
        (s.phase in PARTS and {*s.scope} - {"device"}, "phase scope", "a part has no pipeline: set SCOPE=device"),
        ({*s.scope} - {"device"} and lacks_parts, "framework scope", "only torch has a pipeline: set SCOPE=device"),
        (s.phase in PARTS and lacks_parts, "framework phase", "only torch measures parts: set PHASE=training"),
        (s.phase in PARTS and s.sustain, "phase sustain", "parts are not sustained: unset SUSTAIN"),
    ]
    for excludes, names, reason in table:
        if excludes:
            texts = {name.upper(): environ.get(name.upper(), str(s.cell(name))) for name in names.split()}
            given = " and ".join(f"{name}={text!r}" for name, text in texts.items())
            raise SettingError(f"{given} cannot be {'combined' if len(texts) > 1 else 'used'}, because {reason}")


def check_used(command, runs, environ):
    """Raise SettingError for a setting that no phase of these runs uses, and for one that `make all` does not use."""
    for name in (name for name in DECLARED if name.upper() in environ):
        given = f"{name.upper()}={environ[name.upper()]!r}"
        if command == "all" and not is_used(name, command):
            raise SettingError(f"{given} would change the work of `make all`: unset {name.upper()}")
        if is_used(name, command) and not any(is_used_in(name, run.settings.phase) for run in runs):
            raise SettingError(f"{given} is not used: set PHASE={PHASES_OF[name][0]}, or unset {name.upper()}")


def check_names(commands, environ):
    """Raise SettingError for a name that is not a setting but was probably meant as one.

    On make's command line (in MAKEFLAGS) any unknown name is refused, and so is a setting that none of the commands
    uses. The environment has many names of other programs: there only near misses of our settings are refused.
    """
    # MAKEFLAGS is "k -- NAME=value OTHER:=value"; a backslash escapes a space within a value.
    for name in re.findall(r"(?:^|(?<!\\)\s)([A-Za-z_]\w*)[:+?]*=", environ.get("MAKEFLAGS", "")):
        if name not in KNOWN_NAMES:
            near = "".join(difflib.get_close_matches(name.upper(), KNOWN_NAMES, n=1))
            raise SettingError(f"{name} is not a setting: {f'did you mean {near}?' if near else 'see `make help`'}")
        meant = SYNONYMS.get(name, name).lower()
        if name not in MAKE_VARIABLES and not any(is_used(meant, command) for command in commands):
            raise SettingError(f"{name} is not used by this command: leave it out (`make settings` lists what uses it)")
    ours = [name for name in KNOWN_NAMES if name not in MAKE_VARIABLES]
    for name in sorted(environ.keys() - {*KNOWN_NAMES, "COMPILER"}):  # COMPILER is not a misspelt COMPILE
        # MODE, RUN and SIZE are ordinary names: a short setting is recognised only in the wrong case.
        similar = [each for each in ours if len(each) >= 6 or each == name.upper()]
        for near in difflib.get_close_matches(name.upper(), similar, n=1, cutoff=0.88):
            raise SettingError(f"{name}={environ[name]!r} is not a setting: did you mean {near}?")


def main(commands):
    """Read the settings of commands as they do; return the exit status, 2 for a mistake."""
    try:
        for command in commands:
            run, *_ = read_runs(command, also=WORKLOADS if command == "best" else ())
            if command == "best":
                read_runs(run.settings.workload, also=("best",))
    except SettingError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
