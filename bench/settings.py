"""Every setting once: its name, kind, default and meaning, read from the environment. And every framework.

    make help                            the table, in the terminal
    python bench/settings.py markdown    docs/settings.md

Standard library only, and run as a file under the Python 3.9 of a bare Mac, so that `make help` answers
before anything is installed.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import sys
import textwrap
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

SCOPES = ("device", "input", "end_to_end")
AUTO = 0  # BATCH_SIZE=auto, until launch.py has chosen one
ALL = 0  # NUM_DEVICES=all, until launch.py has counted them
ROOT = Path(__file__).resolve().parent.parent
# Variables of the Makefile itself: not settings, but not misspelt ones either.
MAKE_VARIABLES = ("PYTHON", "A", "B", "FAIL_ON_SLOWER")
# What `make best` tells the runs that it starts: the id that their rows share, and the place among its final runs.
SEARCH, SEARCH_STEP = "BENCH_SEARCH", "BENCH_SEARCH_STEP"
# What bench/launch.py tells each child process: the run_id of its rows, and that an earlier child printed the hints.
RUN, REPEATED = "BENCH_RUN", "BENCH_REPEATED"


class SettingError(Exception):
    """A mistake in what the user asked for: one line that names setting, value and cure."""


@dataclass(frozen=True)
class ByDevice:
    """A default that is known once the device is."""

    gpu: Any
    cpu: Any

    def __str__(self):
        return f"{self.gpu} ({self.cpu} on a CPU)"


@dataclass(frozen=True)
class Framework:
    """What is known of a framework before it is imported; its code is bench/frameworks/on_<name>.py."""

    title: str  # as its makers write it
    synonyms: tuple[str, ...] = ()
    memory_formats: tuple[str, ...] = ("channels_first", "channels_last")  # of image models, the default first
    # On Linux in an environment of its own, .venv-<name> from requirements-cuda-<name>.txt, because its CUDA wheels
    # overwrite files of PyTorch's. The Makefile follows the file names.
    has_own_environment: bool = False
    runs_on_many: bool = False  # devices: NUM_DEVICES, torchrun


FRAMEWORKS = {
    "torch": Framework("PyTorch", ("pytorch",), runs_on_many=True),
    "tensorflow": Framework("TensorFlow", ("tf",), ("channels_last",), has_own_environment=True),
}


def requirements_of(framework):
    """The requirements file of a framework on this system."""
    if sys.platform == "darwin":
        return "requirements-mac.txt"
    return (
        f"requirements-cuda-{framework}.txt" if FRAMEWORKS[framework].has_own_environment else "requirements-cuda.txt"
    )


def environment_of(framework):
    """The folder that make installs a framework into on this system."""
    apart = sys.platform != "darwin" and FRAMEWORKS[framework].has_own_environment
    return ROOT / (f".venv-{framework}" if apart else ".venv")


# Kinds: each turns the text into a value, or raises ValueError with the words after "must be".


def zero_or_one(text):
    if text not in ("0", "1"):
        raise ValueError("1 or 0")
    return text == "1"


def whole(minimum, maximum=10**9):
    def parse(text):
        if not re.fullmatch("[0-9]{1,10}", text) or not minimum <= int(text) <= maximum:
            raise ValueError(f"a whole number from {minimum} to {maximum}")
        return int(text)

    return parse


def above_zero(text):
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError("a finite number above 0")
    return value


def matrix_size(text):
    """M for M x M x M, or MxNxK for an M x K by K x N matmul: (m, n, k)."""
    sides = text.lower().split("x")
    if len(sides) not in (1, 3) or not all(re.fullmatch("[1-9][0-9]{0,5}", side) for side in sides):
        raise ValueError("M or MxNxK, whole numbers from 1 to 999999")
    m, n, k = (int(side) for side in sides * (3 // len(sides)))
    return m, n, k


def framework_name(text):
    return one_of(*FRAMEWORKS, **{s: name for name, known in FRAMEWORKS.items() for s in known.synonyms})(text)


def one_of(*names, **synonyms):
    def parse(text):
        value = synonyms.get(text.lower(), text.lower())
        if value not in names:
            raise ValueError("one of: " + ", ".join(names))
        return value

    return parse


def slug(text):
    """A name that is safe as a file name: lower case, digits and single hyphens."""
    name = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")
    if not name or name == "published":
        raise ValueError("a name with letters or digits, and not 'published'")
    return name[:100]


def folder(text):
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("a folder, and there is no such user") from None


def usable_cores():
    """Cores that this process may use, which a cluster or a container may have limited."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, int(cpu_quota() or cores)))


