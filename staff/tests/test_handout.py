"""The students' repository: nothing of the solution in it, and with the solution it is this one."""

import ast
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from cluster.launch import launch
from common.errors import UserError
from common.tasks import FOLDERS, SCRIPTS, TASKS
from grading.hand_in.carry import carry
from grading.hand_in.todos import find_todos
from staff.handout import build, leaks, manifest
from staff.handout.folder import write_folder
from staff.handout.regions import cut, find_regions, paste
from tests.workers import FLAGS, sample

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SOURCE = '''\
def mean(values):
    # SOLUTION(task1): add them up
    total = sum(values)
    return total


# SOLUTION(task2a): gather, then scatter
@decorated
def average(model):
    """What it does."""
    for bucket in model:
        # a comment
        gather(bucket)
        scatter(bucket, root=0)
'''
STUBS = '''\
def mean(values):
    # TODO(task1): add them up
    raise NotImplementedError("TODO(task1): add them up")
    return total


@decorated
def average(model):
    """What it does."""
    # TODO(task2a): gather, then scatter
    raise NotImplementedError("TODO(task2a): gather, then scatter")
'''


@pytest.fixture(scope="module")
def files():
    return build.handout(ROOT)


@pytest.fixture
def folder(files, tmp_path):
    """A handout as students have it, with spaces in its name."""
    write_folder(files, tmp_path / "a hand out")
    return tmp_path / "a hand out"


def start(folder, task, workers):
    """Run a handout's script, and none of this repository; returns the launcher's result."""
    data, output = sample(folder.parent / "data"), folder.parent / "out"
    command = [str(folder / task / "run_glue.py"), *FLAGS.split(), "--do_eval", "--timeout", "30"]
    command += ["--data_dir", str(data), "--output_dir", str(output)]
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return launch(command, workers, quiet=True, env=env)


def said(worker):
    """What a worker wrote on stderr, less the progress bar and what it says while it waits."""
    lines = [line for line in worker.stderr if line.strip() and "%|" not in line]
    return [line for line in lines if not line.endswith(" ...")]


def test_a_region_becomes_a_todo_and_comes_back():
    regions = find_regions(SOURCE, "some.py")
    assert [(r.task, r.hint) for r in regions] == [
        ("task1", "add them up"),
        ("task2a", "gather, then scatter"),
    ]
    assert cut(SOURCE, regions) == STUBS
    assert paste(STUBS, regions) == SOURCE
    first = paste(STUBS, regions, ["task1"])
    assert paste(first, regions, ["task2a"]) == SOURCE
    assert "total = sum" in first
    assert "gather(bucket)" not in first
    with pytest.raises(UserError, match="is not there as it was handed out"):
        paste(SOURCE, regions)


@pytest.mark.parametrize(
    ("source", "line", "reason"),
    [
        ("# SOLUTION(task9): what\nx = 1\n", 1, "write `# SOLUTION"),
        ("# SOLUTION(task1) what\nx = 1\n", 1, "write `# SOLUTION"),
        ("# solution: what\nx = 1\n", 1, "write `# SOLUTION"),
        ("x = 1\n# SOLUTION(task1): what\n\ny = 1\n", 2, "marks no statement"),
        ("x = 1  # SOLUTION(task1): what\ny = 1\n", 1, "marks no statement"),
        ("if x:\n    y()\n    # SOLUTION(task1): what\nz()\n", 3, "marks no statement"),
        ("x = 1\n# SOLUTION(task1): what\n", 2, "marks no statement"),
        (SOURCE.replace("# a comment", "# SOLUTION(task1): no"), 12, "is within the region of"),
        (f"# SOLUTION(task1): {'w' * 93}\nx = 1\n", 1, "too long by 12 characters"),
    ],
)
def test_a_wrong_marker_is_reported_with_file_and_line(source, line, reason):
    with pytest.raises(UserError, match=reason) as error:
        find_regions(source, "task1/some.py")
    assert str(error.value).startswith(f"task1/some.py:{line}: ")


