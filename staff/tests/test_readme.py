"""The texts keep their word: commands, flags and links exist, and tables are current."""

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

from common import cli, flags, tasks

import pytest

ROOT = Path(__file__).parents[2]
READMES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("*/README.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("staff/handout/overlay/*.md")),
]
TEXT = {path.relative_to(ROOT).as_posix(): path.read_text() for path in READMES}


def commands(text):
    """The indented lines of a text, continued lines joined, comments dropped."""
    blocks = re.findall(r"(?:^    .+\n)+", text, re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line.split("  #")[0].strip() for line in lines]


def inline_commands(text):
    """The commands that stand in a sentence or in a table."""
    return re.findall(r"`((?:python|make|pytest) [^`\n]+)`", text)


def run(command, seconds=120, **options):
    """Run a command in the repository and return what it printed; it must succeed."""
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, **options
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_table_of_flags_is_the_one_that_the_code_has():
    assert flags.flag_table() in TEXT["docs/running.md"]


def test_the_table_of_tasks_is_the_one_that_the_code_has():
    assert tasks.with_table(TEXT["README.md"]) == TEXT["README.md"]
    assert tasks.markdown() in TEXT["README.md"]


@pytest.mark.parametrize("name", TEXT)
def test_every_script_module_and_make_target_is_there(name):
    for line in commands(TEXT[name]) + inline_commands(TEXT[name]):
        for script in re.findall(r"\b[\w/]+\.py\b", line):
            if script != "run_glue.py":  # a submission's own
                assert (ROOT / script).is_file(), line
        for module, word in re.findall(r"-m ([a-z]\w+(?:\.\w+)*)(?: (\w+))?", line):
            assert importlib.util.find_spec(module), line
            if word and module in ("cluster", "experiments", "grading", "report", "staff"):
                assert word in importlib.import_module(f"{module}.__main__").COMMANDS, line
        for target in re.findall(r"^make (\w+)", line):
            assert run(["make", "--dry-run", target, "GLUE_DIR=x"]), line


@pytest.mark.parametrize("name", TEXT)
def test_every_link_leads_to_a_file(name):
    folder = (ROOT / name.replace("staff/handout/overlay/", "")).parent
    for link in re.findall(r"\]\(([^)#:]+)\)", TEXT[name].replace("\n", " ")):
        made_for_students = name.startswith("staff/handout/overlay/") and link == "TODO.md"
        assert made_for_students or (folder / link).exists(), link


def test_what_students_get_does_not_lead_into_what_they_do_not_get():
    for name, text in TEXT.items():
        if name not in ("README.md", "staff/README.md"):  # the handout has another README
            assert not re.search(r"\bstaff[/.]|-m staff\b", text), name


@pytest.mark.parametrize("name", TEXT)
def test_every_flag_in_a_command_exists(name, tmp_path):
    for line in commands(TEXT[name]):
        match = re.search(r"\b(task\w+/run_glue\.py)\b(.*)", line)
        if match and "..." not in line:
            printed = match[2].replace("--local_rank R", "--local_rank 3")
            real_data = re.compile(r"(\$GLUE_DIR|\bglue_data)/RTE\b")  # not downloaded here
            words = shlex.split(real_data.sub(str(tmp_path), printed))
            if launched := re.search(r"--(?:workers|nodes) (\d+)", line):
                words += ["--master_ip", "::1", "--master_port", "6585", "--local_rank", "0"]
                words += ["--world_size", launched[1]]
            args = cli.parse_args(ROOT / match[1], argv=words, env={})
            if name != "docs/measurements.md":  # there they are shorter
                assert args.per_gpu_train_batch_size * args.world_size == 64, line


@pytest.mark.parametrize("line", re.findall(r"`(diff \S+ \S+)`", TEXT["README.md"]))
def test_the_diffs_to_read_are_short(line):
    result = subprocess.run(shlex.split(line), cwd=ROOT, capture_output=True, text=True, timeout=20)
    changed = re.findall(r"^[<>] ", result.stdout, re.MULTILINE)
    assert result.returncode == 1
    # a whole profile, DistributedDataParallel by hand, and another kind of training
    longer = {"task4": 90, "overlap": 50, "task8": 60}
    longer |= {"naive": 50, "tensor": 60, "library": 66}  # a model that is divided
    assert len(changed) <= next((most for name, most in longer.items() if name in line), 30)


def test_the_command_for_no_network_trains(tmp_path):
    first = next(line for line in commands(TEXT["README.md"]) if line.startswith("python task1"))
    other = re.search(r"With no network, use `([^`]*)`", TEXT["README.md"].replace("\n", " "))[1]
    words = shlex.split(first)[1:] + shlex.split(other)
    words[words.index("--output_dir") + 1] = str(tmp_path / "out")
    printed = run([sys.executable, *words, "--max_steps", "3"])
    assert "minibatch 3: loss 0." in printed
    assert re.search(r"after 0\.\d+ epochs: acc 0\.", printed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_make_demo_ends_with_equal_losses_accuracy_traffic_and_a_picture():
    printed = run(["make", "demo"], seconds=800)
    gaps = re.search(r"max \|difference\|, first epoch(.*)", printed)[1].split()
    assert len(gaps) == 5
    assert all(float(gap) <= 1e-5 for gap in gaps)
    accuracy = re.search(r"acc after epoch 1(.*)", printed)[1].split()
    assert len(accuracy) == 5
    assert min(map(float, accuracy)) > 0.8  # chance is 0.5
    traffic = re.findall(r"task 4: (\w+) .* ([+-][\d.]+) %", printed)
    assert [method for method, _ in traffic] == ["2b", "2a", "3", "2b"]
    picture = re.search(r"^picture: (.*)$", printed, re.MULTILINE)[1]
    assert Path(picture).read_bytes().startswith(b"\x89PNG")
    example = re.search(r"^example of a report: (.*)$", printed, re.MULTILINE)[1]
    assert Path(example).read_bytes().startswith(b"%PDF")
    missing = re.findall(r"missing in (.*)", printed)
    assert missing == ["Task 1: the plain loop: the metric after 3 epochs (there are 1)"]
