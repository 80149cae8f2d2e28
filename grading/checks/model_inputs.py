"""What the model is given, beside what the rows' texts give, and its mode in training."""

from itertools import product

from grading.checks.graded_task import GradedTask
from grading.results import Cause, Outcome, failed

CAUSES = {
    "texts_swapped": "the second sentence comes before the first",
    "text_missing": "a sentence is missing, or no separator stands between the two",
    "wrong_truncation": "long pairs must be cut to --max_seq_length tokens before the special "
    "tokens are added: the last token is the separator",
    "no_token_types": "token_type_ids must be 0 for the first sentence and 1 for the second; "
    "without them the model reads both as one",
    "wrong_labels": "the labels given to the model are not those of the file (entailment is 0)",
    "no_mask": "the model has no attention mask that hides the padding, so it reads padding as "
    "words",
    "eval_mode": "dropout is off: call model.train() before the first step (from_pretrained "
    "returns a model in evaluation mode) and after every evaluation",
}


def wrong_training_pass(graded: GradedTask) -> Outcome | None:
    """The first pass of training whose mode or inputs are wrong, as a failed Outcome."""
    for setting, evidence in graded.runs.items():
        for step, rank in product(range(evidence.seen.steps), range(evidence.size)):
            for forward in evidence.ranks[rank].steps[step].forwards:
                name = "" if forward.training else "eval_mode"
                name = name or input_problem(graded, setting, forward.rows, forward.masked)
                if name:
                    mode = name == "eval_mode"
                    return failed(
                        "a model in training mode" if mode else "what the row's texts give",
                        "parts of it in evaluation mode" if mode else "other input of the model",
                        f"setting {setting}, step {step + 1}, rank {rank}",
                        Cause(name, CAUSES[name]),
                    )
    return None


def input_problem(graded: GradedTask, setting: str, rows: list, masked: bool) -> str:
    """The name of what is wrong with the model's input for some rows; "" if nothing is.

    Rows that are not in the data are not judged.
    """
    known = graded.known_rows(setting, "dev") | graded.known_rows(setting, "train")
    for ids, types, label in rows:
        right = known.get(ids)
        if right is None:
            continue
        if right.problem and (right.problem != "wrong_truncation" or graded.length_given):
            return right.problem
        if types != right.types:
            return "no_token_types"
        if label not in (-1, right.label):
            return "wrong_labels"
    return "" if masked else "no_mask"
