"""What users see: each command prints, from the rows of tests/rows.py, what its file in tests/outputs/ has.

    REWRITE_OUTPUTS=1 .venv/bin/python -m pytest tests/test_outputs.py

writes the files anew; read their diff as a user would. The terminal has 100 columns.
"""

import contextlib
import difflib
import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import best_settings
import compare_results
import measure_all
import noise_check
import tflops_sweep
from bench import doctor, frameworks
from bench.host import environment, meters
from bench.plots import card, draw
from bench.records import report
from bench.tune import answer
from bench.tune.search import Dimension, Search
from tests import rows

FOLDER = Path(__file__).with_name("outputs")


def report_sustained(*_):
    for row in rows.SUSTAINED:
        print(report.describe_rate(row))  # while it runs
    print(report.describe(rows.SUSTAINED, rows.GPU_PEAKS))


def report_scaling(*_):
    for row in rows.SCALING:
        print(report.describe([row], rows.GPU_PEAKS))
    print(report.describe_scaling(rows.SCALING))


def report_failures(*_):
    for name, found in rows.FAILURES.items():
        print(f"# {name}\n{report.describe(found, rows.GPU_PEAKS)}\n")


def search(*_):
    """Search on a machine of these gains: a format that fails, and no time to try everything."""
    gains = {"bfloat16": 1.9, "1": 1.4, "32": 1.01, "channels_last": 1.2}
    dimensions = [
        Dimension("PRECISION", {"float32": 1.0, "bfloat16": 1.8, "mixed_bfloat16": 1.7}),
        Dimension("COMPILE", {"0": 1.0, "1": 1.3}),
        Dimension("MEMORY_FORMAT", {"channels_first": 1.0, "channels_last": 1.4}),
    ]
    asked = []

    def attempt(candidate, is_full):
        asked.append(candidate)
        if candidate[0] == "mixed_bfloat16":
            return rows.ROW | rows.FAILED
        throughput = 100.0 + len(asked) % 3
        for value in candidate:
            throughput *= gains.get(value, 1)
        error = None if candidate[0] == "float32" else 0.0062
        return rows.measure(throughput, rows.ON_CPU, {"output_error": error, "flags": "drift" if is_full else ""})

    found = Search(dimensions, attempt, lambda: len(asked) / 13)
    found.run()
    print("\n".join(answer.describe(found, best_settings.combine_path(found))))
    settings = {"PRECISION": "bfloat16", "COMPILE": "1", "MEMORY_FORMAT": "channels_last", "MACHINE": "my machine"}
    print("\n".join(answer.describe_use("torch", "cpu", "image", settings | environment.GLIBC_KEEPS)))


def compare(folder, _):
    rows.write(folder, [row | {"machine": "example-cpu"} for row in rows.BEFORE], "before")
    rows.write(folder, [row | {"machine": "example-cpu"} for row in rows.AFTER], "after")
    compare_results.main({"RESULTS_DIR": str(folder), "A": "before", "B": "after"})


def compare_nothing(folder, _):
    rows.write(folder, [{}], "example-cpu")
    rows.write(folder, [rows.GPU], "example-gpu")
    compare_results.main({"RESULTS_DIR": str(folder), "A": "example-cpu", "B": "example-gpu"})


def print_noise(*_):
    for found in rows.NOISE.values():
        print(noise_check.describe_noise(found))


def print_all(folder, monkeypatch):
    for found in (rows.IMAGE, rows.TRAINING, rows.FAILURES["every process"]):
        print(measure_all.describe(found, []))
    monkeypatch.setattr(draw, "save", lambda figure, path, **options: path)
    print("\n".join(card.finish(fill(folder), "example-cpu", "torch")))


