"""Where the words of a run go: its own to the terminal and `log.txt`, those of the libraries to `log.txt` alone."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from longattn.training.terminal import PROGRESS_LOGGER, terminal

_OWN = ("longattn", "py.warnings")
_LIBRARIES = ("lightning", "lightning.pytorch", "lightning.fabric", "torch.distributed", "datasets")

_NOISE: tuple[tuple[str, str], ...] = (
    # (module that warns, what the message holds): settled by design here, so nothing that a user could act on.
    (r"lightning\.", r"does not have many workers"),  # reading documents is cheap beside the step
    (r"lightning\.", r"recommended to use .*sync_dist=True"),  # our metrics are in step already when they are logged
    (r"lightning\.", r"configure_optimizers` returned `None`"),  # --model.optimizer none asks for it
    (r"lightning\.", r"GPU available but not used"),
    (r"lightning\.", r"Total length of `.*` across ranks is zero"),  # nothing is held out: the data say so
    (r"lightning\.", r"is smaller than the logging interval"),
    (r"lightning\.", r"resuming from a checkpoint that ended before the epoch ended"),  # our sampler goes on there
    (r"lightning\.", r"`isinstance\(treespec, LeafSpec\)` is deprecated"),  # between Lightning and torch
    (r"lightning\.", r"`instantiate_classes` was deprecated"),  # between Lightning and jsonargparse
    (r"torchmetrics\.", r"`compute` method of metric .* was called before the `update` method"),
)


@contextlib.contextmanager
def command_logs() -> Iterator[None]:
    """Route logs and warnings for the time of a command, then put everything back.

    The libraries' log lines stay off the terminal, and the warnings of theirs that mean nothing here are dropped, each
    by name; every other warning, of the libraries and of the user's own code, is shown.
    """
    loggers = [logging.getLogger(name) for name in (*_OWN, *_LIBRARIES)]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    with warnings.catch_warnings():
        for module, message in _NOISE:
            # Backquotes come doubled or single, depending on the library's version.
            warnings.filterwarnings("ignore", message=f"(?s).*{message.replace('`', '`+')}", module=module)
        warnings.filterwarnings("ignore", message=r"(?s).*JSONARGPARSE_DEPRECATION_WARNINGS")
        warnings.filterwarnings("ignore", message=r"(?s).*`+instantiate_classes`+ was deprecated")
        logging.captureWarnings(True)
        for logger in loggers:
            logger.handlers = [_Terminal()] if logger.name in _OWN else [logging.NullHandler()]
            logger.propagate = False
        first_rank = getattr(rank_zero_only, "rank", 0) == 0
        logging.getLogger("longattn").setLevel(logging.INFO if first_rank else logging.WARNING)
        try:
            yield
        finally:
            logging.captureWarnings(False)
            for handler in {handler for logger in loggers for handler in logger.handlers}:
                handler.close()
            for logger, handlers, level, propagate in before:
                logger.handlers, logger.propagate = handlers, propagate
                logger.setLevel(level)


def log_to_file(path: Path) -> None:
    """Append everything that the package and the libraries say, warnings too, to the file at `path`, with times."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in (*_OWN, *_LIBRARIES):
        logging.getLogger(name).addHandler(handler)


def log_failure(logger: logging.Logger, message: str, *, traceback: bool) -> None:
    """Write an error to the log file alone: the command line shows it on the terminal by itself."""
    logger.error(message, exc_info=traceback, extra={"file_only": True})


class _Terminal(logging.Handler):
    """Prints messages above the progress bar; lines of numbers only where there is no bar."""

    def emit(self, record: logging.LogRecord) -> None:
        covered = record.name == PROGRESS_LOGGER and terminal().is_terminal
        if not covered and not getattr(record, "file_only", False):
            terminal().print(self.format(record).rstrip(), markup=False, highlight=False)
