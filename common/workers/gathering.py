"""What every worker has, gathered through the store: small values, at the start of a run."""

import os
import socket
import time

from common.workers.rendezvous import exchange


def gathered(world, topic, value):
    """Each rank's `value`, by rank; all ranks call it at once, each topic once."""
    deadline = time.monotonic() + world.heartbeat.limit
    me = {"rank": world.rank, "host": socket.gethostname(), "pid": os.getpid()}
    me |= {"facts": {}, "value": value}
    members = exchange(world.store, world.heartbeat, topic, me, world.size, deadline)
    return [member["value"] for member in members]