def cpu_quota(path="/sys/fs/cgroup/cpu.max"):
    """CPUs that a container's quota allows (https://docs.kernel.org/admin-guide/cgroup-v2.html); None without one."""
    try:
        quota, period = Path(path).read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # no such file, or "max"
        return None


def whole_or(word, meant, minimum):
    """A whole number, or one word with the value `meant`."""
    number = whole(minimum)

    def parse(text):
        try:
            return meant if text == word else number(text)
        except ValueError as error:
            raise ValueError(f"{error}, or {word}") from None

    return parse


def setting(
    kind, default, meaning, *, shown=None, only=None, phases=(), synonym=None, run_each=False, run_together=False
) -> Any:
    """Declare one setting.

    Args:
        kind: text -> value, or ValueError with what it must be; a dict {script: kind} when scripts differ.
        default: the value when it is not set; a dict {script: value} when scripts differ; a tuple where it is a list.
        meaning: one line for the tables.
        shown: the default in words, where its value says too little.
        only: the scripts that use it; None means all of them.
        phases: the phases that use it; none: all of them.
        synonym: a second environment variable of the same meaning.
        run_each: a comma list is allowed, and each entry is a run of its own. True, or the scripts where this holds.
        run_together: a comma list is allowed, and one run uses all entries: the value is a tuple. Likewise.
    """
    if isinstance(default, dict):
        only = tuple(default)
    about = {"kind": kind, "default": default, "meaning": meaning, "shown": shown, "only": only, "phases": phases}
    return field(metadata=about | {"synonym": synonym, "run_each": run_each, "run_together": run_together})


IMAGE = ("image",)
MLP = ("mlp",)
MODELS = ("image", "mlp", "transformer", "llm")
COMPILE_MODES = ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")  # torch.compile's own names


