"""A live view of a run: what TensorBoard shows of rank 0 while it trains."""

import psutil


class LiveView:
    """Writes loss, phases and bytes of each of rank 0's steps for TensorBoard."""

    def __init__(self, folder, world, step):
        from torch.utils.tensorboard import SummaryWriter

        self.nic = world.nic
        self.loss = "loss" if world.size == 1 else "loss, rank 0's share"
        self.writer = SummaryWriter(str(folder), purge_step=step + 1, flush_secs=5)
        self.bytes = self.counted()

    def counted(self):
        """Bytes sent and received on the run's interface since it was set up."""
        counts = psutil.net_io_counters(pernic=True, nowrap=False)[self.nic]
        return counts.bytes_sent + counts.bytes_recv

    def step(self, line):
        """Show a step, given its line in steps.rank0.jsonl."""
        before, self.bytes = self.bytes, self.counted()
        numbers = {self.loss: line["loss"], f"MB on {self.nic}": (self.bytes - before) / 1e6}
        numbers |= {f"milliseconds/{name}": 1000 * each for name, each in line["seconds"].items()}
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, line["step"])

    def scores(self, scores, step):
        """Show the metrics of an evaluation."""
        for name, value in scores.items():
            self.writer.add_scalar(f"dev set/{name}", value, step)

    def close(self):
        """Write what is left."""
        self.writer.close()


def start_live_view(args, folder, world, step):
    """The LiveView of rank 0 with --report_to tensorboard, in folder/tensorboard; else None.

    A run that is resumed after a `step` goes on with the view; another one replaces it.
    """
    if args.report_to != "tensorboard" or world.rank:
        return None
    folder = folder / "tensorboard"
    for old in () if step else folder.glob("events.out.tfevents.*"):
        old.unlink()
    return LiveView(folder, world, step)
