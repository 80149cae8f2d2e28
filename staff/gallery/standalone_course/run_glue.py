"""Fine-tunes BERT on a GLUE task, on several machines."""

import argparse
import logging
import os
import random
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    get_linear_schedule_with_warmup,
)
from utils_glue import RteProcessor, convert_examples_to_features

logger = logging.getLogger(__name__)
PROCESSORS = {"rte": RteProcessor}


def set_seed(args):
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)


def sync_gradients(args, model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
            p.grad /= args.world_size


def save_log(args, name, text):
    with open(os.path.join(args.output_dir, name), "a") as file:
        file.write(text + "\n")


def train(args, train_dataset, model, tokenizer):
    args.train_batch_size = args.per_gpu_train_batch_size
    if args.world_size > 1:
        train_sampler = DistributedSampler(train_dataset, args.world_size, args.local_rank)
    else:
        train_sampler = RandomSampler(train_dataset)
    train_dataloader = DataLoader(
        train_dataset, sampler=train_sampler, batch_size=args.train_batch_size
    )
    t_total = len(train_dataloader) * int(args.num_train_epochs)
    no_decay = ["bias", "LayerNorm.weight"]
    decayed = [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)]
    others = [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": args.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=args.learning_rate,
        eps=args.adam_epsilon,
    )
    scheduler = get_linear_schedule_with_warmup(optimizer, args.warmup_steps, t_total)
    logger.info("***** Running training *****")
    logger.info("  Num examples = %d", len(train_dataset))
    logger.info("  Total optimization steps = %d", t_total)

    global_step, tr_loss, times = 0, 0.0, []
    model.zero_grad()
    for epoch in range(int(args.num_train_epochs)):
        if args.world_size > 1:
            train_sampler.set_epoch(epoch)
        for batch in train_dataloader:
            start = time.time()
            model.train()
            input_ids, input_mask, segment_ids, label_ids = (t.to(args.device) for t in batch)
            outputs = model(
                input_ids=input_ids,
                attention_mask=input_mask,
                token_type_ids=segment_ids,
                labels=label_ids,
            )
            loss = outputs[0]
            loss.backward()
            if args.world_size > 1:
                sync_gradients(args, model)
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            tr_loss += loss.item()
            optimizer.step()
            scheduler.step()
            model.zero_grad()
            times.append(time.time() - start)
            if global_step < 5 and args.local_rank in [-1, 0]:
                logger.info("minibatch %d loss: %.6f", global_step, loss.item())
            global_step += 1
        evaluate(args, model, tokenizer, epoch)
    if len(times) > 1:
        logger.info("average time per iteration: %.6f s", sum(times[1:]) / len(times[1:]))
    return global_step, tr_loss / global_step


def evaluate(args, model, tokenizer, epoch):
    eval_dataset = load_and_cache_examples(args, tokenizer, evaluate=True)
    eval_dataloader = DataLoader(
        eval_dataset,
        sampler=SequentialSampler(eval_dataset),
        batch_size=args.per_gpu_eval_batch_size,
    )
    preds, labels = [], []
    for batch in eval_dataloader:
        model.eval()
        with torch.no_grad():
            input_ids, input_mask, segment_ids, label_ids = (t.to(args.device) for t in batch)
            logits = model(
                input_ids=input_ids, attention_mask=input_mask, token_type_ids=segment_ids
            )[0]
        preds += logits.argmax(dim=1).tolist()
        labels += label_ids.tolist()
    acc = sum(p == q for p, q in zip(preds, labels, strict=True)) / len(labels)
    if args.local_rank in [-1, 0]:
        logger.info("***** Eval results after epoch %d *****", epoch)
        logger.info("  acc = %s", acc)
        save_log(args, "eval_results.txt", f"acc = {acc}")
    return {"acc": acc}


