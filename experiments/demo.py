"""The main job: every task on this machine, on sample data and the tiny BERT, side by side.

python -m experiments.demo [--workers 4] [--output_dir runs/demo]
"""

import argparse
import sys
import time
from pathlib import Path

from cluster.launch import launch
from common.errors import UserError
from report import build, compare
from report.runs import load_run

KIT = Path(__file__).resolve().parent.parent
TOTAL_BATCH = 64
FLAGS = (
    "--model_type bert --model_name_or_path tiny --task_name RTE --do_train --do_eval "
    "--max_seq_length 128 --per_gpu_eval_batch_size 64 --learning_rate 5e-4 --num_train_epochs 3 "
    "--dropout 0 --overwrite_output_dir"
)
SHORT = "--max_steps 12"  # enough to count bytes


def jobs(workers):
    """(name of the run's folder, script, workers, further flags) of each run."""
    yield "task1", "task1", 1, ""
    for task in ("task2a", "task2b", "task3"):
        yield task, task, workers, ""
    yield "task4", "task4", workers, ""
    for method in ("2a", "3"):
        yield f"task4-{method}", "task4", workers, f"--method {method} {SHORT}"
    yield (
        "task4-16",
        "task4",
        workers,
        f"--per_gpu_train_batch_size {max(1, 16 // workers)} {SHORT}",
    )


def main(argv=None):
    """Run the tasks and print the comparison; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4, help="workers of tasks 2 to 4")
    parser.add_argument("--output_dir", type=Path, default=KIT / "runs" / "demo")
    args = parser.parse_args(argv)
    if args.workers < 1 or TOTAL_BATCH % args.workers:
        print(f"--workers {args.workers}: must divide {TOTAL_BATCH}", file=sys.stderr)
        return 2
    start, runs, unwritten = time.monotonic(), {}, []
    try:
        for name, task, workers, more in jobs(args.workers):
            print(f"demo: {name} with {workers} worker(s)", flush=True)
            command = [str(KIT / task / "run_glue.py"), *FLAGS.split()]
            command += ["--data_dir", str(KIT / "sample_data" / "RTE")]
            command += ["--per_gpu_train_batch_size", str(TOTAL_BATCH // workers)]
            command += ["--output_dir", str(args.output_dir / name), *more.split()]
            result = launch(command, workers)
            if result.code and not meets_todo(result):
                return result.code
            if result.code:
                unwritten.append(name)
                continue
            runs[name] = load_run(args.output_dir / name)
    except UserError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if runs:
        report(runs, args.output_dir)
    if unwritten:
        print(f"demo: {', '.join(unwritten)}: not all is written yet; the lines above say where")
    print(f"demo: done in {time.monotonic() - start:.0f} s")
    return 1 if unwritten else 0


def meets_todo(result):
    """Whether a run has ended at a part that a student has still to write."""
    return any("TODO(" in line for worker in result.workers for line in worker.stderr)


def report(runs, folder):
    """Print and draw the runs side by side, with every method's traffic; build a report."""
    whole = [run for name, run in runs.items() if "-" not in name]
    methods = [run for run in runs.values() if run.traffic]
    print(compare.side_by_side(whole), compare.traffic_table(methods), sep="\n")
    compare.picture(whole, folder / "side_by_side.png", methods)
    print(f"picture: {folder / 'side_by_side.png'}")
    example = KIT / "report" / "example" / "answers.md"
    if not example.exists():  # it answers the tasks' questions: no student has it
        return
    answers = build.read_answers(example)
    who = argparse.Namespace(netid="netid", first="First", last="Last")
    build.build(list(runs.values()), answers, who, folder / "netid_First_Last.pdf")
    print(f"example of a report: {folder / 'netid_First_Last.pdf'}")


if __name__ == "__main__":
    sys.exit(main())
