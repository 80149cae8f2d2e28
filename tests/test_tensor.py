"""Task 7, tensors: what each layer sends, by hand and by PyTorch's own tensor parallelism."""

import json
from types import SimpleNamespace

from common.errors import UserError
from common.load import load
from common.models.tensor_parallel import prepare
from common.models.tiny import tiny_model
from tests.workers import Crew

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

FLAGS = "--padded --dropout 0 --max_steps 2"
LAYERS, HIDDEN, FLOAT = 2, 128, 4
PLAN = {
    **{f"attention.self.{name}": ColwiseParallel() for name in ("query", "key", "value")},
    "attention.output.dense": RowwiseParallel(),
    "intermediate.dense": ColwiseParallel(),
    "output.dense": RowwiseParallel(),
}


def one_step_by_the_library(args, world):
    """A forward and a backward pass of PyTorch's parallel layers; prints their collectives."""
    model, _ = load(args, world)
    for layer in model.base_model.encoder.layer:
        parallelize_module(layer, init_device_mesh("cpu", (world.size,)), PLAN)
    ones = torch.ones(4, 8, dtype=torch.long)
    with CommDebugMode() as counted:
        model(input_ids=ones, attention_mask=ones, labels=ones[:, 0]).loss.backward()
    if world.rank == 0:
        print({op.__name__: count for op, count in counted.get_comm_counts().items() if count})


def test_each_layer_adds_up_four_activations_in_a_step(tmp_path):
    with Crew(tmp_path) as crew:
        for worker in crew.start_all("tensor", 2, f"{FLAGS} --count_traffic"):
            assert worker.end() == 0, worker.errors
        text = (crew.output / "traffic.rank0.json").read_text()
    steps = json.loads(text)["iterations"]
    assert len(steps) == 2
    for step in steps:
        activations, rest = divmod(step["payload"], HIDDEN * FLOAT * 4 * LAYERS)
        assert activations > 8  # a batch's tokens, with padding
        assert rest == FLOAT  # the norm of the parts, to clip by
        assert step["sent_bytes"] == pytest.approx(2 * (2 - 1) / 2 * step["payload"])


@pytest.mark.slow
def test_the_library_adds_up_six(tmp_path):
    with Crew(tmp_path) as crew:
        workers = crew.start_all(one_step_by_the_library, 2, FLAGS)
        assert [worker.end() for worker in workers] == [0, 0], workers[0].errors
        printed = workers[0].output_lines[-1]
    print(printed)
    assert printed == str({"all_reduce": 6 * LAYERS})


def test_heads_that_do_not_divide_by_the_workers_are_a_user_error():
    arguments, world = SimpleNamespace(seed=1), SimpleNamespace(size=3)
    with pytest.raises(UserError, match="3 workers: each layer of the model has 2 attention heads"):
        prepare(tiny_model(2), arguments, world)
