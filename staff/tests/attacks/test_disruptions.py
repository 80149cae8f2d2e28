"""Scripts that wear something down: their run ends, for the right reason, and nothing is left."""

import os
import sys

from grading.plan import Limits, Run
from grading.sandbox.sandbox import run_workers
from grading.sandbox.temporary import inner_folder
from staff.tests.attacks.disruptions import DISRUPTIONS

import psutil
import pytest

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux"),
    pytest.mark.slow,
]


@pytest.mark.parametrize("name", DISRUPTIONS)
def test_it_is_ended_and_nothing_is_left(name, tmp_path):
    attack = DISRUPTIONS[name]
    tmp_path.chmod(0o711)
    with inner_folder(tmp_path) as top:
        own, observed = top / "submission", top / "observed"
        own.mkdir()
        (own / "script.py").write_text(attack.script)
        limits = Limits(**{"seconds": 60.0, "idle": 30.0, "grace": 1.0, **attack.limits})
        run = Run(own, [["script.py"]], observed, limits=limits)
        ended = run_workers(run)
        user = own.stat().st_uid
        assert ended.reason in attack.reasons, ended
        assert not [one for one in psutil.process_iter(["uids"]) if one.info["uids"][0] == user]
        printed = sum(path.stat().st_size for path in observed.iterdir())
        assert printed <= 4 * limits.file
    assert not top.exists()
