"""The ratio of two runs, from pairs of processes that were interleaved."""

import pytest

from bench.records.rows import combine
from bench.records.verdict import compare_pairs
from tests.rows import ROW


def process(*turn_rates, **changes):
    return [ROW | {"turn_rates": list(turn_rates)} | changes, ROW | {"phase": "forward", "throughput": 9.0}]


def test_a_pair_is_the_median_of_neighbouring_turns_and_the_result_that_of_the_pairs():
    # A slow spell in the second turn of both, and a disturbance in one turn of one of them.
    pairs = [(process(2.4, 0.3, 2.4), process(2.0, 0.25, 8.0)), (process(2.2, 2.2), process(2.0, 2.0, 2.0))]
    pairs.append((process(2.6), process(2.0)))
    found = compare_pairs(pairs)
    assert found is not None
    assert found.ratio == pytest.approx((1.2, 1.1, 1.3))
    assert (found.pairs, found.interleaved) == (3, True)


def test_work_that_differs_in_more_than_the_chosen_setting_is_told():
    other = process(2.0, batch_size=64, compile=1)
    found = compare_pairs([(other, process(1.0))], chosen=["compile"])
    assert found is not None
    assert found.differing == ["batch_size"]


def test_a_process_that_failed_leaves_its_pair_out_and_processes_without_turns_have_rates():
    failed = [ROW | {"status": "crashed", "throughput": None}]
    alone = [ROW | {"throughput": 50.0}]
    assert compare_pairs([(failed, process(1.0))]) is None
    found = compare_pairs([(failed, process(1.0)), ([ROW], alone)])
    assert found is not None
    assert (found.ratio.throughput, found.pairs, found.interleaved) == (2.0, 1, False)


def test_no_row_keeps_the_rates_of_turns():
    assert all("turn_rates" not in row for row in combine([process(1.0, 2.0)]))
