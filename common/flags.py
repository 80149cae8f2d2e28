"""The assignment's flags, in one table.

python -m common.flags     # prints the table of docs/running.md
"""

from typing import Any, NamedTuple

from common.tables import markdown_table


class Flag(NamedTuple):
    """One flag: its default (None: must be given), its values, and what it means."""

    name: str
    type: Any  # int, float, str, bool (a switch), or a tuple of the words allowed
    default: Any
    help: str
    at_least: float | None = None
    at_most: float | None = None
    bare: Any = None  # the value of a flag that is given without one


FLAGS = [
    Flag("data_dir", str, None, "folder of the task's files (train.tsv, dev.tsv)"),
    Flag("model_type", str, "bert", "checked against the checkpoint that was loaded"),
    Flag(
        "model_name_or_path",
        str,
        None,
        "hub name, folder, or `tiny` (built in; tiny:8 has 8 layers)",
    ),
    Flag("task_name", str, None, "one of GLUE's nine tasks, such as RTE"),
    Flag("output_dir", str, None, "folder that the run writes to"),
    Flag("do_train", bool, False, "train"),
    Flag("do_eval", bool, False, "evaluate on the dev set (after every epoch when training)"),
    Flag("max_seq_length", int, 128, "longest input in tokens; longer ones are truncated", 4),
    Flag("per_gpu_train_batch_size", int, 8, "examples of ONE worker per batch", 1),
    Flag("batch_sizes", str, "", "each worker's own instead, by rank: 24,20,12,8"),
    Flag("split", ("equal", "auto"), "equal", "parts of a batch; auto: by the speeds measured"),
    Flag("rebalance_steps", int, 20, "with --split auto: measure again after so many updates", 1),
    Flag("max_batch", str, "", "most examples that each worker can hold, by rank: 16,16,8,4"),
    Flag("slow", str, "", "pretend that workers are so many times slower: 1,1,2,4"),
    Flag("per_gpu_eval_batch_size", int, 8, "the same for evaluation", 1),
    Flag("gradient_accumulation_steps", int, 1, "batches added up before each update", 1),
    Flag("learning_rate", float, 5e-5, "AdamW's first learning rate", 0),
    Flag("weight_decay", float, 0.0, "weight decay, not applied to biases and LayerNorm", 0),
    Flag("adam_epsilon", float, 1e-8, "AdamW's epsilon", 0),
    Flag("max_grad_norm", float, 1.0, "gradients are clipped to this norm (1e9: they are not)", 0),
    Flag("num_train_epochs", float, 3.0, "passes over the training set", 0.01),
    Flag("max_steps", int, -1, "exactly this many updates instead (-1: by epochs)", -1),
    Flag("warmup_steps", int, 0, "updates of linear warm-up before the linear decay", 0),
    Flag("config_name", str, "", "configuration, if different from the model's"),
    Flag("tokenizer_name", str, "", "tokenizer, if different from the model's"),
    Flag("cache_dir", str, "", "folder for checkpoints from the hub"),
    Flag("do_lower_case", bool, False, "lower-case the input, whatever the tokenizer's default"),
    Flag("overwrite_output_dir", bool, False, "replace an earlier run in --output_dir"),
    Flag("overwrite_cache", bool, False, "tokenize again, even if there are cached features"),
    Flag("seed", int, 42, "seed for new weights, data order and dropout", 0, 2**32 - 1),
    Flag("no_cuda", bool, False, "use the CPU even if there are GPUs"),
    Flag("fp16", bool, False, "16-bit mixed precision (bfloat16: needs no loss scaling)"),
    Flag("dropout", float, -1.0, "override the checkpoint's dropout (-1: keep it)", -1),
    Flag("padded", bool, False, "compute on padding, too: same losses, slower (to compare)"),
    Flag("backend", ("auto", "gloo", "nccl"), "auto", "auto: nccl if every worker has its own GPU"),
    Flag("allow_nan", bool, False, "go on where a loss or a gradient is not finite"),
    Flag("save_strategy", ("epoch", "steps", "no"), "epoch", "when to save a checkpoint"),
    Flag("save_steps", int, 0, "save a checkpoint after every so many updates (0: do not)", 0),
    Flag("save_total_limit", int, 1, "checkpoints to keep: the newest", 1),
    Flag(
        "resume", str, "", "go on from the newest checkpoint (auto), or from a folder", bare="auto"
    ),
    Flag("other_world_size", bool, False, "resume a run of another number of workers"),
    Flag("sync_weights_steps", int, 0, "send rank 0's weights to all after so many updates", 0),
    Flag("count_traffic", bool, False, "count the bytes of collectives, and on the network"),
    Flag("trace", int, 0, "steps after the first to trace with torch.profiler (0: none)", 0),
    Flag("report_to", ("none", "tensorboard"), "none", "live view of loss, phases and bytes"),
    Flag("time_all_reduce", bool, False, "time a bare all_reduce of the gradients' bytes first"),
    Flag(
        "timeout", float, 300.0, "seconds to wait for other workers, in any collective", 1, 604800
    ),
    Flag(
        "init_method", str, "", "instead: tcp://IP:PORT, or file:///FOLDER/FILE on a shared folder"
    ),
    Flag("master_ip", str, "", "rank 0's address, as every worker reaches it"),
    Flag("master_port", int, -1, "a free port there, the same for every worker", 1024),
    Flag("world_size", int, 1, "number of workers", 1),
    Flag("local_rank", int, -1, "this worker's GLOBAL rank, 0 to world_size - 1", -1),
]


def describe(flag):
    """A flag's help, with its default."""
    if flag.default is None:
        return f"{flag.help} (required)"
    return flag.help if flag.default in (False, "") else f"{flag.help} (default: {flag.default})"


def flag_table():
    """The table of flags in docs/running.md."""
    rows = []
    for flag in FLAGS:
        default = "off" if flag.type is bool else flag.default
        default = "required" if default is None else default
        rows.append((f"`--{flag.name}`", default, flag.help))
    return markdown_table(("flag", "default", "meaning"), rows)


if __name__ == "__main__":
    print(flag_table())
