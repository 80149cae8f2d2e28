"""The lab, for real: namespaces, shaped links, and workers on them."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from cluster import lab_flags, lab_network
from cluster.lab_traffic import carried, nodes_table
from cluster.launch import launch
from common.errors import UserError
from tests.workers import marked

import psutil
import pytest
from transformers import BertConfig, BertForSequenceClassification

ROOT = Path(__file__).parents[2]
DEADLINE = 90  # seconds for anything that a test waits for
LAB = [sys.executable, "-m", "cluster.netlab"]
TASK = f"""--model_type bert --task_name RTE --data_dir {ROOT}/sample_data/RTE
    --do_train --dropout 0 --per_gpu_train_batch_size 4 --max_seq_length 32
    --overwrite_output_dir --timeout 40""".split()
REFUSED = lab_network.missing()
needs_lab = pytest.mark.skipif(bool(REFUSED), reason=REFUSED or "there is a lab")

# Looks at its node, writes down what it sees, and stays until it is asked to go.
PUPPET = """
import os, pathlib, socket, subprocess, sys, time
folder, rank = pathlib.Path(sys.argv[2]), sys.argv[-1]
look = "hostname; ip -o address; ip route; tc qdisc show dev eth0"
seen = subprocess.run(look, shell=True, capture_output=True, text=True).stdout
(folder / f"seen.part{rank}").write_text(seen)
(folder / f"seen.part{rank}").rename(folder / f"seen{rank}")
while not (folder / "go").exists():
    time.sleep(0.02)
