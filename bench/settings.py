"""Every setting and every framework, each declared once, and the reading of settings from the environment.

    python -m bench.settings    refuses wrong settings; `make` asks it before it installs anything

docs/settings.md, which `make settings` shows, says what each setting means. Standard library only.
"""

import difflib
import math
import os
import re
import sys
import unicodedata
import uuid
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SYNONYMS = {"IMAGE_MODEL": "MODEL"}
MAKE_VARIABLES = ("PYTHON", "CUDA_BUILD", "A", "B", "BASE")  # only the Makefile or its command reads these
WORKLOADS = ("image", "mlp", "transformer", "llm", "diffusion")
# The model with batches on the device; the pipeline of JPEG files alone; both. Rows also have "epoch" and "sustained".
SCOPES = ("device", "input", "end_to_end")
PARTS = ("forward", "backward", "optimizer")  # what a step of training consists of; each is a phase, too
TRAINING = ("training", *PARTS)
GENERATION = ("prefill", "decode")
OPTIMIZERS = ("sgd", "adam", "adamw")
READ = ("framework", "results_dir")  # what commands use that only read results
READERS = {"plot": READ, "compare": (*READ, "a", "b"), "submit": (*READ, "machine", "base"), "check-results": ("base",)}
READING = ("all", "best", "tflops", *WORKLOADS, *READERS)  # commands that read settings
OPS = ("matmul", "convolution", "bandwidth", "int8", "float8")
MIXED = ("mixed_float16", "mixed_bfloat16")
EACH, TOGETHER = "each", "together"  # what a comma list means: a run for each entry; one run that uses all
COMPILE_MODES = ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")  # torch.compile's own names
FILES = ("input", "end_to_end")  # scopes with an input pipeline


def is_many(devices):
    """Return whether NUM_DEVICES is above 1, or all; it is None in commands that do not use it."""
    return devices not in (None, 1)


# {name: as its makers write it}; its code is bench/frameworks/<folder>/on_<name>.py.
FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX", "mlx": "MLX"}
# {framework: {setting, or "command": the values that it cannot have}}, or a function that tells of each.
NOT_TORCH = {"num_devices": is_many, "phase": PARTS, "scope": FILES, "memory_format": ("channels_first",)}
NOT_TORCH |= {"compile": COMPILE_MODES, "precision": ("float64",)}
KERAS = NOT_TORCH | {"command": ("llm", "diffusion")}
LACKS = {
    "torch": {},
    "tensorflow": KERAS,
    "jax": KERAS | {"compile": (0, *COMPILE_MODES)},
    "mlx": NOT_TORCH | {"command": ("diffusion",), "precision": ("float64", *MIXED), "num_threads": bool},
}
# Settings that exclude each other: ({setting, or "command": values as above}, the reason and the fix).
EXCLUDED = [
    ({"command": ("llm",), "phase": ("inference",)}, "it has two phases here: set PHASE=prefill,decode"),
    ({"command": (*WORKLOADS[:3], "diffusion"), "phase": GENERATION}, "only make llm has it: set PHASE=inference"),
    ({"command": WORKLOADS[:3], "optimizer": ("adamw",)}, "only llm and diffusion have it: set OPTIMIZER=adam"),
    ({"command": ("tflops",), "precision": MIXED}, "an operator has no autocast: set PRECISION=bfloat16"),
    ({"phase": GENERATION, "precision": MIXED}, "it has no autocast: set PRECISION=bfloat16"),
    ({"phase": GENERATION, "compile": (1,), "framework": ("mlx",)}, "its cache is not compiled: set COMPILE=0"),
    ({"phase": TRAINING, "weight_bits": bool}, "they are not trained: set PHASE=prefill,decode"),
    ({"framework": ("torch",), "weight_bits": bool}, "only MLX has quantised weights here: set FRAMEWORK=mlx"),
    ({"phase": PARTS, "scope": FILES}, "a part has no pipeline: set SCOPE=device"),
    ({"phase": PARTS, "sustain": bool}, "parts are not sustained: unset SUSTAIN"),
    ({"num_devices": is_many, "epochs": bool}, "epochs are trained on one device: set NUM_DEVICES=1"),
    ({"sustain": bool, "epochs": bool}, "only one can end the run: unset one"),
    ({"sustain": bool, "num_images": bool}, "only one can end the run: unset one"),
    ({"sustain": bool, "scope": SCOPES}, "a sustained run measures the model: unset SCOPE"),
]
for framework, lacks in LACKS.items():
    reason = f"{FRAMEWORKS[framework]} lacks that here: set FRAMEWORK=torch, or leave it out"
    EXCLUDED += [({"framework": (framework,), name: values}, reason) for name, values in lacks.items()]
