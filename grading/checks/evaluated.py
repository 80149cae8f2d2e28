"""The rows of an evaluation: those of the dev set, read as their texts are."""

from grading.checks.graded_task import GradedTask
from grading.checks.model_inputs import CAUSES, input_problem
from grading.checks.observation import Evaluation
from grading.results import Cause, Outcome, failed


def scored(evaluation: Evaluation, graded: GradedTask, trained: bool = False) -> dict:
    """Row of the dev set -> 1.0 if it was predicted right, else 0.0; if `trained` of both sets."""
    dev, train = graded.known_rows("adamw", "dev"), graded.known_rows("adamw", "train")
    right = {}
    for (ids, _, label), guess in zip(evaluation.rows, evaluation.predictions, strict=False):
        if ids in train and ids not in dev and not trained:
            continue
        known = dev.get(ids) or train.get(ids)
        key = (ids in dev, known.number) if known else ids
        right[key] = float(guess == (known.label if known else label))
    return right


def wrong_evaluation(graded: GradedTask, epochs: dict[int, list[Evaluation]]) -> Outcome | None:
    """What is wrong with the first evaluation that is wrong, beside its number of rows."""
    dev, train = graded.known_rows("adamw", "dev"), graded.known_rows("adamw", "train")
    for after, ranks in epochs.items():
        where = f"the evaluation after step {after}"
        if any(one.training for one in ranks):
            cause = Cause(
                "evaluated_in_training_mode",
                "dropout is active: call model.eval() before the evaluation",
            )
            return failed("a model in evaluation mode", "one in training mode", where, cause)
        read = {row[0] for one in ranks for row in one.rows}
        found, others = {dev[ids].number for ids in read if ids in dev}, read - set(dev)
        trained = sum(ids in train for ids in others)
        if trained and len(found) < graded.rows("adamw", "dev"):
            return failed(
                f"the {graded.rows('adamw', 'dev')} rows of the dev set",
                f"{len(found)} of them, and {trained} of the training set",
                where,
                Cause("train_rows_evaluated", "the rows are those of train.tsv, not of dev.tsv"),
            )
        for one in ranks:
            name = input_problem(graded, "adamw", one.rows, one.masked)
            if name and name != "wrong_labels":  # the metric is taken from the file's labels
                right = "what the row's texts give"
                return failed(right, "other input of the model", where, Cause(name, CAUSES[name]))
    return None
