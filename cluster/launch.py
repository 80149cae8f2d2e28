"""Start N workers of a script on this machine, and end them together.

    python -m cluster.launch --workers 4 SCRIPT [the script's own arguments ...]

Each worker runs SCRIPT with its arguments and then `--master_ip 127.0.0.1 --master_port P
--world_size N --local_rank R`. Rank 0 has the terminal, so its progress bar is live; lines of the
others come whole, behind `[rank R] `.

The first failure ends the run: the others have GRACE seconds to say whom they lost, then SIGTERM,
and after as long again SIGKILL. Ctrl-C, SIGTERM and SIGHUP end every worker and its children; a
second one kills them. Where the launcher itself is killed (SIGKILL), Linux kills the workers with
it, but not their children. macOS cannot do that: there, end the workers by hand.
"""

import argparse
import contextlib
import ctypes
import functools
import itertools
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.screen import Screen, pseudo_terminal, relay_lines, relay_live
from common.errors import UserError

PORTS = range(20000, 32000)  # below those that kernels choose for outgoing connections
GRACE = 10.0  # seconds
USAGE = "python -m cluster.launch --workers N SCRIPT [ARGUMENTS ...]"
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(eq=False)
class Worker:
    """One process of the run, with its output: every line if quiet, else the last ones."""

    rank: int
    process: subprocess.Popen
    stdout: deque[str]
    stderr: deque[str]
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    sent: signal.Signals | None = None  # the launcher's last signal to it

    @property
    def code(self) -> int | None:
        """Its exit code, or minus the signal that ended it."""
        return self.process.returncode

    def fate(self, last_lines: int) -> str:
        """How it ended and, if it failed, its last lines on stderr."""
        how = f"exit code {self.code}" if self.code >= 0 else signal.Signals(-self.code).name
        how += f" (the launcher sent {self.sent.name})" if self.sent else ""
        errors = [line for line in self.stderr if line.strip()] if self.code else []
        return "\n      ".join([how, *errors[-last_lines:]])


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
        code = self.first.code if self.first else 0
        return code if code >= 0 else 128 - code

    def summary(self) -> str:
        """Who failed first, how, and what became of the others; times in seconds."""
        first = self.first
        if not first:
            return "no worker failed"
        seconds = first.ended - first.started
        lines = [f"rank {first.rank} failed first, after {seconds:.1f} s: {first.fate(5)}"]
        for worker in self.workers:
            if worker is not first:
                seconds = worker.ended - first.ended
                lines.append(f"  rank {worker.rank}, {seconds:+.1f} s: {worker.fate(1)}")
        return "\n".join(lines)


def launch(
    command: list[str],
    workers: int,
    *,
    quiet: bool = False,
    env: Mapping[str, str] | None = None,
    grace: float = GRACE,
    master_ip: str = "127.0.0.1",
    prefix: Callable[[int], list[str]] = lambda _: [],
    started: Callable[[list[Worker]], None] = lambda _: None,
) -> Result:
    """Run a script (`command`: its path and arguments) as so many workers until all have ended.

    `quiet` prints nothing and keeps all output in the result; `env` replaces os.environ; `grace`
    is in seconds; `prefix` gives the command that a rank runs under, for other networks than this
    machine's; `started` is called once all run. Call it from the main thread, as it takes the
    signals. Raises UserError for what
    cannot be started and, once the workers are ended, KeyboardInterrupt for Ctrl-C and SystemExit
    (128 + signal) for SIGTERM and SIGHUP.
    """
    check(command, workers)
    env = dict(os.environ if env is None else env)
    threads = env["OMP_NUM_THREADS"] = env.get("OMP_NUM_THREADS") or str(threads_each(workers))
    screen, events, team = Screen(quiet), queue.SimpleQueue(), []
    with _reserved_port() as port, _signals_to(events.put):
        screen.line(f"cluster.launch: workers: {workers}, port: {port}, threads each: {threads}")
        flags = f"--master_ip {master_ip} --master_port {port} --world_size {workers} --local_rank"
        try:
            for rank in range(workers):
                script = [sys.executable, "-u", *command, *flags.split(), str(rank)]
                team.append(_start([*prefix(rank), *script], rank, env, quiet))
            started(team)
            attendants = [thread for w in team for thread in _attend(w, screen, events.put)]
            stopped = _supervise(team, events, grace)
            for thread in attendants:
                thread.join(2)  # a grandchild in a session of its own may keep a pipe open
        finally:
            for worker in team:
                if worker.process.poll() is None:
                    _signal_group(worker, signal.SIGKILL)
    result = Result(team)
    if result.first:
        screen.line(f"cluster.launch: {result.summary()}")
    if stopped:
        screen.line(f"cluster.launch: {stopped.name}: every worker is ended")
        raise KeyboardInterrupt if stopped == signal.SIGINT else SystemExit(128 + stopped)
    return result


def free_port() -> int:
    """A TCP port that nothing listens on and that no outgoing connection will take."""
    with _reserved_port() as port:
        return port


