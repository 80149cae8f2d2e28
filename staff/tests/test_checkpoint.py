"""A run that is cut and resumed leaves what the uninterrupted run leaves, bit for bit.

One run of each task saves a checkpoint at every step, so its folder holds what a cut at any step
would have left. Each test resumes a copy.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys

from cluster import lab_network
from common.checkpoint_files import COMPLETE, TRAINING, read_tensors, write_tensors
from common.load import load
from common.models.evaluate import evaluate
from common.models.optimizer import make_optimizer
from common.record.record import Record
from tests.workers import DEADLINE, FLAGS, ROOT, Crew, ending, marked

import numpy
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

REFUSED = lab_network.missing()
SIZES = {"task1": 1, "task2a": 3, "task2b": 2, "task3": 3}
# 64 rows: 6 steps an epoch with three workers, and the last of them with fewer rows.
TRAIN = "--max_steps -1 --num_train_epochs 2 --do_eval --dropout 0.1 --per_gpu_train_batch_size 2"
TRAIN += " --gradient_accumulation_steps 2 --learning_rate 1e-3"
EVERY_STEP = "--save_steps 1 --save_total_limit 99"


def noisy(args, world):
    """A loop of one worker whose losses depend on all random generators."""
    model, data = load(args, world)
    optimizer, scheduler = make_optimizer(model, args, data.total_steps)
    record = Record(args, world, model, data, optimizer)
    for epoch in record.epochs():
        for batches in record.steps(data, epoch):
            optimizer.zero_grad()
            for batch, weight in batches:
                noise = random.random() + numpy.random.rand()
                (model(**batch).loss * weight * noise).backward()
            optimizer.step()
            scheduler.step()
        record.end_epoch(epoch, evaluate(model, data, world))
    record.finish(model)


@pytest.fixture(scope="module")
def whole_runs(tmp_path_factory):
    """Script -> a crew that has run it with a checkpoint at every step."""
    crews = {}

    def whole_run(script):
        name = script if isinstance(script, str) else script.__name__
        if script not in crews:
            crews[script] = Crew(tmp_path_factory.mktemp("whole") / name)
            run(crews[script], script, EVERY_STEP)
        return crews[script]

    yield whole_run
    for crew in crews.values():
        crew.__exit__()


def run(crew, script, flags, size=None):
    """Run a script to its end."""
    size = size or SIZES.get(script, 1)
    for worker in crew.start_all(script, size, f"{TRAIN} {flags}"):
        assert worker.end() == 0, worker.errors


def refused(crew, script, flags):
    """What a run that ends with a user error prints."""
    workers = crew.start_all(script, SIZES[script], f"{TRAIN} {flags}")
    assert workers[0].end() == 2
    assert all(worker.end() for worker in workers)
    return "\n".join(workers[0].errors)


def copy_cut_after(crew, step, folder):
    """A copy of a run's folder as it was when the checkpoint of that step was complete."""
    shutil.copytree(crew.output, folder)
    for checkpoint in checkpoints(folder):
        if checkpoint > step:
            shutil.rmtree(folder / f"checkpoint-{checkpoint}")
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**facts, "end": None}))
    (folder / "model.safetensors").unlink()
    return folder


def checkpoints(folder):
    return sorted(int(path.name.removeprefix("checkpoint-")) for path in folder.glob("check*"))


def lines_of(folder, size):
    """The lines of every rank's steps, without seconds."""
    files = [(folder / f"steps.rank{rank}.jsonl").read_text() for rank in range(size)]
    lines = [[json.loads(line) for line in file.splitlines()] for file in files]
    return [[{k: v for k, v in line.items() if k != "seconds"} for line in rank] for rank in lines]


def losses(folder):
    return [line["loss"] for line in lines_of(folder, 1)[0]]


