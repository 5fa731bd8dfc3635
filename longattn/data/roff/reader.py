"""Reads roff: requests, conditions, definitions and tables (groff(7), tbl(1)); subclasses know the macros."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from longattn.data.roff.escapes import arguments, plain
from longattn.data.roff.writer import Writer

_DEEPEST = 20
"""Macros that call macros, at most."""


class Reader(ABC):
    """Turns the lines of a page into text; a subclass knows a set of macros."""

    def __init__(self) -> None:
        self.writer = Writer()
        self.filling = True
        self._strings: dict[str, str] = {}
        self._macros: dict[str, list[str]] = {}
        self._else = False

    @abstractmethod
    def macro(self, name: str, rest: str) -> bool:
        """Handle the macro `name` with the unparsed arguments `rest`; return False where it is unknown."""

    def text_line(self, text: str) -> None:
        """Handle a line of text, escapes resolved."""
        if not self.filling:
            self.writer.literal(text)
        elif not text.strip():
            self.writer.blank()
        else:
            if text[0] in " \t":
                self.writer.end_line()
            self.writer.word(text.strip())

    def plain(self, text: str) -> str:
        """Return what a piece of a line prints."""
        return plain(text, self._strings)

    def run(self, lines: list[str], depth: int = 0) -> None:
        """Read lines of a page, or of a macro's body."""
        position = 0
        while position < len(lines):
            line = lines[position]
            position += 1
            while line.endswith("\\") and not line.endswith("\\\\") and position < len(lines):
                line = line[:-1] + lines[position]
                position += 1
            match = re.match(r"[.'][ \t]*(\\?[^\s\\]*)[ \t]*(.*)", line)
            if match is None or line.startswith("\\&"):
                self.text_line(self.plain(line))
                continue
            name, rest = match[1], match[2]
            if name.startswith("\\") or line[1:].lstrip().startswith('\\"'):
                continue
            position = self._request(name, rest, lines, position, depth)

    def _request(self, name: str, rest: str, lines: list[str], position: int, depth: int) -> int:
        """Handle a request, or else a macro; what is neither prints nothing. Return the position after what it took."""
        rest = re.sub(r'(^|[^\\])\\".*', r"\1", rest)
        if name in ("de", "de1", "ig", "dei", "am"):
            words = rest.split()
            end = "." + (words[1] if name != "ig" and len(words) > 1 else words[0] if name == "ig" and words else ".")
            body, position = _until(lines, position, end)
            if name not in ("ig", "am") and words:
                self._macros[words[0]] = [line.replace("\\\\", "\\") for line in body]
        elif name in ("if", "ie", "el"):
            position = self._conditional(name, rest, lines, position, depth)
        elif name == "TS":
            table, position = _until(lines, position, ".TE")
            self._table(table)
        elif name in ("EQ", "PS", "GS"):
            _, position = _until(lines, position, f".{name[0]}{'N' if name == 'EQ' else 'E'}")
        elif name == "ds":
            if definition := re.match(r"(\S+) ?\"?(.*)", rest):
                self._strings[definition[1]] = definition[2]
        elif name == "als":
            new, _, old = rest.partition(" ")
            self._macros[new] = self._macros.get(old.strip(), [])
        elif name in ("br", "sp"):
            self.writer.end_line() if name == "br" else self.writer.blank()
        elif name in ("nf", "fi"):
            self.writer.end_line()
            self.filling = name == "fi"
        elif not self.macro(name, rest) and name in self._macros and depth < _DEEPEST:
            values = arguments(rest)
            self.run([_with_arguments(line, values) for line in self._macros[name]], depth + 1)
        return position

    def _conditional(self, name: str, rest: str, lines: list[str], position: int, depth: int) -> int:
        if name == "el":
            holds, body = self._else, rest
        else:
            holds, body = _condition(rest)
            self._else = name == "ie" and not holds
        block = [body]
        level = body.count("\\{") - body.count("\\}")
        while level > 0 and position < len(lines):
            block.append(lines[position])
            level += lines[position].count("\\{") - lines[position].count("\\}")
            position += 1
        if holds:
            # Only the outermost braces are dropped: inner conditions still need theirs.
            block[0] = block[0].replace("\\{", "", 1).lstrip()
            head, _, tail = block[-1].rpartition("\\}") if len(block) > 1 else ("", "", block[-1])
            block[-1] = head + tail if len(block) > 1 else tail
            self.run([line for line in block if line.strip() not in ("", ".", "'")], depth + 1)
        return position

    def _table(self, lines: list[str]) -> None:
        """Write the rows of a table, cells apart by two blanks."""
        self.writer.blank()
        separator = "\t"
        if lines and lines[0].rstrip().endswith(";"):
            if match := re.search(r"tab\s*\((.)\)", lines[0]):
                separator = match[1]
            lines = lines[1:]
        in_format, block, row = True, False, ""
        for line in lines:
            if in_format:
                in_format = not line.rstrip().endswith(".")
            elif line.startswith(".T&"):
                in_format = True
            elif block and not line.startswith("T}"):
                row += "" if re.match(r"[.'][ \t]*(\\\"|[a-z]{2}\b)", line) else " " + _without_macro(line)
            else:
                row = row + line[2:] if block else line
                block = row.rstrip().endswith("T{")
                if block:
                    row = row.rstrip()[:-2]
                elif row.strip() not in ("_", "=", "") and not row.startswith((".", "'")):
                    cells = [self.plain(cell).strip() for cell in row.split(separator)]
                    self.writer.literal("  ".join(cell for cell in cells if cell not in ("", "_", "=", "^")))
        self.writer.blank()


def page_to_text(source: str) -> str:
    """Return the text of a manual page, one line per paragraph, without its header and footer."""
    from longattn.data.roff.man import ManReader
    from longattn.data.roff.mdoc import MdocReader

    lines = source.splitlines() if "\x0b" not in source and "\x0c" not in source else source.split("\n")
    reader: Reader = MdocReader() if any(re.match(r"\.\s*Dd\b", line) for line in lines) else ManReader()
    reader.run(lines)
    return reader.writer.text()


def _condition(rest: str) -> tuple[bool, str]:
    """Return whether a condition holds in a text terminal, and what follows it; registers count as false."""
    negated = rest.startswith("!")
    rest = rest[negated:].lstrip()
    if match := re.match(r"([note])(?=[\s\\.'])", rest):
        holds, body = match[1] in "no", rest[1:]
    elif match := re.match(r"'[^']*'[^']*'|\"[^\"]*\"[^\"]*\"|[dr]\s*\S+|\(.*?\)(?=\s|\\\{|$)|\S+", rest):
        holds, body = False, rest[match.end() :]
    else:
        holds, body = False, ""
    return holds != negated, body.lstrip()


def _until(lines: list[str], position: int, end: str) -> tuple[list[str], int]:
    """Return the lines before the one that is `end`, and the position after it."""
    for stop in range(position, len(lines)):
        if lines[stop].rstrip() == end or (end != ".." and lines[stop].startswith(end + " ")):
            return lines[position:stop], stop + 1
    return lines[position:], len(lines)


def _with_arguments(line: str, values: list[str]) -> str:
    line = re.sub(r"\\\$[*@]", lambda _: " ".join(values), line)
    return re.sub(r"\\\$([1-9])", lambda match: values[int(match[1]) - 1] if int(match[1]) <= len(values) else "", line)


def _without_macro(line: str) -> str:
    return " ".join(arguments(line[1:])[1:]) if line[:1] in (".", "'") else line
