"""Says where this command went."""

from common.commands import exit_moved

exit_moved("python -m cluster.bench", "python -m staff.timing.measurements")
