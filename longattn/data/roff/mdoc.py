"""The `mdoc` macros of the BSDs (mdoc(7)): they mark what a word is, and some call others on the same line."""

from __future__ import annotations

from longattn.data.roff.escapes import arguments
from longattn.data.roff.reader import Reader

_ENCLOSING = {
    "Op": "[]", "Bq": "[]", "Dq": "“”", "Sq": "‘’", "Ql": "‘’", "Qq": '""', "Pq": "()", "Aq": "<>", "Brq": "{}",
}  # fmt: skip
_OPENING = {"Oo": "[", "Bo": "[", "Do": "“", "So": "‘", "Qo": '"', "Po": "(", "Ao": "<", "Bro": "{", "Xo": ""}
_CLOSING = {"Oc": "]", "Bc": "]", "Dc": "”", "Sc": "’", "Qc": '"', "Pc": ")", "Ac": ">", "Brc": "}", "Xc": ""}
_SYSTEMS = {
    "Ux": "UNIX", "Bx": "BSD", "Bsx": "BSD/OS", "Fx": "FreeBSD", "Nx": "NetBSD", "Ox": "OpenBSD", "Dx": "DragonFly",
    "At": "AT&T UNIX",
}  # fmt: skip
_STYLES = frozenset({
    "Ad", "An", "Ar", "Cd", "Cm", "Dv", "Em", "Er", "Ev", "Fa", "Fr", "Ft", "Ic", "Lb", "Li", "Ms", "Mt", "No", "Pa",
    "Ot", "St", "Sx", "Sy", "Tn", "Va", "Vt", "%A", "%B", "%C", "%D", "%I", "%J", "%N", "%O", "%P", "%Q", "%R",
    "%T", "%U", "%V",
})  # fmt: skip
_CALLS = (
    frozenset({"Ap", "Fl", "Fn", "In", "Lk", "Nm", "Ns", "Pf", "Ta", "Xr"})
    | _STYLES | frozenset(_ENCLOSING) | frozenset(_OPENING) | frozenset(_CLOSING) | frozenset(_SYSTEMS)
)  # fmt: skip
_SILENT = frozenset({"Dd", "Dt", "Os", "Bf", "Bk", "Ek", "Sm", "Db", "Hf", "Ef", "Rs", "Re", "Ud", "Es", "En"})
_CLOSERS = frozenset(".,;:)]?!")
_OPENERS = frozenset("([")


