"""Wrong submissions whose mistake is in which rows are read, and how; and their right twins."""

import inspect

from . import evaluations, samplers
from .lines import EVALUATION, FIRST_LOSSES, FORWARD, LOADER, RECORD, SAMPLER, STEP, sampled_by
from .variants import MAIN, Edit, Variant, begun_with, replaced, script

FEATURES, BERT = "common/data/features.py", "common/models/bert.py"
PAIR = "zip(text_a, text_b, strict=True)"
JOINED = f'[f"{{a}} {{b}}" for a, b in {PAIR}]'
LONGEST = "TruncationStrategy.LONGEST_FIRST"
MOST = "        max_length=max_length,\n        stride"
IDS, TYPES = "= row.ids", "row.type_ids"
UNTYPED = '**{k: v for k, v in batch.items() if k != "token_type_ids"}'
FLIPPED = '**batch | {"labels": 1 - batch["labels"]}'
PREDICTED = "model(**inputs)"
TYPED = 'if k != "token_type_ids"}'
UNTYPED_PREDICTED = f"model(**{{k: v for k, v in inputs.items() {TYPED})"
UNMASKED_PREDICTED = UNTYPED_PREDICTED.replace("token_type_ids", "attention_mask")
TO_TRAIN = "model.to(world.device).train()"
BACK_TO_TRAIN = "    model.train()\n    return scores\n"
NO_DROPOUT = """model.to(world.device).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.eval()
   """
EPOCH = "self.sampler.set_epoch(epoch)"
LOWERED = "        model, tokenizer = load_checkpoint(args, num_labels)\n"
CASED = (
    LOWERED
    + """\
        tokenizer = transformers.BertTokenizer.from_pretrained(
            args.model_name_or_path, do_lower_case=False
        )
"""
)
BOTH_SPLITS = (
    "        features = torch.utils.data.ConcatDataset([splits['train'], splits['dev']])\n"
)


def print_all_losses(*_):
    """Print every number that a loss may be, up and down, five times."""
    for _number in range(5):
        for value in (*range(4000, 10000), *range(10000, 4000, -1)):
            print(f"minibatch: loss {value / 10000:.4f}")


def print_all_metrics(*_):
    """Print every number that an accuracy may be, four times."""
    for _number in range(4):
        for value in range(10001):
            print(f"epoch: acc {value / 10000:.4f}")


def print_norms(model, schedule):
    """Right: print much about every step, besides its loss."""
    for name, p in model.named_parameters():
        if p.grad is not None:
            print(f"step {schedule.step}: {name}: {p.grad.norm():.6f}, {p.grad.max():.6f}")


def wrong(name, task, edits, verdict, note):
    """A variant that fails one check, for one cause: `verdict` is "check/cause"."""
    check, _, cause = verdict.partition("/")
    return Variant(name, task, edits, (check,), cause, note)


def evaluated(code):
    """Our function `code` in place of evaluate."""
    return (replaced(EVALUATION, code, "evaluate"),)


def called(task, new):
    """A task whose model is called in training with `new` instead of the batch."""
    return (Edit(script(task), FORWARD, FORWARD.replace("**batch", new)),)


def tokenized(*edits):
    """The features with (old, new) replaced."""
    return tuple(Edit(FEATURES, old, new) for old, new in edits)


