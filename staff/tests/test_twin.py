"""A plain twin, trained by one process on the union of the data, beside each synchronization.

After Stanford CS336's assignment 2. In float64, so that only a mistake can make a difference.
"""

import functools
import gc
import multiprocessing
import resource
import sys
import time
from datetime import timedelta
from types import SimpleNamespace

import task2a.run_glue
import task2b.overlap
import task2b.run_glue
from common import gradients
from common.gradients import flat_gradients

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["task2a.run_glue", "task2b.overlap"])  # once, not in each child
DEADLINE = 120.0
STEPS, ROWS, WORDS, WIDTH = 4, 8, 11, 6
CLIP = 0.05
SLICE = 12  # elements: fewer than a matrix of Net's has, more than a bias
TOLERANCE = 1e-10  # relative, in float64; of float32 1e-6 is asked
MIB = 2**20


class Net(torch.nn.Module):
    """With a tied weight, a frozen one, and one that the loss never reaches."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, WIDTH)
        self.hidden = torch.nn.Linear(WIDTH, WIDTH)
        self.frozen = torch.nn.Linear(WIDTH, WIDTH)
        self.out = torch.nn.Linear(WIDTH, WORDS)
        self.out.weight = self.embed.weight
        self.frozen.requires_grad_(False)
        self.unused = torch.nn.Parameter(torch.ones(3))

    def forward(self, words):
        return self.out(self.frozen(torch.tanh(self.hidden(self.embed(words)))))


def with_gradient(model):
    return {name: p for name, p in model.named_parameters() if p.grad is not None}


def nothing(*_):
    """For the twin and DistributedDataParallel, and the mistake of forgetting."""


def summed(model, world):
    task2b.run_glue.average_gradients(model, world)
    for p in with_gradient(model).values():
        p.grad *= world.size


def skipping(skipped):
    """The mistake of leaving some gradients as they are on each rank."""

    def average_others(model, world):
        own = {n: p.grad.clone() for n, p in with_gradient(model).items() if skipped(n, world)}
        task2b.run_glue.average_gradients(model, world)
        for name, grad in own.items():
            model.get_parameter(name).grad.copy_(grad)

    return average_others


def clipped_first(model, world):
    clip_grad_norm_(model.parameters(), CLIP)
    task2b.run_glue.average_gradients(model, world)


SOUND = {
    "2a": lambda model, world: task2a.run_glue.average_gradients(model, world),
    "2b": lambda model, world: task2b.run_glue.average_gradients(model, world),
    "overlap": lambda model, world: model.average_gradients(model, world),
    "3": nothing,
}
MISTAKES = {  # and the optimizers that cannot hide them
    "not averaged": (nothing, ["sgd", "adamw"]),
    "summed": (summed, ["sgd"]),  # clipping to one norm makes up for the factor
    "only rank 0 has the mean": (skipping(lambda _, world: world.rank > 0), ["sgd", "adamw"]),
    "biases left out": (skipping(lambda name, _: name.endswith("bias")), ["sgd", "adamw"]),
    "tied weight left out": (skipping(lambda name, _: name == "embed.weight"), ["sgd", "adamw"]),
    "clipped before averaging": (clipped_first, ["adamw"]),
}
OPTIMIZERS = {  # and the norm that it is clipped to
    "sgd": (functools.partial(torch.optim.SGD, lr=0.5), float("inf")),
    "adamw": (functools.partial(torch.optim.AdamW, lr=0.05, eps=1e-3, weight_decay=0.1), CLIP),
}


def overlapping(net, world):
    """Give a Net the hooks of the overlap, and the function that waits for what they start."""
    net.average_gradients = task2b.overlap.overlapped(net, world)
    return net


def train(average, world, optimizer, wrap=lambda model: model):
    """Train a new Net on this rank's rows; return the gradients and weights of every step."""
    torch.manual_seed(7)
    net = Net().double()
    model = wrap(net)
    make, clip = OPTIMIZERS[optimizer]
    optimizer = make([p for p in net.parameters() if p.requires_grad])
    history, data = [], torch.Generator().manual_seed(8)
    for _ in range(STEPS):
        words, targets = torch.randint(WORDS, (2, ROWS), generator=data)
        mine = slice(world.rank, None, world.size)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(words[mine]), targets[mine]).backward()
        average(net, world)
        step = {f"gradient {name}": p.grad.clone() for name, p in with_gradient(net).items()}
        step["norm"] = clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        step |= {f"value {name}": p.detach().clone() for name, p in net.named_parameters()}
        history.append(step)
    return history