@contextlib.contextmanager
def _reserved_port() -> Iterator[int]:
    """A free TCP port; its UDP namesake, held meanwhile, keeps other launchers from choosing it."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            try:
                udp.bind(("", port))
                tcp.bind(("", port))
            except OSError:
                continue
            tcp.close()
            yield port
            return
    raise UserError(f"no free port in {PORTS[0]}-{PORTS[-1]}: end some of the programs there")


def check(command: list[str], workers: int) -> None:
    if workers < 1:
        raise UserError(f"--workers {workers}: give 1 or more")
    if not command:
        raise UserError("no script given: name one after --workers, e.g. task2a/run_glue.py")
    script = Path(command[0])
    if not script.exists():
        raise UserError(f"no script {script} in {Path.cwd()}: give the path of one")
    if not script.is_file():
        raise UserError(f"{script} is not a file: name the script in it, as {script}/run_glue.py")
    if script.suffix != ".py":
        raise UserError(f"{script} is not a .py file: give the path of a Python script")


def threads_each(workers: int) -> int:
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, cores // workers)


@contextlib.contextmanager
def _signals_to(put: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Hand the signals that end a run to `put`, but leave the ignored (nohup's SIGHUP) ignored."""
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, lambda number, _: put(signal.Signals(number)))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(command: list[str], rank: int, env: dict[str, str], quiet: bool) -> Worker:
    stdin, stdout, stderr, ours = subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE, None
    if rank == 0 and not quiet:
        stdin = None  # for a debugger
        if os.isatty(2):  # we must read the errors, yet tqdm must see a terminal
            ours, stderr = pseudo_terminal()
            stdout = stderr if os.isatty(1) else stdout  # as one: tqdm.write needs their order
    process = subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=env,
        start_new_session=True,
        preexec_fn=functools.partial(_die_with, os.getpid()) if LIBC else None,
    )
    if ours is not None:
        os.close(stderr)
        process.stderr = os.fdopen(ours, "rb", buffering=0)
    keep = None if quiet else 20
    return Worker(rank, process, deque(maxlen=keep), deque(maxlen=keep))


def _die_with(launcher: int) -> None:
    """In the new worker: be killed when the thread that forked it ends, at once if it has ended."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(1)


def _attend(worker: Worker, screen: Screen, put: Callable) -> list[threading.Thread]:
    """Start the threads that read a worker's output and wait for its end."""
    process, live = worker.process, worker.rank == 0 and not screen.quiet
    show = functools.partial(screen.line, prefix=f"[rank {worker.rank}] " if worker.rank else "")
    jobs = [(_await_end, worker, put)]
    if live:
        jobs.append((relay_live, process.stderr, worker.stderr, screen.write))
    else:
        jobs.append((relay_lines, process.stderr, worker.stderr, show))
    if process.stdout:
        out = functools.partial(show, stream=sys.__stdout__)
        jobs.append((relay_lines, process.stdout, worker.stdout, out))
    threads = [threading.Thread(target=job, args=args, daemon=True) for job, *args in jobs]
    for thread in threads:
        thread.start()
    return threads


def _await_end(worker: Worker, put: Callable[[Worker], None]) -> None:
    """Tell when a worker has ended, and end the children that it left."""
    worker.process.wait()
    worker.ended = time.monotonic()
    put(worker)
    while _signal_group(worker, 0) and time.monotonic() < worker.ended + 1:
        time.sleep(0.05)
    _signal_group(worker, signal.SIGKILL)


def _signal_group(worker: Worker, number: int) -> bool:
    """Signal a worker and its children: whether there are any (macOS refuses where all ended)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker.process.pid, number)
        return True
    return False


def _supervise(
    team: list[Worker], events: queue.SimpleQueue, grace: float
) -> signal.Signals | None:
    """Wait until all have ended, making them after a failure or a signal; return that signal."""
    alive, stopped, deadline = set(team), None, None
    signals = itertools.chain([signal.SIGTERM], itertools.repeat(signal.SIGKILL))
    while alive:
        try:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            event = events.get(timeout=left)
        except queue.Empty:
            number, deadline = next(signals), time.monotonic() + grace
            for worker in alive:
                worker.sent = number
                _signal_group(worker, number)
            continue
        if isinstance(event, signal.Signals):
            stopped, deadline = stopped or event, time.monotonic()
        else:
            alive.remove(event)
            if event.code and deadline is None:
                deadline = time.monotonic() + grace
    return stopped


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code: 2 for bad usage, 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(usage=USAGE, description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.error = _bad_usage
    parser.add_argument("--workers", type=int, required=True, help="how many")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="SCRIPT and its arguments")
    try:
        args = parser.parse_args(argv)
        return launch(args.command, args.workers).code
    except UserError as error:
        print(f"cluster.launch: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _bad_usage(message: str) -> None:
    raise UserError(f"{message}: use {USAGE}")


if __name__ == "__main__":
    sys.exit(main())
