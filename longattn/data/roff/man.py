"""The `man` macros (groff_man(7)), and those of Perl's pod2man that pages define themselves."""

from __future__ import annotations

from longattn.data.roff.escapes import arguments
from longattn.data.roff.reader import Reader

_ALTERNATING = frozenset({"BR", "RB", "BI", "IB", "IR", "RI", "SB"})
_FONTS = frozenset({"B", "I", "R", "SM"})
_SILENT = frozenset({"TH", "RS", "RE", "DT", "PD", "AT", "UC", "HE", "IX"})


class ManReader(Reader):
    """Reads pages written with `.TH` and `.SH`."""

    def __init__(self) -> None:
        super().__init__()
        self._tag_follows = False
        self._link = ""

    def macro(self, name: str, rest: str) -> bool:
        words = [self.plain(word) for word in arguments(rest)]
        if name in _ALTERNATING:
            self.text_line("".join(words)) if words else None
        elif name in _FONTS:
            self.text_line(" ".join(words)) if words else None
        elif name in ("SH", "SS"):
            self.writer.blank()
            self.filling = True
            self.writer.word(" ".join(words))
            self._tag_follows = not words
            if words:
                self.writer.end_line()
        elif name in ("PP", "P", "LP", "HP"):
            self.writer.blank()
        elif name in ("TP", "TQ"):
            self.writer.end_line() if name == "TQ" else self.writer.blank()
            self._tag_follows = True
        elif name == "IP":
            self._tagged(words[0] if words else "")
        elif name in ("EX", "EE"):
            self.writer.end_line()
            self.filling = name == "EE"
        elif name in ("RS", "RE"):
            self.writer.end_line()
        elif name in ("UR", "MT"):
            self._link = words[0] if words else ""
        elif name in ("UE", "ME"):
            self.writer.word(f"<{self._link}>")
            self.writer.word("".join(words), glue=True)
        elif name == "SY":
            self.writer.blank()
            self.writer.word(" ".join(words))
        elif name == "YS":
            self.writer.blank()
        elif name == "OP":
            self.writer.word("[" + " ".join(words) + "]")
        else:
            return name in _SILENT
        return True

    def text_line(self, text: str) -> None:
        super().text_line(text)
        if self._tag_follows and text.strip():
            self.writer.end_line()
            self._tag_follows = False

    def _tagged(self, tag: str) -> None:
        self.writer.blank()
        self.writer.word(tag)
        if len(tag) > 2:  # a bullet or a number stays on the line of its text
            self.writer.end_line()
