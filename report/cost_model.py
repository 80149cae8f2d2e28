"""A cost model of an iteration of data-parallel training: latency, bandwidth, and computing.

Of a worker's batch of b examples, gradients of S bytes and links that carry B bytes per second each
way, N workers, the latency-bandwidth ("alpha-beta") model has

    compute          f + e b                      seconds, on a machine per worker
    gather+scatter   2 (N-1) (S/B + a k)          all through rank 0's link, in k slices
    ring all_reduce  2 (N-1) (S/(N B) + a)        a piece of 1/N per message
    all_gather       half of that; all_to_all, too; gloo's reduce_scatter as much (ZeRO and FSDP,
                     which gathers the weights twice, for the forward and the backward pass, and
                     on a CPU waits for each)
    exchanges        t times as much besides, where two workers send to each other at once: with
                     gloo their halves take turns (all_to_all, and all_gather of two workers)
    DDP              each bucket's ring as soon as its gradients are there, under the backward pass

and each worker spends c S seconds of its cores' time on handling what it sends and receives. In the
lab all workers share this machine's cores, so that compute and handling take N times as long.

Sources: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
MPICH", 2005 (the alpha-beta model); Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", 2009 (the ring); Li et al., "PyTorch Distributed", VLDB 2020 (buckets and
overlap).
"""

import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from common.errors import UserError
from common.tasks import BY_KEY
from common.units import bits_per_second

# How many times a ring's half of an all_reduce each collective passes the gradients or weights.
HALVES = {"all_reduce": 2, "all_to_all": 1, "reduce_scatter": 2, "all_gather": 1}
DDP_FIRST, DDP_BUCKET = 2**20, 25 * 2**20  # bytes: DistributedDataParallel's defaults


def bytes_per_second(rate: str) -> float:
    """1gbit -> 125e6."""
    return bits_per_second(rate) / 8


@dataclass(frozen=True)
class Model:
    """The calibrated costs of one model on one kind of machine, in seconds."""

    fixed: float  # f: of an iteration, whatever the batch (the update above all)
    example: float  # e: of each example
    latency: float  # a: of each message
    line: float  # of a byte, as a multiple of 1/B: headers, and what shaping costs
    turns: float  # t: of a byte of an exchange, as a multiple of 1/B, besides
    handling: float  # c: of a byte of gradients, on the worker's cores
    forward: float  # the share of the compute time that is before the backward pass
    backward: float  # the share of the backward pass
    gradient_bytes: int
    embedding_bytes: int  # of these, in the embedding, whose gradients come last

    def compute(self, batch: float) -> float:
        """Seconds of an iteration without synchronization."""
        return self.fixed + self.example * batch

    def network(self, task: str, workers: int, rate: str, size: int | None = None) -> float:
        """Seconds that the network takes to average `size` bytes (default: all gradients)."""
        size = self.gradient_bytes if size is None else size
        pieces, exchanged, messages = network_terms(task, workers, size)
        line = self.line * pieces + self.turns * exchanged
        return line / bytes_per_second(rate) + self.latency * messages

    def seconds(self, task: str, workers: int, batch: float, rate: str, sharing: int = 1) -> float:
        """Seconds of an iteration; `sharing` workers share one machine's cores."""
        compute = sharing * self.compute(batch)
        if workers == 1:
            return compute
        handling = sharing * self.handling * self.gradient_bytes
        if BY_KEY[task].sharded or not BY_KEY[task].overlaps:
            return compute + handling + self.network(task, workers, rate)
        return max(compute + handling, self.overlapped(task, workers, compute, rate) + handling)

    def overlapped(self, task: str, workers: int, compute: float, rate: str) -> float:
        """Seconds of an iteration of DDP: the network works on a bucket once it is ready."""
        rest = compute * (1 - self.forward - self.backward)
        start, sent = compute * self.forward, 0
        backward, done = compute * self.backward, start
        early = self.gradient_bytes - self.embedding_bytes
        while sent < self.gradient_bytes:
            size = min(DDP_BUCKET if sent else DDP_FIRST, self.gradient_bytes - sent)
            sent += size
            ready = start + backward * min(1.0, sent / early)
            done = max(done, ready) + self.network(task, workers, rate, size)
        return max(done, start + backward) + rest

    def efficiency(self, task: str, workers: int, batch: float, rate: str) -> float:
        """Of one worker's examples per second, the share that each of many reaches."""
        return self.compute(batch) / self.seconds(task, workers, batch, rate)


