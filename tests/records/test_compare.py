"""A comparison of two files; tests/outputs/compare.txt shows its ratios, verdicts and remarks."""

import pytest

import compare_results
from bench import process
from bench.records import results
from bench.records.columns import COLUMNS
from tests.rows import FIVE, GPU, rate, write


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("nothing", None),
        ("", None),
        ("header", None),
        ("~/a.csv", "example-cpu"),
        ("NVIDIA H200", "nvidia-h200"),  # there are figures of that name, too
        ("nvidia geforce rtx 3090", "NVIDIA RTX 3090"),
        ("3090", "NVIDIA RTX 3090"),
        ("rtx", "NVIDIA RTX 3090; NVIDIA RTX 4090"),
        ("~/folder", "example-cpu"),
        ("~", None),  # a folder with several
    ],
)
def test_a_side_is_a_file_a_machine_or_a_published_device_by_words_of_its_name(
    tmp_path, capsys, monkeypatch, typed, found
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(results, "PUBLISHED", tmp_path)
    (tmp_path / "header.csv").write_text(",".join(COLUMNS) + "\n")
    names = ["NVIDIA RTX 3090", "NVIDIA RTX 4090", "NVIDIA H200"]
    write(tmp_path, [GPU | {"source": "https://x", "device_name": name} for name in names], "published")
    for machine in ("a", "nvidia-h200", "folder/a"):
        write(tmp_path, [FIVE | {"machine": machine if machine == "nvidia-h200" else "example-cpu"}], machine)
    environ = {"RESULTS_DIR": str(tmp_path), "A": "a", "B": typed}
    status = process.run_script(lambda: compare_results.main(environ))
    out, err = capsys.readouterr()
    if found and ";" not in found:
        assert (status, found in out.splitlines()[1]) == (0, True)
    else:
        assert (status, f"B={typed!r}" in err, (found or "") in err) == (2, True, True)


@pytest.mark.parametrize(("of_cpu", "compared"), [([], 1), ([FIVE], 0)])
def test_a_cpu_is_compared_with_a_gpu_unless_one_side_has_both(tmp_path, capsys, of_cpu, compared):
    write(tmp_path, [FIVE | rate(400) | GPU, *(row | {"phase": "training"} for row in of_cpu)], "a")
    write(tmp_path, [FIVE | rate(1)], "b")
    compare_results.main({"RESULTS_DIR": str(tmp_path), "A": "a", "B": "b"})
    out = capsys.readouterr().out
    assert out.count(" on CPU (A: torch on GPU)") == compared
    assert out.count(" 0.002500 ") == compared


@pytest.mark.parametrize(("framework", "ratio"), [("torch", "0.5000"), ("mlx", "0.2500")])  # the same one, the fastest
def test_a_published_card_is_next_to_our_card(tmp_path, capsys, monkeypatch, framework, ratio):
    monkeypatch.setattr(results, "PUBLISHED", tmp_path)
    other = GPU | {"device_name": "Other", "machine": "other", "source": "https://x", "framework": framework}
    write(tmp_path, [rate(50) | other], "published")
    fast, slow = (FIVE | GPU | rate(some) | {"framework": name} for some, name in ((200, "tensorflow"), (100, "torch")))
    busy = slow | rate(300) | {"data": "cifar10", "flags": "contended"}
    write(tmp_path, [fast, slow, busy, FIVE | rate(9)], "a")  # the CPU's is the newest one
    assert compare_results.main({"RESULTS_DIR": str(tmp_path), "A": "Other", "B": "a"}) == 0
    assert f"median ratio {1 / float(ratio):.3f}" in capsys.readouterr().out
    assert compare_results.main({"RESULTS_DIR": str(tmp_path), "A": "a", "B": "Other"}) == 0
    out = capsys.readouterr().out
    assert f" {ratio} " in out
    assert "https://x" in out
    assert out.count("only in") == 1  # what the CPU did


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        (FIVE, rate(94), 4),
        (FIVE, rate(96, 0.001), 0),
        (FIVE, rate(94, 0.2), 0),
        (FIVE | {"processes": 3}, rate(94), 0),
        (FIVE, rate(94) | {"flags": "contended"}, 1),
        (FIVE, rate(94) | {"processes": 2}, 1),
        (FIVE, rate(94) | {"processes": 2, "machine": "another"}, 0),
        (FIVE, rate(94) | {"model": "vgg11"}, 1),
        (FIVE, rate(100), 0),
        (FIVE, rate(94) | {"num_threads": "1"}, 0),
        (FIVE, rate(94) | {"cpu_id": "another"}, 0),
    ],
)
def test_a_work_that_became_much_slower_is_an_exit_status(tmp_path, capsys, before, after, status):
    write(tmp_path, [before | rate(100)], "before")
    write(tmp_path, [FIVE | after], "after")
    assert compare_results.main({"RESULTS_DIR": str(tmp_path), "A": "before", "B": "after"}) == status
    assert ("exit status" in capsys.readouterr().out) == bool(status)


def test_several_chips_and_that_jax_has_no_work_in_common_with_an_uncompiled_pytorch_are_told(tmp_path, capsys):
    write(tmp_path, [FIVE, FIVE | {"cpu_id": "family 26"}, FIVE | GPU], "a")
    write(tmp_path, [FIVE | {"framework": "jax", "compile": "1"}], "b")
    compare_results.main({"RESULTS_DIR": str(tmp_path), "A": "a", "B": "b"})
    out = "".join(capsys.readouterr())
    assert ("COMPILE=1" in out, out.count("chips, family 25; family 26:"), out.count("chips")) == (True, 1, 1)
