"""The description of the host; the commands of other systems are replaced by recorded outputs."""

import json
import platform

import pytest

from bench.host import environment
from bench.host.environment import Card, find_apple_gpu_cores, list_cards
from bench.settings import SettingError


@pytest.mark.parametrize(
    ("cpu", "cores", "gpu", "gpu_cores", "name"),
    [
        ("AMD EPYC", 2, None, None, "amd-epyc-2-cores"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", 4, None, None, "intel-xeon-4-cores"),
        ("AMD Ryzen 7 5700G with Radeon Graphics", 16, None, None, "amd-ryzen-7-5700g-16-cores"),
        ("Apple M1 Max", 10, None, 32, "apple-m1-max-32-gpu-cores"),
        ("Intel(R) Xeon(R) CPU @ 2.00GHz", 2, "Tesla T4", None, "nvidia-tesla-t4"),
        (None, 4, None, None, "cpu-4-cores"),
    ],
)
def test_a_machine_is_named_after_its_fastest_device(cpu, cores, gpu, gpu_cores, name):
    assert environment.name_machine(cpu, cores, gpu, gpu_cores) == name


def answers(monkeypatch, **outputs):
    monkeypatch.setattr(environment, "output_of", lambda *command: outputs.get(command[0].replace("-", "_")))


def on_a_mac(monkeypatch, machine="arm64"):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: machine)


SMI = """NVIDIA GeForce GT 1030, 0, GPU-1111, 580.159.04
NVIDIA GeForce RTX 4090, 1, GPU-2222, 580.159.04"""


@pytest.mark.parametrize(
    ("visible", "index"),
    [(None, "0"), ("1,0", "1"), ("GPU-22", "1"), ("", None), ("-1", None)],
)
def test_the_first_visible_card_is_what_nvidia_smi_says_of_it(monkeypatch, visible, index):
    answers(monkeypatch, nvidia_smi=SMI)
    list_cards.cache_clear()
    cards = list_cards()
    list_cards.cache_clear()
    assert cards[1] == Card("NVIDIA GeForce RTX 4090", "1", "GPU-2222", "580.159.04")
    monkeypatch.setattr(environment, "list_cards", lambda: cards)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = environment.find_card()
    assert (found and found.index) == index


@pytest.mark.parametrize(
    ("vendor", "cards", "said"),
    [
        ("0x8086", [], ""),
        ("0x10de", [], "without a driver"),
        ("0x10de", [Card("a card", driver="580.1")], "580.1"),
        ("0x1002", [], "AMD"),
    ],
)
def test_why_a_gpu_is_not_used(monkeypatch, tmp_path, vendor, cards, said):
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "vendor").write_text(f"{vendor}\n")
    monkeypatch.setattr(environment, "list_cards", lambda: cards)
    why = environment.explain_missing_gpu("torch")
    assert said in why
    assert bool(why) == bool(said)


def test_why_the_gpu_of_a_mac_is_not_used(monkeypatch):
    on_a_mac(monkeypatch)
    assert "macOS 14" in environment.explain_missing_gpu("tensorflow")
    assert "docs/mac.md" in environment.explain_missing_gpu("jax")


def test_a_cpu_is_identified_by_its_family_model_and_stepping(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    lines = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nstepping\t: 1\n"
    cpuinfo.write_text(lines * 2)
    assert environment.find_cpu_id(cpuinfo) == "AuthenticAMD family 25 model 17 stepping 1"
    cpuinfo.write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")  # Arm
    assert environment.find_cpu_id(cpuinfo) is None


def test_apple_silicon(monkeypatch):
    on_a_mac(monkeypatch)
    displays = [{"sppci_cores": "32"}, {"_name": "a monitor"}]
    profile = json.dumps({"SPDisplaysDataType": displays}, indent=2)
    answers(monkeypatch, system_profiler=profile, pmset="Now drawing from 'Battery Power'\n lowpowermode         1\n")
    assert (find_apple_gpu_cores(), environment.find_power_source()) == (32, "battery")
    assert environment.find_low_power_mode() == 1
    answers(monkeypatch, pmset=" powermode            2\n")
    assert environment.find_low_power_mode() == 0
    answers(monkeypatch)
    assert (find_apple_gpu_cores(), environment.find_power_source()) == (None, None)
    assert environment.find_low_power_mode() is None


def test_an_x86_python_on_an_arm_mac_is_refused(monkeypatch):
    for machine, translated in (("x86_64", "0"), ("arm64", "1")):  # an Intel Mac, and an arm64 Python
        on_a_mac(monkeypatch, machine)
        answers(monkeypatch, sysctl=translated)
        environment.refuse_rosetta()
    on_a_mac(monkeypatch, "x86_64")
    with pytest.raises(SettingError, match="arm64 Mac: install an arm64 Python"):
        environment.refuse_rosetta()


@pytest.mark.parametrize(
    ("supplies", "source"),
    [
        ({"AC": "", "BAT0": "Discharging"}, "battery"),
        ({"AC": "", "BAT0": "Full"}, "ac"),
        ({"hidpp_battery_0": "Discharging"}, None),  # a mouse's
    ],
)
def test_power_source_of_a_linux_laptop(monkeypatch, tmp_path, supplies, source):
    answers(monkeypatch)
    for name, status in supplies.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "status").write_text(f"{status}\n")
    assert environment.find_power_source(tmp_path) == source


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
