"""The cluster check, with real workers: on loopback, and on two machines as Linux can fake them.

A machine is a network namespace with its own host name and /etc/hosts, as Debian writes one: the
machine's own name resolves to 127.0.1.1. It has two interfaces; on eth0, the first sends slowly.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from cluster.hello import verify
from cluster.launch import launch
from cluster.ports import free_port
from common.errors import UserError

import pytest
import torch

ROOT = Path(__file__).parents[1]
SCRIPT = str(ROOT / "cluster" / "hello.py")
DEADLINE = 60  # seconds for whatever a test waits for; on a quiet machine it takes up to 15
RATE = 25  # MB/s that the first machine can send on eth0
WAY = re.compile(r"rank (\d) to rank (\d): latency (\d+) us, bandwidth (\d+) MB/s \((.+) Gbit/s\)")
RIGHT = "gather, scatter and all_reduce of 1, 1000, 1000003 numbers: correct on every rank"
ENTER = """
echo "$1" > /proc/sys/kernel/hostname && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"
"""


def flags(rank, size, *more, ip="127.0.0.1", port):
    """The command line of a worker, after the script."""
    place = f"--master_ip {ip} --master_port {port} --world_size {size} --local_rank {rank}"
    return [*place.split(), *more]


def finish(commands, **env):
    """Run the commands side by side; (exit code, stdout, stderr) of each."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    env = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    processes = []
    try:
        for command in commands:
            processes.append(
                subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, **pipes)
            )
        outputs = [process.communicate(timeout=DEADLINE) for process in processes]
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return [
        (process.returncode, *output) for process, output in zip(processes, outputs, strict=True)
    ]


def refusals(commands, **env):
    """The stderr of each command: all end with 2 and one message, and neither report nor trace."""
    results = finish(commands, **env)
    for code, report, errors in results:
        assert code == 2, errors
        assert report == ""
        assert "Traceback" not in errors
        assert errors.count("hello.py: ") - errors.count("hello.py: warning: ") == 1
    return [errors for _, _, errors in results]


def ways(report):
    """(from, to) -> (latency in microseconds, MB/s), as reported."""
    found = WAY.findall(report)
    assert all(float(gbits) == pytest.approx(int(mb) / 125, abs=0.01) for *_, mb, gbits in found)
    return {(int(a), int(b)): (int(latency), int(mb)) for a, b, latency, mb, _ in found}


def test_reports_every_worker_and_every_pair():
    result = launch([SCRIPT], 4, quiet=True)
    assert result.code == 0, result.summary()
    report = "\n".join(result.workers[0].stdout)
    for rank in range(4):
        assert f"rank {rank}: host {socket.gethostname()}, 127.0.0.1 on lo, python 3." in report
    assert report.count(f"torch {torch.__version__}, threads: 1, GPUs: ") == 4
    assert RIGHT in report
    assert set(ways(report)) == {(a, b) for a in range(4) for b in range(4) if a != b}
    assert all(us > 0 and rate > RATE for us, rate in ways(report).values())
    assert re.search(r"^all_reduce of 25 MB: \d+\.\d ms\nno warnings$", report, re.MULTILINE)
    assert not any(worker.stdout for worker in result.workers[1:])


def test_needs_no_other_worker():
    [(code, report, errors)] = finish([[sys.executable, "-m", "cluster.hello"]])
    assert code == 0, errors
    assert RIGHT in report
    assert ways(report) == {}


def test_a_wrong_number_is_reported():
    right = torch.arange(1000.0)
    verify(right.clone(), right, "all_reduce at rank 2")
    wrong = right.clone()
    wrong[[7, 800]] = torch.tensor([6.5, float("nan")])
    with pytest.raises(UserError, match=r"at rank 2: 6\.5 instead of 7\.0, number 7 of 1000\."):
        verify(wrong, right, "all_reduce at rank 2")