def assert_same(one, other, size):
    """Two runs left the same steps, metrics and weights."""
    assert lines_of(one, size) == lines_of(other, size)
    for name in ("model.safetensors", "eval_results.txt"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    metrics = [json.loads((f / "run.json").read_text())["metrics"] for f in (one, other)]
    assert metrics[0] == metrics[1]


@pytest.mark.parametrize(
    ("script", "step"),
    [
        ("task2b", 3),
        pytest.param("task3", 2, marks=pytest.mark.slow),
        *(pytest.param("task1", n, marks=pytest.mark.slow) for n in (1, 16, 17, 31, 32)),
        *(pytest.param("task2a", n, marks=pytest.mark.slow) for n in (1, 6, 7, 11, 12)),
        *(pytest.param("task2b", n, marks=pytest.mark.slow) for n in (1, 8, 9, 16)),
        *(pytest.param("task3", n, marks=pytest.mark.slow) for n in (1, 6, 7, 11, 12)),
    ],
)
def test_a_run_that_is_cut_and_resumed_leaves_the_same(whole_runs, tmp_path, script, step):
    crew = whole_runs(script)
    folder = copy_cut_after(crew, step, tmp_path / "out")
    run(crew, script, f"{EVERY_STEP} --output_dir {folder} --resume")
    assert json.loads((folder / "run.json").read_text())["resumed"] == [step]
    assert_same(crew.output, folder, SIZES[script])


def edit(path, change):
    """Change what a checkpoint's file of tensors holds."""
    values = read_tensors(path)
    change(values)
    write_tensors(values, path)


def forget_weights(folder):
    weights = load_file(folder / "model.safetensors")
    save_file(
        {k: v + 1e-3 for k, v in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )


def forget_moments(folder):
    def change(training):
        for state in training["state"].values():
            state["exp_avg"].zero_()

    edit(folder / TRAINING, change)


def forget_schedule(folder):
    edit(folder / TRAINING, lambda t: t["scheduler"].update(last_epoch=0))


def forget_position(folder):
    progress = json.loads((folder / COMPLETE).read_text())
    progress["progress"]["position"] -= 1
    (folder / COMPLETE).write_text(json.dumps(progress))


def forget_epoch(folder):
    progress = json.loads((folder / COMPLETE).read_text())
    progress["progress"]["epoch"] += 1
    (folder / COMPLETE).write_text(json.dumps(progress))


def forget_random(name):
    """A change that replaces a generator's state by that of another run's start."""

    def change(folder):
        state = {
            "torch": torch.Generator().manual_seed(7).get_state(),
            "numpy": ("MT19937", list(range(624)), 624, 0, 0.0),
            "random": random.Random(7).getstate(),
        }[name]
        edit(folder / "rank0.pt", lambda values: values["random_states"].update({name: state}))

    return change


@pytest.mark.parametrize(
    ("change", "first"),
    [
        (lambda _: None, None),
        (forget_weights, 4),
        (forget_moments, 5),
        (forget_schedule, 6),
        (forget_position, 4),
        (forget_epoch, 4),
        (forget_random("torch"), 4),
        (forget_random("numpy"), 5),
        (forget_random("random"), 5),
    ],
    ids=[
        "nothing",
        "weights",
        "moments",
        "schedule",
        "position",
        "epoch",
        "torch",
        "numpy",
        "random",
    ],
)
def test_without_any_one_part_the_losses_differ(whole_runs, tmp_path, change, first):
    """From `first` on: a step's loss is taken before its gradients have changed the weights."""
    crew = whole_runs(noisy)
    folder = copy_cut_after(crew, 3, tmp_path / "out")
    change(folder / "checkpoint-3")
    run(crew, noisy, f"--output_dir {folder} --resume --save_strategy no")
    pairs = zip(losses(crew.output), losses(folder), strict=False)
    differing = [step for step, (one, other) in enumerate(pairs, 1) if one != other]
    assert differing[:1] == ([first] if first else [])


@pytest.mark.parametrize("number", [signal.SIGKILL])
def test_a_killed_run_is_resumed_from_its_newest_whole_checkpoint(whole_runs, tmp_path, number):
    with Crew(tmp_path / "cut") as crew:
        workers = crew.start_all("task2b", 2, f"{TRAIN} --save_steps 2")
        crew.wait_until(lambda: (crew.output / "checkpoint-4" / COMPLETE).exists())
        for worker in workers:
            worker.signal(number)
        assert [worker.end() for worker in workers] == [-number] * 2
        newest = max(checkpoints(crew.output))
        half = crew.output / f"checkpoint-{newest + 1}"  # as if cut within the save
        shutil.copytree(crew.output / f"checkpoint-{newest}", half)
        (half / COMPLETE).unlink()
        crew.workers.clear()
        run(crew, "task2b", "--save_steps 2 --resume")
        assert_same(whole_runs("task2b").output, crew.output, 2)
        assert checkpoints(crew.output) == [16]  # --save_total_limit is 1


@pytest.mark.parametrize(
    ("script", "rank", "number", "env"),
    [
        ("task2b", 1, signal.SIGUSR1, {}),
        pytest.param("task1", 0, signal.SIGTERM, {"SLURM_JOB_ID": "7"}, marks=pytest.mark.slow),
        pytest.param("task3", 0, signal.SIGTERM, {"SLURM_JOB_ID": "7"}, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_gets_notice_saves_and_ends(whole_runs, tmp_path, script, rank, number, env):
    with Crew(tmp_path / "cut") as crew:
        workers = crew.start_all(script, SIZES[script], f"{TRAIN}", env)
        crew.wait_for_step(2)
        workers[rank].signal(number)
        assert [worker.end() for worker in workers] == [75] * len(workers), workers[0].errors
        (step,) = checkpoints(crew.output)
        assert [crew.steps(rank) for rank in range(len(workers))] == [step] * len(workers)
        (line,) = workers[0].errors
        assert line.startswith(f"the run ends after step {step}, because of ")
        assert line.endswith("; --resume goes on from there")
        assert not [line for worker in workers[1:] for line in worker.errors]
        crew.workers.clear()
        run(crew, script, "--resume")
        assert_same(whole_runs(script).output, crew.output, SIZES[script])


@pytest.mark.slow
def test_the_launcher_restarts_a_run_that_fails(whole_runs, tmp_path):
    with Crew(tmp_path / "cut") as crew:
        command = [sys.executable, "-m", "cluster.launch", "--workers", "2", "--restarts", "2"]
        command += f"task2b/run_glue.py {FLAGS} {TRAIN} --save_steps 1".split()
        command += f"--data_dir {crew.data} --output_dir {crew.output}".split()
        with open(tmp_path / "text", "w+") as text:
            launcher = subprocess.Popen(command, cwd=ROOT, stdout=text, stderr=subprocess.STDOUT)
            with ending(launcher):
                crew.wait_until(lambda: crew.steps(0) > 2)
                processes = psutil.Process(launcher.pid).children(recursive=True)
                (killed,) = [process for process in processes if process.name() == "rank 1"]
                killed.kill()
                code = launcher.wait(DEADLINE)
            text.seek(0)
            assert code == 0, text.read()
            text.seek(0)
            assert "restart 1 of 2, from the newest checkpoint" in text.read()
        assert json.loads((crew.output / "run.json").read_text())["resumed"]
        assert_same(whole_runs("task2b").output, crew.output, 2)


def test_what_differs_from_the_checkpoint_is_named(whole_runs, tmp_path):
    crew = whole_runs("task2b")
    folder = copy_cut_after(crew, 3, tmp_path / "out")
    flags = f"--output_dir {folder} --resume"
    assert "- --learning_rate was 0.001 and is now 0.002" in refused(
        crew, "task2b", f"{flags} --learning_rate 2e-3"
    )
    with Crew(tmp_path / "other") as other:
        train = other.data / "train.tsv"
        train.write_text(train.read_text().replace("the", "a"))
        assert "- the data of train was '" in refused(other, "task2b", flags)


def test_another_number_of_workers_is_offered(whole_runs, tmp_path):
    crew = whole_runs("task2b")
    folder = copy_cut_after(crew, 3, tmp_path / "out")
    flags = f"--output_dir {folder} --resume --per_gpu_train_batch_size 4"
    worker = crew.start("task1", flags=f"{TRAIN} {flags}")
    assert worker.end() == 2
    assert "- the task was 'task2b' and is now 'task1'" in "\n".join(worker.errors)
    worker = crew.start("task2b", 0, 1, f"{TRAIN} {flags}")
    assert worker.end() == 2
    assert "--other_world_size goes on with new ones" in "\n".join(worker.errors)
    run(crew, "task2b", f"{flags} --other_world_size", size=1)
    assert [line["step"] for line in lines_of(folder, 1)[0]] == list(range(4, 17))


def test_machines_that_share_no_folder_resume_together(whole_runs, tmp_path):
    """Rank 1 has only its own file; the rest comes from rank 0."""
    crew = whole_runs("task2b")
    folders = [copy_cut_after(crew, 5, tmp_path / f"out{rank}") for rank in (0, 1)]
    for path in (folders[1] / "checkpoint-5").iterdir():
        if path.name != "rank1.pt":
            path.unlink()
    workers = [
        crew.start("task2b", rank, 2, f"{TRAIN} --resume --output_dir {folder}")
        for rank, folder in enumerate(folders)
    ]
    assert [worker.end() for worker in workers] == [0, 0], workers[0].errors
    shutil.copy(folders[1] / "steps.rank1.jsonl", folders[0])
    assert_same(crew.output, folders[0], 2)


@pytest.mark.slow
def test_torchrun_goes_on_after_a_worker_is_killed(whole_runs, tmp_path):
    with Crew(tmp_path / "cut") as crew:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        command += [
            "--standalone",
            "--max-restarts",
            "2",
            "task2b/run_glue.py",
            "--save_steps",
            "1",
        ]
        command += f"{FLAGS} {TRAIN} --data_dir {crew.data} --output_dir {crew.output}".split()
        with open(tmp_path / "text", "w+") as text:
            agent = subprocess.Popen(command, cwd=ROOT, stdout=text, stderr=subprocess.STDOUT)
            with ending(agent):
                crew.wait_until(lambda: crew.steps(0) > 2)
                (killed,) = [
                    p for p in psutil.Process(agent.pid).children() if p.environ()["RANK"] == "1"
                ]
                killed.kill()
                code = agent.wait(DEADLINE)
            text.seek(0)
            assert code == 0, text.read()
        assert json.loads((crew.output / "run.json").read_text())["resumed"]
        assert_same(whole_runs("task2b").output, crew.output, 2)


AGENTS = """if 1:
    import subprocess, sys
    from cluster.lab_network import build
    nodes = build(["1gbit", "1gbit"])
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--max-restarts", "3"]
    agent += "--rdzv-backend c10d --rdzv-endpoint node0:29500 --rdzv-id restarted".split()
    agents = [subprocess.Popen([*node.prefix(), *agent, *sys.argv[1:]]) for node in nodes]
    sys.exit(any([agent.wait() for agent in agents]))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(REFUSED), reason=REFUSED or "there is a lab")
def test_two_agents_on_two_nodes_go_on_after_a_worker_is_killed(whole_runs, tmp_path):
    with Crew(tmp_path / "cut") as crew:
        command = [sys.executable, "-c", AGENTS, "task2b/run_glue.py", "--resume", "--save_steps"]
        command += f"1 {FLAGS} {TRAIN} --data_dir {crew.data} --output_dir {crew.output}".split()
        mark = {"LAB_TEST": str(tmp_path), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        with open(tmp_path / "text", "w+") as text:
            lab = subprocess.Popen(
                lab_network.inside(command),
                cwd=ROOT,
                env={**os.environ, **mark, "OMP_NUM_THREADS": "1"},
                stdout=text,
                stderr=subprocess.STDOUT,
            )
            with ending(lab):
                crew.wait_until(lambda: crew.steps(0) > 2)
                (killed,) = [
                    process
                    for process in marked("LAB_TEST", str(tmp_path))
                    if process.environ().get("RANK") == "1"
                ]
                killed.kill()
                code = lab.wait(DEADLINE)
            text.seek(0)
            assert code == 0, text.read()
        assert json.loads((crew.output / "run.json").read_text())["resumed"]
        assert_same(whole_runs("task2b").output, crew.output, 2)
