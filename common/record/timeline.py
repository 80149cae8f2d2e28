"""What a stage of a pipeline did when: each forward and backward pass, without its waiting."""

import json
import time
from functools import partial
from pathlib import Path

from torch.autograd import Variable


class Timeline:
    """Writes timeline.rank<R>.jsonl: step, what, stage, micro-batch, start and end in seconds.

    `what` is forward or backward. The times are the system clock's, which stages on one machine, or
    with synchronized clocks, share. A pass also takes the time that --stage_ms sleeps.
    """

    def __init__(self, folder: Path, stage, schedule, sleeps: tuple[float, float]):
        self.file = (folder / f"timeline.rank{stage.world.rank}.jsonl").open("w")
        self.schedule = schedule
        self.sleeps = sleeps
        self.step = 0
        self.numbers = {}  # stage -> its next micro-batch
        self.start = 0.0
        for one in stage.chunks:
            one.module.register_forward_pre_hook(self.before_forward)
            one.module.register_forward_hook(partial(self.after_forward, one.number))

    def before_forward(self, *_):
        """A forward pass begins."""
        if self.step != self.schedule.step + 1:
            self.step, self.numbers = self.schedule.step + 1, {}
        self.start = time.time()

    def after_forward(self, stage, module, _, output):
        """A forward pass ends; have the backward pass of its output noted, too."""
        if not module.training:
            return
        time.sleep(self.sleeps[0])
        number = self.numbers.get(stage, 0)
        self.numbers[stage] = number + 1
        self.write("forward", stage, number, self.start)
        last = output.logits if output.loss is None else output.loss
        last.register_hook(partial(self.before_backward, stage, number))

    def before_backward(self, stage, number, _):
        """A backward pass begins."""
        # As DistributedDataParallel does, to be called when this backward pass is over.
        end = partial(self.write, "backward", stage, number, time.time())
        Variable._execution_engine.queue_callback(end)
        time.sleep(self.sleeps[1])

    def write(self, what, stage, number, start):
        """Write a pass that has just ended."""
        line = {"step": self.step, "what": what, "stage": stage, "microbatch": number}
        print(json.dumps(line | {"start": start, "end": time.time()}), file=self.file)

    def close(self):
        """Write what is left to write."""
        self.file.close()
