"""The bubble of a pipeline by schedule and number of micro-batches, measured and expected.

    python -m experiments pipeline [--microbatches 1,2,4,8,16] [--schedules gpipe,one_f_one_b]

Stages sleep by default, 20 ms in a forward and 40 ms in a backward pass (--stage_ms 20,40), so that
few cores stand for many; --stage_ms 0,0 measures what they compute. A micro-batch has --rows rows.
Every flag that is not the sweep's own goes to task 7's scripts.
"""

import argparse
import sys
from pathlib import Path

from cluster.launch import Place, launch
from cluster.template import Template
from common.cli import comma_separated
from common.commands import program
from common.errors import UserError
from common.tasks import VARIANTS
from experiments.command import KIT, training_command
from report import timeline

SCHEDULES = {task.name: task for task in VARIANTS if task.divided}
FLAGS = "--task_name RTE --dropout 0 --no_cuda --save_strategy no --max_steps 4 --count_traffic"


def parse(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The sweep's own flags, and the rest, which are the scripts'; raises UserError."""
    parser = argparse.ArgumentParser(prog=program(), description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--workers", type=int, default=4, help="stages (default: %(default)s)")
    parser.add_argument("--microbatches", type=comma_separated, default="1,2,4,8,16")
    parser.add_argument("--schedules", type=comma_separated, default="gpipe,one_f_one_b")
    parser.add_argument("--rows", type=int, default=1, help="of a micro-batch (default: 1)")
    parser.add_argument("--stage_ms", default="20,40", help="default: %(default)s")
    parser.add_argument("--output_dir", type=Path, default=KIT / "runs" / "pipeline")
    args, flags = parser.parse_known_args(argv)
    unknown = set(args.schedules) - set(SCHEDULES)
    if unknown:
        raise UserError(
            f"--schedules {','.join(sorted(unknown))}: choose from {','.join(SCHEDULES)}"
        )
    wrong = [each for each in args.microbatches if not each.isdigit() or int(each) < 1]
    if wrong:
        raise UserError(f"--microbatches {wrong[0]}: must be whole numbers of at least 1")
    return args, flags


def main(argv: list[str] | None = None) -> int:
    """Run every combination, print the table, and return the exit code."""
    try:
        args, flags = parse(argv)
        folders = []
        with Template() as template:
            for name in args.schedules:
                task = SCHEDULES[name]
                for count in map(int, args.microbatches):
                    if task.fills_pipeline and count < args.workers:
                        continue  # it refuses them
                    folder = args.output_dir / f"{name}-{count}"
                    data = ["--data_dir", str(KIT / "sample_data" / "RTE")]
                    model = ["--model_name_or_path", f"tiny:{args.workers}"]
                    sizes = ["--num_microbatches", str(count), "--stage_ms", args.stage_ms]
                    more = [*model, *data, *FLAGS.split(), *sizes, *flags]
                    command = training_command(task.script, folder, count * args.rows, more)
                    place = Place(template=template)
                    result = launch(command, args.workers, quiet=True, place=place)
                    if result.code:
                        print(result.summary(), file=sys.stderr)
                        return result.code
                    folders.append(str(folder))
        return timeline.main([*folders, "--output_dir", str(args.output_dir)])
    except UserError as error:
        print(f"pipeline: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
