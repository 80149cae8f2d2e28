"""The rooms' commands: what they list, and where the old spellings point."""

import os
import subprocess
import sys
from pathlib import Path

import cluster.__main__
import experiments.__main__
import grading.__main__
import report.__main__
import staff.__main__

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("-m grading grade", "python -m staff grade"),
        ("-m grading gradescope", "python -m staff gradescope"),
        ("-m grading handout", "python -m staff handout"),
        ("-m staff pack", "python -m grading pack"),
        ("-m report.timings", "python -m staff timings"),
        ("-m report.bench", "python -m staff.timing.rounds"),
        ("-m cluster.demo", "python -m experiments.demo"),
        ("-m cluster.sweep", "python -m experiments.scaling"),
        ("-m cluster.bench", "python -m staff.timing.measurements"),
        ("task4/sweep.py", "python -m experiments.traffic"),
    ],
)
def test_an_old_spelling_says_where_the_command_went(old, new):
    done = subprocess.run(
        [sys.executable, *old.split(), "--jobs", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert f"{old.split()[-1].removeprefix('-m ')} has moved: use `{new}`" in done.stderr
    module = new.split()[2]
    assert list((ROOT / module.replace(".", "/")).parent.glob(f"{module.split('.')[-1]}*"))


ROOMS = [cluster.__main__, experiments.__main__, grading.__main__, report.__main__, staff.__main__]


@pytest.mark.parametrize("room", ROOMS)
def test_every_command_is_listed_and_has_a_main(room, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["as called"])
    assert room.main(["--help"]) == 0
    usage = capsys.readouterr().out
    for name, (module, does) in room.COMMANDS.items():
        assert f"  {name} " in usage
        assert does in usage
        with pytest.raises(SystemExit) as end:
            room.main([name, "--help"])
        assert end.value.code == 0
        assert "usage:" in capsys.readouterr().out, module
    assert room.main(["dance"]) == 2
    assert "unknown command 'dance'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("called", "has"),
    [
        ("task1/run_glue.py", "--max_grad_norm"),
        ("task4/run_glue.py", "--gradient_dtype"),
        ("-m cluster hello", "ignored here"),
        ("-m cluster.hello", "ignored here"),
        ("-m cluster launch", "--workers"),
        ("-m report build", "--paper"),
        ("-m report.scaling", "--latency"),
        ("-m experiments scaling", "--rates"),
        ("-m experiments.demo", "--tasks"),
        ("-m staff timings", "RUN_DIR_OR_ZIP"),
        ("-m staff.timing.measurements", "--data_dir"),
        ("-m staff.stored", "grading/stored.npz"),
    ],
)
def test_help_names_the_program_as_called_and_loads_nothing_slow(called, has):
    """PyTorch and scipy take seconds to load."""
    done = subprocess.run(
        [sys.executable, *called.split(), "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: python {called} ")
    assert has in done.stdout
    loaded = {line.split("|")[-1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "argparse" in loaded
    assert not loaded & {"torch", "transformers", "scipy", "matplotlib"}
