"""What is proposed for scripts from their --help: right, or an error that says what to write."""

import argparse

from common.errors import UserError
from common.tasks import TASKS
from grading.automatic import propose
from grading.options import parse_help, positional

import pytest

COMMON = "data_dir model_name_or_path max_seq_length learning_rate num_train_epochs max_grad_norm"
WORKERS = "master_ip master_port world_size local_rank"


def parser_of(names, **more):
    """A parser with required options of these names, as a list or in one text."""
    parser = argparse.ArgumentParser(prog="run_glue.py")
    for name in names.split():
        parser.add_argument(f"--{name}", required=True, help=f"the {name}\nof it")
    for name, facts in more.items():
        parser.add_argument(f"--{name}", **facts)
    return parser


def proposed(folder, task, parser, files=("run_glue.py",), text=""):
    """What is proposed for a task of a submission with these files."""
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(f"ArgumentParser()\n{text}")
    return propose(folder, TASKS[task], lambda _: parser.format_help())


def test_options_are_read_with_their_values_choices_and_need():
    parser = parser_of("data", method={"choices": ["a", "b"]}, go={"action": "store_true"})
    parser.add_argument("-n", "--num-nodes", type=int, metavar="N", required=True)
    parser.add_argument("--many", nargs="*", help="several [of them] {x,y}")
    data, method, go, nodes, many = parse_help(parser.format_help())
    assert (data.flag, data.takes_value, data.required) == ("--data", True, True)
    assert (method.choices, method.required) == (("a", "b"), False)
    assert (go.takes_value, go.required) == (False, False)
    assert (nodes.names, nodes.flag, nodes.required) == (["-n", "--num-nodes"], "--num-nodes", True)
    assert (many.choices, many.required) == ((), False)
    assert positional(parser.format_help()) == []
    assert parse_help("Traceback: no such option") == []
    assert len(parse_help(f"Using cpu\n\n{parser.format_help()}")) == 5
    assert positional(f"1 worker\n{parser.format_help()}") == []
    assert parse_help("usage: \n" * 2**14) == []  # and at once


@pytest.mark.parametrize(
    ("batch", "help_text", "placeholder"),
    [
        ("per_gpu_train_batch_size", "", "{batch}"),
        ("per_device_train_batch_size", "", "{batch}"),
        ("batch-size", "rows of one worker", "{batch}"),
        ("batch_size", "total over all workers", "{total_batch}"),
        ("total_batch_size", "", "{total_batch}"),
    ],
)
def test_the_editions_options_are_mapped(batch, help_text, placeholder, tmp_path):
    parser = parser_of(f"{COMMON} {WORKERS}", **{batch: {"help": help_text}})
    found = proposed(tmp_path, "task2b", parser)
    assert f"--{batch} {placeholder}" in found["arguments"]
    assert "--local_rank {rank}" in found["arguments"]
    assert "--data_dir {data_dir} --model_name_or_path {model}" in found["arguments"]


def test_other_spellings_of_the_workers(tmp_path):
    names = f"{COMMON} batch master_addr master_port num_nodes rank"
    found = proposed(tmp_path, "task3", parser_of(names, local_rank={"type": int}))
    assert "--master_addr {master_ip}" in found["arguments"]
    assert "--num_nodes {world_size} --rank {rank}" in found["arguments"]
    assert "local_rank" not in found["arguments"]


@pytest.mark.parametrize(
    ("option", "choices", "values"),
    [
        ("method", ["none", "gather_scatter", "allreduce", "ddp"], [0, 1, 2, 3]),
        ("task", ["1", "2a", "2b", "3"], [0, 1, 2, 3]),
        ("part", ["part1", "part2a", "part2b", "part3"], [0, 1, 2, 3]),
    ],
)
def test_one_script_for_all_tasks(option, choices, values, tmp_path):
    parser = parser_of(f"{COMMON} {WORKERS} batch", **{option: {"choices": choices}})
    for task, value in zip(("task1", "task2a", "task2b", "task3"), values, strict=True):
        found = proposed(tmp_path, task, parser)
        assert f"--{option} {choices[value]}" in found["arguments"]


def test_a_task_without_other_workers_is_not_given_any(tmp_path):
    found = proposed(tmp_path, "task1", parser_of(f"{COMMON} batch", local_rank={"type": int}))
    assert "rank" not in found["arguments"]