"""


class Labs:
    """Labs that a test starts; all their processes carry a mark, so none is overlooked."""

    def __init__(self, folder):
        self.folder, self.started = folder, []
        self.env = {**os.environ, "LAB_TEST": str(folder)}
        (folder / "puppet.py").write_text(PUPPET)

    def start(self, *flags, out="out"):
        """A lab of puppets."""
        (self.folder / out).mkdir()
        command = [*LAB, *flags, str(self.folder / "puppet.py"), "--output_dir"]
        lab = subprocess.Popen(
            [*command, str(self.folder / out)],
            cwd=ROOT,
            env=self.env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.started.append(lab)
        return lab

    def seen(self, rank, out="out"):
        """What a puppet saw of its node, once it is there."""
        path = self.folder / out / f"seen{rank}"
        wait_for(path.exists)
        return path.read_text()

    def left(self):
        """The processes with the mark that are not over."""
        return marked("LAB_TEST", self.env["LAB_TEST"])

    def close(self):
        for process in self.left():
            with contextlib.suppress(psutil.Error):
                process.kill()
        for lab in self.started:
            lab.communicate(timeout=DEADLINE)


def wait_for(condition):
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def labs(tmp_path):
    made = Labs(tmp_path)
    yield made
    made.close()


def outside():
    """The interfaces and namespaces of this machine, which no lab may change."""
    listed = subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
    return sorted(psutil.net_if_addrs()), listed


def run_lab(flags, task, folder, *more):
    return subprocess.run(
        [*LAB, *flags, str(ROOT / task / "run_glue.py"), *TASK, "--output_dir", str(folder), *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3 * DEADLINE,
    )


def losses(folder, ranks):
    lines = [(folder / f"steps.rank{r}.jsonl").read_text().splitlines() for r in range(ranks)]
    return [[json.loads(line)["loss"] for line in rank] for rank in lines]


@needs_lab
@pytest.mark.parametrize("how", ["go", "SIGINT", "SIGTERM", "SIGKILL"])
def test_nothing_is_left(labs, how):
    before = outside()
    lab = labs.start("--nodes", "2")
    for rank in range(2):
        labs.seen(rank)
    assert len(labs.left()) >= 4
    assert outside() == before
    if how == "go":
        (labs.folder / "out" / "go").touch()
    else:
        lab.send_signal(getattr(signal, how))
    code = lab.wait(DEADLINE)
    assert code == {"go": 0, "SIGINT": 130, "SIGTERM": 143, "SIGKILL": -9}[how]
    wait_for(lambda: not labs.left())
    assert outside() == before


@needs_lab
def test_a_node_sees_the_lab_alone_at_its_own_rate(labs):
    lab = labs.start("--nodes", "3", "--rate", "1gbit,100mbit,20mbit")
    for rank, rate in enumerate(["1Gbit", "100Mbit", "20Mbit"]):
        name, *rest = labs.seen(rank).splitlines()
        assert name == f"node{rank}"
        seen = "\n".join(rest)
        assert re.findall(r"inet (\S+)", seen) == ["127.0.0.1/8", f"10.10.1.{rank + 1}/24"]
        routes = [line for line in rest if "via" in line or line.startswith("10.")]
        assert [line.split()[0] for line in routes] == ["10.10.1.0/24"]
        assert f"rate {rate} " in seen
    (labs.folder / "out" / "go").touch()
    assert lab.wait(DEADLINE) == 0


@needs_lab
def test_labs_do_not_meet(labs):
    both = [labs.start("--nodes", "2", out=out) for out in ("one", "other")]
    for out in ("one", "other"):
        assert "10.10.1.2/24" in labs.seen(1, out)
    (labs.folder / "one" / "go").touch()
    assert both[0].wait(DEADLINE) == 0
    assert both[1].poll() is None
    (labs.folder / "other" / "go").touch()
    assert both[1].wait(DEADLINE) == 0


@needs_lab
def test_both_ends_of_a_link_are_shaped_and_can_be_changed():
    script = """if 1:
        import subprocess
        from cluster.lab_network import build, counters
        def show():
            for name in ([], ["-n", "node1"]):
                dev = "eth0" if name else "port1"
                done = subprocess.run(["tc", *name, "qdisc", "show", "dev", dev],
                                      capture_output=True, text=True)
                print(done.stdout.split("rate ")[1].split()[0])
        nodes = build(["1gbit", "100mbit"])
        show()
        nodes[1].shape("3mbit")
        show()
        ping = ["ip", "netns", "exec", "node0", "ping", "-c1", "-W5", "-s1000", "10.10.1.2"]
        before = counters(nodes)
        own = lambda: [open(f"/sys/class/net/port1/statistics/{w}_bytes").read() for w in "rt"]
        subprocess.run(ping, stdout=subprocess.DEVNULL)
        (sent, received), _ = counters(nodes)
        print(sent - before[0][0] >= 1028, received - before[0][1] >= 1028)
        nodes[1].cut()
        print(subprocess.run(ping[:-4] + ["-W1", *ping[-2:]], stdout=subprocess.DEVNULL).returncode)
    """
    done = subprocess.run(
        lab_network.inside([sys.executable, "-c", script]),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.stdout.splitlines()[:4] == ["100Mbit", "100Mbit", "3Mbit", "3Mbit"], done.stderr


@needs_lab
@pytest.mark.slow
def test_the_losses_in_the_lab_are_those_on_loopback_however_slow(tmp_path):
    flags = ["--model_name_or_path", "tiny", "--max_steps", "4"]
    done = run_lab(["--nodes", "2", "--slow", "1@3=200mbit"], "task2b", tmp_path / "lab", *flags)
    assert done.returncode == 0, done.stderr
    assert "netlab: node 1, step 3: its link is slowed to 200mbit" in done.stderr
    assert re.search(r"^1 +200mbit ", done.stdout, re.MULTILINE), done.stdout
    command = [str(ROOT / "task2b" / "run_glue.py"), *TASK, *flags]
    assert launch([*command, "--output_dir", str(tmp_path / "here")], 2, quiet=True).code == 0
    assert losses(tmp_path / "lab", 2) == losses(tmp_path / "here", 2)
    assert json.loads((tmp_path / "lab" / "run.json").read_text())["hosts"] == ["node0", "node1"]
    header = (tmp_path / "lab" / "net.node1.csv").read_text().splitlines()
    assert header[3:5] == ['"system","net/total",""', '"time","recv","send"']


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A BERT of 20 MB with random weights and a real one's files."""
    folder = tmp_path_factory.mktemp("small")
    from common.models.tiny import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=1024,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@needs_lab
@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "nodes", "rate", "steps"),
    [
        ("task2a", 4, "1gbit", 8),
        ("task2b", 4, "1gbit", 8),
        ("task3", 2, "1gbit", 8),
        ("task2a", 4, "100mbit", 3),  # rank 0's last bytes are in its queue when it goes on
    ],
)
def test_a_node_carries_what_is_expected(tmp_path, small, task, nodes, rate, steps):
    flags = ["--model_name_or_path", str(small), "--max_steps", str(steps)]
    done = run_lab(["--nodes", str(nodes), "--rate", rate, "--quiet"], task, tmp_path, *flags)
    assert done.returncode == 0, done.stderr
    traffic = json.loads((tmp_path / "netlab.json").read_text())
    size = json.loads((tmp_path / "run.json").read_text())["gradient_bytes"]
    assert size >= 20e6
    for node in traffic["nodes"]:
        due = (2 * (nodes - 1) / nodes * size,) * 2
        if task == "task2a":
            due = (3 * size, 3 * size) if node["node"] == 0 else (size, size)
        assert node["expected"] == pytest.approx(due)
        # Alone it is 0.5 %; beside other work TCP repeats more, and a worker is a bit ahead.
        assert node["sent"] == pytest.approx(due[0], rel=0.1)
        assert node["received"] == pytest.approx(due[1], rel=0.1)
    assert traffic["iterations"] == steps - 1
    assert re.search(rf"^0 +{rate} .*%$", done.stdout, re.MULTILINE)


