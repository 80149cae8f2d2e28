"""Task 8's loop beside Hugging Face's Trainer and DeepSpeed's engine: the ratio of their times.

    python -m staff.timing.pretraining --data_dir runs/corpus [--rounds 3] [--steps 30]

Each round runs all of them once, in turn, on the same rows with one worker, so that whatever else
the machine does affects them alike. Further flags go to all, such as --config_name or --dropout.
The Trainer needs the package accelerate (`make bench-peers` installs it), and the engine DeepSpeed
(`make deepspeed`); one without its package is left out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from common.commands import program
from common.tables import markdown_table
from experiments.command import KIT

SCRIPTS = {
    "ours": "task8/pretrain.py",
    "Trainer": "staff/timing/pretraining_peer.py",
    "DeepSpeed": "task8/pretrain_deepspeed.py",
}
NEEDS = {"Trainer": "accelerate", "DeepSpeed": "deepspeed"}


def seconds_of(way: str, flags: list[str], folder: Path) -> float:
    """The median seconds of a run's steps but the first; raises CalledProcessError."""
    command = [sys.executable, str(KIT / SCRIPTS[way]), *flags, "--output_dir", str(folder)]
    env = {**os.environ, "PYTHONPATH": str(KIT)}
    subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL, cwd=KIT)
    if way != "Trainer":
        lines = (folder / "steps.rank0.jsonl").read_text().splitlines()
        seconds = [json.loads(line)["seconds"]["total"] for line in lines]
    else:
        seconds = json.loads((folder / "seconds.json").read_text())
    return statistics.median(seconds[1:])


def main(argv: list[str] | None = None) -> int:
    """Run the rounds and print the table; returns the exit code."""
    parser = argparse.ArgumentParser(prog=program(), description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--data_dir", required=True, help="folder of task8/prepare.py")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--steps", type=int, default=30, help="default: 30")
    args, flags = parser.parse_known_args(argv)
    flags += ["--data_dir", str(Path(args.data_dir).resolve()), "--save_strategy", "no"]
    flags += ["--max_steps", str(args.steps)]
    flags += [] if "--dropout" in flags else ["--dropout", "0"]
    found = {way: [] for way in SCRIPTS if way not in NEEDS or find_spec(NEEDS[way])}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            for way in found:
                found[way].append(seconds_of(way, flags, Path(folder) / f"{way}{number}"))
    ours = found["ours"]
    rows = [(way, *(f"{each:.3f} s" for each in found[way])) for way in found]
    for way in list(found)[1:]:
        ratios = (theirs / own for own, theirs in zip(ours, found[way], strict=True))
        rows.append((f"{way} / ours", *(f"{each:.2f}" for each in ratios)))
    rounds = (f"round {number + 1}" for number in range(args.rounds))
    print(markdown_table(("median step", *rounds), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
