"""--sync_weights_steps: how far the ranks' weights are apart, and that all then have the same."""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

from cluster.ports import free_port
from common.record.equal_weights import EqualWeights
from tests.workers import DEADLINE, FLAGS, ROOT, Crew, sample

import pytest
import torch


def apart(_, world):
    """A rank whose weights differ from rank 0's in one element of eight, twice."""
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.fill_(0.5)
        model.bias[1] += 2**-10 * world.rank
    own = EqualWeights(SimpleNamespace(sync_weights_steps=2), world, model)
    for step in range(1, 5):
        if text := own.after(step):
            print(text)
    print(sorted(set(torch.cat([p.flatten() for p in model.parameters()]).tolist())))
    assert [each["largest"] for each in own.found] == [2**-10 * (world.size - 1), 0.0]


def test_what_differs_is_measured_and_then_all_have_rank_0s(tmp_path):
    with Crew(tmp_path / "crew") as crew:
        workers = crew.start_all(apart, 3)
        for worker in workers:
            assert worker.end() == 0, worker.errors
            assert worker.output_lines == [
                "weights after step 2: 12.5% differed between the ranks, by up to 2.0e-03; now all "
                "have rank 0's",
                "weights after step 4: 0.0% differed between the ranks, by up to 0.0e+00; now all "
                "have rank 0's",
                "[0.5]",
            ]


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("other", ["", "default"])
def test_ranks_drift_apart_where_their_processors_round_differently(other, tmp_path):
    """Real ones: the kernels that torch chooses for a processor without vector units."""
    found = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.backends.cpu.get_cpu_capability())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if found == "DEFAULT":
        pytest.skip("this processor has no vector units that torch uses")
    flags = f"{FLAGS} --data_dir {sample(tmp_path / 'data')} --timeout 60 --save_strategy no "
    flags += f"--max_steps 40 --sync_weights_steps 20 --master_port {free_port()} --world_size 2 "
    flags += "--master_ip 127.0.0.1 --learning_rate 5e-4 "
    workers = []
    for rank, capability in enumerate(["", other]):
        command = f"{sys.executable} {ROOT / 'task2b' / 'run_glue.py'} {flags} --local_rank {rank} "
        command += f"--output_dir {tmp_path / 'out'}"
        env = {**os.environ, "OMP_NUM_THREADS": "1"} | (
            {"ATEN_CPU_CAPABILITY": capability} if capability else {}
        )
        workers.append(
            subprocess.Popen(command.split(), env=env, stdout=subprocess.PIPE, text=True)
        )
    output, _ = workers[0].communicate(timeout=DEADLINE)
    assert [worker.wait(DEADLINE) for worker in workers] == [0, 0]
    measured = json.loads((tmp_path / "out" / "run.json").read_text())["weights_apart"]
    assert [each["step"] for each in measured] == [20, 40]
    assert len(re.findall(r"weights after step \d+: [\d.]+% differed", output)) == 2
    for each in measured:
        assert (each["largest"] > 0) == bool(other)
        assert each["largest"] < 1e-4
    print(measured)
