"""On a busy machine a run is neither taken for idle nor ended early."""

import os
import time

from grading.plan import Limits
from grading.sandbox import watching

import pytest

LIMITS = Limits(seconds=100.0, idle=12.0)


@pytest.mark.parametrize(
    ("age", "used", "waited", "reason"),
    [
        (20, 0.1, 0.1, "idle"),  # heartbeats alone
        (20, 0.1, 40.0, ""),  # other programs have the cores
        (20, 2.0, 0.0, ""),
        (150, 50.0, 40.0, "time"),
        (150, 50.0, 80.0, ""),  # of four workers, of which each holds up the others
        (350, 50.0, 4000.0, "time"),  # there is an end to patience
    ],
)
def test_waiting_for_a_core_is_not_idling(monkeypatch, age, used, waited, reason):
    now = time.monotonic()
    monkeypatch.setattr(watching, "usage", lambda base: (used, waited, base))
    clock = watching.Clock(now - age, 0, changed=now - 20)
    assert clock.reason(LIMITS, 4, failed=False) == reason


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the system does not count")
def test_the_time_spent_ready_to_run_is_read():
    assert watching.ready_seconds(os.getpid()) > 0.0
    assert watching.ready_seconds(2**22 + 1) == 0.0
