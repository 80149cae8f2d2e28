"""Four machines by ssh: copy this folder and the data to them, install, and run a task on all.

    python -m cluster.hosts HOSTS copy --data glue_data    # this folder, and the data
    python -m cluster.hosts HOSTS install                  # ./setup.sh on every host
    python -m cluster.hosts HOSTS run task2a/run_glue.py [its arguments ...]
    python -m cluster.hosts HOSTS fetch OUTPUT_DIR         # a run's records, to runs/HOST

HOSTS are names that ssh accepts, separated by commas; the first has rank 0. `run` adds the four
distributed flags. Ctrl-C ends the task on all hosts.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster.launch import Place, check, launch
from common.commands import Parser, program
from common.errors import UserError

KIT = Path(__file__).resolve().parents[1]
USAGE = "HOSTS copy|install|run|fetch ..."
VERBS = {
    "copy": "copy this folder and the data",
    "install": "make the environment",
    "run": "run a task on all hosts",
    "fetch": "copy the records of a run back",
    "exec": "run a command on one host (what `run` uses)",
}
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=15"
SKIPPED = (".git", ".venv", "runs", "__pycache__", "*.egg-info", ".*_cache")
FETCHED = ("*.json", "*.jsonl", "*.csv", "*.txt")  # of a run: its records, not the model


class Hosts:
    """The machines: how ssh is called, and where the course is on each of them."""

    def __init__(self, names: Iterable[str], ssh: list[str], folder: str):
        self.names = list(names)
        self.ssh = ssh
        self.folder = folder

    def command(self, host: str, text: str, *flags: str) -> list[str]:
        """The argument list that runs a shell's command on a host."""
        return [*self.ssh, *flags, host, text]

    def within(self, command: str) -> str:
        """A shell's command in the course's folder."""
        return f"cd {self.folder} && {command}"

    def each(self, work: Callable[[str], str]) -> None:
        """Do `work` for all hosts at once; raises UserError with every host's problem."""
        with ThreadPoolExecutor(len(self.names)) as pool:
            problems = [problem for problem in pool.map(work, self.names) if problem]
        if problems:
            raise UserError("\n".join(problems))


def copy(hosts: Hosts, data: Path | None) -> None:
    """Copy this folder's files, and a folder of data, to every host."""
    folders: list[tuple[Path, str, tuple[str, ...]]] = [(KIT, ".", SKIPPED)]
    if data:
        if not data.is_dir():
            raise UserError(f"--data {data}: there is no such folder; download the data first")
        folders.append((data, data.name, ("cached_*",)))

    def to_host(host: str) -> str:
        for source, name, skipped in folders:
            excluded = [f"--exclude={pattern}" for pattern in skipped]
            pack = ["tar", "-C", str(source), *excluded, "-cf", "-", "."]
            place = shlex.quote(name)
            unpack = f"mkdir -p {hosts.folder}/{place} && tar -C {hosts.folder}/{place} -xf -"
            if problem := piped(pack, hosts.command(host, unpack), host):
                return problem
            print(f"{host}: {source.name} copied", flush=True)
        return ""

    hosts.each(to_host)


