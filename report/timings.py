"""Says where this command went."""

from common.commands import exit_moved

exit_moved("python -m report.timings", "python -m staff timings")
