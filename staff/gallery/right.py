"""Right submissions, each written differently from the solution."""

from . import course_scripts, evaluations, pairs, samplers, tricks
from .divided import DIVIDED_RIGHT
from .lines import (
    EVALUATION,
    FORWARD,
    MODEL,
    RECORD,
    WRAP,
    sampled_by,
)
from .pretraining import PRETRAINING_RIGHT
from .right_gradients import GRADIENTS
from .sharded import SHARDED_RIGHT
from .uneven import UNEVEN_RIGHT
from .variants import Edit, File, Variant, begun_with, replaced, script
from .variations import VARIATIONS_RIGHT
from .wrong_inputs import RIGHT_INPUTS

OWN_LOSS = """\
                labels = batch.pop("labels")
                output = model(**batch)
                output.loss = torch.nn.functional.cross_entropy(output.logits, labels)
                loss = weight * output.loss
"""
OWN_ARGUMENTS = '''\
"""Task 2(b) with arguments of its own: the address first, and a few by place."""

import argparse
import sys

from common.run import run
from task2b import run_glue

parser = argparse.ArgumentParser()
parser.add_argument("where", help="host:port")
parser.add_argument("who", help="rank/size")
for name in ("m", "d", "o", "b", "e", "length", "lr", "epochs", "clip"):
    parser.add_argument(f"-{name}", required=True)
own = parser.parse_args()
(ip, port), (rank, size) = own.where.split(":"), own.who.split("/")
sys.argv[1:] = [
    *("--do_train", "--do_eval", "--overwrite_output_dir", "--task_name", "RTE"),
    *("--model_name_or_path", own.m, "--data_dir", own.d, "--output_dir", own.o),
    *("--per_gpu_train_batch_size", own.b, "--per_gpu_eval_batch_size", own.e),
    *("--max_seq_length", own.length, "--learning_rate", own.lr),
    *("--num_train_epochs", own.epochs, "--max_grad_norm", own.clip),
    *("--master_ip", ip, "--master_port", port, "--world_size", size, "--local_rank", rank),
]
run(run_glue.main, run_glue.__file__)
'''
OWN_MAPPING = """\
task2b:
  script: train.py
  arguments: >-
    {master_ip}:{master_port} {rank}/{world_size} -lr {learning_rate} -epochs {epochs}
    -length {max_seq_length} -clip {max_grad_norm} -b {batch} -e {eval_batch} -d {data_dir}
    -o {output_dir} -m {model}
"""
SAYS = "            self.bar.write(text)\n"
FILE = """\
            with (self.folder / "training.log").open("a") as file:
                print(text, file=file)
"""
DROP_LAST = "            sampler=self.sampler,\n"


def logging_with(name, task, old, new, note):
    """A variant that tells what it has to tell in its own way."""
    return Variant(name, task, (Edit(RECORD, old, new),), note=note)


RIGHT = (
    Variant("solution_1", "task1", note="this repository's own solution"),
    Variant("solution_4", "task4", note="this repository's own solution"),
    *GRADIENTS,
    Variant(
        "plain_ddp",
        "task3",
        (Edit(script("task3"), WRAP, "    model = DistributedDataParallel(model)\n"),),
        note="DistributedDataParallel with its defaults",
    ),
    Variant(
        "ddp_with_small_buckets",
        "task3",
        (
            Edit(
                script("task3"),
                "static_graph=True",
                "bucket_cap_mb=1, gradient_as_bucket_view=True",
            ),
        ),
        note="DistributedDataParallel with small buckets, and gradients that are views of them",
    ),
    Variant(
        "own_loss",
        "task2a",
        (Edit(script("task2a"), FORWARD, OWN_LOSS),),
        note="the loss is taken of the logits by hand: the model is given no labels",
    ),
    Variant(
        "plain_adamw",
        "task1",
        (Edit(MODEL, "fused=True", "foreach=False"),),
        note="torch's AdamW a tensor at a time",
    ),
    Variant(
        "contiguous_shards",
        "task2a",
        sampled_by(samplers.ContiguousShards),
        note="every rank keeps one stretch of the rows, and shuffles it in every epoch",
    ),
    Variant(
        "strided_permutation",
        "task2b",
        sampled_by(samplers.StridedPermutation),
        note="a permutation of its own, of which a rank takes every N-th row; the rest is left out",
    ),
    Variant(
        "drops_last_batch",
        "task3",
        (Edit("common/data/loader.py", DROP_LAST, DROP_LAST + "            drop_last=True,\n"),),
        note="the last batch of an epoch is left out where it is not full",
    ),
    Variant(
        "rank_0_evaluates",
        "task2a",
        (replaced(EVALUATION, evaluations.by_rank_0_alone, "evaluate"),),
        note="rank 0 evaluates all rows alone, while the others wait for it in the next gather",
    ),
    logging_with(
        "prints_json",
        "task2b",
        SAYS,
        '            print(json.dumps({"message": text}))\n',
        "prints lines of JSON",
    ),
    logging_with(
        "uses_logging",
        "task1",
        SAYS,
        '            __import__("logging").warning(text)\n',
        "writes with the logging module, on stderr",
    ),
    logging_with(
        "writes_to_a_file",
        "task3",
        SAYS,
        FILE,
        "prints nothing: writes into a file in the output folder",
    ),
    logging_with(
        "own_words",
        "task2a",
        'f"minibatch {step}: loss {loss}"',
        'f"[{step - 1}] {float(loss.split()[0]):.4g}"',
        "losses in words of its own, counted from 0, with four digits",
    ),
    Variant(
        "own_arguments",
        "task2b",
        (File("train.py", OWN_ARGUMENTS), File("grading.yaml", OWN_MAPPING)),
        note="a script with arguments of its own, some by place, and a mapping file",
    ),
    Variant(
        "leaves_children_behind",
        "task2a",
        (begun_with("task2a", tricks.leave_children),),
        note="every rank starts three children that outlive it: right, but they must be ended",
    ),
    Variant(
        "standalone_transformers",
        "task2a",
        folder="standalone_transformers",
        note="a script of its own, of the original assignment's kind, on transformers",
    ),
    Variant(
        "standalone_pytorch_transformers",
        "task2b",
        folder="standalone_pytorch_transformers",
        needs="pytorch_transformers",
        note="a script of its own in the manner of 2019, on pytorch_transformers",
    ),
    *pairs.RIGHT,
    *course_scripts.COURSE_RIGHT,
    *RIGHT_INPUTS,
    *UNEVEN_RIGHT,
    *SHARDED_RIGHT,
    *DIVIDED_RIGHT,
    *VARIATIONS_RIGHT,
    *PRETRAINING_RIGHT,
)
