"""The phases of an iteration."""

PHASES = ("data", "forward", "backward", "sync", "update")
