"""The terminal that a run talks to: one rich console on stderr, shared by the progress bar and the log lines."""

from __future__ import annotations

import functools

from rich.console import Console

PROGRESS_LOGGER = "longattn.progress"
"""Logger of the lines of numbers that a progress bar makes superfluous in a terminal."""


@functools.cache
def terminal() -> Console:
    """Return the console; stdout stays free for what a command was asked to print."""
    return Console(stderr=True, soft_wrap=True)
