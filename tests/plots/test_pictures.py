"""What the pictures say, and that no words overlap; not pixels."""

import itertools

import pytest
from matplotlib import pyplot as plt

import plot_results
from bench.plots import pictures
from bench.plots.draw import COLOURS
from tests.records.examples import MATMUL, rate, write

CITED = {"source": "https://x"}


def plot(folder):
    """The paths that `make plot` writes."""
    return plot_results.plot(folder, lambda line: None)


def words_in(axes):
    return [text.get_text() for text in axes.texts if text.get_text()]


def test_own_marks_are_filled_and_published_ones_hollow_each_with_its_interval(folder, load):
    write(folder, [rate(1000, width=0.1), rate(10) | CITED])
    own, published = pictures.images(load()).axes[0].containers
    (point, _, (ends,)), (hollow, *_) = own.lines, published.lines
    assert (point.get_color(), point.get_markerfacecolor()) == (COLOURS[0], COLOURS[0])
    assert (point.get_xdata(), ends.get_segments()[0][:, 0]) == (1000, pytest.approx([900, 1100]))
    assert (hollow.get_color(), hollow.get_markerfacecolor()) == (COLOURS[1], "white")


def test_common_settings_are_in_the_title_and_the_others_next_to_the_bars(folder, load):
    write(folder, [rate(30) | {"precision": "tf32", "device_name": "chip"}])
    write(folder, [rate(20) | {"num_threads": "1"}, rate(25) | {"num_threads": "2"}], "b")
    (axes,) = pictures.images(load()).axes
    assert axes.get_title(loc="left") == "resnet50, 224 x 224 pixels, training, batch 16"
    assert words_in(axes)[:2] == ["30", "tf32"]
    assert words_in(axes)[3] == "float32, 2 threads"
    assert axes.get_yticklabels()[0].get_text() == "chip (CPU), torch"


def test_the_part_that_limits_is_marked(folder, load):
    write(folder, [rate(100), rate(40) | {"scope": "input"}, rate(38) | {"scope": "end_to_end", "bottleneck": "input"}])
    (axes,) = pictures.scopes(load()).axes
    assert words_in(axes) == ["100", "40 limits", "38"]


