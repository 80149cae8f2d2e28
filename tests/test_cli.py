"""The command line: every flag of the contract, and every mistake reported at once with its fix."""

import re
import subprocess
import sys

from common import cli
from common.errors import UserError
from common.flags import Flag
from common.workers import launchers
from tests.workers import DEADLINE, ROOT, Crew

import pytest

# flag: (its text, the value that it must have, the value if it is left out)
CONTRACT = {
    "model_type": ("bert", "bert", "bert"),
    "model_name_or_path": ("bert-base-cased", "bert-base-cased", ...),
    "task_name": ("RTE", "RTE", ...),
    "data_dir": (".", ".", ...),
    "output_dir": ("out", "out", ...),
    "do_train": ("", True, False),
    "do_eval": ("", True, False),
    "max_seq_length": ("64", 64, 128),
    "per_gpu_train_batch_size": ("16", 16, 8),
    "batch_sizes": ("24,20,12,8", "24,20,12,8", ""),
    "split": ("equal", "equal", "equal"),
    "rebalance_steps": ("7", 7, 20),
    "max_batch": ("64,64,64,64", "64,64,64,64", ""),
    "slow": ("1,1,2,4", "1,1,2,4", ""),
    "per_gpu_eval_batch_size": ("32", 32, 8),
    "gradient_accumulation_steps": ("2", 2, 1),
    "learning_rate": ("2e-5", 2e-5, 5e-5),
    "weight_decay": ("0.01", 0.01, 0.0),
    "adam_epsilon": ("1e-6", 1e-6, 1e-8),
    "max_grad_norm": ("0.5", 0.5, 1.0),
    "num_train_epochs": ("1.5", 1.5, 3.0),
    "max_steps": ("10", 10, -1),
    "warmup_steps": ("5", 5, 0),
    "config_name": ("config", "config", ""),
    "tokenizer_name": ("words", "words", ""),
    "cache_dir": ("cache", "cache", ""),
    "do_lower_case": ("", True, False),
    "overwrite_output_dir": ("", True, False),
    "overwrite_cache": ("", True, False),
    "seed": ("7", 7, 42),
    "no_cuda": ("", True, False),
    "fp16": ("", True, False),
    "allow_nan": ("", True, False),
    "count_traffic": ("", True, False),
    "dropout": ("0", 0.0, -1.0),
    "padded": ("", True, False),
    "backend": ("gloo", "gloo", "auto"),
    "save_strategy": ("epoch", "epoch", "epoch"),
    "save_steps": ("50", 50, 0),
    "save_total_limit": ("2", 2, 1),
    "resume": ("", "auto", ""),
    "other_world_size": ("", True, False),
    "trace": ("3", 3, 0),
    "report_to": ("none", "none", "none"),
    "time_all_reduce": ("", True, False),
    "timeout": ("20", 20.0, 300.0),
    "sync_weights_steps": ("50", 50, 0),
    "init_method": ("tcp://10.10.1.1:6585", "tcp://10.10.1.1:6585", ""),
    "master_ip": ("10.10.1.1", "10.10.1.1", ""),
    "master_port": ("6585", 6585, -1),
    "world_size": ("4", 4, 1),
    "local_rank": ("3", 3, 0),
}
FEW = "--model_name_or_path tiny --task_name RTE --do_train --data_dir . --output_dir out"
FOUR = {"master_ip": "10.0.0.1", "master_port": 6585, "world_size": 4, "local_rank": 3}
TASKS = ["task1", "task2a", "task2b", "task3", "task4", "task5"]
INSTEAD = {  # a flag -> those in whose place it is given
    "batch_sizes": ["per_gpu_train_batch_size"],
    "init_method": ["master_ip", "master_port"],
}
BAD = "--learning_rate fast --max_steps 0 --no_such_flag --master_port 6585"
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.2", "MASTER_PORT": "29500"}
SRUN = {
    **{"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "31234"},
    **{"SLURM_JOB_NODELIST": "big,node[07-10,12]", "SLURM_STEP_NODELIST": "node[07-10,12],big"},
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parse(words, env=(), script="task2a/run_glue.py", extra=()):
    """The values of a command line, as a dict."""
    return vars(cli.parse_args(ROOT / script, extra, words.split(), dict(env)))


def problems(words, env=(), script="task2a/run_glue.py"):
    """What is reported of a bad command line, a line per problem."""
    with pytest.raises(UserError) as refused:
        parse(words, env, script)
    lines = str(refused.value).splitlines()
    assert all(line.startswith("- ") for line in lines)
    return [line.removeprefix("- ") for line in lines]


def place(values):
    """The four distributed flags among values, and where they come from."""
    return [*(values[name] for name in FOUR), values["launcher"]]


def as_flags(values):
    return " ".join(f"--{name} {value}" for name, value in values.items())


def test_every_flag_of_the_contract_has_the_right_type():
    assert {flag.name for flag in cli.FLAGS} == set(CONTRACT)
    given = {name: f"--{name} {text}" for name, (text, _, _) in CONTRACT.items()}
    values = parse(" ".join(given[name] for name in given if name not in INSTEAD))
    replaced = [name for names in INSTEAD.values() for name in names]
    others = parse(" ".join(given[name] for name in given if name not in replaced))
    values |= {name: others[name] for name in INSTEAD}
    for name, (_, expected, _) in CONTRACT.items():
        assert (values[name], type(values[name])) == (expected, type(expected)), name
    assert values["task"] == "task2a"
    assert values["launcher"] == "the command line"


def test_flags_that_are_left_out_have_the_base_scripts_defaults():
    values = parse(FEW) | {"do_train": parse(FEW.replace("train", "eval"))["do_train"]}
    for name, (_, _, expected) in CONTRACT.items():
        if expected is not ...:
            assert (values[name], type(values[name])) == (expected, type(expected)), name


def test_flags_without_a_default_are_asked_for():
    lines = problems("")
    for name, (_, _, default) in CONTRACT.items():
        (refused,) = [line for line in lines if f"--{name} is missing: " in line] or [None]
        assert bool(refused) == (default is ...), name
    assert "neither --do_train nor --do_eval is given, so there is nothing to do" in lines
    assert len(lines) == 5


def test_a_task_may_have_flags_of_its_own():
    extra = [Flag("method", ("2a", "2b"), "2b", "which"), Flag("port", int, 1, "a number", 1)]
    assert parse(FEW, extra=extra)["method"] == "2b"
    assert parse(FEW + " --method 2a --port 7", extra=extra)["port"] == 7
    with pytest.raises(UserError, match=r"--method 3: must be one of 2a, 2b\n- --port 0: .*1"):
        parse(FEW + " --method 3 --port 0", extra=extra)


MISTAKES = {
    "--max_seq_length many": "--max_seq_length many: must be a whole number",
    "--max_seq_length 3": "--max_seq_length 3: must be at least 4",
    "--per_gpu_train_batch_size 0": "--per_gpu_train_batch_size 0: must be at least 1",
    "--per_gpu_eval_batch_size 1.5": "--per_gpu_eval_batch_size 1.5: must be a whole number",
    "--gradient_accumulation_steps 0": "--gradient_accumulation_steps 0: must be at least 1",
    "--learning_rate fast": "--learning_rate fast: must be a number",
    "--learning_rate -0.1": "--learning_rate -0.1: must be at least 0",
    "--learning_rate nan": "--learning_rate nan: must be at least 0",
    "--max_grad_norm inf": "--max_grad_norm inf: must be at least 0 and finite",
    "--max_grad_norm 0": "--max_grad_norm 0: would make every gradient 0; for no clipping, give",
    "--learning_rate inf": "--learning_rate inf: must be at least 0 and finite",
    "--num_train_epochs 0": "--num_train_epochs 0: must be at least 0.01",
    "--max_steps 0": "--max_steps 0: must be at least 1, or -1 to train by epochs",
    "--max_steps -2": "--max_steps -2: must be at least -1",
    "--seed -1": "--seed -1: must be at least 0",
    "--seed 18446744073709551616": "--seed 18446744073709551616: must be at most 4294967295",
    "--dropout 1.5": "--dropout 1.5: must be 0 to 1, or -1 for the checkpoint's",
    "--dropout -0.5": "--dropout -0.5: must be 0 to 1, or -1 for the checkpoint's",
    "--backend mpi": "--backend mpi: must be one of auto, gloo, nccl",
    "--timeout 0": "--timeout 0: must be at least 1",
    "--timeout 1e12": "--timeout 1e12: must be at most 604800",
    "--task_name RTF": "--task_name RTF: must be one of CoLA, SST-2, ",
    "--data_dir nowhere": "--data_dir nowhere: no such folder (relative to ",
    "--output_dir file": "--output_dir file: is a file, not a folder",
    "--learning_rat 1": "--learning_rat: unknown flag; did you mean --learning_rate?",
    "--xyz 1": "--xyz: unknown flag",
    "--do_train yes": "yes: is neither a flag nor the value of one",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_with_its_value_and_fix(mistake, folder):
    (folder / "file").touch()
    (line,) = problems(f"{FEW} {mistake}")
    assert line.startswith(MISTAKES[mistake])
    assert ("did you mean" in line) == ("did you mean" in MISTAKES[mistake])
    if "nowhere" in line:
        assert f"(relative to {folder}); `python download_glue_data.py --data_dir glue_data" in line


def test_all_mistakes_are_reported_at_once(folder):
    (folder / "file").touch()
    flags = {mistake.split()[0]: mistake for mistake in reversed(MISTAKES)}
    del flags["--do_train"]  # refused only where all words that begin like flags are flags
    lines = problems(FEW + " " + " ".join(flags.values()))
    assert len(lines) == len(flags)
    for mistake in flags.values():
        assert sum(line.startswith(MISTAKES[mistake]) for line in lines) == 1, mistake


@pytest.mark.usefixtures("folder")
def test_a_glue_dir_that_is_not_set_is_named(monkeypatch):
    monkeypatch.delenv("GLUE_DIR", raising=False)
    (line,) = problems(f"{FEW} --data_dir /RTE")  # of $GLUE_DIR/RTE
    assert line.startswith("--data_dir /RTE: no such folder (relative to ")
    assert "; GLUE_DIR is not set in this shell; " in line


@pytest.mark.usefixtures("folder")
def test_an_output_folder_whose_name_is_too_long_is_reported():
    (line,) = problems(f"{FEW} --output_dir {'x' * 300}")
    assert line.endswith("x: File name too long; choose a writable folder")


def test_a_flag_without_its_value_is_reported_with_the_others():
    lines = problems(FEW + " --seed --learning_rate fast --cache_dir")
    assert sorted(line.split(":")[0] for line in lines) == [
        "--cache_dir",
        "--learning_rate fast",
        "--seed",
    ]


def test_flags_cannot_be_abbreviated():
    (line,) = problems(FEW + " --do_ev")
    assert line == "--do_ev: unknown flag; did you mean --do_eval?"


@pytest.mark.parametrize("left_out", [["master_ip"], ["local_rank", "master_port"], ["world_size"]])
@pytest.mark.parametrize("env", [{}, TORCHRUN])
def test_each_distributed_flag_that_is_missing_is_named(left_out, env):
    given = {name: value for name, value in FOUR.items() if name not in left_out}
    lines = problems(f"{FEW} {as_flags(given)}", env)
    named = [line for line in lines if "needs all of --master_ip, --master_port, --w" in line]
    assert len(named) == len(left_out)
    for name in left_out:
        assert any(line.startswith(f"--{name} is missing: ") for line in named)


@pytest.mark.parametrize(("rank", "size"), [(4, 4), (-1, 4), (-2, 4), (1, 1)])
def test_a_rank_outside_the_world_is_reported(rank, size):
    (line,) = problems(f"{FEW} {as_flags({**FOUR, 'world_size': size, 'local_rank': rank})}")
    assert line.startswith(f"--local_rank {rank}: must be ")


@pytest.mark.parametrize("port", [-1, 0, 80, 1023, 65536])
def test_a_port_that_cannot_be_had_is_reported(port):
    (line,) = problems(f"{FEW} {as_flags({**FOUR, 'master_port': port})}")
    assert line.startswith(f"--master_port {port}: must be ")


@pytest.mark.parametrize(("flags", "env"), [(as_flags(FOUR), {}), ("", TORCHRUN)])
def test_task_1_is_for_one_worker(flags, env):
    (line,) = problems(f"{FEW} {flags}", env, "task1/run_glue.py")
    assert re.match(r"--world_size [42]: task 1 .*leave the four distributed flags out", line)
    for alone in ("", "--world_size 1", as_flags({**FOUR, "world_size": 1, "local_rank": 0})):
        assert parse(f"{FEW} {alone}", script="task1/run_glue.py")["local_rank"] == 0


def test_an_earlier_run_is_kept_unless_the_user_says_otherwise(folder):
    (folder / "out").mkdir()
    assert parse(FEW)["output_dir"] == "out"
    (folder / "out" / "run.json").touch()
    (line,) = problems(FEW)
    assert line.startswith("--output_dir out: holds an earlier run; ")
    assert "--overwrite_output_dir" in line
    assert parse(FEW + " --overwrite_output_dir")["output_dir"] == "out"
    assert parse(FEW.replace("train", "eval"))["output_dir"] == "out"


def test_relative_paths_are_of_the_current_folder(folder, monkeypatch):
    (folder / "glue" / "RTE").mkdir(parents=True)
    assert parse(FEW + " --data_dir glue/RTE")["data_dir"] == "glue/RTE"
    monkeypatch.chdir(folder / "glue")
    assert parse(FEW + " --data_dir ../glue/RTE")["data_dir"] == "../glue/RTE"
    assert problems(FEW + " --data_dir glue/RTE")


def test_torchruns_environment_fills_the_four_flags_in():
    assert place(parse(FEW, TORCHRUN)) == ["10.0.0.2", 29500, 2, 1, "torchrun"]
    for name in TORCHRUN:
        some = {key: value for key, value in TORCHRUN.items() if key != name}
        assert parse(FEW, some)["launcher"] == "the command line"


def test_bad_values_from_the_environment_are_reported():
    lines = problems(FEW, TORCHRUN | {"RANK": "first", "MASTER_PORT": "80"})
    assert any(line.startswith("--local_rank first: must be a whole number") for line in lines)
    assert any(line.startswith("--master_port 80: must be ") for line in lines)


def test_sruns_environment_fills_the_four_flags_in():
    assert place(parse(FEW, SRUN)) == ["node07", 21234, 8, 5, "srun"]
    master = {"MASTER_ADDR": "10.0.0.3", "MASTER_PORT": "7000"}
    assert place(parse(FEW, SRUN | master)) == ["10.0.0.3", 7000, 8, 5, "srun"]
    for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"):  # as in a shell of salloc
        some = {key: value for key, value in SRUN.items() if key != name}
        assert parse(FEW, some)["launcher"] == "the command line"


@pytest.mark.parametrize("env", [TORCHRUN, SRUN, TORCHRUN | SRUN])
def test_flags_win_over_the_environment(env):
    values = parse(f"{FEW} {as_flags(FOUR)}", env)
    assert place(values) == [*FOUR.values(), "the command line"]
    assert parse(FEW + " --world_size 1", env)["local_rank"] == 0


def test_torchrun_inside_a_slurm_job_wins():
    assert launchers.find_launcher(TORCHRUN | SRUN) == "torchrun"
    assert launchers.find_launcher({}) is None


def test_torchrun_on_several_nodes_is_advised_where_restarts_would_not_meet():
    shared = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "3"}
    shared |= {"GROUP_WORLD_SIZE": "2"}
    assert "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in launchers.advice(shared)
    for name, value in (("USE_AGENT_STORE", "False"), ("MAX_RESTARTS", "0")):
        assert not launchers.advice(shared | {f"TORCHELASTIC_{name}": value})
    assert not launchers.advice(shared | {"GROUP_WORLD_SIZE": "1"})


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("node[07-10,12],x", "node07"),
        ("x,node[07-10,12]", "x"),
        ("x", "x"),
        ("node[3]", "node3"),
        ("node[12,07-10]", "node12"),
        ("node[1-4].cluster.org,x", "node1.cluster.org"),
        ("rack1-node[001-128]", "rack1-node001"),
        ("127.0.0.1", "127.0.0.1"),
    ],
)
def test_the_first_host_of_slurms_list_is_the_master(nodelist, first):
    assert launchers.first_host(nodelist) == first


