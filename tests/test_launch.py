"""The launcher, with real processes: puppets, which do what a test asks of them over a socket."""

import contextlib
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import cluster.ports
import cluster.screen
from cluster.launch import THIS_MACHINE, launch
from cluster.ports import PORTS, free_port, reserved_port
from common.errors import UserError
from tests.workers import marked

import psutil
import pytest

ROOT = Path(__file__).parents[1]
DEADLINE = 60  # seconds for anything that a test waits for
FORKING_CLI = [sys.executable, "-m", "cluster.launch", "--workers"]
CLI = [*FORKING_CLI[:-1], "--spawn", "--workers"]  # which starts sooner

PUPPET = """
import os, signal, socket, subprocess, sys, threading
rank = int(sys.argv[-1])
strings = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
strings.sendall(f"{rank} {os.getpid()}\\n".encode())
for order in strings.makefile():
    exec(order)
    strings.sendall(b"done\\n")
"""
GRANDCHILD = (  # it ignores SIGTERM, and reports so before it sleeps
    "child = subprocess.Popen([sys.executable, '-c', 'import signal, time; "
    "signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)'], "
    "stdout=subprocess.PIPE); child.stdout.readline()"
)
IGNORE_SIGTERM = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


class Puppet:
    def __init__(self, connection: socket.socket) -> None:
        self.strings = connection.makefile("rw")
        self.rank, self.pid = map(int, self.strings.readline().split())
        self.process = psutil.Process(self.pid)

    def order(self, order: str) -> None:
        self.strings.write(order + "\n")
        self.strings.flush()

    def does(self, order: str) -> None:
        """Return when it has done it."""
        self.order(order)
        assert self.strings.readline() == "done\n"

    def ends(self, order: str) -> None:
        """Return when it has ended of it."""
        self.order(order)
        self.process.wait(DEADLINE)


class Stage:
    """Launchers and their puppets; all their processes carry a mark, so none is overlooked."""

    def __init__(self, folder: Path) -> None:
        self.env = {**os.environ, "LAUNCH_TEST": str(folder), "PYTHONUNBUFFERED": ""}
        self.script = folder / "puppet.py"
        self.script.write_text(PUPPET)
        self.server = socket.create_server(("127.0.0.1", 0), backlog=32)
        self.server.settimeout(DEADLINE)
        self.launchers, self.connections = [], []

    def start(self, workers: int, *, cli=CLI, **streams) -> tuple[subprocess.Popen, list[Puppet]]:
        """A launcher, and its puppets by rank."""
        port = str(self.server.getsockname()[1])
        command = [*cli, str(workers), str(self.script), port]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        launcher = subprocess.Popen(
            command, cwd=ROOT, env=self.env, text=True, preexec_fn=heed_signals, **pipes
        )
        self.launchers.append(launcher)
        puppets = []
        for _ in range(workers):
            self.connections.append(self.server.accept()[0])
            self.connections[-1].settimeout(DEADLINE)
            puppets.append(Puppet(self.connections[-1]))
        return launcher, sorted(puppets, key=lambda puppet: puppet.rank)

    def left(self) -> list[psutil.Process]:
        """The processes with the mark that are not over."""
        return marked("LAUNCH_TEST", self.env["LAUNCH_TEST"])

    def is_empty(self) -> bool:
        """Whether no process is left, but for one that is just dying of a signal."""
        psutil.wait_procs(self.left(), timeout=5)
        return not self.left()

    def close(self) -> None:
        while remaining := self.left():
            for process in remaining:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(remaining, timeout=1)
        for launcher in self.launchers:
            launcher.communicate()
        for resource in [*self.connections, self.server]:
            resource.close()


def heed_signals() -> None:
    """Undo what a shell did that started pytest in the background."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def stage(tmp_path):
    stage = Stage(tmp_path)
    yield stage
    stage.close()


def with_grace(seconds: float) -> list[str]:
    """The launcher with less patience than the command line's."""
    code = "import sys, cluster.launch as c; n, *command = sys.argv[1:]; "
    code += f"c.GRACE_SECONDS = {seconds}; sys.exit(c.launch(command, int(n)).code)"
    return [sys.executable, "-c", code]