TORCH = "RANK={rank} LOCAL_RANK={rank} WORLD_SIZE={world_size} MASTER_ADDR={master_ip} "
TORCH += "MASTER_PORT={master_port}"


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        ("dist.init_process_group('gloo', init_method='env://')", TORCH),
        ("dist.init_process_group(\n    backend=choose(args),\n)", TORCH),
        (
            "rank, n = os.environ['SLURM_PROCID'], int(os.getenv('SLURM_NTASKS', 1))\n"
            "url = f\"tcp://{os.environ.get('MASTER_IP')}:{os.environ['MASTER_PORT']}\"\n"
            "dist.init_process_group('gloo', init_method=url, rank=rank, world_size=n)",
            "SLURM_PROCID={rank} SLURM_NTASKS={world_size} MASTER_IP={master_ip} "
            "MASTER_PORT={master_port}",
        ),
    ],
)
def test_workers_settings_that_are_read_from_the_environment_are_set(text, environment, tmp_path):
    found = proposed(tmp_path, "task2b", parser_of(f"{COMMON} batch"), text=text)
    assert found["environment"] == environment
    assert "rank" not in found["arguments"]
    assert "environment" not in proposed(tmp_path, "task1", parser_of(f"{COMMON} batch"), text="")


def test_options_for_the_workers_are_not_doubled_by_variables(tmp_path):
    text = "os.environ['MASTER_ADDR'] = args.ip\ndist.init_process_group('gloo')"
    found = proposed(tmp_path, "task2b", parser_of(f"{COMMON} {WORKERS} batch"), text=text)
    assert "environment" not in found


def test_one_worker_gets_the_variables_that_its_script_demands(tmp_path):
    text = "rank = int(os.environ['RANK'])\nsize = os.environ.get('WORLD_SIZE', 1)"
    found = proposed(tmp_path, "task1", parser_of(f"{COMMON} batch"), text=text)
    assert found["environment"] == "RANK={rank}"


def test_variables_that_are_only_written_are_not_set(tmp_path):
    text = "os.environ['MASTER_ADDR'] = '10.10.1.1'\nos.environ['RANK'] = '0'"
    with pytest.raises(UserError, match=r"no option for \{master_ip\}"):
        proposed(tmp_path, "task2b", parser_of(f"{COMMON} batch"), text=text)


@pytest.mark.parametrize(
    ("files", "task", "script"),
    [
        (("part1/run_glue.py", "part2a/run_glue.py"), "task2a", "part2a/run_glue.py"),
        (("run_glue_2a.py", "run_glue_2b.py"), "task2b", "run_glue_2b.py"),
        (("src/train_ddp.py", "src/train_gather.py"), "task3", "src/train_ddp.py"),
        (("one.py",), "task2a", "one.py"),
        (("task2a/run_glue.py", "2a.py"), "task2a", "task2a/run_glue.py"),
    ],
)
def test_the_script_is_found(files, task, script, tmp_path):
    found = proposed(tmp_path, task, parser_of(f"{COMMON} {WORKERS} batch"), files)
    assert found["script"] == script


@pytest.mark.parametrize(
    ("parser", "files", "why"),
    [
        (parser_of(f"{COMMON} {WORKERS}"), ("a.py",), r"\{batch\}: per_gpu_train_batch_size"),
        (parser_of(f"{COMMON} batch"), ("a.py",), r"no option for \{master_ip\}"),
        (parser_of(f"{COMMON} {WORKERS} batch mood"), ("a.py",), "needs --mood"),
        (parser_of(f"{COMMON} {WORKERS} batch"), ("a.py", "b.py"), "a.py, b.py could be"),
        (
            parser_of(f"{COMMON} {WORKERS} batch", method={"choices": ["gather", "ddp"]}),
            ("a.py",),
            "none of gather, ddp of --method",
        ),
    ],
)
def test_what_is_not_sure_is_refused_with_what_to_write(parser, files, why, tmp_path):
    with pytest.raises(UserError, match=why) as refused:
        proposed(tmp_path, "task2b", parser, files)
    assert "rite in grading.yaml" in str(refused.value)
    assert "task2b:\n  script: a.py" in str(refused.value)


def test_positional_arguments_are_refused(tmp_path):
    parser = parser_of(f"{COMMON} {WORKERS} batch")
    parser.add_argument("where")
    with pytest.raises(UserError, match="positional arguments: where"):
        proposed(tmp_path, "task2b", parser)
