"""What the workers write about themselves into the shared store, for the others to read."""

import json


class Notes:
    """The notes of all workers, read and written through one connection to the store.

    Under `beat/<rank>` is a rank's last heartbeat, under `left` a line for each that has left
    before its end, and why, and under `finished` a line for each that has finished.
    """

    def __init__(self, store, rank, size):
        self.store = store
        self.rank = rank
        self.size = size

    def beat(self, sign):
        """Write this rank's heartbeat."""
        self.store.set(f"beat/{self.rank}", json.dumps(sign))

    def signs(self):
        """Rank -> its last heartbeat, of all other ranks; {} of one that has sent none."""
        keys = {rank: f"beat/{rank}" for rank in range(self.size) if rank != self.rank}
        return {
            rank: json.loads(self.store.get(key)) if self.store.check([key]) else {}
            for rank, key in keys.items()
        }

    def leave(self, kind, reason):
        """Write why this rank leaves before its end."""
        note = {"rank": self.rank, "kind": kind, "reason": reason}
        self.store.append("left", json.dumps(note) + "\n")

    def leavers(self):
        """Rank -> why it left, of those that have left before their end."""
        if not self.store.check(["left"]):
            return {}
        notes = [json.loads(line) for line in self.store.get("left").decode().splitlines()]
        return {left["rank"]: left for left in reversed(notes)}

    def finish(self):
        """Write that this rank has finished."""
        self.store.append("finished", f"{self.rank}\n")

    def finishers(self):
        """The ranks that have finished."""
        if not self.store.check(["finished"]):
            return set()
        return {int(rank) for rank in self.store.get("finished").decode().split()}
