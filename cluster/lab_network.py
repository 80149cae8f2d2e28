"""The lab's network: a network namespace per node, on one bridge, every link with a rate.

Everything here belongs to the kernel namespaces of `inside`, whose first process takes all with it:
when it ends, however it ends, no namespace, bridge, queue or process is left.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from common.units import bits_per_second

import psutil

SUBNET = "10.10.1"  # as on the course's experimental network: node 0 is 10.10.1.1
MOST_NODES = 254
GSO_BYTES = 65536  # the largest piece that TCP hands to an interface
# Runs a command with its own host name, which is the first argument.
NAMED = 'echo "$1" > /proc/sys/kernel/hostname; shift; exec "$@"'


def inside(command: list[str], foreground: bool = False) -> list[str]:
    """The argument list that runs `command` as the first process of new namespaces.

    Root needs no user namespace. The new process is killed when `unshare` is, and `unshare` when
    its parent is; with the first process of a PID namespace the kernel ends all others in it.
    """
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    unshare = ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child"]
    dies = [] if foreground else ["setpriv", "--pdeathsig", "KILL"]
    return [*dies, *unshare, "--mount-proc", *command]


def missing() -> str:
    """Why the lab cannot run here, with what to do about it; empty if it can."""
    if sys.platform != "linux":
        return (
            f"the lab needs Linux's network namespaces, and this is {sys.platform}: run it in a "
            "Linux virtual machine, or use cluster.launch, which runs anywhere"
        )
    trial = "ip link add name lab type bridge && ip link add name a0 type veth peer name b0 && "
    trial += "tc qdisc add dev a0 root tbf rate 1gbit burst 128kb limit 1mb"
    try:
        tried = subprocess.run(
            inside(["sh", "-c", trial]), capture_output=True, text=True, timeout=60
        )
    except FileNotFoundError:
        return "the lab needs setpriv and unshare: install util-linux"
    if tried.returncode == 0:
        return ""
    reason = tried.stderr.strip()
    if "not found" in reason:
        return f"the lab needs ip and tc ({reason}): install iproute2"
    if "unshare" in reason or "setpriv" in reason:
        return (
            f"this system does not allow namespaces here ({reason}): run it as root (sudo), or "
            "allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 on Debian, "
            "kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu; in a container, start it "
            "privileged"
        )
    return f"this kernel lacks a bridge, veth or tbf ({reason}): load bridge, veth and sch_tbf"


@dataclass(frozen=True)
class Node:
    """One node: a network namespace, with a link to the bridge."""

    number: int

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def address(self) -> str:
        return f"{SUBNET}.{self.number + 1}"

    @property
    def port(self) -> str:
        """The bridge's end of the node's link; eth0 is the node's."""
        return f"port{self.number}"

    def prefix(self) -> list[str]:
        """What goes before a command to run it on this node."""
        enter = ["ip", "netns", "exec", self.name, "unshare", "--uts"]
        return [*enter, "sh", "-c", NAMED, "sh", self.name]

    def shape(self, rate: str, verb: str = "change") -> None:
        """Limit the link to `rate` (as tc writes it: 1gbit) in each direction."""
        burst = max(2 * GSO_BYTES, bits_per_second(rate) // 8 // 1000)  # a millisecond's worth
        bucket = f"root handle 1: tbf rate {rate} burst {burst} limit {16 * burst}".split()
        tc("qdisc", verb, "dev", self.port, *bucket)
        tc("-n", self.name, "qdisc", verb, "dev", "eth0", *bucket)

    def delay(self, latency: str) -> None:
        """Delay what the node sends by a time such as 5ms; raises UserError without netem."""
        try:
            queue = f"parent 1: handle 10: netem delay {latency} limit 100000"
            tc("-n", self.name, "qdisc", "add", "dev", "eth0", *queue.split())
        except UserError as error:
            raise UserError(
                f"--latency {latency}: {error}. It needs netem (the module sch_netem), which this "
                "kernel may lack: run `modprobe sch_netem` as root, or omit --latency"
            ) from None

    def counters(self) -> tuple[int, int]:
        """(bytes sent, bytes received) so far."""
        return counters([self])[0]

    def cut(self) -> None:
        """Take the link down."""
        ip("link", "set", self.port, "down")


def build(rates: list[str], latency: str | None = None) -> list[Node]:
    """Set up a node for each rate, all on one bridge; returns the nodes. For use `inside` only."""
    run_command(
        "mount", "-t", "tmpfs", "lab", "/run"
    )  # ours alone: `ip netns` keeps its names there
    nodes = [Node(number) for number in range(len(rates))]
    names = ["127.0.0.1 localhost", *(f"{node.address} {node.name}" for node in nodes)]
    Path("/run/hosts").write_text("\n".join(names) + "\n")
    run_command("mount", "--bind", "/run/hosts", "/etc/hosts")
    ip("link", "add", "name", "lab", "type", "bridge")
    ip("link", "set", "lab", "up")
    for node, rate in zip(nodes, rates, strict=True):
        ip("netns", "add", node.name)
        ends = f"{node.port} type veth peer name eth0 netns {node.name}"
        ip("link", "add", "name", *ends.split())
        ip("link", "set", node.port, "master", "lab", "up")
        ip("-n", node.name, "address", "add", f"{node.address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            ip("-n", node.name, "link", "set", link, "up")
        node.shape(rate, "add")
        if latency:
            node.delay(latency)
    return nodes


def counters(nodes: list[Node]) -> list[tuple[int, int]]:
    """(bytes sent, bytes received) of every node so far, as the other ends of their links count."""
    links = psutil.net_io_counters(pernic=True, nowrap=False)  # as in common.record.traffic
    return [(links[node.port].bytes_recv, links[node.port].bytes_sent) for node in nodes]


def ip(*arguments: str) -> None:
    run_command("ip", *arguments)


def tc(*arguments: str) -> None:
    run_command("tc", *arguments)


def run_command(*command: str) -> None:
    """Run a system command; raises UserError with its error output."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
