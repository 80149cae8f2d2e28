"""Task 7: a model divided into stages computes what one worker computes with the same batch."""

import os
import signal
from functools import partial

from cluster.launch import Place, launch
from common.data.pipelined import divide
from common.errors import UserError
from common.layers import bounds_of
from common.models.optimizer import is_decayed
from common.models.tiny import tiny_model
from report import timeline
from report.runs import load_run
from tests.workers import ROOT, Crew, sample

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

FLAGS = """--model_name_or_path tiny:4 --task_name RTE --do_train --do_eval --dropout 0 --no_cuda
    --learning_rate 5e-4 --max_grad_norm 0.1 --max_seq_length 64 --timeout 60
    --per_gpu_train_batch_size 22 --save_strategy steps --save_steps 1 --save_total_limit 9"""
STEPS = "--max_steps 3"  # of 22, 22 and, the last of an epoch, 14 rows
INTERLEAVED = "--schedule interleaved"
ONE = f"task1/run_glue.py 1 {STEPS}"
RUNS = {  # script, workers and flags -> the most micro-batches that each stage keeps
    f"task7/naive.py 2 {STEPS}": [1, 1],
    f"task7/gpipe.py 4 {STEPS} --num_microbatches 4 --count_traffic": [4, 4, 4, 4],
    f"task7/one_f_one_b.py 3 {STEPS} --num_microbatches 4 --layers 1,1,2 --padded": [3, 2, 1],
}
EACH = [pytest.param(text, marks=[pytest.mark.slow] * ("naive" not in text)) for text in RUNS]
SLOW_RUNS = (
    f"task7/tensor.py 2 {STEPS}",
    f"task7/library.py 3 {STEPS} --num_microbatches 4",
    f"task7/library.py 2 {STEPS} --num_microbatches 4 --schedule gpipe",
    f"task7/library.py 2 {STEPS} --num_microbatches 4 --schedule interleaved --chunks 2",
    f"task7/grid.py 4 {STEPS} --num_microbatches 3 --per_gpu_train_batch_size 11",
    f"task7/naive.py 4 {STEPS} --num_microbatches 5",
    f"task7/gpipe.py 2 {STEPS} --gradient_accumulation_steps 2 --per_gpu_train_batch_size 11",
    f"task7/one_f_one_b.py 1 {STEPS} --num_microbatches 3",
    f"task7/one_f_one_b.py 4 {STEPS} --num_microbatches 14",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory, template):
    """Do a run, once; returns its folder."""
    data = sample(tmp_path_factory.mktemp("data") / "RTE", 58)
    done = {}

    def run(text):
        if text not in done:
            script, workers, *more = text.split()
            folder = tmp_path_factory.mktemp("run")
            places = ["--data_dir", str(data), "--output_dir", str(folder)]
            command = [str(ROOT / script), *FLAGS.split(), *places, *more]
            env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
            env["OMP_NUM_THREADS"] = "1"  # the template is started again where it changes
            place = Place(template=template)
            result = launch(command, int(workers), quiet=True, env=env, place=place)
            assert result.code == 0, result.summary()
            done[text] = folder
        return done[text]

    return run


def first_gradients(folder, keys):
    """The clipped gradients of the first step by parameter: AdamW's first moments are a tenth."""
    checkpoint = folder / "checkpoint-1"
    shards = checkpoint / "shards"
    if not shards.exists():
        state = torch.load(checkpoint / "training.pt")["state"]
        return dict(zip(keys, (10 * state[n]["exp_avg"] for n in range(len(keys))), strict=True))
    whole = folder / "optimizer.pt"
    dcp_to_torch_save(shards, whole)
    found = torch.load(whole).items()
    ends = ".exp_avg"
    return {name.removesuffix(ends): 10 * value for name, value in found if name.endswith(ends)}


def in_order_of_the_optimizer(weights):
    """The parameters' names: those with decay first, each in the model's order."""
    names = [name for name, _ in tiny_model(2, 4).named_parameters()]
    assert set(names) == set(weights)
    return sorted(names, key=lambda name: not is_decayed(name))