def test_port_in_use():
    with socket.create_server(("127.0.0.1", free_port())) as server:
        port = server.getsockname()[1]
        [errors] = refusals([[sys.executable, SCRIPT, *flags(0, 2, port=port)]])
    assert f"rank 0 cannot listen at 127.0.0.1:{port}: Address already in use." in errors
    assert "--master_port a port that no other run uses" in errors


def test_port_of_root():
    [errors] = refusals([[sys.executable, SCRIPT, *flags(0, 2, port=80)]])
    assert "--master_port 80: must be at least 1024 (lower ports need root)" in errors


def test_rank_0_on_another_machine_than_the_master():
    args = flags(0, 2, ip="198.51.100.7", port=free_port())  # an address that nobody may have
    [errors] = refusals([[sys.executable, SCRIPT, *args]])
    assert "rank 0 cannot listen at 198.51.100.7:" in errors
    assert "must be an address of rank 0's machine (this one has " in errors
    assert "127.0.0.1" in errors


def test_missing_rank():
    port = free_port()
    args = [flags(rank, 3, "--timeout", "6", port=port) for rank in (0, 1)]
    for code, report, errors in finish([[sys.executable, SCRIPT, *arg] for arg in args]):
        assert code in (1, 2)  # the second to give up has seen that the first one did
        assert report == ""
        assert "Traceback" not in errors
        assert re.search(
            r"rank [01] timed out waiting for rank 2 \(of 3 workers\)\. Start every rank", errors
        )


def test_same_rank_twice():
    port = free_port()
    for errors in refusals(
        [[sys.executable, SCRIPT, *flags(rank, 3, port=port)] for rank in (0, 1, 1)]
    ):
        assert re.search(r"rank 1 was started twice: on \S+, process \d+ and on", errors)


def test_other_version_of_torch(tmp_path):
    old = tmp_path / "old.py"
    old.write_text(
        f"import runpy, sys, torch\n"
        f"torch.__version__, sys.argv[0] = '2.6.0', {SCRIPT!r}\n"
        f"runpy.run_path({SCRIPT!r}, run_name='__main__')\n"
    )
    scripts, port = (SCRIPT, str(old)), free_port()
    for errors in refusals(
        [[sys.executable, script, *flags(r, 2, port=port)] for r, script in enumerate(scripts)]
    ):
        assert f"torch is '{torch.__version__}' at rank 0" in errors
        assert "but '2.6.0' at rank 1" in errors


def test_interface_that_is_not_there():
    args = flags(1, 2, port=free_port())
    [errors] = refusals([[sys.executable, SCRIPT, *args]], GLOO_SOCKET_IFNAME="nosuch0")
    assert "GLOO_SOCKET_IFNAME=nosuch0: this machine has no such interface" in errors
    assert "It has lo (127.0.0.1)" in errors


