"""What measuring the phases costs: iterations of the tiny BERT with the clock's hooks and without.

    python -m staff.timing.clock_cost

The hooks take equally long for any batch, so their cost is measured on the smallest one: the
median difference of interleaved iterations. It is set against an iteration with 16 examples.
"""

import statistics
import sys
import time
from types import SimpleNamespace

from common.models.tiny import tiny_model
from common.record.clock import Clock

import torch

ROUNDS = 500  # after 50 that are discarded
LENGTH = 128


def trainer(hooks: bool, examples: int):
    """A function that does one iteration, as the tasks do; returns its seconds."""
    model = tiny_model(2).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    world = SimpleNamespace(size=4, device=torch.device("cpu"))
    clock = Clock(world, model, optimizer) if hooks else None
    batch = {
        "input_ids": torch.randint(5, 1000, (examples, LENGTH)),
        "labels": torch.zeros(examples, dtype=torch.int64),
    }

    def iterate() -> float:
        start = time.perf_counter()
        if clock:
            clock.start()
            clock.lap("data")
        optimizer.zero_grad()
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if clock:
            clock.end()
        return time.perf_counter() - start

    return iterate


def main() -> int:
    """Measure and print; returns the exit code."""
    torch.set_num_threads(1)
    with_hooks, without = trainer(True, 1), trainer(False, 1)
    pairs = [(with_hooks(), without()) for _ in range(50 + ROUNDS)][50:]
    cost = statistics.median(a - b for a, b in pairs)
    whole = trainer(False, 16)
    iteration = statistics.median([whole() for _ in range(20)][5:])
    print(
        f"the hooks: {1e6 * cost:.0f} us of an iteration's {1000 * iteration:.0f} ms, "
        f"{100 * cost / iteration:.2f} %"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
