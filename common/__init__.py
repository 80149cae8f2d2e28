"""The plumbing that every task shares: nothing here imports a task.

Two settings must be made before torch is loaded, so import this package first.
"""

import os
import sys

# A lost store or peer is reported in one line by common.workers.heartbeat, not by C++ frames.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
# Idle threads sleep: if they spin while another process needs the core, a step takes ten times
# as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def interrupted(kind, error, trace):
    """Report Ctrl-C, which may come while a command is still loading, in one line."""
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted (Ctrl-C)", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if sys.excepthook is sys.__excepthook__:
    sys.excepthook = interrupted

if {"-h", "--help"} & set(sys.argv[1:]):
    from common import early_help

    early_help.answer()