def test_the_path_of_a_search_has_gains_over_the_default(folder, load):
    write(folder, [rate(10) | {"search": "x"}, rate(30) | {"search": "x", "precision": "bfloat16"}])
    (axes,) = pictures.best(load()).axes
    assert words_in(axes) == ["10 (1x)", "30 (3x)"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["the default", "+ bfloat16"]


@pytest.mark.parametrize("sides", [(6000, 7000, 7900), (32, 4096), range(1000, 8000, 500)])
def test_every_axis_has_figures(folder, load, sides):
    write(folder, [MATMUL | {"matrix_size": f"{m}x{m}x{m}", "tflops": "12"} for m in sides])
    figure = pictures.tflops(load())
    figure.canvas.draw()
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        low, high = axis.get_view_interval()
        assert sum(low <= each <= high for each in axis.get_majorticklocs()) >= 2


def test_own_panels_come_first_and_a_plot_has_room_for_some(folder, load):
    llm = {"workload": "llm", "image_size": "", "batch_size": "1", "phase": "decode"}
    write(folder, [rate(1) | llm | {"model": f"theirs-{i}"} | CITED for i in range(7)])
    for i in range(23):
        write(folder, [rate(10) | llm | {"model": "ours"}], f"m{i}")
    axes = pictures.llm(load()).axes
    assert len(axes) == pictures.MAX_PANELS
    assert axes[0].get_title(loc="left").startswith("ours")
    assert axes[0].get_title(loc="left").endswith(" (20 of 23)")


def test_a_sustained_run_is_drawn_by_the_rate_of_each_ten_seconds(folder, load):
    write(folder, sustained([60] * 9, power_watts="40", items="550"))
    figure = pictures.sustained(load())
    assert [axes.get_ylabel() for axes in figure.axes] == ["items/s", "W"]
    (line,) = figure.axes[0].lines
    assert line.get_xdata().tolist() == pytest.approx([(10 * i - 5) / 60 for i in range(1, 10)])
    assert line.get_ydata().tolist() == [55] * 9


def test_an_implausible_row_is_in_no_picture_and_an_old_picture_goes(folder):
    write(folder, [rate(88888) | {"flags": "implausible"}])
    (folder / "plots").mkdir()
    (folder / "plots" / "images.png").write_text("from an earlier run")
    plot(folder)
    assert not list((folder / "plots").iterdir())


def test_a_picture_needs_a_row_of_our_own(folder, load):
    for source, is_drawn in ((CITED, False), ({}, True)):
        write(folder, [row | source for row in (rate(10), MATMUL)])
        assert [bool(picture(load())) for picture in (pictures.images, pictures.tflops)] == [is_drawn] * 2


def test_several_devices_are_only_in_the_picture_of_scaling(folder, load):
    write(folder, [rate(10), rate(18) | {"world_size": "2"}, rate(99) | {"model": "vgg11", "world_size": "2"}])
    (axes,) = pictures.images(load()).axes
    assert words_in(axes) == ["10"]
    lines = pictures.scaling(load()).axes[0].lines
    assert lines[0].get_xydata().tolist() == [[1, 10], [2, 18]]
    assert lines[-1].get_xydata().tolist() == [[1, 10], [2, 20]]  # dotted


def sustained(rates, **changes):
    """Rows of ten seconds each."""
    kinds = {"scope": "sustained", "run_id": "sustained", "seconds": "10"}
    return [
        rate(each) | kinds | {"elapsed_seconds": str(10 * i), "items": str(10 * each)} | changes
        for i, each in enumerate(rates, 1)
    ]


def write_all(folder, count):
    """Write machines with rows for every picture."""
    for i in range(count):
        name = f"a-rather-long-$machine$-name-{i}"
        rows = [rate(10 * 1.3**i) | {"phase": phase} for phase in ("inference", "training")]
        rows += [rate(9) | {"scope": "input"}, rate(8) | {"scope": "end_to_end", "bottleneck": "input"}]
        rows += [rate(50 * 1.2**i) | {"device": "cuda"}]
        bert = {"workload": "transformer", "model": "bert-large", "image_size": "", "sequence_length": "128"}
        rows += [rate(3 + i) | bert]
        mlp = {"workload": "mlp", "batch_size": "32", "image_size": "32"}
        rows += [rate(9000 / depth + i) | mlp | {"model": f"mlp-{depth}x1024"} for depth in (5, 10)]
        llm = {"workload": "llm", "model": "llama-3.1-8b", "batch_size": "1", "image_size": "", "precision": "bfloat16"}
        rows += [rate(500 + i) | llm | {"phase": "prefill", "prompt_tokens": "512"}]
        rows += [rate(50 + i) | llm | {"phase": "decode", "depth": "0"}]
        rows += [rate(20 + i) | llm | {"sequence_length": "512", "lora_rank": rank} for rank in ("0", "8")]
        noise = {"workload": "diffusion", "model": "sd-1.5", "batch_size": "1", "image_size": "512"}
        rows += [rate(2 + i) | noise | {"phase": phase} for phase in ("inference", "training", "forward")]
        rows += [rate(1) | MATMUL | {"model": model, "tflops": str(1 + i)} for model in ("matmul", "matmul-peak")]
        rows += [rate(40 + i) | {"workload": "bandwidth", "model": "copy", "phase": "", "unit": "GB/s", "tflops": ""}]
        path = {}, {"precision": "bfloat16"}, {"precision": "bfloat16", "compile": "1"}
        asked = {"search": f"search-{i}", "model": "resnet18", "phase": "inference"}
        rows += [rate(5 + 9 * step) | asked | changes for step, changes in enumerate(path)]
        rows += [rate(10 * 1.9**k) | {"phase": "training", "world_size": str(2**k)} for k in (1, 2)]
        write(folder, [row | {"device_name": name} for row in [*rows, *sustained([10 + i] * 9, run_id=name)]], name)


def test_no_words_overlap(folder, load):
    write_all(folder, 3)
    stored = load()
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


def test_everything_is_drawn_and_in_the_readme(folder):
    write_all(folder, 3)
    *drawn, written, page = plot(folder)
    assert [path.stem for path in drawn] == [picture.__name__ for picture in pictures.PICTURES]
    assert all(f"(plots/{path.name})" in written.read_text() and path.stat().st_size for path in drawn)
    assert page.stat().st_size