def test_what_students_write_covers_the_course(files):
    todos = {}
    regions = build.regions_of(ROOT)
    scripts = [t.script for t in SCRIPTS.values() if not (t.pretrains or t.extra)]
    for path, found in regions.items():
        for region in found:
            todos.setdefault(region.task, []).append((path, region.text))
    assert set(todos) == set(SCRIPTS)
    once = [(one.task, one.hint) for found in regions.values() for one in found if not one.source]
    assert len(once) == len(set(once)) <= 52
    for task, path, code in [
        ("task1", "common/models/bert.py", "AutoModelForSequenceClassification.from_pretrained("),
        ("task2a", "common/workers/world.py", "dist.init_process_group("),
        ("task1", "common/data/loader.py", "DistributedSampler("),
        ("task1", "common/data/loader.py", "set_epoch("),
        *(
            ("task1", script, "loss.backward()")
            for script in scripts
            if not script.startswith("task7/")
        ),
        *(("task1", script, "optimizer.step()") for script in scripts),
        *(("task1", task.script, "evaluate(") for task in SCRIPTS.values()),
        ("task2a", "task2a/run_glue.py", "dist.gather("),
        ("task2a", "task2a/run_glue.py", "dist.scatter("),
        ("task2a", "task2a/run_glue.py", "  average_gradients(model, world)"),
        ("task2b", "task2b/run_glue.py", "dist.all_reduce("),
        ("overlap", "task2b/overlap.py", "dist.all_reduce("),
        ("task3", "task3/run_glue.py", "DistributedDataParallel("),
        ("task4", "common/record/traffic.py", "def expected_bytes("),
        ("task5", "task5/run_glue.py", "gradients *= examples"),
        ("uneven_ddp", "task5/ddp.py", "world.size * batches.examples / batches.total"),
        ("task5", "common/uneven.py", "def in_proportion("),
        ("zero1", "task6/zero1.py", "dist.all_reduce(gradients"),
        ("zero1", "common/shards.py", "clip_grads_with_norm_([p"),
        ("zero1", "common/shards.py", "dist.all_gather_single("),
        ("zero2", "task6/zero2.py", "dist.all_to_all_single("),
        ("fsdp", "task6/fsdp.py", "fully_shard(layer"),
        ("task8", "task8/pretrain.py", "dist.all_reduce(totals)"),
        ("task8", "task8/pretrain.py", "scaler.scale(loss).backward()"),
        ("task8", "task8/pretrain.py", "scaler.unscale_(optimizer)"),
        ("task8", "task8/pretrain.py", "scaler.step(optimizer)"),
        ("task8", "common/models/lamb.py", "norms([weight, update])"),
        ("task8", "common/models/lamb.py", "addcmul_(p.grad"),
        ("task8", "common/data/pretraining.py", "rng.permutation(candidates)"),
        ("task8", "common/models/schedules.py", "decay_rate **"),
        ("deepspeed", "task8/pretrain_deepspeed.py", "deepspeed.initialize("),
        ("deepspeed", "task8/pretrain_deepspeed.py", "model.backward("),
        ("deepspeed", "task8/pretrain_deepspeed.py", "model.step("),
        ("finetune", "task8/finetune_deepspeed.py", "model.step("),
        ("naive", "task7/naive.py", "outputs.backward(gradients)"),
        ("naive", "task7/naive.py", "stage.send(outputs.detach()"),
        ("naive", "common/models/stage.py", "clip_grads_with_norm_(stage"),
        ("gpipe", "task7/gpipe.py", "kept.append("),
        ("one_f_one_b", "task7/one_f_one_b.py", "> model.stages_after"),
        ("grid", "task7/grid.py", "world.replicas_group)"),
        ("tensor", "task7/tensor.py", "dist.all_reduce(gradients)"),
        ("tensor", "task7/tensor.py", "second.forward ="),
        ("tensor", "common/models/tensor_parallel.py", "clip_grads_with_norm_(model"),
        ("library", "task7/library.py", "schedule.step("),
    ]:
        assert any(path == place and code in text for place, text in todos[task]), (path, code)
        assert code not in files[path].decode() or code.startswith("def "), (path, code)