@dataclass(frozen=True)
class Settings:
    """What one run was asked to do. A setting that the script does not use is None."""

    use_gpu: bool | None = setting(
        zero_or_one,
        None,
        "1: the GPU (if none is found: a warning, then the CPU); 0: the CPU",
        shown="the GPU if there is one",
        run_each=True,
    )
    num_devices: int = setting(
        whole_or("all", ALL, 1),
        1,
        "GPUs, or processes that share a CPU, that do the work together (torch only); all: every GPU; BATCH_SIZE is "
        "for each of them",
        only=(*MODELS, "tflops"),
        run_each=True,
    )
    framework: str = setting(framework_name, "torch", "torch or tensorflow; synonyms pytorch, tf")
    model: str = setting(
        str,
        {
            "image": "resnet50",
            "mlp": ("mlp-5x1024", "mlp-10x1024", "mlp-15x1024", "mlp-20x1024"),
            "transformer": ("distilbert", "bert-large"),
            "llm": ByDevice(gpu="llama-3.2-1b", cpu="smollm2-135m"),
        },
        "image: any classification model of torchvision, or Keras's own as keras-resnet50 ...; mlp: mlp-DEPTHxWIDTH or "
        "mlp-WIDTH-WIDTH-...; transformer: distilbert, bert-base, bert-large; llm: smollm2-135m, qwen3-0.6b, "
        "llama-3.2-1b, llama-3.2-3b, qwen3-4b, llama-3.1-8b; random weights; IMAGE_MODEL is a synonym",
        synonym="IMAGE_MODEL",
        run_each=True,
    )
    phase: str = setting(
        dict.fromkeys(MODELS, one_of("inference", "training")) | {"llm": one_of("prefill", "decode")},
        {"image": "inference", "mlp": "training", "transformer": "training", "llm": ("prefill", "decode")},
        "inference or training; llm: prefill, decode",
        run_each=True,
    )
    batch_size: int = setting(
        whole_or("auto", AUTO, 1),
        {"image": ByDevice(gpu=64, cpu=16), "mlp": 32, "transformer": ByDevice(gpu=32, cpu=4), "llm": 1},
        "items in one step (llm: sequences side by side); auto: the fastest that fits, found by doubling",
        run_each=True,
    )
    num_images: int | None = setting(
        whole(1),
        None,
        "measure so many images in each scope, rounded up to whole batches, whatever MAX_SECONDS says",
        shown="as many as the statistics need",
        only=IMAGE + MLP,
    )
    image_size: int | None = setting(
        whole(32, 4096), None, "pixels a side", shown="the model's own (224; inception_v3 299)", only=IMAGE
    )
    precision: Any = setting(
        one_of("float32", "tf32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16", "float64"),
        dict.fromkeys(MODELS, "float32")
        | {"tflops": ("float32", "tf32", "float16", "bfloat16"), "llm": ByDevice(gpu="bfloat16", cpu="float32")},
        "float32 (TF32 off), tf32, mixed_float16, mixed_bfloat16 (autocast), float16, bfloat16, float64",
        shown="float32 (tflops: float32,tf32,float16,bfloat16; llm: bfloat16, float32 on a CPU)",
        run_each=MODELS,
        run_together=("tflops",),
    )
    compile: str = setting(
        one_of("0", "1", *COMPILE_MODES),
        dict.fromkeys(MODELS, "0"),
        "1: torch.compile, or XLA in TensorFlow; torch's modes too: " + ", ".join(COMPILE_MODES),
        shown="0",
        run_each=True,
    )
    memory_format: str = setting(
        one_of("channels_first", "channels_last"),
        {"image": ""},
        "channels_first or channels_last (TensorFlow: that alone)",
        shown="channels_first (TensorFlow: channels_last)",
        run_each=True,
    )
    optimizer: str = setting(
        one_of("sgd", "adam"),
        {"image": "sgd", "mlp": "sgd", "transformer": "adam"},
        "of training: sgd (learning rate 0.01, no momentum) or adam (0.00001)",
        run_each=True,
    )
    sequence_length: int = setting(
        whole(1, 512), {"transformer": 128}, "tokens in one sequence, without padding", run_each=True
    )
    prompt_tokens: int = setting(
        whole(1), {"llm": 512}, "tokens of each sequence in a step of prefill", phases=("prefill",), run_each=True
    )
    new_tokens: int = setting(
        whole(1), {"llm": 128}, "tokens that decode adds to each sequence, then it starts again", phases=("decode",)
    )
    depth: int = setting(
        whole(0), {"llm": 0}, "tokens that are in the cache before decode begins", phases=("decode",), run_each=True
    )
    data: str | None = setting(
        one_of("cifar10", "synthetic"),
        None,
        "cifar10 (170 MB, downloaded into data/ once) or synthetic, the default where there is no network",
        shown="cifar10",
        only=MLP,
    )
    epochs: int = setting(
        whole(0, 1000), {"mlp": 0}, "train so many whole epochs as well; each reports seconds, loss and test accuracy"
    )
    sustain: int | None = setting(
        whole(60, 86_400),
        None,
        "run one workload for so many seconds without a pause, a row every ten seconds: shows what heat does",
        shown="no",
        only=MODELS,
    )
    sizes: tuple[tuple[int, int, int], ...] = setting(
        matrix_size,
        {"tflops": tuple((m, m, m) for m in (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192))},
        "matmuls to measure: M for M x M x M, or MxNxK for M x K by K x N",
        shown="32,64,128 ... 8192",
        run_together=True,
    )
    scope: tuple[str, ...] = setting(
        one_of(*SCOPES),
        {"image": SCOPES},
        "which of the three throughputs to measure",
        shown=",".join(SCOPES),
        run_together=True,
    )
    num_workers: int = setting(
        whole(0, 1024),
        usable_cores(),
        "input workers: processes, or threads in TensorFlow; 0: the main process",
        shown="the number of cores",
        only=IMAGE,
    )
    num_threads: int | None = setting(whole(1, 4096), None, "CPU threads of the framework", shown="the framework's own")
    max_seconds: float = setting(
        above_zero,
        dict.fromkeys(MODELS, 10.0) | {"tflops": 1.0},
        "time limit of one measurement",
        shown="10 (tflops: 1)",
    )
    target_ci: float = setting(
        above_zero,
        1.0,
        "stop when half the width of the 95 % confidence interval is under so many percent",
        shown="1",
    )
    runs: int = setting(whole(1, 1000), 1, "repetitions of everything, each in a fresh process")
    machine: str | None = setting(
        slug, None, "the name of the rows' file, results/<MACHINE>.csv", shown="the GPU's name, else the CPU's"
    )
    results_dir: Path = setting(folder, ROOT / "results", "the folder of the rows", shown="results")
    seed: int = setting(whole(0), 0, "seed of the data and the random weights")
    workload: str = setting(
        one_of(*MODELS), {"best": "image"}, "whose fastest settings to find: image, mlp or transformer"
    )
    max_minutes: float = setting(above_zero, {"best": 20.0}, "time for the search, about")

    def on(self, device):
        """The same settings on a known device ("cpu", "cuda", "mps" ...): no default is left open."""
        open_ones = {f.name: getattr(self, f.name) for f in fields(self)}
        open_ones = {name: value for name, value in open_ones.items() if isinstance(value, ByDevice)}
        return replace(self, **{name: v.cpu if device == "cpu" else v.gpu for name, v in open_ones.items()})


