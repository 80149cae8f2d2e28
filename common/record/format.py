"""The format of a run's records, for those who read them: it needs no PyTorch."""

from typing import Any

FORMAT = 2
RENAMED = {  # what format 1 called each value that format 2 calls by another name
    **{"task": "glue_task", "strategy": "task"},  # in run.json
    **{"handed": "payload", "counted": "measured"},  # in traffic.rank<R>.json
    **{"rank_sends": "sent_bytes", "rank_receives": "received_bytes"},
}
PHASES = ("data", "forward", "backward", "sync", "update")


def upgrade(facts: Any, version: int) -> Any:
    """Records of a format version as the newest version would have them."""
    if version >= FORMAT:
        return facts
    if isinstance(facts, list):
        return [upgrade(each, version) for each in facts]
    if not isinstance(facts, dict):
        return facts
    inner = ("iterations", "epochs", "per_iteration")
    return {
        RENAMED.get(name, name): upgrade(value, version) if name in inner else value
        for name, value in facts.items()
    }


def difference(counts):
    """By how many percent measured bytes exceed expected ones; None where none are expected."""
    if not counts["expected"]:
        return None
    return 100 * (counts["measured"] / counts["expected"] - 1)
