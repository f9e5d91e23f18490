"""What the pictures and the page say, and that no words overlap; not pixels."""

import itertools

import pytest
from matplotlib import pyplot as plt

import plot_results
from bench.plots import pictures, readme, select
from bench.plots.draw import COLOURS
from bench.settings import SettingError
from tests.records.examples import MATMUL, rate, write


def load(folder):
    return select.load(folder, pytest.fail)


def plot(folder):
    """The paths that `make plot` writes."""
    return plot_results.plot(folder, lambda line: None)


def sustained(run, rates, **changes):
    """Rows of ten seconds each."""
    kinds = {"scope": "sustained", "run_id": run, "seconds": "10"}
    return [
        rate(each) | kinds | {"elapsed_seconds": str(10 * i), "items": str(10 * each)} | changes
        for i, each in enumerate(rates, 1)
    ]


def test_own_marks_are_filled_and_published_ones_hollow_each_with_its_interval(folder):
    write(folder, [rate(1000, width=0.1), rate(10) | {"source": "https://x"}])
    own, published = pictures.images(load(folder)).axes[0].containers
    (point, _, (ends,)), (hollow, *_) = own.lines, published.lines
    assert (point.get_color(), point.get_markerfacecolor()) == (COLOURS[0], COLOURS[0])
    assert (point.get_xdata(), ends.get_segments()[0][:, 0]) == (1000, pytest.approx([900, 1100]))
    assert (hollow.get_color(), hollow.get_markerfacecolor()) == (COLOURS[1], "white")