def memory_to_average(average, world, size):
    """By how many bytes this process grows, at most, while averaging gradients of `size` bytes."""
    model = torch.nn.ParameterList([torch.zeros(1).expand(size // 4)])
    model[0].grad = torch.ones(size // 4)
    before = psutil.Process().memory_info().rss
    average(model, world)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before


def worker(rank, size, folder):
    """One rank: every synchronization and every mistake, with each optimizer."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", None, timedelta(seconds=DEADLINE / 2), size, rank, store)
    world = SimpleNamespace(rank=rank, size=size, device=torch.device("cpu"))
    task2a.run_glue.SLICE = task2b.overlap.BUCKET = SLICE
    wraps = {
        "overlap": functools.partial(overlapping, world=world),
        "3": functools.partial(DistributedDataParallel, static_graph=True),
    }
    averages = {**SOUND, **{name: mistake for name, (mistake, _) in MISTAKES.items()}}
    result = {
        (name, optimizer): train(average, world, optimizer, wraps.get(name, lambda net: net))
        for name, average in averages.items()
        for optimizer in OPTIMIZERS
    }
    task2a.run_glue.SLICE = MIB // 4
    result["growth"] = memory_to_average(SOUND["2a"], world, 64 * MIB)
    torch.save(result, folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """World size -> what each of its ranks came to."""

    @functools.cache
    def run(size):
        folder = tmp_path_factory.mktemp(f"world{size}")
        args = [(rank, size, folder) for rank in range(size)]
        processes = [PROCESSES.Process(target=worker, args=each, daemon=True) for each in args]
        deadline = time.monotonic() + DEADLINE
        try:
            for process in processes:
                process.start()
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
            return folder, [process.exitcode for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.join()

    def by_rank(size):
        folder, codes = run(size)
        assert codes == [0] * size
        return [torch.load(folder / f"rank{rank}.pt") for rank in range(size)]

    return by_rank


@pytest.fixture(scope="module")
def twin():
    """Optimizer -> the history of one process on all rows."""
    alone = SimpleNamespace(rank=0, size=1)
    return {optimizer: train(nothing, alone, optimizer) for optimizer in OPTIMIZERS}


def deviation(history, twin, kind=""):
    """The largest difference, relative to its tensor's largest element, of all of a kind."""
    differences = []
    for mine, its in zip(history, twin, strict=True):
        assert mine.keys() == its.keys()
        for name in filter(lambda name: name.startswith(kind), its):
            differences.append((mine[name] - its[name]).abs().max() / its[name].abs().max())
    return torch.stack(differences).max().item()  # NaN if one is


def test_the_twin_has_all_that_may_go_wrong(twin):
    first, *_, last = twin["adamw"]
    gradients = {name.split()[1] for name in first if name.startswith("gradient")}
    assert gradients == {"embed.weight", "hidden.weight", "hidden.bias", "out.bias"}
    assert first["value embed.weight"].numel() > 2 * SLICE
    assert all(step["norm"] > 2 * CLIP for step in twin["adamw"])
    for name in ("unused", "frozen.weight"):
        assert first[f"value {name}"].equal(last[f"value {name}"])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", SOUND)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_gradient_and_weight_of_every_step_equals_the_twins(
    trained, twin, size, strategy, optimizer
):
    for rank in trained(size):
        assert deviation(rank[strategy, optimizer], twin[optimizer]) < TOLERANCE


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", SOUND)
@pytest.mark.parametrize("size", [2, 4])
def test_the_ranks_hold_the_same_bits(trained, size, strategy, optimizer):
    first, *others = (rank[strategy, optimizer] for rank in trained(size))
    for other in others:
        for mine, its in zip(other, first, strict=True):
            assert all(mine[name].equal(its[name]) for name in its)


@pytest.mark.parametrize(
    ("mistake", "optimizer"), [(name, o) for name, (_, seen) in MISTAKES.items() for o in seen]
)
@pytest.mark.parametrize("size", [2, 4])
def test_the_twin_sees_every_mistake(trained, twin, size, mistake, optimizer):
    history = trained(size)[-1][mistake, optimizer]
    assert deviation(history, twin[optimizer], "value") > 1e-3


def test_the_root_holds_copies_of_a_slice_and_not_of_all_gradients(trained):
    """4 copies of 64 MiB would be 256, and 512 with gloo's own."""
    assert trained(4)[0]["growth"] < 128 * MIB


def with_gradients(*gradients):
    """A model whose parameters have these gradients, or None."""
    shapes = [torch.zeros(3) if grad is None else torch.zeros_like(grad) for grad in gradients]
    model = torch.nn.ParameterList(shapes)
    for p, grad in zip(model, gradients, strict=True):
        p.grad = grad
    return model


def counted(*sizes, dtype=torch.float32):
    """Tensors of so many elements each: 0, 1, 2, ... in turn."""
    return [part.clone() for part in torch.arange(sum(sizes), dtype=dtype).split(list(sizes))]


def test_every_gradient_is_a_view_of_the_one_buffer():
    first, second, *others = grads = counted(3, 10, 1, 0, 6)
    model = with_gradients(first, None, second.view(2, 5), *others)
    shapes = [None if p.grad is None else p.grad.shape for p in model]
    buffer = flat_gradients(model)
    assert buffer.tolist() == list(range(20))
    buffer *= -2
    buffer[:3] += 1  # a slice of it works in place, too
    assert [None if p.grad is None else p.grad.shape for p in model] == shapes
    held = [p.grad for p in model if p.grad is not None]
    expected = [1.0 - 2 * n if n < 3 else -2.0 * n for n in range(20)]
    assert torch.cat([grad.flatten() for grad in held]).tolist() == expected
    assert [grad.tolist() for grad in grads[:1]] == [[0, 1, 2]]  # ours were copied


def test_the_buffer_is_kept_from_step_to_step_and_nothing_is_copied_twice():
    model = with_gradients(*counted(3, 5))
    buffer = flat_gradients(model)
    views = [p.grad for p in model]
    assert flat_gradients(model) is buffer
    assert all(p.grad is view for p, view in zip(model, views, strict=True))
    for p in model:
        p.grad = torch.full_like(p, 7)
    assert flat_gradients(model) is buffer
    assert buffer.tolist() == [7.0] * 8
    assert buffer.data_ptr() == model[0].grad.data_ptr()


def test_accumulated_gradients_are_added_up_in_the_buffer():
    model = torch.nn.ParameterList([torch.ones(2), torch.ones(3)])
    for expected in ([2, 2, 3, 3, 3], [4, 4, 6, 6, 6]):
        (2 * model[0].sum() + 3 * model[1].sum()).backward()
        assert flat_gradients(model).tolist() == expected


def test_another_set_of_gradients_gets_another_buffer():
    model = with_gradients(*counted(4, 4))
    before = flat_gradients(model)
    model[0].grad = None
    after = flat_gradients(model)
    assert after.tolist() == [4, 5, 6, 7]
    assert after.data_ptr() != before.data_ptr()


def test_two_models_have_two_buffers_and_a_model_that_is_gone_has_none():
    one, two = (with_gradients(*counted(2)) for _ in range(2))
    assert flat_gradients(one).data_ptr() != flat_gradients(two).data_ptr()
    kept = len(gradients._buffers)
    del two
    gc.collect()
    assert len(gradients._buffers) == kept - 1


def test_a_buffer_has_one_type():
    kinds = [torch.float32, torch.bfloat16, torch.bfloat16, torch.float64]
    grads = [counted(4, dtype=kind)[0] for kind in kinds]
    model = with_gradients(*grads)
    with pytest.raises(TypeError, match=r"torch.bfloat16, torch.float32, torch.float64"):
        flat_gradients(model)
    sizes = []
    for kind in (torch.float32, torch.bfloat16, torch.float64):
        buffer = flat_gradients(model, kind)
        sizes.append((buffer.dtype, len(buffer)))
        buffer += 1
    assert sizes == [(torch.float32, 4), (torch.bfloat16, 8), (torch.float64, 4)]
    assert [p.grad.tolist() for p in model] == [[1, 2, 3, 4]] * 4


def test_frozen_and_unreached_parameters_are_left_out_and_tied_ones_are_there_once():
    net = Net()
    assert flat_gradients(net).tolist() == []
    net(torch.tensor([1, 2])).sum().backward()
    sizes = [grad.numel() for grad in (net.embed.weight.grad, net.hidden.weight.grad)]
    assert flat_gradients(net).numel() == sum(sizes) + WIDTH + WORDS