def fill(folder):
    """Fill a folder with the rows of a card."""
    peaks = [rows.PEAK | rows.LARGE | {"tflops": 0.18}, rows.PEAK | rows.LARGE | rows.BFLOAT16 | {"tflops": 0.404}]
    peaks.append(rows.COPY | {"throughput": 35.0})
    scopes = [row | {"batch_size": 16} for row in rows.IMAGE]
    fast = rows.rate(240) | {"precision": "bfloat16", "tflops": 0.2, "process_rates": "1", "phase": "inference"}
    decode = {"bandwidth": 8.12, "tflops": 0.004}
    own = [row | (decode if row["phase"] == "decode" else {"tflops": 0.12}) for row in rows.standard_set()]
    rows.write(folder, [row | {"image_size": row.get("image_size") or 224} if row["workload"] == "image" else row for row in own], "example-cpu")
    rows.write(folder, [*peaks, *scopes, fast | {"flags": "drift"}], "example-cpu")
    cited = rows.GPU | {"source": "https://example.org", "batch_size": 64, "phase": "inference", "throughput_low": None}
    rows.write(folder, [cited | {"throughput": 1400.0}], "published")
    return folder


def print_card(folder, monkeypatch):
    """Print the texts of a card, those of the same height in one line."""
    monkeypatch.setattr(draw, "save", lambda figure, path, **options: figure)
    figure = card.save_card(card.make_card(card.select.load(fill(folder), print), "example-cpu", "torch"), folder)
    lines = {}
    for text in figure.axes[0].texts:
        lines.setdefault(round(text.get_position()[1], 2), []).append(text.get_text())
    for _, texts in sorted(lines.items()):
        print("   ".join(texts))


def examine(folder, monkeypatch):
    """Examine a machine with one good framework, one that crashes, one without its library, one not installed."""
    device = frameworks.Device("cuda", "Example GPU", "2.15", 2)
    framework = SimpleNamespace(
        find_device=lambda settings: device,
        open_session=lambda *_: SimpleNamespace(measured_precision="float32"),
    )
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.11.7")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(environment, "refuse_rosetta", lambda: None)
    monkeypatch.setattr(meters, "open_instruments", lambda *_: meters.Instruments(SimpleNamespace(power_scope="gpu board"), dict))
    lines = io.StringIO()
    with contextlib.redirect_stdout(lines), monkeypatch.context() as changed:
        changed.setattr(frameworks, "load", lambda name: framework)
        doctor.report_framework("torch")
    programs = {"": f"cat <<'END'\n{lines.getvalue()}END", "-tensorflow": "kill -ILL $$", "-jax": "echo 'ImportError: libcudart.so.13' >&2; exit 1"}
    for name, program in programs.items():
        python = folder / f".venv{name}" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\n{program}\n")
        python.chmod(0o755)
        (folder / f"requirements-cuda{name}.txt").touch()
    (folder / "requirements-cuda-mlx.txt").touch()
    monkeypatch.setattr(doctor, "ROOT", folder)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(environment, "find_commit", lambda: "0123456789ab-dirty")
    monkeypatch.setattr(environment, "find_power_source", lambda: "battery")
    doctor.examine()


COMMANDS = {
    "image": lambda *_: print(report.describe(rows.IMAGE, [rows.OTHER_CHIP, rows.SLOWER_BEFORE])),
    "training": lambda *_: print(report.describe(rows.TRAINING, rows.GPU_PEAKS)),
    "epochs": lambda *_: print(report.describe(rows.EPOCHS, [])),
    "sustained": report_sustained,
    "scaling": report_scaling,
    "prefill": lambda *_: print(report.describe(rows.PREFILL, rows.GPU_PEAKS)),
    "decode": lambda *_: print(report.describe(rows.DECODE, rows.GPU_PEAKS)),
    "failures": report_failures,
    "flags": lambda *_: print(report.describe(rows.FLAGGED, [rows.FASTER_BEFORE])),
    "tflops": lambda *_: print(tflops_sweep.describe(rows.SWEEP, [])),
    "best": search,
    "compare": compare,
    "compare_nothing": compare_nothing,
    "noise": print_noise,
    "doctor": examine,
    "all": print_all,
    "card": print_card,
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    COMMANDS[name](tmp_path, monkeypatch)
    printed, file = capsys.readouterr().out.replace(f"{tmp_path}/", ""), FOLDER / f"{name}.txt"
    if "REWRITE_OUTPUTS" in os.environ:
        file.write_text(printed)
    lines = difflib.unified_diff(file.read_text().splitlines(), printed.splitlines(), str(file), "printed", lineterm="")
    if difference := "\n".join(lines):
        pytest.fail(f"{difference}\nREWRITE_OUTPUTS=1 accepts it: see {__file__}", pytrace=False)
