"""What users see: each command prints, from the rows of tests/rows.py, what its file in tests/outputs/ has.

    REWRITE_OUTPUTS=1 .venv/bin/python -m pytest tests/test_outputs.py

writes these files anew. Read their diff as a user would. The terminal has 100 columns.
"""

import difflib
import itertools
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import best_settings
import compare_results
import tflops_sweep
from bench import doctor, frameworks, packages
from bench.host import environment
from bench.plots import card, draw
from bench.records import report
from bench.settings import read_runs
from tests import rows

FOLDER = Path(__file__).with_name("outputs")


def print_runs(found):
    for row in found:
        print(report.describe_run([row], rows.NOWHERE))


def print_failures(*_):
    for name, found in rows.FAILURES.items():
        print(f"# {name}\n{report.describe_run(found, rows.NOWHERE)}\n")


def print_best(_, monkeypatch):
    """Print a search of two steps whose answer is believed, then one that lacks time and keeps the default."""
    monkeypatch.setattr(sys, "platform", "linux")
    search = best_settings.Search(read_runs("image", {"MODEL": "resnet50"})[0], {}, False, None, 20)
    step, failed, untried = (search.change("PRECISION", text) for text in ("bfloat16", "mixed_bfloat16", "tf32"))
    search.fastest = step
    search.fastest = search.change("COMPILE", "1")
    for each, throughput in ((search.default, 13.5), (step, 25.7), (search.fastest, 35.1)):
        search.rows[each] = rows.repeat(rows.measure(throughput, rows.ON_CPU, {"run_id": each.run_id}))
        search.gains[each] = report.describe_comparison(rows.FASTER, "the default") if each.choices else ""
    search.rows[failed] = [rows.ROW | rows.FAILED | {"run_id": failed.run_id}]
    of_runs = {found[0]["run_id"]: rows.combine(found) for found in search.rows.values()}
    print("\n".join(search.describe_answer(of_runs)), end="\n\n")
    search.gains[search.fastest] = report.describe_comparison(rows.EQUAL, "the default")
    search.fastest, search.undecided = search.default, {failed: "2 of 3 rounds", untried: "not tried"}
    print("\n".join(search.describe_answer(of_runs)))


def print_compare(folder, _):
    rows.write(folder, rows.BEFORE, "before")
    rows.write(folder, rows.AFTER, "after")
    compare_results.main({"RESULTS_DIR": str(folder), "A": "before", "B": "after"})


def print_table(folder, _):
    rows.write(folder, rows.CARD, "example-cpu")
    for name, factor in (("example-gpu", 1), ("faster-gpu", 2), ("slower-gpu-with-a-long-name", 0.5)):
        found = list(rows.standard_set(**rows.GPU | {"machine": name}))
        found = [row | rows.rate(factor * row["throughput"]) for row in (found if factor == 1 else found[:-4])]
        rows.write(folder, [found[0] | {"flags": "contended" if factor < 1 else ""}, *found[1:]], name)
    compare_results.main({"RESULTS_DIR": str(folder)})


def print_all(folder, monkeypatch):
    figures = []
    monkeypatch.setattr(draw, "save", lambda figure, path, **options: figures.append(figure) or path)
    rows.write(folder, rows.CARD, "example-cpu")
    rows.write(folder, [rows.PUBLISHED], "published")
    print("\n".join(card.finish(folder, "example-cpu", "torch")))
    print("\n# The card; texts of the same height are a line")
    lines = {}  # {inches from the top: texts}
    for text in figures[0].axes[0].texts:
        lines.setdefault(round(text.get_position()[1], 2), []).append(text.get_text())
    print("\n".join("   ".join(filter(None, lines[height])) for height in sorted(lines)))


