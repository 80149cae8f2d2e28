"""The tasks' own scripts, as real workers: their losses, their weights and what they leave."""

import functools
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace

from cluster.launch import Place, launch
from common.models.tiny import tiny_model, tiny_tokenizer
from common.tasks import SCRIPTS

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
ROOT = Path(__file__).parents[1]
DISTRIBUTED = ["task2a", "task2b", "overlap", "task3", "task4"]
ROWS, DEV_ROWS, BATCH = 107, 41, 16
FULL, STEPS = ROWS // BATCH, 2 * math.ceil(ROWS / BATCH)  # full batches of an epoch; all steps
PHASES = ["data", "forward", "backward", "sync", "update"]
# Clipping is active in some steps and not in others: each alone would hide a mistake. With
# AdamW's usual epsilon a gradient that is nothing but rounding would move its weight all the same.
FLAGS = "--model_name_or_path tiny --do_train --do_eval --dropout 0 --learning_rate 5e-4 "
FLAGS += "--max_seq_length 64 --num_train_epochs 2 --no_cuda --timeout 60 "
FLAGS += "--adam_epsilon 1e-5 --task_name"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Copies of RTE's first rows, and the same with scores made up, as STS-B's files."""
    folder = tmp_path_factory.mktemp("data")
    for split, rows in {"train": ROWS, "dev": DEV_ROWS}.items():
        text = (ROOT / "sample_data" / "RTE" / f"{split}.tsv").read_text()
        header, *lines = text.splitlines()[: rows + 1]
        scored = [line.rpartition("\t")[0] + f"\t{len(line) % 6}" for line in lines[:32]]
        for task, kept in {
            "RTE": [header, *lines],
            "STS-B": [header.replace("label", "score"), *scored],
        }.items():
            (folder / task).mkdir(exist_ok=True)
            (folder / task / f"{split}.tsv").write_text("\n".join(kept) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(data, tmp_path_factory, template):
    """Run a script once; return its folder, run.json, steps by rank, and output by rank."""

    @functools.cache
    def once(script, workers, batch, glue, flags, more):
        folder = tmp_path_factory.mktemp(f"{script}x{workers}")
        batch = batch or BATCH // workers
        command = f"{ROOT / SCRIPTS[script].script} {flags} {glue} --data_dir {data / glue} "
        command += f"--per_gpu_train_batch_size {batch} --output_dir {folder} {more}"
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
        place = Place(template=template)
        return folder, launch(command.split(), workers, quiet=True, env=env, place=place)

    def run(script, workers=1, batch=None, glue="RTE", flags=FLAGS, more=""):
        folder, result = once(script, workers, batch, glue, flags, more)
        assert result.code == 0, result.summary()
        steps = [
            [json.loads(line) for line in file.read_text().splitlines()]
            for file in sorted(folder.glob("steps.rank*.jsonl"))
        ]
        assert len(steps) == workers
        return SimpleNamespace(
            folder=folder,
            json=json.loads((folder / "run.json").read_text()),
            steps=steps,
            output=["\n".join(worker.stdout) for worker in result.workers],
        )

    return run


def losses(run):
    """The global loss of each step."""
    return [
        sum(rank["loss"] * rank["examples"] for rank in ranks) / sum(r["examples"] for r in ranks)
        for ranks in zip(*run.steps, strict=True)
    ]


def largest_difference(ours, theirs, steps=None):
    mine, its = (torch.tensor(losses(run)[:steps], dtype=torch.float64) for run in (ours, theirs))
    return (mine - its).abs().max().item()  # NaN if one is


def weights(run):
    model = AutoModelForSequenceClassification.from_pretrained(run.folder, local_files_only=True)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("script", DISTRIBUTED)
def test_the_losses_are_those_of_one_worker_with_all_the_data(run, script, workers):
    ours, alone = run(script, workers), run("task1")
    assert len(losses(ours)) == len(losses(alone)) == STEPS
    assert largest_difference(ours, alone, FULL) < 1e-5


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The flag that names a pretrained BERT in a folder: it has no classifier yet."""
    folder = tmp_path_factory.mktemp("checkpoint")
    tiny_model(2).bert.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return f"--model_name_or_path {folder}"


