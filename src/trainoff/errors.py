"""The exception whose text is for the user."""


class TrainoffError(Exception):
    """A problem that the user can solve: the text says what is wrong, where, and what to do.

    The command line prints the text without a traceback and exits with `exit_code`.
    """

    exit_code = 2
