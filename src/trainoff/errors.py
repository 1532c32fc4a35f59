"""The one exception that is meant for a person."""


class TrainoffError(Exception):
    """A problem that the user can solve: the text says what is wrong, where, and what to do.

    The command line prints it as it is, without a traceback, and exits with `exit_code`.
    """

    exit_code = 2