@pytest.mark.parametrize("script", DISTRIBUTED)
def test_the_losses_from_a_checkpoint_are_those_of_one_worker_too(run, checkpoint, script):
    ours, alone = run(script, 2, more=checkpoint), run("task1", more=checkpoint)
    assert largest_difference(ours, alone, FULL) < 1e-5
    assert losses(alone) != losses(run("task1"))


def test_a_checkpoints_dropout_acts_from_the_first_step_on(run, checkpoint):
    """Not only after the first evaluation, which turns it on again."""
    without = run("task1", more=checkpoint)
    dropped = run("task1", more=f"{checkpoint} --dropout 0.3")
    differences = [abs(a - b) for a, b in zip(losses(without), losses(dropped), strict=True)]
    assert min(differences[:FULL]) > 1e-6


@pytest.mark.parametrize("script", ["task1", *DISTRIBUTED])
def test_the_losses_are_those_of_the_padded_computation(run, script):
    workers = 1 if script == "task1" else 2
    ours, padded = run(script, workers), run(script, workers, more="--padded")
    assert largest_difference(ours, padded) < 1e-6
    assert (weights(ours) - weights(padded)).abs().max() < 5e-4
    assert ours.json["metrics"] == padded.json["metrics"]


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("script", DISTRIBUTED[1:])
def test_the_strategies_agree_in_every_step_and_in_the_end(run, script, workers):
    ours, first = run(script, workers), run(DISTRIBUTED[0], workers)
    assert largest_difference(ours, first) < 1e-6
    assert (weights(ours) - weights(first)).abs().max() < 5e-4
    for mine, its in zip(ours.json["metrics"], first.json["metrics"], strict=True):
        assert mine == pytest.approx(its)


