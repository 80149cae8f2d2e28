"""The mapping of tasks to commands: what it may hold, and how its placeholders are filled in."""

from common.errors import UserError
from common.tasks import TASKS
from grading.commands import command_of, environment_of
from grading.inputs import SETTINGS, setting_for
from grading.mapping import LARGEST, read_mapping

import pytest

VALUES = {"model": "/inputs/model", "rank": 2, "batch": 4}


def written(folder, text):
    """A submission with this grading.yaml."""
    (folder / "grading.yaml").write_text(text)
    (folder / "train.py").touch()
    return folder


def command(folder, arguments):
    """The command of a task with these arguments."""
    own = {"script": "train.py", "arguments": arguments}
    return command_of(own, TASKS["task2b"], VALUES, folder)


def test_known_names_in_braces_are_replaced_and_nothing_else_is(tmp_path):
    written(tmp_path, "")
    words = command(tmp_path, "--m={model} -r {rank}/{batch} --json '{\"a\": 1}' {} %s $HOME")
    assert words[1:] == [
        *("--m=/inputs/model", "-r", "2/4", "--json", '{"a": 1}', "{}", "%s", "$HOME")
    ]


@pytest.mark.parametrize(
    "inside", ["model.exists.__globals__[os].environ", "model!r", "rank:>9999999999", "other"]
)
def test_a_placeholder_is_never_evaluated_or_formatted(inside, tmp_path):
    written(tmp_path, "")
    with pytest.raises(UserError, match=r"there is no placeholder .*; there are \{model\}, \{rank"):
        command(tmp_path, f"--x {{{inside}}}")


def test_variables_are_filled_in_like_arguments():
    own = {"environment": "RANK={rank} NAME='{model} {}' EMPTY="}
    found = environment_of(own, TASKS["task2b"], VALUES)
    assert found == {"RANK": "2", "NAME": "/inputs/model {}", "EMPTY": ""}
    assert environment_of({}, TASKS["task2b"], VALUES) == {}


@pytest.mark.parametrize("text", ["RANK", "rank=1", "A-B=1", "X={rank!r}", "'unclosed", "=1"])
def test_what_is_not_a_variable_is_refused(text):
    with pytest.raises(UserError, match="the mapping of task2b: environment: "):
        environment_of({"environment": text}, TASKS["task2b"], VALUES)


@pytest.mark.parametrize("script", ["../secret.py", "/etc/passwd", "x" * 3000, "a\0b", "none.py"])
def test_a_script_must_be_a_file_of_the_submission(script, tmp_path):
    written(tmp_path, "")
    with pytest.raises(UserError, match="no such file"):
        command_of({"script": script}, TASKS["task1"], VALUES, tmp_path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("task1: &a {script: x}\ntask3: *a\n", "aliases"),
        ("[" * 20000, "levels of nesting"),
        ("{a: " * 9000, "levels of nesting"),
        ("- a\n", "not a valid mapping"),
        ("task1: text\n", "needs `script:`"),
        ("task1: {script: [a, b]}\n", "needs `script:`"),
        (f"task1: {{arguments: {'x' * 5000}}}\n", "more than 4,096 characters"),
        ("# \n" * LARGEST, "larger than"),
        ("task1: {script: 'unclosed}\n", "not a valid mapping"),
    ],
)
def test_a_file_that_could_do_harm_is_refused(text, why, tmp_path):
    with pytest.raises(UserError, match=why):
        read_mapping(written(tmp_path, text))


def test_every_scalar_is_text_whatever_its_tag(tmp_path):
    text = "task1: {script: 1e5, arguments: !!python/object/apply:os.getcwd [] }\n"
    with pytest.raises(UserError, match="needs `script:`"):
        read_mapping(written(tmp_path, text))
    text = "task1: {script: 1e5, arguments: !!python/name:os.getcwd abc }\n"
    found = read_mapping(written(tmp_path, text))
    assert found.own == {"task1": {"script": "1e5", "arguments": "abc"}}


def test_its_own_rows_win_and_a_given_file_fills_in_what_they_leave_out(tmp_path):
    own = written(tmp_path, "default: {arguments: own}\ntask1: {script: mine.py}\n")
    (tmp_path / "given.yaml").write_text("task2b: {script: given.py, arguments: given}\n")
    mapping = read_mapping(own, tmp_path / "given.yaml")
    assert mapping.entry("task1").facts == {"script": "mine.py", "arguments": "own"}
    assert mapping.entry("task2b") == ({"arguments": "own"}, "its own grading.yaml")

    written(tmp_path, "task1: {script: mine.py}\n")
    mapping = read_mapping(own, tmp_path / "given.yaml")
    assert mapping.entry("task1") == ({"script": "mine.py"}, "its own grading.yaml")
    assert mapping.entry("task2b").source == "given.yaml"
    assert mapping.entry("task3") == ({}, "")


def test_a_given_row_overrides_only_where_it_says_so_and_it_is_reported(tmp_path):
    own = written(tmp_path, "task1: {script: mine.py}\ntask3: {script: mine.py}\n")
    (tmp_path / "given.yaml").write_text("task1: {script: given.py, override: yes}\n")
    mapping = read_mapping(own, tmp_path / "given.yaml")
    assert mapping.entry("task1").facts["script"] == "given.py"
    assert mapping.entry("task1").source == "given.yaml, in place of its own grading.yaml"
    assert mapping.entry("task3").facts["script"] == "mine.py"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("task9: {script: a}", "there is no task 'task9'"),
        ("task1: {scripts: a}", "task1: scripts: use script"),
        ("task1: {total_batch: 48}", "total_batch: choose 16 or 64"),
    ],
)
def test_a_typing_error_is_named(row, why, tmp_path):
    with pytest.raises(UserError, match=why):
        read_mapping(written(tmp_path, row))


def test_a_larger_total_batch_takes_more_epochs_for_as_many_updates():
    assert setting_for("adamw", 16) == SETTINGS["adamw"]
    assert setting_for("adamw", 64).epochs == 4 * SETTINGS["adamw"].epochs
