"""The lab's network: a network namespace per node, on one bridge, every link with a rate.

Everything here belongs to the kernel namespaces of `inside`, whose first process takes all with it:
when it ends, however it ends, no namespace, bridge, queue or process is left.
"""

import os
import subprocess
import sys
from dataclasses import dataclass

from common.errors import UserError
from common.units import bits_per_second

import psutil

SUBNET = "10.10.1"  # as on the course's experimental network: node 0 is 10.10.1.1
MOST_NODES = 254
GSO_BYTES = 65536  # the largest piece that TCP hands to an interface
# Run a command with a host name of its own; the name is its first argument.
NAMED = 'echo "$1" > /proc/sys/kernel/hostname; shift; exec "$@"'


def inside(command, foreground=False):
    """The argument list that runs `command` as the first process of namespaces of its own.

    Root needs no user namespace. The new process is killed when `unshare` is, and `unshare` when
    its parent is; with the first process of a PID namespace the kernel ends all others in it.
    """
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    unshare = ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child"]
    dies = [] if foreground else ["setpriv", "--pdeathsig", "KILL"]
    return [*dies, *unshare, "--mount-proc", *command]


def missing():
    """Why there can be no lab here, with what to do about it; empty if there can."""
    if sys.platform != "linux":
        return (
            f"the lab needs Linux's network namespaces, and this is {sys.platform}: run it in a "
            "Linux virtual machine, or use cluster.launch, which needs nothing"
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
    said = tried.stderr.strip()
    if "not found" in said:
        return f"the lab needs ip and tc ({said}): install iproute2"
    if "unshare" in said or "setpriv" in said:
        return (
            f"this system does not allow namespaces here ({said}): run it as root (sudo), or allow "
            "user namespaces: sysctl kernel.unprivileged_userns_clone=1 on Debian, "
            "kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu; in a container, start it "
            "privileged"
        )
    return f"this kernel lacks a bridge, veth or tbf ({said}): load bridge, veth and sch_tbf"


@dataclass(frozen=True)
class Node:
    """One node: a network namespace, with a link to the bridge."""

    number: int

    @property
    def name(self):
        return f"node{self.number}"

    @property
    def address(self):
        return f"{SUBNET}.{self.number + 1}"

    @property
    def port(self):
        """The bridge's end of the node's link; eth0 is the node's."""
        return f"port{self.number}"

    def prefix(self):
        """What goes before a command to run it on this node."""
        return ["ip", "netns", "exec", self.name, "unshare", "--uts",
                "sh", "-c", NAMED, "sh", self.name]  # fmt: skip

    def shape(self, rate, verb="change"):
        """Let the link carry `rate` (as tc writes it: 1gbit) in each direction."""
        burst = max(2 * GSO_BYTES, bits_per_second(rate) // 8 // 1000)  # a millisecond's worth
        bucket = f"root handle 1: tbf rate {rate} burst {burst} limit {16 * burst}".split()
        tc("qdisc", verb, "dev", self.port, *bucket)
        tc("-n", self.name, "qdisc", verb, "dev", "eth0", *bucket)

    def delay(self, latency):
        """Hold what the node sends for a time such as 5ms; raises UserError without netem."""
        try:
            tc("-n", self.name, "qdisc", "add", "dev", "eth0", "parent", "1:", "handle", "10:",
               "netem", "delay", latency, "limit", "100000")  # fmt: skip
        except UserError as error:
            raise UserError(
                f"--latency {latency}: {error}. It needs netem (the module sch_netem), which this "
                "kernel may lack: `modprobe sch_netem` as root, or leave --latency out"
            ) from None

    def counters(self):
        """(bytes sent, bytes received) so far."""
        return counters([self])[0]

    def cut(self):
        """Take the link down."""
        ip("link", "set", self.port, "down")


def build(rates, latency=None):
    """Set up a node for each rate, all on one bridge; returns the nodes. For use `inside` only."""
    run("mount", "-t", "tmpfs", "lab", "/run")  # ours alone: `ip netns` keeps its names there
    ip("link", "add", "name", "lab", "type", "bridge")
    ip("link", "set", "lab", "up")
    nodes = [Node(number) for number in range(len(rates))]
    for node, rate in zip(nodes, rates, strict=True):
        ip("netns", "add", node.name)
        ip(
            "link",
            "add",
            "name",
            node.port,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            node.name,
        )
        ip("link", "set", node.port, "master", "lab", "up")
        ip("-n", node.name, "address", "add", f"{node.address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            ip("-n", node.name, "link", "set", link, "up")
        node.shape(rate, "add")
        if latency:
            node.delay(latency)
    return nodes


def counters(nodes):
    """(bytes sent, bytes received) of every node so far, as the other ends of their links count."""
    links = psutil.net_io_counters(pernic=True, nowrap=False)  # as in common.record.traffic
    return [(links[node.port].bytes_recv, links[node.port].bytes_sent) for node in nodes]


def ip(*arguments):
    run("ip", *arguments)


def tc(*arguments):
    run("tc", *arguments)


def run(*command):
    """Run a system command; raises UserError with what it said."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
