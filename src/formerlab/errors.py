"""The two ways in which formerlab stops on purpose."""


class UserError(Exception):
    """Something outside the code is wrong: a config value, a file, a path.

    The message is one line that names what (file, key, value) and the remedy.
    """


class StoppedEarly(Exception):
    """A stage stopped itself with its work saved: a signal came or its time ran out.

    Running the same command again continues where it stopped.
    """


EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_STOPPED_EARLY = 75  # EX_TEMPFAIL of sysexits.h: try again