def test_training_moves_the_weights_further_than_the_strategies_differ(run):
    before = torch.cat([p.detach().flatten() for p in tiny_model(2).parameters()])
    assert (weights(run("task1")) - before).abs().max() > 1e-3


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("script", DISTRIBUTED)
def test_the_ranks_together_read_what_one_worker_reads(run, script, workers):
    ours, (alone,) = run(script, workers).steps, run("task1").steps
    for step, *ranks in zip(alone, *ours, strict=True):
        if step["examples"] == BATCH:
            assert [rank["examples"] for rank in ranks] == [BATCH // workers] * workers
            assert sum(rank["tokens"] for rank in ranks) == step["tokens"]
        else:  # the sampler deals as many rows to each rank, one of them twice
            assert sum(rank["examples"] for rank in ranks) == step["examples"] + 1
    assert len({tuple(step["tokens"] for step in rank) for rank in ours}) == workers


@pytest.mark.parametrize("script", ["task1", *DISTRIBUTED])
def test_a_line_is_left_for_every_step_of_every_rank(run, script):
    for rank in run(script, 1 if script == "task1" else 2).steps:
        assert [line["step"] for line in rank] == list(range(1, STEPS + 1))
        assert [line["epoch"] for line in rank] == [1] * (STEPS // 2) + [2] * (STEPS // 2)
        for line in rank:
            assert list(line) == ["step", "epoch", "loss", "examples", "tokens", "seconds"]
            total, *laps = (line["seconds"][name] for name in ["total", *PHASES])
            assert sum(laps) == pytest.approx(total)
            assert (line["seconds"]["sync"] > 0) == (script != "task1")  # DDP's exposed wait, too
            assert line["examples"] * 4 < line["tokens"] <= line["examples"] * 64


@pytest.mark.parametrize("script", ["task1", *DISTRIBUTED])
def test_run_json_shows_how_the_run_was_made_and_that_it_succeeded(run, script):
    workers = 1 if script == "task1" else 2
    left = run(script, workers)
    facts = left.json
    assert (facts["format"], facts["glue_task"], facts["task"]) == (2, "RTE", script)
    assert facts["arguments"]["learning_rate"] == 5e-4
    assert facts["examples"] == {"train": ROWS, "dev": DEV_ROWS}
    assert facts["world_size"] == len(facts["hosts"]) == workers
    assert (facts["backend"], facts["device"]) == ("gloo", "cpu")
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["gradient_bytes"] == facts["parameters"] * 4 == weights(left).nbytes
    assert facts["start"] < facts["end"]
    timed = [line["seconds"]["total"] for line in left.steps[0]][1:]
    assert facts["iterations_timed"] == len(timed)
    assert facts["iteration_seconds"]["mean"] == pytest.approx(sum(timed) / len(timed))
    assert [sorted(each) for each in facts["metrics"]] == [["acc", "epoch"]] * 2
    lines = (left.folder / "eval_results.txt").read_text().splitlines()
    assert lines == [f"{k} = {v}" for metrics in facts["metrics"] for k, v in metrics.items()]
    assert AutoTokenizer.from_pretrained(left.folder).vocab_size > 1000


@pytest.mark.parametrize("script", ["task1", *DISTRIBUTED])
def test_rank_0_prints_what_the_course_asks_for_and_the_others_nothing(run, script):
    left = run(script, 1 if script == "task1" else 2)
    first, *others = left.output
    shown = []
    for number, step in enumerate(list(zip(*left.steps, strict=True))[:5], 1):
        own, examples = step[0]["loss"], sum(line["examples"] for line in step)
        loss = sum(line["loss"] * line["examples"] for line in step) / examples
        share = "" if script == "task1" else f" (rank 0's share: {own:.6f})"
        shown.append(f"minibatch {number}: loss {loss:.6f}{share}\n")
    shown += [f"after epoch {m['epoch']}: acc {m['acc']:.4f}" for m in left.json["metrics"]]
    shown += [f"mean time per iteration: {left.json['iteration_seconds']['mean']:.4f} s"]
    assert [first.count(text) for text in shown] == [1] * len(shown)
    assert first.count("minibatch") == 5
    assert f"({STEPS - 1} iterations; the first is discarded)" in first
    assert others == [""] * len(others)


@pytest.mark.parametrize(("script", "workers"), [("task1", 1), ("task3", 2)])
def test_accumulated_gradients_are_those_of_the_whole_batch(run, script, workers):
    half = BATCH // workers // 2
    ours = run(script, workers, half, more="--gradient_accumulation_steps 2")
    whole = run(script, workers)
    assert largest_difference(ours, whole) < 1e-5
    for mine, its in zip(ours.steps[0], whole.steps[0], strict=True):
        assert (mine["examples"], mine["tokens"]) == (its["examples"], its["tokens"])


@pytest.fixture(scope="module")
def regression(run):
    """A run by --max_steps: one more than the 2 x 4 of the epochs."""
    return run("task3", 2, 4, "STS-B", more="--max_steps 9")


def test_max_steps_does_exactly_so_many(regression):
    assert [len(rank) for rank in regression.steps] == [9, 9]
    assert [line["epoch"] for line in regression.steps[1]] == [1] * 4 + [2] * 4 + [3]
    assert [metrics["epoch"] for metrics in regression.json["metrics"]] == [1, 2, 2.25]


def test_one_worker_finds_the_metric_of_the_model_that_two_have_left(run, regression):
    flags = f"--model_name_or_path {regression.folder} --do_eval --max_seq_length 64 --task_name"
    again = run("task1", 1, 4, "STS-B", flags)
    (metrics,) = again.json["metrics"]
    last = regression.json["metrics"][-1]
    assert metrics["corr"] != 0
    assert metrics == pytest.approx({**last, "epoch": 0}, abs=1e-5)
    assert f"without training: pearson {metrics['pearson']:.4f}" in again.output[0]
    assert not (again.folder / "model.safetensors").exists()
