"""A submission's processes: what they can reach, what they may use, and that they all end."""

import fcntl
import os
import signal
import socket
import sys
from types import SimpleNamespace

from grading.calls import Calls
from grading.checks.exit_causes import explain_end
from grading.checks.observation import Observation
from grading.checks.reader import read_rank
from grading.mapping import Mapping
from grading.plan import Limits, Run
from grading.sandbox.sandbox import in_job, run_workers
from tests.workers import ROOT

import pytest

isolated = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux"
)


def run_scripts(folder, *scripts, **limits):
    """Run a script per rank in a separate submission folder; returns the Observation."""
    own = folder / "class" / "one"
    own.mkdir(parents=True)
    for rank, text in enumerate(scripts):
        (own / f"script{rank}.py").write_text(text)
    commands = [[f"script{rank}.py"] for rank in range(len(scripts))]
    bounds = Limits(**{"seconds": 60.0, "idle": 30.0, "grace": 1.0, **limits})
    observed = folder / "observed"
    ended = run_workers(Run(own, commands, observed, hidden=(own.parent,), limits=bounds))
    return Observation([read_rank(observed, r) for r in range(len(scripts))], ended, own), bounds


def test_a_script_is_run_as_python_would_run_it(tmp_path):
    text = """
import os, sys
print(__name__, sys.argv, os.path.basename(os.getcwd()), sys.path[0] == os.getcwd())
import atexit
atexit.register(print, "at exit")
try:
    import common
    print("the kit's own modules are there")
except ImportError:
    print("no common")
print(sorted(name for name in os.environ if "GRAD" in name.upper() or "PYTEST" in name))
sys.exit(3)
"""
    seen, _ = run_scripts(tmp_path, text)
    lines = seen.ranks[0].out.splitlines()
    assert seen.ended.codes == [3]
    assert lines[0] == f"__main__ ['{seen.root}/script0.py'] one True"
    assert lines[1:] == ["no common", "[]", "at exit"]


@isolated
def test_it_sees_neither_the_kit_nor_others_nor_the_network(tmp_path):
    other = tmp_path / "class" / "other"
    text = f"""
import os, socket
for path in ({str(ROOT / "staff" / "reference.py")!r}, {str(ROOT / "task2a" / "run_glue.py")!r},
             {str(other / "secret.py")!r}, {str(tmp_path / "observed" / "0.events")!r}):
    try:
        print(open(path).read())
    except OSError as error:
        print(type(error).__name__)
try:
    socket.create_connection(("127.0.0.1", PORT), timeout=5)
    print("connected")
except OSError as error:
    print(type(error).__name__)
print(os.getuid() >= 61000, os.getgroups())
try:
    os.setuid(0)
    print("root again")
except OSError as error:
    print(type(error).__name__)
open("own", "w").write("it may write here")
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        other.mkdir(parents=True)
        (other / "secret.py").write_text("another student's work")
        seen, _ = run_scripts(tmp_path, text.replace("PORT", str(server.getsockname()[1])))
    out = seen.ranks[0].out.splitlines()
    assert out[:4] == ["FileNotFoundError"] * 4, out
    assert out[4:] == ["ConnectionRefusedError", "True []", "PermissionError"]
    assert seen.ended.codes == [0]
    assert (seen.root / "own").read_text() == "it may write here"


def test_without_namespaces_it_runs_and_the_report_says_what_is_missing(tmp_path):
    own = tmp_path / "submission"
    own.mkdir()
    (own / "script.py").write_text("print('ran')\n")
    observed = tmp_path / "observed"
    ended = in_job(Run(own, [["script.py"]], observed), contained=False)
    assert (ended.codes, (observed / "0.out").read_text()) == ([0], "ran\n")
    held, _, missing = ended.isolation.partition("; NOT: ")
    assert "limits on time, memory and files" in held
    for words in ("no network", "the kit, its results", "other processes hidden"):
        assert words in missing
        assert words not in held


def test_no_process_outlives_the_run(tmp_path):
    daemon = """
import fcntl, os, time
lock = open("lock", "w")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        fcntl.flock(lock, fcntl.LOCK_EX)
        open("locked", "w").close()
        time.sleep(600)
    os._exit(0)
while not os.path.exists("locked"):
    time.sleep(0.01)
"""
    seen, _ = run_scripts(tmp_path, daemon)
    assert seen.ended.codes == [0]
    with (seen.root / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the daemon lives


def test_ranks_that_wait_forever_are_killed_and_located(tmp_path):
    sleeper = "import time\n\ndef wait():\n    time.sleep(600)\n\nwait()\n"
    seen, limits = run_scripts(tmp_path, sleeper, "pass\n", idle=1.0)
    assert (seen.ended.reason, seen.ended.codes) == ("idle", [None, 0])
    got, where, cause = explain_end(seen, limits)
    assert got == "all ranks were idle for 1 s and were killed"
    assert "rank 0: script0.py:4 in wait" in where
    assert cause.name == "hang"


def test_one_that_never_stops_ends_at_the_deadline(tmp_path):
    seen, limits = run_scripts(tmp_path, "while True:\n    pass\n", seconds=2.0)
    assert seen.ended.reason == "time"
    assert explain_end(seen, limits)[2].name == "hang"


def test_memory_is_limited(tmp_path):
    hog = "import time\nx = []\nwhile True:\n    x.append(bytearray(10**7))\n    time.sleep(0.02)\n"
    seen, limits = run_scripts(tmp_path, hog, memory=150 * 2**20)
    assert seen.ended.reason == "memory"
    assert explain_end(seen, limits)[2].name == "memory"


def test_output_is_limited(tmp_path):
    seen, _ = run_scripts(tmp_path, "while True:\n    print('x' * 10**5)\n", file=2**20)
    assert seen.ended.codes != [0]
    assert (tmp_path / "observed" / "0.out").stat().st_size <= 2**20


def test_a_dead_rank_is_named(tmp_path):
    killed = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    seen, limits = run_scripts(tmp_path, "import time\ntime.sleep(600)\n", killed)
    assert seen.ended.codes == [None, -signal.SIGKILL]
    got, where, cause = explain_end(seen, limits)
    assert got == "rank 1 died of SIGKILL"
    assert where.startswith("rank 1")
    assert cause.name == "dead_rank"


def test_a_broken_record_is_no_record(tmp_path):
    # The record's descriptor is open in the worker: whatever is written there, nothing is believed.
    forge = """
import os
for descriptor in range(3, 40):
    try:
        os.write(descriptor, b'{"event": "step", "gradients": 1}\\n{"event": "__init__"}\\n')
    except OSError:
        pass
"""
    seen, _ = run_scripts(tmp_path, forge)
    assert seen.ranks[0].broken
    assert not seen.ranks[0].steps


def test_help_is_read_from_a_script_that_first_needs_its_place_among_the_workers(tmp_path):
    (tmp_path / "own").mkdir()
    text = "import argparse, os\nprint(os.environ['RANK'], os.environ['WORLD_SIZE'])\n"
    text += "argparse.ArgumentParser(prog='train.py').parse_args()\n"
    (tmp_path / "own" / "train.py").write_text(text)
    session = SimpleNamespace(folder=tmp_path)
    printed = Calls(tmp_path / "own", Mapping(auto=True), session).help_of("train.py")
    assert printed.startswith("0 1\nusage: train.py")
