"""Submissions that try to get points without the work: they get none, and the grader runs on."""

import os
import sys
from pathlib import Path

from grading.grader import grade
from grading.sandbox.session import Session

import pytest

pytestmark = pytest.mark.slow
# name -> (what it would gain, task1's script); CANARY is a file outside that no attack may write.
FORGERIES = {
    "ends_well": (
        "an exit code of 0 after an error",
        "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit(1)\n",
    ),
    "forges_a_record": (
        "a record of training that never was",
        """
import json, os
array = ["<f8", [1, 16], "AAAAAAAAAAA=" * 16]
events = [
    {"event": "model", "names": ["w"], "sizes": [1], "ddp": False},
    {"event": "weights", "weights": array, "checksums": [1]},
    *[{"event": "step", "gradients": array, "rate": 1.0, "optimizer": "x", "seconds": 1.0}] * 50,
]
for number in range(3, 64):
    for event in events:
        try:
            os.write(number, json.dumps(event).encode() + b"\\n")
        except OSError:
            break
""",
    ),
    "forges_brackets": (
        "a crash of the grader, on a record nested too deep",
        """
import os
for number in range(3, 64):
    try:
        os.write(number, b'{"event": "model", "names": ' + b"[" * 10**6 + b"\\n")
    except OSError:
        pass
""",
    ),
    "forges_methods": (
        "the reader's own methods",
        """
import os
for number in range(3, 64):
    for name in ("__init__", "__class__", "__delattr__", "trim", "rank"):
        try:
            os.write(number, b'{"event": "%s", "rank": 1}\\n' % name.encode())
        except OSError:
            break
""",
    ),
    "empties_its_record": (
        "a record without its mistakes",
        "import os\nfor number in range(3, 64):\n    try:\n        os.ftruncate(number, 0)\n"
        "    except OSError:\n        pass\n",
    ),
    "silences_the_probe": (
        "a run that is not observed",
        """
import gc
for one in gc.get_objects():
    if type(one).__name__ == "Probe":
        type(one).log = lambda *_, **__: None
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 1.0)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
""",
    ),
    "prints_passed": (
        "points for what it prints",
        "print('passed: task1/runs (25/25)\\x1b[2J\\x1b]0;x\\a<script>alert(1)</script>')\n",
    ),
    "pickles": (
        "code that the grader runs, in its output",
        """
import os, pickle, sys
class Attack:
    def __reduce__(self):
        return open, ("CANARY", "w")
folder = sys.argv[sys.argv.index("--output_dir") + 1]
for name in ("eval_results.txt", "model.pt", "x.json", "x.npy", "x.pkl", "training_args.bin"):
    with open(os.path.join(folder, name), "wb") as file:
        pickle.dump(Attack(), file)
""",
    ),
    "odd_output": (
        "a grader that waits, or that reads other files",
        """
import os, socket, sys
os.chdir(sys.argv[sys.argv.index("--output_dir") + 1])
os.mkfifo("pipe.txt")
os.symlink("/etc/shadow", "shadow.txt")
os.symlink(".", "circle")
socket.socket(socket.AF_UNIX).bind("socket.txt")
open("a\\n\\x1b[2J.txt", "w").write("x" * 10**7)
open("brackets.json", "w").write("[" * 10**6)
open("bars.log", "w").write("1%|" * 350000)
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
""",
    ),
    "long_error": (
        "a report of any size",
        "raise RuntimeError('x' * 10**6 + '\\x1b[2J')\n",
    ),
}
INNOCENT = "print('nothing to see')\n"
WRITES = "open('CANARY', 'w').write('ran')\n"
BESIDE = {  # files beside the script that Python, pytest or the grader might run
    **dict.fromkeys(("sitecustomize.py", "usercustomize.py", "conftest.py", "setup.py"), WRITES),
    **dict.fromkeys(("json.py", "psutil.py", "grading/__init__.py", "attack.py"), WRITES),
    "staff/reference.py": WRITES,
    "x.pth": "import os; open('CANARY', 'w')\n",
    "pytest.ini": "[pytest]\naddopts = -p attack\n",
}
isolated = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="the sandbox needs root on Linux"
)


@pytest.fixture(scope="module")
def session():
    with Session() as one:
        yield one


def graded(folder: Path, canary: Path, session: Session, script: str, beside=None):
    """The report on a submission of one task, of that script."""
    files = {"task1/run_glue.py": script, **(beside or {})}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("CANARY", str(canary)))
    return grade(folder, tasks=("task1",), session=session)


@isolated
@pytest.mark.parametrize("name", FORGERIES)
def test_it_gets_no_points(name, session, tmp_path):
    canary = tmp_path / "canary"
    report = graded(tmp_path / "ann", canary, session, FORGERIES[name][1])
    assert report.points == 0, [one.text() for one in report.results if one.points]
    assert not canary.exists()
    text = "\n".join(one.text() for one in report.results)
    assert "internal grader error" not in text
    assert "\x1b" not in text
    assert len(text) < 20_000


@isolated
def test_files_beside_the_script_are_not_run_by_the_grader(session, tmp_path):
    canary = tmp_path / "canary"
    report = graded(tmp_path / "ann", canary, session, INNOCENT, BESIDE)
    assert report.points == 0
    assert not canary.exists()
