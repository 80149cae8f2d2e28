"""The one kind of error whose message is written for the person at the keyboard."""


class UserError(ValueError):
    """A mistake of the user's: the message names the value and the fix, and no trace is shown.

    Every other exception is a bug, in this kit or in a student's own code, and keeps its trace.
    """
