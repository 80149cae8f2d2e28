"""Submissions of task 7, right and wrong: what is divided, in which order it runs, what travels."""

from . import stages
from .sharded import changed
from .variants import Edit, Variant, replaced, script

STAGE, TENSOR = "common/models/stage.py", "common/models/tensor_parallel.py"
ISEND = "        self.sent[rank] = dist.isend(tensor, rank), tensor\n"
WAIT = "        if rank in self.sent:\n            self.sent[rank][0].wait()\n"
EMPTIED = "            layers[number] = Elsewhere()\n"
OUTER = (
    "        if not self.is_first:\n            leave_out_input(model.base_model, self.received)\n"
)
GO_BACK = """\
                if len(kept) > model.stages_after:
                    oldest = kept.pop(0)
                    backward(model, *oldest)
"""
KEPT = "                kept.append(forward(model, batch, weight))\n"
AT_ONCE = "                backward(model, *forward(model, batch, weight))\n"
LATER = "len(kept) > model.stages_after"
SUM_BACK = "        dist.all_reduce(gradients)\n"
SUM = "Sum.apply(linear(x, own.weight)) + own.bias"
ITSELF = "forward = lambda x, *_, **__: x\n"  # of a module: gives back what it is given
NO_EMBEDDINGS = """\
        if not self.is_first:
            model.base_model.embeddings.forward = self.received.forward
"""
NO_OUTPUT = f"    base.pooler.{ITSELF}    model.classifier.{ITSELF}    return\n"
BASE = "    base = model.base_model\n"
POOLER = '    if getattr(base, "pooler", None) is not None:\n'
WHOLE_MODEL = (
    Edit(STAGE, EMPTIED, f"            layers[number].{ITSELF}"),
    Edit(STAGE, OUTER, NO_EMBEDDINGS),
    Edit(STAGE, BASE + POOLER, BASE + NO_OUTPUT + POOLER),
)


def passing(name, task, code, verdict, note, function="forward"):
    """A variant with our function `code` for forward or backward; `verdict` is "check/cause"."""
    return changed(name, task, (replaced(script(task), code, function),), verdict, note)


def clipping(name, task, code, verdict, note):
    """A variant with our function `code` for clip_grad_norm."""
    place = TENSOR if task == "tensor" else STAGE
    return changed(name, task, (replaced(place, code, "clip_grad_norm"),), verdict, note)


def averaging(name, code, verdict, note):
    """A grid with our function `code` for average_gradients."""
    return changed(name, "grid", (replaced(script("grid"), code),), verdict, note)