def install(hosts: Hosts) -> None:
    """Create the environment on every host."""

    def on_host(host: str) -> str:
        print(f"{host}: installing (a few minutes)", flush=True)
        environment = {
            name: os.environ.get(name, "") for name in ("TORCH", "TORCH_INDEX", "PYTHON")
        }
        given = " ".join(f"{name}={shlex.quote(v)}" for name, v in environment.items() if v)
        done = subprocess.run(
            hosts.command(host, hosts.within(f"{given} ./setup.sh")),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            return f"{host}: {last_line(done.stderr) or last_line(done.stdout)}"
        print(f"{host}: {last_line(done.stdout) or 'installed before'}", flush=True)
        return ""

    hosts.each(on_host)


def fetch(hosts: Hosts, output_dir: str, into: Path) -> None:
    """Copy the records in a run's folder on every host to a folder for each."""

    def from_host(host: str) -> str:
        target = into / host
        target.mkdir(parents=True, exist_ok=True)
        listed = " -o ".join(f"-name {shlex.quote(pattern)}" for pattern in FETCHED)
        find = rf"find . -maxdepth 1 -type f \( {listed} \) -print0"
        pack = hosts.within(f"cd {shlex.quote(output_dir)} && {find} | tar --null -T - -cf -")
        problem = piped(hosts.command(host, pack), ["tar", "-C", str(target), "-xf", "-"], host)
        if not problem:
            print(f"{host}: {target}", flush=True)
        return problem

    hosts.each(from_host)


def run(hosts: Hosts, command: list[str], master_ip: str, port: int, python: str) -> int:
    """Run a script as one worker per host; returns its exit code."""
    check([str(KIT / part) for part in command[:1]], len(hosts.names))
    this = [sys.executable, "-m", "cluster.hosts"]
    options = ["--ssh", shlex.join(hosts.ssh), "--folder", hosts.folder]  # before the command
    place = Place(
        master_ip, lambda rank: [*this, hosts.names[rank], "exec", *options], port, python
    )
    return launch(command, len(hosts.names), place=place).code


def execute(hosts: Hosts, command: list[str]) -> None:
    """Become the ssh that runs a command on the host, which ends with it."""
    text = hosts.within(f"exec {shlex.join(command)}")
    argv = hosts.command(hosts.names[0], text, "-tt")  # a terminal: the end of ssh hangs it up
    os.execvp(argv[0], argv)


def piped(source: list[str], sink: list[str], host: str) -> str:
    """Run a command into another; returns what went wrong, or ""."""
    with tempfile.TemporaryFile() as errors:
        first = subprocess.Popen(
            source, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        )
        second = subprocess.Popen(sink, stdin=first.stdout, stderr=errors)
        assert first.stdout
        first.stdout.close()  # so that the source ends when the sink does
        codes = second.wait(), first.wait()
        errors.seek(0)
        text = errors.read().decode(errors="replace")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("tar:")) or text
    return f"{host}: {last_line(text) or f'exit codes {codes}'}" if any(codes) else ""


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line; raises UserError where it is not valid."""
    usage = f"{program()} {USAGE}"
    parser = Parser(usage=usage, description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("hosts", metavar="HOSTS", help="names for ssh, with commas; rank 0 first")
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=Parser)
    of = {}
    for verb, does in VERBS.items():
        of[verb] = verbs.add_parser(verb, help=does, usage=usage, allow_abbrev=False)
        of[verb].add_argument("--folder", default="course", help="on the hosts (default: course)")
        of[verb].add_argument("--ssh", default=SSH, help="how to call ssh")
    of["copy"].add_argument("--data", type=Path, help="a folder of data to copy, too")
    add = of["run"].add_argument
    add("--master_ip", default="10.10.1.1", help="rank 0's address (default: 10.10.1.1)")
    add("--master_port", type=int, default=6585, help="a free port there (default: 6585)")
    add("--python", default=".venv/bin/python", help="the hosts' interpreter")
    of["fetch"].add_argument("--into", type=Path, default=Path("runs"), help="(default: runs)")
    of["fetch"].add_argument("output_dir", metavar="OUTPUT_DIR")
    for verb in ("run", "exec"):
        of[verb].add_argument("command", nargs=argparse.REMAINDER, help="SCRIPT and its arguments")
    args = parser.parse_args(argv)
    args.hosts = args.hosts.split(",")
    if not all(args.hosts):
        raise UserError(f"HOSTS {','.join(args.hosts)!r}: a name is empty")
    return args


def main(argv: list[str] | None = None) -> int:
    """Do what the command line says; returns the exit code."""
    try:
        args = parse(argv)
        hosts = Hosts(args.hosts, shlex.split(args.ssh), args.folder)
        if args.verb == "exec":
            execute(hosts, args.command)
        if args.verb == "run":
            return run(hosts, args.command, args.master_ip, args.master_port, args.python)
        if args.verb == "copy":
            copy(hosts, args.data)
        elif args.verb == "install":
            install(hosts)
        else:
            fetch(hosts, args.output_dir, args.into)
    except UserError as error:
        print(f"cluster.hosts: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
