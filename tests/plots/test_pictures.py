"""Each picture draws the right rows; its looks are not tested."""

import re

import pytest

import plot_results
from bench.plots import draw, frames, pictures
from bench.settings import SettingError
from tests.rows import FAILED, GPU, MATMUL, rate, write

CITED = {"source": "https://x"}
OTHER_WORK = [{"image_size": "128"}, {"scope": "end_to_end"}, {"world_size": "2"}]
WRONG = [
    {"flags": "implausible", "batch_size": "64"},
    CITED | {"status": "unsynchronised"},
    CITED | {"status": "cpu_time"},
]
BERT = {"workload": "transformer", "model": "bert-large", "image_size": "", "sequence_length": "128"}
MLP = {"workload": "mlp", "batch_size": "32", "model": "mlp-5x1024", "image_size": "32", "data": "cifar10"}
LLM = {"workload": "llm", "model": "qwen3-4b", "batch_size": "1", "image_size": ""}
DECODE, TUNED = LLM | {"phase": "decode", "depth": "0"}, LLM | {"sequence_length": "128"}
LARGE = [DECODE | CITED | {"precision": "4-bit"}, DECODE | {"batch_size": "4"}]
DEEP = DECODE | rate(5) | {"new_tokens": "127"}
NOISE = {"workload": "diffusion", "model": "sd-1.5", "image_size": "512"}
PEAK = MATMUL | {"model": "matmul-peak", "tflops": "700"}
COPY = {"workload": "bandwidth", "model": "copy", "phase": "", "tflops": ""}


def texts_in(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts if text.get_text()]


def values_in(figure):
    """The values next to all bars; of lines, those of the last panel."""
    if texts := texts_in(figure):
        return sorted(float(text) for text in texts if re.fullmatch(r"[\d.]+", text))
    return sorted(value for each in figure.axes[-1].containers for value in each.lines[0].get_ydata())


@pytest.mark.parametrize(
    ("picture", "rows", "values"),
    [
        # The fastest settings; only resident batches of the usual size, on one device, timed with the right clock.
        (pictures.images, [rate(10), rate(30) | {"precision": "tf32"}, rate(20) | {"device": "cuda"}], [20, 30]),
        (pictures.images, [rate(10), rate(7) | CITED, *(rate(99) | each for each in OTHER_WORK + WRONG)], [7, 10]),
        (pictures.transformers, [rate(3) | BERT, rate(9) | BERT | {"sequence_length": "512"}], [3]),
        # CIFAR-10 comes before synthetic images; other settings than the ancestors' are left out.
        (pictures.mlp, [rate(8000) | MLP | {"data": "synthetic"}, rate(5000) | MLP], [5000]),
        (pictures.mlp, [rate(5) | MLP, rate(9) | MLP | {"optimizer": "adam"}, rate(9) | MLP | {"compile": "1"}], [5]),
        # Equal settings: those of the set, on two machines at least.
        (pictures.standard_set, [rate(5), rate(6) | GPU, rate(9) | {"compile": "1"}, rate(7) | BERT], [5, 6]),
        # Quantised weights and larger batches are other work; a prompt or depth of another length is in no panel.
        (
            pictures.llm,
            [rate(5) | DECODE, rate(6) | DECODE | GPU, rate(8) | DECODE | {"depth": "512"}]
            + [rate(99) | each for each in LARGE],
            [5, 6],
        ),
        (pictures.llm_training, [rate(9) | TUNED, rate(7) | TUNED | {"lora_rank": "8"}, rate(3) | DECODE], [7, 9]),
        (
            pictures.diffusion,
            [rate(2) | NOISE, rate(1) | NOISE | {"precision": "tf32"}, rate(9) | NOISE | {"phase": "forward"}],
            [2],
        ),
        # Of several setups, the fastest is a point of a line.
        (pictures.tflops, [MATMUL | {"tflops": each, "num_threads": each} for each in ("1", "2")], [2]),
        # A published figure of the same name hides no own one.
        (pictures.peaks, [PEAK, PEAK | {"tflops": "790"} | CITED, rate(4000) | COPY], [700, 790]),
        (pictures.bandwidth, [PEAK, rate(4000) | COPY], [4000]),
    ],
)
def test_the_rows_of_a_picture(folder, load, picture, rows, values):
    write(folder, rows)
    assert values_in(picture(load())) == values


def test_decode_is_drawn_over_the_mean_tokens_in_the_cache_a_line_for_each_setting(folder, load):
    write(folder, [DEEP | rate(4), DEEP | rate(9) | {"compile": "1"}])
    assert pictures.llm_depth(load()) is None
    write(folder, [DEEP | {"depth": "512", "new_tokens": "1"}])
    (axes,) = pictures.llm_depth(load()).axes
    assert [each.lines[0].get_xydata().tolist() for each in axes.containers] == [[[64, 4], [513, 5]]]


