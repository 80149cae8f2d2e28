"""Ends a run after a checkpoint when a scheduler gives notice that it wants the machines back."""

import os
import signal

from common.errors import EndedEarlyError

KEY = "last step"  # in the store: after which all ranks end


class Notice:
    """A signal that any rank may get: SIGUSR1, and under Slurm SIGTERM, which precedes its kill.

    The rank that gets it writes the number of its next step into the store. No rank can be further
    than that step, which needs every rank's part of the average; and whoever ends it finds the
    number there.
    """

    def __init__(self, world):
        self.world = world
        self.signal = ""
        for number in [signal.SIGUSR1] + [signal.SIGTERM] * ("SLURM_JOB_ID" in os.environ):
            signal.signal(number, self.take)

    def take(self, number, _):
        """Note a signal; what is to be done can wait for the end of the step."""
        self.signal = signal.Signals(number).name

    def is_last(self, step):
        """Whether the run is to end after this step; every rank asks after each of its steps."""
        if self.world.size == 1:
            return bool(self.signal)
        store = self.world.store
        if self.signal:
            return int(store.compare_set(KEY, "", str(step + 1))) <= step
        return store.check([KEY]) and int(store.get(KEY)) <= step

    def end(self, step, saved):
        """Leave the training loop; raises EndedEarlyError."""
        why = self.signal or "another worker's notice"
        then = "--resume goes on from there" if saved else "nothing was saved: --save_strategy no"
        raise EndedEarlyError(f"the run ends after step {step}, because of {why}; {then}")
