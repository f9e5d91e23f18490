"""A result is what the processes of a run measured; the latest sound one of each machine, work and setup counts."""

import pytest

from bench.records import tables
from bench.records.likeness import describe_how
from tests import rows
from tests.rows import ROW, combine, processes_of, rate


@pytest.fixture
def write(tmp_path):
    return lambda *changes, machine="a": rows.write(tmp_path / "results", changes, machine)


def summary(*paths):
    return tables.latest(tables.combine(tables.load(paths)))


MATMUL = {"workload": "matmul", "model": "matmul", "tflops": "2"}
LATER = {"timestamp": "2030-01-01T00:00:00+00:00"}
CONTENDED = {"flags": "page_faults contended"} | LATER
THREE = {"processes": 3}
RUN = {"run_id": "x", "process": 1} | LATER


@pytest.mark.parametrize(
    ("some", "cells"),
    [
        ([{}], {"value": 100, "low": 99, "high": 101, "per": "images/s", "processes": 1}),
        ([rate(90), rate(110) | {"processes": 3, "commit": "later"}], {"value": 110, "processes": 3}),
        ([rate(90), rate(110) | {"timestamp": "2025-11-20T11:34:42+00:00"}], {"value": 90}),
        ([rate(90), rate(110) | {"status": "interrupted"}], {"value": 90}),
        ([rate(90) | {"processes": 3}, rate(110) | {"processes": 2}], {"value": 90}),
        # A disturbed row counts only if there is no other one.
        ([rate(90), rate(10) | CONTENDED | {"commit": "later"}], {"value": 90}),
        ([rate(10) | CONTENDED, rate(90) | {"group": "x"}], {"value": 90}),
        # A quick check, or a disturbed run, never retires a sound result.
        ([rate(90) | THREE, rate(110) | {"method_version": 4} | LATER], {"value": 90}),
        ([rate(90) | THREE, rate(110) | THREE | {"method_version": 4} | CONTENDED], {"value": 90}),
        ([rate(90) | THREE | LATER, rate(110) | THREE | {"method_version": 4}], {"value": 110}),
        ([rate(90) | THREE, rate(110) | THREE | LATER | {"commit": "x-dirty"}], {"value": 90}),
        ([rate(90), rate(110) | {"group": "x"} | THREE], {"value": 110}),
        ([rate(90) | THREE | CONTENDED, rate(110) | CONTENDED], {"value": 90}),  # the one with more processes
        ([rate(90) | {"method_version": 10}, rate(110) | LATER], {"value": 90}),
        ([rate(90), rate(110) | RUN, rate(110) | RUN | {"process": 2, "throughput": "1,2"}], {"value": 90}),
        ([rate(1000, width=0.1) | MATMUL], {"value": 2, "low": 1.8, "high": 2.2, "per": "TFLOP/s"}),
        ([rate(10), rate(20) | {"power_source": "ac", "low_power_mode": "0"}], {"setup": "", "value": 20}),
        ([rate(10), rate(20) | {"scope": "sustained"}], {"value": 10}),
    ],
)
def test_the_latest_row_of_the_same_work_counts(write, some, cells):
    (found,) = summary(write(*some)).to_dict("records")
    assert {name: found[name] for name in cells} == pytest.approx(cells)


def test_every_setup_is_a_line_that_says_so(write):
    base = rate(1000) | {"num_threads": "64"}
    found = summary(write(base, rate(50) | {"num_threads": "1", "power_limit_watts": "450"}))
    lines = [(each["value"], each["setup"]) for each in found.to_dict("records")]
    assert lines == [(1000, "64 threads"), (50, "power limit 450 W")]
    assert [describe_how(each) for each in found.to_dict("records")] == ["torch", "torch, 1 thread"]
    cards = summary(*(write({"power_limit_watts": watts}, machine=watts) for watts in ("400", "600")))
    assert cards["setup"].tolist() == ["power limit 400 W", "power limit 600 W"]


# The processes of a run


def row(rate, low=None, high=None, **changes):
    cells = {"throughput": rate, "throughput_low": low, "throughput_high": high, "seconds": 1 / rate}
    return ROW | cells | changes


def combine_all(*some):
    return combine(processes_of(*some))


@pytest.mark.parametrize(("rates", "middle"), [((3,), 3), ((12, 10, 11), 11), ((4, 2), 2), ((1, 4, 3, 2), 2)])
def test_the_cells_are_those_of_the_median_process_or_the_slower_of_two(rates, middle):
    (found,) = combine_all(*(row(rate, rate - 1, rate + 1) for rate in rates))
    assert (found["throughput"], found["seconds"]) == (middle, pytest.approx(1 / middle, rel=1e-5))
    assert (found["throughput_low"], found["throughput_high"]) == (min(rates) - 1, max(rates) + 1)
    assert found["process_rates"] == [*rates]
    assert combine_all(row(3.0))[0]["throughput_low"] is None


def test_quantities_and_runs_stay_apart():
    first = [row(10.0), row(20.0, phase="forward"), row(30.0, scope="input")]
    some = [each | {"process": 1} for each in first] + [row(11.0, process=2), row(12.0, process=3)]
    found = combine([*some, row(99.0, process=1, run_id="x"), *some])  # a file may have been added to itself
    assert [each["process_rates"] for each in found] == [[10, 11, 12], [20], [30], [99]]


def test_the_flags_of_all_processes_and_the_largest_error_are_kept():
    (found,) = combine_all(row(3.0, output_error=0.3, flags="uneven"), row(4.0, output_error=0.1, flags="short uneven"))
    assert (found["output_error"], found["flags"]) == (0.3, "uneven short")
    assert combine_all(row(3.0))[0]["output_error"] is None


@pytest.mark.parametrize("flag", ["contended", "swapping"])
@pytest.mark.parametrize(("disturbed", "count"), [(1, 1), (2, 2), (1, 2), (1, 3), (4, 5)])
def test_disturbed_processes_drop_out_of_a_run_that_has_others(flag, disturbed, count):
    (found,) = combine_all(*(row(1.0 + i, flags=flag if i < disturbed else "") for i in range(count)))
    left = count - disturbed or count
    assert (len(found["process_rates"]), found["flags"]) == (left, flag if disturbed == count else "")
    assert (f"{left} of {count}" in found["note"]) == (left < count)


@pytest.mark.parametrize("status", ["crashed", "interrupted"])
def test_what_failed_or_was_interrupted_counts_only_if_there_is_nothing_else(status):
    left = row(2.0, status=status, note="x")
    (found,) = combine_all(left)
    assert (found["status"], found["note"], found["throughput"]) == (status, "x", 2)
    (found,) = combine_all(row(3.0), left)
    assert (found["status"], found["process_rates"]) == ("ok", [3])
    assert all(words in found["note"] for words in ("1 of 2", status, "x"))
