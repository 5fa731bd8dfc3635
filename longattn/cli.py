"""The command line: finds the command, and turns errors into exit codes.

0 done; 1 a run failed (with a traceback); 2 the user's input is wrong (one line on stderr, no traceback).
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Sequence

from longattn import __version__
from longattn.commands.base import Command, commands
from longattn.discovery import nearest
from longattn.errors import ConfigError, UnsupportedError

DONE, FAILED, WRONG_INPUT = 0, 1, 2

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` (default: the words after the program's name) ask for; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(words)
    except (ConfigError, UnsupportedError) as error:
        message = _one_line(error)
        _log.debug("wrong input: %s", message)
        print(f"longattn: error: {message}", file=sys.stderr)
        return WRONG_INPUT
    except KeyboardInterrupt:
        print("longattn: stopped by the keyboard", file=sys.stderr)
        return FAILED
    except Exception:
        traceback.print_exc()
        return FAILED


def _run(words: list[str]) -> int:
    known = commands()
    if not words or words[0] in ("-h", "--help"):
        print(_help(known))
        return DONE if words else WRONG_INPUT
    if words[0] == "--version":
        print(f"longattn {__version__}")
        return DONE
    if words[0] not in known:
        raise ConfigError(f"command {words[0]!r} is unknown{nearest(words[0], known)}: `longattn --help` lists them")
    return known[words[0]].run(words[1:])


def _help(known: dict[str, Command]) -> str:
    width = max(len(name) for name in known)
    lines = [f"  {command.name:<{width}}  {command.summary}" for command in known.values()]
    return "\n".join(
        [
            "usage: longattn COMMAND [--config FILE.yaml ...] [--key.subkey VALUE ...]",
            "",
            "Train Transformer encoders on long documents, with attention as a one-line choice.",
            "",
            "commands:",
            *lines,
            "",
            "options:",
            "  --help     this text; `longattn COMMAND --help` lists the settings of a command",
            "  --version  the version of longattn",
        ]
    )


def _one_line(error: BaseException) -> str:
    """Return the message of `error` in one line; of an error passed on by a data worker, the original message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in reversed(lines):
        for kind in (ConfigError, UnsupportedError):
            prefix = f"{kind.__module__}.{kind.__qualname__}: "
            if line.startswith(prefix):
                return line.removeprefix(prefix)
    return " ".join(lines)
