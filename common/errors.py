"""The errors whose messages are written for the user."""


class UserError(ValueError):
    """A user error: the message names the value and the fix, and no traceback is shown.

    Every exception that is neither this nor a RunError is a bug, in this kit or in a student's
    code, and keeps its traceback.
    """


class EndedEarlyError(Exception):
    """A run ends before its last step, as it was asked to; not a failure."""


class RunError(RuntimeError):
    """A run cannot go on, though it was started correctly; one line, as for a UserError."""
