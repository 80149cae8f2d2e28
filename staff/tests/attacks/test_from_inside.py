"""Scripts that try to reach out of the sandbox, a rank each in one run: none gains anything."""

import os
import pickle
import socket
import subprocess
import sys
import zlib

from grading.plan import Limits, Run
from staff.tests.attacks.from_inside import INSIDE, PRELUDE
from tests.workers import ROOT

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0, reason="the sandbox needs root on Linux"
    ),
]
RUN = """if 1:
    import pickle, sys
    from grading.sandbox.sandbox import run_workers
    run = pickle.load(sys.stdin.buffer)
    pickle.dump(run_workers(run), open(sys.argv[1], "wb"))
"""
DEVICES = "null zero full random urandom shm fd stdin stdout stderr"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(how the run of all attacks ended, attack -> what it printed)."""
    top = tmp_path_factory.mktemp("grading")
    own, observed, model = top / "class" / "ann", top / "results", top / "model"
    for path in (own, top / "class" / "bob" / "task1", top / "clone", model):
        path.mkdir(parents=True)
    (top / "class" / "bob" / "task1" / "run_glue.py").write_text("a classmate's work")
    (top / "clone" / "solution.py").write_text("the solution")
    (model / "config.json").write_text("{}")
    top.chmod(0o755)
    shown = os.urandom(8).hex()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        abstract.bind("\0" + shown)
        abstract.listen()
        words = {"CLASS": top / "class", "RESULTS": observed, "KIT": ROOT, "CLONE": top / "clone"}
        words |= {"MODEL": model, "PORT": server.getsockname()[1], "ABSTRACT": shown}
        words |= {"ALLOWED": repr(DEVICES), "DIGEST": zlib.crc32(b"students")}
        for name, (_, script) in INSIDE.items():
            for word, value in words.items():
                script = script.replace(word, str(value))
            (own / f"{name}.py").write_text(PRELUDE.replace("ATTACK", repr(script)))
        commands = [[f"{name}.py"] for name in INSIDE]
        hidden = (own.parent, top / "clone")
        limits = Limits(idle=60.0, grace=60.0)
        run = Run(own, commands, observed, readable=(model,), hidden=hidden, limits=limits)
        environment = {**os.environ, "COURSE_SECRET": "not-for-students"}  # of another grader
        command = [sys.executable, "-c", RUN, str(top / "ended")]
        subprocess.run(
            command, input=pickle.dumps(run), env=environment, cwd=ROOT, check=True, timeout=280
        )
        ended = pickle.loads((top / "ended").read_bytes())
    printed = [(observed / f"{rank}.out").read_text() for rank in range(len(INSIDE))]
    return ended, dict(zip(INSIDE, printed, strict=True))


@pytest.mark.parametrize("attack", INSIDE)
def test_it_gains_nothing(ran, attack):
    printed = ran[1][attack]
    assert "GAINED" not in printed, f"{INSIDE[attack][0]}: {printed}"
    assert "attack over" in printed  # and was not merely broken


def test_the_report_states_what_was_verified(ran):
    assert ran[0].isolation.startswith("verified from inside: a separate user, no network")
    assert "NOT" not in ran[0].isolation
    assert ran[0].codes == [0] * len(INSIDE)


def test_there_are_sixty_attacks_here_and_in_the_other_files():
    from staff.tests.attacks.disruptions import DISRUPTIONS
    from staff.tests.attacks.test_forgeries import FORGERIES
    from staff.tests.attacks.test_handed_in import ARCHIVES, FOLDERS, MAPPINGS

    tables = (INSIDE, DISRUPTIONS, FORGERIES, ARCHIVES, FOLDERS, MAPPINGS)
    assert sum(map(len, tables)) >= 60
