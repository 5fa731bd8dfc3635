"""The exceptions that longattn raises for its users; `assert` is for its own invariants."""

from __future__ import annotations


class LongattnError(Exception):
    """Base of every error that longattn raises on purpose."""


class ConfigError(LongattnError, ValueError):
    """The user's input is wrong: one line that says what, where, and what to do (exit code 2)."""


class UnsupportedError(LongattnError, NotImplementedError):
    """What was asked for by name cannot run here: one line with the reason."""
