"""The description of the host; the commands of other systems are replaced by recorded outputs."""

import json
import platform
from pathlib import Path

import pytest

from bench.host import environment
from bench.host.environment import Card, find_apple_gpu_cores, list_cards, list_gpu_vendors
from bench.settings import SettingError


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
    monkeypatch.setattr(environment, "output_of", lambda *command: outputs.get(command[0].replace("-", "_")))


def on_a_mac(monkeypatch, machine="arm64"):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: machine)


SMI = """NVIDIA GeForce GT 1030, 0, GPU-1111, 580.159.04, 6.1
NVIDIA GeForce RTX 4090, 1, GPU-2222, 580.159.04, 8.9"""


@pytest.mark.parametrize(
    ("visible", "index"),
    [(None, "0"), ("1,0", "1"), ("GPU-22", "1"), ("", None), ("-1", None), ("MIG-3333", None), ("7", None)],
)
def test_the_first_visible_card_is_what_nvidia_smi_says_of_it(monkeypatch, visible, index):
    answers(monkeypatch, nvidia_smi=SMI)
    list_cards.cache_clear()
    cards = list_cards()
    list_cards.cache_clear()
    assert cards[1] == Card("NVIDIA GeForce RTX 4090", "1", "GPU-2222", "580.159.04", 8.9)
    monkeypatch.setattr(environment, "list_cards", lambda: cards)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = environment.find_card()
    assert (found and found.index) == index


@pytest.mark.parametrize("printed", [None, "No devices were found", "NVIDIA GB10, 0, GPU-1, 580.1, [N/A]"])
def test_without_a_known_card_there_is_none(monkeypatch, printed):
    answers(monkeypatch, nvidia_smi=printed)
    list_cards.cache_clear()
    assert list_cards() == []
    list_cards.cache_clear()


def test_why_a_gpu_is_not_used(monkeypatch, tmp_path):
    for number, (kind, vendor) in enumerate([("0x030000", "0x8086"), ("0x030200", "0x10de"), ("0x020000", "0x1002")]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "class").write_text(f"{kind}\n")
        (tmp_path / str(number) / "vendor").write_text(f"{vendor}\n")
    assert list_gpu_vendors(tmp_path) == ["NVIDIA", "Intel"]  # the last one is not a display adapter
    for vendors, driver, said in [
        ([], None, ""),
        (["NVIDIA", "Intel"], None, "without a driver"),
        (["NVIDIA"], "580.1", "580.1"),
        (["AMD"], None, "AMD"),
    ]:
        monkeypatch.setattr(environment, "list_gpu_vendors", lambda vendors=vendors: vendors)
        why = environment.explain_missing_gpu("torch", driver)
        assert said in why
        assert bool(why) == bool(said)
    on_a_mac(monkeypatch)
    assert "macOS 14" in environment.explain_missing_gpu("tensorflow", None)
    assert "docs/mac.md" in environment.explain_missing_gpu("jax", None)


def test_a_cpu_is_identified_by_its_family_model_and_stepping(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    lines = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nstepping\t: 1\n"
    cpuinfo.write_text(lines * 2)
    assert environment.find_cpu_id(cpuinfo) == "AuthenticAMD family 25 model 17 stepping 1"
    cpuinfo.write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")  # Arm
    assert environment.find_cpu_id(cpuinfo) is None


def test_virtual_machines_are_known_on_x86_on_arm_and_on_a_mac(monkeypatch):
    answers(monkeypatch)
    for flags, virtual in (("fpu avx hypervisor sse", True), ("fpu avx", False)):
        monkeypatch.setattr(environment, "read_text", lambda path, flags=flags: f"model : x\nflags : {flags}\n")
        assert environment.is_virtual() == virtual
    for printed, virtual in ((None, False), ("kvm", True)):
        answers(monkeypatch, systemd_detect_virt=printed)
        assert environment.is_virtual() == virtual
    on_a_mac(monkeypatch)
    for printed, virtual in (("0", False), ("1", True)):
        answers(monkeypatch, sysctl=printed)
        assert environment.is_virtual() == virtual


def test_variables_that_change_the_speed_are_part_of_the_setup():
    names = ("CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE", "TORCHINDUCTOR_LAYOUT_OPTIMIZATION")
    for name in (*names, "TRANSFORMERS_SDPA_FORCE_GQA", "MALLOC_ARENA_MAX"):
        assert environment.find_allocator({name: "0", "HOME": "/"}) == f"{name}=0"


@pytest.mark.parametrize(("displays", "cores"), [([{"sppci_cores": "32"}, {"_name": "a monitor"}], 32), ([{}], None)])
def test_apple_silicon(monkeypatch, displays, cores):
    on_a_mac(monkeypatch)
    profile = json.dumps({"SPDisplaysDataType": displays})
    answers(monkeypatch, system_profiler=profile, pmset="Now drawing from 'Battery Power'\n 85%")
    assert (find_apple_gpu_cores(), environment.find_power_source()) == (cores, "battery")
    answers(monkeypatch)
    assert (find_apple_gpu_cores(), environment.find_power_source()) == (None, None)


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
        return environment.output_of("git", "-C", str(tmp_path), *identity, *arguments)

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
    (tmp_path / "table.md").write_text("untracked, as .DS_Store is")
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
