"""Fine-tuning BERT on RTE with gradients averaged by gather and scatter (one file, no kit)."""

import argparse
import csv
import logging
import os
import random
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    get_linear_schedule_with_warmup,
)

logger = logging.getLogger(__name__)
LABELS = {"entailment": 0, "not_entailment": 1}


class InputFeatures:
    """One example, padded to the maximum length."""

    def __init__(self, input_ids, input_mask, segment_ids, label_id):
        self.input_ids = input_ids
        self.input_mask = input_mask
        self.segment_ids = segment_ids
        self.label_id = label_id


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def truncate_pair(first, second, longest):
    while len(first) + len(second) > longest:
        (first if len(first) > len(second) else second).pop()


def load_examples(args, tokenizer, split):
    path = os.path.join(args.data_dir, split + ".tsv")
    with open(path, encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    features = []
    for _, sentence1, sentence2, label in rows:
        tokens_a, tokens_b = tokenizer.tokenize(sentence1), tokenizer.tokenize(sentence2)
        truncate_pair(tokens_a, tokens_b, args.max_seq_length - 3)
        tokens = ["[CLS]", *tokens_a, "[SEP]", *tokens_b, "[SEP]"]
        segment_ids = [0] * (len(tokens_a) + 2) + [1] * (len(tokens_b) + 1)
        input_ids = tokenizer.convert_tokens_to_ids(tokens)
        padding = [0] * (args.max_seq_length - len(input_ids))
        input_mask = [1] * len(input_ids) + padding
        features.append(
            InputFeatures(input_ids + padding, input_mask, segment_ids + padding, LABELS[label])
        )
    return TensorDataset(
        torch.tensor([f.input_ids for f in features], dtype=torch.long),
        torch.tensor([f.input_mask for f in features], dtype=torch.long),
        torch.tensor([f.segment_ids for f in features], dtype=torch.long),
        torch.tensor([f.label_id for f in features], dtype=torch.long),
    )


def model_inputs(batch):
    names = ("input_ids", "attention_mask", "token_type_ids", "labels")
    return dict(zip(names, batch, strict=True))


def average_gradients(args, model):
    for param in model.parameters():
        if param.grad is None:
            continue
        if args.rank == 0:
            gathered = [torch.zeros_like(param.grad) for _ in range(args.num_nodes)]
            dist.gather(param.grad, gather_list=gathered, dst=0)
            mean = torch.stack(gathered).sum(dim=0) / args.num_nodes
            dist.scatter(param.grad, scatter_list=[mean] * args.num_nodes, src=0)
        else:
            dist.gather(param.grad, dst=0)
            dist.scatter(param.grad, src=0)


def train(args, train_dataset, model, tokenizer):
    sampler = DistributedSampler(train_dataset, num_replicas=args.num_nodes, rank=args.rank)
    dataloader = DataLoader(
        train_dataset, sampler=sampler, batch_size=args.per_device_train_batch_size
    )
    t_total = len(dataloader) * args.num_train_epochs
    no_decay = ["bias", "LayerNorm.weight"]
    groups = [
        [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)],
        [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)],
    ]
    optimizer = torch.optim.AdamW(
        [{"params": groups[0], "weight_decay": args.weight_decay}, {"params": groups[1]}],
        lr=args.learning_rate,
        eps=1e-8,
        weight_decay=0.0,
    )
    scheduler = get_linear_schedule_with_warmup(optimizer, 0, t_total)
    logger.info("***** Running training: %d examples *****", len(train_dataset))
    times, step = [], 0
    for epoch in range(args.num_train_epochs):
        sampler.set_epoch(epoch)
        model.train()
        for batch in dataloader:
            start = time.time()
            loss = model(**model_inputs(batch)).loss
            loss.backward()
            average_gradients(args, model)
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            optimizer.step()
            scheduler.step()
            model.zero_grad()
            times.append(time.time() - start)
            if step < 5:
                logger.info("iteration %d, loss = %.6f", step, loss.item())
            step += 1
        if args.do_eval and args.rank == 0:
            evaluate(args, model, tokenizer, epoch)
    if len(times) > 1:
        logger.info("average time per iteration (first discarded): %f", np.mean(times[1:]))


def evaluate(args, model, tokenizer, epoch):
    dataset = load_examples(args, tokenizer, "dev")
    size = args.per_device_eval_batch_size
    preds, labels = [], []
    model.eval()
    for batch in DataLoader(dataset, sampler=SequentialSampler(dataset), batch_size=size):
        with torch.no_grad():
            logits = model(**model_inputs(batch)).logits
        preds.append(logits.numpy())
        labels.append(batch[3].numpy())
    preds, labels = np.concatenate(preds).argmax(axis=1), np.concatenate(labels)
    with open(os.path.join(args.output_dir, "eval_results.txt"), "a") as file:
        file.write(f"acc = {(preds == labels).mean()}\n")
    logger.info(
        "***** Eval results after epoch %d: acc = %s *****", epoch, (preds == labels).mean()
    )


def parse_args():
    parser = argparse.ArgumentParser()
    for name in ("data_dir", "model_type", "model_name_or_path", "task_name", "output_dir"):
        parser.add_argument("--" + name, required=True)
    for name in ("do_train", "do_eval", "overwrite_output_dir"):
        parser.add_argument("--" + name, action="store_true")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--per_device_eval_batch_size", type=int, default=8)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--weight_decay", type=float, default=0.0)
    parser.add_argument("--max_grad_norm", type=float, default=1.0)
    parser.add_argument("--num_train_epochs", type=lambda text: int(float(text)), default=3)
    parser.add_argument("--master_ip", required=True)
    parser.add_argument("--master_port", type=int, required=True)
    parser.add_argument("--num_nodes", type=int, required=True)
    parser.add_argument("--rank", type=int, required=True)
    return parser.parse_args()


def main():
    args = parse_args()
    logging.basicConfig(
        format="%(asctime)s - %(levelname)s - %(name)s -   %(message)s",
        datefmt="%m/%d/%Y %H:%M:%S",
        level=logging.INFO if args.rank == 0 else logging.WARN,
    )
    os.makedirs(args.output_dir, exist_ok=True)
    dist.init_process_group(
        backend="gloo",
        init_method=f"tcp://{args.master_ip}:{args.master_port}",
        world_size=args.num_nodes,
        rank=args.rank,
    )
    set_seed(42)
    config = BertConfig.from_pretrained(args.model_name_or_path, num_labels=2)
    tokenizer = BertTokenizer.from_pretrained(args.model_name_or_path)
    model = BertForSequenceClassification.from_pretrained(args.model_name_or_path, config=config)
    if args.do_train:
        train(args, load_examples(args, tokenizer, "train"), model, tokenizer)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
