"""Pairs about what is evaluated and reported: each wrong one with a right one like it."""

from . import evaluations
from .lines import EVALUATION, FIRST_LOSSES, RECORD, TRAFFIC
from .variants import Edit, Variant, replaced

LOSS = "        loss = self.loss(batches)\n"
MEAN_LOSS = """\
        self.total = getattr(self, "total", 0.0) + self.loss(batches)
        loss = self.total / self.schedule.step
"""
RANKS_LOSS = (
    LOSS
    + """\
        if self.world.size > 1:
            import torch
            shared = torch.tensor(loss)
            torch.distributed.all_reduce(shared)
            loss = shared.item() / self.world.size
"""
)
SECONDS = 'f"mean time per iteration: {mean:.4f} s "'
TIMED = "timed = self.seconds[1:]"
SIZE = "size = tensor.numel() * tensor.element_size()"
PER_STEP = "key: value / len(self.iterations)"
FILE = (
    'write_whole(self.folder / f"traffic.rank{rank}.json", json.dumps(summary, indent=1) + "\\n")'
)
PRINT = "            print(table(summary))\n"
MEGABYTES = PRINT.replace(
    "table(summary)", "f\"{summary['per_iteration']['payload'] / 1e6:.4f} MB per iteration\""
)
SHOWN = """share = "" if own is None else f" (rank 0's share: {own:.6f})"
        return f"{total / examples:.6f}{share}\""""


def wrong(name, task, file, old, new, check, cause, note):  # noqa: PLR0913 a row of the table
    """A variant with one line changed."""
    return Variant(name, task, (Edit(file, old, new),), (check,), cause, note)


def printing(text):
    """Task 4 that writes no file and prints its figures in its own words."""
    return Edit(TRAFFIC, FILE, "pass"), Edit(TRAFFIC, PRINT, text)


WRONG = (
    wrong(
        "prints_running_mean",
        "task1",
        RECORD,
        LOSS,
        MEAN_LOSS,
        "printed",
        "not_printed",
        "the mean of all losses so far is printed",
    ),
    wrong(
        "prints_share_of_loss",
        "task3",
        FIRST_LOSSES,
        SHOWN,
        SHOWN.replace(":.6f", " / len(shares):.6f"),
        "printed",
        "not_printed",
        "the loss is divided by the number of workers before it is printed",
    ),
    Variant(
        "averages_shards_accuracies",
        "task2a",
        (replaced(EVALUATION, evaluations.mean_of_shards, "evaluate"),),
        ("metric",),
        "shard_evaluated",
        "the mean of the ranks' accuracies, of shards of different sizes",
    ),
    Variant(
        "scores_padding_rows",
        "task3",
        (replaced(EVALUATION, evaluations.padded_shards, "evaluate"),),
        ("metric",),
        "scored_twice",
        "rows that fill up the shards are scored twice",
    ),
    wrong(
        "discards_last_iteration",
        "task2a",
        RECORD,
        TIMED,
        "timed = self.seconds[:-1]",
        "timing",
        "first_iteration_timed",
        "the last iteration is discarded, not the first",
    ),
    wrong(
        "milliseconds_as_seconds",
        "task2b",
        RECORD,
        SECONDS,
        SECONDS.replace("{mean:.4f}", "{1000 * mean:.4f}"),
        "timing",
        "not_timed",
        "milliseconds, printed as seconds",
    ),
    wrong(
        "traffic_in_bits",
        "task4",
        TRAFFIC,
        SIZE,
        f"{SIZE} * 8",
        "traffic",
        "wrong_traffic",
        "bits are counted as if they were bytes",
    ),
    wrong(
        "traffic_not_divided",
        "task4",
        TRAFFIC,
        PER_STEP,
        "key: value",
        "traffic",
        "wrong_traffic",
        "the whole run's bytes are reported as those of an iteration",
    ),
)
RIGHT = (
    Variant(
        "prints_mean_of_ranks",
        "task2b",
        (Edit(RECORD, LOSS, RANKS_LOSS),),
        note="the mean of the ranks' losses is printed, by an all_reduce after the update",
    ),
    Variant(
        "prints_three_decimals",
        "task3",
        (Edit(FIRST_LOSSES, SHOWN, SHOWN.replace(".6f", ".3f")),),
        note="losses with three decimals",
    ),
    Variant(
        "adds_up_shards_counts",
        "task2a",
        (replaced(EVALUATION, evaluations.counts_of_shards, "evaluate"),),
        note="the ranks' numbers of right guesses and of rows are added up",
    ),
    Variant(
        "cuts_padding_rows",
        "task3",
        (replaced(EVALUATION, evaluations.padded_shards_cut, "evaluate"),),
        note="rows that fill up the shards are cut off before scoring",
    ),
    Variant(
        "discards_two_iterations",
        "task2a",
        (Edit(RECORD, TIMED, "timed = self.seconds[2:]"),),
        note="two iterations are discarded",
    ),
    Variant(
        "milliseconds",
        "task2b",
        (Edit(RECORD, SECONDS, SECONDS.replace("{mean:.4f} s", "{1000 * mean:.1f} ms")),),
        note="the mean time in milliseconds",
    ),
    Variant(
        "prints_traffic_in_megabytes",
        "task4",
        printing(MEGABYTES),
        note="prints one figure, in MB, and writes no file of its own",
    ),
)