def largest(these, those):
    """The largest difference between two dicts of tensors."""
    assert these.keys() == those.keys()
    return max((these[name] - those[name]).abs().max().item() for name in these)


def check_that_it_equals_one_worker(run, text):
    """Loss, gradients, weights and metrics of a run, beside those of task 1."""
    alone, folder = run(ONE), run(text)
    expected, found = load_run(alone), load_run(folder)
    gaps = [abs(a - b) for a, b in zip(expected.losses, found.losses, strict=True)]
    assert len(gaps) == 3
    assert max(gaps) < 1e-6
    assert expected.facts["metrics"] == found.facts["metrics"]
    for step in (1, 3):
        saved, weights = (
            load_file(each / f"checkpoint-{step}" / "model.safetensors") for each in (folder, alone)
        )
        assert largest(saved, weights) < 2e-5  # AdamW divides by tiny numbers
    names = in_order_of_the_optimizer(weights)
    gradients = [first_gradients(each, names) for each in (alone, folder)]
    assert largest(*gradients) < 1e-6
    norm = torch.cat([gradient.flatten() for gradient in gradients[1].values()]).norm()
    assert norm == pytest.approx(0.1, abs=1e-4)  # it was clipped by all stages' norm
    return found


@pytest.mark.parametrize("text", EACH)
def test_a_pipeline_equals_one_worker_with_the_same_batch(run, text):
    found = check_that_it_equals_one_worker(run, text)
    *others, last = found.steps
    assert [line["examples"] for line in last] == [22, 22, 14]
    assert all(line["examples"] == 0 for rank in others for line in rank)


@pytest.mark.parametrize("text", EACH)
def test_the_timeline_has_every_pass_in_the_order_of_the_schedule(run, text):
    found = load_run(run(text))
    for step in timeline.steps_of(timeline.load_timeline(found)):
        assert [timeline.kept_by(passes) for passes in step] == RUNS[text]
        for passes in step:
            for what in timeline.KINDS:
                numbers = [each.microbatch for each in passes if each.what == what]
                assert numbers == list(range(4 if "--num_microbatches" in text else 1))
            ends = [each.end for each in passes]
            assert ends == sorted(ends)
    if found.traffic:
        measured, expected = timeline.border_bytes(found)
        assert measured == expected > 0


def test_the_bubble_is_the_share_in_which_stages_wait():
    forward, backward = (partial(timeline.Pass, 1, what) for what in timeline.KINDS)
    first = [forward(0, 0, 0.0, 1.0), backward(0, 0, 3.0, 4.0)]
    last = [forward(1, 0, 1.0, 2.0), backward(1, 0, 2.0, 3.0)]
    assert timeline.bubble_of([first, last]) == 0.5  # (p - 1)/(m + p - 1) for p = 2, m = 1


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("text", SLOW_RUNS)
def test_so_do_pipelines_of_other_sizes(run, text):
    check_that_it_equals_one_worker(run, text)


@pytest.mark.slow
def test_task_1_loads_what_a_pipeline_has_saved(run):
    folder = run(next(iter(RUNS)))
    again = run(f"task1/run_glue.py 1 --max_steps 1 --model_name_or_path {folder}")
    last = load_run(folder).facts["metrics"][-1]
    onward = run(f"task1/run_glue.py 1 --max_steps 1 --model_name_or_path {run(ONE)}")
    assert load_run(again).losses == pytest.approx(load_run(onward).losses, abs=1e-5)
    assert last["acc"] > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_checkpoint_goes_on_with_other_stages(run):
    whole = run(f"task7/gpipe.py 4 {STEPS} --num_microbatches 4")
    for more in ("4", "2", "3 --layers 2,1,1", "1"):
        workers, *flags = more.split(maxsplit=1)
        more = f"--resume {whole / 'checkpoint-1'} --other_world_size {' '.join(flags)}"
        folder = run(f"task7/gpipe.py {workers} {STEPS} --num_microbatches 4 {more}")
        again, first = (torch.tensor(load_run(each).losses[-2:]) for each in (folder, whole))
        gaps = again - first
        weights, saved = (load_file(each / "model.safetensors") for each in (whole, folder))
        if workers == "4":
            assert gaps.abs().max() == largest(weights, saved) == 0
        else:
            assert gaps.abs().max() < 1e-6
            assert largest(weights, saved) < 2e-5


