"""Where an iteration's time goes: hooks on a small model, and a clock that the tests advance."""

from types import SimpleNamespace

from common.record import clock
from common.record.clock import Clock
from common.record.format import PHASES

import pytest
import torch


class Now:
    """A clock that stands still between `advance`s."""

    def __init__(self):
        self.seconds = 100.0

    def advance(self, seconds):
        self.seconds += seconds

    def perf_counter(self):
        return self.seconds


class Pass(torch.autograd.Function):
    """x, whose backward pass takes 2 seconds."""

    @staticmethod
    def forward(ctx, x, now):
        ctx.now = now
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.now.advance(2)
        return gradient, None


class Model(torch.nn.Module):
    """Its forward pass takes 1 second, its backward pass 2 for each of two weights."""

    def __init__(self, now):
        super().__init__()
        self.now = now
        self.first = torch.nn.Parameter(torch.tensor(1.0))
        self.second = torch.nn.Parameter(torch.tensor(2.0))
        self.frozen = torch.nn.Parameter(torch.tensor(1.0), requires_grad=False)
        self.unused = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self):
        self.now.advance(1)
        inner = Pass.apply(self.first, self.now) * self.frozen
        return SimpleNamespace(loss=Pass.apply(inner * self.second, self.now))


@pytest.fixture
def now(monkeypatch):
    now = Now()
    monkeypatch.setattr(clock, "time", now)
    return now


def iteration(now, workers, batches=1, sleep_after=0.0):
    """The seconds of an iteration like the tasks', by phase, and the clock."""
    model = Model(now)
    optimizer = torch.optim.SGD(model.parameters())
    world = SimpleNamespace(size=workers, device=torch.device("cpu"))
    watch = Clock(world, model, optimizer)
    watch.start()
    now.advance(8)  # reading the data
    watch.lap("data")
    for _ in range(batches):
        model().loss.backward()
        now.advance(sleep_after)  # what DistributedDataParallel waits for
    now.advance(16)  # averaging and clipping
    optimizer.step()
    now.advance(32)  # the scheduler
    watch.end()
    return watch.seconds, watch


def by_phase(*seconds):
    return dict(zip(PHASES, seconds, strict=True))


def test_every_second_is_counted_in_its_phase(now):
    assert iteration(now, workers=4)[0] == by_phase(8, 1, 4, 16, 32)


def test_one_worker_synchronizes_nothing(now):
    assert iteration(now, workers=1)[0] == by_phase(8, 1, 4, 0, 48)


def test_what_is_waited_for_after_the_last_gradient_is_exposed(now):
    assert iteration(now, workers=4, sleep_after=64)[0] == by_phase(8, 1, 4, 80, 32)


def test_accumulated_batches_are_added_up(now):
    seconds, watch = iteration(now, workers=4, batches=3, sleep_after=64)
    assert seconds == by_phase(8, 3, 12, 3 * 64 + 16, 32)
    assert [output.loss.item() for output in watch.outputs] == [2.0] * 3


@pytest.mark.parametrize(("workers", "sync", "update"), [(4, 2 * 64 + 16 + 128, 0), (1, 0, 144)])
def test_reducing_and_gathering_sharded_weights_is_sync(now, workers, sync, update):
    model = Model(now)
    for p in (model.first, model.second):
        p.register_post_accumulate_grad_hook(lambda _: now.advance(64 * (workers > 1)))
    piece = torch.nn.Parameter(torch.tensor(1.0))
    piece.whole_size = 4
    optimizer = torch.optim.SGD([piece])
    world = SimpleNamespace(size=workers, device=torch.device("cpu"))
    watch = Clock(world, model, optimizer)
    watch.start()
    now.advance(8)
    watch.lap("data")
    model().loss.backward()
    now.advance(16)  # clipping
    optimizer.step()
    now.advance(128)  # gathering the weights
    watch.end()
    assert watch.seconds == by_phase(8, 1, 4, sync, update)


def test_only_training_is_timed(now):
    model = Model(now)
    world = SimpleNamespace(size=4, device=torch.device("cpu"))
    watch = Clock(world, model, torch.optim.SGD(model.parameters()))
    watch.start()
    model.eval()()
    assert watch.seconds == by_phase(0, 0, 0, 0, 0)
    assert watch.outputs == []
    watch.start()
    model.train()()
    watch.lap("update")
    assert watch.seconds == by_phase(0, 1, 0, 0, 0)
    assert len(watch.outputs) == 1


def test_a_wrapped_model_is_timed_however_it_is_called(now):
    wrapper = torch.nn.Module()
    wrapper.module = Model(now)
    world = SimpleNamespace(size=4, device=torch.device("cpu"))
    watch = Clock(world, wrapper, torch.optim.SGD(wrapper.parameters()))
    watch.start()
    wrapper.module()
    assert watch.seconds == by_phase(0, 1, 0, 0, 0)
    assert len(watch.outputs) == 1
