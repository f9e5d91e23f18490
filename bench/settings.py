"""Every setting once: its name, kind, default and meaning, read from the environment.

    make help                            the table, in the terminal
    python bench/settings.py markdown    the table of README.md

Standard library only, and run as a file under the Python 3.9 of a bare Mac, so that `make help` answers
before anything is installed.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path

SCOPES = ("device", "input", "end_to_end")
ROOT = Path(__file__).resolve().parent.parent
# Variables of the Makefile itself: not settings, but not misspelt ones either.
MAKE_VARIABLES = ("PYTHON",)


class SettingError(Exception):
    """A mistake in what the user asked for: one line that names setting, value and cure."""


@dataclass(frozen=True)
class ByDevice:
    """A default that is known once the device is."""

    gpu: object
    cpu: object

    def __str__(self):
        return f"{self.gpu} ({self.cpu} on a CPU)"


# Kinds: each turns the text into a value, or raises ValueError with the words after "must be".


def flag(text):
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
        raise ValueError("a number above 0")
    return value


def one_of(*names, **synonyms):
    def parse(text):
        value = synonyms.get(text.lower(), text.lower())
        if names and value not in names:
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
    """Cores that this process may run on, which a cluster or a container may have limited."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def whole_or_auto(minimum):
    number = whole(minimum)

    def parse(text):
        try:
            return text if text == "auto" else number(text)
        except ValueError as error:
            raise ValueError(f"{error}, or auto") from None

    return parse


def setting(kind, default, meaning, *, shown=None, only=None, synonym=None, sweep=False, several=False):
    """Declare one setting.

    Args:
        kind: text -> value, or ValueError with what it must be.
        default: the value when it is not set; a dict {script: value} when scripts differ.
        meaning: one line for the tables.
        shown: the default in words, where its value says too little.
        only: the scripts that use it; None means all of them.
        synonym: a second environment variable of the same meaning.
        sweep: a comma list is allowed, and each of its entries is a run of its own.
        several: a comma list is allowed, and its entries are all used in one run: the value is a tuple.
    """
    if isinstance(default, dict):
        only = tuple(default)
    about = {"kind": kind, "default": default, "meaning": meaning, "shown": shown, "only": only}
    return field(metadata=about | {"synonym": synonym, "sweep": sweep, "several": several})


IMAGE = ("image",)


