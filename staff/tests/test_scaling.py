"""The sweep in the lab, and the cost model that is fitted to it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from cluster import lab_network
from common.errors import UserError
from experiments import scaling as sweep
from report import extrapolate, scaling
from report.cost_model import Model, accuracy, calibrate, check

import pytest

ROOT = Path(__file__).parents[2]
REFUSED = lab_network.missing()
MODEL = Model(
    fixed=0.2,
    example=0.01,
    latency=1e-3,
    line=1.05,
    turns=0.7,
    handling=2e-9,
    forward=0.3,
    backward=0.6,
    gradient_bytes=80_000_000,
    embedding_bytes=20_000_000,
)
SLOW, FAST = "1gbit", "1000000gbit"


def cell(model, task, workers, batch, rate):
    """A sweep's cell whose times are a model's."""
    total = model.seconds(task, workers, batch, rate, sharing=workers)
    compute = workers * model.compute(batch)
    share = {"data": 0.0, "forward": model.forward, "backward": model.backward, "update": 0.1}
    seconds = {phase: part * compute for phase, part in share.items()}
    return {
        "task": task,
        "workers": workers,
        "batch": batch,
        "rate": rate,
        "seconds": {**seconds, "sync": total - compute, "total": total},
        "gradient_bytes": model.gradient_bytes,
        "embedding_bytes": model.embedding_bytes,
        "sent": [1e6] * workers,
        "received": [1e6] * workers,
        "expected": [[1e6, 1e6]] * workers,
    }


def cells(model):
    alone = [cell(model, "1", 1, batch, SLOW) for batch in (64, 16)]
    return alone + [
        cell(model, task, workers, batch, rate)
        for rate in ("100mbit", "1gbit", "10gbit")
        for task in ("2a", "2b", "3", "zero1", "zero2")
        for workers, batch in ((2, 32), (2, 16), (4, 16))
    ]


def test_gather_and_scatter_pass_rank_0s_link_one_after_the_other():
    seconds = MODEL.network("2a", 4, SLOW)
    assert seconds == pytest.approx(1.05 * 2 * 3 * 80e6 / 125e6 + 1e-3 * 2 * 3 * 11)


def test_a_rings_time_hardly_grows_with_the_workers():
    assert MODEL.network("2b", 4, SLOW) == pytest.approx(
        1.05 * 2 * 3 / 4 * 80e6 / 125e6 + 1e-3 * 2 * 3
    )
    free = 1.05 * 2 * 80e6 / 125e6
    assert MODEL.network("2b", 1024, SLOW) - 1e-3 * 2 * 1023 < free


def test_sharding_moves_an_all_reduce_more_or_less():
    ring, second, third = (MODEL.network(task, 4, FAST) for task in ("2b", "zero2", "zero1"))
    assert ring == pytest.approx(1e-3 * 2 * 3, rel=0.01)  # messages alone, of one bucket
    assert second == pytest.approx(ring * 20, rel=0.01)  # of 20 buckets of 4 MiB
    assert third == pytest.approx(second * 1.5, rel=0.01)
    bare = replace(MODEL, latency=0, turns=0)
    line = 1.05 * 3 / 4 * 80e6 / 125e6
    halves = {"2b": 2, "zero1": 3, "zero2": 2, "fsdp": 4}
    assert {t: bare.network(t, 4, SLOW) / line for t in halves} == pytest.approx(halves)
    assert bare.seconds("zero2", 4, 64, SLOW) == pytest.approx(bare.seconds("2b", 4, 64, SLOW))
    slow = replace(bare, handling=0)
    assert slow.seconds("fsdp", 4, 1, SLOW) == slow.compute(1) + slow.network("fsdp", 4, SLOW)


@pytest.mark.parametrize(
    ("task", "workers", "in_turns"),
    [("2b", 2, 0), ("zero1", 4, 0), ("zero1", 2, 1), ("zero2", 4, 1), ("zero2", 2, 2)],
)
def test_two_workers_that_exchange_take_turns(task, workers, in_turns):
    bare = replace(MODEL, latency=0)
    half = 80e6 * (workers - 1) / workers / 125e6
    without = replace(bare, turns=0).network(task, workers, SLOW)
    assert bare.network(task, workers, SLOW) - without == pytest.approx(0.7 * half * in_turns)


def test_one_worker_only_computes():
    assert MODEL.seconds("2a", 1, 64, SLOW) == MODEL.seconds("3", 1, 64, SLOW) == 0.2 + 0.64


def test_ddp_hides_what_fits_beside_the_backward_pass():
    compute = MODEL.compute(64)
    handling = MODEL.handling * MODEL.gradient_bytes
    quick = MODEL.seconds("3", 4, 64, FAST) - compute - handling
    assert 0 <= quick < 6e-3 * 4  # what is left is the last bucket's messages
    slow = {task: MODEL.seconds(task, 4, 64, SLOW) for task in ("2b", "3")}
    assert MODEL.network("3", 4, SLOW) < slow["3"] < slow["2b"]
    no_embedding = Model(**{**vars(MODEL), "embedding_bytes": 0})
    assert no_embedding.seconds("3", 4, 64, SLOW) < slow["3"]


def test_calibration_finds_the_costs_again():
    made = cells(MODEL)
    found, used = calibrate(made)
    for name, value in vars(MODEL).items():
        assert getattr(found, name) == pytest.approx(value, rel=0.02), name
    assert {c["rate"] for c in used if c["workers"] > 1} == {"1gbit"}
    assert not any(c["task"] == "3" for c in used)
    rows = check(found, [c for c in made if c not in used and c["workers"] > 1])
    assert len(rows) == 45 - 8
    assert accuracy(rows) == pytest.approx((0, 0), abs=0.01)
    assert {row["limit"] for row in rows} == {"network", "cores"}


def test_an_error_of_the_model_is_reported():
    made = cells(MODEL)
    found, used = calibrate(made)
    odd = next(c for c in made if (c["task"], c["rate"], c["workers"]) == ("2a", "100mbit", 4))
    odd["seconds"]["total"] *= 2
    rows = check(found, [c for c in made if c not in used and c["workers"] > 1])
    assert accuracy(rows)[1] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("lacks", ["alone", "many"])
def test_too_few_cells_are_reported(lacks):
    kept = [c for c in cells(MODEL) if (c["workers"] == 1) != (lacks == "alone")]
    with pytest.raises(UserError, match="to calibrate, a sweep needs"):
        calibrate(kept)


def test_more_workers_help_a_ring_and_hinder_a_root():
    quick = Model(**{**vars(MODEL), "latency": 1e-7})  # else the number of messages counts
    model = extrapolate.scaled(quick, extrapolate.BERTS[0], 1, 1e-7)
    best = {
        task: extrapolate.best_workers(model, task, 1024, "10gbit") for task in ("2a", "2b", "3")
    }
    assert best["2a"] < best["2b"] <= best["3"]
    need = [extrapolate.least_batch(model, task, 64, "10gbit") for task in ("3", "2b", "2a")]
    assert need == sorted(need)
    larger = extrapolate.scaled(MODEL, extrapolate.BERTS[1], 1, 1e-5)
    assert larger.example > 3 * model.example
    faster = extrapolate.scaled(MODEL, extrapolate.BERTS[0], 100, 1e-5)
    assert faster.compute(16) == pytest.approx(model.compute(16) / 100)


def test_the_report_of_a_sweep(tmp_path, capsys):
    failed = {"task": "2a", "workers": 4, "batch": 16, "rate": "1kbit", "failure": "a|b\nmore"}
    machine = {"processor": "one of a test", "cores": 2, "git_commit": None}
    made = {"settings": {"flags": []}, "machine": machine, "cells": [*cells(MODEL), failed]}
    (tmp_path / "sweep.json").write_text(json.dumps(made))
    assert scaling.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "median 0.0%, worst" in printed
    assert len(printed.splitlines()) < 24  # one screen; all of it is in a file
    assert str(tmp_path / "scaling.md") in printed
    written = (tmp_path / "scaling.md").read_text()
    for bert in ("BERT-base, 438 MB", "BERT-large, 1341 MB"):
        assert written.count(bert) == 2
        assert written.count("worst") >= 4  # the error is given with every prediction
    assert written.count("| 10gbit |") == 15 + 2 * 2 * 3  # cells; predictions
    for name in ("time", "speedup", "traffic", "model"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        assert (tmp_path / f"{name}.svg").read_text().startswith("<?xml")
    table = scaling.cells_table(made).splitlines()
    assert len(table) == 2 + len(made["cells"])
    assert table[-1].startswith(r"| 2a | 4 | 16 | 1kbit | failed: a\|b |")
    assert len({line.replace(r"\|", "").count("|") for line in table}) == 1


def test_a_folder_without_a_sweep_is_reported(tmp_path, capsys):
    assert scaling.main([str(tmp_path)]) == 2
    assert "make one with experiments.scaling" in capsys.readouterr().err


def test_every_cell_is_measured_once():
    args, flags = sweep.parse(["--output_dir", "x", "--tasks", "2a,2b", "--lr", "1"])
    found = sweep.cells(args)
    assert len(found) == len(set(found)) == 2 + 3 * 2 * 3
    assert [c[:3] for c in found if c[1] == 1] == [("1", 1, 64), ("1", 1, 16)]
    assert {c[1:3] for c in found} == {(1, 64), (1, 16), (2, 32), (2, 16), (4, 16)}
    assert flags == ["--lr", "1"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--tasks 2a,9", "--tasks 9"),
        ("--workers 3", "divide --batch 64"),
        ("--workers two", "whole numbers"),
        ("--rates 1", "rate '1'"),
        ("--steps 2", "--steps 2: give 3 or more"),
    ],
)
def test_what_cannot_be_swept_is_reported(flags, says):
    with pytest.raises(UserError, match=says):
        sweep.parse(["--output_dir", "x", *flags.split()])


@pytest.mark.slow
@pytest.mark.skipif(bool(REFUSED), reason=REFUSED or "there is a lab")
def test_a_sweep_goes_on_after_a_failed_cell_and_a_stop(tmp_path):
    out = tmp_path / "out"
    flags = f"""--output_dir {out} --task_name RTE --model_name_or_path tiny --max_seq_length 16
        --tasks 2b --workers 2 --rates 1gbit,2gbit --batch 8 --steps 3 --data_dir""".split()

    def run(data, *more):
        command = [sys.executable, "-m", "experiments.scaling", *flags, str(data), *more]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)

    link = tmp_path / "data"  # at first there is nothing behind it
    link.symlink_to(tmp_path / "nowhere")
    failed = run(link)
    assert failed.returncode == 1
    cells = json.loads((out / "sweep.json").read_text())["cells"]
    assert [cell["rate"] for cell in cells] == ["2gbit", "1gbit"]
    assert all("data_dir" in cell["failure"] for cell in cells)
    assert failed.stdout.count("failed: ") == 2

    link.unlink()
    link.symlink_to(ROOT / "sample_data" / "RTE")
    refused = run(link)
    assert (refused.returncode, "add --resume" in refused.stderr) == (2, True)
    written = json.loads((out / "sweep.json").read_text())
    written["cells"] = [cell(MODEL, "2b", 2, 4, "2gbit")]
    (out / "sweep.json").write_text(json.dumps(written))
    done = run(link, "--resume")
    assert done.returncode == 0, done.stderr
    measured = json.loads((out / "sweep.json").read_text())["cells"]
    assert measured[:1] == written["cells"]
    assert [c["rate"] for c in measured] == ["2gbit", "1gbit"]
    assert measured[1]["seconds"]["total"] > 0
    other = run(link, "--resume", "--max_steps", "5")
    assert (other.returncode, "other settings" in other.stderr) == (2, True)
