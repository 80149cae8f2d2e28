"""Submissions of task 8, right and wrong: masks, weights, LAMB, scaling, and what goes on."""

from . import masking, trust_ratios, weights_of_losses
from .lines import AVERAGE, CLIP
from .variants import Edit, Variant, replaced, script

TASK = "task8"
SCRIPT = script(TASK)
ROWS, LAMB = "common/data/pretraining.py", "common/models/lamb.py"
SETUP, SCHEDULES = "common/pretraining.py", "common/models/schedules.py"
RESUME, OPTIMIZER = "common/resume.py", "common/models/optimizer.py"
MASK_LINE = "        ids, labels = masked(rng, ids, self.corpus.vocab_size)\n"
STATIC = "        rng = np.random.default_rng((self.seed, row))\n"
ADAPTS = "adapts the loss scale, and returns whether weights were updated"
UPDATE = f"            if scaler.update():  # {ADAPTS}\n"
BACKWARD = "                scaler.scale(loss).backward()\n"
UNSCALE = "            scaler.unscale_(optimizer)\n"
STEP = "            scaler.step(optimizer)\n"
SCHEDULE = "                scheduler.step()\n"
LOAD = "    model, data = load(args, world)\n"
LOOP = """\
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, group)
"""
ONE_NORM = """\
        weights = [p for group in self.param_groups for p in group["params"]]
        before = [p.clone() for p in weights]
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p, {**group, "min_coeff": 1.0, "max_coeff": 1.0})
        made = [p - old for p, old in zip(weights, before)]
        total = [torch.cat([one.flatten() for one in each]) for each in (before, made)]
        lr = self.param_groups[0]["lr"]
        limits = self.param_groups[0]["min_coeff"], self.param_groups[0]["max_coeff"]
        ratio = trust_ratio(total[0], total[1] / lr, *limits)
        for p, old, one in zip(weights, before, made):
            p.copy_(old + ratio * one)
"""


def changed(name, edits, verdict, note):
    """A variant that fails as in "check/cause"; one with "" is right."""
    check, _, cause = verdict.partition("/")
    return Variant(name, TASK, tuple(edits), (check,) if check else (), cause, note)


def weighing(name, code, verdict, note):
    """A variant with our function `code` for weigh."""
    return changed(name, (replaced(SCRIPT, code, "weigh"),), verdict, note)


def masking_by(name, code, verdict, note):
    """A variant with our function `code` for masked."""
    return changed(name, (replaced(ROWS, code, "masked"),), verdict, note)


def scaling_by(name, code, verdict, note):
    """A variant with our function `code` for trust_ratio."""
    return changed(name, (replaced(LAMB, code, "trust_ratio"),), verdict, note)


def edited(name, file, old, new, verdict, note):
    """A variant with other lines in one place."""
    return changed(name, (Edit(file, old, new),), verdict, note)


