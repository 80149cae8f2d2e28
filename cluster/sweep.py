"""Says where this command went."""

from common.commands import exit_moved

exit_moved("python -m cluster.sweep", "python -m experiments.scaling")
