"""A result is what the processes of a run measured, combined when it is read; runs of a group are compared in pairs."""

import pytest

from bench.records import results
from bench.records.combine import combine, compare_runs, convert
from tests import rows as stored
from tests.rows import ROW, processes_of


def row(rate, low=None, high=None, **changes):
    cells = {"throughput": rate, "throughput_low": low, "throughput_high": high, "seconds": 1 / rate}
    return ROW | cells | changes


def combine_all(*rows):
    return combine(processes_of(*rows))


@pytest.mark.parametrize(
    ("rates", "middle"), [((3.0,), 3), ((12.0, 10.0, 11.0), 11), ((4.0, 2.0), 2), ((1.0, 4.0, 3.0, 2.0), 2)]
)
def test_the_cells_are_those_of_the_median_process_or_the_slower_of_two(rates, middle):
    (found,) = combine_all(*(row(rate, rate - 1, rate + 1) for rate in rates))
    assert (found["throughput"], found["seconds"]) == (middle, 1 / middle)
    assert (found["throughput_low"], found["throughput_high"]) == (min(rates) - 1, max(rates) + 1)
    assert found["process_rates"] == " ".join(f"{rate:g}" for rate in rates)
    assert combine_all(row(3.0))[0]["throughput_low"] is None
    (found,) = combine_all(*(row(rate, rate - 1, rate + 1) for rate in range(10, 19)))  # nine: without the extreme ones
    assert (found["throughput_low"], found["throughput_high"]) == (10, 18)


def test_quantities_and_runs_stay_apart():
    first = [row(10.0), row(20.0, phase="forward"), row(30.0, scope="input")]
    rows = [each | {"process": 1} for each in first] + [row(11.0, process=2), row(12.0, process=3)]
    found = combine([*rows, row(99.0, process=1, run_id="x")])
    assert [each["process_rates"] for each in found] == ["10 11 12", "20", "30", "99"]


def test_the_flags_of_all_processes_and_the_largest_error_are_kept():
    (found,) = combine_all(row(3.0, output_error=0.3, flags="drift"), row(4.0, output_error=0.1, flags="short drift"))
    assert (found["output_error"], found["flags"]) == (0.3, "drift short")
    assert combine_all(row(3.0))[0]["output_error"] is None


@pytest.mark.parametrize("flag", ["contended", "swapping"])
@pytest.mark.parametrize(("disturbed", "count"), [(1, 1), (2, 2), (1, 2), (1, 3), (4, 5)])
def test_disturbed_processes_drop_out_of_a_run_that_has_others(flag, disturbed, count):
    (found,) = combine_all(*(row(1.0 + i, flags=flag if i < disturbed else "") for i in range(count)))
    left = count - disturbed or count
    assert (len(found["process_rates"].split()), found["flags"]) == (left, flag if disturbed == count else "")
    assert (f"{left} of {count}" in found["note"]) == (left < count)


def test_a_failure_of_some_processes_is_in_the_note():
    failed = row(1.0, status="crashed", note="x", throughput=None)
    (found,) = combine_all(failed)
    assert (found["status"], found["note"]) == ("crashed", "x")
    (found,) = combine_all(row(3.0), failed)
    assert (found["status"], found["process_rates"], found["note"]) == ("ok", "3", "crashed in a process: x")


def test_what_ctrl_c_left_counts_only_if_there_is_nothing_else():
    left = row(2.0, status="interrupted")
    assert combine_all(left)[0]["throughput"] == 2
    (found,) = combine_all(row(3.0), left)
    assert (found["process_rates"], found["note"]) == ("3", "")


def test_a_file_that_was_added_to_itself_counts_once():
    rows = processes_of(row(3.0), row(4.0))
    (found,) = combine(rows + rows)
    assert found["process_rates"] == "3 4"


@pytest.mark.parametrize(("device", "pipeline", "name"), [(10.0, 90.0, "device"), (90.0, 10.0, "input")])
def test_the_part_that_limits_the_end_to_end_rate_is_named_when_it_is_read(device, pipeline, name):
    rates = {"device": device, "input": pipeline, "end_to_end": 9.0}
    cells = {"flags": "short", "process": 1, "note": "x"}
    rows = [row(rate, rate * 0.99, rate * 1.01, scope=scope, **cells) for scope, rate in rates.items()]
    found = combine(rows)[-1]
    flags = "" if name == "device" else "short"  # with a full queue at both ends the rate is not inflated
    assert (found["bottleneck"], found["flags"], found["note"].endswith("; x")) == (name, flags, True)
    assert not combine(rows[:2])[-1]["bottleneck"]
    assert not combine([rows[0] | {"run_id": "other"}, *rows[1:]])[-1]["bottleneck"]


@pytest.mark.parametrize("count", [5, 3])
def test_stored_rows_give_the_same_result_also_with_some_that_were_just_measured(tmp_path, count):
    measured = processes_of(*(row(1000 / (7 + i), 1000 / (8 + i), 1000 / (6 + i)) for i in range(5)))
    path = stored.write(tmp_path, measured[:count])
    (found,), (again,) = combine(measured), combine([*map(convert, results.read(path, pytest.fail)), *measured[count:]])
    assert (again["throughput"], again["process_rates"]) == (pytest.approx(found["throughput"]), found["process_rates"])


# Comparisons


def process(number, *slices, **changes):
    rates = " ".join(map(str, slices))
    sliced = {"group": "g", "process": number, "rates": rates, "stop_reason": "slices"}
    return [row(9.0, **sliced | changes), row(1.0, phase="forward", process=number)]


def test_a_pair_is_the_median_of_neighbouring_slices():
    # A slow spell in the second slice of both, and a disturbance in one slice of one of them.
    ours = [*process(1, 2.4, 0.3, 2.4), *process(2, 2.2, 2.2), *process(3, 2.6), *process(5, 9.0)]
    bases = [*process(1, 2.0, 0.25, 8.0), *process(2, 2.0, 2.0, 2.0), *process(3, 2.0), *process(4, 1.0)]
    found = compare_runs(ours, bases)
    assert found is not None
    assert found.ratio == pytest.approx((1.2, 1.1, 1.3))
    assert found.pairs == 3


@pytest.mark.parametrize("place", [0, 1])
def test_work_that_differs_in_more_than_the_chosen_setting_is_told(place):
    other = [process(1, 2.0, compile=1), process(2, 2.0, compile=1)]
    other[place][0] |= {"batch_size": 64, "device": "cuda"}
    found = compare_runs(other[0] + other[1], process(1, 1.0) + process(2, 1.0), chosen=["compile"])
    assert found is not None
    assert found.differing == ["batch_size", "device"]


def test_a_process_that_failed_leaves_its_pair_out():
    failed = process(1, status="crashed")
    assert compare_runs(failed, process(1, 1.0)) is None
    found = compare_runs(failed + process(2, throughput=50.0), process(1, 1.0) + process(2, throughput=25.0))
    assert found is not None
    assert (found.ratio.throughput, found.pairs) == (2.0, 1)


def test_runs_that_were_not_measured_together_have_no_pairs():
    ours, bases = process(1, 2.0), process(1, 1.0)
    assert compare_runs(ours, [each | {"group": "other"} for each in bases]) is None
    assert compare_runs([each | {"group": ""} for each in ours], [each | {"group": ""} for each in bases]) is None
