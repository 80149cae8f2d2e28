"""Start N workers of a script on this machine, and end them together.

    python -m cluster.launch --workers 4 SCRIPT [the script's own arguments ...]

Each worker runs SCRIPT with its arguments and then `--master_ip 127.0.0.1 --master_port P
--world_size N --local_rank R`. Rank 0 has the terminal, so its progress bar is live; lines of the
others are shown whole, prefixed with `[rank R] `.

The first failure ends the run: the others get GRACE_SECONDS to report which peer they lost, then
SIGTERM, and after as long again SIGKILL. Ctrl-C, SIGTERM and SIGHUP end every worker and its
children; a second one kills them. If the launcher itself is killed (SIGKILL), Linux kills the
workers with it, but not their children. macOS cannot do that: there, end the workers by hand.
With --restarts K a run that fails is started again up to K times, with --resume.
"""

import argparse
import contextlib
import itertools
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.ports import reserved_port
from cluster.processes import Worker, attend, signal_group, start
from cluster.screen import Screen
from cluster.template import Template
from common.commands import Parser, program
from common.errors import UserError

GRACE_SECONDS = 10.0
BAD_USAGE = 2  # the exit code
USAGE = "--workers N SCRIPT [ARGUMENTS ...]"


@dataclass(frozen=True)
class Result:
    """The workers of a run that is over, by rank."""

    workers: list[Worker]

    @property
    def first(self) -> Worker | None:
        """The worker that failed before the others; None if none failed by itself."""
        failed = [worker for worker in self.workers if worker.code and not worker.sent]
        return min(failed, key=lambda worker: worker.ended, default=None)

    @property
    def code(self) -> int:
        """0, or the first failure's exit code (128 + its signal)."""
        code = (self.first.code if self.first else 0) or 0
        return code if code >= 0 else 128 - code

    @property
    def alike(self) -> bool:
        """Whether several workers ended in the same way, with the same last line."""
        return len(self.workers) > 1 and len({worker.outcome(1) for worker in self.workers}) == 1

    def summary(self, shown: bool = False) -> str:
        """Which worker failed first, how, and how the others ended; times in seconds.

        `shown`: rank 0's last lines are on the screen, and need not be repeated for all.
        """
        first = self.first
        if not first:
            return "no worker failed"
        seconds = first.ended - first.started
        if self.alike:
            how = first.outcome(0 if shown else 5)
            return f"all {len(self.workers)} workers failed alike, after {seconds:.1f} s: {how}"
        lines = [f"rank {first.rank} failed first, after {seconds:.1f} s: {first.outcome(5)}"]
        for worker in self.workers:
            if worker is not first:
                seconds = worker.ended - first.ended
                lines.append(f"  rank {worker.rank}, {seconds:+.1f} s: {worker.outcome(1)}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Place:
    """Where the workers run: rank 0's address, and the command that a rank runs under.

    `port` is rank 0's (default: a free one of this machine); `python` is the workers' interpreter.
    With a `template` they are forked from it where that is possible.
    """

    master_ip: str = "127.0.0.1"
    prefix: Callable[[int], list[str]] = lambda _: []
    port: int | None = None
    python: str = sys.executable
    template: Template | None = None


THIS_MACHINE = Place()


def launch(
    command: list[str],
    workers: int,
    *,
    quiet: bool = False,
    env: Mapping[str, str] | None = None,
    place: Place = THIS_MACHINE,
    on_start: Callable[[list[Worker]], None] = lambda _: None,
) -> Result:
    """Run a script (`command`: its path and arguments) as so many workers until all have ended.

    `quiet` prints nothing and keeps all output in the result; `env` replaces os.environ;
    `on_start` is called with the workers once all run. Call it from the main thread, as it handles
    signals. Raises UserError for what cannot be started and, once the workers have ended,
    KeyboardInterrupt for Ctrl-C and SystemExit (128 + signal) for SIGTERM and SIGHUP.
    """
    check(command, workers)
    env = dict(os.environ if env is None else env)
    threads = env["OMP_NUM_THREADS"] = env.get("OMP_NUM_THREADS") or str(threads_each(workers))
    screen, events, team = Screen(quiet), queue.SimpleQueue(), []
    reserved = contextlib.nullcontext(place.port) if place.port else reserved_port()
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved)
        screen.line(f"cluster.launch: workers: {workers}, port: {port}, threads each: {threads}")
        template = place.template if place.template and place.template.ready(env) else None
        stack.enter_context(_signals_to(events.put))
        flags = f"--world_size {workers}"
        if not any(word.startswith("--init_method") for word in command):
            flags = f"--master_ip {place.master_ip} --master_port {port} {flags}"
        try:
            for rank in range(workers):
                script = [*command, *flags.split(), "--local_rank", str(rank)]
                if template:
                    team.append(start(script, rank, env, quiet, template.fork))
                else:
                    script = [*place.prefix(rank), place.python, "-u", *script]
                    team.append(start(script, rank, env, quiet))
            on_start(team)
            attendants = [thread for w in team for thread in attend(w, screen, events.put)]
            stopped = _supervise(team, events)
            for thread in attendants:
                thread.join(2)  # a grandchild in another session may keep a pipe open
        finally:
            for worker in team:
                if worker.process.poll() is None:
                    signal_group(worker, signal.SIGKILL)
    result = Result(team)
    if result.first:
        screen.line(f"cluster.launch: {result.summary(shown=not quiet)}")
    if stopped:
        screen.line(f"cluster.launch: {stopped.name}: all workers were stopped")
        raise KeyboardInterrupt if stopped == signal.SIGINT else SystemExit(128 + stopped)
    return result


