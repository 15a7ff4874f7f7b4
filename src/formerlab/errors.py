"""The two ways in which formerlab stops on purpose."""


class UserError(Exception):
    """Something outside the code is wrong: a config value, a file, a path.

    The message is one line that names what (file, key, value) and the remedy. Whatever a name or value brings along,
    line breaks and what a terminal would obey are not in it.
    """

    def __init__(self, message: str) -> None:
        super().__init__("".join(letter if letter.isprintable() else " " for letter in message))


class StoppedEarly(Exception):
    """A stage stopped itself with its work saved: a signal came or its time ran out.

    Running the same command again continues where it stopped.
    """


EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_STOPPED_EARLY = 75  # EX_TEMPFAIL of sysexits.h: try again
