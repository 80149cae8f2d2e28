"""The chart of computing and waiting, and the bounds of a split, against known times."""

import json

from common.errors import UserError
from common.record.format import PHASES
from report import waiting, weak
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


def run_of(folder, workers, seconds, batch=8):
    """A run of workers with the same batch each, and steps of so many seconds."""
    make_run(folder, "task2b", [0.7] * 4)
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(facts | {"world_size": workers}))
    phases = dict.fromkeys(PHASES, 0.0) | {"sync": 0.1, "total": seconds}
    line = {"step": 1, "epoch": 1, "loss": 0.7, "examples": batch, "seconds": phases}
    for rank in range(workers):
        (folder / f"steps.rank{rank}.jsonl").write_text(4 * (json.dumps(line) + "\n"))
    return str(folder)


def test_weak_scaling_is_examples_per_second_beside_the_published_one(tmp_path, capsys):
    times = {4: 0.8, 1: 0.5, 2: 0.625}
    runs = [run_of(tmp_path / f"run{n}", n, seconds) for n, seconds in times.items()]
    assert weak.main([*runs, "--output_dir", str(tmp_path / "f")]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["1", "worker(s)", "0.500", "20%", "1.00", "1.00"] in rows
    assert ["2", "worker(s)", "0.625", "16%", "1.60", "1.72"] in rows
    assert ["4", "worker(s)", "0.800", "12%", "2.50", "3.22"] in rows
    assert (tmp_path / "f" / "weak_scaling.png").stat().st_size > 10_000
    other = run_of(tmp_path / "other", 2, 0.5, batch=4)
    with pytest.raises(UserError, match=r"differ in the batch per worker \(1: 8, 2: 4\)"):
        weak.main([runs[1], other, "--output_dir", str(tmp_path / "f")])
