"""Distributed data parallel training on RTE, all_reduce, in the manner of 2019."""

# ruff: noqa: B905, RUF005, UP031

import argparse
import csv
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from pytorch_transformers import (
    AdamW,
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    WarmupLinearSchedule,
)
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class InputExample:
    def __init__(self, guid, text_a, text_b=None, label=None):
        self.guid = guid
        self.text_a = text_a
        self.text_b = text_b
        self.label = label


class RteProcessor:
    def get_examples(self, data_dir, set_type):
        with open(os.path.join(data_dir, "%s.tsv" % set_type), encoding="utf-8-sig") as f:
            lines = list(csv.reader(f, delimiter="\t", quotechar=None, quoting=csv.QUOTE_NONE))
        examples = []
        for i, line in enumerate(lines):
            if i == 0:
                continue
            guid = "%s-%s" % (set_type, line[0])
            examples.append(InputExample(guid, line[1], line[2], line[-1]))
        return examples

    def get_labels(self):
        return ["entailment", "not_entailment"]


def convert_examples_to_features(examples, labels, length, tokenizer):
    label_map = {label: i for i, label in enumerate(labels)}
    rows = []
    for example in examples:
        tokens_a = tokenizer.tokenize(example.text_a)
        tokens_b = tokenizer.tokenize(example.text_b)
        while len(tokens_a) + len(tokens_b) > length - 3:
            if len(tokens_a) > len(tokens_b):
                tokens_a.pop()
            else:
                tokens_b.pop()
        tokens = [tokenizer.cls_token] + tokens_a + [tokenizer.sep_token]
        segment_ids = [0] * len(tokens)
        tokens += tokens_b + [tokenizer.sep_token]
        segment_ids += [1] * (len(tokens_b) + 1)
        input_ids = tokenizer.convert_tokens_to_ids(tokens)
        input_mask = [1] * len(input_ids)
        while len(input_ids) < length:
            input_ids.append(0)
            input_mask.append(0)
            segment_ids.append(0)
        rows.append((input_ids, input_mask, segment_ids, label_map[example.label]))
    return TensorDataset(*[torch.tensor(column, dtype=torch.long) for column in zip(*rows)])


def load_and_cache_examples(args, tokenizer, set_type):
    cached = os.path.join(args.out, "cached_%s_%d_%d" % (set_type, args.length, args.r))
    if os.path.exists(cached):
        return TensorDataset(*torch.load(cached))
    processor = RteProcessor()
    examples = processor.get_examples(args.data, set_type)
    dataset = convert_examples_to_features(examples, processor.get_labels(), args.length, tokenizer)
    torch.save(list(dataset.tensors), cached)
    return dataset


def to_inputs(batch):
    return {
        "input_ids": batch[0],
        "attention_mask": batch[1],
        "token_type_ids": batch[2],
        "labels": batch[3],
    }


def evaluate(args, model, tokenizer, prefix=""):
    dataset = load_and_cache_examples(args, tokenizer, "dev")
    loader = DataLoader(dataset, sampler=SequentialSampler(dataset), batch_size=args.eval_batch)
    model.eval()
    correct, total, loss_sum = 0, 0, 0.0
    for batch in loader:
        with torch.no_grad():
            loss, logits = model(**to_inputs(batch))[:2]
        correct += (logits.argmax(dim=1) == batch[3]).sum().item()
        loss_sum += loss.item() * len(batch[3])
        total += len(batch[3])
    model.train()
    result = {"acc": correct / float(total), "eval_loss": loss_sum / total}
    if args.r == 0:
        print("%s %s" % (prefix, json.dumps(result)))
    return result


def train(args, dataset, model, tokenizer):
    if args.n == 1:
        sampler = RandomSampler(dataset)
    else:
        sampler = DistributedSampler(dataset, num_replicas=args.n, rank=args.r)
    loader = DataLoader(dataset, sampler=sampler, batch_size=args.batch)
    optimizer = AdamW(model.parameters(), lr=args.lr, eps=1e-8)
    scheduler = WarmupLinearSchedule(
        optimizer, warmup_steps=0, t_total=len(loader) * int(args.epochs)
    )
    model.zero_grad()
    total_time, counted = 0.0, 0
    for epoch in range(int(args.epochs)):
        if args.n > 1:
            sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            begin = time.time()
            model.train()
            input_ids, input_mask, segment_ids, labels = batch
            outputs = model(input_ids, segment_ids, input_mask)
            loss = F.cross_entropy(outputs[0], labels)
            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad.data, op=dist.ReduceOp.SUM)
                p.grad.data = p.grad.data / args.n
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            scheduler.step()
            model.zero_grad()
            if epoch == 0 and step < 5 and args.r == 0:
                print("step %d loss %f" % (step + 1, loss.item()))
            if epoch > 0 or step > 0:
                total_time += time.time() - begin
                counted += 1
        evaluate(args, model, tokenizer, prefix="epoch %d" % (epoch + 1))
    if args.r == 0 and counted:
        print("average iteration time: %.4f seconds over %d" % (total_time / counted, counted))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="RTE", type=str)
    parser.add_argument("--data", default=None, type=str, required=True)
    parser.add_argument("--model", default=None, type=str, required=True)
    parser.add_argument("--out", default=None, type=str, required=True)
    parser.add_argument("--batch", default=8, type=int)
    parser.add_argument("--eval_batch", default=8, type=int)
    parser.add_argument("--length", default=128, type=int)
    parser.add_argument("--lr", default=5e-5, type=float)
    parser.add_argument("--epochs", default=3.0, type=float)
    parser.add_argument("--clip", default=1.0, type=float)
    parser.add_argument("--ip", type=str)
    parser.add_argument("--port", type=int)
    parser.add_argument("--n", type=int)
    parser.add_argument("--r", type=int)
    args = parser.parse_args()
    if not os.path.exists(args.out):
        os.makedirs(args.out, exist_ok=True)
    dist.init_process_group(
        backend="gloo",
        init_method="tcp://%s:%d" % (args.ip, args.port),
        world_size=args.n,
        rank=args.r,
    )
    torch.manual_seed(42)
    config = BertConfig.from_pretrained(args.model, num_labels=2, finetuning_task="rte")
    tokenizer = BertTokenizer.from_pretrained(args.model, do_lower_case=True)
    model = BertForSequenceClassification.from_pretrained(args.model, config=config)
    train(args, load_and_cache_examples(args, tokenizer, "train"), model, tokenizer)
    dist.barrier()


if __name__ == "__main__":
    main()
