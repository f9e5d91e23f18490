"""A machine's card: which rows it shows, which published machines are next to it, and what it doubts."""

import pytest

from bench.plots import card, frames
from bench.records import tables
from bench.workloads.standard_set import STANDARD_SET
from tests.rows import GPU, PEAK, rate, standard_set, write

LATER = "2030-11-20T11:34:42+00:00"
OTHERS = {"source": "https://x", "device": "cuda", "batch_size": "16", "phase": "inference"}
OF_THE_CPU = [line for line in STANDARD_SET if line.suits("cpu", "torch")]


def make(folder, framework="torch"):
    return card.make_card(frames.select_valid(tables.read(folder, pytest.fail)), "a", framework)


def bars(folder):
    return [row for block in make(folder).blocks for row in block]


def test_published_machines_are_those_that_compare_with_most_of_it(folder):
    write(folder, standard_set())
    bad = {"compile": "1", "precision": "mixed_float16", "scope": "end_to_end", "image_size": "320", "phase": "forward"}
    bad |= {"status": "unsynchronised", "model": "vgg16"}
    rows = [OTHERS | rate(900) | {name: text, "device_name": f"another {name}"} for name, text in bad.items()]
    write(folder, [*rows, OTHERS | rate(900) | {"device_name": "good"}], "published")
    names = [row["device_name"] for row in bars(folder)]
    assert names[1] == "good"
    assert names.count("Example CPU") == len(names) - 1
    for name, places in {"gpu 4": [4], "gpu 5": [5], "both": [0, 2], "gpu 6": [6]}.items():
        for line in (OF_THE_CPU[i] for i in places):
            about = {"device_name": name, "workload": line.workload, "model": line.model, "phase": line.phase}
            about |= {"batch_size": line.batch_size, "image_size": None}
            write(folder, [OTHERS | about], "published")
    shown = {row["device_name"] for row in bars(folder) if row["published"]}
    assert "both" in shown
    assert len(shown) == card.MOST_PUBLISHED


def test_one_row_of_a_gpu_does_not_hide_the_card_of_the_cpu(folder):
    write(folder, [*standard_set(), GPU | rate(900) | {"machine": "a", "batch_size": 64}])
    assert {row["kind"] for row in bars(folder)} == {"cpu"}


@pytest.mark.parametrize(("share", "words"), [(0.38, "38"), (0.0151, "2"), (0.0149, "1"), (0.0042, "0.4")])
def test_a_small_share_is_not_zero_percent(share, words):
    assert card.format_percent(share) == words


def test_the_latest_lines_with_the_settings_of_the_set_and_the_peaks_of_the_machine_are_shown(folder):
    peak = rate(1) | {"workload": "matmul", "model": "matmul-peak", "phase": "", "precision": "float32"}
    here, disturbed = {"tflops": "0.2"}, {"flags": "contended", "tflops": "0.5", "matrix_size": "8x8x8"}
    write(folder, [*standard_set(tflops="0.1"), peak | here, peak | disturbed])
    about = {"phase": "inference", "timestamp": LATER, "run_id": "x", "processes": 3, "tflops": "0.1"}
    others = {"batch_size": "64", "compile": "1", "memory_format": "channels_last", "framework": "tensorflow"}
    write(folder, [rate(999) | about | {name: text} for name, text in others.items()])
    write(folder, [rate(150) | about | {"precision": "bfloat16"}])
    made = make(folder)
    shown = [(row["precision"], row["value"], row["processes"]) for row in made.blocks[0]]
    assert shown == [("float32", 100, 3), ("bfloat16", 150, 3)]
    assert [rate for rate, *_ in made.tiles] == ["0.2 TFLOP/s"]
    assert {row["of_peak"] for row in bars(folder) if row["of_peak"] > 0} == {0.5}
    assert make(folder, framework="tensorflow") is None


def test_what_an_earlier_run_or_another_framework_measured_says_so(folder):
    whole = [
        rate(speed) | {"scope": scope, "phase": "inference"} for scope, speed in (("input", 900), ("end_to_end", 90))
    ]
    write(folder, [*standard_set(), *(row | {"run_id": 0, "batch_size": 16} for row in whole)])
    write(folder, [PEAK | {"framework": "jax", "tflops": "0.5"}])
    assert any("files, bottleneck: the model" in words for words in make(folder).limits)
    assert [words for _, *words in make(folder).tiles] == [["float32 matmul", "in JAX"]]
    write(folder, [rate(90) | {"phase": "inference", "processes": 3, "run_id": "x", "timestamp": LATER}])
    assert any("another run" in words for words in make(folder).limits)
    write(folder, [rate(90)], "b")
    assert (make(folder).name, make(folder).subtitle.split()[0]) == ("a", "Example")


def test_the_card_is_stored_and_doubts_only_what_is_flagged(folder):
    write(folder, standard_set())
    assert make(folder).doubts == []
    first, *_ = standard_set(flags="drift", timestamp=LATER, run_id="x")
    write(folder, [first])
    (doubt,) = make(folder).doubts
    assert "ResNet-50 inference" in doubt
    assert "a-torch.png" in card.finish(folder, "a", "torch")[-1]
    assert (folder / "cards" / "a-torch.png").stat().st_size