def test_common_settings_stand_in_the_title_and_the_others_beside_the_bars(folder):
    write(folder, [rate(30) | {"precision": "tf32"}])
    write(folder, [rate(20) | {"num_threads": "1"}, rate(25) | {"num_threads": "2"}], "b")
    (axes,) = pictures.images(load(folder)).axes
    assert axes.get_title(loc="left") == "resnet50, 224 x 224 pixels, training, batch 16"
    assert [text.get_text() for text in axes.texts] == ["30", "tf32", "25", "float32, 2 threads"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a (CPU), torch", "b (CPU), torch"]


def test_language_models_have_panels_of_their_phases_and_a_line_over_depth(folder):
    words = {"workload": "llm", "model": "qwen3-4b", "batch_size": "1", "image_size": "", "unit": "tokens/s"}
    decode = words | {"phase": "decode", "new_tokens": "128", "precision": "bfloat16"}
    write(folder, [rate(9) | decode | {"depth": "0"}, rate(8) | decode | {"depth": "2048"}])
    write(folder, [rate(700) | words | {"phase": "prefill", "prompt_tokens": "512", "precision": "bfloat16"}])
    write(folder, [rate(99) | decode | {"depth": "2048", "precision": "4-bit", "source": "https://x"}], "p")
    stored = load(folder)
    prefill, decode = pictures.llm(stored).axes
    assert prefill.get_title(loc="left") == "qwen3-4b, prefill, bfloat16, batch 1, prompt of 512"
    assert [text.get_text() for text in decode.texts] == ["9", "depth 0", "8", "depth 2048"]
    (axes,) = pictures.depth(stored).axes
    line = axes.containers[0].lines[0]
    assert line.get_xdata().tolist() == [0, 2048]


def test_the_part_that_limits_is_marked(folder):
    three = [rate(100), rate(40) | {"scope": "input"}, rate(38) | {"scope": "end_to_end", "bottleneck": "input"}]
    write(folder, [row | {"run_id": "three"} for row in three])
    (axes,) = pictures.scopes(load(folder)).axes
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["100", "40 limits", "38"]


def draw_sizes(folder, sides):
    """Draw matmuls of these sides, {M: TFLOP/s}."""
    write(folder, [MATMUL | {"matrix_size": f"{m}x{m}x{m}", "tflops": str(t)} for m, t in sides.items()])
    return pictures.tflops(load(folder))


def test_the_best_size_has_the_ring(folder):
    figure = draw_sizes(folder, {64: 1, 128: 5, 256: 3})
    (ring,) = [line for line in figure.axes[0].lines if line.get_markersize() > 10]
    assert ring.get_xydata().tolist() == [pytest.approx([128, 5])]
    assert figure.legends[0].get_texts()[0].get_text() == "a (CPU), torch, float32: best at M = 128"


@pytest.mark.parametrize("sides", [(6000, 7000, 7900), (32, 4096), range(1000, 8000, 500)])
def test_every_axis_has_figures(folder, sides):
    figure = draw_sizes(folder, dict.fromkeys(sides, 12))
    figure.canvas.draw()
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        low, high = axis.get_view_interval()
        assert sum(low <= each <= high for each in axis.get_majorticklocs()) >= 2


def test_of_many_panels_those_with_own_rows_are_drawn(folder):
    power = {"power_watts": "10"}
    write(folder, [rate(1) | power | {"model": f"theirs-{i}", "source": "https://x"} for i in range(7)])
    write(folder, [rate(1) | power | {"model": "yours"}])
    stream = {"workload": "bandwidth", "phase": "", "unit": "GB/s"}
    write(folder, [rate(40) | stream | {"model": model} for model in ("copy", "add", "triad")])
    stored = load(folder)
    figures = pictures.joules(stored), pictures.bandwidth(stored)
    titles = [[axes.get_title(loc="left").split(",")[0] for axes in figure.axes] for figure in figures]
    assert titles == [["yours", *(f"theirs-{i}" for i in range(5))], ["copy", "add", "triad"]]
    assert "2 more" in figures[0].axes[-1].get_xlabel()


def test_a_sustained_run_is_drawn_by_the_rate_of_each_ten_seconds(folder):
    write(folder, [row | {"items": "550"} for row in sustained("r", [60] * 9, power_watts="40")])
    figure = pictures.sustained(load(folder))
    assert [axes.get_ylabel() for axes in figure.axes] == ["items/s", "W"]
    (line,) = figure.axes[0].lines
    assert line.get_xdata().tolist() == pytest.approx([(10 * i - 5) / 60 for i in range(1, 10)])
    assert line.get_ydata().tolist() == [55] * 9


def test_more_bars_than_a_panel_takes_are_counted(folder):
    for i in range(23):
        write(folder, [rate(10)], f"m{i}")
    (axes,) = pictures.images(load(folder)).axes
    assert axes.get_title(loc="left").endswith(", batch 16 (20 of 23)")
    assert len(axes.get_yticklabels()) == 20


def test_an_implausible_row_is_in_no_picture(folder):
    write(folder, [rate(88888) | {"flags": "implausible"}])
    (folder / "plots").mkdir()
    (folder / "plots" / "images.png").write_text("from an earlier run")
    assert "88890" not in plot(folder)[-1].read_text()
    assert not list((folder / "plots").iterdir())


def test_a_picture_needs_a_row_of_our_own(folder):
    for source, is_drawn in (({"source": "https://x"}, False), ({}, True)):
        write(folder, [row | source for row in (rate(10), MATMUL)])
        stored = load(folder)
        assert [bool(picture(stored)) for picture in (pictures.images, pictures.tflops)] == [is_drawn] * 2


def test_more_devices_are_in_the_picture_of_scaling_alone(folder):
    write(folder, [rate(10), rate(18) | {"world_size": "2"}, rate(99) | {"model": "vgg11", "world_size": "2"}])
    stored = load(folder)
    (axes,) = pictures.images(stored).axes
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["10"]
    measured, dotted = pictures.scaling(stored).axes[0].lines[0], pictures.scaling(stored).axes[0].lines[-1]
    assert measured.get_xydata().tolist() == [[1, 10], [2, 18]]
    assert dotted.get_xydata().tolist() == [[1, 10], [2, 20]]


def test_the_bus_bandwidth_of_all_reduce_is_drawn_over_its_size(folder):
    reduced = {"workload": "all-reduce", "model": "all-reduce", "phase": "", "unit": "GB/s", "world_size": "4"}
    write(folder, [rate(10) | reduced | {"message_bytes": "4096"}])
    (line, *_) = pictures.all_reduce(load(folder)).axes[0].lines
    assert line.get_xydata().tolist() == [[4, 15]]  # KiB; 10 x 2 x 3 / 4


def test_8_bits_are_drawn_as_multiples_of_bfloat16_at_the_same_size(folder):
    eight = MATMUL | {"model": "matmul-8bit", "precision": "int8", "tflops": "30"}
    half = {"precision": "bfloat16"}
    write(folder, [eight, eight | {"matrix_size": "8x8x8"}, MATMUL | half | {"tflops": "20"}])
    write(folder, [MATMUL | half | {"tflops": "5", "matrix_size": "9x9x9"}, MATMUL | {"tflops": "1"}])
    (axes,) = pictures.eight_bits(load(folder)).axes
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["1.5"]


def test_attention_is_drawn_over_its_length(folder):
    attention = {"workload": "attention", "model": "attention", "phase": "", "batch_size": "1", "image_size": ""}
    write(folder, [rate(9) | attention | {"sequence_length": n, "tflops": n} for n in ("4096", "1024")])
    (line, *_) = pictures.attention(load(folder)).axes[0].lines
    assert line.get_xydata().tolist() == [[1024, 1024], [4096, 4096]]


def many(folder, count):
    """Machines with a row for every picture."""
    for i in range(count):
        name = f"_a-rather-long-$machine$-name-{i}"
        rows = [rate(10 * 1.3**i) | {"phase": phase, "power_watts": "50"} for phase in ("inference", "training")]
        rows += [rate(9) | {"scope": "input"}, rate(8) | {"scope": "end_to_end", "bottleneck": "input"}]
        rows += [rate(50 * 1.2**i) | {"device": "cuda"}]
        bert = {"workload": "transformer", "model": "bert-large", "image_size": "", "sequence_length": "128"}
        rows += [rate(3 + i) | bert]
        mlp = {"workload": "mlp", "batch_size": "32", "image_size": "32"}
        rows += [rate(9000 / depth + i) | mlp | {"model": f"mlp-{depth}x1024"} for depth in (5, 10)]
        llm = {"workload": "llm", "model": "llama-3.1-8b", "batch_size": "1", "image_size": "", "precision": "bfloat16"}
        rows += [rate(500 + i) | llm | {"phase": "prefill", "prompt_tokens": "512"}]
        rows += [rate(50 + i) | llm | {"phase": "decode", "depth": depth} for depth in ("0", "512")]
        rows += [rate(90 + i) | llm | {"phase": "decode", "depth": "0", "precision": "4-bit"}]
        rows += [rate(20 + i) | llm | {"sequence_length": "512", "lora_rank": rank} for rank in ("0", "8")]
        rows += [rate(1) | MATMUL | {"model": model, "tflops": str(1 + i)} for model in ("matmul", "matmul-peak")]
        rows += [rate(1) | MATMUL | {"tflops": str(1 + i), "precision": "bfloat16"}]
        rows += [rate(1) | MATMUL | {"model": "matmul-8bit", "tflops": "3", "precision": "int8"}]
        attention = {"workload": "attention", "model": "attention", "phase": "", "batch_size": "1", "image_size": ""}
        rows += [rate(1) | attention | {"tflops": str(i + 1 / n), "sequence_length": str(1024 * n)} for n in (1, 4)]
        rows += [rate(40 + i) | {"workload": "bandwidth", "model": "copy", "phase": "", "unit": "GB/s", "tflops": ""}]
        way = {}, {"precision": "bfloat16"}, {"precision": "bfloat16", "compile": "1"}
        asked = {"search": f"search-{i}", "model": "resnet18", "phase": "inference"}
        rows += [rate(5 + 9 * step) | asked | {"search_step": str(step)} | changes for step, changes in enumerate(way)]
        rows += [rate(10 * 1.9**k) | {"phase": "training", "world_size": str(2**k)} for k in (1, 2)]
        reduced = {"workload": "all-reduce", "model": "all-reduce", "phase": "", "unit": "GB/s", "world_size": "2"}
        rows += [rate(1 + k) | reduced | {"message_bytes": str(1024 * 4**k)} for k in range(10)]
        write(folder, [row | {"run_id": "one"} for row in rows] + sustained(f"run-{i}", [10 + i] * 9), name)


def test_a_folder_that_is_missing_is_a_mistake():
    with pytest.raises(SettingError, match=r"RESULTS_DIR='.*' is not a folder"):
        plot_results.main()


@pytest.mark.parametrize("count", [3, 25])
def test_no_words_overlap(folder, count):
    many(folder, count)
    stored = load(folder)
    for picture in pictures.PICTURES:
        figure = picture(stored)
        figure.canvas.draw()
        legend = figure.legends[0]
        for texts in [legend.get_texts(), *([*axes.get_yticklabels(), *axes.texts] for axes in figure.axes)]:
            boxes = [text.get_window_extent() for text in texts if text.get_text()]
            assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2)), picture.__name__
        below = min(axes.get_tightbbox().y0 for axes in figure.axes)
        assert legend.get_window_extent().y1 <= below, picture.__name__
        plt.close(figure)