def launch_again(restarts: int, command: list[str], workers: int, **options) -> Result:
    """`launch`; after a failure again, from the newest checkpoint, up to `restarts` times."""
    result = launch(command, workers, **options)
    for number in range(1, restarts + 1):
        if result.code in (0, BAD_USAGE):
            break
        text = f"cluster.launch: restart {number} of {restarts}, from the newest checkpoint"
        print(text, file=sys.stderr, flush=True)
        result = launch([*command, "--resume"], workers, **options)
    return result


def check(command: list[str], workers: int) -> None:
    """Raise UserError unless there are workers to start and a Python script to run."""
    if workers < 1:
        raise UserError(f"--workers {workers}: must be 1 or more")
    if not command:
        raise UserError("no script given: add its path after --workers, e.g. task2a/run_glue.py")
    script = Path(command[0])
    if not script.exists():
        raise UserError(f"there is no script {script} in {Path.cwd()}: give the path of one")
    if not script.is_file():
        raise UserError(f"{script} is not a file: name the script in it, as {script}/run_glue.py")
    if script.suffix != ".py":
        raise UserError(f"{script} is not a .py file: give the path of a Python script")


def threads_each(workers: int) -> int:
    """How many threads each of so many workers can have on this machine's cores."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, cores // workers)


@contextlib.contextmanager
def _signals_to(put: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Hand the signals that end a run to `put`; ignored ones (nohup's SIGHUP) stay ignored."""
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, lambda number, _: put(signal.Signals(number)))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _supervise(team: list[Worker], events: queue.SimpleQueue) -> signal.Signals | None:
    """Wait until all have ended, ending them after a failure or a signal; return that signal."""
    alive, stopped, deadline = set(team), None, None
    signals = itertools.chain([signal.SIGTERM], itertools.repeat(signal.SIGKILL))
    while alive:
        try:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            event = events.get(timeout=left)
        except queue.Empty:
            number, deadline = next(signals), time.monotonic() + GRACE_SECONDS
            for worker in alive:
                worker.sent = number
                signal_group(worker, number)
            continue
        if isinstance(event, signal.Signals):
            stopped, deadline = stopped or event, time.monotonic()
        else:
            alive.remove(event)
            if event.code and deadline is None:
                deadline = time.monotonic() + GRACE_SECONDS
    return stopped


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code: 2 for bad usage, 130 for Ctrl-C."""
    parser = Parser(usage=f"{program()} {USAGE}", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--workers", type=int, required=True, help="how many")
    parser.add_argument("--restarts", type=int, default=0, help="after failures (default: 0)")
    parser.add_argument("--spawn", action="store_true", help="load PyTorch in every worker")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="SCRIPT and its arguments")
    try:
        args = parser.parse_args(argv)
        with Template() as template:
            place = Place(template=None if args.spawn else template)
            return launch_again(args.restarts, args.command, args.workers, place=place).code
    except UserError as error:
        print(f"cluster.launch: {error}", file=sys.stderr)
        return BAD_USAGE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