def test_with_the_solution_the_handouts_sources_are_this_repositorys(folder):
    filled = [path for task in SCRIPTS for path in build.fill(folder, ROOT, [task])]
    carried, missed = carry(folder)
    assert carried
    by_hand = [f"task6/{name}.py" for name in ("zero1", "zero2")]  # they clip otherwise
    by_hand += [task.script for task in SCRIPTS.values() if task.divided or task.extra]
    assert sorted(sentence.split(": ")[0] for sentence in missed) == sorted(by_hand)
    assert all(sentence.endswith("copy it by hand") for sentence in missed)
    for path in by_hand:
        shutil.copyfile(ROOT / path, folder / path)
    assert {path.split("/")[0] for path in [*filled, *carried]} == {"common", *FOLDERS}
    for room in ("common", *FOLDERS):
        for path in (ROOT / room).rglob("*.py"):
            assert (folder / path.relative_to(ROOT)).read_bytes() == path.read_bytes(), path
    for room in ("common", *FOLDERS):
        for path in (folder / room).rglob("*.py"):
            assert not find_todos(ast.parse(path.read_text())), path


def test_the_same_sources_give_the_same_bytes_with_git_and_without(files, tmp_path):
    copy = tmp_path / "a copy"
    for path in manifest.tracked(ROOT):
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, copy / path)
    for junk in ("common/__pycache__/x.pyc", "sample_data/RTE/cached_train", "runs/a.md"):
        (copy / junk).parent.mkdir(parents=True, exist_ok=True)
        (copy / junk).write_bytes(b"\xff")
    assert build.handout(copy) == files
    git = ["git", "-C", str(copy)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    (copy / "untracked.py").write_bytes(b"\xff")
    assert build.handout(copy) == files
    for name in ("1.zip", "2.zip"):
        build.write_archive(dict(sorted(files.items(), reverse=name == "1.zip")), tmp_path / name)
        os.utime(copy / "README.md", (0, 0))
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "1.zip") as archive:
        archive.extractall(tmp_path / "out")
        assert archive.getinfo("handout/setup.sh").external_attr >> 16 == 0o100755
    for path, data in files.items():
        assert (tmp_path / "out" / "handout" / path).read_bytes() == data


def test_reference_checks_answers_and_mutants_stay_out(files):
    for secret in (
        "staff/reference.py",
        "staff/gallery/mistakes.py",
        "staff/tests/test_twin.py",
        ".ci/run",
    ):
        assert (ROOT / secret).is_file()
        assert manifest.why_out(secret)
        assert secret not in files
    for secret in ("staff/new.py", "staff/gallery/x/y.txt", "task5/lesson.diff"):
        assert manifest.why_out(secret)
    assert not [path for path in files if path.startswith(("report/example/", "staff/"))]
    assert all(manifest.OUT.values())
    kept = {path for path in manifest.tracked(ROOT) if not manifest.why_out(path)}
    assert set(files) == {*kept, "TODO.md", "conftest.py"}
    for path in files:
        if path.endswith(".py"):
            ast.parse(files[path])


LEAKS = {
    "README.md": "1. `loss.backward()`: the gradient",
    "task1/README.md": "    optimizer.step()   # and so on",
    "task3/README.md": "say `x` or model = DistributedDataParallel( model, static_graph = True )",
    "task2a/README.md": "dist.gather(part,\n  copies, dst=0)",
    "common/errors.py": "if x:\n    optimizer . step()",
    "common/units.py": "x = 'write: model = DistributedDataParallel(model, static_graph=True)'",
    "common/workers/heartbeat.py": "# gradients /= world.size\nx = 1",
    "cluster/launch.py": "ring = 2*(size-1)/size*tensor_bytes",
    "LICENSE": "dist.all_reduce(\n    gradients,\n    op=dist.ReduceOp.SUM,\n)",
}


