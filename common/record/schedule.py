"""How far a run is: its epochs and steps."""


class Schedule:
    """Counts the optimizer's steps of a run, of which there are `total_steps`."""

    def __init__(self, total_steps):
        self.total_steps = total_steps
        self.step = 0

    @property
    def finished(self):
        """Whether all steps are done."""
        return self.step >= self.total_steps

    def epochs(self):
        """Count epochs from 1 while there are steps left; only 0 where nothing is trained."""
        if not self.total_steps:
            yield 0
        epoch = 0
        while not self.finished:
            epoch += 1
            yield epoch
