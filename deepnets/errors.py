"""The one exception that means: the user asked for something that cannot be done."""


class UserError(ValueError):
    """A message for the user: what was given, what is allowed, what to do.

    Caught once, at the top of a command: printed without traceback, exit code 1. Every other exception is a bug.
    """