def read_until(fd: int, wanted: str) -> str:
    """What comes out of a descriptor, until it holds `wanted`."""
    text, deadline = "", time.monotonic() + DEADLINE
    while wanted not in text:
        assert select.select([fd], [], [], deadline - time.monotonic())[0], f"only {text!r}"
        text += os.read(fd, 65536).decode()
    return text


def script(folder: Path, text: str) -> list[str]:
    path = folder / "script.py"
    path.write_text(text)
    return [str(path)]


@pytest.fixture(params=["spawned", "forked"])
def place(request):
    """How a launcher in this process gets its workers."""
    return THIS_MACHINE if request.param == "spawned" else request.getfixturevalue("forking")


SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['OMP_NUM_THREADS']]))"


def test_every_worker_gets_its_flags_after_the_scripts_own(tmp_path, place):
    command = [*script(tmp_path, SHOW), "--task_name", "RTE", "-h"]
    result = launch(command, 3, quiet=True, place=place)
    assert result.code == 0
    ports = set()
    for rank, worker in enumerate(result.workers):
        (line,) = worker.stdout
        flags = json.loads(line)[0]
        ports.add(int(flags.pop(6)))
        assert flags[:3] == ["--task_name", "RTE", "-h"]
        assert flags[3:6] == ["--master_ip", "127.0.0.1", "--master_port"]
        assert flags[6:] == ["--world_size", "3", "--local_rank", str(rank)]
    (port,) = ports
    assert port in PORTS


@pytest.mark.parametrize(
    ("workers", "users", "threads"),
    [(1, None, "12"), (3, None, "4"), (5, None, "2"), (2, "7", "7"), (2, "", "6")],
)
def test_usable_cores_are_divided_unless_the_user_did(
    tmp_path, monkeypatch, workers, users, threads
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 99)
    env = {**os.environ, "OMP_NUM_THREADS": users}
    if users is None:
        del env["OMP_NUM_THREADS"]
    result = launch(script(tmp_path, SHOW), workers, quiet=True, env=env)
    assert [json.loads(worker.stdout[0])[1] for worker in result.workers] == [threads] * workers