def variable(declared):
    return declared.name.upper()


def known_names():
    """Every variable that has a meaning here: settings, their synonyms, the Makefile's own."""
    return [name for declared in fields(Settings) for name in _names(declared)] + list(MAKE_VARIABLES)


def read_settings(script, environ=os.environ):
    """Settings of one run of a script ("image") from the environment; raises SettingError.

    Of a list that asks for several runs the first entry counts: list_runs() takes it apart.
    """
    refuse_misspelt(script, environ)
    read = {f.name: _read_values(f, script, environ) for f in fields(Settings)}
    values = {f.name: read[f.name] if _has_tuple(f, script) else read[f.name][0] for f in fields(Settings)}
    if values["memory_format"] == "":
        values["memory_format"] = FRAMEWORKS[values["framework"]].memory_formats[0]
    settings = Settings(**values)
    refuse_contradictions(settings, environ)
    return settings


def list_runs(script, environ=os.environ):
    """The runs that the lists ask for, as changes of the environment: {variable: text} each."""
    refuse_misspelt(script, environ)
    choices = []
    for declared in fields(Settings):
        values = _read_values(declared, script, environ)
        if len(values) > 1 and _applies(declared, "run_each", script):
            given = [name for name in _names(declared) if name in environ]
            entries = [entry.strip() for entry in environ[given[0]].split(",")] if given else values
            choices.append([dict.fromkeys(given or [variable(declared)], entry) for entry in entries])
    runs = [{name: text for change in changes for name, text in change.items()} for changes in product(*choices)]
    return [run for run in runs if not _is_repeat(run, runs[0], environ)]


def _is_repeat(run, first, environ):
    """Whether a run differs from another one only in settings that its phase does not use."""
    phase = run.get("PHASE", environ.get("PHASE", "")).strip().lower()
    unused = [variable(f) for f in fields(Settings) if not is_used_in(f.name, phase)]
    return any(run.get(name) != first.get(name) for name in unused)


