"""Reads what the probes wrote; all of it may be forged, and is treated as data only."""

import json
from pathlib import Path

from grading.checks.observation import Evaluation, Forward, Rank, Step
from grading.worker.sketch import unpack

import numpy as np

IGNORED = -100  # a label that no loss counts: its row only fills a batch
LARGEST = 64 * 2**20  # bytes of one worker's record that are read; it writes about two million
DAMAGE = (ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError)
DAMAGE += (RecursionError, MemoryError)


def read_rank(folder: Path, number: int) -> Rank:
    """The Rank that its probe's file describes; up to the first line that is damaged."""
    rank = Rank()
    rank.out, rank.err = (read_text(Path(folder) / f"{number}.{end}") for end in ("out", "err"))
    reader = Reader(rank)
    with (Path(folder) / f"{number}.events").open("rb") as file:
        for line in file.read(LARGEST).split(b"\n")[:-1]:  # the last is cut short, if not empty
            try:
                event = json.loads(line)
                if (name := event.pop("event")) not in vars(Reader) or name[0] == "_":
                    raise ValueError(f"an event {str(name)[:40]!r}")
                getattr(reader, name)(**event)
            except DAMAGE as error:
                rank.broken = f"{type(error).__name__}: {error}"
                break
    return rank


def read_text(path: Path, most: int = 2**20) -> str:
    """The text in a file's first bytes, whatever they are, and in the last of a longer file's."""
    with path.open("rb") as file:
        start = file.read(most)
        file.seek(max(len(start), path.stat().st_size - most // 16))
        return (start + file.read(most // 16)).decode("utf-8", "replace")


def ending(text: str, most: int = 4000) -> str:
    """The end of what a program printed; of a progress bar only its last state."""
    shown = [each.rstrip("\r").rpartition("\r")[2] for each in text[-16 * most :].split("\n")]
    kept = "\n".join(shown)
    left_out = len(text) > 16 * most or len(kept) > most
    return ("... " if left_out else "") + kept[-most:]


class Reader:
    """Takes a probe's events, each by the method of its name."""

    def __init__(self, rank: Rank):
        self.rank = rank
        self.current = None  # the weights' sketches
        self.checksums = []  # of the same weights
        self.backward_ended = 0.0
        self.ended = []  # magnitudes of the gradients at the end of each pass's backward
        self.arrived = []  # and of those that it brought
        self.local_sum: tuple | None = None  # (sketches, norm) of what they brought together
        self.passes = []  # of the step under way: a Forward, or None for a backward pass
        self.forwards = []  # passes whose backward has not run
        self.done = []  # passes whose backward has run
        self.values = []
        self.collectives = []
        self.weights_changed_early = False

    def model(self, names, sizes, parts, ddp, pieces=()):
        """A model was called for the first time."""
        if not self.rank.names:
            self.rank.names, self.rank.sizes = [str(name) for name in names], sizes
            self.rank.parts = parts
            self.rank.pieces = list(pieces)
        self.rank.ddp = self.rank.ddp or ddp

    def weights(self, weights, checksums):
        """The weights have changed outside an update, or are the first."""
        self.current, self.checksums = unpack(weights), checksums
        if self.rank.start is None:
            self.rank.start = self.current
        elif self.done:
            self.weights_changed_early = True
        elif self.rank.steps and not self.forwards:  # changed after the update, before the next
            self.rank.steps[-1].after, self.rank.steps[-1].checksums = self.current, checksums

    def updated(self, weights, checksums):
        """An update has changed the weights."""
        self.current, self.checksums = unpack(weights), checksums
        self.rank.steps[-1].after, self.rank.steps[-1].checksums = self.current, checksums
        self.rank.steps[-1].updated = self.current

    def memory(self, **held):
        """What was held when an update had ended."""
        self.rank.steps[-1].memory = {name: int(held[name]) for name in sorted(held)}

    def moments(self, before, after):
        """The optimizer's moments when an update began, and when it had ended."""
        self.rank.steps[-1].moments = int(before), int(after)

    def forward(  # noqa: PLR0913 as the probe logs it
        self, grad, span, training, rows, loss, logits, losses=None, outputs=0
    ):
        """The model was called."""
        entered, left = span
        arrays = {name: unpack(packed) for name, packed in rows.items()}
        pairs = arrays if "next_sentence_label" in arrays else {}
        trimmed, masked = trim_pairs(arrays) if pairs else trim(arrays)
        predictions = None if logits is None else unpack(logits).argmax(axis=-1)
        one = Forward(trimmed, masked, training, loss, predictions, entered)
        one.losses, one.arrays, one.outputs = losses, pairs, outputs
        if grad:
            if self.rank.steps and not self.done and not self.forwards:
                self.rank.steps[-1].late, self.collectives = self.collectives, []
            self.forwards.append(one)
            self.passes.append(one)
            return
        steps, seen = len(self.rank.steps), self.rank.evaluations
        if not seen or seen[-1].after != steps:
            seen.append(Evaluation(steps, [], []))
        seen[-1].left = left
        seen[-1].masked = seen[-1].masked and masked
        seen[-1].training = seen[-1].training or training
        seen[-1].rows += trimmed
        seen[-1].predictions += [] if predictions is None else predictions.tolist()

    def backward(self, value):
        """A backward pass begins."""
        if not self.done:  # what came before the update's first one carried no gradients of it
            self.collectives = []
        trained = [f for f in self.forwards if f.training] or self.forwards
        self.passes.append(None)
        self.values.append(value)
        self.done += trained[-1:]
        self.forwards = []

    def backward_done(self, seconds, content, arrived):
        """A backward pass has ended."""
        self.backward_ended = seconds
        if content is not None:
            self.ended.append(content)
            self.arrived.append(arrived)

    def local(self, gradients, squares):
        """What a backward pass has added to the gradients, before they are averaged."""
        before, norm = self.local_sum or (0.0, 0.0)
        self.local_sum = before + unpack(gradients), (norm**2 + squares) ** 0.5

    def step(  # noqa: PLR0913
        self, gradients, rate, decay, optimizer, seconds, held, content, spent, parts, norm, outside
    ):
        """An update begins."""
        one = Step(
            forwards=self.done,
            values=self.values,
            gradients=unpack(gradients),
            rate=rate,
            decay=decay,
            optimizer=optimizer,
            after=self.current,  # unless `updated` replaces them
            checksums=self.checksums,
            collectives=self.collectives,
            seconds=seconds,
            weights_changed_early=self.weights_changed_early,
            waited=seconds - self.backward_ended - spent,
            held=held,
            content=content,
            own=own_contents(self.ended, self.arrived),
            parts=parts,
            norm=norm,
            outside=outside,
            passes=self.passes,
        )
        if self.local_sum:
            one.local, one.local_norm = self.local_sum
        self.rank.steps.append(one)
        self.passes = []
        self.done = []
        self.values = []
        self.ended = []
        self.arrived = []
        self.local_sum = None
        self.collectives = []
        self.forwards = []
        self.weights_changed_early = False

    def collective(self, **facts):
        """A collective begins."""
        facts["passes"] = len(self.done)
        facts["step"] = len(self.rank.steps)
        self.rank.collectives.append(facts)
        self.collectives.append(facts)


def trim_pairs(arrays: dict) -> tuple[list, bool]:
    """Rows of pre-training, without padding: (ids, segments, (the pair's label, its tokens'))."""
    ids, mask, labels = (arrays[key] for key in ("input_ids", "attention_mask", "labels"))
    lengths = mask.sum(axis=1)
    rows = [
        (tuple(row[:n].tolist()), tuple(kind[:n].tolist()), (int(follows), tuple(of[:n].tolist())))
        for row, kind, follows, of, n in zip(
            ids,
            arrays["token_type_ids"],
            arrays["next_sentence_label"],
            labels,
            lengths,
            strict=True,
        )
    ]
    return rows, bool((mask == (np.arange(ids.shape[1]) < lengths[:, None])).all())


def own_contents(ended: list, arrived: list) -> list:
    """The magnitudes of what a rank may pass on in a step: (ways, 3).

    Its gradients when the last backward pass had ended, or after each of them, or as they came.
    """
    if not ended:
        return []
    return np.array([ended[-1], np.sum(ended, axis=0), np.sum(arrived, axis=0)], float).tolist()


def trim(arrays):
    """The rows of a batch, without padding, and whether the mask hides exactly the padding."""
    ids = arrays["input_ids"]
    types = arrays.get("token_type_ids", np.zeros_like(ids))
    labels = arrays.get("labels", np.full(len(ids), -1)).reshape(len(ids), -1)[:, 0]
    lengths = ids.shape[1] - (ids[:, ::-1] != 0).argmax(axis=1)
    rows = [
        (tuple(row[:n].tolist()), tuple(kind[:n].tolist()), int(label))
        for row, kind, label, n in zip(ids, types, labels, lengths, strict=True)
        if label != IGNORED
    ]
    padding = np.arange(ids.shape[1]) >= lengths[:, None]
    mask = arrays.get("attention_mask", np.ones_like(ids)).reshape(ids.shape[0], -1)
    hidden = mask < 0 if (mask < 0).any() else mask == 0  # some add a large negative number
    masked = mask.shape != ids.shape or bool((hidden == padding).all())
    return rows, masked
