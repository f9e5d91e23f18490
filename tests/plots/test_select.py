"""Which rows a picture or a table shows; the tests look at frames, not at pixels."""

import pytest

from bench.plots import select
from bench.settings import SCOPES
from tests.records.examples import MATMUL, rate, write

PEAK = MATMUL | {"model": "matmul-peak", "device": "cuda"}
MLP = {"workload": "mlp", "batch_size": "32", "model": "mlp-5x1024", "image_size": "32", "data": "cifar10"}


def load(folder):
    return select.load(folder, pytest.fail)


def summary(folder):
    return load(folder).believed


def test_the_fastest_settings_of_a_machine_are_drawn(folder):
    write(folder, [rate(10), rate(30) | {"precision": "tf32"}, rate(99) | {"scope": "input"}])
    write(folder, [rate(500) | {"image_size": "32"}])
    write(folder, [rate(20) | {"device": "cuda"}, rate(5)], "b")
    found = select.best(select.resident(summary(folder)))
    lines = found[["machine", "kind", "value"]].to_numpy().tolist()
    assert lines == [["a", "cpu", 30], ["b", "gpu", 20], ["b", "cpu", 5]]


def test_epochs_over_depth_with_seconds_as_published(folder):
    write(folder, [rate(5000, 0.5) | MLP, rate(2500) | MLP | {"model": "mlp-10x1024"}])
    write(folder, [rate(1) | MLP | {"model": "mlp-3000-1000"}])
    timed = {"throughput": "", "throughput_low": "", "throughput_high": "", "seconds": "60", "items": "150000"}
    write(folder, [timed | MLP | {"source": "https://x"}], "p")
    found = select.depths(summary(folder))
    lines = sorted(found[["machine", "depth", "seconds_an_epoch"]].to_numpy().tolist())
    assert lines == [["a", 5, 10], ["a", 10, 20], ["p", 5, 20]]
    own = found[(found["machine"] == "a") & (found["depth"] == 5)].iloc[0]
    assert (own["seconds_an_epoch_low"], own["seconds_an_epoch_high"]) == pytest.approx((50_000 / 7500, 20))


def decode(length, **changes):
    words = {"workload": "llm", "model": "qwen3-4b", "phase": "decode", "depth": str(length), "new_tokens": "128"}
    return words | {"batch_size": "1", "image_size": "", "unit": "tokens/s"} | changes


def test_quantised_models_are_not_compared_with_others(folder):
    write(
        folder, [rate(50) | decode(0, precision="bfloat16"), rate(20) | decode(0), rate(9) | decode(0, batch_size="4")]
    )
    for bits in ("8-bit", "4-bit", "mxfp4", "bfloat16"):
        write(folder, [rate(99) | decode(0, precision=bits, source="https://x")], "p")
    found = select.generation(summary(folder))
    assert sorted(found[["machine", "precision"]].to_numpy().tolist()) == [["a", "bfloat16"], ["p", "bfloat16"]]


def test_prompts_and_depths_of_other_lengths_are_other_work(folder):
    prefill = {"phase": "prefill", "depth": "", "new_tokens": ""}
    write(folder, [rate(9) | decode(0), rate(8) | decode(512), rate(7) | decode(512, compile="1")])
    write(folder, [rate(5) | decode(0, **prefill, prompt_tokens=n) for n in ("512", "2048")])
    found = select.generation(summary(folder))
    lines = found[["value", "phase", "prompt_tokens", "depth"]].to_numpy().tolist()
    expected = [[9, "decode", "", "0"], [8, "decode", "", "512"], [5, "prefill", "512", ""], [5, "prefill", "2048", ""]]
    assert sorted(lines) == sorted(expected)