def is_used_in(name, phase):
    """Whether a phase uses a setting of this name."""
    phases = next((f.metadata["phases"] for f in fields(Settings) if f.name == name), ())
    return not phases or phase in phases


def _names(declared):
    synonym = declared.metadata["synonym"]
    return (variable(declared), synonym) if synonym else (variable(declared),)


def _applies(declared, rule, script):
    """Whether "run_each" or "run_together" holds for a setting in a script."""
    return declared.metadata[rule] is True or script in (declared.metadata[rule] or ())


def _is_used(declared, script):
    return not declared.metadata["only"] or script in declared.metadata["only"]


def _has_tuple(declared, script):
    """Whether the value of a setting is a tuple in a script."""
    return _applies(declared, "run_together", script) and _is_used(declared, script)


def _read_values(declared, script, environ):
    """The values of a setting: one, or as many as its list has."""
    about = declared.metadata
    if not _is_used(declared, script):
        return (None,)
    kind = about["kind"][script] if isinstance(about["kind"], dict) else about["kind"]
    is_list = _applies(declared, "run_each", script) or _applies(declared, "run_together", script)
    given = {name: environ[name].strip() for name in _names(declared) if name in environ}
    if len(set(given.values())) > 1:
        raise SettingError(" and ".join(f"{n}={t!r}" for n, t in given.items()) + " must agree: set only one of them")
    for name, text in given.items():
        return _parse_list(name, text, kind) if is_list else (_parse(name, text, kind),)
    default = about["default"][script] if isinstance(about["default"], dict) else about["default"]
    return default if isinstance(default, tuple) else (default,)


def _parse(name, text, kind):
    if not text:
        raise SettingError(f"{name}='' is empty: give it a value, or unset it for the default")
    try:
        return kind(text)
    except ValueError as error:
        raise SettingError(f"{name}={text!r} must be {error}") from None


def _parse_list(name, text, kind):
    entries = [entry.strip() for entry in text.split(",")]
    if len(entries) == 1:
        return (_parse(name, text, kind),)
    if not all(entries):
        raise SettingError(f"{name}={text!r} has an empty entry: remove the extra comma")
    try:
        values = tuple(kind(entry) for entry in entries)
    except ValueError as error:
        raise SettingError(f"{name}={text!r} must be {error}, in every entry") from None
    for entry, value in zip(entries, values):
        if values.count(value) > 1:
            raise SettingError(f"{name}={text!r} has {entry} more than once: name it once")
    return values


def refuse_contradictions(settings, environ):
    """Raise SettingError for settings that exclude each other; none of them is dropped silently."""
    if settings.framework != "torch" and settings.compile in COMPILE_MODES:
        raise SettingError(f"COMPILE={settings.compile!r} is a mode of torch: set 1 or 0")
    for name in ("SCOPE", "NUM_IMAGES", "EPOCHS"):
        if settings.sustain and name in environ and getattr(settings, name.lower()) is not None:
            raise SettingError(f"SUSTAIN='{settings.sustain}' measures one workload alone: unset {name}")
    refuse_many(settings, settings.num_devices, "NUM_DEVICES")
    if settings.epochs and settings.phase == "inference":
        raise SettingError(f"EPOCHS='{settings.epochs}' is training: set PHASE=training, or unset EPOCHS")


def refuse_many(settings, count, name):
    """Raise SettingError for what runs on one device alone, where `name` asks for more."""
    if count in (None, 1):
        return
    asked = f"{name}='{count or 'all'}'"
    if not FRAMEWORKS[settings.framework].runs_on_many:
        raise SettingError(f"{asked}: {FRAMEWORKS[settings.framework].title} runs on one device here: unset {name}")
    if settings.batch_size == AUTO:
        raise SettingError(f"BATCH_SIZE='auto' is found on one device: name a number beside {asked}")
    if settings.epochs:
        raise SettingError(f"EPOCHS='{settings.epochs}' trains on one device: unset it, or {name}")


