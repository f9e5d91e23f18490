"""What the doctor reports about machines that are not here."""

import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bench import doctor, frameworks
from bench.host import environment, meters


def lines_of(capsys):
    """Return {subject: (state, words)} of what was printed."""
    lines = capsys.readouterr().out.splitlines()
    return {line[:12].strip(): (line[13:16].strip(), line[17:]) for line in lines}


@pytest.fixture
def visit(monkeypatch, capsys):
    """Run the doctor with these programs as the frameworks' processes; returns (exit status, lines)."""
    run = subprocess.run

    def call(interpreter=sys.executable, **programs):
        def start(command, **options):
            return run([command[0], "-c", programs[command[-1]]], **options)

        with monkeypatch.context() as changed:  # read_command() in bench/host starts processes, too
            changed.setattr(doctor.subprocess, "run", lambda c, **o: (start if "-m" in c else run)(c, **o))
            changed.setenv("PYTHON", interpreter)
            return doctor.examine(programs), lines_of(capsys)

    return call


def test_one_framework_that_runs_is_enough(visit):
    fails = "print('torch        no  old'); raise SystemExit(1)"
    status, lines = visit(torch=fails, jax="print('jax          ok  0.8')")
    assert (status, lines["torch"][0], lines["jax"]) == (0, "no", ("ok", "0.8"))
    assert visit(torch=fails, jax=fails)[0] == 1


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})", "illegal instruction"),
        (f"print('torch ok', flush=True); import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})", "signal 11"),
        ("raise SystemExit('Symbol not found: __ZN10tensorflow')", "Symbol not found: __ZN10tensorflow"),
        ("import time; time.sleep(100)", "timed out"),
    ],
)
def test_a_framework_that_crashes_or_hangs_is_a_line_with_a_fix(visit, monkeypatch, program, words):
    monkeypatch.setattr(doctor, "TRY_SECONDS", 1 if "sleep" in program else 300)
    status, lines = visit(torch=program)
    state, said = lines["torch"]
    assert (status, state, words in said, "PYTHON" in said) == (1, "no", True, True)


def test_a_python_that_is_missing_is_reported_with_the_fix(visit, monkeypatch, tmp_path, capsys):
    assert "PYTHON" in visit("/no/python", torch="")[1]["torch"][1]
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    assert not doctor.try_framework("jax")
    assert "`make image FRAMEWORK=jax`" in lines_of(capsys)["jax"][1]


def test_a_real_framework_is_tried_with_its_meters(monkeypatch, capsys):
    meter = meters.Instruments(SimpleNamespace(power_scope="gpu board"))
    monkeypatch.setattr(meters, "open_instruments", lambda *device: meter)
    assert doctor.report_framework("torch") == 0
    lines = lines_of(capsys)
    assert "matmul verified in float32" in lines["torch"][1]
    assert lines["energy"][0] == "ok"
    # Without meters, and with a card that torch does not find.
    monkeypatch.setattr(meters, "open_instruments", lambda *device: meters.Instruments(why_no_energy="chmod it"))
    monkeypatch.setattr(environment, "explain_missing_gpu", lambda name: f"{name} does not find it")
    on_cpu = frameworks.Device("cpu", None, "2.9", 1)
    monkeypatch.setattr(frameworks.load("torch"), "find_device", lambda settings: on_cpu)
    assert doctor.report_framework("torch") == 0
    lines = lines_of(capsys)
    assert [lines[name][0] for name in ("torch", "energy")] == ["--", "--"]
    assert "torch does not find it" in lines["torch"][1]
    assert "chmod it" in lines["energy"][1]


def test_what_hinders_is_reported(monkeypatch, capsys):
    doctor.examine([])
    assert lines_of(capsys)["power"][0] == "ok"
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    monkeypatch.setattr(environment, "find_power_source", lambda: "battery")
    for commit, state in ((None, "no"), ("1a2b-dirty", "no"), ("1a2b", "ok")):
        monkeypatch.setattr(environment, "find_commit", lambda commit=commit: commit)
        doctor.examine([])
        lines = lines_of(capsys)
        assert [lines[name][0] for name in ("environment", "power", "commit")] == ["no", "no", state]
