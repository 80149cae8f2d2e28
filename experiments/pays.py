"""Does pre-training pay? Accuracy after one epoch of fine-tuning, with and without it.

    python -m experiments pays [--pretraining_seeds 1,2,3] [--seeds 1,2,3] [--steps 300]

Pre-trains the small BERT on the bundled corpus once for each seed, and not at all; fine-tunes each
with task 1 on the sample, once for each of --seeds; prints the table and draws it. Stopped at any
moment, the same command goes on after the runs that are finished. Further flags go to
task8/pretrain.py.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.launch import Place, launch
from cluster.template import Template
from common.cli import comma_separated
from common.commands import program
from common.errors import UserError
from common.tables import markdown_table
from experiments.command import KIT, prepare_corpus, training_command
from report.drawing import save_figure
from report.runs import Run, load_run
from report.style import COLORS, MARKS, WIDTH, label_ticks, pyplot

NONE = "none"  # in place of a seed: the weights that pre-training starts from
TUNING = "--model_type bert --task_name RTE --do_eval --max_seq_length 128 --learning_rate 5e-4 "
TUNING += "--num_train_epochs 1 --no_cuda --save_strategy no"
TUNING_BATCH = 32


def parse(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The command's own flags, and the rest, which are pre-training's; raises UserError."""
    parser = argparse.ArgumentParser(prog=program(), description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--pretraining_seeds", type=comma_separated, default="1,2,3")
    parser.add_argument("--seeds", type=comma_separated, default="1,2,3", help="of fine-tuning")
    parser.add_argument("--steps", type=int, default=300, help="of pre-training (default: 300)")
    parser.add_argument("--output_dir", type=Path, default=KIT / "runs" / "pays")
    args, flags = parser.parse_known_args(argv)
    for name in ("pretraining_seeds", "seeds"):
        wrong = [seed for seed in getattr(args, name) if not seed.isdigit()]
        if wrong:
            raise UserError(f"--{name} {wrong[0]}: seeds are whole numbers, with commas between")
    if args.steps < 1:
        raise UserError(f"--steps {args.steps}: must be at least 1")
    return args, flags


def main(argv: list[str] | None = None) -> int:
    """Make the runs that are missing, print the table and draw it; returns the exit code."""
    try:
        args, flags = parse(argv)
        flags = ["--data_dir", str(prepare_corpus(args.output_dir)), *flags]
        with Template() as template:
            found = {
                seed: runs_of(seed, args, flags, Place(template=template))
                for seed in (NONE, *args.pretraining_seeds)
            }
    except UserError as error:
        print(f"pays: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        return error.returncode
    print(table(found, args.seeds))
    save_figure(draw(found), "pays", [runs[0] for runs in found.values()], args.output_dir)
    return 0


def runs_of(seed: str, args: argparse.Namespace, flags: list[str], place: Place) -> list[Run]:
    """One pre-training, and the fine-tunings of its weights."""
    folder = args.output_dir / f"pretrained-{seed}"
    steps, rate = (1, ["--learning_rate", "0"]) if seed == NONE else (args.steps, [])
    own = ["--model_name_or_path", "tiny-task1", "--max_steps", str(steps), "--no_cuda"]
    own += [*flags, *rate]
    own += [] if seed == NONE else ["--seed", seed]
    runs = [run(folder, "task8/pretrain.py", 32, own, place)]
    data = ["--data_dir", str(KIT / "sample_data" / "RTE"), "--model_name_or_path", str(folder)]
    for tuned in args.seeds:
        more = [*TUNING.split(), *data, "--seed", tuned]
        place_of_run = args.output_dir / f"tuned-{seed}-{tuned}"
        runs.append(run(place_of_run, "task1/run_glue.py", TUNING_BATCH, more, place))
    return runs


def run(folder: Path, script: str, batch: int, flags: list[str], place: Place) -> Run:
    """A run of a script on one worker, unless its folder holds one that is finished."""
    try:
        return load_run(folder)
    except UserError:
        print(f"pays: {folder.name}", file=sys.stderr, flush=True)
    result = launch(training_command(script, folder, batch, flags), 1, quiet=True, place=place)
    if result.code:
        raise UserError(f"{folder.name} failed:\n{result.summary()}")
    return load_run(folder)


def accuracy(one: Run) -> float:
    """The accuracy on the dev set after the last epoch."""
    return one.facts["metrics"][-1]["acc"]


def table(found: dict[str, list[Run]], seeds: Sequence[str]) -> str:
    """A row for each pre-training: its own metrics, and the accuracies after it."""
    rows = []
    for seed, (pretrained, *tuned) in found.items():
        metrics = pretrained.facts["metrics"][-1]
        own = (f"{metrics['mlm_loss']:.3f}", f"{metrics['nsp_acc']:.1%}")
        each = [accuracy(one) for one in tuned]
        rows.append((seed, *own, *(f"{one:.4f}" for one in [*each, statistics.mean(each)])))
    heads = ("pre-training's seed", "loss of masked words", "pairs judged right")
    return markdown_table((*heads, *(f"fine-tuning {seed}" for seed in seeds), "mean"), rows)


def draw(found: dict[str, list[Run]]) -> Any:
    """The accuracies after each pre-training, and their means as lines."""
    figure, axis = pyplot().subplots(figsize=(WIDTH, 2.6), layout="constrained")
    for at, (seed, (_, *tuned)) in enumerate(found.items()):
        each, color = [accuracy(one) for one in tuned], COLORS[seed != NONE]
        axis.plot([at] * len(each), each, MARKS[seed != NONE], color=color, alpha=0.7)
        axis.hlines(statistics.mean(each), at - 0.25, at + 0.25, color=color)
    names = ["not pre-trained", *(f"seed {seed}" for seed in found if seed != NONE)]
    label_ticks(axis, range(len(names)), names)
    axis.set_ylabel("accuracy after one epoch")
    axis.set_xlabel("pre-training (lines: means over the seeds of fine-tuning)")
    return figure


if __name__ == "__main__":
    sys.exit(main())