def test_more_workers_than_cores_get_a_thread_each(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    result = launch(script(tmp_path, SHOW), 3, quiet=True)
    assert [json.loads(worker.stdout[0])[1] for worker in result.workers] == ["1"] * 3


TALK = """
import sys
rank = int(sys.argv[-1])
for stream in (sys.stdout, sys.stderr):
    for i in range(100):
        for part in (f"r{rank} ", f"{stream.name} ", f"{i} ", "x" * 50, "\\n"):
            stream.write(part)  # a separate write: the workers' output is not buffered
    stream.write(f"r{rank} has no newline")
"""


def test_lines_come_whole_and_behind_the_rank_of_all_but_rank_0(stage):
    launcher, puppets = stage.start(3)
    for puppet in puppets:
        puppet.order(f"exec({TALK!r}); sys.exit(0)")
    out, errors = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 0
    start, _, errors = errors.partition("\n")
    assert re.search(r"workers: 3, port: \d+, threads each: \d+$", start)
    for stream, text in {"stdout": out, "stderr": errors}.items():
        shown = text.splitlines()
        for rank, prefix in enumerate(["", "[rank 1] ", "[rank 2] "]):
            expected = [f"{prefix}r{rank} <{stream}> {i} {'x' * 50}" for i in range(100)]
            expected.append(f"{prefix}r{rank} has no newline")
            assert [line for line in shown if f"r{rank} " in line] == expected
        assert len(shown) == 303


def test_a_line_that_rank_0_writes_in_pieces_is_shown_in_one():
    source, sink = os.pipe()
    shown = []

    def show(chunk: bytes) -> None:
        if not shown:
            os.write(sink, b"back\n")
            os.close(sink)
        shown.append(chunk)

    os.write(sink, b"first\nTrace")
    cluster.screen.relay_live(os.fdopen(source, "rb", buffering=0), [], show)
    assert [chunk for chunk in shown if chunk] == [b"first\n", b"Traceback\n"]


def test_a_run_in_process_can_be_quiet_and_keeps_all_output(tmp_path, capfd, place):
    result = launch(script(tmp_path, TALK), 2, quiet=True, place=place)
    assert capfd.readouterr() == ("", "")
    for worker in result.workers:
        assert len(worker.stdout) == len(worker.stderr) == 101
        assert worker.stderr[-1] == f"r{worker.rank} has no newline"


def test_the_first_to_fail_is_named_and_the_others_have_time_to_say_so(stage):
    launcher, puppets = stage.start(4)
    puppets[2].ends("raise ValueError('the cause')")
    puppets[0].ends("sys.exit('lost rank 2')")
    puppets[1].ends("sys.exit(4)")
    puppets[3].ends("sys.exit(0)")
    summary = launcher.communicate(timeout=DEADLINE)[1].partition("rank 2 failed first")[2]
    assert launcher.returncode == 1
    first, others = summary.split("rank 0, +")
    assert re.match(r", after [\d.]+ s: exit code 1\n", first)
    assert first.endswith("ValueError: the cause\n  ")
    assert re.fullmatch(
        r"[\d.]+ s: exit code 1\n      lost rank 2\n"
        r"  rank 1, \+[\d.]+ s: exit code 4\n"
        r"  rank 3, \+[\d.]+ s: exit code 0\n",
        others,
    )


def test_a_missing_part_that_all_workers_reach_is_reported_once(stage):
    launcher, puppets = stage.start(3)
    for puppet in puppets:
        puppet.ends("sys.exit('task2a/run_glue.py:18: TODO(task2a): gather them')")
    errors = launcher.communicate(timeout=DEADLINE)[1]
    assert errors.count("TODO(") == 1
    assert re.search(r"all 3 workers failed alike, after [\d.]+ s: exit code 1\n$", errors)


def test_a_missing_part_that_one_worker_reaches_is_reported_by_the_summary(stage):
    launcher, puppets = stage.start(2)
    puppets[1].ends("sys.exit('task2a/run_glue.py:18: TODO(task2a): gather them')")
    puppets[0].ends("sys.exit('lost rank 1')")
    errors = launcher.communicate(timeout=DEADLINE)[1]
    assert errors.count("TODO(") == 1
    assert re.search(r"rank 1 failed first, .*\n      task2a/run_glue.py:18: TODO", errors)


def test_the_exit_code_is_that_of_the_first_failure(stage):
    launcher, puppets = stage.start(2)
    puppets[1].ends("sys.exit(7)")
    puppets[0].ends("sys.exit(3)")
    assert launcher.wait(DEADLINE) == 7


def test_a_signal_that_ends_a_worker_is_named(stage):
    launcher, (only,) = stage.start(1)
    only.process.kill()
    assert "rank 0 failed first, after" in (errors := launcher.communicate(timeout=DEADLINE)[1])
    assert ": SIGKILL" in errors
    assert launcher.returncode == 128 + signal.SIGKILL


def test_after_a_failure_the_stubborn_are_ended_and_then_killed(stage):
    launcher, puppets = stage.start(3, cli=with_grace(0.3))
    puppets[0].does(IGNORE_SIGTERM)
    puppets[0].does(GRANDCHILD)
    puppets[1].ends("sys.exit(5)")
    errors = launcher.communicate(timeout=DEADLINE)[1]
    assert "rank 1 failed first" in errors
    assert re.search(r"rank 0, .*: SIGKILL \(the launcher sent SIGKILL\)", errors)
    assert re.search(r"rank 2, .*: SIGTERM \(the launcher sent SIGTERM\)", errors)
    assert launcher.returncode == 5
    assert stage.is_empty()


def test_a_workers_children_end_with_it(stage):
    launcher, (only,) = stage.start(1, cli=with_grace(0.1))
    only.does(GRANDCHILD)
    only.ends("sys.exit(0)")
    assert launcher.wait(DEADLINE) == 0
    assert stage.is_empty()


def test_when_a_worker_cannot_start_those_before_it_are_ended(tmp_path, monkeypatch):
    started, start = [], cluster.launch.start

    def start_one(*args):
        if started:
            raise OSError("no more processes")
        started.append(start(*args))
        return started[0]

    monkeypatch.setattr(cluster.launch, "start", start_one)
    with pytest.raises(OSError, match="no more"):
        launch(script(tmp_path, "import time; time.sleep(100)"), 2, quiet=True)
    assert started[0].process.wait(DEADLINE) == -signal.SIGKILL
    for pipe in (started[0].process.stdout, started[0].process.stderr):
        pipe.close()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("cli", [CLI, pytest.param(FORKING_CLI, marks=pytest.mark.slow)])
def test_a_signal_to_the_launcher_ends_everything(stage, number, code, cli):
    launcher, puppets = stage.start(2, cli=cli)
    for puppet in puppets:
        puppet.does(GRANDCHILD)
    launcher.send_signal(number)
    errors = launcher.communicate(timeout=DEADLINE)[1].splitlines()
    assert launcher.returncode == code
    assert len(errors) == 2, errors  # the line at the start and this one
    assert number.name in errors[1]
    assert stage.is_empty()


def test_a_second_ctrl_c_kills(stage):
    launcher, (only,) = stage.start(1, cli=with_grace(1000))
    only.does("signal.signal(signal.SIGTERM, lambda *_: strings.sendall(b'not yet\\n'))")
    launcher.send_signal(signal.SIGINT)
    assert only.strings.readline() == "not yet\n"
    launcher.send_signal(signal.SIGINT)
    only.process.wait(DEADLINE)
    launcher.wait(DEADLINE)
    assert stage.is_empty()


def test_an_ignored_signal_stays_ignored(stage):
    nohup = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); " + with_grace(1)[2]
    launcher, (only,) = stage.start(1, cli=[sys.executable, "-c", nohup])
    launcher.send_signal(signal.SIGHUP)
    only.does("pass")
    only.ends("sys.exit(0)")
    assert launcher.wait(DEADLINE) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