@needs_lab
@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "cut"])
def test_survivors_name_the_node_that_is_lost(tmp_path, how):
    flags = ["--model_name_or_path", "tiny", "--max_steps", "100000", "--timeout", "15"]
    done = run_lab(["--nodes", "3", f"--{how}", "2@3"], "task2b", tmp_path, *flags)
    assert done.returncode not in (0, 2)
    assert re.search(r"netlab: node 2, step 3: its (worker is killed|link is cut)", done.stderr)
    for rank in range(2):
        told = rf"rank {rank} stops in all_reduce .*: rank 2 disappeared"
        assert re.search(told, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    steps = [len(rank) for rank in losses(tmp_path, 3)]
    assert 2 <= min(steps) <= max(steps) < 90_000


@needs_lab
@pytest.mark.slow
def test_a_node_may_have_several_workers(tmp_path):
    flags = ["--model_name_or_path", "tiny", "--max_steps", "5"]
    done = run_lab(["--nodes", "2,1", "--slow", "1@3=500mbit"], "task2b", tmp_path, *flags)
    assert done.returncode == 0, done.stderr
    assert "node 1, step 3: its link is slowed to 500mbit" in done.stderr
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["hosts"] == ["node0", "node0", "node1"]
    link = 4 / 3 * facts["gradient_bytes"]  # of a ring of three: in at one end, out at the other
    for node in json.loads((tmp_path / "netlab.json").read_text())["nodes"]:
        assert node["expected"] is None
        assert node["sent"] == pytest.approx(link, rel=0.02)


@needs_lab
@pytest.mark.slow
def test_a_run_goes_on_after_a_worker_is_killed(tmp_path):
    flags = ["--model_name_or_path", "tiny", "--max_steps", "8", "--save_steps", "2"]
    lab = ["--nodes", "2", "--restarts", "1", "--kill", "1@5"]
    done = run_lab(lab, "task2b", tmp_path, *flags)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("netlab: node 1, step 5: its worker is killed") == 1
    assert "restart 1 of 1, from the newest checkpoint" in done.stderr
    assert [len(rank) for rank in losses(tmp_path, 2)] == [8, 8]
    assert json.loads((tmp_path / "run.json").read_text())["resumed"]


@needs_lab
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_while_the_lab_is_loading_ends_it(tmp_path, number):
    command = [*LAB, "--nodes", "2", "task2b/run_glue.py", "--output_dir", str(tmp_path)]
    lab = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        deadline = time.monotonic() + DEADLINE
        while "cluster.lab_start" not in inner_modules(lab):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        lab.send_signal(number)
        output, _ = lab.communicate(timeout=DEADLINE)
    finally:
        lab.kill()
    assert lab.returncode == 128 + number, output
    assert "Traceback" not in output


def inner_modules(process):
    """The modules that Python runs below a process."""
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(process.pid).children(recursive=True)
        return [each.cmdline()[2] for each in below if each.cmdline()[1:2] == ["-m"]]
    return []


@needs_lab
def test_python_is_ours_on_a_node_whatever_bashrc_does(tmp_path):
    (tmp_path / ".bashrc").write_text("PATH=/usr/sbin:/usr/bin:/sbin:/bin\n")
    done = subprocess.run(
        [*LAB, "shell", "--nodes", "2"],
        cwd=ROOT,
        env={**os.environ, "SHELL": "/bin/bash", "HOME": str(tmp_path)},
        input="command -v python\n",
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == str(Path(sys.executable).with_name("python"))
    assert "node1, 10.10.1.2: python task2a/run_glue.py ... --master_ip 10.10.1.1" in lines[1]
    assert lines[1].endswith("--world_size 2 --local_rank 1")


@needs_lab
def test_a_user_without_root_has_a_lab_too():
    as_user = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if subprocess.run([*as_user, "unshare", "-Urn", "true"]).returncode:
        pytest.skip("no user namespaces here")
    done = subprocess.run(
        [*as_user, *LAB, "shell", "--nodes", "2"],
        cwd=ROOT,
        env={**os.environ, "SHELL": "/bin/sh"},
        input="hostname; ip -o address show eth0; id -u\n",
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^node0$.*10\.10\.1\.1/24.*^0$", done.stdout, re.MULTILINE | re.DOTALL)
    assert "--preserve-credentials" in done.stdout


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--nodes 0 x.py", "--nodes 0: must be 1 to 254"),
        ("--nodes 2 --rate 1gbit,1gbit,1gbit x.py", "one for each of 2 nodes"),
        ("--rate fast x.py", "rate 'fast': write it as 100mbit"),
        ("--rate 1bit x.py", "rate '1bit'"),
        ("--cut 4@1 x.py", "--cut 4@1: write NODE@STEP, as 2@5; nodes are 0 to 3"),
        ("--kill 1@0 x.py", "steps from 1"),
        ("--slow 1@2 x.py", "write NODE@STEP=RATE"),
        ("--slow 1@2=soon x.py", "rate 'soon'"),
        (
            "--nodes two x.py",
            "--nodes two: give a number of nodes, or each one's number of workers",
        ),
        ("--nodes 2,0 x.py", "--nodes 2,0: must be 1 to 254 nodes, with a worker or more on each"),
        ("shell --nodes 2,1", "shell: starts no workers; give --nodes the number of nodes"),
        ("--node 2 x.py", "[shell] [--nodes N|W,W,...] [--rate RATE] SCRIPT"),
        ("--nodes 2", "no script given"),
        ("--nodes 2 nowhere.py", "no script nowhere.py"),
    ],
)
def test_what_makes_no_sense_is_refused(flags, says):
    with pytest.raises(UserError, match=re.escape(says)):
        lab_flags.parse(flags.split())


@needs_lab
def test_a_command_that_is_refused_changes_nothing_in_the_folder(tmp_path):
    (tmp_path / "netlab.json").write_text("an earlier run's")
    done = run_lab(["--nodes", "2"], "task2b", tmp_path, "--no_such_flag", "1")
    assert done.returncode == 2
    assert "--no_such_flag" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["netlab.json"]
    assert (tmp_path / "netlab.json").read_text() == "an earlier run's"


@needs_lab
@pytest.mark.parametrize(
    ("has", "says"),
    [
        (["sh", "unshare", "setpriv"], "install iproute2"),
        (["sh"], "install util-linux"),
        (["sh", "unshare", "setpriv", "ip"], "tc"),
    ],
)
def test_what_is_missing_is_named(tmp_path, monkeypatch, has, says):
    for name in has:
        (tmp_path / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert says in lab_network.missing()


def test_other_systems_are_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "this is darwin" in lab_network.missing()


@needs_lab
def test_a_system_that_allows_no_namespaces_is_reported():
    """As one whose user has none left."""
    script = (
        "echo 0 > /proc/sys/user/max_net_namespaces && "
        f"exec {sys.executable} -m cluster.netlab shell --nodes 1"
    )
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2, done.stderr
    assert "netlab: this system does not allow namespaces here" in done.stderr
    assert "kernel.unprivileged_userns_clone=1" in done.stderr


def test_breaks_are_read():
    args = lab_flags.parse(
        ["--kill", "1@2", "--slow", "3@4=10mbit", str(ROOT / "download_glue_data.py")]
    )
    assert args.breaks == [lab_flags.Break("kill", 1, 2), lab_flags.Break("slow", 3, 4, "10mbit")]


def test_what_is_carried_is_of_all_iterations_but_the_first():
    facts = {"arguments": {}, "task": "task2a", "gradient_bytes": 100, "world_size": 2}
    counts = [0, 1000, 1200, 1500]  # after 0 to 3 steps
    snapshots = [[(count, 2 * count), (0, 0)] for count in counts]
    traffic = carried(facts, snapshots, ["1gbit"] * 2, [1, 1, 2])
    assert traffic["iterations"] == 2
    assert traffic["nodes"][0]["epochs"] == [(1200, 2400), (300, 600)]
    assert nodes_table(traffic).endswith(
        "epoch 2, MB sent / received by each node: 0.0 / 0.0, 0.0 / 0.0"
    )
    assert (traffic["nodes"][0]["sent"], traffic["nodes"][0]["received"]) == (250, 500)
    assert traffic["nodes"][0]["expected"] == (100, 100)
    facts = {
        **facts,
        "task": "task4",
        "arguments": {"method": "2b", "gradient_dtype": "bfloat16"},
    }
    assert carried(facts, snapshots, ["1gbit"] * 2)["nodes"][1]["expected"] == (50, 50)


@needs_lab
def test_latency_is_netems_or_refused():
    done = subprocess.run(
        [*LAB, "shell", "--nodes", "1", "--latency", "5ms"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        input="tc qdisc show dev eth0\n",
        timeout=DEADLINE,
    )
    if done.returncode == 0:
        assert "delay 5ms" in done.stdout
    else:
        assert done.returncode == 2
        assert "--latency 5ms" in done.stderr
        assert "sch_netem" in done.stderr