# {setting: (another one, the values of that with which it is used)}, in commands that have both.
USED_WITH = {"optimizer": ("phase", TRAINING), "lora_rank": ("phase", TRAINING)}
USED_WITH |= {"epochs": ("phase", ("training",)), "prompt_tokens": ("phase", ("prefill", *TRAINING))}
USED_WITH |= dict.fromkeys(("new_tokens", "depth"), ("phase", ("decode",)))
USED_WITH |= dict.fromkeys(("sizes", "precision"), ("ops", ("matmul",)))
# Kinds of settings: a range of whole numbers; float, a positive number; {text: value}; names, which are their values;
# or a function, which returns the value of a text, or raises ValueError with the words that complete "must be ...".
POSITIVE, NATURAL = range(1, 10**9 + 1), range(10**9 + 1)
SWITCH = {"0": False, "1": True}
FRAMEWORK = {name: name for name in FRAMEWORKS} | {"pytorch": "torch", "tf": "tensorflow"}
PRECISION = {name: name for name in ("float32", "tf32", "float16", "bfloat16", "float64", *MIXED)}
PRECISION |= {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp64": "float64"}


class SettingError(Exception):
    """A mistake in what the user asked for: one line that names the setting, its value and the fix."""


def parse(kind, text):
    """Return the value of a text; raises ValueError as a function of a kind does."""
    if not text:
        raise ValueError("filled in or unset")
    if kind is float:
        if re.fullmatch("[0-9]{0,9}[.]?[0-9]{1,9}", text) and float(text) >= 0.001:
            return float(text)
        raise ValueError("a number from 0.001 on, whose decimals follow a point")
    if callable(kind):
        return kind(text)
    if isinstance(kind, range):
        if re.fullmatch("[0-9]{1,10}", text) and int(text) in kind:
            return int(text)
        raise ValueError(f"a whole number from {kind[0]} to {kind[-1]}")
    values = kind if isinstance(kind, dict) else dict(zip(kind, kind, strict=True))
    if text.lower() in values:
        return values[text.lower()]
    near = difflib.get_close_matches(text.lower(), values, n=1)
    raise ValueError("one of: " + ", ".join(values) + (f"; did you mean {near[0]}?" if near else ""))


def device_count(text):
    return "all" if text.lower() == "all" else parse(range(1, 10_000), text)


def matrix_size(text):
    """Parse M for M x M x M, or MxNxK for an M x K by K x N matmul, as (m, n, k)."""
    sides = text.lower().split("x")
    if len(sides) not in (1, 3) or not all(re.fullmatch("[1-9][0-9]{0,5}", side) for side in sides):
        raise ValueError("M or MxNxK, whole numbers from 1 to 999999")
    m, n, k = (int(side) for side in sides * (3 // len(sides)))
    return m, n, k


def slug(text):
    """Parse a name that is safe as a file name: lower case, digits and single hyphens."""
    plain = re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFD", text.casefold()))  # ü is u, ß is ss
    name = re.sub("[^a-z0-9]+", "-", plain).strip("-")
    if not name or name == "published" or re.search(r"[^\W\d_a-z]", plain):
        raise ValueError("a name with letters from a to z or digits, and not 'published'")
    return name[:100]


def setting(kind, defaults: Any = None, lists: Any = "") -> Any:
    """Declare one setting.

    Args:
        kind: see above.
        defaults: of the commands that use it: what an unset one is, or (on a GPU, a CPU); None: see there.
        lists: EACH, TOGETHER, whose value is a tuple, or "" if it takes no list.

    A dict has an entry for each command, "" stands for every other one; anything else is that of every command.
    """
    defaults, lists = (each if isinstance(each, dict) else {"": each} for each in (defaults, lists))
    return field(default=None, metadata={"declared": SimpleNamespace(kind=kind, defaults=defaults, lists=lists)})


def for_workloads(default=None, **others):
    """Return the entries of all workloads, in which some have others."""
    return dict.fromkeys(WORKLOADS, default) | others


@dataclass(frozen=True)
class Settings:
    """The settings of one run; unused ones are None."""

    use_gpu: bool | None = setting(SWITCH, lists={"": EACH, "all": ""})  # None: the GPU if there is one
    num_devices: Any = setting(device_count, for_workloads("1"), EACH)  # "all": torchrun counts them
    framework: str = setting(FRAMEWORK, "torch", {"": EACH, "all": ""})
    model: str = setting(
        str,
        {"image": "resnet50", "mlp": "mlp-5x1024,mlp-10x1024,mlp-15x1024,mlp-20x1024"}
        | {"transformer": "distilbert,bert-large", "llm": ("llama-3.2-1b", "smollm2-135m")}
        | {"diffusion": ("sd-1.5", "ddpm-cifar10")},
        EACH,
    )
    phase: str = setting(
        ("inference", *GENERATION, *TRAINING),
        for_workloads("inference", mlp="training", transformer="training", llm="prefill,decode"),
        EACH,
    )
    batch_size: int = setting(POSITIVE, for_workloads("1", image=("64", "16"), mlp="32", transformer=("32", "4")), EACH)
    num_images: int | None = setting(POSITIVE, {"image": None, "mlp": None})  # None: as many as the interval needs
    image_size: int | None = setting(range(32, 4097), {"image": None, "diffusion": None})  # pixels; None: the model's
    precision: Any = setting(
        PRECISION,
        for_workloads("float32", tflops="float32,tf32,float16,bfloat16")
        | dict.fromkeys(("llm", "diffusion"), ("bfloat16", "float32")),
        {"": EACH, "tflops": TOGETHER},
    )
    compile: Any = setting({"0": 0, "1": 1} | {mode: mode for mode in COMPILE_MODES}, for_workloads("0"), EACH)
    memory_format: str = setting(
        ("channels_first", "channels_last"), dict.fromkeys(("image", "diffusion"), "channels_first"), EACH
    )
    optimizer: str = setting(OPTIMIZERS, for_workloads("sgd", transformer="adam", llm="adamw", diffusion="adamw"), EACH)
    sequence_length: int = setting(range(1, 513), {"transformer": "128"}, EACH)  # tokens
    prompt_tokens: int = setting(POSITIVE, {"llm": "512"}, EACH)
    depth: int = setting(NATURAL, {"llm": "0"}, EACH)  # tokens
    lora_rank: int = setting(range(1025), {"llm": "0"}, EACH)  # 0: train all weights
    weight_bits: int | None = setting({"8": 8, "6": 6, "5": 5, "4": 4, "full": None}, {"llm": "full"}, EACH)
    new_tokens: int = setting(POSITIVE, {"llm": "128"})
    data: str | None = setting(("cifar10", "synthetic"), {"mlp": None})  # None: cifar10 if it is available
    epochs: int = setting(range(1001), {"mlp": "0"})
    sustain: int | None = setting(range(60, 86_401), for_workloads())  # seconds
    sizes: tuple = setting(matrix_size, {"tflops": "32,64,128,256,512,1024,2048,4096,8192"}, TOGETHER)  # (m, n, k)
    ops: tuple[str, ...] = setting(OPS, {"tflops": ",".join(OPS)}, TOGETHER)
    scope: tuple[str, ...] | None = setting(SCOPES, {"image": None}, TOGETHER)  # None: all, if there is a pipeline
    num_workers: int | None = setting(range(1025), {"image": None})  # None: the cores, up to 16
    num_threads: int | None = setting(range(1, 4097))  # None: the framework's own number
    max_seconds: float = setting(float, for_workloads("3", tflops="1"))  # limit of one measurement
    runs: int | None = setting(range(1, 1001))  # processes; None: count_processes() of run.py decides
    machine: str | None = setting(slug)  # None: the name of the GPU or CPU
    results_dir: Path = setting(lambda text: Path(text).expanduser(), str(ROOT / "results"))
    seed: int = setting(NATURAL, "0")
    workload: str = setting(WORKLOADS, {"best": "image"})
    max_minutes: float = setting(float, {"best": "20"})
    quick: bool = setting(SWITCH, {"all": "0"})

    @property
    def has_ranks(self):
        """Return whether NUM_DEVICES (above 1, or all), or several machines (scaling.md) start ranks."""
        return is_many(self.num_devices) or bool(self.num_devices and os.environ.get("PET_NNODES"))


DECLARED = {each.name: each.metadata["declared"] for each in fields(Settings)}
# Settings whose lists are compared; if there are several lists, the first of these.
MEASURED_EACH = [name for name, declared in DECLARED.items() if EACH in declared.lists.values()]
COMPARED = [name.upper() for name in MEASURED_EACH if name not in ("num_devices", "model", "phase")]
SETTING_NAMES = [*map(str.upper, DECLARED), *SYNONYMS]


@dataclass(frozen=True, eq=False)  # compared by identity, so that it can be the key of a dict
class Run:
    """One combination of the settings of a command, measured in as many processes as RUNS says."""

    command: str  # "image": what follows make
    settings: Settings
    environ: dict[str, str]  # the whole environment; each process parses it once
    choices: dict[str, str] = field(default_factory=dict)  # {variable: its entry of each comma list, as it is printed}
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])  # in its rows
    limit: float = math.inf  # seconds without an answer after which a process of it is ended

    def with_settings(self, command=None, **texts):
        """Return the run of a changed environment, {variable: text, or None to unset it}, or of another command."""
        environ = {name: text for name, text in (self.environ | texts).items() if text is not None}
        command = command or self.command
        return Run(command, read_settings(command, environ), environ, self.choices)


def read_runs(command, environ=os.environ):
    """Read the runs that a command's settings and their comma lists ask for, as list_runs() does.

    All commands of make's line (COMMANDS_OF_LINE) are checked; a name that is typed there (MAKEFLAGS) is refused if it
    is unknown or none of them uses it. The environment is that of other programs, too: near misses of settings
    are refused, and the first command warns of unused ones. Raises SettingError, also for any wrong value.
    """
    # MAKEFLAGS is "k -- NAME=value OTHER:=value"; a backslash escapes a space, or a backslash, within a value.
    typed = re.findall(r"(?:^|(?<!\\)(?:\\\\)*\s)([A-Za-z_]\w*)[:+?!]*=", environ.get("MAKEFLAGS", ""))
    for name in sorted({*typed, *environ} - {*SETTING_NAMES, *MAKE_VARIABLES}):
        near = difflib.get_close_matches(name.upper(), SETTING_NAMES, n=1, cutoff=0.6 if name in typed else 0.94)
        if near or name in typed:
            fix = f"did you mean {near[0]}?" if near else "write it before `make` if another program reads it"
            raise SettingError(f"{name}={environ.get(name, '')!r} is not a setting: {fix}")
    goals = environ.get("COMMANDS_OF_LINE") or command
    commands = goals.split()
    commands += [environ.get("WORKLOAD", "image").strip().lower()] if "best" in commands else []
    used = {name for each in commands for name in READERS.get(each, ())}
    for each in ["all"] if "all" in commands else commands:  # the work of `make all` is fixed
        used |= read_used(each, {}).keys()
    for name in sorted(environ.keys() & {*SETTING_NAMES, *typed} - {"PYTHON", "CUDA_BUILD"}):
        setting, given = SYNONYMS.get(name, name), f"{name}={environ[name]!r}"
        if environ.get(setting, environ[name]) != environ[name]:
            raise SettingError(f"{given} and {setting}={environ[setting]!r} are one setting: unset one")
        if declared := DECLARED.get(setting.lower()):
            parse_entries(name, environ[name], declared.kind, any(declared.lists.values()))
        if setting.lower() not in used:
            words = f"{given} is not used in `make {goals}`"
            if name in typed or "all" in commands:
                raise SettingError(f"{words}: leave it out")
            if command == next(filter(READING.__contains__, commands), command):
                print(f"WARNING: {words}", file=sys.stderr)
    environ = {SYNONYMS.get(name, name): text for name, text in environ.items()}
    return {each: list_runs(each, environ) for each in (*commands, command)}[command]


def list_runs(command, environ):
    """Return the runs of a command in an environment without synonyms: at least one.

    Runs that differ only in settings which their phase does not use count once, and so do different texts of one value.
    Raises SettingError for a wrong value, for settings that exclude each other, and for one that no run uses.
    """
    lists = {}
    for name, text in read_used(command, environ).items():
        declared = DECLARED[name]
        if text and "," in text and declared.lists.get(command, declared.lists[""]) == EACH:
            lists[name.upper()] = re.split(r"\s*,\s*", text.strip())
    if "USE_GPU" in lists and command in WORKLOADS:  # the same work on both: a CPU's
        gpu, cpu = (read_used(command, environ, on_cpu) for on_cpu in (False, True))
        environ = {name.upper(): cpu[name] for name in cpu if cpu[name] != gpu[name]} | environ
    runs = {}  # by the values that make them different
    for entries in product(*lists.values()):  # without lists: once, ()
        choices = dict(zip(lists, entries, strict=True))
        run = Run(command, read_settings(command, environ | choices), environ | choices, choices)
        runs.setdefault(tuple(getattr(run.settings, name.lower()) for name in lists), run)
    for name, (other, some) in USED_WITH.items():
        is_used = any(getattr(run.settings, name) is not None for run in runs.values())
        if name.upper() in environ and command in DECLARED[name].defaults and not is_used:
            given = f"{name.upper()}={environ[name.upper()]!r}"
            raise SettingError(f"{given} is not used: set {other.upper()}={some[0]}, or unset {name.upper()}")
    return list(runs.values())


def read_used(command, environ, on_cpu=False):
    """Return {name: its text, or None} of the settings that a command uses, with the defaults of a CPU or a GPU."""
    used = {}
    for name, declared in DECLARED.items():
        if name in READERS.get(command, DECLARED) and {command, ""} & declared.defaults.keys():
            default = declared.defaults.get(command, declared.defaults.get(""))
            used[name] = environ.get(name.upper(), default[on_cpu] if isinstance(default, tuple) else default)
    return used


def read_settings(command, environ=os.environ, device="gpu", emulates_bfloat16=False):
    """Read the settings of one run, the first entries of its lists, on a device ("cpu", "cuda", "mps" ..., or "gpu").

    Defaults are those of a GPU on every device but a CPU. Raises SettingError as list_runs() does.
    """
    values = {}
    for name, text in read_used(command, environ, on_cpu=device == "cpu").items():
        declared = DECLARED[name]
        lists = declared.lists.get(command, declared.lists[""])
        entries = [] if text is None else parse_entries(name, text, declared.kind, lists)
        values[name] = tuple(dict.fromkeys(entries)) or None if lists == TOGETHER else next(iter(entries), None)
    if emulates_bfloat16 and values.get("precision") == "bfloat16" and "PRECISION" not in environ:
        # Training in float16 needs a scaled loss.
        values["precision"] = "mixed_float16" if values["phase"] in TRAINING else "float16"
    for name, (other, some) in USED_WITH.items():
        if other in values and not matches(values[other], some):
            values[name] = None
    lacks = LACKS[values["framework"]]
    for name, other in {"compile": 1, "memory_format": "channels_last"}.items():
        if name.upper() not in environ and values.get(name) in lacks.get(name, ()):
            values[name] = other
    for settings, reason in EXCLUDED:
        if all(matches((values | {"command": command}).get(name), some) for name, some in settings.items()):
            names = [name for name in settings if name != "command"]
            given = [f"{name.upper()}={environ.get(name.upper(), values[name])!r}" for name in names]
            raise SettingError(f"`make {command}` cannot have {' and '.join(given)}, because {reason}")
    return Settings(**values)


def parse_entries(name, text, kind, lists):
    """Return the values of a setting's text, which may be a list; raises SettingError for a wrong one."""
    entries = re.split(r"\s*,\s*", text.strip()) if lists else [text.strip()]
    try:
        return [parse(kind, each) for each in entries]
    except ValueError as error:
        commas = ",".join(re.split("[ ,]+", text.strip()))
        fix = f" (a list has commas: {commas})" if lists and " " in text.strip() else ""
        if "," in text and not lists:
            fix = " (it takes no list: a RESULTS_DIR for each, then `make compare`)"
        raise SettingError(f"{name.upper()}={text!r} must be {error}{fix}") from None


def matches(value, values):
    """Return whether a value, or one of several in a tuple, is among others, which may be bool: any but 0."""
    is_among = values if callable(values) else values.__contains__
    return any(map(is_among, value if isinstance(value, tuple) else (value,)))


if __name__ == "__main__":
    try:
        read_runs("install")
    except SettingError as error:
        sys.exit(str(error))