class Machines:
    """Two machines, node0 and node1, with the same two networks."""

    def __init__(self, folder):
        self.names = [f"hello{os.getpid()}n{number}" for number in range(2)]
        self.hosts = [folder / "hosts0", folder / "hosts1"]
        self.port = free_port()

    def build(self):
        a, b = self.names
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for number, nic in enumerate(("eth0", "eth1")):
            ip("link", "add", nic, "netns", a, "type", "veth", "peer", "name", nic, "netns", b)
            for node, name in enumerate(self.names):
                ip("-n", name, "addr", "add", f"10.77.{number}.{node + 1}/24", "dev", nic)
                ip("-n", name, "link", "set", nic, "up")
        tbf = f"root tbf rate {8 * RATE}mbit burst 64kb latency 50ms"
        run_tool("ip", "netns", "exec", a, "tc", "qdisc", "add", "dev", "eth0", *tbf.split())
        self.hosts[0].write_text("127.0.0.1 localhost\n127.0.1.1 node0\n10.77.0.2 node1\n")
        self.hosts[1].write_text("127.0.0.1 localhost\n10.77.0.1 node0\n127.0.1.1 node1\n")

    def worker(self, rank, *more, master="10.77.0.1"):
        """The command of a worker on its machine."""
        enter = ["ip", "netns", "exec", self.names[rank], "unshare", "--uts", "sh", "-ec", ENTER]
        args = flags(rank, 2, *more, ip=master, port=self.port)
        name = f"node{rank}"
        return [*enter, "sh", name, self.hosts[rank], sys.executable, "-m", "cluster.hello", *args]

    def sent(self, nic):
        """The MB that the first machine has sent."""
        file = f"/sys/class/net/{nic}/statistics/tx_bytes"
        return int(run_tool("ip", "netns", "exec", self.names[0], "cat", file)) / 1e6

    def remove(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def ip(*words):
    return run_tool("ip", *words)


def run_tool(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout


@pytest.fixture
def machines(tmp_path):
    if not all(map(shutil.which, ("ip", "tc", "unshare"))) or os.geteuid() != 0:
        pytest.skip("needs root, ip, tc and unshare: it makes network namespaces")
    machines = Machines(tmp_path)
    try:
        try:
            machines.build()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.cmd}: {error.stderr.strip()}")
        yield machines
    finally:
        machines.remove()


def test_two_machines(machines):
    (code, report, errors), (other, *_) = finish([machines.worker(rank) for rank in (0, 1)])
    assert (code, other) == (0, 0), errors
    assert "rank 0: host node0, 10.77.0.1 on eth0, " in report
    assert "rank 1: host node1, 10.77.0.2 on eth0, " in report
    assert RIGHT in report
    rates = {way: rate for way, (_, rate) in ways(report).items()}
    assert RATE / 4 < rates[0, 1] <= RATE
    assert rates[1, 0] > rates[0, 1]
    for rank in (0, 1):
        assert f"warning: rank {rank} (node{rank}): its host name resolves to 127.0.1.1" in report
    assert report.count("warning: ") == 2
    assert machines.sent("eth0") > 50


def test_chosen_interface_is_used_with_a_warning(machines):
    commands = [machines.worker(rank) for rank in (0, 1)]
    (code, report, errors), _ = finish(commands, GLOO_SOCKET_IFNAME="eth1")
    assert code == 0, errors
    for rank in (0, 1):
        assert f"rank {rank}: host node{rank}, 10.77.1.{rank + 1} on eth1, " in report
        doubt = f"GLOO_SOCKET_IFNAME is eth1 (10.77.1.{rank + 1}), but the route to the master is"
        assert f"warning: rank {rank} (node{rank}): {doubt} through eth0" in report
    assert machines.sent("eth1") > 50 > machines.sent("eth0")


def test_firewall_between_machines(machines):
    """The second machine drops whatever comes from other ports than the master's."""
    node = machines.names[1]
    for rule in (
        f"pref 1 sport {machines.port} ipproto tcp lookup local",
        "pref 2 iif eth0 ipproto tcp blackhole",
        "pref 3 lookup local",
    ):
        ip("-n", node, "rule", "add", *rule.split())
    ip("-n", node, "rule", "del", "pref", "0")
    errors_of_each = refusals([machines.worker(rank, "--timeout", "15") for rank in (0, 1)])
    for errors, (a, b) in zip(errors_of_each, ((0, 1), (1, 0)), strict=True):
        assert "all workers reached rank 0's port, but not each other" in errors
        ends = [f"rank {rank} (10.77.0.{rank + 1} on eth0)" for rank in (a, b)]
        assert f"- {ends[0]} to {ends[1]}: no response\n" in errors
        assert "open all TCP ports between the machines" in errors


def test_name_of_rank_0_means_loopback_there(machines):
    errors_of_each = refusals([machines.worker(rank, master="node0") for rank in (0, 1)])
    for errors in errors_of_each:
        assert "must belong to one network (127.x does not count)" in errors
        assert "- rank 1 (10.77.0.2 on eth0) to rank 0 (127.0.0.1 on lo): " in errors


def test_name_of_rank_0_means_loopback_elsewhere(machines):
    [errors] = refusals([machines.worker(1, "--timeout", "5", master="node1")])
    assert "connecting to rank 0 at node1:" in errors
    assert "(127.0.1.1 for this machine; 127.x always means the machine itself)" in errors
