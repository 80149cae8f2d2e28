"""Submissions of task 6, right and wrong: what is cut, how it is averaged, clipped and gathered."""

import inspect

from . import slices
from .lines import EVALUATE, OPTIMIZER, STEP
from .variants import MARKER, ROOT, Edit, File, Variant, replaced, script

SHARDS = "common/shards.py"
GATHER = "            gather_weights(shards)\n"
GATHER_OLD = """\
            kept = [bucket.slice.detach().clone() for bucket in shards.buckets]
            optimizer.step()
            for bucket, old in zip(shards.buckets, kept, strict=True):
                dist.all_gather_single(bucket.weights, old)
"""
PART = "        part = math.ceil(self.size / self.world.size)\n"
LINES_OF_64 = "        part = 64 * math.ceil(self.size / self.world.size / 64)\n"
ZEROS = "        gradients = self.empty()\n"
SHARD = "    shard(model, args)\n"
POLICY = '        "mp_policy": '
MESH = 'init_device_mesh("cpu", (int(args.world_size), 1), mesh_dim_names=("copies", "one"))'
REPLICATED = f'        "mesh": {MESH},\n'
IMPORT_FSDP = "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard\n"
IMPORT_MESH = "from torch.distributed.device_mesh import init_device_mesh\n"
CLIP_CALL = "clip_grad_norm_(model.parameters(), args.max_grad_norm)"
STATE = "common/sharded_state.py"
WHOLE_STATE = """\
    return get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
"""
OWN_STATE = "    return {name: local(p).detach() for name, p in model.named_parameters()}\n"
SHARDS_MADE = "    shards = Shards(model, world, reduce_gradients)\n"
COPIED = '    first = __import__("copy").deepcopy(model)\n'
ALONE = EVALUATE.replace("evaluate(", "world.rank == 0 and evaluate(")
TASK_2B = MARKER.sub("", (ROOT / "task2b/run_glue.py").read_text())


def reducing(name, task, code, verdict, note):
    """A variant with our function `code` for reduce_gradients; `verdict` is "check/cause"."""
    return changed(name, task, (replaced(script(task), code, "reduce_gradients"),), verdict, note)


def clipping(name, code, verdict, note):
    """A variant of ZeRO-1 with our function `code` for clip_grad_norm."""
    return changed(name, "zero1", (replaced(SHARDS, code, "clip_grad_norm"),), verdict, note)


def changed(name, task, edits, verdict, note):
    """A variant that fails as in "check/cause"; one with "" is right."""
    check, _, cause = verdict.partition("/")
    return Variant(name, task, tuple(edits), (check,) if check else (), cause, note)


def with_clip(code):
    """FSDP's script with our function `code` in place of clip_grad_norm_."""
    source = inspect.getsource(code)
    return (
        Edit(script("fsdp"), CLIP_CALL, f"{code.__name__}(model, args.max_grad_norm)"),
        Edit(script("fsdp"), "def main(args, world):\n", f"{source}\n\ndef main(args, world):\n"),
        Edit(
            script("fsdp"),
            "from torch.nn.utils import clip_grad_norm_\n",
            "from torch.nn.utils import clip_grads_with_norm_\n",
        ),
    )


