"""One way to train a classifier, timed step by step; peers.py starts it like a task.

Each rank writes peer.rank<R>.json: its seconds per iteration and the most memory that it has held.
"""

import itertools
import json
import math
import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import task1.run_glue
import task2b.run_glue
from common.data.glue import GlueTask, find_file, find_glue_task, lines_of, parse
from common.files import write_whole
from common.flags import Flag
from common.load import load
from common.run import run
from common.workers.world import World
from staff.timing.sync_times import peak_memory

import torch
import torch.distributed as dist
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    get_linear_schedule_with_warmup,
)

Batches = Iterable[Any]


def ours(args: Namespace, world: World, _: Callable[[Batches], Batches]) -> list[float]:
    """This course's task 1, or with several workers 2(b); returns what its record has timed."""
    (task2b if world.size > 1 else task1).run_glue.main(args, world)
    lines = (Path(args.output_dir) / f"steps.rank{world.rank}.jsonl").read_text().splitlines()
    return [json.loads(line)["seconds"]["total"] for line in lines]


def accelerated(args: Namespace, world: World, timed: Callable[[Batches], Batches]) -> None:
    """A plain loop over transformers and accelerate, padded to the longest row of a batch."""
    from accelerate import Accelerator  # pyright: ignore  installed for this bench alone

    os.environ |= {"RANK": str(world.rank), "LOCAL_RANK": str(world.rank)}
    os.environ |= {"WORLD_SIZE": str(world.size), "MASTER_ADDR": args.master_ip or "127.0.0.1"}
    os.environ["MASTER_PORT"] = str(args.master_port)
    accelerator = Accelerator(cpu=True)
    tokenizer, (first, second, labels) = tokenizer_of(args), examples(args)
    rows = [
        {**tokenizer(a, b, truncation=True, max_length=args.max_seq_length), "labels": label}
        for a, b, label in zip(first, second, labels, strict=True)
    ]
    loader = DataLoader(
        rows,  # pyright: ignore[reportArgumentType]
        shuffle=True,
        collate_fn=DataCollatorWithPadding(tokenizer),
        batch_size=args.per_gpu_train_batch_size,
    )
    model = pretrained(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    scheduler = get_linear_schedule_with_warmup(optimizer, 0, args.max_steps)
    parts = accelerator.prepare(model, optimizer, loader, scheduler)
    model, optimizer, loader, scheduler = parts
    model.train()
    for batch in timed(loader):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def skeleton(args: Namespace, world: World, timed: Callable[[Batches], Batches]) -> None:
    """A reading of the assignment's skeleton, which padded, and clipped before it averaged.

    Every row has --max_seq_length tokens; attention is the eager one; there is a collective and an
    update for each tensor.
    """
    tokenizer, (first, second, labels) = tokenizer_of(args), examples(args)
    size: dict[str, Any] = {"max_length": args.max_seq_length, "padding": "max_length"}
    encoded = tokenizer(first, second, truncation=True, return_tensors="pt", **size)
    names = list(encoded)
    data = TensorDataset(*(encoded[name] for name in names), torch.tensor(labels))
    several = world.size > 1
    sampler = DistributedSampler(data, world.size, world.rank) if several else RandomSampler(data)
    loader = DataLoader(data, sampler=sampler, batch_size=args.per_gpu_train_batch_size)
    model = pretrained(args, attn_implementation="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, foreach=False)
    scheduler = get_linear_schedule_with_warmup(optimizer, 0, args.max_steps)
    model.train()
    for *inputs, target in timed(loader):
        loss = model(**dict(zip(names, inputs, strict=True)), labels=target).loss
        loss.backward()
        clip_grad_norm_(model.parameters(), args.max_grad_norm)
        if several:
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world.size
        optimizer.step()
        scheduler.step()
        model.zero_grad()
        loss.item()


def limit(args: Namespace, world: World, timed: Callable[[Batches], Batches]) -> None:
    """The encoder's matrix products alone, forward and backward, on the real tokens of ours."""
    model, data = load(args, world)
    config = model.config
    width, inner = config.hidden_size, config.intermediate_size
    heads = config.num_attention_heads
    shapes = [*[(width, width)] * 4, (width, inner), (inner, width)]
    lengths = [
        batch["attention_mask"].sum(1).tolist()
        for batches in itertools.islice(data.batches.epoch(1), args.max_steps)
        for batch, _ in batches
    ]
    longest = max(args.max_seq_length, width // heads)
    most = max(max(map(sum, lengths)) * inner, inner * width, heads * longest**2)
    ones, out = torch.ones(most), torch.empty(most)
    for rows in timed(lengths):
        for _ in range(config.num_hidden_layers):
            for before, after in shapes:
                dense(ones, out, (sum(rows), before, after))
            for length in rows:
                attention(ones, out, (heads, length, width // heads))


def dense(ones: torch.Tensor, out: torch.Tensor, shape: tuple[int, int, int]) -> None:
    """A layer's output, and the gradients of its input and of its weights."""
    tokens, before, after = shape
    x, weights = part(ones, tokens, before), part(ones, before, after)
    grad = part(ones, tokens, after)
    torch.mm(x, weights, out=part(out, tokens, after))
    torch.mm(grad, weights.T, out=part(out, tokens, before))
    torch.mm(x.T, grad, out=part(out, before, after))


def attention(ones: torch.Tensor, out: torch.Tensor, shape: tuple[int, int, int]) -> None:
    """The two products of a row's attention, and the four of their gradients."""
    heads, length, _ = shape
    query, weights = part(ones, *shape), part(ones, heads, length, length)
    for _ in range(2):
        torch.bmm(query, query.transpose(1, 2), out=part(out, heads, length, length))
    for _ in range(4):
        torch.bmm(weights, query, out=part(out, *shape))


def part(buffer: torch.Tensor, *shape: int) -> torch.Tensor:
    """The start of a kept buffer, in a shape."""
    return buffer[: math.prod(shape)].view(shape)


WAYS = {"ours": ours, "accelerate": accelerated, "skeleton": skeleton, "limit": limit}
FLAGS = [Flag("way", tuple(WAYS), "ours", "the loop that is timed")]


def examples(args: Namespace) -> tuple[list[str], list[str | None], list[Any]]:
    """First texts, second texts and labels of the training set."""
    glue_task: GlueTask = find_glue_task(args.task_name)
    path = find_file(glue_task, args.data_dir, "train")
    first, second, labels = zip(*parse(glue_task, "train", path, lines_of(path)), strict=True)
    return list(first), list(second), list(labels)


def tokenizer_of(args: Namespace) -> Any:
    """The checkpoint's tokenizer."""
    return AutoTokenizer.from_pretrained(args.model_name_or_path)


def pretrained(args: Namespace, **options: Any) -> Any:
    """The checkpoint as transformers loads it, with --dropout."""
    if args.dropout >= 0:
        options |= {"hidden_dropout_prob": args.dropout}
        options |= {"attention_probs_dropout_prob": args.dropout}
    return AutoModelForSequenceClassification.from_pretrained(args.model_name_or_path, **options)


def main(args: Namespace, world: World) -> None:
    """Train for --max_steps in the way that --way names, and write the times."""
    seconds: list[float] = []

    def timed(batches: Batches) -> Iterator[Any]:
        """--max_steps of these batches, again from the first where there are fewer."""
        turns = itertools.chain.from_iterable(itertools.repeat(batches))
        for _ in range(args.max_steps):
            start = time.perf_counter()
            yield next(turns)
            seconds.append(time.perf_counter() - start)

    recorded = WAYS[args.way](args, world, timed)
    facts = {"seconds": recorded or seconds, "peak_memory": peak_memory()}
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"peer.rank{world.rank}.json", json.dumps(facts) + "\n")


if __name__ == "__main__":
    run(main, __file__, FLAGS)
