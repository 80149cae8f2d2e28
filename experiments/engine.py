"""A short pre-training with DeepSpeed's engine, beside task 8's loop: `make deepspeed`.

    python -m experiments deepspeed [--steps 8] [--workers 2] [--output_dir runs/deepspeed]

Our loop and the engine's ZeRO stages 0 to 3 read the same rows of the bundled text, without
dropout. Further flags go to all of them. Ends with exit code 1 where the losses differ.
"""

import argparse
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from cluster.launch import Place, launch
from cluster.template import Template
from common.commands import program
from common.engine import MISSING, NAME
from common.files import write_whole
from common.tables import markdown_table
from common.tasks import SCRIPTS
from experiments.command import KIT, prepare_corpus
from report.runs import largest_gap, load_run

FLAGS = "--per_gpu_train_batch_size 8 --dropout 0 --save_strategy no --overwrite_output_dir"
STAGES = (0, 1, 2, 3)
ALIKE = 1e-3  # float32 in other orders, over some steps
IN_16_BITS = 0.05  # in which the engine keeps the weights, and our loop computes


def ways(folder: Path) -> dict[str, list[str]]:
    """The column of each run -> its script and flags."""
    found = {"our loop": [str(KIT / SCRIPTS["task8"].script), "--output_dir", str(folder / "ours")]}
    usual = json.loads((KIT / "task8" / "phase1.json").read_text())  # which our loop reads
    for stage in STAGES:
        config = folder / f"stage{stage}.json"
        settings = {**usual, "zero_optimization": {"stage": stage}}
        write_whole(config, json.dumps(settings, indent=1) + "\n")
        flags = ["--deepspeed_config", str(config), "--output_dir", str(folder / f"stage{stage}")]
        found[f"stage {stage}"] = [str(KIT / SCRIPTS["deepspeed"].script), *flags]
    return found


def losses_table(losses: dict[str, list[float]]) -> str:
    """The losses of each step, a column a run, and how far each is from the first at most."""
    first, *_ = losses.values()
    steps = enumerate(zip(*losses.values(), strict=True), 1)
    rows = [(str(step), *(f"{loss:.6f}" for loss in each)) for step, each in steps]
    apart = (largest_gap(first, each) for each in losses.values())
    rows.append(("largest difference", *(f"{each:.1e}" for each in apart)))
    return markdown_table(("step", *losses), rows)


def main(argv: list[str] | None = None) -> int:
    """Run the loop and the engine, and print their losses; returns the exit code."""
    parser = argparse.ArgumentParser(prog=program(), description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--steps", type=int, default=8, help="default: 8")
    parser.add_argument("--workers", type=int, default=2, help="default: 2")
    parser.add_argument("--output_dir", type=Path, default=KIT / "runs" / "deepspeed")
    args, flags = parser.parse_known_args(argv)
    if not find_spec(NAME):
        print(f"deepspeed: {MISSING}", file=sys.stderr)
        return 2
    folder, losses = args.output_dir.resolve(), {}
    try:
        corpus = prepare_corpus(folder)
    except subprocess.CalledProcessError as error:
        return error.returncode
    common = [*FLAGS.split(), "--data_dir", str(corpus), "--max_steps", str(args.steps), *flags]
    with Template() as template:
        for way, command in ways(folder).items():
            print(f"deepspeed: {way}, with {args.workers} workers", flush=True)
            result = launch([*command, *common], args.workers, place=Place(template=template))
            if result.code:
                return result.code
            losses[way] = load_run(command[command.index("--output_dir") + 1]).losses
    print(losses_table(losses))
    apart = max(largest_gap(losses["our loop"], each) for each in losses.values())
    allowed = IN_16_BITS if {"--bf16", "--fp16"} & set(flags) else ALIKE
    if apart > allowed:
        print(f"deepspeed: the losses are {apart:.1e} apart, above {allowed:g}", file=sys.stderr)
    return int(apart > allowed)


if __name__ == "__main__":
    sys.exit(main())
