"""The terminal that a run talks to: one rich console, shared by the progress bar and the log lines."""

from __future__ import annotations

import functools

from rich.console import Console

PROGRESS_LOGGER = "longattn.progress"
"""Logger of the lines of numbers that a progress bar makes superfluous in a terminal."""


@functools.cache
def terminal() -> Console:
    """Return the console on stdout; stderr is for errors alone, one line where the user's input is wrong."""
    return Console(soft_wrap=True)
