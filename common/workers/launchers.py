"""Where a worker's rank comes from when the command line does not give it: torchrun or Slurm."""

import re

# launcher: the variables with rank, world size, master address and master port
ENVIRONMENTS = {
    "torchrun": ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "MASTER_ADDR", "MASTER_PORT"),
}
MOST_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")  # torchrun's, cluster.launch's


def restarts(env):
    """How often the launcher has started this run again, after a worker failed or was preempted."""
    return max(int(env.get(name) or 0) for name in RESTARTS)


def advice(env):
    """What to print where torchrun can restart workers, but they would not find each other."""
    nodes, restarts = (int(env.get(name) or 0) for name in ("GROUP_WORLD_SIZE", MOST_RESTARTS))
    if nodes < 2 or not restarts or env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return ""
    return (
        "torchrun --max-restarts on several nodes: each node counts restarts by itself, so workers "
        "that are restarted may not find each other; set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for "
        "torchrun on every node"
    )


def find_launcher(env):
    """The name of the launcher that started this process, or None.

    srun counts only inside a job step: a shell started by `salloc` or `sbatch` has SLURM_PROCID
    too, but not SLURM_LOCALID.
    """
    if all(name in env for name in ENVIRONMENTS["torchrun"]):
        return "torchrun"
    if "SLURM_PROCID" in env and "SLURM_NTASKS" in env and "SLURM_LOCALID" in env:
        return "srun"
    return None


def flags_of(launcher, env):
    """The four distributed flags as `launcher` gives them: a dict of strings.

    Slurm names no master, so it is the job's first host, at a port derived from the job's number:
    two jobs on one host get different ports. MASTER_ADDR and MASTER_PORT take precedence.
    """
    rank, size, address, port = (env.get(name) for name in ENVIRONMENTS[launcher])
    if launcher == "srun":
        hosts = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "127.0.0.1"
        address = address or first_host(hosts)
        port = port or str(20000 + int(env.get("SLURM_JOB_ID", 0)) % 10000)
    return {"local_rank": rank, "world_size": size, "master_ip": address, "master_port": port}


def first_host(nodelist):
    """The first host of a Slurm list: `node[07-10,12],big1` -> `node07`."""
    first, *_ = re.split(r",(?![^[]*\])", nodelist)  # at commas outside of brackets
    return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", first)
