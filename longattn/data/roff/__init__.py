"""A small reader of manual pages: roff with the `man` or `mdoc` macros, to plain text."""

from longattn.data.roff.reader import page_to_text

__all__ = ["page_to_text"]