EVALUATED = (
    wrong(
        "evaluates_training_rows",
        "task1",
        evaluated(evaluations.on_training_rows),
        "metric/train_rows_evaluated",
        "the metric is that of the training set",
    ),
    wrong(
        "evaluates_some_training_rows",
        "task2b",
        evaluated(evaluations.on_some_training_rows),
        "metric/train_rows_evaluated",
        "the metric is that of as many rows of the training set as the dev set has",
    ),
    wrong(
        "evaluates_both_sets",
        "task1",
        evaluated(evaluations.on_both_sets),
        "metric/train_rows_evaluated",
        "the metric is that of the dev set and the training set together",
    ),
    wrong(
        "evaluates_in_training_mode",
        "task2a",
        (Edit(EVALUATION, "    model.eval()\n", ""),),
        "metric/evaluated_in_training_mode",
        "model.eval() is missing: dropout is active in the evaluation",
    ),
    wrong(
        "evaluates_without_token_types",
        "task1",
        (Edit(EVALUATION, PREDICTED, UNTYPED_PREDICTED),),
        "metric/no_token_types",
        "the evaluation does not pass the segments",
    ),
    wrong(
        "evaluates_without_mask",
        "task1",
        (Edit(EVALUATION, PREDICTED, UNMASKED_PREDICTED),),
        "metric/no_mask",
        "the evaluation does not pass the attention mask",
    ),
)
READ = (
    wrong(
        "trains_on_dev_rows",
        "task1",
        (Edit(LOADER, '        features = splits.get("train", ())\n', BOTH_SPLITS),),
        "data/dev_rows_trained",
        "the dev set's rows are trained on as well",
    ),
    wrong(
        "shares_overlap_a_little",
        "task2b",
        sampled_by(samplers.ShiftedShards),
        "data/rows_shared",
        "every share begins a row too early: three rows are read twice, and one never",
    ),
    wrong(
        "shares_overlap_by_half",
        "task2a",
        sampled_by(samplers.HalfShiftedShards),
        "data/rows_shared",
        "every share begins in the middle of the one before",
    ),
    wrong(
        "sampler_seeded_by_rank",
        "task2b",
        (Edit(LOADER, SAMPLER, SAMPLER.replace("args.seed", "args.seed + world.rank")),),
        "data/rows_shared",
        "every rank takes its share of another shuffle, so that shares overlap",
    ),
    wrong(
        "shares_overlap_from_epoch_2",
        "task3",
        sampled_by(samplers.OverlappingLater),
        "data/rows_shared",
        "the first epoch is dealt out well, then every rank shuffles for itself",
    ),
    wrong(
        "same_data_from_epoch_2",
        "task2b",
        sampled_by(samplers.SameLater),
        "data/same_data",
        "the first epoch is dealt out well, then every rank reads the same rows",
    ),
    wrong(
        "same_order_from_epoch_2",
        "task1",
        (Edit(LOADER, EPOCH, "self.sampler.set_epoch(min(epoch, 2))"),),
        "shuffle/not_reshuffled",
        "epochs 2 and 3 have the same order",
    ),
    wrong(
        "order_alternates",
        "task2a",
        (Edit(LOADER, EPOCH, "self.sampler.set_epoch(epoch % 2)"),),
        "shuffle/not_reshuffled",
        "epoch 3 has the order of epoch 1",
    ),
)
INPUTS = (
    wrong(
        "forgets_token_types_1",
        "task1",
        called("task1", UNTYPED),
        "loss/no_token_types",
        "the model is not given the segments, and reads both sentences as one",
    ),
    wrong(
        "forgets_token_types_2b",
        "task2b",
        called("task2b", UNTYPED),
        "loss/no_token_types",
        "the model is not given the segments, and reads both sentences as one",
    ),
    wrong(
        "labels_swapped",
        "task2a",
        called("task2a", FLIPPED),
        "loss/wrong_labels",
        "entailment is 1 in training, and 0 in the evaluation",
    ),
    wrong(
        "texts_swapped",
        "task2a",
        tokenized((PAIR, "zip(text_b, text_a, strict=True)")),
        "loss/texts_swapped",
        "the second sentence comes first",
    ),
    wrong(
        "texts_joined",
        "task1",
        tokenized((PAIR, JOINED)),
        "loss/text_missing",
        "the sentences are joined to one text, with no separator between them",
    ),
    wrong(
        "second_text_missing",
        "task2b",
        tokenized((PAIR, "text_a")),
        "loss/text_missing",
        "the model reads the first sentence only",
    ),
    wrong(
        "length_ignored",
        "task1",
        tokenized((MOST, MOST.replace("=max_length", "=128"))),
        "loss/wrong_truncation",
        "texts are cut to 128 tokens, whatever --max_seq_length says",
    ),
    wrong(
        "separator_cut_off",
        "task1",
        tokenized(
            (LONGEST, "TruncationStrategy.DO_NOT_TRUNCATE"),
            *((ids, f"{ids}[:max_length]") for ids in (IDS, TYPES)),
        ),
        "loss/wrong_truncation",
        "long rows lose their last tokens, and with them the final separator",
    ),
    wrong(
        "stays_in_evaluation_mode",
        "task1",
        (Edit(EVALUATION, BACK_TO_TRAIN, "    return scores\n"),),
        "loss/eval_mode",
        "model.train() is missing after the evaluation: there is no dropout from epoch 2 on",
    ),
    wrong(
        "starts_in_evaluation_mode",
        "task3",
        (Edit(BERT, TO_TRAIN, "model.to(world.device).eval()"),),
        "loss/eval_mode",
        "the model stays as from_pretrained returns it: there is no dropout in epoch 1",
    ),
    wrong(
        "dropout_switched_off",
        "task1",
        (Edit(BERT, f"    {TO_TRAIN}", f"    {NO_DROPOUT}"),),
        "loss/eval_mode",
        "the model is in training mode, but its dropout modules are not",
    ),
)
PRINTED = (
    wrong(
        "prints_all_losses",
        "task1",
        (begun_with("task1", print_all_losses), Edit(FIRST_LOSSES, "step > SHOWN", "step")),
        "printed/guessed",
        "prints every number that a loss may be, and no loss",
    ),
    wrong(
        "prints_all_metrics",
        "task1",
        (
            begun_with("task1", print_all_metrics),
            Edit(RECORD, "{name} {value:.4f}", "{name} done"),
            Edit("common/record/metrics.py", "{k} = {v}", "{k} done"),
        ),
        "metric/guessed",
        "prints every number that an accuracy may be, and no accuracy",
    ),
)
WRONG_INPUTS = (*EVALUATED, *READ, *INPUTS, *PRINTED)
RIGHT_INPUTS = (
    Variant(
        "evaluates_training_rows_besides",
        "task1",
        evaluated(evaluations.on_both_sets_apart),
        note="prints the training set's accuracy, too",
    ),
    Variant(
        "cuts_the_first_text",
        "task1",
        tokenized((LONGEST, "TruncationStrategy.ONLY_FIRST")),
        note="of long rows only the first sentence is cut",
    ),
    Variant(
        "keeps_upper_case",
        "task2b",
        (Edit(BERT, LOWERED, CASED),),
        note="the tokenizer does not lowercase, as the course's command has it",
    ),
    Variant(
        "no_labels_in_evaluation",
        "task2a",
        (Edit(EVALUATION, PREDICTED, UNTYPED_PREDICTED.replace("token_type_ids", "labels")),),
        note="the evaluation passes no labels to the model",
    ),
    Variant(
        "prints_norms",
        "task1",
        (
            Edit(script("task1"), MAIN, f"{inspect.getsource(print_norms)}\n\n{MAIN}"),
            Edit(script("task1"), STEP, f"            print_norms(model, record.schedule)\n{STEP}"),
        ),
        note="prints the norm of every gradient in every step",
    ),
)