def load_and_cache_examples(args, tokenizer, evaluate=False):
    split = "dev" if evaluate else "train"
    processor = PROCESSORS[args.task_name.lower()]()
    cached = os.path.join(args.data_dir, f"cached_{split}_bert_{args.max_seq_length}")
    if os.path.exists(cached):
        logger.info("Loading features from cached file %s", cached)
        features = torch.load(cached)
    else:
        examples = processor.get_examples(args.data_dir, split)
        features = convert_examples_to_features(
            examples, processor.labels, args.max_seq_length, tokenizer
        )
        logger.info("Saving features into cached file %s", cached)
        torch.save(features, cached)
    return TensorDataset(
        torch.tensor([f.input_ids for f in features], dtype=torch.long),
        torch.tensor([f.input_mask for f in features], dtype=torch.long),
        torch.tensor([f.segment_ids for f in features], dtype=torch.long),
        torch.tensor([f.label_id for f in features], dtype=torch.long),
    )


def get_args():
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--data_dir", type=str, required=True, help="The input data dir, with the .tsv files.")
    add("--model_type", type=str, required=True, help="Model type, such as bert.")
    add("--model_name_or_path", type=str, required=True, help="Name or path of the model.")
    add("--task_name", type=str, required=True, help="Name of the GLUE task.")
    add("--output_dir", type=str, required=True, help="Folder for predictions and logs.")
    add("--max_seq_length", default=128, type=int, help="Longest input, in tokens.")
    add("--do_train", action="store_true", help="Whether to train.")
    add("--do_eval", action="store_true", help="Whether to evaluate on the dev set.")
    add("--per_gpu_train_batch_size", default=8, type=int, help="Batch size of one worker.")
    add("--per_gpu_eval_batch_size", default=8, type=int, help="Batch size for evaluation.")
    add("--learning_rate", default=5e-5, type=float, help="Initial learning rate for Adam.")
    add("--weight_decay", default=0.0, type=float, help="Weight decay, if we apply some.")
    add("--adam_epsilon", default=1e-8, type=float, help="Epsilon of the optimizer.")
    add("--max_grad_norm", default=1.0, type=float, help="Largest norm of the gradient.")
    add("--num_train_epochs", default=3.0, type=float, help="Number of epochs.")
    add("--warmup_steps", default=0, type=int, help="Linear warmup over warmup_steps.")
    add("--overwrite_output_dir", action="store_true", help="Overwrite the output folder.")
    add("--seed", type=int, default=42, help="Random seed.")
    add("--local_rank", type=int, default=-1, help="Rank of this worker.")
    add("--master_ip", type=str, default="10.10.1.1", help="Address of the master node.")
    add("--master_port", type=int, default=6585, help="Port of the master node.")
    add("--world_size", type=int, default=1, help="Number of workers.")
    return parser.parse_args()


def start_workers(args):
    if args.world_size > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{args.master_ip}:{args.master_port}",
            world_size=args.world_size,
            rank=args.local_rank,
        )


def main():
    args = get_args()
    if not os.path.exists(args.output_dir):
        os.makedirs(args.output_dir)
    args.device = torch.device("cpu")
    logging.basicConfig(
        format="%(asctime)s - %(levelname)s - %(name)s -   %(message)s",
        datefmt="%m/%d/%Y %H:%M:%S",
        level=logging.INFO if args.local_rank in [-1, 0] else logging.WARN,
    )
    start_workers(args)
    set_seed(args)
    config = BertConfig.from_pretrained(args.model_name_or_path, num_labels=2)
    tokenizer = BertTokenizer.from_pretrained(args.model_name_or_path)
    model = BertForSequenceClassification.from_pretrained(args.model_name_or_path, config=config)
    model.to(args.device)
    logger.info("Training/evaluation parameters %s", args)
    if args.do_train:
        train_dataset = load_and_cache_examples(args, tokenizer)
        global_step, tr_loss = train(args, train_dataset, model, tokenizer)
        logger.info(" global_step = %s, average loss = %s", global_step, tr_loss)


if __name__ == "__main__":
    main()
