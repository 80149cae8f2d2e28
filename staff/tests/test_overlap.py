"""2(b) with overlap: every gradient is handed over once, most of them within the backward pass."""

import csv
import json
import sys
import traceback
from pathlib import Path

import task2b.overlap
from tests.workers import Crew

import pytest
import torch.distributed as dist

BUCKET = 2**16  # elements: the tiny BERT has several buckets of them


def noted(args, world):
    """The overlap's main; writes each all_reduce's elements, and whether backward still ran."""
    all_reduce, rows = dist.all_reduce, []

    def noting(tensor, *rest, **options):
        names = {frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._getframe())}
        rows.append((tensor.numel(), int("_engine_run_backward" in names)))
        return all_reduce(tensor, *rest, **options)

    task2b.overlap.BUCKET, dist.all_reduce = BUCKET, noting
    task2b.overlap.main(args, world)
    with (Path(args.output_dir) / f"all_reduce.rank{world.rank}.csv").open("w") as file:
        csv.writer(file).writerows(rows)


@pytest.fixture(scope="module", params=["", "--gradient_accumulation_steps 2"])
def runs(request, tmp_path_factory):
    """The folders of a run of 2(b) and of one with overlap, side by side."""
    folder, folders = tmp_path_factory.mktemp("overlap"), []
    flags = f"--timeout 60 --max_steps 4 --learning_rate 5e-4 {request.param}"
    with Crew(folder / "plain") as plain, Crew(folder / "overlapped") as overlapped:
        for crew, script in ((plain, "task2b"), (overlapped, noted)):
            crew.start_all(script, 2, flags)
            folders.append(crew.output)
        assert [worker.end() for crew in (plain, overlapped) for worker in crew.workers] == [0] * 4
    return folders


def steps(folder, rank):
    lines = (folder / f"steps.rank{rank}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_losses_are_2bs(runs, rank):
    plain, overlapped = (steps(folder, rank) for folder in runs)
    assert len(plain) == len(overlapped) == 4
    for mine, its in zip(overlapped, plain, strict=True):
        assert mine["loss"] == pytest.approx(its["loss"], abs=1e-6, rel=0)
        assert mine["seconds"]["sync"] > 0


def test_each_gradient_is_handed_over_once_in_each_backward_pass_and_while_it_runs(runs):
    first, second = (
        [tuple(map(int, row)) for row in csv.reader(file.open())]
        for file in sorted(runs[1].glob("all_reduce.rank*.csv"))
    )
    facts = json.loads((runs[1] / "run.json").read_text())
    passes = 4 * facts["arguments"]["gradient_accumulation_steps"]
    assert first == second
    assert sum(elements for elements, _ in first) * 4 == passes * facts["gradient_bytes"]
    assert len(first) >= 3 * passes
    assert all(within for _, within in first)
