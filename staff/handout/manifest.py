"""What of this repository students are given: everything but what OUT lists, and the overlay."""

import fnmatch
import subprocess
from pathlib import Path

OUT = {  # pattern of paths -> why students do not get them; `*` takes in subfolders
    "staff/*": "the reference, the class's grades and times, and this handout's own making",
    "task*/*.diff": "the lessons as diffs: the solution",
    "report/example/*": "a report that answers the tasks' questions",
    "report/timings.py": "says where an instructors' command went",
    "report/bench.py": "says where an instructors' command went",
    "cluster/bench.py": "says where an instructors' command went",
    "cluster/figures/*": "measurements that answer the tasks' questions",
    "docs/measurements.md": "measurements that answer the tasks' questions",
    "tests/campaign/*": "faults in the solution's runs: it needs the solution",
    ".ci/*": "this repository's CI",
    ".github/*": "this repository's CI",
    ".pre-commit-config.yaml": "for changing the kit",
    "CONTRIBUTING.md": "for changing the kit",
    "CHANGELOG.md": "how the kit changed",
}
OVERLAY = "staff/handout/overlay/"  # its files replace or join the repository's
MADE_BY_RUNS = ("__pycache__", "*.egg-info", "cached_*", ".*_cache", ".git", ".venv", "runs")
MADE_BY_RUNS += ("build",)


def handed_out(root: Path) -> dict[str, str]:
    """Path in the handout -> path in the repository, of every file that students get."""
    paths = tracked(root)
    given = {path: path for path in paths if not why_out(path)}
    overlay = [path for path in paths if path.startswith(OVERLAY)]
    return given | {path.removeprefix(OVERLAY): path for path in overlay}


def why_out(path: str) -> str:
    """Why a file stays out of the handout; "" for one that students get."""
    fits = (why for pattern, why in OUT.items() if fnmatch.fnmatchcase(path, pattern))
    return next(fits, "")


def tracked(root: Path) -> list[str]:
    """The files that git tracks, relative to `root`; without git, all that no run made."""
    git = ["git", "-C", str(root)]
    try:
        top = subprocess.run([*git, "rev-parse", "--show-toplevel"], capture_output=True, text=True)
        if top.returncode == 0 and Path(top.stdout.rstrip("\n")).resolve() == root.resolve():
            listed = subprocess.run([*git, "ls-files", "-z"], capture_output=True, check=True)
            paths = [path for path in listed.stdout.decode().split("\0") if path]
            return sorted(path for path in paths if (root / path).is_file())
    except (OSError, subprocess.CalledProcessError):
        pass
    every = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in every if not made_by_a_run(path))


def made_by_a_run(path: Path) -> bool:
    """Whether a path is of a kind that .gitignore lists, for where git cannot be asked."""
    return any(fnmatch.fnmatchcase(part, name) for part in path.parts for name in MADE_BY_RUNS)
