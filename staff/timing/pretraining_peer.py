"""Hugging Face's Trainer in place of task 8's loop: the same rows, model, batch and optimizer.

Takes task 8's flags, for one worker; writes the seconds of each step to --output_dir/seconds.json.
"""

import json
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

from common import cli
from common.data.corpus import Corpus
from common.data.pretraining import PretrainingBatches, PretrainingRows, load_tokenizer
from common.models.pretraining import configuration
from common.pretraining import apply_config
from common.pretraining_flags import FLAGS

import torch
import transformers
from torch.utils.data import Dataset


class Rows(Dataset):
    """The rows of the first epoch, in its order."""

    def __init__(self, rows: PretrainingRows):
        self.order = rows.order(1).tolist()

    def __len__(self):
        return len(self.order)

    def __getitem__(self, place):
        return self.order[place]


class Seconds(transformers.TrainerCallback):
    """The time of each step, from its beginning to the next one's."""

    def __init__(self):
        self.starts = []

    def on_step_begin(self, *_, **__):
        """Note when a step begins."""
        self.starts.append(time.perf_counter())


def main():
    """Train, and write the seconds."""
    args = cli.parse_args(__file__, FLAGS)
    apply_config(args)
    torch.manual_seed(args.seed)
    corpus = Corpus(args.data_dir)
    rows = PretrainingRows(corpus, args.max_seq_length, args.seed)
    world = SimpleNamespace(rank=0, size=1, device=torch.device("cpu"))
    batches = PretrainingBatches({"train": rows}, None, args, world)
    config = configuration(args, len(load_tokenizer(corpus)))
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = max(0.0, args.dropout)
    seconds = Seconds()
    transformers.Trainer(
        transformers.BertForPreTraining(config),
        transformers.TrainingArguments(
            args.output_dir,
            per_device_train_batch_size=args.per_gpu_train_batch_size,
            max_steps=args.max_steps,
            learning_rate=args.learning_rate,
            weight_decay=args.weight_decay,
            optim="adamw_torch_fused",
            remove_unused_columns=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=Rows(rows),
        data_collator=lambda places: batches.collate(1, places),
        callbacks=[seconds],
    ).train()
    starts = [*seconds.starts, time.perf_counter()]
    took = [after - before for before, after in pairwise(starts)]
    (Path(args.output_dir) / "seconds.json").write_text(json.dumps(took))


if __name__ == "__main__":
    main()
