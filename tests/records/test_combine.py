"""A row is a result: what several processes measured of the same work becomes one row."""

import pytest

from bench.records.rows import combine
from tests.rows import ROW


def row(rate, low=None, high=None, **changes):
    cells = {"throughput": rate, "throughput_low": low, "throughput_high": high, "seconds": 1 / rate}
    return ROW | cells | changes


@pytest.mark.parametrize(
    ("rates", "middle"), [((3.0,), 3), ((12.0, 10.0, 11.0), 11), ((4.0, 2.0), 2), ((1.0, 4.0, 3.0, 2.0), 2)]
)
def test_the_row_is_that_of_the_median_process_or_the_slower_of_two(rates, middle):
    (found,) = combine([[row(rate, rate - 1, rate + 1)] for rate in rates])
    assert (found["throughput"], found["seconds"]) == (middle, 1 / middle)
    assert (found["throughput_low"], found["throughput_high"]) == (min(rates) - 1, max(rates) + 1)
    assert found["process_rates"] == " ".join(f"{rate:g}" for rate in rates)
    assert combine([[row(3.0)]])[0]["throughput_low"] is None
    (found,) = combine([[row(rate, rate - 1, rate + 1)] for rate in range(10, 19)])  # nine leave the extreme ones out
    assert (found["throughput_low"], found["throughput_high"]) == (10, 18)


def test_quantities_stay_apart():
    first = [row(10.0), row(20.0, phase="forward"), row(30.0, scope="input"), row(30.0, elapsed_seconds=10.0)]
    found = combine([first, [row(11.0)], [row(12.0)]])
    assert [each["process_rates"] for each in found] == ["10 11 12", "20", "30", "30"]


def test_what_only_one_process_says_is_kept():
    measured = {"idle_watts": 70.0, "output_error": 0.1, "power_watts": 400.0, "power_scope": "gpu board"}
    measured |= {"joules_per_item": 130.0, "output_limit": 0.2}
    rows = row(3.0, **measured, flags="drift"), row(4.0), row(5.0, flags="short drift")
    (found,) = combine([[each] for each in rows])
    assert found["throughput"] == 4
    assert measured.items() <= found.items()
    assert found["flags"] == "drift short"


@pytest.mark.parametrize("flag", ["contended", "swapping"])
@pytest.mark.parametrize(("disturbed", "count"), [(1, 1), (1, 2), (1, 3), (2, 5), (3, 5)])
def test_a_disturbance_of_fewer_than_half_of_the_processes_is_only_noted(flag, disturbed, count):
    (found,) = combine([[row(1.0 + i, flags=flag if i < disturbed else "")] for i in range(count)])
    noted = f"{flag} in {disturbed} of {count} processes"
    assert (found["flags"], found["note"]) == (("", noted) if 2 * disturbed < count else (flag, ""))


def test_a_failure_of_some_processes_is_in_the_note():
    failed = row(1.0, status="crashed", note="x", throughput=None)
    assert combine([[failed]]) == [failed]
    (found,) = combine([[row(3.0)], [failed]])
    assert (found["status"], found["process_rates"], found["note"]) == ("ok", "3", "crashed in a process: x")


@pytest.mark.parametrize(("device", "pipeline", "name"), [(10.0, 90.0, "device"), (90.0, 10.0, "input")])
def test_the_part_that_limits_the_end_to_end_rate_is_named(device, pipeline, name):
    rates = {"device": device, "input": pipeline, "end_to_end": 9.0}
    rows = [row(rate, rate * 0.99, rate * 1.01, scope=scope, flags="short") for scope, rate in rates.items()]
    found = combine([rows])[-1]
    flags = "" if name == "device" else "short"  # with a full queue at both ends the rate is not inflated
    assert (found["bottleneck"], found["flags"]) == (name, flags)
    assert combine([rows[:2]])[-1]["bottleneck"] is None
