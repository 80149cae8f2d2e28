"""The plumbing that every task shares: nothing here imports a task.

Two settings must be made before torch is loaded, so import this package first.
"""

import os

# A store or peer that goes away is told in one line by common.workers.heartbeat, not in C++ frames.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
# Threads that wait for work sleep: when they spin, and another process wants the core, a step
# takes ten times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
