"""What the doctor reports about machines that are not here."""

import signal
import sys
from types import SimpleNamespace

import pytest

from bench import doctor, frameworks, processes
from bench.host import environment, meters, resources, sensors


def lines_of(capsys):
    """Return {subject: (state, words)} of what was printed."""
    lines = capsys.readouterr().out.splitlines()
    return {line[:12].strip(): (line[13:16].strip(), line[17:]) for line in lines}


@pytest.fixture
def visit(monkeypatch, capsys, tmp_path):
    """Run the doctor with these programs as the frameworks' processes; returns (exit status, lines)."""
    run_process = processes.run_process

    def call(interpreter=sys.executable, **programs):
        def run(command, *arguments, **options):
            return run_process([command[0], "-c", programs[command[-1]]], *arguments, **options)

        monkeypatch.setattr(processes, "run_process", run)
        monkeypatch.setenv("PYTHON", interpreter)
        return doctor.examine(tmp_path, programs), lines_of(capsys)

    return call


def test_one_framework_that_runs_is_enough(visit):
    fails = "print('torch        no  old'); raise SystemExit(1)"
    status, lines = visit(torch=fails, jax="print('jax          ok  0.8')")
    assert (status, lines["torch"][0], lines["jax"]) == (0, "no", ("ok", "0.8"))
    assert {"environment", "power", "memory", "results", "commit"} < set(lines)
    assert visit(torch=fails, jax=fails)[0] == 1


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})", "illegal instruction"),
        (f"print('torch ok', flush=True); import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})", "signal 11"),
        ("raise SystemExit('Symbol not found: __ZN10tensorflow')", "Symbol not found: __ZN10tensorflow"),
    ],
)
def test_a_framework_that_crashes_is_a_line_with_a_fix(visit, program, words):
    status, lines = visit(torch=program)
    state, said = lines["torch"]
    assert (status, state, words in said, "PYTHON" in said) == (1, "no", True, True)


def test_a_framework_that_hangs_is_ended(visit, monkeypatch):
    monkeypatch.setattr(doctor, "TRY_SECONDS", 0.5)
    status, lines = visit(torch="input()")
    assert (status, lines["torch"][0]) == (1, "no")


def test_ctrl_c_while_a_framework_is_tried_ends_the_doctor(visit):
    with pytest.raises(KeyboardInterrupt):
        visit(torch="import os, signal; os.kill(os.getppid(), signal.SIGINT); signal.pause()")


def test_a_python_that_is_missing_is_reported_with_the_fix(visit, monkeypatch, tmp_path, capsys):
    assert "PYTHON" in visit("/no/python", torch="")[1]["torch"][1]
    monkeypatch.delenv("PYTHON")
    monkeypatch.setattr(doctor, "environment_of", lambda name: tmp_path)
    assert not doctor.try_framework("jax")
    assert "`make image FRAMEWORK=jax`" in lines_of(capsys)["jax"][1]


def test_a_real_framework_is_tried_with_its_meters(monkeypatch, capsys):
    heat = {"temperature_c": 61, "clock_mhz": 1980, "throttle_reasons": ""}
    meter = meters.Instruments(SimpleNamespace(power_scope="gpu board"), lambda: heat)
    monkeypatch.setattr(meters, "open_instruments", lambda *device: meter)
    assert doctor.report_framework("torch") == 0
    lines = lines_of(capsys)
    assert "matmul verified in float32" in lines["torch"][1]
    assert [lines[name][0] for name in ("energy", "heat")] == ["ok", "ok"]
    # Without meters, and with a card that torch does not find.
    monkeypatch.setattr(meters, "open_instruments", lambda *device: meters.Instruments(why_no_energy="chmod it"))
    monkeypatch.setattr(environment, "explain_missing_gpu", lambda name: f"{name} does not find it")
    on_cpu = frameworks.Device("cpu", None, "2.9", 1)
    monkeypatch.setattr(frameworks.load("torch"), "find_device", lambda settings: on_cpu)
    assert doctor.report_framework("torch") == 0
    lines = lines_of(capsys)
    assert [lines[name][0] for name in ("torch", "energy", "heat")] == ["--", "--", "--"]
    assert "torch does not find it" in lines["torch"][1]
    assert "chmod it" in lines["energy"][1]
    monkeypatch.setattr(sensors, "read_thermal_pressure", lambda: "heavy")
    monkeypatch.setattr(frameworks.metadata, "version", lambda package: "2.8.0")  # too old
    assert doctor.report_framework("torch") == 1
    assert "2.8.0" in lines_of(capsys)["torch"][1]


def test_what_hinders_is_reported(monkeypatch, tmp_path):
    assert [check()[1] for check in (doctor.check_variables, doctor.check_power)] == ["ok", "ok"]
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    monkeypatch.setattr(environment, "find_power_source", lambda: "battery")
    assert [check()[1] for check in (doctor.check_variables, doctor.check_power)] == ["no", "no"]
    monkeypatch.setattr(resources, "available_bytes", lambda: 2**30)
    assert "1.0 GiB available" in doctor.check_memory()[2]
    (tmp_path / "file").touch()
    assert doctor.check_results(tmp_path / "file")[1] == "no"
    assert doctor.check_results(tmp_path / "new" / "folder")[1] == "ok"
    for commit, state in ((None, "no"), ("1a2b-dirty", "no"), ("1a2b", "ok")):
        monkeypatch.setattr(environment, "find_commit", lambda commit=commit: commit)
        assert doctor.check_commit()[1] == state


def test_a_check_that_fails_does_not_end_the_doctor(monkeypatch, visit):
    def fails():
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor, "check_commit", fails)
    status, lines = visit(torch="print('torch        ok')")
    assert (status, "PermissionError" in lines["system"][1]) == (0, True)
