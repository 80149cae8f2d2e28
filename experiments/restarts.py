"""What a lost worker costs: seconds from the kill to the next step, steps lost, checkpoints.

    python -m experiments.restarts --output_dir runs/restarts --save_steps 5 --kill_after 12 \\
      --task_name RTE --data_dir sample_data/RTE --model_name_or_path tiny

Runs task 2(b) under each launcher that can restart it, kills rank 1 (SIGKILL) once it has done
--kill_after steps, and follows rank 0's steps. Further flags go to task2b/run_glue.py.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from cluster import lab_network
from common.cli import comma_separated
from common.commands import program
from common.errors import UserError
from common.tables import markdown_table
from experiments.command import KIT, training_command

import psutil

LAUNCHERS = {  # name -> (what comes before the script; its arguments are the workers)
    "torchrun": "torch.distributed.run --standalone --max-restarts 3 --nproc-per-node {}",
    "launch": "cluster.launch --restarts 3 --workers {}",
    "lab": "cluster.netlab --restarts 3 --nodes {}",
}
POLL_SECONDS = 0.01
DEADLINE_SECONDS = 600.0
HEADS = ("launcher", "killed after step", "went on from", "steps lost", "s to the next step")
SAVES = ("s per checkpoint", "MB", "s per step", "checkpoint / step")


def parse(argv: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The command's own flags, and the rest, which are the task's; raises UserError."""
    parser = argparse.ArgumentParser(prog=program(), description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = ",".join(LAUNCHERS)
    parser.add_argument("--launchers", type=comma_separated, default=names, help="%(default)s")
    parser.add_argument("--workers", type=int, default=2, help="(default: 2)")
    parser.add_argument("--kill_after", type=int, default=12, help="steps (default: 12)")
    parser.add_argument("--save_steps", type=int, default=5, help="(default: 5)")
    parser.add_argument("--batch", type=int, default=4, help="of a worker (default: 4)")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder for all runs")
    args, flags = parser.parse_known_args(argv)
    if unknown := sorted(set(args.launchers) - set(LAUNCHERS)):
        raise UserError(f"--launchers {','.join(unknown)}: choose from {names}")
    if args.workers < 2 or args.save_steps < 1 or args.kill_after < args.save_steps:
        raise UserError("give 2 --workers or more, and --kill_after a --save_steps of 1 or more")
    if "lab" in args.launchers and (reason := lab_network.missing()):
        raise UserError(f"--launchers lab: {reason}; leave it out")
    return args, flags


def main(argv: list[str] | None = None) -> int:
    """Run under each launcher and print what it cost; returns the exit code."""
    try:
        args, flags = parse(argv)
        found = [restart(name, args, flags) for name in args.launchers]
    except UserError as error:
        print(f"restarts: {error}", file=sys.stderr)
        return 2
    print(markdown_table(HEADS, [restarted for restarted, _ in found]))
    print()
    print(markdown_table(SAVES, [found[-1][1]]))
    return 0


def restart(name: str, args: argparse.Namespace, flags: list[str]) -> tuple[tuple, tuple]:
    """Run under a launcher, kill a worker, and return the rows of both tables."""
    folder = args.output_dir / name
    for old in folder.glob("*.json*"):
        old.unlink()
    flags = ["--max_steps", str(args.kill_after + args.save_steps), "--do_train", *flags]
    flags += ["--save_steps", str(args.save_steps), "--save_strategy", "steps"]
    command = [sys.executable, "-m", *LAUNCHERS[name].format(args.workers).split()]
    command += training_command("task2b/run_glue.py", folder.resolve(), args.batch, flags)
    log = args.output_dir / f"{name}.log"
    args.output_dir.mkdir(parents=True, exist_ok=True)
    print(f"restarts: {name}", file=sys.stderr, flush=True)
    with (
        log.open("w") as out,
        subprocess.Popen(command, cwd=KIT, stdout=out, stderr=subprocess.STDOUT) as launcher,
    ):
        try:
            row = follow(folder, launcher, args.kill_after, log)
            if launcher.wait(DEADLINE_SECONDS):
                raise UserError(f"the run failed: see {log}")
        finally:
            launcher.terminate()
    return (name, *row), cost(folder)


def follow(folder: Path, launcher: subprocess.Popen, kill_after: int, log: Path) -> tuple:
    """Kill rank 1 after so many steps; returns the row of the launcher, without its name."""
    wait_until(lambda: steps_in(folder) >= kill_after, launcher, log)
    worker_of(launcher, 1).kill()
    killed, done = time.perf_counter(), steps_in(folder)

    def resumed() -> list[int]:
        nonlocal done
        with contextlib.suppress(OSError, ValueError):
            if from_step := json.loads((folder / "run.json").read_text())["resumed"]:
                return from_step
        done = max(done, steps_in(folder))
        return []

    wait_until(resumed, launcher, log)
    start = resumed()[-1]
    wait_until(lambda: steps_in(folder) > start, launcher, log)
    return done, start, done - start, f"{time.perf_counter() - killed:.1f}"


def wait_until(condition, launcher: subprocess.Popen, log: Path) -> None:
    """Return once a condition holds; raises UserError if the run ends before, or at a deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if launcher.poll() is not None or time.monotonic() > deadline:
            raise UserError(f"the run ended too early, or hangs: see {log}")
        time.sleep(POLL_SECONDS)


def steps_in(folder: Path) -> int:
    """How many steps rank 0 has written."""
    file = folder / "steps.rank0.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def worker_of(launcher: subprocess.Popen, rank: int) -> psutil.Process:
    """The process of a rank below a launcher."""
    for process in psutil.Process(launcher.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            named = process.name() == f"rank {rank}"  # by the launcher's template
            flagged = process.cmdline()[-2:] == ["--local_rank", str(rank)]
            if named or flagged or process.environ().get("RANK") == str(rank):
                return process
    raise UserError(f"there is no process of rank {rank}")


def cost(folder: Path) -> tuple:
    """What a checkpoint of a run costs, and how that compares with a step."""
    facts = json.loads((folder / "run.json").read_text())
    seconds = statistics.median(facts["checkpoint_seconds"])
    step = facts["iteration_seconds"]["median"]
    (newest,) = folder.glob("checkpoint-*")
    size = sum(file.stat().st_size for file in newest.rglob("*") if file.is_file())
    return f"{seconds:.2f}", f"{size / 1e6:.0f}", f"{step:.3f}", f"{seconds / step:.1f}"


if __name__ == "__main__":
    sys.exit(main())