@pytest.fixture(scope="module")
def solution():
    found = {}
    for path in build.regions_of(ROOT):
        found |= leaks.solution_statements((ROOT / path).read_text(), path)
    return found


@pytest.mark.parametrize("path", LEAKS)
def test_the_solution_is_found_wherever_it_stands(files, solution, path):
    assert leaks.find_leaks(files, solution) == []
    whole = {**files, path: files[path] + b"\n" + LEAKS[path].encode() + b"\n"}
    (leak,) = leaks.find_leaks(whole, solution)
    assert leak.startswith(f"{path}:")
    assert "of the solution in " in leak
    if path.endswith(".py"):
        assert int(leak.split(":")[1]) > files[path].count(b"\n")


def test_each_region_left_in_would_be_found(solution):
    for path, regions in build.regions_of(ROOT).items():
        for n in range(len(regions)):
            text = cut((ROOT / path).read_text(), regions[:n] + regions[n + 1 :])
            assert leaks.find_leaks({path: text.encode()}, solution), (path, regions[n].hint)


def test_what_nobody_can_read_and_what_leads_nowhere_is_found(solution):
    (leak,) = leaks.find_leaks({"common/x.pyc": b"\xff\x00"}, solution)
    assert "is not text" in leak
    odd = {
        "README.md": b"[a](CHANGELOG.md) [b](https://example.org) [c](LICENSE)",
        "LICENSE": b"",
        "common/__init__.py": b"import common.gone\nimport json\nfrom staff.reference import x\n",
    }
    assert [
        line.split(" leads")[0].split(", which")[0] for line in leaks.dangling_references(odd)
    ] == [
        "README.md: its link to CHANGELOG.md",
        "common/__init__.py:1: imports common/gone.py",
        "common/__init__.py:3: imports staff/reference/x.py",
    ]