def network_terms(task: str, workers: int, size: int) -> tuple[float, float, int]:
    """(bytes through the busiest link in turn, of these in exchanges of two, messages in turn)."""
    from common.gradients import SLICE  # imports torch, which takes seconds
    from common.shards import BUCKET

    others, collectives = workers - 1, BY_KEY[task].collectives
    if "gather" in collectives:  # all through the root
        return 2 * others * size, 0, 2 * others * -(-size // (4 * SLICE))
    bucket = 4 * BUCKET if "all_gather" in collectives else DDP_BUCKET
    buckets = 1 if BY_KEY[task].by_hand else -(-size // bucket)
    passes = Counter({collective: HALVES[collective] for collective in collectives})
    passes["all_gather"] += "weights" in BY_KEY[task].sharded
    halves, half = passes.total(), others / workers * size
    in_turns = passes["all_to_all"] + passes["all_gather"] * (workers == 2)
    return halves * half, in_turns * half, halves * others * buckets


def calibrate(cells: list[dict]) -> tuple[Model, list[dict]]:
    """The Model from a few cells, and those cells: one worker's, and others' at one rate.

    The others are of the tasks that wait for each collective: their waiting is measured as such.
    The rate is the middle one (of two, the faster), the workers are the fewest and the most, the
    batch the smallest. Least squares of the relative errors, no cost below 0. Raises
    UserError where cells are missing.
    """
    alone = [cell for cell in cells if cell["workers"] == 1]
    many = [cell for cell in cells if cell["workers"] > 1 and BY_KEY[cell["task"]].waits]
    if len({cell["batch"] for cell in alone}) < 2 or not many:
        raise UserError(
            "to calibrate, a sweep needs one worker at two batch sizes, and a task that "
            "synchronizes by hand (2a, 2b) with more: pass --workers with 1 and a larger number, "
            "such as 1,2,4"
        )
    rates = sorted({cell["rate"] for cell in many}, key=bytes_per_second)
    ends = {pick(cell["workers"] for cell in many) for pick in (min, max)}
    least = min(cell["batch"] for cell in many)
    used = [
        cell
        for cell in many
        if (cell["rate"], cell["batch"]) == (rates[len(rates) // 2], least)
        and cell["workers"] in ends
    ]
    fixed, example = fit(
        [(1.0, cell["batch"]) for cell in alone], [cell["seconds"]["total"] for cell in alone]
    )
    rows = []
    for cell in used:
        size, workers = cell["gradient_bytes"], cell["workers"]
        pieces, exchanged, messages = network_terms(cell["task"], workers, size)
        lines = (each / bytes_per_second(cell["rate"]) for each in (pieces, exchanged))
        rows.append((messages, *lines, workers * size))
    latency, line, turns, handling = fit(rows, [cell["seconds"]["sync"] for cell in used])
    one = max(alone, key=lambda cell: cell["batch"])
    share = {phase: seconds / one["seconds"]["total"] for phase, seconds in one["seconds"].items()}
    return Model(
        fixed=fixed,
        example=example,
        latency=latency,
        line=line,
        turns=turns,
        handling=handling,
        forward=share["data"] + share["forward"],
        backward=share["backward"],
        gradient_bytes=one["gradient_bytes"],
        embedding_bytes=one["embedding_bytes"],
    ), [*alone, *used]


def fit(rows: list[tuple], times: list[float]) -> Iterator[float]:
    """The costs, none negative, whose sums with `rows` come closest to `times`, relatively."""
    import numpy
    from scipy.optimize import nnls

    weights = 1 / numpy.array(times)
    costs, _ = nnls(numpy.array(rows, dtype=float) * weights[:, None], times * weights)
    return map(float, costs)


def check(model: Model, cells: list[dict]) -> list[dict]:
    """A row for every cell of several workers: measured, predicted, and what limits it.

    Here all share one machine's cores: the network is a cell's limit where it takes at least half
    of the time that is predicted.
    """
    rows = []
    for cell in cells:
        task, workers, rate = cell["task"], cell["workers"], cell["rate"]
        if BY_KEY[task].divided:  # no formula here: see cluster_model
            continue
        predicted = model.seconds(task, workers, cell["batch"], rate, sharing=workers)
        network = model.network(task, workers, rate)
        measured = cell["seconds"]["total"]
        rows.append(
            {
                **{name: cell[name] for name in ("task", "workers", "batch", "rate")},
                "measured": measured,
                "predicted": predicted,
                "error": predicted / measured - 1,
                "limit": "network" if network >= predicted / 2 else "cores",
            }
        )
    return rows


def accuracy(rows: list[dict]) -> tuple[float, float] | None:
    """Median and largest |relative error| of the rows that the network limits; None if none are."""
    errors = [abs(row["error"]) for row in rows if row["limit"] == "network"]
    return (statistics.median(errors), max(errors)) if errors else None
