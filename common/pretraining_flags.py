"""The flags of task 8, whose defaults pre-train a small BERT on a laptop."""

from common.flags import Flag
from common.own_task import PRETRAINING

FLAGS = [
    Flag("data_dir", str, None, "folder that task8/prepare.py has written"),
    Flag("model_name_or_path", str, "tiny", "weights to go on from (tiny, tiny-task1, a folder)"),
    Flag("task_name", (PRETRAINING,), PRETRAINING, "this task"),
    Flag("do_train", bool, True, "always on"),
    Flag("phase", ("1", "2"), "1", "1: short pairs; 2: then long ones, from phase 1's folder"),
    Flag("max_seq_length", int, 0, "longest pair in tokens (0: 128 in phase 1, 512 in phase 2)", 0),
    Flag("deepspeed_config", str, "", "DeepSpeed's JSON; else task8/phase1.json or phase2.json"),
    Flag("per_gpu_train_batch_size", int, 32, "pairs of ONE worker per batch", 1),
    Flag("learning_rate", float, 1e-3, "the optimizer's learning rate after the warm-up", 0),
    Flag("weight_decay", float, 0.01, "weight decay, not applied to biases and LayerNorm", 0),
    Flag("fp16", bool, False, "float16 with loss scaling"),
    Flag("bf16", bool, False, "bfloat16, which needs no loss scaling"),
]