@pytest.mark.parametrize(
    ("script", "flags", "problem"),
    [
        ("gpipe", "--model_name_or_path tiny", "3 stages: the model has only 2 layers"),
        ("gpipe", "--layers 2,1,2", "--layers 2,1,2: sums to 5, but the model has 4 layers"),
        ("naive", "--layers 2,2", "--layers 2,2: has 2 numbers; give 3, one for each stage"),
        ("library", "--chunks 2 --num_microbatches 3", "--chunks 2: is for --schedule interleaved"),
        ("library", f"{INTERLEAVED} --num_microbatches 3", "give --chunks 2, and a model with at"),
        ("library", f"{INTERLEAVED} --chunks 2 --num_microbatches 7", "a multiple of the 3 work"),
        (
            "library",
            f"{INTERLEAVED} --chunks 2 --num_microbatches 3",
            "6 stages: the model has",
        ),
        ("naive", "--batch_sizes 1,2,3", "all stages of a pipeline read the same rows"),
        ("one_f_one_b", "--num_microbatches 2", "--num_microbatches 2: fewer than the 3 stages"),
    ],
)
def test_stages_that_do_not_fit_are_a_user_error(tmp_path, script, flags, problem):
    with Crew(tmp_path) as crew:
        workers = crew.start_all(script, 3, f"--model_name_or_path tiny:4 {flags}")
        for worker in workers:
            assert worker.end() == 2
            assert problem in "\n".join(worker.errors)


@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stage_that_is_killed_is_named(tmp_path, victim):
    flags = "--model_name_or_path tiny:4 --num_microbatches 3 --max_steps 100000 --timeout 12"
    with Crew(tmp_path) as crew:
        workers = crew.start_all("one_f_one_b", 3, flags)
        crew.wait_for_step(1)
        workers[victim].signal(signal.SIGKILL)
        for worker in workers:
            if worker.rank != victim:
                assert worker.end() == 1
                (line,) = worker.errors
                assert line.startswith(f"rank {worker.rank} stops ")
                assert f"rank {victim} " in line


def test_an_error_in_one_stage_is_named_by_the_others(tmp_path):
    flags = "--model_name_or_path tiny:4 --num_microbatches 2 --learning_rate 1e38"
    with Crew(tmp_path) as crew:
        workers = crew.start_all("gpipe", 2, flags)
        assert [worker.end() for worker in workers] == [1, 1]
        lines = [" ".join(worker.errors) for worker in workers]
        first = min(range(2), key=lambda rank: "failed:" in lines[rank])
        assert f"rank {first}, step 2: " in lines[first]
        assert f"rank {first} failed: rank {first}, step 2: " in lines[1 - first]


def test_layers_are_shared_out():
    assert bounds_of("balanced", 4, 6) == [(0, 2), (2, 4), (4, 5), (5, 6)]
    assert bounds_of("1,3,2", 3, 6) == [(0, 1), (1, 4), (4, 6)]
    with pytest.raises(UserError, match="start at most 2 workers"):
        bounds_of("balanced", 3, 2)


def test_rows_are_divided_as_evenly_as_can_be():
    assert [len(part) for part in divide(list(range(58)), 8)] == [8, 8, 7, 7, 7, 7, 7, 7]
    assert [row for part in divide(list(range(58)), 8) for row in part] == list(range(58))
    assert divide([1, 2, 3], 8) == [[1], [2], [3]]
