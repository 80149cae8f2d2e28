"""Bytes: passed to each collective, expected on the wire, and measured on the interface."""

import contextlib
import csv
import functools
import json
import platform
import sys
import threading
import time
from pathlib import Path

from common.files import write_whole
from common.layers import is_divided
from common.record.format import difference

import psutil
import torch
import torch.distributed as dist

RECORDED = ("all_reduce", "gather", "scatter")
SENT = {"isend": (1, 0), "irecv": (0, 1)}  # what one rank sends and receives of the tensor
# How many times what one rank sends in a ring's half of an all_reduce, (N-1)/N of the whole tensor.
HALVES = {
    "all_gather_single": 1,
    "all_to_all_single": 1,
    "reduce_scatter_single": 2,  # gloo's is an all_reduce inside; NCCL's costs half
}


# SOLUTION(task4): return the bytes that a ring, a gather and a scatter move
def expected_bytes(op, rank, size, tensor_bytes, root=0):
    """(sent, received) by `rank` of `size` ranks for one collective on a tensor of that many bytes.

    gloo's and NCCL's all_reduce passes the tensor around a ring, twice, a part at a time. gather
    carries it from every other rank to the root, scatter carries one part from there to each.
    Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
    MPICH", 2005; Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009.
    """
    if op == "all_reduce":
        ring = 2 * (size - 1) / size * tensor_bytes
        return ring, ring
    many, one = ((size - 1) * tensor_bytes, 0) if rank == root else (0, tensor_bytes)
    return (one, many) if op == "gather" else (many, one)


def wire_bytes(op, rank, size, tensor_bytes):
    """`expected_bytes`, of any collective that is recorded."""
    if op in SENT:
        return tuple(times * tensor_bytes for times in SENT[op])
    if op not in HALVES:
        return expected_bytes(op, rank, size, tensor_bytes)
    sent = HALVES[op] * (size - 1) / size * tensor_bytes
    return sent, sent