class MdocReader(Reader):
    """Reads pages written with `.Dd` and `.Sh`."""

    def __init__(self) -> None:
        super().__init__()
        self._name = ""
        self._lists: list[tuple[str, int]] = []
        self._displays: list[bool] = []

    def macro(self, name: str, rest: str) -> bool:
        words = arguments(rest.replace("\t", " Ta ") if name == "It" else rest)
        if name in ("Sh", "Ss"):
            self.writer.blank()
            self._inline(words)
            self.writer.end_line()
        elif name in ("Pp", "Lp"):
            self.writer.blank()
        elif name == "Nd":
            self.writer.word("-")
            self._inline(words)
        elif name in ("Bl", "El", "It"):
            self._list(name, words)
        elif name in ("Bd", "Ed"):
            self._display(name, words)
        elif name in ("D1", "Dl"):
            self.writer.end_line()
            self._inline(words)
            self.writer.end_line()
        elif name in ("Fo", "Fc"):
            self.writer.word(self.plain(words[0]) + "(" if name == "Fo" and words else ")", glue=name == "Fc")
            self.writer.glue_next() if name == "Fo" else self._inline(words)
        elif name in ("Ex", "Rv"):
            self.writer.word(_standard(name, self.plain(words[1]) if len(words) > 1 else self._name))
        elif name in _CALLS:
            self._inline([name, *(word for word in words if name != "An" or word not in ("-split", "-nosplit"))])
        else:
            return name in _SILENT
        if not self.filling and name not in _SILENT:
            self.writer.end_line()
        return True

    def _list(self, name: str, words: list[str]) -> None:
        if name == "Bl":
            self._lists.append((next((word for word in words if word.startswith("-")), "-item"), 0))
        elif name == "El":
            self._lists = self._lists[:-1]
            self.writer.blank()
        else:
            kind, count = self._lists[-1] if self._lists else ("-item", 0)
            self._lists[-1:] = [(kind, count + 1)]
            self.writer.end_line()
            self.writer.word({"-bullet": "•", "-dash": "-", "-hyphen": "-", "-enum": f"{count + 1}."}.get(kind, ""))
            self._inline(words)
            if kind in ("-tag", "-hang", "-ohang", "-inset", "-diag") and words and words[-1] != "Xo":
                self.writer.end_line()

    def _display(self, name: str, words: list[str]) -> None:
        self.writer.blank() if name == "Bd" else self.writer.end_line()
        if name == "Bd":
            self._displays.append(self.filling)
            self.filling = not {"-literal", "-unfilled"}.intersection(words)
        elif self._displays:
            self.filling = self._displays.pop()

    def _inline(self, words: list[str]) -> None:
        """Write the words of a line, which may hold further macros."""
        position, prefix = 0, ""
        while position < len(words):
            word = words[position]
            position += 1
            if word in _ENCLOSING:
                position = self._enclosed(_ENCLOSING[word], words, position)
            elif word in _CALLS:
                position, prefix = self._call(word, words, position)
            elif word in _CLOSERS or word in _OPENERS:
                self.writer.word(word, glue=word in _CLOSERS)
                if word in _OPENERS:
                    self.writer.glue_next()
            else:
                self.writer.word(prefix + self.plain(word))

    def _call(self, name: str, words: list[str], position: int) -> tuple[int, str]:
        """Handle a macro inside a line; return where to go on, and what goes before each word that follows."""
        writer = self.writer
        following = words[position:]
        given = [] if not following or following[0] in _CALLS or following[0] in _CLOSERS else following
        if name in _OPENING:
            writer.word(_OPENING[name])
            if _OPENING[name]:
                writer.glue_next()
        elif name in _CLOSING:
            writer.word(_CLOSING[name], glue=True)
        elif name in _SYSTEMS:
            writer.word(_SYSTEMS[name])
        elif name in ("Ns", "Ap"):
            writer.word("'" if name == "Ap" else "", glue=True)
            writer.glue_next()
        elif name == "Fl":
            if given:
                return position, "-"
            writer.word("-")
        elif name == "Nm":
            if given:
                self._name = self._name or self.plain(given[0])
            else:
                writer.word(self._name)
        elif name == "Ar" and not given:
            writer.word("file ...")
        elif name in ("Xr", "Fn", "In", "Pf", "Lk") and given:
            return position + self._with_words(name, given), ""
        return position, ""

    def _with_words(self, name: str, given: list[str]) -> int:
        """Handle a macro that gives its words different parts; return how many it has taken."""
        first = self.plain(given[0])
        if name == "Xr":
            sectioned = len(given) > 1 and given[1] not in _CLOSERS
            self.writer.word(f"{first}({self.plain(given[1])})" if sectioned else first)
            return 2 if sectioned else 1
        if name == "Fn":
            stop = next((index for index, word in enumerate(given) if word in _CLOSERS or word in _CALLS), len(given))
            self.writer.word(f"{first}({', '.join(self.plain(word) for word in given[1:stop])})")
            return stop
        self.writer.word(f"#include <{first}>" if name == "In" else first)
        if name == "Pf":
            self.writer.glue_next()
        return 1

    def _enclosed(self, marks: str, words: list[str], position: int) -> int:
        """Write the rest of a line between marks; punctuation at its end stays outside."""
        stop = len(words)
        while stop > position and words[stop - 1] in _CLOSERS:
            stop -= 1
        self.writer.word(marks[0])
        self.writer.glue_next()
        self._inline(words[position:stop])
        self.writer.word(marks[1], glue=True)
        return stop


def _standard(name: str, subject: str) -> str:
    if name == "Ex":
        return f"The {subject} utility exits 0 on success, and >0 if an error occurs."
    return f"The {subject}() function returns 0 if successful; otherwise -1 is returned and errno says why."
