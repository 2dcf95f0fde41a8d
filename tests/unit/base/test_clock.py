"""The machine's clocks."""

from __future__ import annotations

from cordwood.base import clock


def test_durations_go_on_while_the_machine_sleeps(monkeypatch):
    """Else who slept would rely on a lease that others have seen lapse."""
    machine = clock.time
    slept_s = {machine.CLOCK_BOOTTIME: 3_600.5, machine.CLOCK_MONOTONIC: 0.5}
    monkeypatch.setattr(machine, "clock_gettime", slept_s.__getitem__)
    monkeypatch.setattr(machine, "monotonic", lambda: 0.5)
    assert 3_600.5 == clock.SYSTEM_CLOCK.monotonic_s()