PRETRAINING_RIGHT = (
    Variant("solution_8", TASK, note="the solution"),
    weighing(
        "pretrain_gathers_counts",
        weights_of_losses.gathered_counts,
        "",
        "the counts of all ranks are gathered, and added up there",
    ),
    changed(
        "pretrain_masks_by_word",
        (
            replaced(ROWS, masking.by_word, "masked"),
            replaced(LAMB, trust_ratios.branching, "trust_ratio"),
        ),
        "",
        "a coin for each word, and a trust ratio of Python's numbers",
    ),
)
PRETRAINING_WRONG = (
    edited(
        "pretrain_static_masks",
        ROWS,
        MASK_LINE,
        STATIC + MASK_LINE,
        "masks/static_masks",
        "masks drawn by seed and row: a row has the same ones in every epoch",
    ),
    masking_by(
        "pretrain_always_mask",
        masking.always_mask,
        "masks/mask_kinds",
        "all chosen words become [MASK]",
    ),
    masking_by(
        "pretrain_masks_special_tokens",
        masking.of_all_tokens,
        "masks/special_masked",
        "chooses among all tokens, [CLS] and [SEP] too",
    ),
    masking_by(
        "pretrain_loss_of_all_words",
        masking.all_labels,
        "masks/all_predicted",
        "every word has a label, masked or not",
    ),
    masking_by(
        "pretrain_labels_after_masking",
        masking.labels_after_masking,
        "pairs/wrong_labels",
        "labels are taken after words were replaced by others",
    ),
    changed(
        "pretrain_predicts_padding",
        (
            Edit(ROWS, '"labels": IGNORED}', '"labels": PAD}'),
            Edit(SCRIPT, LOAD, "    args.padded = True\n" + LOAD),
        ),
        "masks/pad_predicted",
        "labels are padded with 0, which is [PAD], and so is what is computed",
    ),
    edited(
        "pretrain_masks_a_quarter",
        ROWS,
        "MASKED = 0.15",
        "MASKED = 0.25",
        "masks/mask_share",
        "a quarter of the words",
    ),
    edited(
        "pretrain_turns_the_pairs_labels",
        ROWS,
        "torch.tensor(int(not follows))",
        "torch.tensor(int(follows))",
        "pairs/pairs_mislabeled",
        "1 where B follows A",
    ),
    weighing(
        "pretrain_mean_of_means",
        weights_of_losses.by_rows,
        "gradients/mean_of_means",
        "each micro-batch counts by its rows, whatever its masked words",
    ),
    weighing(
        "pretrain_mean_of_ranks_means",
        weights_of_losses.by_own_words,
        "gradients/mean_of_means",
        "counts by masked words, but only among this rank's",
    ),
    weighing(
        "pretrain_without_world_size",
        weights_of_losses.without_world_size,
        "gradients/divided_twice",
        "weights of the sum, and then the mean over the ranks",
    ),
    weighing(
        "pretrain_one_weight",
        weights_of_losses.by_words_alone,
        "gradients/one_weight",
        "pairs count by masked words, too",
    ),
    weighing(
        "pretrain_without_pairs",
        weights_of_losses.without_pairs,
        "gradients/loss_left_out",
        "the loss of the pairs has a weight of 0",
    ),
    edited(
        "pretrain_never_averages",
        SCRIPT,
        AVERAGE,
        "",
        "gradients/no_sync",
        "every rank updates with its own gradients",
    ),
    changed(
        "pretrain_reduces_every_pass",
        (
            Edit(SCRIPT, AVERAGE, ""),
            Edit(SCRIPT, BACKWARD, BACKWARD + "    " + AVERAGE),
        ),
        "collectives/wrong_payload",
        "an all_reduce after every micro-batch: right gradients, at twice the traffic",
    ),
    scaling_by(
        "pretrain_lamb_without_bounds",
        trust_ratios.without_bounds,
        "lamb/lamb_unbounded",
        "the trust ratio has no bounds",
    ),
    scaling_by(
        "pretrain_lamb_without_zeros",
        trust_ratios.without_zeros,
        "lamb/lamb_zero_norm",
        "divides by norms of 0",
    ),
    scaling_by(
        "pretrain_lamb_upside_down",
        trust_ratios.upside_down,
        "lamb/lamb_inverted",
        "the update's norm by the weight's",
    ),
    edited(
        "pretrain_lamb_of_one_norm",
        LAMB,
        LOOP,
        ONE_NORM,
        "lamb/lamb_one_norm",
        "one trust ratio of all weights together",
    ),
    edited(
        "pretrain_lamb_without_correction",
        LAMB,
        '    if not group["bias_correction"]:\n',
        "    if True:\n",
        "lamb/lamb_moments",
        "the moments are not corrected for their start at 0",
    ),
    edited(
        "pretrain_decays_biases",
        SETUP,
        'if not is_decayed(one[0])], "weight_decay": 0.0}',
        'if not is_decayed(one[0])], "weight_decay": decay}',
        "optimizer/wrong_decay",
        "weight decay of biases and LayerNorm",
    ),
    changed(
        "pretrain_schedules_every_pass",
        (
            Edit(SCRIPT, BACKWARD, BACKWARD + SCHEDULE),
            Edit(SCRIPT, UPDATE + SCHEDULE, "            scaler.update()\n"),
        ),
        "schedule/rate_per_micro_batch",
        "the schedule advances with every micro-batch",
    ),
    edited(
        "pretrain_decays_from_the_start",
        SCHEDULES,
        "max(0.0, (step - warmup) / decay_step)",
        "(step / decay_step)",
        "schedule/wrong_rate",
        "the decay begins with the warm-up",
    ),
    edited(
        "pretrain_decays_never_without_warmup",
        SCHEDULES,
        "    del total\n    return lambda step: warm_up(step, warmup) * decay_rate",
        "    if not warmup:\n        return lambda step: 1.0\n"
        "    return lambda step: warm_up(step, warmup) * decay_rate",
        "decay/wrong_rate",
        "a rate of 1 for ever where there is no warm-up, as in DeepSpeed's example",
    ),
    changed(
        "pretrain_clips_scaled_gradients",
        (Edit(SCRIPT, UNSCALE + CLIP, CLIP + UNSCALE),),
        "scaling/clipped_scaled",
        "clips, and then divides by the loss scale",
    ),
    edited(
        "pretrain_never_scales",
        SCRIPT,
        "scaler.scale(loss).backward()",
        "loss.backward()",
        "runs/loss_not_scaled",
        "divides gradients by a loss scale that the loss was not multiplied by",
    ),
    edited(
        "pretrain_steps_after_an_overflow",
        SCRIPT,
        STEP,
        "            optimizer.step()\n",
        "scaling/not_skipped",
        "updates the weights with gradients that are not finite",
    ),
    edited(
        "pretrain_schedule_does_not_wait",
        SCRIPT,
        UPDATE + SCHEDULE,
        "            scaler.update()\n            scheduler.step()\n",
        "scaling/schedule_of_skipped",
        "the schedule advances with skipped updates",
    ),
    edited(
        "pretrain_resumes_at_the_epochs_start",
        RESUME,
        "    next(islice(batches, done, done), None)\n",
        "",
        "resume/resumed_elsewhere",
        "reads the epoch from its start after a resume",
    ),
    edited(
        "pretrain_resumes_without_random_states",
        RESUME,
        "    if states and done:\n",
        "    if False:\n",
        "resume/random_states_lost",
        "dropout goes on with other masks",
    ),
    edited(
        "pretrain_phase_2_with_new_moments",
        SETUP,
        '    if args.phase == "2":\n        take_moments(optimizer, args)\n',
        "",
        "phases/moments_reset",
        "phase 2 begins with an optimizer that has no moments",
    ),
)
