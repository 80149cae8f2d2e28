"""Who is alive, and where, so that a worker that loses a peer can name it before it exits.

gloo reports "connection closed" or "timed out", but never which peer, and NCCL reports nothing at
all. So once a second every worker writes where its main thread is into the shared store, and when
it leaves, why. That is a few hundred bytes a second, no collective, and nothing in the loop.
"""

import contextlib
import json
import os
import sys
import threading
import time
import traceback

from common.workers.stacks import whereabouts

import torch.distributed as dist

BEAT_SECONDS = 1.0  # between two heartbeats
PATIENCE_SECONDS = 4.0  # that survivors give each other to report why they leave
NOTICED_SECONDS = 3.0  # within which all others have noticed that one has left


class PeerLostError(RuntimeError):
    """Another worker has left, so this one cannot go on."""


class Heartbeat:
    """One worker's heartbeat, and its view of the others'."""

    def __init__(self, store, rank, size, timeout):
        self.store = store.clone()
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self.main = threading.main_thread().ident or 0
        self.ending = threading.Lock()
        self.left = threading.Event()
        self.thread = threading.Thread(target=self.beat, daemon=True)
        if size > 1:
            self.thread.start()

    def beat(self):
        """Report where the main thread is; end this process if another worker has failed."""
        store, count = self.store.clone(), 0
        while not self.left.is_set():
            place, _ = whereabouts(traceback.walk_stack(sys._current_frames()[self.main]))
            try:
                count += 1
                store.set(f"beat/{self.rank}", json.dumps({"count": count, "place": place}))
                failed = [r for r, left in self.leavers(store).items() if left["kind"] != "done"]
            except RuntimeError:
                failed = [0]  # the store is gone, and with it rank 0, which serves it
            if failed and failed != [self.rank]:
                if self.left.wait(
                    BEAT_SECONDS
                ):  # the main thread is failing by itself, and knows more
                    return
                stack = traceback.walk_stack(sys._current_frames()[self.main])
                self.give_up(stack)
                os._exit(1)
            self.left.wait(BEAT_SECONDS)

    def leavers(self, store=None):
        """Rank -> why it left, of those that have."""
        store = store or self.store
        if not store.check(["left"]):
            return {}
        notes = [json.loads(line) for line in store.get("left").decode().splitlines()]
        return {left["rank"]: left for left in reversed(notes)}

    def check(self):
        """Raise PeerLostError if another worker has left already."""
        if self.size > 1 and self.leavers():
            raise PeerLostError("before the first step")

    def leave(self, kind, reason=""):
        """Report that this worker leaves: it is "done", it "failed", or it "lost" another."""
        if self.size == 1 or self.left.is_set():
            return
        self.left.set()
        self.thread.join(
            PATIENCE_SECONDS
        )  # a thread inside the store would abort the process at exit
        note = {"rank": self.rank, "kind": kind, "reason": reason}
        with contextlib.suppress(
            RuntimeError
        ):  # rank 0 has already gone: there is nobody to report to
            self.store.append("left", json.dumps(note) + "\n")
            if self.rank == 0:
                self.serve(self.timeout if kind == "done" else NOTICED_SECONDS)

    def serve(self, seconds):
        """Keep rank 0's process, which serves the store, until all have left or time is up."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and len(self.leavers()) < self.size:
            if any(left["kind"] != "done" for left in self.leavers().values()):
                deadline = min(deadline, time.monotonic() + PATIENCE_SECONDS + NOTICED_SECONDS)
            time.sleep(0.05)
        if any(left["kind"] != "done" for left in self.leavers().values()):
            time.sleep(BEAT_SECONDS)  # those who have reported still read the others' reports

    def give_up(self, stack):
        """Report in one line which peer was lost, and where this worker's `stack` was; then leave.

        It takes a few seconds, since each survivor waits for the others to report whether they
        failed or only lost a peer too. A second thread blocks here forever: one line is enough.
        """
        self.ending.acquire()
        self.left.set()
        place, waiting = whereabouts(stack)
        kind = "lost" if waiting else "absent"
        where = f"in {waiting} ({place})" if waiting else f"at {place}"
        note = {"rank": self.rank, "kind": kind, "reason": where}
        silence = (
            f"rank 0 is not responding (suspended, or its machine or network is down). {ADVICE}"
        )
        try:
            with ending_after(3 * PATIENCE_SECONDS, f"rank {self.rank} stops {where}: {silence}"):
                before = self.signs()
                self.store.append("left", json.dumps(note) + "\n")
                deadline = time.monotonic() + PATIENCE_SECONDS
                while time.monotonic() < deadline and not settled(self.leavers(), self.size):
                    time.sleep(0.05)
                reasons = self.leavers()
                verdict = self.verdict(reasons, before, self.signs())
        except RuntimeError:
            reasons = {}
            verdict = f"rank 0 is gone, which ends the run. {ADVICE}"
        progress_bar = "\n" if self.rank == 0 else ""
        line = f"{progress_bar}rank {self.rank} stops {where}: {verdict}"
        print(line, file=sys.stderr, flush=True)
        if self.rank == 0:
            time.sleep(
                NOTICED_SECONDS
            )  # others may notice later, and need the store that is served here
        elif reasons.get(0, {}).get("kind") == "failed":
            self.outlast(NOTICED_SECONDS)

    def outlast(self, seconds):
        """Wait until rank 0, and with it the store, has ended, so that a launcher sees it first."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(RuntimeError):
            while time.monotonic() < deadline:
                self.store.check(["left"])
                time.sleep(0.05)

    def signs(self):
        """Rank -> its last heartbeat; empty where there is none, or the store is gone."""
        try:
            keys = [f"beat/{rank}" for rank in range(self.size)]
            return {
                rank: json.loads(self.store.get(key))
                for rank, key in enumerate(keys)
                if self.store.check([key])
            }
        except RuntimeError:
            return {}

    def verdict(self, reasons, before, after):
        """Who caused it: a rank that failed, else one that is silent, absent, or done too early."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        for rank in others:
            if reasons.get(rank, {}).get("kind") == "failed":
                return f"rank {rank} failed: {reasons[rank]['reason']}"
        for rank in others:
            if rank not in reasons and after.get(rank, {}) == before.get(rank, {}):
                place = after.get(rank, {}).get("place", "its start")
                return (
                    f"rank {rank} disappeared (killed, or its machine or network went down); it "
                    f"was last seen at {place}. {ADVICE}"
                )
        for rank in others:
            kind = reasons.get(rank, {}).get("kind")
            if kind == "absent":
                where = reasons[rank]["reason"]
                return f"rank {rank} never reached this collective; it was {where}. {ADVICE}"
            if kind == "done":
                return f"rank {rank} has already finished: it ran fewer steps"
        if reasons.get(self.rank, {}).get("kind") == "absent":
            return f"the other ranks waited for this one for at least {self.timeout:g} s"
        places = {rank: left["reason"] for rank, left in sorted(reasons.items())}
        if len(set(places.values())) > 1:
            each = ", ".join(f"rank {rank} {place}" for rank, place in places.items())
            return f"the ranks are blocked in different collectives: {each}"
        return f"no rank is known to have failed: the network broke or was too slow. {ADVICE}"


ADVICE = "Check that rank's own output, and its machine's memory and network"


@contextlib.contextmanager
def ending_after(seconds, text):
    """End this process with the message `text` if the block takes longer than `seconds`.

    Reading from the store has no timeout: it hangs if the store's host is suspended.
    """

    def end():
        print(text, file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def settled(reasons, size):
    """Whether the cause is known: a rank reported that it failed, or all have reported."""
    return len(reasons) >= size or any(left["kind"] == "failed" for left in reasons.values())


def is_loss_of_peer(error):
    """Whether a collective raised `error` because a peer went away or did not arrive in time."""
    if isinstance(error, (PeerLostError, dist.DistError)):
        return True
    signs = ("gloo/transport", "Connection closed by peer", "Timed out waiting")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