def print_doctor(folder, monkeypatch):
    """Examine a machine whose PyTorch works, TensorFlow crashes, JAX lacks a library, and MLX is missing."""
    session = SimpleNamespace(step=list, after_first_step=list, check_last_output=list)
    device = frameworks.Device("cuda", "Example GPU", "2.15", 2)
    framework = SimpleNamespace(find_device=lambda settings: device, open_session=lambda *_: session)
    for module, name, value in (
        (frameworks, "load", lambda name: framework),
        (environment, "read_text", lambda path: "flags\t\t: avx\n"),
        (environment, "find_commit", lambda: "0123456789ab-dirty"),
        (doctor.platform, "python_version", lambda: "3.11.7"),
        (doctor.os, "cpu_count", lambda: 2),
        (environment, "INSTALLED_BYTES", 2**33),
        (environment, "find_low_power_mode", lambda: 1),
        (doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**34)),
        (doctor.shutil, "which", lambda name: None),
        (doctor, "ROOT", folder),
        (packages, "ROOT", folder),
        (sys, "platform", "linux"),
    ):
        monkeypatch.setattr(module, name, value)
    programs = {"tensorflow": "kill -ILL $$", "jax": "echo 'ImportError: libcudart.so.13' >&2; exit 1"}
    for name, program in programs.items():
        python = folder / f".venv-{name}" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\n{program}\n")
        python.chmod(0o755)
    doctor.examine(["tensorflow", "jax", "mlx"])
    doctor.report_framework("torch")  # as in a process of its own


def print_lists(*_):
    """Print a list of two by two runs, then one of which a run failed; then what else a comparison may show."""
    for rates in ((12.1, 13.45, 20.2, 30.3), (12.1, None, 20.2, 30.3)):
        runs = []
        for (precision, size), each in zip(itertools.product(("float32", "bfloat16"), (1, 4)), rates, strict=True):
            found = rows.repeat(rows.measure(each, rows.ON_CPU)) if each else [rows.ROW | rows.FAILED]
            ratio = report.describe_comparison(rows.FASTER, "BATCH_SIZE=1") if each and size > 1 else ""
            runs.append((f"BATCH_SIZE={size} PRECISION={precision}", rows.combine(found), ratio))
        print(report.describe_list(runs), end="\n\n")
    print("\n".join(report.describe_comparison(each, "COMPILE=0") for each in rows.COMPARISONS))


COMMANDS = {
    "image": lambda *_: print(report.describe_run(rows.IMAGE, rows.ELSEWHERE)),
    "training": lambda *_: print_runs(rows.TRAINING),
    "epochs": lambda *_: print(report.describe_run(rows.EPOCHS, rows.NOWHERE)),
    "sustained": lambda *_: print(report.describe_run(rows.SUSTAINED, rows.NOWHERE)),
    "prefill": lambda *_: print(report.describe_run(rows.PREFILL, rows.NOWHERE)),
    "decode": lambda *_: print(report.describe_run(rows.DECODE, rows.NOWHERE)),
    "failures": print_failures,
    "tflops": lambda *_: print(tflops_sweep.describe_sweep(rows.SWEEP, [])),
    "best": print_best,
    "compare": print_compare,
    "table": print_table,
    "slices": print_lists,
    "doctor": print_doctor,
    "all": print_all,
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    COMMANDS[name](tmp_path, monkeypatch)
    printed = capsys.readouterr().out.replace(f"{tmp_path}/", "").splitlines()
    file = FOLDER / f"{name}.txt"
    if "REWRITE_OUTPUTS" in os.environ:
        file.write_text("\n".join(printed) + "\n")
    difference = list(difflib.unified_diff(file.read_text().splitlines(), printed, file.name, "now", lineterm=""))
    assert not difference, "\n".join(["", *difference, "", "To accept this: REWRITE_OUTPUTS=1"])


def test_the_doctor_tries_a_real_framework(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("USE_GPU", "0")  # a Mac in a virtual machine has a GPU that cannot allocate memory
    get_paths = environment.sysconfig.get_paths  # PyTorch asks it, too
    monkeypatch.setattr(environment.sysconfig, "get_paths", lambda *how: get_paths(*how) | {"include": str(tmp_path)})
    assert doctor.report_framework("torch") == 0
    out = capsys.readouterr().out
    assert all(words in out for words in ("(cpu)", "Python.h"))
    monkeypatch.setattr(frameworks, "load", lambda name: 1 / 0)
    assert doctor.report_framework("torch") == 1
