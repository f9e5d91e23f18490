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
from pathlib import Path

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
    return Path(text).expanduser()


def setting(kind, default, meaning, *, shown=None, only=None, synonym=None):
    """Declare one setting.

    Args:
        kind: text -> value, or ValueError with what it must be.
        default: the value when it is not set; a dict {script: value} when scripts differ.
        meaning: one line for the tables.
        shown: the default in words, where its value says too little.
        only: the scripts that use it; None means all of them.
        synonym: a second environment variable of the same meaning.
    """
    if isinstance(default, dict):
        only = tuple(default)
    about = {"kind": kind, "default": default, "meaning": meaning}
    about.update(shown=shown, only=only, synonym=synonym)
    return field(metadata=about)


@dataclass(frozen=True)
class Settings:
    """What a run was asked to do. A setting that the script does not use is None."""

    use_gpu: bool | None = setting(
        flag,
        None,
        "1: use the GPU (none found: a warning, then the CPU); 0: the CPU",
        shown="the best there is",
    )
    framework: str = setting(
        one_of(pytorch="torch", tf="tensorflow"), "torch", "who does the work; synonyms pytorch, tf"
    )
    model: str = setting(
        str,
        {"image": "resnet50"},
        "any classification model of torchvision, random weights; IMAGE_MODEL is a synonym",
        synonym="IMAGE_MODEL",
    )
    phase: str = setting(one_of("inference", "training"), {"image": "inference"}, "inference or training")
    batch_size: int | ByDevice = setting(whole(1), {"image": ByDevice(gpu=64, cpu=16)}, "images in one step")
    precision: str = setting(
        one_of("float32", "mixed_bfloat16"), "float32", "float32 (TF32 off) or mixed_bfloat16 (autocast)"
    )
    memory_format: str = setting(
        one_of("channels_first", "channels_last"),
        {"image": "channels_first"},
        "channels_first or channels_last",
    )
    max_seconds: float = setting(above_zero, 10.0, "time limit of one measurement", shown="10")
    target_ci: float = setting(
        above_zero, 1.0, "stop when the 95 % interval's half-width is within this many percent", shown="1"
    )
    machine: str | None = setting(
        slug,
        None,
        "names the rows and their file, results/<MACHINE>.csv",
        shown="the best accelerator, else the CPU",
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
    synonyms = [f.metadata["synonym"] for f in fields(Settings) if f.metadata["synonym"]]
    return [*map(variable, fields(Settings)), *synonyms, *MAKE_VARIABLES]


def read_settings(script, environ=os.environ):
    """Settings for one script ("image") from the environment; raises SettingError."""
    refuse_misspelt(environ)
    return Settings(**{f.name: _read_one(f, script, environ) for f in fields(Settings)})


def _read_one(declared, script, environ):
    about = declared.metadata
    if about["only"] and script not in about["only"]:
        return None
    given = {n: environ[n].strip() for n in (variable(declared), about["synonym"] or "") if n in environ}
    if len(set(given.values())) > 1:
        raise SettingError(" and ".join(f"{n}={t!r}" for n, t in given.items()) + " must agree: set only one of them")
    for name, text in given.items():
        return _parse(name, text, about["kind"])
    default = about["default"]
    return default[script] if isinstance(default, dict) else default


def _parse(name, text, kind):
    if not text:
        raise SettingError(f"{name}='' is empty: give it a value, or leave it out for its default")
    try:
        return kind(text)
    except ValueError as error:
        raise SettingError(f"{name}={text!r} must be {error}") from None


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
