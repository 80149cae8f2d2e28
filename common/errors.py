"""The one kind of error whose message is written for the user."""


class UserError(ValueError):
    """A user error: the message names the value and the fix, and no traceback is shown.

    Every other exception is a bug, in this kit or in a student's code, and keeps its traceback.
    """
