"""`make further`: each further task beside task 1."""

from common.commands import run_command
from experiments.__main__ import COMMANDS

import pytest


@pytest.mark.slow
def test_further_tasks_have_task_1s_losses(tmp_path, capfd):
    flags = ["--tasks", "5,zero2,grid,tensor", "--steps", "3", "--output_dir", str(tmp_path)]
    assert run_command("experiments", COMMANDS, {}, ["further", *flags]) == 0
    (line,) = (row for row in capfd.readouterr().out.splitlines() if "difference|" in row)
    differences = [float(word) for word in line.split()[-5:]]
    assert max(differences) < 1e-5


@pytest.mark.parametrize(
    ("flag", "words"),
    [("--tasks 2a", "--tasks 2a: choose from 5,overlap,"), ("--steps 1", "--steps 1: give 2 or")],
)
def test_what_it_cannot_do_is_reported(flag, words, capsys):
    assert run_command("experiments", COMMANDS, {}, ["further", *flag.split()]) == 2
    assert words in capsys.readouterr().err
