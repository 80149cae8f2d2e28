"""Runs a submission's workers: shut in, limited, and every one of them ended at the deadline."""

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time

from grading.plan import STACK_SIGNAL, Ended
from grading.worker.isolation import shut_in

import psutil

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["grading.worker.preload"])
IDLE = 0.02  # of a core: a worker that uses less (for signs of life) does nothing
BEAT = 0.1  # seconds between looks at the workers


def run(what):
    """Run the workers of `what` to their end; returns Ended. None of them outlives this call."""
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=job, args=(what, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        ended = ours.recv()
    except EOFError:
        raise RuntimeError(f"the job ended without a word (exit code {process.exitcode})") from None
    finally:
        ours.close()  # the job sees this, and ends all workers
        process.join()
    if isinstance(ended, str):
        raise RuntimeError(ended)
    return ended


def job(what, talk):
    """In a process of its own: start the workers, watch them, and tell how they ended."""
    from grading.worker import worker  # loaded already by the fork server, which alone has torch

    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    workers = []
    try:
        what.observed.mkdir(parents=True, exist_ok=True, mode=0o700)
        files = [open_files(what.observed, rank) for rank in range(len(what.commands))]
        hidden = (what.observed, *what.hidden)
        what.user, isolation = shut_in(what.folder, what.readable, hidden, 2**30)
        before = loopback_bytes()
        for command, descriptors in zip(what.commands, files, strict=True):
            workers.append(start(worker.work, command, what, *descriptors))
        ended = watch(what, workers, talk, [descriptors[1] for descriptors in files])
        ended.isolation, ended.loopback = isolation, loopback_bytes() - before
    except BaseException as error:
        ended = f"{type(error).__name__}: {error}"
    finally:
        end_all()
    with contextlib.suppress(OSError):
        talk.send(ended)


def open_files(folder, rank):
    """Descriptors for a worker's events, stacks, stdout and stderr."""
    flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC
    names = (f"{rank}.events", None, f"{rank}.out", f"{rank}.err")
    # A worker that holds the file may read nothing with it; the stack is read back by the job.
    return [os.open(folder / name, flags, 0o600) if name else temporary() for name in names]


def temporary():
    """A descriptor of a file without a name."""
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def start(work, *arguments):
    """Fork a process that does `work`, and never returns from it; returns its process id."""
    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)
        work(*arguments)
    return pid


def watch(what, workers, talk, stacks):
    """Wait for the workers' end, or for a reason to end them."""
    limits, start = what.limits, time.monotonic()
    ended = Ended([None] * len(workers))
    base, used, changed, failed = psutil.Process().memory_info().rss, 0.0, start, None
    while not ended.reason:
        reap(workers, ended)
        if None not in ended.codes:
            return ended
        now = time.monotonic()
        seconds, memory = usage(base)
        if abs(seconds - used) > IDLE * limits.idle * len(workers):
            used, changed = seconds, now
        if ended.first is not None and failed is None:
            failed = now
        if now - start > limits.seconds:
            ended.reason = "time"
        elif memory > limits.memory * len(workers):
            ended.reason = "memory"
        elif failed and now - failed > limits.grace:
            ended.reason = "grace"
        elif now - changed > limits.idle:
            ended.reason = "idle"
        elif talk.poll(BEAT):
            ended.reason = "interrupted"  # the grader is gone
    ended.stacks = take_stacks(workers, ended, stacks)
    return ended


def reap(workers, ended):
    """Note the exit codes of workers that have ended."""
    for rank, pid in enumerate(workers):
        if ended.codes[rank] is None:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended.codes[rank] = code = os.waitstatus_to_exitcode(status)
                if code and ended.first is None:
                    ended.first = rank


def usage(base):
    """(CPU seconds, bytes of memory beyond `base` each) of all processes of this job."""
    seconds = memory = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system
            memory += max(0, process.memory_info().rss - base)
    return seconds, memory


def take_stacks(workers, ended, stacks):
    """The stack of every worker that still runs, as faulthandler writes it; "" of the others."""
    running = [rank for rank, code in enumerate(ended.codes) if code is None]
    for rank in running:
        os.kill(workers[rank], STACK_SIGNAL)
    deadline = time.monotonic() + 2
    while running and time.monotonic() < deadline:
        time.sleep(BEAT / 4)
        running = [rank for rank in running if os.fstat(stacks[rank]).st_size == 0]
    texts = []
    for descriptor in stacks:
        os.lseek(descriptor, 0, os.SEEK_SET)
        texts.append(os.read(descriptor, 65536).decode("utf-8", "replace"))
    return texts


def loopback_bytes():
    """Bytes that have crossed the loopback interface."""
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    return sum(counters[name].bytes_sent for name in ("lo", "lo0") if name in counters)


def end_all():
    """Kill every process that this job has started, and their children, and wait for them."""
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()
        gone, _ = psutil.wait_procs(children, timeout=1)
        if not gone and all(c.status() == psutil.STATUS_ZOMBIE for c in children if c.is_running()):
            break
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
