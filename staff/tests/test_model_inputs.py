"""What the model is given is compared with what the rows' texts give."""

from types import SimpleNamespace

from grading import inputs, known_rows
from grading.checks.evaluated import scored, wrong_evaluation
from grading.checks.graded_task import GradedTask
from grading.checks.model_inputs import input_problem, wrong_training_pass
from grading.checks.observation import Evaluation, Forward

import pytest
from transformers import AutoTokenizer


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """The inputs' rows, and their tokenizer, and a row of two long texts: (texts, label)."""
    folder = tmp_path_factory.mktemp("inputs")
    inputs.build(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    lines = [line.split("\t") for line in (folder / "long/train.tsv").read_text().splitlines()[1:]]
    cut = [line for line in lines if len(tokenizer(*line[1:3]).input_ids) > inputs.LENGTH]
    _, *texts, label = max(cut, key=lambda line: min(map(len, line[1:3])))
    return known_rows.read(folder), tokenizer, texts, ["entailment", "not_entailment"].index(label)


def task_of(known, **facts):
    task = SimpleNamespace(name="task1")
    return GradedTask(task, 1, 16, {}, known, **facts)  # pyright: ignore[reportArgumentType]


def row_of(encoded, label=-1):
    return tuple(encoded["input_ids"]), tuple(encoded["token_type_ids"]), label


@pytest.mark.parametrize("cut", ["longest_first", "only_first", "only_second"])
def test_every_usual_way_of_cutting_is_right(known, cut):
    rows, tokenizer, texts, label = known
    row = row_of(tokenizer(*texts, truncation=cut, max_length=inputs.LENGTH), label)
    assert len(row[0]) == inputs.LENGTH
    assert row[0] in rows["long"]["train"]
    assert input_problem(task_of(rows), "adamw", [row], masked=True) == ""


def test_wrong_input_is_named(known):
    rows, tokenizer, (first, second), label = known
    task, cut = task_of(rows), {"truncation": True, "max_length": inputs.LENGTH}
    ids, types, _ = row_of(tokenizer(first, second, **cut))
    assert input_problem(task, "adamw", [(ids, types, 1 - label)], True) == "wrong_labels"
    assert input_problem(task, "adamw", [(ids, (0,) * len(ids), -1)], True) == "no_token_types"
    assert input_problem(task, "adamw", [(ids, types, -1)], masked=False) == "no_mask"
    for texts, name in (((second, first), "texts_swapped"), ((first,), "text_missing")):
        row = row_of(tokenizer(*texts, **cut))
        assert input_problem(task, "adamw", [row], True) == name
    long = row_of(tokenizer(first, second))
    assert input_problem(task, "adamw", [long], True) == "wrong_truncation"
    assert input_problem(task_of(rows, length_given=False), "adamw", [long], True) == ""


def test_a_model_in_evaluation_mode_is_found_in_any_step(known):
    steps = [
        SimpleNamespace(forwards=[Forward([], True, mode, 0.5, None)]) for mode in (True, False)
    ]
    seen = SimpleNamespace(steps=2)
    task = task_of(known[0])
    task.runs["adamw"] = SimpleNamespace(seen=seen, size=1, ranks=[SimpleNamespace(steps=steps)])
    outcome = wrong_training_pass(task)
    assert outcome.cause.name == "eval_mode"
    assert outcome.where == "setting adamw, step 2, rank 0"


def test_training_rows_are_not_scored_and_must_not_replace_the_dev_set(known):
    task = task_of(known[0])
    dev = [row for row in known[0]["long"]["dev"].values() if not row.problem]
    train = [row for row in known[0]["long"]["train"].values() if not row.problem][:30]
    rows = [(row.ids, row.types, -1) for row in (*dev, *train)]
    both = Evaluation(14, rows, [row.label for row in (*dev, *train)])
    assert set(scored(both, task).values()) == {1.0}
    assert len(scored(both, task)) == 30
    assert wrong_evaluation(task, {14: [both]}) is None
    trained = Evaluation(14, rows[len(dev) :], [])
    assert wrong_evaluation(task, {14: [trained]}).cause.name == "train_rows_evaluated"
    both.training = True
    assert wrong_evaluation(task, {14: [both]}).cause.name == "evaluated_in_training_mode"
