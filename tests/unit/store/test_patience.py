"""Patience ends by itself, can be ended, and does not count time that it did not spend waiting."""

from __future__ import annotations

import threading

from cordwood.base.clock import SYSTEM_CLOCK, SeededEntropy
from cordwood.store.patience import PAUSE_MAX_S, Patience


def test_ends_by_itself():
    """The pauses add up to the limit, then there are no more."""
    patience = Patience(0.05, SeededEntropy(1))
    pauses = 0
    while patience.pause():
        pauses += 1
    assert 0.05 / PAUSE_MAX_S < pauses < 100
    assert 0.05 <= patience.waited_s < 0.05 + PAUSE_MAX_S
    assert not patience.pause()


def test_no_patience():
    """With none, one tries once."""
    assert not Patience(0.0, SeededEntropy(1)).pause()


def test_stop():
    """Another thread ends it, also in the middle of a pause."""
    patience = Patience(3_600.0, SeededEntropy(1))
    patience._pause_s = 600.0
    begun_s = SYSTEM_CLOCK.monotonic_s()
    stopper = threading.Timer(0.05, patience.stop)
    stopper.start()
    assert not patience.pause()
    assert not patience.pause()
    assert SYSTEM_CLOCK.monotonic_s() - begun_s < 10.0
    stopper.join()