class Traffic:
    """The traffic of one rank's run.

    Tensors are recorded where they are passed to `recording`'s function, or with `every` wherever a
    step passes them to torch.distributed.
    `collectives` has a row for every tensor passed to one: step, op, shape, dtype, bytes.
    `iterations` has a dict for every step. If all workers share this machine, the interface is the
    loopback and carries what all of them send; otherwise it carries what this rank sends.
    """

    def __init__(self, args, world, every=False):
        self.args = args
        self.every = every
        self.divided = is_divided(args)
        self.world = world
        self.shared = world.nic not in {member["nic"] for member in world.members} or (
            len({member["address"] for member in world.members}) == 1
        )
        self.step = 1
        self.collectives = []
        self.group_sizes = {}  # number of a collective -> its ranks, where it is not of all
        self.iterations = []
        self.folder = Path(args.output_dir)
        self.stop = threading.Event()
        path = self.folder / f"net.rank{world.rank}.csv"
        rest = (world.nic, self.counters, self.stop)
        self.sampler = threading.Thread(target=sample, args=(path, *rest), daemon=True)
        self.sampler.start()

    # SOLUTION(task4): append (step, op, shape, dtype, bytes) of the tensor to self.collectives
    def note(self, op, tensor):
        """Record a tensor that is passed to a collective."""
        size = tensor.numel() * tensor.element_size()
        shape, dtype = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        self.collectives.append((self.step, op, shape, dtype, size))

    def recording(self, function):
        """`function`, with every tensor that it passes to a collective recorded."""

        @functools.wraps(function)
        def recorded(*args, **kwargs):
            with self.all_patched():
                return function(*args, **kwargs)

        return recorded

    @contextlib.contextmanager
    def all_patched(self):
        """While open, torch.distributed's collectives record their tensors before they run."""
        with contextlib.ExitStack() as stack:
            for op in (*RECORDED, *HALVES, *SENT):
                stack.enter_context(self.patched(op))
            yield

    @contextlib.contextmanager
    def patched(self, op):
        """While open, torch.distributed's `op` records its tensor, the largest, before it runs."""
        original = getattr(dist, op)

        def noting(*args, **kwargs):
            tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
            if group := kwargs.get("group"):
                self.group_sizes[len(self.collectives)] = dist.get_world_size(group)
            self.note(op, max(tensors, key=torch.Tensor.numel))
            return original(*args, **kwargs)

        # PyTorch's pipelines compare what they are given with the function of the inner module.
        places = [dist, dist.distributed_c10d] if op in SENT else [dist]
        for place in places:
            setattr(place, op, noting)
        try:
            yield
        finally:
            for place in places:
                setattr(place, op, original)

    def steps(self, steps, epoch):
        """Go through the steps of an epoch and measure each one's bytes on the interface."""
        if self.step == 1:
            dist.barrier()  # DDP's copy of the weights may still be on its way to another rank
        for step_batches in steps:
            before = self.counters()
            with self.all_patched() if self.every else contextlib.nullcontext():
                yield step_batches
            after, rank = self.counters(), self.world.rank
            mine = [(i, row) for i, row in enumerate(self.collectives) if row[0] == self.step]
            # Ranks of a divided model have their own tensors: the others' are added in the end.
            everyone = range(self.world.size) if self.shared and not self.divided else [rank]
            wire, own = (
                [
                    wire_bytes(op, r, self.group_sizes.get(i, self.world.size), size)
                    for i, (_, op, _, _, size) in mine
                    for r in ranks
                ]
                for ranks in (everyone, [rank])
            )
            self.iterations.append(
                {
                    "step": self.step,
                    "epoch": epoch,
                    "payload": sum(row[4] for _, row in mine),
                    "sent_bytes": sum(sent for sent, _ in own),
                    "received_bytes": sum(received for _, received in own),
                    "expected": sum(sent + received for sent, received in wire),
                    "measured": sum(after) - sum(before),
                }
            )
            self.step += 1

    def counters(self):
        """(bytes sent, bytes received) on the interface since it was set up."""
        # With nowrap=True, reads of two threads in the wrong order look like an overflow, and
        # everything counted so far is added once more.
        counts = psutil.net_io_counters(pernic=True, nowrap=False)[self.world.nic]
        return counts.bytes_sent, counts.bytes_recv

    def finish(self):
        """Write what was recorded; print the comparison on rank 0."""
        self.stop.set()
        self.sampler.join()
        if self.divided and self.shared:
            self.add_others()
        rank = self.world.rank
        with (self.folder / f"collectives.rank{rank}.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["step", "collective", "shape", "dtype", "bytes"])
            out.writerows(
                (step, op, "x".join(map(str, shape)), dtype, size)
                for step, op, shape, dtype, size in self.collectives
            )
        summary = self.summary()
        write_whole(self.folder / f"traffic.rank{rank}.json", json.dumps(summary, indent=1) + "\n")
        if rank == 0 and self.iterations:
            print(table(summary))

    def add_others(self):
        """Add what the other ranks expect where the interface carries that, too."""
        mine = [iteration["expected"] for iteration in self.iterations]
        every = [mine] * self.world.size
        dist.all_gather_object(every, mine)
        for iteration, all_ranks in zip(self.iterations, zip(*every, strict=True), strict=True):
            iteration["expected"] = sum(all_ranks)

    def summary(self):
        """The traffic as a dict: of each iteration, their mean, and of each epoch; in bytes."""
        return {
            "method": getattr(self.args, "method", self.args.task.removeprefix("task")),
            "dtype": getattr(self.args, "gradient_dtype", "float32"),
            "world_size": self.world.size,
            "interface": self.world.nic,
            "interface_carries": "all ranks" if self.shared else "this rank",
            "iterations": self.iterations,
            "epochs": [
                {"epoch": epoch, **total([i for i in self.iterations if i["epoch"] == epoch])}
                for epoch in sorted({i["epoch"] for i in self.iterations})
            ],
            "per_iteration": {
                key: value / len(self.iterations) for key, value in total(self.iterations).items()
            }
            if self.iterations
            else {},
        }


def sample(path, interface, read, stop):
    """Write an interface's bytes per second, once a second until `stop`, in dstat's CSV format.

    `read` returns the bytes that it has sent and received so far.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        out = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
        out.writerow(["dstat columns"])
        out.writerow(["Host:", platform.node(), "Interface:", interface])
        out.writerow(["Cmdline:", " ".join(sys.argv)])
        out.writerow(["system", "net/total", ""])
        out.writerow(["time", "recv", "send"])
        then, (sent, received) = time.monotonic(), read()
        while not stop.wait(1):
            now, (sent_now, received_now) = time.monotonic(), read()
            rates = (received_now - received) / (now - then), (sent_now - sent) / (now - then)
            out.writerow([time.strftime("%d-%m %H:%M:%S"), *rates])
            file.flush()
            then, sent, received = now, sent_now, received_now


def total(iterations):
    """The sums of the byte counts of some iterations."""
    names = ("payload", "sent_bytes", "received_bytes", "expected", "measured")
    return {name: sum(iteration[name] for iteration in iterations) for name in names}


def table(summary):
    """Expected and measured bytes, as text."""
    carried = "sent and received by " + summary["interface_carries"]
    rows = [
        ("passed to collectives by each rank", "payload"),
        ("sent by rank 0, expected", "sent_bytes"),
        ("received by rank 0, expected", "received_bytes"),
        (f"{carried}, expected", "expected"),
        (f"measured on {summary['interface']}", "measured"),
    ]
    mean, epoch = summary["per_iteration"], summary["epochs"][0]
    steps = sum(one["epoch"] == epoch["epoch"] for one in summary["iterations"])
    lines = [
        f"traffic of {summary['method']}, {summary['world_size']} workers, {summary['dtype']}:",
        f"{'bytes':44}{'per iteration':>16}{f'epoch 1: {steps} steps':>20}",
        *(f"{text:44}{mean[key]:16,.0f}{epoch[key]:20,.0f}" for text, key in rows),
    ]
    if difference(mean) is not None:
        lines.append(
            f"{'difference of measured and expected, %':44}"
            f"{difference(mean):16.2f}{difference(epoch):20.2f}"
        )
    return "\n".join(lines)
