"""Verdicts: from the intervals of two rates, and from pairs of processes that were interleaved."""

import math

import pytest

from bench.records.verdict import compare_runs, name_bottleneck, ratio_of
from tests.rows import ROW, combine, processes_of, rate


@pytest.mark.parametrize(
    ("model", "pipeline", "both", "device", "name"),
    [
        (11, 5, 4.9, "cuda", "input"),
        (11, 100, 10.9, "cuda", "device"),
        (100, 300, 76, "cpu", "device"),
        (100, 101, 99, "cuda", "undecided"),
    ],
)
def test_the_part_that_limits_a_pipeline_needs_a_clear_difference(model, pipeline, both, device, name):
    found, words = name_bottleneck(*(rate(each) | {"device": device} for each in (model, pipeline, both)))
    assert (found, ": the model" in words, "expected 75" in words) == (name, name == "device", device == "cpu")


@pytest.mark.parametrize(
    ("cells", "count", "ratio"),
    [
        ({}, 3, (2, 2 * 0.99 / 1.01, 2 * 1.01 / 0.99)),
        ({}, 2, (2, math.nan, math.nan)),  # not sound
        ({"flags": "contended"}, 3, None),
        ({"status": "interrupted"}, 3, None),
        ({"source": "https://x"}, 1, (2, math.nan, math.nan)),
    ],
)
def test_a_ratio_is_of_undisturbed_rates_and_its_interval_of_sound_and_own_ones(cells, count, ratio):
    base, *_ = combine(processes_of(*[ROW | rate(50)] * 3))
    result, *_ = combine(processes_of(*[ROW | rate(100) | cells] * count))
    assert ratio_of(result, base) == (ratio and pytest.approx(ratio, rel=1e-4, nan_ok=True))
    assert result["sound"] == (count == 3 and not cells)


# Comparisons


def process(number, *slices, **changes):
    rates = " ".join(map(str, slices))
    sliced = {"group": "g", "process": number, "rates": rates, "stop_reason": "slices"}
    return [ROW | {"throughput": 9.0} | sliced | changes]


def test_a_pair_is_the_median_of_neighbouring_slices():
    # A slow spell in the second slice of both, and a disturbance in one slice of one of them.
    ours = [*process(1, 2.4, 0.3, 2.4), *process(2, 2.2, 2.2), *process(3, 2.6), *process(5, 9.0)]
    bases = [*process(1, 2.0, 0.25, 8.0), *process(2, 2.0, 2.0, 2.0), *process(3, 2.0), *process(4, 1.0)]
    found = compare_runs(ours, bases)
    assert found.ratio == pytest.approx((1.2, 1.1, 1.3))
    assert (found.pairs, found.in_slices) == (3, True)


@pytest.mark.parametrize("place", [0, 1])
def test_work_that_differs_in_more_than_the_chosen_setting_is_told(place):
    other = [process(1, 2.0, compile=1), process(2, 2.0, compile=1)]
    other[place][0] |= {"batch_size": 64, "device": "cuda"}
    found = compare_runs(other[0] + other[1], process(1, 1.0) + process(2, 1.0), chosen=["compile"])
    assert found.differing == ["batch_size", "device"]


def test_a_pair_are_processes_that_were_measured_together_and_did_not_fail():
    failed, bases = process(1, status="crashed"), process(1, 1.0)
    assert compare_runs(failed, bases) is None
    assert compare_runs(process(1, 2.0), process(1, 1.0, group="other")) is None
    assert compare_runs(process(1, 2.0, group=""), process(1, 1.0, group="")) is None
    once = {"stop_reason": "max_seconds"}
    found = compare_runs(failed + process(2, throughput=50.0, **once), bases + process(2, throughput=25.0, **once))
    assert (found.ratio.throughput, found.pairs, found.in_slices) == (2.0, 1, False)
    busy = process(1, flags="contended", **once), process(2, 2.0, flags="contended")  # which both have, in slices
    assert compare_runs(busy[0], process(1, **once)) is None
    assert compare_runs([*busy[0], *busy[1]], process(1, **once) + process(2, 1.0)).pairs == 1


@pytest.mark.parametrize("scopes", ["input", "end_to_end input", "device end_to_end", "epoch-2 epoch-1 device"])
def test_the_scope_that_is_compared_is_one_that_the_rows_have(scopes):
    bases = []
    for scope, _, epoch in (each.partition("-") for each in scopes.split()):
        bases += process(1, scope=scope, epoch=epoch, stop_reason="")
    ours = [bases[0] | {"throughput": 18.0}, *bases[1:]]
    assert compare_runs(ours, bases).ratio.throughput == 2
