"""Who is alive, and where, so that a worker that loses a peer can name it before it exits.

gloo reports "connection closed" or "timed out", but never which peer, and NCCL reports nothing at
all. So once a second every worker writes where its main thread is into the shared store, and when
it leaves, why. That is a few hundred bytes a second, no collective, and nothing in the loop.

Nobody waits longer than --timeout, most of which a rank may be silent (`Heartbeat.limit`); the
rest is for finding out whose fault it is.
"""

import contextlib
import os
import sys
import threading
import time
import traceback

from common.workers.ending import ending_after
from common.workers.notes import Notes
from common.workers.stacks import position, whereabouts
from common.workers.verdict import ADVICE, PeerLostError, Reports, settled, verdict

BEAT_SECONDS = 1.0  # between two heartbeats
EXPLAINING_SECONDS = 8.0  # of --timeout, kept for finding out which peer was lost
PATIENCE_SECONDS = 4.0  # that survivors give each other to report why they leave
NOTICED_SECONDS = 3.0  # within which all others have noticed that one has left
STORE_SECONDS = 9.0  # for all that a survivor asks of the store before it leaves


class Heartbeat:
    """One worker's heartbeat, and its view of the others'."""

    def __init__(self, store, rank, size, timeout):
        self.rank = rank
        self.size = size
        self.limit = max(timeout / 2, timeout - EXPLAINING_SECONDS)  # of silence, in seconds
        self.main = threading.main_thread().ident or 0
        self.admitted = False  # whether this worker has its place among the others
        self.finished = False
        self.model_saved = False  # by rank 0, as far as this rank knows
        self.rounds = {}  # rank -> (its last heartbeat, for how many of ours that has been so)
        self.where = ""  # where it was when it lost a peer
        self.ending = threading.Lock()
        self.left = threading.Event()
        with self.store_answers(self.limit):
            self.notes = Notes(store.clone(), rank, size)
        self.thread = threading.Thread(target=self.beat, daemon=True)
        if size > 1:
            self.thread.start()

    def store_answers(self, seconds):
        """Context: end this process if its block, which asks the store, takes longer.

        Reading from the store has no timeout: it hangs while the store's host is suspended.
        """
        return ending_after(
            seconds,
            lambda: self.line(
                self.where or position(self.stack()),
                f"rank 0 does not respond (suspended, or its machine or network is down). {ADVICE}",
            ),
        )

    def stack(self):
        """The stack of the main thread, innermost frame first."""
        return traceback.walk_stack(sys._current_frames()[self.main])

    def beat(self):
        """Report where the main thread is; end this process if another worker has failed."""
        with self.store_answers(self.limit):
            notes = Notes(self.notes.store.clone(), self.rank, self.size)
        for count in range(sys.maxsize):
            if self.left.is_set():
                return
            try:
                with self.store_answers(self.limit):
                    lost = self.look(notes, count)
            except RuntimeError:
                lost = [0]  # the store is gone, and with it rank 0, which serves it
            if lost:
                if self.left.wait(BEAT_SECONDS):  # the main thread fails by itself, and knows more
                    return
                self.give_up(self.stack())
                os._exit(1)
            self.left.wait(BEAT_SECONDS)

    def look(self, notes, count):
        """Write a heartbeat; returns the other ranks that have left, or were silent too long.

        Silence is counted in heartbeats of this worker, so that one that was suspended itself
        blames nobody. Until a worker has its place it only checks that the store answers.
        """
        failed = [rank for rank in notes.leavers() if rank != self.rank]
        if not self.admitted:
            return []
        place, _ = whereabouts(self.stack())
        notes.beat({"count": count, "place": place})
        for rank, sign in notes.signs().items():
            last, rounds = self.rounds.get(rank, (None, 0))
            self.rounds[rank] = sign, rounds + 1 if sign == last else 0
        silent = max(3.0, self.limit / BEAT_SECONDS)
        quiet = [rank for rank, (_, rounds) in self.rounds.items() if rounds >= silent]
        return failed + quiet

    def check(self):
        """Raise PeerLostError if another worker has left already."""
        if self.size > 1 and self.notes.leavers():
            raise PeerLostError("another worker has left")

    def finish(self):
        """Report that this worker has finished, and wait until all have: rank 0 saves the model.

        Raises PeerLostError if another one leaves before, or does not finish in time.
        """
        if self.size == 1:
            return
        self.finished = True
        deadline = time.monotonic() + self.limit
        try:
            self.notes.finish()
            while len(finishers := self.notes.finishers()) < self.size:
                self.model_saved = 0 in finishers
                self.check()
                if time.monotonic() > deadline:
                    raise PeerLostError("another worker does not finish")
                time.sleep(0.05)
            self.left.set()
            self.thread.join(PATIENCE_SECONDS)  # inside the store it would abort the process
            self.close(deadline)
        except RuntimeError as error:
            raise PeerLostError from error

    def close(self, deadline):
        """Leave the store; rank 0's process, which serves it, is the last.

        Raises PeerLostError there if another rank does not: it has failed after its last step.
        """
        here = self.notes.store.add("closed", 1)
        while self.rank == 0 and here < self.size:
            if time.monotonic() > deadline:
                raise PeerLostError("another worker does not leave")
            time.sleep(0.02)
            here = self.notes.store.add("closed", 0)

    def fail(self, reason):
        """Report that this worker leaves before its end, so that the others can say why."""
        if self.size == 1 or self.left.is_set():
            return
        self.left.set()
        self.thread.join(PATIENCE_SECONDS)  # inside the store it would abort the process
        # If rank 0 has gone already, or is suspended, there is nobody to report to.
        with contextlib.suppress(RuntimeError), ending_after(STORE_SECONDS):
            self.notes.leave("failed", reason)
            if self.rank == 0:
                self.serve()

    def serve(self):
        """Keep rank 0's process, which serves the store, until all have left or time is up."""
        deadline = time.monotonic() + NOTICED_SECONDS
        while time.monotonic() < deadline and len(self.notes.leavers()) < self.size:
            time.sleep(0.05)
        time.sleep(BEAT_SECONDS)  # those who have reported still read the others' reports

    def give_up(self, stack):
        """Report in one line which peer was lost, and where this worker's `stack` was; then leave.

        It takes a few seconds, since each survivor waits for the others to report whether they
        failed or only lost a peer too. A second thread blocks here forever: one line is enough.
        """
        self.ending.acquire()
        self.left.set()
        stack = list(stack)
        self.where = position(stack)
        kind = "lost" if whereabouts(stack)[1] else "absent"
        reasons = {}
        try:
            with self.store_answers(STORE_SECONDS):
                before = self.notes.signs()
                self.notes.leave(kind, self.where)
                deadline = time.monotonic() + PATIENCE_SECONDS
                while time.monotonic() < deadline and not settled(self.notes.leavers(), self.size):
                    time.sleep(0.05)
                reasons, finished = self.notes.leavers(), self.notes.finishers()
                self.model_saved = 0 in finished
                reports = Reports(reasons, finished, before, self.notes.signs())
                why = verdict(self.rank, self.size, reports)
        except RuntimeError:
            why = f"rank 0 is gone, which ends the run. {ADVICE}"
        progress_bar = "\n" if self.rank == 0 else ""
        print(progress_bar + self.line(self.where, why), file=sys.stderr, flush=True)
        if self.rank == 0:
            time.sleep(
                NOTICED_SECONDS
            )  # others may notice later, and need the store that is served here
        elif reasons.get(0, {}).get("kind") == "failed":
            self.outlast(NOTICED_SECONDS)

    def line(self, where, why):
        """The one line of a worker that leaves because of another."""
        lost = "the model was not saved: " if self.finished and not self.model_saved else ""
        return f"rank {self.rank} stops {where}: {lost}{why}"

    def outlast(self, seconds):
        """Wait until rank 0, and with it the store, has ended, so that a launcher sees it first."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(RuntimeError):
            while time.monotonic() < deadline:
                self.notes.store.check(["left"])
                time.sleep(0.05)
