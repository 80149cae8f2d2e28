"""The metrics of a run, epoch by epoch, and the file that lists them."""

from common.files import write_whole


class Metrics(list):
    """What was measured after each epoch: {"epoch": ..., name: value, ...}."""

    def __init__(self, found, folder, rank):
        super().__init__(found)
        self.folder = folder
        self.rank = rank

    def add(self, epoch, scores):
        """Add an epoch's scores, and write the file."""
        self.append({"epoch": epoch, **scores})
        self.write()

    def write(self):
        """Rank 0 writes the metrics so far to eval_results.txt."""
        if self.rank == 0 and self:
            lines = [f"{k} = {v}" for metrics in self for k, v in metrics.items()]
            write_whole(self.folder / "eval_results.txt", "\n".join(lines) + "\n")
