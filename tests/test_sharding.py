"""Task 6: the same losses with a part of the memory, and checkpoints for any number of workers."""

import json
import os
from types import SimpleNamespace

from cluster.launch import Place, launch
from common.shards import Shards
from report.runs import load_run
from tests.workers import ROOT, sample

import pytest
import torch
from safetensors.torch import load_file

SCRIPTS = ("zero1", "zero2", "fsdp")
PARTS = {  # what each worker of four holds only a fourth of
    "zero1": {"optimizer_state"},
    "zero2": {"optimizer_state", "gradients"},
    "fsdp": {"optimizer_state", "gradients", "weights"},
}
FLAGS = """--model_name_or_path tiny --task_name RTE --do_train --do_eval --dropout 0 --no_cuda
    --learning_rate 5e-4 --max_grad_norm 0.1 --max_seq_length 64 --max_steps 4 --timeout 60"""


@pytest.fixture(scope="module")
def run(tmp_path_factory, template):
    """Run a script on a number of workers; returns its (folder, global losses)."""
    data = sample(tmp_path_factory.mktemp("data") / "RTE", 250)

    def run(script, workers=4, more=""):
        folder = tmp_path_factory.mktemp("run")
        command = f"{ROOT / script} {FLAGS} --data_dir {data} --output_dir {folder} {more} "
        command += f"--per_gpu_train_batch_size {32 // workers}"
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
        result = launch(
            command.split(), workers, quiet=True, env=env, place=Place(template=template)
        )
        assert result.code == 0, result.summary()
        return folder, torch.tensor(load_run(folder).losses)

    return run


@pytest.fixture(scope="module")
def averaged(run):
    """2(b)'s run, which each of task 6's scripts has to equal."""
    return run("task2b/run_glue.py")


def memory(folder):
    """What each rank held."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("memory.rank*.json"))]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_sharded_run_equals_2b_with_a_fourth_of_what_it_shards(script, run, averaged):
    whole, expected = averaged
    folder, losses = run(f"task6/{script}.py")
    assert (losses - expected).abs().max() < 1e-6
    for mine, all_of_it in zip(memory(folder), memory(whole), strict=True):
        for what in ("weights", "gradients", "optimizer_state"):
            part = mine[what] / all_of_it[what]
            assert part == pytest.approx(1 / 4 if what in PARTS[script] else 1, abs=0.01), what
        assert mine["activations"] == all_of_it["activations"] > 0
        assert mine["peak"] > sum(mine[name] for name in mine if name != "peak")
    saved, weights = (load_file(each / "model.safetensors") for each in (folder, whole))
    assert saved.keys() == weights.keys()
    assert max((saved[name] - weights[name]).abs().max() for name in saved) < 1e-5
    metrics = [json.loads((each / "run.json").read_text())["metrics"] for each in (folder, whole)]
    assert metrics[0] == metrics[1]
    scores = run("task1/run_glue.py", 1, f"--model_name_or_path {folder} --max_steps 1")
    assert scores


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_sharded_checkpoint_goes_on_with_4_2_and_1_workers(script, run):
    script = f"task6/{script}.py"
    whole, expected = run(script, more="--save_steps 2 --save_total_limit 9")
    for workers in (4, 2, 1):
        more = f"--resume {whole / 'checkpoint-2'} --other_world_size"
        folder, losses = run(script, workers, more)
        weights, saved = (load_file(each / "model.safetensors") for each in (whole, folder))
        apart = max((saved[name] - weights[name]).abs().max() for name in saved)
        assert apart == 0 if workers == 4 else apart < 1e-5  # AdamW divides by tiny numbers
        assert (losses[-2:] - expected[-2:]).abs().max() < 1e-6


def one_of(size, rank, model):
    """A rank's Shards of a model, with what it was asked to reduce."""
    seen = []

    def mine(gradients, world):
        seen.append(gradients.clone())
        return gradients.view(world.size, -1)[world.rank]

    return Shards(model, SimpleNamespace(rank=rank, size=size), mine), seen


def test_a_bucket_is_reduced_once_all_its_gradients_are_there_and_they_are_freed():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    twin = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    twin.load_state_dict(model.state_dict())
    shards, seen = one_of(4, 1, model)
    inputs = torch.randn(7, 3)
    for times in (1, 2):
        model(inputs).square().sum().backward()
        twin(inputs).square().sum().backward()
        assert all(p.grad is None for p in model.parameters())
        assert len(seen) == 2 * times  # weights and biases: each one bucket
    # in the order in which they come: the last layer's first; 25 weights become 28
    flat = torch.cat([twin[1].weight.grad.flatten(), twin[0].weight.grad.flatten(), torch.zeros(3)])
    assert torch.allclose(shards.gradients()[0], flat.chunk(4)[1])
    assert [name for name, _ in shards.named_parameters()] == ["0.weight", "0.bias"]


def test_a_slice_shares_its_memory_with_the_weights():
    model = torch.nn.Linear(4, 4)
    before = model.weight.detach().clone()
    shards, _ = one_of(2, 1, model)
    assert torch.equal(model.weight, before)
    with torch.no_grad():
        next(p for _, p in shards.named_parameters()).add_(1)
    assert torch.equal(model.weight[:2], before[:2])
    assert torch.equal(model.weight[2:], before[2:] + 1)
