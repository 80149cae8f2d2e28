"""Says where this command went."""

from common.commands import exit_moved

exit_moved("python task4/sweep.py", "python -m experiments.traffic")
