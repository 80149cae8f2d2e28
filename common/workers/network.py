"""This machine's addresses and interfaces, and whether the other workers can be reached."""

import os
import socket

from common.errors import UserError

import psutil


def resolve(ip, port):
    """The socket address of ip:port; raises UserError where the name is unknown."""
    try:
        return socket.getaddrinfo(ip, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UserError(f"--master_ip {ip}: unknown host ({error}); give its IP address") from None


def addresses():
    """Address -> interface, of this machine."""
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        entry.address.split("%")[0]: name
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in families
    }


def loopback():
    """The name of the loopback interface: lo, or lo0 on macOS."""
    return addresses().get("127.0.0.1", "lo")


def route_to(ip):
    """This machine's address and interface on the route to `ip`; nothing is sent."""
    family, _, _, _, where = resolve(ip, 9)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(where)
        except OSError as error:
            raise UserError(
                f"--master_ip {ip}: this machine has no route to it ({error.strerror}); give an "
                "address of rank 0's machine that all others reach, and check this one's network"
            ) from None
        address = probe.getsockname()[0]
    # An interface may answer for a whole network: 127.0.0.5 is loopback too.
    return address, addresses().get(address, loopback())


def interface(args):
    """Address and name of the interface that gloo uses here: GLOO_SOCKET_IFNAME's, if it is set,
    else the one that the route to the master takes.

    Raises UserError if GLOO_SOCKET_IFNAME names an interface that does not exist or has no address.
    """
    address, route = route_to(args.master_ip or "127.0.0.1")
    nic = os.environ.get("GLOO_SOCKET_IFNAME") or route
    if nic == route:
        return address, nic
    here = addresses()
    for address, name in here.items():
        if name == nic:
            return address, nic
    raise UserError(
        f"GLOO_SOCKET_IFNAME={nic}: this machine has no such interface, or it has no address. It "
        f"has {', '.join(f'{name} ({address})' for address, name in here.items())}. Unset the "
        "variable to use the interface of the route to --master_ip"
    )


def probe_listener(me, member, args):
    """A line if the worker `me` cannot connect to another; all probes take at most timeout / 3."""
    try:
        socket.create_connection(member["listener"], args.timeout / 3 / args.world_size).close()
    except OSError as error:
        ends = "rank {rank} ({address} on {nic})".format
        return [f"- {ends(**me)} to {ends(**member)}: {error.strerror or 'no response'}"]
    return []


def check_reachability(members):
    """Raise UserError if some worker cannot connect to another.

    gloo would name neither end, and late: where a firewall drops packets it tried for 137 s with
    a timeout of 40 s.
    """
    blocked = [line for member in members for line in member["blocked"]]
    if blocked:
        raise UserError(
            "all workers reached rank 0's port, but not each other:\n"
            + "\n".join(blocked)
            + "\nIf the connection was refused, check that that rank is still running. Otherwise "
            "open all TCP ports between the machines (firewalls, security groups). The addresses "
            "above must belong to one network (127.x does not count); see --master_ip and "
            "GLOO_SOCKET_IFNAME"
        )
