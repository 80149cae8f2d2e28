"""Says where this command went."""

from common.commands import exit_moved

exit_moved("python -m report.bench", "python -m staff.timing.rounds")