@pytest.mark.parametrize("cli", [CLI, FORKING_CLI])
def test_workers_end_with_a_killed_launcher(stage, cli):
    launcher, _ = stage.start(3, cli=cli)
    launcher.kill()
    assert stage.is_empty()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_a_worker_whose_launcher_is_gone_already_does_not_start():
    code = "from cluster.processes import die_with; die_with(launcher=0); print('started')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


TRACE = ["Traceback (most recent call last):", '  File "FILE", line 4, in <module>']
ENDINGS = {  # of rank 1 -> the launcher's exit code, and rank 1's stderr
    "sys.exit(7)": (7, []),
    "sys.exit('a reason')": (1, ["a reason"]),
    "os.kill(os.getpid(), 9)": (137, []),
    "os._exit(3)": (3, []),
    "raise ValueError('x')": (1, [*TRACE, "    raise ValueError('x')", "ValueError: x"]),
    "atexit.register(print, 'at the end', file=sys.stderr)": (0, ["at the end"]),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_worker_ends_as_its_script_does(tmp_path, place, ending):
    text = f"import atexit, os, sys\nif sys.argv[-1] == '0':\n    sys.exit(0)\n{ending}\n"
    command = script(tmp_path, text)
    result = launch(command, 2, quiet=True, place=place)
    code, errors = ENDINGS[ending]
    assert result.code == code
    assert list(result.workers[1].stderr) == [e.replace("FILE", command[0]) for e in errors]


STATE = """
import json, os, sys, random, multiprocessing, threading
import numpy, torch
drawn = [random.random(), numpy.random.random()]
state = [os.environ["OMP_NUM_THREADS"], torch.get_num_threads()]
state += [__name__, __file__, os.getcwd(), sys.path[0]]
state += [threading.active_count(), multiprocessing.current_process().name]
state += [sorted(n for n in sys.modules if n.partition(".")[0] in ("common", "cluster", "grading"))]
print(json.dumps([drawn, state]))
"""


def test_a_forked_worker_is_as_a_spawned_one(tmp_path, monkeypatch, forking):
    monkeypatch.chdir(tmp_path)
    shown = []
    for place in (THIS_MACHINE, forking):
        env = {**os.environ, "OMP_NUM_THREADS": "3"}
        result = launch(script(tmp_path, STATE), 2, quiet=True, place=place, env=env)
        assert result.code == 0, result.summary()
        shown.append([json.loads(worker.stdout[0]) for worker in result.workers])
        (drawn, state), (others, _) = shown[-1]
        assert not set(drawn) & set(others)
        assert state[0] == "3"
    assert [state for _, state in shown[0]] == [state for _, state in shown[1]]


def test_other_variables_are_not_for_forked_workers(tmp_path, forking):
    env = {**os.environ, "OTHER": "value"}
    text = "import os, sys; sys.exit('torch' in sys.modules or os.environ['OTHER'] != 'value')"
    assert launch(script(tmp_path, text), 1, quiet=True, place=forking, env=env).code == 0


@pytest.mark.slow
def test_libraries_that_cannot_be_loaded_are_said(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('half installed')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [*FORKING_CLI, "1", *script(tmp_path, "print(1)")]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == 2
    assert "ImportError: half installed" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("run `make setup`")


def test_two_launchers_at_once(stage):
    runs = [stage.start(2), stage.start(2)]
    for _, puppets in runs:
        puppets[0].does("at = sys.argv.index('--master_port') + 1")
        puppets[0].does("server = socket.create_server(('127.0.0.1', int(sys.argv[at])))")
    for launcher, puppets in runs:
        for puppet in puppets:
            puppet.ends("sys.exit(0)")
        assert launcher.wait(DEADLINE) == 0


def test_a_port_is_given_to_one_launcher_at_a_time_and_never_when_taken(monkeypatch):
    first, second = free_port(), free_port()
    while first == second:
        second = free_port()
    monkeypatch.setattr(cluster.ports, "PORTS", [first, second])
    with reserved_port() as one, reserved_port() as other:
        assert {one, other} == {first, second}
        with pytest.raises(UserError, match="no free port"):
            free_port()
    with socket.create_server(("127.0.0.1", first)):
        assert [free_port() for _ in range(8)] == [second] * 8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workers", "0", "x.py"], ["--workers 0", "1 or more"]),
        (["--workers", "-3", "x.py"], ["-3", "1 or more"]),
        (["--workers", "four", "x.py"], ["four", "--workers N SCRIPT"]),
        (["--workers", "2"], ["no script", "task2a/run_glue.py"]),
        (["x.py"], ["--workers", "--workers N SCRIPT"]),
        (["--workers", "2", "--wrong", "x.py"], ["--wrong", "--workers N SCRIPT"]),
        (["--workers", "2", "missing.py"], ["missing.py", "give the path"]),
        (["--workers", "2", "tests"], ["tests", "name the script in it"]),
        (["--workers", "2", "pyproject.toml"], ["pyproject.toml", "Python script"]),
    ],
)
def test_bad_usage_takes_one_line_that_names_value_and_fix(arguments, words, monkeypatch, capfd):
    monkeypatch.chdir(ROOT)
    code = cluster.launch.main(arguments)
    out, err = capfd.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err
    for word in words:
        assert word in err


