"""Which rank a run was lost to, from what each rank has reported and from its heartbeats."""

from typing import Any, NamedTuple

import torch.distributed as dist

ADVICE = "Check that rank's own output, and its machine's memory and network"


class PeerLostError(RuntimeError):
    """Another worker has left, so this one cannot go on."""


class Reports(NamedTuple):
    """What a survivor has read from the store; every dict is by rank.

    `reasons` is why ranks left, `finished` the ranks that have finished; `before` and `after` are
    the other ranks' last heartbeats at two moments.
    """

    reasons: dict[int, dict[str, Any]]
    finished: set[int]
    before: dict[int, dict[str, Any]]
    after: dict[int, dict[str, Any]]


def verdict(me: int, size: int, reports: Reports) -> str:
    """Who caused it: a rank that failed, else one that is silent, absent, or done too early."""
    reasons, finished, before, after = reports
    others = [rank for rank in range(size) if rank != me]
    for rank in others:
        if reasons.get(rank, {}).get("kind") == "failed":
            return f"rank {rank} failed: {reasons[rank]['reason']}"
    for rank in others:
        if rank not in reasons and after[rank] == before[rank]:
            place = after[rank].get("place", "its start")
            return (
                f"rank {rank} disappeared (killed, suspended, or its machine or network went "
                f"down); it was last seen at {place}. {ADVICE}"
            )
    for rank in others:
        if reasons.get(rank, {}).get("kind") == "absent":
            what = "finished" if me in finished else "reached this collective"
            return f"rank {rank} never {what}; it was {reasons[rank]['reason']}. {ADVICE}"
        if rank in finished and me not in finished:
            return f"rank {rank} has already finished: it ran fewer steps"
    if reasons.get(me, {}).get("kind") == "absent":
        return "the other ranks waited for this one until their time was up"
    places = {rank: left["reason"] for rank, left in sorted(reasons.items())}
    if len(set(places.values())) > 1:
        each = ", ".join(f"rank {rank} {place}" for rank, place in places.items())
        return f"the ranks are blocked in different collectives: {each}"
    return f"no rank is known to have failed: the network broke or was too slow. {ADVICE}"


def settled(reasons, size):
    """Whether the cause is known: a rank reported that it failed, or all have reported."""
    return len(reasons) >= size or any(left["kind"] == "failed" for left in reasons.values())


def is_loss_of_peer(error):
    """Whether a collective raised `error` because a peer went away or did not arrive in time."""
    if isinstance(error, (PeerLostError, dist.DistError)):
        return True
    signs = ("gloo/transport", "Connection closed by peer", "Timed out waiting")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
