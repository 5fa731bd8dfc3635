"""Gathers words into lines of plain text."""

from __future__ import annotations


class Writer:
    """Fills lines of any length; a line ends where the page says so."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._line = ""
        self._glue = False

    @property
    def in_line(self) -> bool:
        """Whether the line in progress has text."""
        return bool(self._line)

    def word(self, text: str, *, glue: bool = False) -> None:
        """Add text to the line in progress, after a blank unless glued to what is before it."""
        if not text:
            return
        blank = "" if not self._line or glue or self._glue else " "
        self._line += blank + text
        self._glue = False

    def glue_next(self) -> None:
        """Let the next word follow without a blank."""
        self._glue = True

    def end_line(self) -> None:
        """Go to a new line, if there is text on this one."""
        if self._line:
            self._lines.append(self._line.rstrip())
        self._line, self._glue = "", False

    def literal(self, text: str) -> None:
        """Write a line as it is, blanks and all."""
        self.end_line()
        self._lines.append(text.rstrip())

    def blank(self) -> None:
        """Leave one line empty."""
        self.end_line()
        if self._lines and self._lines[-1]:
            self._lines.append("")

    def text(self) -> str:
        """Return all that was written, with a line feed at its end."""
        self.end_line()
        return "\n".join(self._lines).strip("\n") + "\n" if self._lines else ""