SHARDED_RIGHT = (
    *(Variant(f"solution_{t}", t, note="the solution") for t in ("zero1", "zero2", "fsdp")),
    reducing(
        "zero1_reduce_scatter",
        "zero1",
        slices.reduce_by_gloo,
        "",
        "gradients by reduce_scatter, as in ZeRO-2",
    ),
    reducing(
        "zero2_reduce_scatter",
        "zero2",
        slices.reduce_by_gloo,
        "",
        "the backend's reduce_scatter",
    ),
    changed(
        "fsdp_keeps_layers_gathered",
        "fsdp",
        (Edit(script("fsdp"), 'args.reshard_after_forward == "yes"', "False"),),
        "",
        "layers stay whole from their forward pass to their backward pass, and are gathered once",
    ),
    clipping(
        "zero1_gathers_norms",
        slices.clip_by_gathered_norms,
        "",
        "the slices' norms are gathered, and each rank takes the norm of these",
    ),
)
SHARDED_WRONG = (
    changed(
        "zero1_shards_nothing",
        "zero1",
        (File(script("zero1"), TASK_2B),),
        "shards/not_sharded",
        "2(b) under ZeRO-1's name: right losses, gradients and weights, and no byte is saved",
    ),
    reducing(
        "zero1_forgets_to_divide",
        "zero1",
        slices.summed_slice,
        "gradients/summed",
        "slices of the sum, which is not divided by the world size",
    ),
    clipping(
        "zero1_clips_by_local_norm",
        slices.clip_by_own_norm,
        "clipping/clipped_by_local_norm",
        "every rank clips its slices by their own norm",
    ),
    clipping(
        "zero1_adds_norms",
        slices.clip_by_sum_of_norms,
        "clipping/scaled",
        "adds the ranks' norms up, not their squares",
    ),
    changed(
        "zero1_counts_padding",
        "zero1",
        (
            Edit(SHARDS, PART, LINES_OF_64),
            Edit(SHARDS, ZEROS, "        gradients = torch.ones_like(self.weights)\n"),
        ),
        "clipping/padding_counted",
        "slices of whole cache lines, padded with ones, which count in the norm",
    ),
    changed(
        "zero1_forgets_to_gather",
        "zero1",
        (Edit(script("zero1"), GATHER, ""),),
        "identical/not_gathered",
        "every rank goes on with new weights in its own slices alone",
    ),
    changed(
        "zero1_gathers_too_early",
        "zero1",
        (Edit(script("zero1"), GATHER, ""), Edit(script("zero1"), STEP, GATHER + STEP)),
        "identical/not_gathered",
        "gathers before the update",
    ),
    changed(
        "zero1_gathers_old_weights",
        "zero1",
        (Edit(script("zero1"), STEP + GATHER, GATHER_OLD),),
        "loss/gathered_old_weights",
        "gathers copies of the slices that were made before the update",
    ),
    changed(
        "zero1_optimizer_of_the_model",
        "zero1",
        (Edit(script("zero1"), "make_optimizer(shards,", "make_optimizer(model,"),),
        "gradients/not_updated",
        "the optimizer has the model's weights, whose gradients the buckets take away",
    ),
    reducing(
        "zero2_keeps_all_gradients",
        "zero2",
        slices.view_of_mean,
        "shards/not_sharded",
        "the slice is a view of the whole bucket's gradients, which stay in memory",
    ),
    reducing(
        "zero2_never_sends",
        "zero2",
        slices.own_slice,
        "gradients/no_sync",
        "every rank uses its own gradients for its slice",
    ),
    changed(
        "fsdp_optimizer_before_shard",
        "fsdp",
        (Edit(script("fsdp"), SHARD + OPTIMIZER, OPTIMIZER + SHARD),),
        "loss/not_updated",
        "the optimizer has the tensors that were the weights before fully_shard",
    ),
    changed(
        "fsdp_shards_over_one",
        "fsdp",
        (
            Edit(script("fsdp"), POLICY, REPLICATED + POLICY),
            Edit(script("fsdp"), IMPORT_FSDP, IMPORT_MESH + IMPORT_FSDP),
        ),
        "shards/not_sharded",
        "a mesh of N replicas of one shard: right numbers, and no byte is saved",
    ),
    changed(
        "fsdp_clips_by_local_norm",
        "fsdp",
        with_clip(slices.clip_local_parts),
        "clipping/clipped_by_local_norm",
        "every rank clips its parts by their own norm",
    ),
    changed(
        "fsdp_saves_one_part",
        "fsdp",
        (Edit(STATE, WHOLE_STATE, OWN_STATE),),
        "saved/saved_wrong",
        "rank 0 saves its part of each tensor under the tensor's name",
    ),
    changed(
        "zero1_saves_too_early",
        "zero1",
        (
            Edit(script("zero1"), SHARDS_MADE, COPIED + SHARDS_MADE),
            Edit(script("zero1"), "record.finish(model)", "record.finish(first)"),
        ),
        "saved/saved_wrong",
        "what is saved are the weights before the training",
    ),
    changed(
        "fsdp_evaluates_on_rank_0",
        "fsdp",
        (Edit(script("fsdp"), EVALUATE, ALONE),),
        "runs/hang",
        "only rank 0 evaluates, and waits for the others' parts of the weights",
    ),
)
