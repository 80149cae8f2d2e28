"""The chart of computing and waiting, and the bounds of a split, against known times."""

import json

from common.errors import UserError
from common.record.format import PHASES
from report import waiting
from report.runs import load_run
from staff.tests.test_figures import make_run

import pytest

COMPUTES = (0.1, 0.4)  # seconds of each rank's forward and backward pass, on 16 examples each


@pytest.fixture
def run(tmp_path):
    """A run of two workers, of which one computes four times as long, in steps of half a second."""
    folder = tmp_path / "run"
    make_run(folder, "task5", [0.7] * 4, batch=32)
    for rank, computing in enumerate(COMPUTES):
        file = folder / f"steps.rank{rank}.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for step, line in enumerate(lines):
            known = {"forward": computing / 4, "backward": 3 * computing / 4, "update": 0.01}
            known["sync"] = 0.5 - computing - 0.01 + 9 * (step == 0)
            line["seconds"] = dict.fromkeys(PHASES, 0.0) | known
            line["seconds"]["total"] = sum(known.values())
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_the_bounds_are_those_of_the_measured_speeds(run):
    found = waiting.bounds_of(load_run(run))
    assert found.step == pytest.approx(0.5)
    assert found.split == pytest.approx(0.4)
    assert found.best == pytest.approx(32 / (16 / 0.1 + 16 / 0.4))
    assert found.waiting == pytest.approx([0.39 / 0.5, 0.09 / 0.5])


def test_every_worker_begins_a_step_when_the_slowest_has_ended_the_last(run):
    loaded = load_run(run)
    fast, slow = (waiting.spans_of(loaded, lines[-2:], 2) for lines in loaded.steps)
    assert fast["computing"][0] == pytest.approx((0, 0.025))
    assert fast["waiting and averaging"][0] == pytest.approx((0.1, 0.39))
    assert fast["computing"][2] == pytest.approx((0.5, 0.025))
    assert slow["computing"][2] == pytest.approx((0.5, 0.1))


def test_the_command_prints_the_ratio_and_draws(run, tmp_path, capsys):
    assert waiting.main([str(run), "--steps", "3", "--output_dir", str(tmp_path / "f")]) == 0
    printed = capsys.readouterr().out
    assert (
        "task 5     0.500               0.400             0.160         3.12  78%, 18%" in printed
    )
    assert (tmp_path / "f" / "waiting.png").stat().st_size > 10_000


def test_a_run_of_one_step_is_refused(tmp_path):
    make_run(tmp_path / "run", "task5", [0.7])
    with pytest.raises(UserError, match="has one step at most; give a run of several"):
        waiting.main([str(tmp_path / "run")])