def test_training_of_language_models_is_other_work_than_generation_and_lora_another_one(folder):
    tuned = {"phase": "training", "depth": "", "new_tokens": "", "sequence_length": "128"}
    write(folder, [rate(9) | decode(0, **tuned), rate(5) | decode(0, **tuned, batch_size="4", lora_rank="0")])
    write(folder, [rate(7) | decode(0, **tuned, lora_rank="8"), rate(3) | decode(0, **tuned | {"phase": "forward"})])
    assert select.generation(summary(folder)).empty
    found = select.training_of_llm(summary(folder))
    assert sorted(found[["value", "lora_rank"]].to_numpy().tolist()) == [[7, "8"], [9, "0"]]


def test_decode_over_depth_needs_several_depths(folder):
    write(folder, [rate(9) | decode(0), rate(8) | decode(512), rate(4) | decode(0, batch_size="4")])
    write(folder, [rate(50) | decode(2048, source="https://x")], "p")
    lines = select.cache_depths(summary(folder))[["machine", "batch_size", "tokens", "value"]].to_numpy().tolist()
    assert lines == [["a", "1", 0, 9], ["a", "1", 512, 8]]


BERT = {"workload": "transformer", "model": "bert-base", "image_size": "", "sequence_length": "128"}
CUDA, CITED = {"device": "cuda"}, {"source": "https://x"}


@pytest.mark.parametrize(
    ("select_rows", "rows", "values"),
    [
        # CIFAR-10 comes before synthetic images; other settings than the ancestors' are left out.
        (select.depths, [rate(8000) | MLP | {"data": "synthetic"}, rate(5000) | MLP], [5000]),
        *(
            (select.depths, [rate(9000) | MLP | {name: text}], [])
            for name, text in (
                *(("batch_size", "64"), ("precision", "bfloat16"), ("optimizer", "adam"), ("scope", "end_to_end")),
                *(("phase", "inference"), ("compile", "1")),
            )
        ),
        # Only resident batches of the usual size are compared.
        (select.resident, [rate(10), rate(99) | {"scope": "end_to_end"}, rate(98) | {"image_size": "128"}], [10]),
        (select.resident, [rate(20) | BERT, rate(97) | BERT | {"sequence_length": "384"}], [20]),
        # Of several setups, the fastest is a point of a line.
        (select.sizes, [MATMUL | {"tflops": each, "num_threads": each} for each in ("1", "2")], [2]),
        (select.sizes, [MATMUL | {"tflops": "1.5"}, MATMUL | {"matrix_size": "8x64x512"}], [1.5, 2.4]),
        (select.speedups, [rate(10), rate(80) | CUDA], [8]),
        (select.per_joule, [rate(10), rate(80) | CUDA | {"power_watts": "40"}], [2]),
        # A published figure of the same name hides no own one.
        (
            select.matmul_peaks,
            [PEAK | {"tflops": "700"}, PEAK | {"tflops": "790", "model": "matmul-best"} | CITED],
            [700, 790],
        ),
    ],
)
def test_the_rows_of_a_picture(folder, select_rows, rows, values):
    write(folder, rows)
    assert sorted(select_rows(summary(folder))["value"]) == values


def test_a_speedups_interval_has_the_worst_of_both(folder):
    write(folder, [rate(10, width=0.1), rate(80, width=0.5) | {"device": "cuda"}])
    (row,) = select.speedups(summary(folder)).to_dict("records")
    assert (row["value"], row["low"], row["high"]) == (8, pytest.approx(40 / 11), pytest.approx(120 / 9))


def test_rows_of_different_methods_make_no_speedup_and_no_scaling(folder):
    rows = [rate(10), rate(80) | {"device": "cuda"}, rate(150) | {"device": "cuda", "world_size": "2"}]
    methods = ({"method_version": each} for each in ("1", "2", "1"))
    write(folder, [row | method for row, method in zip(rows, methods, strict=True)])
    assert select.speedups(summary(folder)).empty
    assert select.scaling(load(folder).many).empty
    write(folder, [row | {"method_version": "2"} for row in rows])
    assert select.speedups(summary(folder))["value"].tolist() == [8]
    assert select.scaling(load(folder).many)["devices"].tolist() == [1, 2]