def read_search(environ=os.environ):
    """Settings of `make best`: (its own, those of its workload, whose lists are one run each as in list_runs())."""
    plain = {name: text for name, text in environ.items() if name != "MAKEFLAGS"}
    own = read_settings("best", plain)
    refuse_misspelt(own.workload, environ, also="best")
    return own, read_settings(own.workload, plain), list_runs(own.workload, plain)


def refuse_misspelt(script, environ, also=None):
    """Raise SettingError for a name that is no setting but was surely meant as one.

    On make's command line (in MAKEFLAGS) that is any unknown name, and a setting that the script does not use. The
    environment is full of other programs' names: there it is a near miss of one of ours.
    """
    known = known_names()
    unused = {f for f in fields(Settings) if not _is_used(f, script) and not (also and _is_used(f, also))}
    unused = {name for declared in unused for name in _names(declared)}
    for name in _make_variables(environ.get("MAKEFLAGS", "")):
        if name not in known:
            near = _meant(name, known) or _nearest(name.upper(), known)
            raise SettingError(f"{name} is not a setting: " + (f"did you mean {near}?" if near else "see `make help`"))
        if name in unused:
            raise SettingError(f"{name} is no setting of this command: leave it out (`make help` lists who uses it)")
    for name in environ:
        meant = None if name in known else _meant(name, [each for each in known if each not in MAKE_VARIABLES])
        if meant:
            raise SettingError(f"{name}={environ[name]!r} is not a setting: did you mean {meant}?")


def _meant(name, known):
    """The setting that a name surely means: but for case and `_`, a plural, or one letter of a long name; or None."""
    for each in known:
        is_same = name.replace("_", "").lower() == each.replace("_", "").lower()
        is_singular = len(name) >= 5 and f"{name}S" == each
        if is_same or is_singular or (len(each) >= 8 and _is_one_edit(name, each)):
            return each
    return None


def _is_one_edit(a, b):
    """Whether a letter added, left out or replaced makes one text the other."""
    if len(a) == len(b):
        return sum(x != y for x, y in zip(a, b)) == 1
    shorter, longer = sorted((a, b), key=len)
    return shorter in [longer[:i] + longer[i + 1 :] for i in range(len(longer))]


def _make_variables(makeflags):
    words = re.findall(r"(?:[^\\\s]|\\.)+", makeflags)
    return [w.split("=", 1)[0].rstrip(":+?") for w in words if re.match(r"[A-Za-z_]\w*[:+?]*=", w)]


def _nearest(name, known):
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def table():
    """Rows (name, default, used by, meaning), one a setting, as strings."""
    for declared in fields(Settings):
        about = declared.metadata
        default = about["default"]
        if isinstance(default, dict) and not about["shown"]:
            default = " / ".join(",".join(v) if isinstance(v, tuple) else str(v) for v in default.values())
        yield (
            variable(declared),
            str(about["shown"] or default),
            ", ".join(about["only"] or ("all",)),
            about["meaning"],
        )


PAGE = """# Settings

Written by `python bench/settings.py markdown`. Settings are environment variables, on either side of `make`, or before
a script. Where the meaning allows it a setting takes a comma list, and each combination runs in a process of its own.
"""


def as_markdown():
    """The page docs/settings.md."""
    lines = [PAGE, "| setting | default | used by | meaning |", "|---|---|---|---|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in table()])


def as_text():
    """The table of `make help`."""
    lines = []
    for name, default, _, meaning in table():
        how = {"width": min(110, shutil.get_terminal_size().columns), "break_on_hyphens": False}
        lines += textwrap.wrap(meaning, initial_indent=f"  {name:<17}", subsequent_indent=" " * 19, **how)
        lines += textwrap.wrap(f"default: {default}", initial_indent=" " * 19, subsequent_indent=" " * 28, **how)
    return "\n".join(lines)


if __name__ == "__main__":
    print(as_markdown() if sys.argv[1:] == ["markdown"] else as_text())
