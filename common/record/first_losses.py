"""The losses of the first minibatches, over the examples of all workers, for rank 0 to print."""

import time

SHOWN = 5
LAST_SECONDS = 5.0  # that rank 0 waits for the others' losses when the run has ended


class FirstLosses:
    """Collects the first losses through the workers' store, without a collective.

    Every rank writes its own. Rank 0 reads them when they are there, mostly a step later, so no
    step waits for them.
    """

    def __init__(self, world):
        self.world = world
        self.waiting = {}  # step -> (loss, examples) of rank 0

    def add(self, step, loss, examples):
        """Take note of a step's loss, the mean over this rank's examples."""
        if step > SHOWN:
            return
        if self.world.size > 1:
            self.world.store.set(f"loss/{step}/{self.world.rank}", f"{loss} {examples}")
        if self.world.rank == 0:
            self.waiting[step] = loss if examples else None

    def known(self, at_end=False):
        """Yield (step, loss as text) once each is known, in order."""
        deadline = time.monotonic() + (LAST_SECONDS if at_end else 0)
        for step, own in list(self.waiting.items()):
            keys = [f"loss/{step}/{rank}" for rank in range(self.world.size)]
            while not (there := self.is_there(keys)) and time.monotonic() < deadline:
                time.sleep(0.02)
            if not there and not at_end:
                return
            del self.waiting[step]
            if there or own is not None:
                yield step, self.text(keys, own) if there else f"{own:.6f} (rank 0's share)"

    def is_there(self, keys):
        """Whether every rank has written its loss."""
        return self.world.size == 1 or self.world.store.check(keys)

    def text(self, keys, own):
        """The loss over all examples, with rank 0's beside it where it has one of several."""
        if self.world.size == 1:
            return f"{own:.6f}"
        shares = [map(float, self.world.store.get(key).decode().split()) for key in keys]
        total, examples = map(sum, zip(*((loss * n, n) for loss, n in shares), strict=True))
        share = "" if own is None else f" (rank 0's share: {own:.6f})"
        return f"{total / examples:.6f}{share}"
