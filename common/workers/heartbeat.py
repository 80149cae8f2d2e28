"""Who is alive, and where: so that a worker which loses a peer can say which one, and end.

gloo tells a survivor "connection closed" or "timed out", never by whom, and NCCL tells nothing at
all. So every worker writes once a second into the shared store where its main thread is, and when
it leaves, why. A few hundred bytes a second; no collective, and nothing in the training loop.
"""

import contextlib
import json
import os
import sys
import sysconfig
import threading
import time
import traceback

import torch.distributed as dist

BEAT = 1.0  # seconds between two signs of life
PATIENCE = 4.0  # seconds that survivors give each other to say why they leave
SOON = 3.0  # seconds in which all others have noticed that one has left
PASSES = {  # functions in which DistributedDataParallel waits for collectives
    "_engine_run_backward": "the backward pass",
    "_pre_forward": "the forward pass",
}
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<")


class PeerLost(RuntimeError):
    """Another worker has left, so that this one cannot go on."""


class Watch:
    """One worker's signs of life, and its view of the others'."""

    def __init__(self, store, rank, size, timeout):
        self.store, self.rank, self.size, self.timeout = store.clone(), rank, size, timeout
        self.main = threading.main_thread().ident
        self.ending = threading.Lock()
        self.left = threading.Event()
        self.thread = threading.Thread(target=self.beat, daemon=True)
        if size > 1:
            self.thread.start()

    def beat(self):
        """Tell where the main thread is; end this process if another worker has failed."""
        store, count = self.store.clone(), 0
        while not self.left.is_set():
            place, _ = whereabouts(traceback.walk_stack(sys._current_frames()[self.main]))
            try:
                count += 1
                store.set(f"beat/{self.rank}", json.dumps({"count": count, "place": place}))
                failed = [r for r, left in self.leavers(store).items() if left["kind"] != "done"]
            except RuntimeError:
                failed = [0]  # the store is gone, and with it rank 0, which served it
            if failed and failed != [self.rank]:
                if self.left.wait(BEAT):  # the main thread fails by itself, and knows more
                    return
                stack = traceback.walk_stack(sys._current_frames()[self.main])
                self.give_up(stack)
                os._exit(1)
            self.left.wait(BEAT)

    def leavers(self, store=None):
        """Rank -> why it left, of those that have."""
        store = store or self.store
        if not store.check(["left"]):
            return {}
        told = [json.loads(line) for line in store.get("left").decode().splitlines()]
        return {left["rank"]: left for left in reversed(told)}

    def check(self):
        """Raise PeerLost if another worker has left already."""
        if self.size > 1 and self.leavers():
            raise PeerLost("before the first step")

    def leave(self, kind, reason=""):
        """Say that this worker leaves: it is "done", it "failed", or it "lost" another."""
        if self.size == 1 or self.left.is_set():
            return
        self.left.set()
        self.thread.join(PATIENCE)  # a thread within the store aborts the process at its end
        note = {"rank": self.rank, "kind": kind, "reason": reason}
        with contextlib.suppress(RuntimeError):  # rank 0 has gone first: nobody is left to be told
            self.store.append("left", json.dumps(note) + "\n")
            if self.rank == 0:
                self.serve(self.timeout if kind == "done" else SOON)

    def serve(self, seconds):
        """Keep rank 0's process, which serves the store, until all have left or time is up."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and len(self.leavers()) < self.size:
            if any(left["kind"] != "done" for left in self.leavers().values()):
                deadline = min(deadline, time.monotonic() + PATIENCE + SOON)
            time.sleep(0.05)
        if any(left["kind"] != "done" for left in self.leavers().values()):
            time.sleep(BEAT)  # those who have spoken still read what the others said

    def give_up(self, stack):
        """Say in one line who was lost, and where this worker was by its `stack`; it leaves, too.

        Takes a few seconds: each survivor waits for the others to say whether they failed or only
        lost a peer as well. For ever in a second thread: the first one's line is enough.
        """
        self.ending.acquire()
        self.left.set()
        place, waiting = whereabouts(stack)
        kind = "lost" if waiting else "absent"
        where = f"in {waiting} ({place})" if waiting else f"at {place}"
        note = {"rank": self.rank, "kind": kind, "reason": where}
        silence = f"rank 0 does not answer (suspended, or its machine or network is down). {ADVICE}"
        try:
            with ending_after(3 * PATIENCE, f"rank {self.rank} stops {where}: {silence}"):
                before = self.signs()
                self.store.append("left", json.dumps(note) + "\n")
                deadline = time.monotonic() + PATIENCE
                while time.monotonic() < deadline and not settled(self.leavers(), self.size):
                    time.sleep(0.05)
                reasons = self.leavers()
                verdict = self.verdict(reasons, before, self.signs())
        except RuntimeError:
            reasons = {}
            verdict = f"rank 0 is gone, and with it the run. {ADVICE}"
        progress_bar = "\n" if self.rank == 0 else ""
        line = f"{progress_bar}rank {self.rank} stops {where}: {verdict}"
        print(line, file=sys.stderr, flush=True)
        if self.rank == 0:
            time.sleep(SOON)  # others, who noticed later, still ask the store that is served here
        elif reasons.get(0, {}).get("kind") == "failed":
            self.outlast(SOON)

    def outlast(self, seconds):
        """Wait until rank 0, and with it the store, has ended: a launcher sees the cause first."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(RuntimeError):
            while time.monotonic() < deadline:
                self.store.check(["left"])
                time.sleep(0.05)

    def signs(self):
        """Rank -> its last sign of life; empty where there is none, or no store any more."""
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
        """Who is to blame: one that failed, else one that is silent, absent, or done too early."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        for rank in others:
            if reasons.get(rank, {}).get("kind") == "failed":
                return f"rank {rank} failed: {reasons[rank]['reason']}"
        for rank in others:
            if rank not in reasons and after.get(rank, {}) == before.get(rank, {}):
                place = after.get(rank, {}).get("place", "its start")
                return (
                    f"rank {rank} stopped without a word (killed, or its machine or network went "
                    f"down); it was last seen at {place}. {ADVICE}"
                )
        for rank in others:
            kind = reasons.get(rank, {}).get("kind")
            if kind == "absent":
                return f"rank {rank} did not come: it was {reasons[rank]['reason']}. {ADVICE}"
            if kind == "done":
                return f"rank {rank} has finished already: it went through fewer steps"
        if reasons.get(self.rank, {}).get("kind") == "absent":
            return f"the other ranks waited here for this one, {self.timeout:g} s or longer"
        places = {rank: left["reason"] for rank, left in sorted(reasons.items())}
        if len(set(places.values())) > 1:
            each = ", ".join(f"rank {rank} {place}" for rank, place in places.items())
            return f"the ranks wait for each other in different places: {each}"
        return f"no rank is known to have failed: the network broke or was too slow. {ADVICE}"


ADVICE = "Look at that rank's own output, and at its machine's memory and network"


@contextlib.contextmanager
def ending_after(seconds, text):
    """End this process, with `text`, if what is done inside takes longer than `seconds`.

    A question to the store has no timeout of its own: it hangs if the store's host is suspended.
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
    """Whether it is clear who is to blame: one says that it failed, or all have spoken."""
    return len(reasons) >= size or any(left["kind"] == "failed" for left in reasons.values())


def stack_of(error):
    """The stack that `error` came through, innermost frame first, as walk_stack gives one."""
    return reversed(list(traceback.walk_tb(error.__traceback__)))


def whereabouts(stack):
    """(place in the script, what it waits for) of a stack, innermost frame first.

    The place is "file:line in function" of the innermost frame outside libraries; what it waits
    for is a collective, or the backward pass (where DistributedDataParallel's are), or "".
    """
    waiting = ""
    for frame, line in stack:
        code, module = frame.f_code, frame.f_globals.get("__name__", "")
        if code.co_name in PASSES:
            waiting = PASSES[code.co_name]
        elif module == "torch.distributed.distributed_c10d":
            waiting = code.co_name
        elif not code.co_filename.startswith(LIBRARIES):
            folder, file = os.path.split(code.co_filename)
            return f"{os.path.basename(folder)}/{file}:{line} in {code.co_name}", waiting
    return "its start", waiting


def is_loss_of_peer(error):
    """Whether `error` is a collective's: a peer went away, or did not come in time."""
    if isinstance(error, (PeerLost, dist.DistError)):
        return True
    signs = ("gloo/transport", "Connection closed by peer", "Timed out waiting")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
