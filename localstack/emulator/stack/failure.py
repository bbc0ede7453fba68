"""How the command ends when something is missing."""

from __future__ import annotations

# What scripts tell apart: the emulator cannot run here, which is no fault of the code under test.
EXIT_FAILED = 1
EXIT_UNAVAILABLE = 3


class StackFailure(Exception):
    """Something went wrong; the message says what and what to do."""

    exit_code = EXIT_FAILED


class Unavailable(StackFailure):
    """This machine lacks what the chosen emulator needs."""

    exit_code = EXIT_UNAVAILABLE
