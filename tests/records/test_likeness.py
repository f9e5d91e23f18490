"""Which results are of the same work, which machine a name means, and what is shown below a result."""

import pytest

from bench.records import likeness, results, tables
from bench.records.likeness import describe_how, work_of
from tests.rows import GPU, MATMUL, PEAK, ROW, processes_of, rate, write

TRAINING = {"batch_size": 64, "precision": "mixed_bfloat16", "compile": 1}


def row(**cells):
    return ROW | cells


@pytest.fixture(scope="module")
def ancestors():
    """ResNet-50's training on an RTX 3090, as its source states it: 957 images/s."""
    lines = tables.read("results", print)
    found = lines[(lines["device_name"] == "NVIDIA RTX 3090") & (lines["value"].round() == 957)]
    assert len(found) == 1
    return found.to_dict("records")[0]


def test_the_ancestors_figure_is_next_to_64_images_compiled(ancestors):
    assert work_of(ancestors) == work_of(row(**TRAINING))
    assert work_of(ancestors) == work_of(row(**TRAINING | {"precision": "mixed_float16", "compile": "reduce-overhead"}))


@pytest.mark.parametrize(
    "other", [{"batch_size": 256}, {"compile": 0}, {"precision": "float32"}, {"scope": "end_to_end"}, {"world_size": 2}]
)
def test_and_next_to_nothing_else(ancestors, other):
    assert work_of(ancestors) != work_of(row(**TRAINING | other))


def test_what_differs_is_in_words():
    a, b = row(precision="bfloat16", memory_format="channels_last"), row(precision="float16", framework="jax")
    assert work_of(a) == work_of(b)
    assert "channels_last" in describe_how(a)
    assert "float16" in describe_how(b)
    assert "jax" in describe_how(b)


def test_float32_that_ran_as_tf32_is_tf32():
    assert work_of(row(measured_precision="tf32")) == work_of(row(precision="tf32"))
    assert work_of(row(measured_precision="tf32")) != work_of(row())


def test_unknown_lengths_are_next_to_unknown_ones_only():
    unknown = row(workload="llm", model="llama-3.2-1b", phase="decode", depth="")
    assert work_of(unknown) != work_of(unknown | {"depth": "0", "new_tokens": "128"})
    assert work_of(unknown) == work_of(unknown | {"framework": "mlx"})


def test_a_peak_has_no_size_but_a_precision():
    assert work_of(row(**PEAK)) == work_of(row(**PEAK | {"matrix_size": "4096x4096x4096", "batch_size": 8}))
    assert work_of(row(**PEAK)) != work_of(row(**MATMUL))
    assert work_of(row(**PEAK | {"precision": "float16"})) != work_of(row(**PEAK | {"precision": "bfloat16"}))


# Other machines

CITED = {"source": "https://x.org/a", "machine": "x"}


def describe(folder, *others, **changes):
    """Describe what is elsewhere for a GPU's row of 100 images/s, which is stored, too."""
    mine = processes_of(ROW | GPU | changes)
    write(folder, mine, "mine")
    for number, other in enumerate(others):
        write(folder, [GPU | {"machine": f"m{number}"} | other], f"m{number}")
    return likeness.describe_elsewhere(tables.combine_rows(mine)[0], tables.read(folder))


def test_the_same_chip_comes_first_then_the_fastest_of_each_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "PUBLISHED", tmp_path / "none")
    same = rate(40) | CITED | {"device_name": "GeForce Example GPU (Laptop)", "framework": "tensorflow"}
    others = [rate(900) | CITED | {"device_name": name} for name in ("Slow", "Fast")]
    others[0] |= rate(50)
    text = describe(tmp_path, *others, same, rate(200) | {"device_name": "Own", "processes": 3}, {"device_name": "2"})
    names = ["Example GPU (Laptop) 40 images/s (tensorflow, published; yours is 2.5x)", "Fast 900", "m3 200 images/s"]
    places = [text.index(name) for name in names]
    assert places == sorted(places)
    assert "processes: 3" in text
    assert "Slow" not in text


@pytest.mark.parametrize(
    "other",
    [
        {"batch_size": 64},
        {"phase": "forward"},
        {"precision": "bfloat16"},
        {"device": "cpu"},
        {"flags": "contended"},
        {"flags": "implausible"},
        {"status": "interrupted"},
        {"machine": GPU["machine"]},  # this computer
        CITED | {"status": "cpu_time"},
    ],
)
def test_what_is_of_other_work_or_doubtful_or_of_this_computer_is_left_out(tmp_path, monkeypatch, other):
    monkeypatch.setattr(results, "PUBLISHED", tmp_path / "none")
    assert describe(tmp_path, other) == ""
    assert describe(tmp_path, {}) != ""


def test_a_disturbed_result_has_no_ratio(tmp_path):
    assert "yours" in describe(tmp_path, {}, flags="drift")
    assert "yours" not in describe(tmp_path, {}, flags="drift contended")
