"""What a student wrote in task 1 is carried to the later tasks' scripts."""

import ast
import contextlib

from common.errors import UserError
from grading.hand_in import carry
from staff.handout.regions import cut, find_regions, mark_carried, paste

import pytest

FIRST = '''\
"""Task 1."""

from torch.nn.utils import clip_grad_norm_


def main(args, world):
    model, data = load(args, world)
    optimizer, scheduler = make_optimizer(model, args)
    for epoch in record.epochs():
        for batches in record.steps(data, epoch):
            for batch, weight in batches:
                loss = model(**batch).loss * weight
                # SOLUTION(task1): run the backward pass, which fills every parameter's .grad
                loss.backward()
            clip_grad_norm_(model.parameters(), args.max_grad_norm)
            # SOLUTION(task1): update the weights
            optimizer.step()
            scheduler.step()
        # SOLUTION(task1): evaluate
        record.end_epoch(epoch, evaluate(model, data, world))
    record.finish(model)
'''
AVERAGED = """\
            # SOLUTION(task2a): average the gradients over the ranks, before they are clipped
            average_gradients(model, world)
"""
CLIP = "            clip_grad_norm_("
SECOND = FIRST.replace("Task 1", "Task 2(a)").replace(CLIP, AVERAGED + CLIP)
SCRIPTS = {
    "task1/run_glue.py": FIRST,
    "task2a/run_glue.py": SECOND,
    "task2b/run_glue.py": SECOND.replace("2(a)", "2(b)"),
    "task3/run_glue.py": FIRST.replace(
        "    optimizer, ",
        "    # SOLUTION(task3): wrap the model\n    model = Parallel(model)\n    optimizer, ",
    ),
    "task4/run_glue.py": SECOND.replace(
        "    optimizer, ",
        """\
    if args.method == "3":
        # SOLUTION(task3): wrap the model
        model = Parallel(model)
    average_gradients = profiled(model, args, traffic)
    optimizer, """,
    ).replace("in record.steps(data, epoch)", "in traffic.steps(record.steps(data, epoch), epoch)"),
}
REGIONS = mark_carried({path: find_regions(text, path) for path, text in SCRIPTS.items()})


@pytest.fixture
def folder(tmp_path):
    """The scripts as they are handed out."""
    for path, text in SCRIPTS.items():
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(cut(text, REGIONS[path]))
    return tmp_path


def write(folder, *tasks):
    """Write the solution of these tasks in place of their TODOs."""
    for path in SCRIPTS:
        text = (folder / path).read_text()
        (folder / path).write_text(paste(text, REGIONS[path], tasks))


def edit(folder, path, old, new):
    text = (folder / path).read_text()
    assert text.count(old) == 1, (path, old)
    (folder / path).write_text(text.replace(old, new))


def test_each_thing_is_to_be_written_once(folder):
    todos = [region.hint for path in SCRIPTS for region in REGIONS[path] if not region.source]
    assert len(todos) == len(set(todos)) == 5
    text = (folder / "task4/run_glue.py").read_text()
    assert text.count("# CARRIED(task1): ") == 3
    assert "# TODO(" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert '"; write it in task3/run_glue.py, then run: python -m grading carry' in text


def test_what_was_written_stands_in_every_script(folder, capsys):
    write(folder, "task1", "task2a", "task3")
    assert carry.main([str(folder)]) == 0
    for path, text in SCRIPTS.items():
        assert (folder / path).read_text() == text, path
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 4 * 3 + 2 + 1
    assert shown[1] == "task2a/run_glue.py: update the weights (from task1/run_glue.py:16)"
    assert carry.main([str(folder)]) == 0
    assert "nothing to carry" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("steps", "blank"),
    [
        ([("task1",), ("task2a",), ("task3",)], 0),
        ([("task3",), ("task2a",), ("task1",)], 0),
        ([("task1",)], 3),  # 2(a)'s call in 2(b) and 4, the wrapped model in 4
        ([("task1", "task2a")], 1),
    ],
)
def test_it_can_be_written_and_carried_in_any_order(folder, steps, blank):
    for tasks in steps:
        write(folder, *tasks)
        with contextlib.suppress(UserError):  # where nothing can be carried yet
            carry.main([str(folder)])
    left = sum((folder / path).read_text().count("# CARRIED(") for path in SCRIPTS)
    assert left == blank
    for path, text in SCRIPTS.items():
        if not blank:
            assert ast.dump(ast.parse((folder / path).read_text())) == ast.dump(ast.parse(text))


