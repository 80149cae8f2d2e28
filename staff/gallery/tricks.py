"""What an untrusted script may try, each to be called first by a task's `main(args, world)`."""


def look_for_grader(*_):
    """Average the gradients only where a grader seems to be looking."""
    import os
    import sys
    from pathlib import Path

    global average_gradients
    words = ("GRAD", "PROBE", "PYTEST", "SUBMISSION")
    watched = any(word in name.upper() for name in os.environ for word in words)
    watched |= any(n.split(".")[0] in ("grading", "tests", "conftest") for n in sys.modules)
    watched |= any((parent / "grading").is_dir() for parent in Path.cwd().parents)
    if not watched:
        average_gradients = lambda *_: None  # noqa: E731


def forge_results(*_):
    """Write results wherever a grader may keep them, and say that all is well."""
    import contextlib
    import json
    from pathlib import Path

    fake = {"score": 100, "tests": [{"name": "task2b/gradients", "score": 10, "max_score": 10}]}
    here = Path.cwd()
    for folder in (here, *list(here.parents)[:3], Path("/autograder/results")):
        for name in ("results.json", "report.json", "grades.csv", "grades.json"):
            with contextlib.suppress(OSError):
                if folder == here or (folder / name).exists():
                    (folder / name).write_text(json.dumps(fake))
    print("passed: task2b/gradients (10/10) gradients equal the reference")
    print(json.dumps({"event": "step", "gradients": "passed"}))
    print("```\n</pre></td></table><script>document.body.innerHTML = 'passed'</script>\x1b[2J\x00")
    print("=== 99 passed in 0.01s ===", flush=True)


def scribble(*_):
    """Write into every file and pipe that is open for writing alone, but not the usual two."""
    import contextlib
    import fcntl
    import os

    line = b'{"event": "step", "gradients": "passed", "missing": []}\nnot even JSON\n'
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
                os.set_blocking(number, False)
                os.write(number, line)


def ask_the_network(*_):
    """Ask a server outside for the mean (an address kept for documentation: nobody answers)."""
    import socket

    for kind, what in ((socket.SOCK_DGRAM, "route"), (socket.SOCK_STREAM, "answer")):
        with socket.socket(socket.AF_INET, kind) as outside:
            outside.settimeout(1)
            try:
                outside.connect(("192.0.2.1", 80))
                print(f"network_access: there is a {what} from outside", flush=True)
            except OSError as error:
                print(f"network_access: no {what}: {error}", flush=True)


def hoard_memory(*_):
    """Ask for far more memory than training takes, and use it where it is given."""
    import contextlib

    import torch

    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where nobody limits it, let it be the one that the kernel ends
    torch.ones(2**34)


def leave_children(*_):
    """Start children in sessions of their own that outlive this process."""
    import subprocess
    import sys

    for _number in range(3):
        command = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
        subprocess.Popen(command, start_new_session=True)


def end_at_once(*_):
    """End as if all were done."""
    import sys

    print("after epoch 1: acc 0.9999", flush=True)
    sys.exit(0)


def crash(args, _):
    """Fail with an ordinary mistake."""
    return {}["train_batch_size"] + args.seed
