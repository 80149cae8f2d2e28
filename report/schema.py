"""The shape that a run's records must have, checked before anything is computed from them.

A shape is a tuple of types; {name: shape}, the values that must be there; {str: shape}, values of
any names; or [shape], a list of any length.
"""

from typing import Any

NUMBER = (int, float)
SCALAR = (str, int, float, bool, type(None))
LARGEST = 2**63  # of a whole number
FACTS = {  # run.json
    "task": (str,),
    "glue_task": (str,),
    "arguments": {"model_name_or_path": (str,), str: SCALAR},
    "versions": {str: (str,)},
    "git_commit": (str, type(None)),
    "host": (str,),
    "processor": (str,),
    "cores": (int, type(None)),
    "world_size": (int,),
    "gradient_bytes": (int,),
    "examples": {"train": (int,)},
    "end": (str,),
    "metrics": [{"epoch": NUMBER, str: NUMBER}],
}
PHASES = ("data", "forward", "backward", "sync", "update", "total")
STEP = {
    "epoch": (int,),
    "loss": NUMBER,
    "examples": (int,),
    "seconds": dict.fromkeys(PHASES, NUMBER),
}
MEMORY = dict.fromkeys(
    ("weights", "gradients", "optimizer_state", "activations", "peak"), (int,)
)  # memory.rank<R>.json
COUNTS = dict.fromkeys(("payload", "sent_bytes", "received_bytes", "expected", "measured"), NUMBER)
TRAFFIC = {  # traffic.rank0.json
    "method": (str,),
    "dtype": (str,),
    "iterations": [{"epoch": (int,), **COUNTS}],
    "epochs": [{"epoch": (int,), **COUNTS}],
    "per_iteration": {str: NUMBER},
}


def check(value: Any, shape: Any, place: str) -> None:
    """Raise ValueError, naming the place, where a value does not have its shape."""
    if isinstance(shape, dict):
        expect(type(value) is dict, value, "{...}", place)
        for name in shape:
            expect(name is str or name in value, value, f"{{{name!r}: ...}}", place)
        for name, inner in value.items():
            expect(name.isprintable(), name, "a printable name", place)
            if name in shape or str in shape:
                check(inner, shape[name if name in shape else str], f"{place}, {name}")
    elif isinstance(shape, list):
        expect(type(value) is list, value, "[...]", place)
        for number, inner in enumerate(value):
            check(inner, shape[0], f"{place}[{number}]")
    else:
        kinds = " or ".join(kind.__name__ for kind in shape)
        expect(type(value) in shape, value, kinds, place)
        expect(type(value) is not str or value.isprintable(), value, "printable text", place)
        expect(type(value) is not int or abs(value) < LARGEST, value, f"below {LARGEST}", place)


def expect(right: bool, value: Any, expected: str, place: str) -> None:
    """Raise ValueError unless it is right."""
    if not right:
        raise ValueError(f"{place} is {repr(value)[:60]}, not {expected}")


def check_steps(steps: list[list[dict]]) -> None:
    """Raise ValueError unless all ranks have gone through the same steps, and with examples."""
    for rank, lines in enumerate(steps):
        for number, line in enumerate(lines):
            check(line, STEP, f"steps.rank{rank}.jsonl, line {number + 1}")
            examples = line["examples"]
            expect(examples >= 0, examples, "0 or more", f"rank {rank}'s number of examples")
        expect(len(lines) == len(steps[0]), len(lines), f"{len(steps[0])} steps", f"rank {rank}")
    for number, step in enumerate(zip(*steps, strict=True), 1):
        total = sum(line["examples"] for line in step)
        expect(total > 0, total, "1 or more", f"the number of examples of step {number}")
