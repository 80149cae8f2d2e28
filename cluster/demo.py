"""Says where this command went."""

from common.commands import exit_moved

exit_moved("python -m cluster.demo", "python -m experiments.demo")
