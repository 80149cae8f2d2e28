"""How far a run is: its epochs and steps."""


class Schedule:
    """Counts the optimizer's steps of a run, of which there are `total_steps`.

    `epoch` counts the epochs that are over, and `position` the steps of the one under way.
    """

    def __init__(self, total_steps, step=0, epoch=0, position=0):
        self.total_steps = total_steps
        self.step = step
        self.epoch = epoch
        self.position = position

    @property
    def finished(self):
        """Whether all steps are done."""
        return self.step >= self.total_steps

    def epochs(self):
        """Count epochs while there are steps left, from the one under way; only 0 without steps."""
        if not self.total_steps:
            yield 0
        while not self.finished or self.position:
            yield self.epoch + 1
            self.epoch += 1
            self.position = 0

    def end_step(self):
        """Count a step."""
        self.step += 1
        self.position += 1