def python(script, *arguments):
    """Run a script as users do."""
    command = [sys.executable, ROOT / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)


def flags_in(text):
    return set(re.findall(r"^  --(\w+)", text, re.MULTILINE))


def test_help_lists_every_flag():
    done = python("task4/run_glue.py", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert flags_in(done.stdout) == {*CONTRACT, "method", "gradient_dtype"}
    assert "Task 4: profile the traffic" in done.stdout


def test_bad_usage_exits_2_and_shows_no_trace():
    done = python("task2b/run_glue.py", *FEW.split(), *BAD.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert_all_told(done.stderr)


def assert_all_told(errors):
    """That `errors` tell what is bad in BAD, and nothing else."""
    script, *lines = errors.replace("run_glue.py: ", "run_glue.py:\n").splitlines()
    assert script == "run_glue.py:"
    assert sorted(line.split(": ")[0] for line in lines if line) == [
        "- --learning_rate fast",
        "- --local_rank is missing",
        "- --master_ip is missing",
        "- --max_steps 0",
        "- --no_such_flag",
        "- --world_size is missing",
    ]


def test_every_task_does_both(folder):
    with Crew(folder / "crew") as crew:
        for task in TASKS:
            for flags in ("--help", BAD):
                crew.start(task, flags=flags)
        for helped, refused in zip(crew.workers[::2], crew.workers[1::2], strict=True):
            assert (helped.end(), helped.errors) == (0, [])
            assert flags_in("\n".join(helped.output_lines)) >= set(CONTRACT)
            assert (refused.end(), refused.output_lines) == (2, [])
            assert_all_told("\n".join(refused.errors))