def test_a_leak_leaves_nothing_written(monkeypatch, tmp_path):
    table = build.with_table
    monkeypatch.setattr(build, "with_table", lambda text: f"    optimizer.step()\n{table(text)}")
    with pytest.raises(UserError, match=r"README.md:1: has `optimizer.step\(\)`"):
        build.main([str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_a_handout_takes_the_place_of_nothing_but_an_unedited_one(folder, files):
    (folder / "runs").mkdir()
    fewer = {path: data for path, data in files.items() if path != "TODO.md"}
    write_folder(fewer, folder)
    assert not (folder / "TODO.md").exists()
    assert (folder / "runs").is_dir()
    (folder / "task1" / "run_glue.py").write_text("my work\n")
    with pytest.raises(UserError, match=r"task1/run_glue.py is not as it was handed out"):
        write_folder(files, folder)
    assert (folder / "task1" / "run_glue.py").read_text() == "my work\n"
    write_folder(files, folder, force=True)
    assert (folder / "task1" / "run_glue.py").read_bytes() == files["task1/run_glue.py"]


def test_other_folders_are_refused(files, monkeypatch, tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(UserError, match="is not empty and not a handout"):
        write_folder(files, tmp_path)
    with pytest.raises(UserError, match="is a file"):
        write_folder(files, tmp_path / "mine")
    monkeypatch.setattr(build, "KIT", tmp_path / "kit")
    for inside in (build.KIT, build.KIT / "runs" / "handout"):
        with pytest.raises(UserError, match="is within this repository"):
            build.main([str(inside), "--force"])
    assert sorted(tmp_path.iterdir()) == [tmp_path / "mine"]


def test_the_handouts_lint_is_clean(folder):
    for command in ("ruff check --no-cache", "ruff format --check --no-cache", "codespell_lib"):
        command = [sys.executable, "-m", *command.split(), "."]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stdout + run.stderr


def needed(names):
    """The distributions that these requirements install, as far as they are installed here."""
    found, waiting = set(), [Requirement(name) for name in names]
    while waiting:
        wanted = waiting.pop()
        if wanted.name in found or not list(metadata.distributions(name=wanted.name)):
            continue
        found.add(wanted.name)
        further = [Requirement(text) for text in metadata.requires(wanted.name) or ()]
        extras = [{"extra": extra} for extra in ("", *wanted.extras)]
        waiting += [
            one
            for one in further
            if not one.marker or any(one.marker.evaluate(extra) for extra in extras)
        ]
    return found


def test_students_install_nothing_that_only_instructors_need(folder):
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has none")
    wanted = {}
    for place in (ROOT, folder):
        project = tomllib.loads((place / "pyproject.toml").read_text())["project"]
        extras = project["optional-dependencies"].values()
        wanted[place] = needed(itertools.chain(project["dependencies"], *extras))
    staffs = {"boto3", "selenium", "pytorch-transformers", "pypdf", "ruff"}
    assert staffs <= wanted[ROOT]
    assert not staffs & wanted[folder]
    assert {"torch", "huggingface-hub", "pytest"} <= wanted[folder]


def test_its_container_is_a_stage_of_its_dockerfile(folder):
    build = json.loads((folder / ".devcontainer" / "devcontainer.json").read_text())["build"]
    place = (folder / ".devcontainer" / build["context"]).resolve()
    assert place == folder.resolve()
    recipe = (folder / ".devcontainer" / build["dockerfile"]).read_text()
    assert f" AS {build['target']}\n" in recipe
    assert "COPY" not in recipe.partition("\nFROM tools\n")[0]  # the folder is mounted


def test_its_make_has_no_targets_of_instructors(folder):
    for place, staff in ((ROOT, True), (folder, False)):
        shown = subprocess.run(["make", "help"], cwd=place, capture_output=True, text=True).stdout
        assert "make test" in shown
        assert ("make gallery" in shown) == ("make bench" in shown) == staff


def test_an_unfinished_task_ends_with_one_sentence_on_every_rank(folder):
    build.fill(folder, ROOT, [task for task in TASKS if task != "task2b"])
    carry(folder)
    result = start(folder, "task2b", 2)
    assert result.code == 1
    for worker in result.workers:
        (line,) = said(worker)
        place, todo = line.split(": ", 1)
        hint = "sum the gradients over all ranks with all_reduce, then divide"
        assert todo.startswith(f"TODO(task2b): {hint} (write it there")
        path, number = place.split(":")
        assert "raise NotImpl" in (folder / path).read_text().splitlines()[int(number) - 1]


def test_what_was_written_elsewhere_is_carried_from_there(folder):
    build.fill(folder, ROOT)
    result = start(folder, "task3", 2)
    assert result.code == 1
    for worker in result.workers:
        (line,) = said(worker)
        assert ": TODO(task1): " in line
        assert line.endswith("; write it in task1/run_glue.py, then run: python -m grading carry")


def test_what_is_finished_runs_though_other_parts_are_not(folder):
    build.fill(folder, ROOT, ["task1"])
    result = start(folder, "task1", 1)
    assert result.code == 0, result.summary()
    assert any(re.match(r"after .*epochs?.*: acc", line) for line in result.workers[0].stdout)


def test_the_test_of_what_is_to_be_written_is_skipped_and_says_what(folder):
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    command += ["tests/test_loader.py"]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    run = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stdout
    assert "TODO(task1): deal the rows to the ranks" in run.stdout
    passed, skipped = (
        int(run.stdout.split(f" {word}")[0].split()[-1]) for word in ("passed", "skipped")
    )
    assert passed > 3
    assert skipped > 5
