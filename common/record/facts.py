"""What run.json holds about a run: arguments, versions, machine, model."""

import contextlib
import hashlib
import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path

from common.record.format import FORMAT
from common.sharded_state import size_of

import torch
import transformers


def describe(args, world, model, splits):
    """What run.json holds at the start of a run."""
    trained = [p for p in model.parameters() if p.requires_grad]
    cuda = world.device.type == "cuda"
    return {
        "format": FORMAT,
        "task": args.task,
        "glue_task": args.task_name,
        "arguments": vars(args),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "git_commit": git_commit(Path(__file__).parent),
        "host": platform.node(),
        "machine_id": machine_id(),
        "process": os.getpid(),
        "processor": torch.cuda.get_device_name(world.device) if cuda else processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "world_size": world.size,
        "hosts": [member["host"] for member in world.members],
        "backend": world.backend,
        "device": world.device.type,
        "parameters": sum(map(size_of, model.parameters())),
        "gradient_bytes": sum(size_of(p) * p.element_size() for p in trained),
        "examples": {
            "train": len(splits.get("train", ())),
            "dev": len(splits.get("dev", ())),
        },
        "start": now(),
        "end": None,
    }


def machine_id():
    """A digest that tells apart machines with equal names and processors; "" if there is none.

    Of /etc/machine-id, which is not to be published itself (man 5 machine-id); in a container that
    has none, of the number of the boot.
    """
    for path in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        with contextlib.suppress(OSError):
            text = Path(path).read_text().strip()
            if text:
                return hashlib.sha256(f"course kit {text}".encode()).hexdigest()[:12]
    return ""


def processor():
    """The CPU's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def git_commit(folder):
    """The commit that a folder is checked out at, "-dirty" if edited; None outside git."""
    command = ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def now():
    """The time, as ISO 8601 in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