def test_what_is_not_written_yet_is_named(folder):
    before = {path: (folder / path).read_text() for path in SCRIPTS}
    with pytest.raises(UserError) as error:
        carry.main([str(folder)])
    assert "task1/run_glue.py:14: TODO(task1): run the backward pass" in str(error.value)
    assert "write it first" in str(error.value)
    assert before == {path: (folder / path).read_text() for path in SCRIPTS}


def test_the_imports_that_it_uses_are_carried(folder):
    write(folder, "task1")
    edit(folder, "task1/run_glue.py", "from torch", "import math, time as t\nimport os\nfrom torch")
    edit(
        folder,
        "task1/run_glue.py",
        "optimizer.step()\n",
        "optimizer.step()\n\n            if math.pi > t.time():\n                pass\n",
    )
    carry.main([str(folder)])
    for path in list(SCRIPTS)[1:]:
        text = (folder / path).read_text()
        assert "clip_grad_norm_\nimport math\nimport time as t\n" in text
        assert "import os" not in text
        assert (
            "            optimizer.step()\n\n            if math.pi > t.time():\n"
            "                pass\n            scheduler.step()\n"
        ) in text
    assert "import math" not in SCRIPTS["task3/run_glue.py"]


def test_several_lines_keep_their_shape_at_another_depth(folder):
    write(folder, "task3")
    edit(
        folder,
        "task3/run_glue.py",
        "    model = Parallel(model)\n",
        "    model = Parallel(\n        model,\n    )\n",
    )
    carry.main([str(folder)])
    assert ("        model = Parallel(\n            model,\n        )\n    average_gradients") in (
        folder / "task4/run_glue.py"
    ).read_text()


@pytest.mark.parametrize(
    ("path", "old", "new", "words"),
    [
        (
            "task1",
            "loss = model(**batch).loss * weight",
            "loss = weight * model(**batch).loss",
            "`loss = model(**batch).loss * weight` is not in task1/run_glue.py, "
            "which has `loss = w",
        ),
        ("task1", "def main(", "def main(:\n", "task1/run_glue.py:6: not valid Python"),
        ("task2a", "def main(", "def main(:\n", "task2a/run_glue.py:6: not valid Python"),
        ("task1", "            optimizer.step()\n", "", "nothing stands there for: update the w"),
    ],
)
def test_what_cannot_be_carried_is_left_and_explained(folder, path, old, new, words, capsys):
    write(folder, "task1", "task3")
    edit(folder, f"{path}/run_glue.py", old, new)
    if "task1" in path:
        edit(folder, "task1/run_glue.py", "            # SOLUTION(task1): update the weights\n", "")
    try:
        carry.main([str(folder)])
    except UserError as error:
        print(error)
    assert words in capsys.readouterr().out
    assert "# CARRIED(task1)" in (folder / "task2a/run_glue.py").read_text()


def test_another_script_is_copied_by_hand(folder):
    write(folder, "task1")
    (folder / "task1/run_glue.py").write_text("def fit():\n    return 1\n")
    with pytest.raises(UserError, match=r"has none of the lines above it; copy it by hand"):
        carry.main([str(folder)])


def test_a_folder_without_scripts_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"holds no task1/run_glue\.py"):
        carry.main([str(tmp_path)])
