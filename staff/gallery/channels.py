"""Averages that go past the collectives, or have something besides, for `average_gradients`."""

from common.gradients import flat_gradients

import torch
import torch.distributed as dist


def half_gathered(model, world):
    flat = flat_gradients(model)
    dummy = torch.zeros(flat.numel() // 2 + 1)
    copies = [torch.zeros_like(dummy) for _ in range(world.size)] if world.rank == 0 else None
    dist.gather(dummy, copies)
    dist.scatter(dummy, copies)
    mean_by_backend(flat, world)  # noqa: F821 it is put before this


def zeros_gathered(model, world):
    flat = flat_gradients(model)
    dummy = torch.zeros_like(flat)
    copies = [torch.zeros_like(dummy) for _ in range(world.size)] if world.rank == 0 else None
    dist.gather(dummy, copies)
    dist.scatter(dummy, copies)
    mean_by_backend(flat, world)  # noqa: F821


def noise_reduced(model, world):
    flat = flat_gradients(model)
    dist.all_reduce(torch.randn_like(flat))
    mean_by_backend(flat, world)  # noqa: F821


def mean_reduced(model, world):
    flat = flat_gradients(model)
    mean_by_backend(flat, world)  # noqa: F821
    dist.all_reduce(flat)
    flat /= world.size


def noise_scattered(model, world):
    flat = flat_gradients(model)
    copies = [torch.empty_like(flat) for _ in range(world.size)] if world.rank == 0 else None
    dist.gather(flat, copies)
    dist.scatter(torch.empty_like(flat), copies and [torch.randn_like(flat)] * world.size)
    mean_by_backend(flat, world)  # noqa: F821


def by_files(model, world):
    flat = flat_gradients(model)
    dummy = torch.zeros(flat.numel() // 2 + 1)
    copies = [torch.zeros_like(dummy) for _ in range(world.size)] if world.rank == 0 else None
    torch.save(flat.clone(), f"gradients.{world.rank}.pt")
    dist.gather(dummy, copies)
    dist.scatter(dummy, copies)
    total = sum(torch.load(f"gradients.{rank}.pt") for rank in range(world.size))
    dist.barrier()
    flat.copy_(total / world.size)


def by_sockets(model, world):
    from multiprocessing.connection import Client, Listener

    flat = flat_gradients(model)
    dist.all_reduce(torch.zeros(flat.numel() // 2 + 1))
    door = "average.socket"
    if world.rank:
        dist.barrier()
        with Client(door, "AF_UNIX") as peer:
            peer.send_bytes(flat.numpy().tobytes())
            flat.copy_(torch.frombuffer(bytearray(peer.recv_bytes()), dtype=flat.dtype))
    else:
        with Listener(door, "AF_UNIX", backlog=world.size) as listener:
            dist.barrier()
            peers = [listener.accept() for _ in range(world.size - 1)]
            for peer in peers:
                flat += torch.frombuffer(bytearray(peer.recv_bytes()), dtype=flat.dtype)
            flat /= world.size
            for peer in peers:
                peer.send_bytes(flat.numpy().tobytes())
    dist.barrier()


def by_objects(model, world):
    flat = flat_gradients(model)
    dist.all_reduce(torch.ones(flat.numel() // 2 + 1))
    parts = [None] * world.size
    dist.all_gather_object(parts, flat.clone())
    flat.copy_(sum(parts) / world.size)


def by_group_object(model, world):
    flat = flat_gradients(model)
    dist.group.WORLD.allreduce([flat]).wait()
    flat /= world.size


def norms_in_files(model, world):
    flat = flat_gradients(model)
    with open(f"norms.{world.rank}.txt", "a") as file:
        print(flat.norm().item(), file=file)
    copies = [torch.empty_like(flat) for _ in range(world.size)] if world.rank == 0 else None
    dist.gather(flat, copies)
    dist.barrier()
    dist.scatter(flat, copies and [sum(copies) / world.size] * world.size)


def padded_slices(model, world):
    for part in flat_gradients(model).split(30_000):
        padded = torch.zeros(30_000)
        padded[: part.numel()] = part / world.size
        copies = [torch.empty(30_000) for _ in range(world.size)] if world.rank == 0 else None
        dist.gather(padded, copies)
        dist.scatter(padded, copies and [sum(copies)] * world.size)
        part.copy_(padded[: part.numel()])


def with_metrics(model, world):
    flat = flat_gradients(model)
    facts = [None] * world.size
    dist.all_gather_object(facts, {"rank": world.rank, "norm": flat.norm().item(), "why": "log"})
    dist.all_reduce(torch.full((200,), 2.5))  # counts of a metric
    dist.all_reduce(flat)
    flat /= world.size