DIVIDED_RIGHT = (
    *(
        Variant(f"solution_{t}", t, note="the solution")
        for t in ("naive", "gpipe", "one_f_one_b", "grid", "library", "tensor")
    ),
    changed(
        "gpipe_goes_back_from_the_last",
        "gpipe",
        (Edit(script("gpipe"), "kept.pop(0)", "kept.pop()"),),
        "",
        "all stages take the last micro-batch back first",
    ),
    clipping(
        "one_f_one_b_gathers_norms",
        "one_f_one_b",
        stages.clip_by_gathered_norms,
        "",
        "the stages' norms are gathered, and each takes the norm of these",
    ),
    clipping(
        "tensor_clips_in_one_sum",
        "tensor",
        stages.clip_parts_in_one_sum,
        "",
        "every worker counts its share of what all have",
    ),
    averaging(
        "grid_averages_each_tensor",
        stages.average_each,
        "",
        "a collective for each tensor",
    ),
)
DIVIDED_WRONG = (
    changed(
        "naive_holds_the_whole_model",
        "naive",
        WHOLE_MODEL,
        "divided/not_divided",
        "every stage keeps all layers and computes its own: right numbers, and no byte is saved",
    ),
    changed(
        "naive_embeddings_on_all_stages",
        "naive",
        (Edit(STAGE, OUTER, NO_EMBEDDINGS),),
        "divided/not_divided",
        "the other stages keep the embeddings, too",
    ),
    passing(
        "naive_receives_without_grad",
        "naive",
        stages.forward_without_grad,
        "runs/graph_cut",
        "the received inputs do not require gradients, so there is nothing to send back",
    ),
    passing(
        "naive_detaches_its_inputs",
        "naive",
        stages.forward_detached,
        "gradients/graph_cut",
        "a stage computes with a detached copy of its inputs, and sends zeros back",
    ),
    passing(
        "naive_ignores_what_comes_back",
        "naive",
        stages.backward_of_ones,
        "gradients/graph_cut",
        "a stage goes back from ones, not from the gradients that arrive",
        "backward",
    ),
    passing(
        "naive_broadcasts_activations",
        "naive",
        stages.forward_by_broadcast,
        "collectives/wrong_border",
        "all stages receive what only the next one needs",
    ),
    passing(
        "naive_fixed_to_four_stages",
        "naive",
        stages.forward_on_four,
        "workers/fixed_world_size",
        "the loss is that of stage 3, however many stages there are",
    ),
    clipping(
        "naive_clips_by_local_norm",
        "naive",
        stages.clip_by_own_norm,
        "clipping/clipped_by_local_norm",
        "every stage clips by the norm of its own gradients",
    ),
    passing(
        "gpipe_forgets_to_divide",
        "gpipe",
        stages.forward_unweighted,
        "gradients/accumulation_unscaled",
        "the losses of m micro-batches are added up, and not divided by m",
    ),
    passing(
        "gpipe_counts_micro_batches_alike",
        "gpipe",
        stages.forward_alike,
        "gradients/mean_of_means",
        "each micro-batch counts 1/m, also in a last batch that does not divide by m",
    ),
    changed(
        "gpipe_goes_back_at_once",
        "gpipe",
        (Edit(script("gpipe"), KEPT, AT_ONCE),),
        "order/wrong_order",
        "micro-batches without a pipeline: right numbers, and no two stages compute at once",
    ),
    changed(
        "one_f_one_b_is_gpipe",
        "one_f_one_b",
        (Edit(script("one_f_one_b"), GO_BACK, ""),),
        "order/wrong_order",
        "GPipe's order under 1F1B's name: right numbers, and it keeps all micro-batches",
    ),
    changed(
        "one_f_one_b_keeps_one_more",
        "one_f_one_b",
        (Edit(script("one_f_one_b"), LATER, "len(kept) > model.stages_after + 1"),),
        "order/wrong_order",
        "every stage keeps a micro-batch more than it needs",
    ),
    changed(
        "one_f_one_b_blocking_sends",
        "one_f_one_b",
        (Edit(STAGE, WAIT + ISEND, "        dist.send(tensor, rank)\n"),),
        "runs/hang",
        "two neighbors wait until the other receives",
    ),
    averaging(
        "grid_averages_nothing",
        stages.average_nothing,
        "gradients/no_sync",
        "every replica goes its own way",
    ),
    averaging(
        "grid_divides_by_all_workers",
        stages.average_over_everyone,
        "gradients/divided_twice",
        "divides by four workers, of which two hold each stage",
    ),
    changed(
        "tensor_forgets_the_sum_back",
        "tensor",
        (Edit(script("tensor"), SUM_BACK, ""),),
        "gradients/parts_not_summed",
        "each worker goes back with the gradients of its own parts",
    ),
    changed(
        "tensor_adds_the_bias_in_each_part",
        "tensor",
        (Edit(script("tensor"), SUM, "Sum.apply(linear(x, own.weight, own.bias))"),),
        "loss/parts_not_summed",
        "the bias is added by every worker before the sum",
    ),
    clipping(
        "tensor_clips_by_local_norm",
        "tensor",
        stages.clip_parts_by_own_norm,
        "clipping/clipped_by_local_norm",
        "every worker clips by the norm of what it has",
    ),
    clipping(
        "tensor_counts_copies_twice",
        "tensor",
        stages.clip_counting_copies,
        "clipping/scaled",
        "what all workers have is counted once for each",
    ),
)
