"""Wrong submissions whose mistake is in the data, the loop, the update, or what they tell."""

from . import evaluations, samplers
from .lines import (
    BACKWARD,
    CLIP,
    EVALUATE,
    EVALUATION,
    FORWARD,
    LOADER,
    MINIBATCH,
    MODEL,
    OPTIMIZER,
    RECORD,
    SAMPLER,
    SCHEDULE,
    TRAFFIC,
    ZERO,
    before,
    sampled_by,
    without,
)
from .variants import Edit, Variant, replaced, script

SET_EPOCH = "        self.sampler.set_epoch(epoch)  # else every epoch has the order of the first\n"
HALVES = """\
                half = len(batch["labels"]) // 2
                for part in (slice(None, half), slice(half, None)):
                    loss = model(**{key: tensor[part] for key, tensor in batch.items()}).loss
                    loss.backward()
"""
UNMASKED = FORWARD.replace("**batch", '**{k: v for k, v in batch.items() if k != "attention_mask"}')
PLAIN = '            {"params": plain, "weight_decay": 0.0},\n'
UNMOVED = PLAIN.replace("}", ', "lr": 0.0}')
MEAN_TIME = 'f"mean time per iteration: {mean:.4f} s "'
SIZE = "size = tensor.numel() * tensor.element_size()"
ACCUMULATED = "two backward passes per step, and neither loss is halved"
SAME_DATA = "no distributed sampler: every rank reads all rows, in the same order"
SAME_ORDER = "set_epoch is never called: every epoch has the order of the first"
KEPT = "optimizer.zero_grad() is missing: gradients of earlier steps stay"
NO_MASK = "the model is not given the attention mask, and attends to padding"


def wrong(name, task, edits, check, cause, note):
    """A variant that fails one check."""
    edits = (edits,) if isinstance(edits[0], str) else tuple(edits)
    return Variant(name, task, edits, (check,), cause, note)


def accumulating(task):
    return without(task, BACKWARD), Edit(script(task), FORWARD, HALVES)