def test_epochs_over_depth_with_seconds_as_published(folder, load):
    write(folder, [rate(5000, 0.5) | MLP, rate(2500) | MLP | {"model": "mlp-10x1024"}])
    timed = {"throughput": "", "throughput_low": "", "throughput_high": "", "seconds": "60", "items": "150000"}
    write(folder, [timed | MLP | CITED], "p")
    found = frames.perceptrons(load().valid).sort_values(["machine", "depth"])
    assert found[["machine", "depth", "seconds_an_epoch"]].to_numpy().tolist() == [
        ["a", 5, 10],
        ["a", 10, 20],
        ["p", 5, 20],
    ]
    own = found.iloc[0]
    assert (own["seconds_an_epoch_low"], own["seconds_an_epoch_high"]) == pytest.approx((50_000 / 7500, 20))


def test_the_path_of_the_latest_search_is_in_the_order_of_the_file(folder, load):
    write(folder, [rate(5) | {"search": "old"}])
    write(
        folder,
        [
            rate(10) | {"search": "x", "timestamp": "2026-11-21T00:00:00+00:00"},
            rate(30) | {"search": "x", "precision": "bfloat16"},
        ],
    )
    write(folder, [rate(5) | {"search": "interleaved"}])  # of a list that is compared, which is not a path
    assert texts_in(pictures.best(load()))[1:] == ["the default", "10", "+ bfloat16", "30"]


def test_a_machine_whose_device_another_one_has_too_is_shown_by_its_own_name(folder, load):
    write(folder, [rate(10) | {"search": "x"}, rate(30) | {"search": "x", "precision": "bfloat16"}])
    assert texts_in(pictures.best(load()))[0].startswith("Example CPU (CPU)")
    write(folder, [rate(10)], "b")
    assert texts_in(pictures.best(load()))[0].startswith("a (CPU)")
    assert {"a (CPU), torch", "b (CPU), torch"} <= set(texts_in(pictures.images(load())))


def test_a_sustained_run_is_drawn_by_the_rate_of_each_ten_seconds_and_the_latest_counts(folder, load):
    for run, items in (("old", 90), ("new", 550), ("contended", 70)):
        row = {"scope": "sustained", "run_id": run, "items": str(items), "seconds": "10", "flags": run}
        write(folder, [rate(60) | row | {"elapsed_seconds": str(10 * i)} for i in (2, 1)])
    assert load().valid.empty
    (line,) = pictures.sustained(load()).axes[0].lines
    assert line.get_xydata().tolist() == [[pytest.approx(5 / 60), 55], [pytest.approx(15 / 60), 55]]


def test_pictures_are_at_most_7_inches_wide(folder, load):
    cells = {"device_name": "a device with a very long name " * 3, "model": "mobilenet_v2", "allocator": "x" * 99}
    write(folder, [rate(9) | cells, rate(9) | cells | MLP])
    for figure in (pictures.images(load()), pictures.mlp(load())):
        path = draw.save(figure, folder / "x.png", bbox_inches="tight")
        assert int.from_bytes(path.read_bytes()[16:20]) <= 7 * draw.DPI


def test_published_figures_are_drawn_from_any_folder(folder, load):
    write(folder, [rate(10)])
    write(frames.PUBLISHED, [rate(7) | CITED], "published")
    assert values_in(pictures.images(load())) == [7, 10]
    write(folder, [rate(6) | CITED], "published")
    assert values_in(pictures.images(load())) == [6, 10]


def test_a_picture_needs_a_row_of_our_own_and_is_in_the_readme(folder):
    (folder / "plots").mkdir()
    (folder / "plots" / "images.png").write_text("from an earlier run")
    write(folder, [rate(10) | CITED, PEAK])
    assert [path.name for path in plot_results.plot(folder, lambda line: None)][:-2] == ["peaks.png"]
    assert [path.name for path in (folder / "plots").iterdir()] == ["peaks.png"]
    write(folder, [rate(10)])
    *drawn, written, page = plot_results.plot(folder, lambda line: None)
    assert folder / "plots" / "images.png" in drawn
    assert "(plots/images.png)" in written.read_text()
    assert all(path.stat().st_size > 1000 for path in (*drawn, page))


@pytest.mark.parametrize("rows", [[], [FAILED], [CITED]])
def test_a_folder_without_a_result_is_a_mistake(folder, rows):
    write(folder, rows)
    with pytest.raises(SettingError, match="RESULTS_DIR="):
        plot_results.plot(folder, pytest.fail)
    assert not (folder / "README.md").exists()


def test_nothing_is_written_through_a_symbolic_link(folder, tmp_path):
    (folder / "plots").mkdir()
    (tmp_path / "mine").write_text("mine")
    write(folder, [rate(10)])
    for path in (folder / "README.md", folder / "index.html", folder / "plots" / "images.png"):
        path.symlink_to(tmp_path / "mine")
        path.with_suffix(".part").symlink_to(tmp_path / "mine")
    written = plot_results.plot(folder, lambda line: None)
    assert len(written) == 3
    assert not any(path.is_symlink() for path in written)
    assert (tmp_path / "mine").read_text() == "mine"
