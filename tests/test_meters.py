"""What other programs do is seen; what we do ourselves is not taken for theirs."""

import resource

import pytest

from bench import meters
from tests.fakes import Clock


@pytest.mark.parametrize(("others", "flags"), [(0.09, []), (0.11, ["contended"]), (2.0, ["contended"])])
def test_contention_is_a_tenth_of_a_core(others, flags):
    clock, spent = Clock(), Clock()
    watch = meters.ContentionWatch(clock, spent)
    clock.now, spent.now = 100.0, 5000.0
    watch.start()
    clock.now += 10
    spent.now += 10 * others
    assert watch.flags() == flags


def test_swapping_is_any_growth():
    swapped = Clock()
    watch = meters.SwapWatch(swapped)
    swapped.now = 7
    watch.start()
    assert watch.flags() == []
    swapped.now = 8
    assert watch.flags() == ["swapping"]


class Busy:
    """psutil's cpu_times() on Linux, after so many seconds of each kind."""

    def __init__(self, **seconds):
        self.seconds = dict.fromkeys(("user", "system", "idle", "iowait", "guest", "guest_nice", "steal"), 0) | seconds

    def __getattr__(self, name):
        return self.seconds[name]

    def __iter__(self):
        return iter(self.seconds.values())


def test_others_time_is_all_but_idle_and_our_own(monkeypatch):
    monkeypatch.setattr(meters, "own_cpu_seconds", lambda: [3.0, 1.0])
    times = Busy(user=10, system=2, idle=99, iowait=50, guest=4, steal=1)
    monkeypatch.setattr(meters.psutil, "cpu_times", lambda: times)
    assert meters.others_cpu_seconds() == pytest.approx(10 + 2 + 1 - 4)


def test_our_own_time_is_what_the_system_says():
    own = sum(meters.own_cpu_seconds())
    usage = resource.getrusage(resource.RUSAGE_SELF)
    assert own >= usage.ru_utime * 0.5
    assert own > 0


def test_the_peak_of_the_process_is_plausible():
    assert 10e6 < meters.process_peak_bytes() < 1e12


def test_without_psutil_there_are_no_watches(monkeypatch):
    monkeypatch.setattr(meters, "psutil", None)
    assert meters.watches() == ()
