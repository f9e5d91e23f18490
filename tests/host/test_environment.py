"""The description of the host; the commands of other systems are replaced by recorded outputs."""

import json
import platform
from pathlib import Path

import pytest

from bench.host import environment
from bench.host.environment import find_apple_gpu_cores, find_driver
from bench.settings import SettingError, environment_of
from tests.host import driver


@pytest.mark.parametrize(
    ("cpu", "cores", "gpu", "gpu_cores", "name"),
    [
        ("AMD EPYC", 2, None, None, "amd-epyc-2-cores"),
        ("AMD EPYC 7B12 64-Core Processor", 8, None, None, "amd-epyc-7b12-8-cores"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", 4, None, None, "intel-xeon-4-cores"),
        ("AMD Ryzen 7 5700G with Radeon Graphics", 16, None, None, "amd-ryzen-7-5700g-16-cores"),
        ("Apple M1 Max", 10, None, 32, "apple-m1-max-32-gpu-cores"),
        ("AMD EPYC", 16, "NVIDIA H200", None, "nvidia-h200"),
        ("Intel(R) Xeon(R) CPU @ 2.00GHz", 2, "Tesla T4", None, "nvidia-tesla-t4"),
        (None, 4, None, None, "cpu-4-cores"),
    ],
)
def test_a_machine_is_named_after_its_fastest_device(cpu, cores, gpu, gpu_cores, name):
    assert environment.name_machine(cpu, cores, gpu, gpu_cores) == name


def test_this_host_is_described():
    host = environment.describe_host("my-name")
    assert (host.machine, host.python) == ("my-name", platform.python_version())
    assert host.cpu_count >= 1
    assert host.memory_gb > 0


def answers(monkeypatch, **outputs):
    monkeypatch.setattr(environment, "_output", lambda *command: outputs.get(command[0].replace("-", "_")))


def on_a_mac(monkeypatch, machine="arm64"):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: machine)


def test_the_version_of_nvidias_driver(monkeypatch):
    answers(monkeypatch, nvidia_smi="580.159.04\n580.159.04")
    assert find_driver() == "580.159.04"
    answers(monkeypatch)
    assert find_driver() is None


@pytest.mark.parametrize(
    ("cuda", "own_environment", "named_after_card"),
    [(12, True, False), (13, True, True), (None, True, True), (12, False, True)],  # PYTHON=... may have another torch
)
def test_a_driver_that_is_too_old_for_the_installed_torch(monkeypatch, cuda, own_environment, named_after_card):
    monkeypatch.setattr(environment, "find_card", lambda: environment.Card(*driver.FAST))
    monkeypatch.setattr(environment, "find_cuda_version", lambda: cuda)
    monkeypatch.setattr(environment.sys, "prefix", str(environment_of("torch")) if own_environment else "/my/venv")
    monkeypatch.setattr(environment, "find_driver", lambda: "550.54")
    host = environment.describe_host()
    assert (host.machine == "nvidia-geforce-rtx-4090") == named_after_card
    why = environment.explain_missing_gpu("torch", host.driver)
    assert "550.54" in why
    assert "PYTHON=..." in why
    assert ("580" in why) != named_after_card