def test_everything_is_drawn_and_the_page_has_the_fastest_figures(folder):
    many(folder, 3)
    *drawn, written, page = plot(folder)
    assert [path.stem for path in drawn] == [picture.__name__ for picture in pictures.PICTURES]
    assert page == folder / "index.html"
    text = written.read_text()
    assert all(f"![{path.stem}](plots/{path.name})" in text and path.stat().st_size for path in drawn)
    header, _, fastest, *_ = [line for line in text.splitlines() if line.startswith("| ")]
    assert header.split(" | ")[3] == "resnet50 training"
    assert fastest.startswith("| _a-rather-long-$machine$-name-2 | gpu | torch | 72 | ")


def test_a_table_has_own_machines_first_and_an_end(folder, monkeypatch):
    monkeypatch.setattr(readme, "MAX_LINES", 3)
    for i in range(5):
        write(folder, [rate(100 + i) | {"source": "https://x"}], f"p{i}")
    write(folder, [rate(10), rate(8) | {"batch_size": "4"}, rate(9) | {"phase": "inference"}])
    lines = plot(folder)[-2].read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    assert cells[2] == ["a", "cpu", "torch", "10", "9", "this program"]
    assert [line[0] for line in cells[3:]] == ["p4", "p3"]
    assert any(line.startswith("3 more") for line in lines)


def test_what_is_written_replaces_a_link_and_not_its_target(folder):
    target = folder.parent / "target"
    target.write_text("mine")
    (folder / "plots").mkdir()
    for link in (folder / "README.md", folder / "plots" / "images.png"):
        link.symlink_to(target)
    write(folder, [{"phase": "inference"}])
    plot(folder)
    assert target.read_text() == "mine"
    assert not (folder / "README.md").is_symlink()
    names = sorted(each.name for each in folder.iterdir() if each.suffix != ".lock")
    assert names == ["README.md", "a.csv", "index.html", "plots"]
