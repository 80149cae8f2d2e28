"""The rooms' commands: what they list, and where the old spellings point."""

import subprocess
import sys
from pathlib import Path

import grading.__main__
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


@pytest.mark.parametrize("room", [grading.__main__, staff.__main__])
def test_every_command_is_listed_and_has_a_main(room, capsys):
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
