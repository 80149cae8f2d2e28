"""A course on several machines by ssh: two nodes of the lab, each with an sshd and its own /srv."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from cluster import hosts, lab_network
from common.errors import UserError

import pytest

ROOT = Path(__file__).parents[2]
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
DRIVER = """
import os, pathlib, subprocess, sys
from cluster import lab_network
folder, sshd, *command = sys.argv[1:]
nodes = lab_network.build(["1gbit", "1gbit"])
os.mkdir("/run/sshd")
for node in nodes:
    home = pathlib.Path(folder, node.name)
    home.mkdir()
    start = f"mount --bind {home} /srv && exec {sshd} -D -e -f {folder}/sshd_config"
    prefix = ["ip", "netns", "exec", node.name, "unshare", "--uts", "--mount", "sh", "-c"]
    subprocess.Popen([*prefix, f"echo {node.name} > /proc/sys/kernel/hostname; {start}"])
    with open(f"{folder}/ssh_config", "a") as file:
        file.write(f"Host {node.name}\\nHostName {node.address}\\n")
done = subprocess.run([*nodes[0].prefix(), "sh", "-c", command[0]], timeout=200)
sys.exit(done.returncode)
"""
SERVER = """HostKey {0}/key
AuthorizedKeysFile {0}/key.pub
StrictModes no
UsePAM no
PermitRootLogin yes
"""
CLIENT = """IdentityFile {0}/key
IdentitiesOnly yes
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
ConnectionAttempts 30
"""
TRAIN = (
    "task2b/run_glue.py --model_name_or_path tiny --task_name RTE --data_dir /srv/course/data "
    "--do_train --max_steps 2 --per_gpu_train_batch_size 4 --max_seq_length 32 "
    "--output_dir /srv/out"
)


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_task_is_copied_run_and_fetched_by_ssh(tmp_path):
    if not SSHD or os.geteuid() != 0 or lab_network.missing():
        pytest.skip("needs root, the lab's namespaces and an sshd: apt install openssh-server")
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True
    )
    (tmp_path / "sshd_config").write_text(SERVER.format(tmp_path))
    (tmp_path / "ssh_config").write_text(CLIENT.format(tmp_path))
    data = tmp_path / "data"
    shutil.copytree(ROOT / "sample_data" / "RTE", data)
    call = f"{sys.executable} -m cluster.hosts node0,node1"
    ssh = f"--folder /srv/course --ssh 'ssh -F {tmp_path}/ssh_config'"
    steps = (
        f"{call} copy {ssh} --data {data}",
        f"{call} run {ssh} --python {sys.executable} {TRAIN}",
        f"{call} fetch {ssh} --into {tmp_path}/fetched /srv/out",
        f"! {call} run {ssh} --python {sys.executable} {TRAIN} --no_such_flag",
        f"! {call} fetch {ssh} --into {tmp_path}/fetched /srv/nothing",
    )
    driver = [sys.executable, "-c", DRIVER, str(tmp_path), str(SSHD), " && ".join(steps)]
    done = subprocess.run(
        lab_network.inside(driver),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads((tmp_path / "fetched" / "node0" / "run.json").read_text())
    assert facts["hosts"] == ["node0", "node1"]
    assert (tmp_path / "fetched" / "node1" / "steps.rank1.jsonl").read_text().count("\n") == 2
    assert "--no_such_flag" in done.stdout  # a terminal's: ssh -tt
    assert "node0: " in done.stderr
    assert "/srv/nothing" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("a,,b copy", "HOSTS 'a,,b': a name is empty"),
        ("a run", "no script given"),
        ("a run nowhere.py", "there is no script"),
        ("a copy --data nowhere", "--data nowhere: there is no such folder"),
        ("a fly", "invalid choice: 'fly'"),
    ],
)
def test_a_command_that_cannot_work_is_refused(line, problem, capsys):
    assert hosts.main(line.split()) == 2
    assert problem in capsys.readouterr().err


def test_a_host_that_does_not_answer_is_named(tmp_path):
    silent = hosts.Hosts(["elsewhere"], ["false"], "course")
    with pytest.raises(UserError, match="elsewhere: "):
        hosts.fetch(silent, "out", tmp_path)