def test_why_a_gpu_is_not_used(monkeypatch):
    assert environment.explain_missing_gpu("torch", None) == ""
    monkeypatch.setattr(environment, "hides_cards", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert "CUDA_VISIBLE_DEVICES='-1'" in environment.explain_missing_gpu("torch", "580.1")
    on_a_mac(monkeypatch)
    assert "macOS 14" in environment.explain_missing_gpu("tensorflow", None)
    assert "docs/mac.md" in environment.explain_missing_gpu("jax", None)
    on_a_mac(monkeypatch, "x86_64")
    assert environment.explain_missing_gpu("torch", None) == ""


def test_variables_that_change_the_speed_are_part_of_the_setup():
    names = ("CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE", "TORCHINDUCTOR_LAYOUT_OPTIMIZATION")
    for name in (*names, "TRANSFORMERS_SDPA_FORCE_GQA", "MALLOC_ARENA_MAX"):
        assert environment.find_allocator({name: "0", "HOME": "/"}) == f"{name}=0"


@pytest.mark.parametrize(
    ("outputs", "cores", "memory", "source"),
    [
        (
            {"sysctl": "68719476736", "system_profiler": [{"sppci_cores": "32"}, {"_name": "a monitor"}]},
            32,
            64,
            "battery",
        ),
        ({"system_profiler": [{}]}, None, None, "battery"),
        ({}, None, None, None),
    ],
)
def test_apple_silicon(monkeypatch, outputs, cores, memory, source):
    on_a_mac(monkeypatch)
    if "system_profiler" in outputs:
        profile = json.dumps({"SPDisplaysDataType": outputs["system_profiler"]})
        outputs = outputs | {"system_profiler": profile, "pmset": "Now drawing from 'Battery Power'\n 85%"}
    answers(monkeypatch, **outputs)
    assert (find_apple_gpu_cores(), environment.find_memory_gb()) == (cores, memory)
    assert environment.find_power_source() == source


def test_an_x86_python_on_an_arm_mac_is_refused(monkeypatch):
    for machine, translated in (("x86_64", "0"), ("arm64", "1")):  # an Intel Mac, and an arm64 Python
        on_a_mac(monkeypatch, machine)
        answers(monkeypatch, sysctl=translated)
        environment.refuse_rosetta()
    on_a_mac(monkeypatch, "x86_64")
    with pytest.raises(SettingError, match="arm64 Mac: install an arm64 Python"):
        environment.refuse_rosetta()


@pytest.mark.parametrize(
    ("files", "source"),
    [
        ({"AC": {"online": "1\n"}, "BAT0": {"status": "Discharging\n"}}, "ac"),
        ({"AC": {"online": "0\n"}, "BAT0": {"status": "Discharging\n"}}, "battery"),
        ({"AC": {"online": "0\n"}, "BAT0": {"status": "Full\n"}}, None),
        ({"mouse": {"scope": "Device\n", "status": "Discharging\n", "online": "1\n"}}, None),
    ],
)
def test_power_source_of_a_linux_laptop(monkeypatch, tmp_path, files, source):
    for name, texts in files.items():
        (tmp_path / name).mkdir()
        for file, text in texts.items():
            (tmp_path / name / file).write_text(text)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    folders = {"/sys/class/power_supply": tmp_path}
    monkeypatch.setattr(environment, "Path", lambda path: folders.get(str(path), Path(path)))
    assert environment.find_power_source() == source


def test_changed_programs_make_the_commit_dirty_and_new_rows_do_not(monkeypatch, tmp_path):
    def git(*arguments):
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        return environment._output("git", "-C", str(tmp_path), *identity, *arguments)

    monkeypatch.setattr(environment, "ROOT", tmp_path)
    assert environment.find_commit() is None
    git("init")
    (tmp_path / "program.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    commit = environment.find_commit()
    assert len(commit) == 12
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "m.csv").write_text("row")
    assert environment.find_commit() == commit
    (tmp_path / "program.py").write_text("2")
    assert environment.find_commit() == f"{commit}-dirty"
    (tmp_path / "copy").mkdir()
    monkeypatch.setattr(environment, "ROOT", tmp_path / "copy")  # an unpacked archive inside another repository
    assert environment.find_commit() is None


def test_low_power_mode(monkeypatch):
    answers(monkeypatch)
    monkeypatch.setattr(environment.platform, "system", lambda: "Linux")
    for text, mode in (("low-power\n", 1), ("", None)):
        monkeypatch.setattr(environment, "read_text", lambda path, text=text: text)
        assert environment.find_low_power_mode() == mode
    on_a_mac(monkeypatch)
    for text, mode in (("System-wide:\n lowpowermode         1\n disksleep 10", 1), (" powermode            2\n", 0)):
        answers(monkeypatch, pmset=text)
        assert environment.find_low_power_mode() == mode
