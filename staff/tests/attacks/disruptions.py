"""Attacks that wear something down: memory, disk, processes, time; each runs alone, with limits."""

from dataclasses import dataclass, field

MIB = 2**20


@dataclass(frozen=True)
class Disruption:
    """What an attack is after, its script, limits of its run, and reasons to end it for."""

    gain: str
    script: str
    limits: dict = field(default_factory=dict)
    reasons: tuple[str, ...] = ("time",)


DISRUPTIONS = {
    "fork_bomb": Disruption(
        "all process numbers",
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n",
        {"seconds": 3.0, "processes": 40},
        ("time", "memory"),
    ),
    "daemons": Disruption(
        "processes that stay",
        """
import os, signal, time
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
""",
        reasons=("",),
    ),
    "deaf": Disruption(
        "a run that no signal ends",
        """
import signal, time
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
while True:
    time.sleep(0.01)
    sum(range(10**4))
""",
        {"seconds": 2.0},
    ),
    "stopped": Disruption(
        "a run that waits for ever",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n",
        {"idle": 1.0},
        ("idle",),
    ),
    "kills_its_group": Disruption(
        "the death of the grader",
        "import os, signal\nos.kill(-1, signal.SIGKILL)\n",
        reasons=("", "grace"),
    ),
    "waits_at_exit": Disruption(
        "a run without end, after an exit",
        "import atexit, time\natexit.register(time.sleep, 600)\n",
        {"idle": 1.0},
        ("idle",),
    ),
    "opens_a_pipe": Disruption(
        "a run that waits for ever",
        "import os\nos.mkfifo('pipe')\nopen('pipe')\n",
        {"idle": 1.0},
        ("idle",),
    ),
    "fills_memory": Disruption(
        "all memory",
        "import time\nx = []\nwhile True:\n    x.append(bytearray(10**7))\n    time.sleep(0.01)\n",
        {"memory": 150 * MIB},
        ("memory",),
    ),
    "fills_shared_memory": Disruption(
        "memory, in files",
        """
import time
for number in range(400):
    with open(f"/dev/shm/{number}", "wb") as file:
        file.write(bytes(2**20))
    time.sleep(0.01)
""",
        {"memory": 100 * MIB},
        ("memory",),
    ),
    "fills_temporary_files": Disruption(
        "memory, in files that are open and have no name",
        """
import os, time
kept = []
for number in range(400):
    kept.append(open(f"/tmp/{number}", "wb"))
    os.unlink(kept[-1].name)
    kept[-1].write(bytes(2**20))
    kept[-1].flush()
    time.sleep(0.01)
""",
        {"memory": 100 * MIB},
        ("memory",),
    ),
    "fills_the_disk": Disruption(
        "all of the disk",
        """
import time
for number in range(10**6):
    with open(f"file{number}", "wb") as file:
        file.write(bytes(2**20))
    time.sleep(0.002)
""",
        {"disk": 100 * MIB, "seconds": 20.0},
        ("disk",),
    ),
    "one_large_file": Disruption(
        "all of the disk",
        """
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with open("large", "wb") as file:
    while True:
        file.write(bytes(2**20))
""",
        {"file": 20 * MIB},
        ("",),
    ),
    "many_files": Disruption(
        "all file numbers of the disk",
        """
import os, time
for number in range(10**6):
    os.mknod(f"file{number}")
    if number % 100 == 0:
        time.sleep(0.01)
""",
        {"files": 3000, "seconds": 20.0},
        ("disk",),
    ),
    "deep_folders": Disruption(
        "a folder that cannot be removed",
        """
import os
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
os.chmod(".", 0)
""",
        reasons=("",),
    ),
    "floods": Disruption(
        "a disk full of output",
        "while True:\n    print('x' * 10**5)\n",
        {"file": MIB},
        ("", "grace"),
    ),
}