@dataclass(frozen=True)
class Settings:
    """What one run was asked to do. A setting that the script does not use is None."""

    use_gpu: bool | None = setting(
        flag,
        None,
        "1: the GPU (none found: a warning, then the CPU); 0: the CPU",
        shown="the best there is",
        sweep=True,
    )
    framework: str = setting(
        one_of(pytorch="torch", tf="tensorflow"), "torch", "who does the work; synonyms pytorch, tf"
    )
    model: str = setting(
        str,
        {"image": "resnet50"},
        "any classification model of torchvision, random weights; IMAGE_MODEL is a synonym",
        synonym="IMAGE_MODEL",
        sweep=True,
    )
    phase: str = setting(one_of("inference", "training"), {"image": "inference"}, "inference or training", sweep=True)
    batch_size: int | str | ByDevice = setting(
        whole_or_auto(1),
        {"image": ByDevice(gpu=64, cpu=16)},
        "images in one step; auto: the fastest that fits, by doubling",
        sweep=True,
    )
    num_images: int | None = setting(
        whole(1),
        None,
        "exactly so many images for each scope, whatever MAX_SECONDS says",
        shown="as many as the statistics need",
        only=IMAGE,
    )
    image_size: int | None = setting(
        whole(32, 4096), None, "pixels a side", shown="the model's own (224; inception_v3 299)", only=IMAGE
    )
    precision: str = setting(
        one_of("float32", "tf32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16"),
        "float32",
        "float32 (TF32 off), tf32, mixed_float16, mixed_bfloat16 (autocast), float16, bfloat16",
        sweep=True,
    )
    compile: bool = setting(flag, False, "1: torch.compile", shown="0", sweep=True)
    memory_format: str = setting(
        one_of("channels_first", "channels_last"),
        {"image": "channels_first"},
        "channels_first or channels_last",
        sweep=True,
    )
    scope: tuple[str, ...] = setting(
        one_of(*SCOPES), {"image": SCOPES}, "which of the three throughputs", shown=",".join(SCOPES), several=True
    )
    num_workers: int = setting(
        whole(0, 1024),
        usable_cores(),
        "processes that prepare images; 0: the main process does",
        shown="the number of cores",
        only=IMAGE,
    )
    num_threads: int | None = setting(whole(1, 4096), None, "CPU threads of the framework", shown="the framework's own")
    max_seconds: float = setting(above_zero, 10.0, "time limit of one measurement", shown="10")
    target_ci: float = setting(
        above_zero, 1.0, "stop when the 95 % interval's half-width is within this many percent", shown="1"
    )
    runs: int = setting(whole(1, 1000), 1, "repeat everything in so many fresh processes")
    machine: str | None = setting(
        slug, None, "names the rows and their file, results/<MACHINE>.csv", shown="the best accelerator, else the CPU"
    )
    results_dir: Path = setting(folder, ROOT / "results", "where the rows go", shown="results")
    seed: int = setting(whole(0), 0, "of the data and the random weights")

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

    Of a list that asks for several runs the first entry counts: combinations() takes it apart.
    """
    refuse_misspelt(environ)
    values = {f.name: _read_one(f, script, environ) for f in fields(Settings)}
    return Settings(**{f.name: values[f.name][0] if f.metadata["sweep"] else values[f.name] for f in fields(Settings)})


def combinations(script, environ=os.environ):
    """The runs that the lists ask for, as changes of the environment: {variable: text} each."""
    refuse_misspelt(environ)
    choices = []
    for declared in fields(Settings):
        if declared.metadata["sweep"] and len(_read_one(declared, script, environ)) > 1:
            given = [name for name in _names(declared) if name in environ]
            entries = [entry.strip() for entry in environ[given[0]].split(",")]
            choices.append([dict.fromkeys(given, entry) for entry in entries])
    return [{name: text for change in changes for name, text in change.items()} for changes in product(*choices)]


def _names(declared):
    synonym = declared.metadata["synonym"]
    return (variable(declared), synonym) if synonym else (variable(declared),)


def _read_one(declared, script, environ):
    """The value of a setting; a tuple where a list is allowed."""
    about = declared.metadata
    listed = about["sweep"] or about["several"]
    if about["only"] and script not in about["only"]:
        return (None,) if listed else None
    given = {name: environ[name].strip() for name in _names(declared) if name in environ}
    if len(set(given.values())) > 1:
        raise SettingError(" and ".join(f"{n}={t!r}" for n, t in given.items()) + " must agree: set only one of them")
    for name, text in given.items():
        return _parse_list(name, text, about["kind"]) if listed else _parse(name, text, about["kind"])
    default = about["default"][script] if isinstance(about["default"], dict) else about["default"]
    return (default,) if about["sweep"] else default


def _parse(name, text, kind):
    if not text:
        raise SettingError(f"{name}='' is empty: give it a value, or leave it out for its default")
    try:
        return kind(text)
    except ValueError as error:
        raise SettingError(f"{name}={text!r} must be {error}") from None


def _parse_list(name, text, kind):
    entries = [entry.strip() for entry in text.split(",")]
    if len(entries) == 1:
        return (_parse(name, text, kind),)
    if not all(entries):
        raise SettingError(f"{name}={text!r} has an empty entry: remove the comma that is too many")
    try:
        values = tuple(kind(entry) for entry in entries)
    except ValueError as error:
        raise SettingError(f"{name}={text!r} must be {error}, in every entry") from None
    for value in values:
        if values.count(value) > 1:
            raise SettingError(f"{name}={text!r} has {value} more than once: name it once")
    return values


def refuse_misspelt(environ):
    """Raise SettingError for a name that is no setting but was surely meant as one.

    On make's command line that is any unknown name (MAKEFLAGS carries them); in the environment,
    which is full of other programs' names, one that differs from a setting in case and `_` alone.
    """
    known = known_names()
    plain = {name.replace("_", "").lower(): name for name in known}
    for name in _make_variables(environ.get("MAKEFLAGS", "")):
        if name not in known:
            near = plain.get(name.replace("_", "").lower()) or _nearest(name.upper(), known)
            raise SettingError(f"{name} is not a setting: " + (f"did you mean {near}?" if near else "see `make help`"))
    for name in environ:
        meant = plain.get(name.replace("_", "").lower())
        if meant and name not in known:
            raise SettingError(f"{name}={environ[name]!r} is not a setting: did you mean {meant}?")


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
        if isinstance(default, dict):
            default = " / ".join(str(value) for value in default.values())
        yield (
            variable(declared),
            str(about["shown"] or default),
            ", ".join(about["only"] or ("all",)),
            about["meaning"],
        )


def as_markdown():
    """The table of README.md."""
    lines = ["| setting | default | used by | meaning |", "|---|---|---|---|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in table()])


def as_text():
    """The table of `make help`."""
    rows = [(name, default, meaning) for name, default, _, meaning in table()]
    wide = [max(len(row[i]) for row in rows) for i in (0, 1)]
    return "\n".join(f"  {n:<{wide[0]}}  {d:<{wide[1]}}  {m}" for n, d, m in rows)


if __name__ == "__main__":
    print(as_markdown() if sys.argv[1:] == ["markdown"] else as_text())