def test_an_impossible_command_is_a_users_error_in_process(tmp_path):
    with pytest.raises(UserError, match="no script"):
        launch([str(tmp_path / "missing.py")], 1)


BAR = "[sys.stderr.write('\\r 50%') for _ in iter(lambda: stop.wait(0.01), True)]"


@pytest.mark.parametrize("cli", [CLI, pytest.param(FORKING_CLI, marks=pytest.mark.slow)])
@pytest.mark.parametrize("terminal", [True, False])
def test_rank_0_has_the_terminal_and_its_bar_is_live(stage, terminal, cli):
    pty = pytest.importorskip("pty")
    fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
    ours, theirs = pty.openpty() if terminal else os.pipe()
    if terminal:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 33, 87, 0, 0))
    launcher, puppets = stage.start(2, cli=cli, stdout=theirs, stderr=theirs)
    os.close(theirs)
    puppets[0].does("ttys = [os.isatty(1), os.isatty(2)]")
    puppets[0].does("size = os.get_terminal_size(2).columns if ttys[1] else None")
    puppets[0].does("print(ttys, size)")
    read_until(ours, "[True, True] 87" if terminal else "[False, False] None")
    puppets[0].does("stop = threading.Event()")
    puppets[0].does(f"bar = threading.Thread(target=lambda: {BAR})")
    puppets[0].does("bar.start()")
    read_until(ours, " 50%")  # though the line has no end yet
    puppets[0].does("stop.set(); bar.join()")
    puppets[0].does("print('(Pdb) ', end='', file=sys.stderr)")
    read_until(ours, "(Pdb) ")
    puppets[1].does("print('whole')")
    assert re.search(
        r"\n\[rank 1\] whole\r*\n", read_until(ours, "whole\r" if terminal else "le\n")
    )
    puppets[0].ends("raise ValueError('the cause')")
    puppets[1].ends("sys.exit(0)")
    summary = read_until(ours, "rank 1, +").partition("failed first")[2]
    assert "ValueError: the cause" in summary
    assert launcher.wait(DEADLINE) == 1
    os.close(ours)