SAME = Edit(LOADER, SAMPLER, "DistributedSampler(features, 1, 0, seed=args.seed)")
SAME_EPOCHS = Edit(LOADER, SET_EPOCH, "")
TRAINING = (
    wrong("every_rank_same_data_2a", "task2a", SAME, "data", "same_data", SAME_DATA),
    wrong("every_rank_same_data_2b", "task2b", SAME, "data", "same_data", SAME_DATA),
    wrong("every_rank_same_data_3", "task3", SAME, "data", "same_data", SAME_DATA),
    wrong(
        "half_of_the_rows",
        "task2b",
        sampled_by(samplers.HalfOfTheRows),
        "data",
        "rows_missing",
        "ranks step through the rows by 2N: every second one is never read",
    ),
    wrong(
        "batch_not_divided",
        "task2a",
        Edit(LOADER, "args.per_gpu_train_batch_size", "args.per_gpu_train_batch_size * world.size"),
        "batch",
        "batch_not_divided",
        "every worker takes the total batch: N times too many",
    ),
    wrong("forgets_set_epoch_2a", "task2a", SAME_EPOCHS, "shuffle", "not_reshuffled", SAME_ORDER),
    wrong("forgets_set_epoch_3", "task3", SAME_EPOCHS, "shuffle", "not_reshuffled", SAME_ORDER),
    wrong(
        "accumulation_unscaled_1",
        "task1",
        accumulating("task1"),
        "gradients",
        "accumulation_unscaled",
        ACCUMULATED,
    ),
    wrong(
        "accumulation_unscaled_2b",
        "task2b",
        accumulating("task2b"),
        "gradients",
        "accumulation_unscaled",
        ACCUMULATED,
    ),
    wrong(
        "zero_grad_missing_1",
        "task1",
        without("task1", ZERO),
        "gradients",
        "gradients_kept",
        KEPT,
    ),
    wrong(
        "zero_grad_missing_2b",
        "task2b",
        without("task2b", ZERO),
        "gradients",
        "gradients_kept",
        KEPT,
    ),
    wrong(
        "forgets_attention_mask_1",
        "task1",
        Edit(script("task1"), FORWARD, UNMASKED),
        "loss",
        "no_mask",
        NO_MASK,
    ),
    wrong(
        "forgets_attention_mask_2a",
        "task2a",
        Edit(script("task2a"), FORWARD, UNMASKED),
        "loss",
        "no_mask",
        NO_MASK,
    ),
    wrong(
        "never_clips",
        "task1",
        without("task1", CLIP),
        "clipping",
        "not_clipped",
        "gradients are not clipped at all",
    ),
    wrong(
        "different_seed_per_rank",
        "task2a",
        before("task2a", OPTIMIZER, "    model.classifier.reset_parameters()\n"),
        "start",
        "different_start",
        "the classifier is drawn anew, differently on each rank",
    ),
    wrong(
        "trains_from_scratch",
        "task1",
        before("task1", OPTIMIZER, "    model = type(model)(model.config)\n"),
        "start",
        "different_start",
        "a new model of the same shape: the weights are not loaded",
    ),
    wrong(
        "forgets_scheduler_step",
        "task2b",
        without("task2b", SCHEDULE),
        "parameters",
        "unscheduled",
        "scheduler.step() is missing: the learning rate never decays",
    ),
    wrong(
        "learning_rate_times_world_size",
        "task3",
        Edit(MODEL, "lr=args.learning_rate", "lr=args.learning_rate * args.world_size"),
        "parameters",
        "wrong_rate",
        "the learning rate is multiplied by the world size",
    ),
    wrong(
        "biases_never_updated",
        "task1",
        Edit(MODEL, PLAIN, UNMOVED),
        "parameters",
        "wrong_update",
        "biases and LayerNorms are given a learning rate of 0",
    ),
    wrong(
        "evaluates_on_a_shard",
        "task2a",
        replaced(EVALUATION, evaluations.on_own_shard, "evaluate"),
        "metric",
        "shard_evaluated",
        "rank 0 prints the accuracy of its own share of the rows",
    ),
    wrong(
        "evaluates_half",
        "task1",
        replaced(EVALUATION, evaluations.on_the_first_half, "evaluate"),
        "metric",
        "shard_evaluated",
        "only the first half of the dev set is scored",
    ),
    wrong(
        "evaluates_once",
        "task1",
        Edit(script("task1"), EVALUATE, EVALUATE[4:]),
        "metric",
        "metric_missing",
        "the metric is taken at the end, not after every epoch",
    ),
    wrong(
        "times_first_iteration",
        "task2b",
        Edit(RECORD, "timed = self.seconds[1:]", "timed = self.seconds[0:]"),
        "timing",
        "first_iteration_timed",
        "the first iteration is part of the mean time",
    ),
    wrong(
        "prints_no_time",
        "task3",
        Edit(RECORD, MEAN_TIME, '"all iterations done "'),
        "timing",
        "not_timed",
        "the mean time per iteration is not told",
    ),
    wrong(
        "prints_constant_loss",
        "task1",
        Edit(RECORD, MINIBATCH, 'self.say(f"minibatch {step}: loss 0.693147")'),
        "printed",
        "not_printed",
        "a constant is printed instead of the loss",
    ),
    wrong(
        "prints_no_loss",
        "task2a",
        Edit(RECORD, MINIBATCH, "pass"),
        "printed",
        "not_printed",
        "the losses of the first five minibatches are not told",
    ),
    wrong(
        "traffic_halved",
        "task4",
        Edit(TRAFFIC, SIZE, f"{SIZE} // 2"),
        "traffic",
        "wrong_traffic",
        "every collective is counted with half of its bytes",
    ),
    wrong(
        "traffic_in_elements",
        "task4",
        Edit(TRAFFIC, SIZE, "size = tensor.numel()"),
        "traffic",
        "wrong_traffic",
        "elements are counted as if they were bytes",
    ),
)
