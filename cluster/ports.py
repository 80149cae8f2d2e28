"""Free TCP ports on this machine, each given to one launcher at a time."""

import contextlib
import random
import socket
from collections.abc import Iterator

from common.errors import UserError

PORTS = range(20000, 32000)  # below those that kernels choose for outgoing connections


def free_port() -> int:
    """A TCP port that nothing listens on and that no outgoing connection will take."""
    with reserved_port() as port:
        return port


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A free TCP port; its UDP namesake, held meanwhile, keeps other launchers from choosing it."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            try:
                udp.bind(("", port))
                tcp.bind(("", port))
            except OSError:
                continue
            tcp.close()
            yield port
            return
    raise UserError(f"no free port in {PORTS[0]}-{PORTS[-1]}: end some of the programs there")