def test_of_several_setups_equal_ones_make_a_speedup(folder):
    cpu = [rate(80) | {"num_threads": "8"}, rate(10) | {"num_threads": "1"}]
    write(folder, [*cpu, rate(160) | {"device": "cuda", "num_threads": "8"}])
    (row,) = select.speedups(summary(folder)).to_dict("records")
    assert (row["value"], row["setup_cpu"]) == (2, "8 threads")
    write(folder, [*cpu, rate(160) | {"device": "cuda", "num_threads": "4"}], "b")
    assert select.speedups(summary(folder))["value"].tolist() == [2, 2]  # else the fastest


def test_the_scopes_of_one_run_are_one_line(folder):
    three = [rate(100), rate(40) | {"scope": "input"}, rate(38) | {"scope": "end_to_end", "bottleneck": "input"}]
    write(folder, [row | {"run_id": "three"} for row in three[:2]])
    assert select.scopes(load(folder).pipelines).empty
    write(folder, [three[2] | {"run_id": "three", "data": "jpeg"}])
    write(folder, [rate(200) | {"run_id": "later", "commit": "later"}])  # of the model alone: it belongs to no pipeline
    (row,) = select.scopes(load(folder).pipelines).to_dict("records")
    assert [row[f"value_{scope}"] for scope in SCOPES] == [100, 40, 38]
    assert (row["low_input"], row["bottleneck"]) == (pytest.approx(39.6), "input")


def test_a_sustained_run_is_no_line_of_its_own_and_the_latest_counts(folder):
    row = {"scope": "sustained", "seconds": "10"}
    for run in ("old", "new"):
        write(folder, [rate(i) | row | {"run_id": run, "elapsed_seconds": f"{10 * i}", "items": "9"} for i in (1, 2)])
    write(folder, [rate(55)])
    stored = load(folder)
    assert stored.believed["value"].tolist() == [55]
    assert [run["run_id"].tolist() for run in stored.runs] == [["new", "new"]]
    assert stored.runs[0]["rate"].tolist() == [0.9, 0.9]


def test_a_wrong_clock_is_not_drawn_as_speed(folder):
    write(folder, [rate(10) | {"source": "https://x", "status": "unsynchronised"}, rate(5) | {"status": "cpu_time"}])
    assert summary(folder).empty


def test_a_published_speedup_is_that_of_one_source_and_chip(folder):
    seconds = {"throughput": "", "throughput_low": "", "throughput_high": "", "tflops": "", "source": "https://x"}
    write(folder, [seconds | {"device_name": "Apple M1 (CPU)", "seconds": "0.4"}], "apple-m1-cpu")
    gpu = seconds | {"device": "mps", "device_name": "Apple M1 (GPU)", "seconds": "0.1"}
    write(folder, [gpu, gpu | {"device_name": "Apple M2"}, gpu | {"source": "https://y"}], "apple-m1-gpu")
    (row,) = select.speedups(load(folder).believed).to_dict("records")
    assert (row["value"], row["device_name"], row["source"]) == (4, "Apple M1 (GPU)", "https://x")


def test_one_chip_with_several_numbers_of_gpu_cores_has_several_published_speedups(folder):
    chip = {"source": "https://x", "machine": "m"}
    write(folder, [rate(10) | chip | {"device_name": "Apple M1 Max (CPU)"}])
    gpu = rate(50) | chip | {"device": "mps", "device_name": "Apple M1 Max (32-core GPU)", "gpu_cores": "32"}
    fewer = {"device_name": "Apple M1 Max (24-core GPU)", "gpu_cores": "24"}
    write(folder, [gpu, gpu | fewer | rate(40)], "b")
    found = select.speedups(load(folder).believed)
    assert found[["gpu_cores", "value"]].to_numpy().tolist() == [["32", 5], ["24", 4]]
