"""The environment variables from which scripts read their place among the workers."""

import re
from collections.abc import Collection, Iterable

READ = re.compile(
    r"""\b(?:environ(?:\.get)?|getenv)\s*[\[(]\s*["'](\w+)["']\s*[\]),](?!\s*=[^=])"""
)
DEMANDED = re.compile(r"""\benviron\s*\[\s*["'](\w+)["']\s*\](?!\s*=[^=])""")
OPENED = re.compile(r"\binit_process_group\(((?:[^()]|\([^()]*\))*)\)")
GIVEN = re.compile(r"\b(init_method|store)\s*=")  # not from the variables that torch reads
VARIABLES = {  # placeholder -> the variables with it: PyTorch's first, then those of launchers
    "rank": "RANK LOCAL_RANK GLOBAL_RANK NODE_RANK SLURM_PROCID SLURM_LOCALID "
    "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_LOCAL_RANK PMI_RANK",
    "world_size": "WORLD_SIZE LOCAL_WORLD_SIZE NUM_NODES NNODES SLURM_NTASKS OMPI_COMM_WORLD_SIZE "
    "PMI_SIZE",
    "master_ip": "MASTER_ADDR MASTER_IP",
    "master_port": "MASTER_PORT",
}
PLACEHOLDERS = {name: key for key, names in VARIABLES.items() for name in names.split()}
TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # torchrun sets these


def variables_read(texts: Iterable[str]) -> set[str]:
    """The names in PLACEHOLDERS that scripts of these texts read, themselves or through torch."""
    found = set()
    for text in texts:
        found |= {one[1] or one[2] for one in READ.finditer(text)} & set(PLACEHOLDERS)
        opened = OPENED.findall(text)
        if "env://" in text or any(not GIVEN.search(arguments) for arguments in opened):
            found |= set(TORCH)
    return found


def variables_demanded(texts: Iterable[str]) -> set[str]:
    """Those without which such scripts end with a KeyError."""
    return {name for text in texts for name in DEMANDED.findall(text)} & set(PLACEHOLDERS)


def assignments(names: Collection[str]) -> str:
    """The `environment` of a mapping's row that sets these names."""
    return " ".join(f"{name}={{{PLACEHOLDERS[name]}}}" for name in PLACEHOLDERS if name in names)
