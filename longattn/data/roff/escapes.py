"""The escapes of roff inside a line (groff(7), groff_char(7)), and the arguments of a macro."""

from __future__ import annotations

import re
from collections.abc import Mapping

_CHARACTERS = {
    "aq": "'", "dq": '"', "oq": "‘", "cq": "’", "lq": "“", "rq": "”", "Bq": "„", "bq": "‚", "Fo": "«", "Fc": "»",
    "bu": "•", "co": "©", "rg": "®", "tm": "™", "de": "°", "dg": "†", "dd": "‡", "sc": "§", "ps": "¶", "ct": "¢",
    "Eu": "€", "eu": "€", "Po": "£", "Ye": "¥", "em": "—", "en": "–", "hy": "-", "mi": "−", "pl": "+", "mu": "×",
    "di": "÷", "+-": "±", "->": "→", "<-": "←", "<>": "↔", "ua": "↑", "da": "↓", "=>": "⇒", "rA": "⇒", "lA": "⇐",
    "<=": "≤", ">=": "≥", "!=": "≠", "==": "≡", "~~": "≈", "~=": "≅", "if": "∞", "mo": "∈", "ap": "∼", "fm": "′",
    "ga": "`", "aa": "´", "ha": "^", "ti": "~", "a^": "^", "a~": "~", "rs": "\\", "sl": "/", "ba": "|", "or": "|",
    "br": "|", "bv": "|", "ul": "_", "ru": "_", "lB": "[", "rB": "]", "lC": "{", "rC": "}", "la": "⟨", "ra": "⟩",
    "sh": "#", "Do": "$", "at": "@", "12": "½", "14": "¼", "34": "¾", "S1": "¹", "S2": "²", "S3": "³", "r!": "¡",
    "r?": "¿", "ss": "ß", "AE": "Æ", "ae": "æ", "OE": "Œ", "oe": "œ", "'e": "é", "`e": "è", "^e": "ê", ":e": "ë",
    "'a": "á", "`a": "à", "^a": "â", ":a": "ä", "oa": "å", "~a": "ã", "'o": "ó", "`o": "ò", "^o": "ô", ":o": "ö",
    "~o": "õ", "/o": "ø", "'u": "ú", "`u": "ù", "^u": "û", ":u": "ü", "'i": "í", "`i": "ì", "^i": "î", ":i": "ï",
    "~n": "ñ", ",c": "ç", ":A": "Ä", ":O": "Ö", ":U": "Ü", "/O": "Ø", "oA": "Å", "'E": "É", "CR": "↵", "sq": "□",
    "ci": "○", "OK": "✓", "pc": "·", "md": "⋅", "es": "∅", "no": "¬", "AN": "∧", "OR": "∨", "*a": "α", "*b": "β",
    "*g": "γ", "*d": "δ", "*e": "ε", "*l": "λ", "*m": "μ", "*p": "π", "*s": "σ", "*w": "ω", "*D": "Δ", "*S": "Σ",
}  # fmt: skip

_SINGLE = {
    "e": "\\", "E": "\\", "\\": "\\", "-": "-", "~": " ", "0": " ", " ": " ", "t": "\t", "'": "'", "`": "`", "_": "_",
    ".": ".", '"': '"',
}  # fmt: skip
"""One-character escapes that print something; the others move, join or mark, and print nothing."""

_STRINGS = {"lq": "“", "rq": "”", "R": "®", "Tm": "™", "S": "", "Aq": "'", "Gt": ">", "Lt": "<", "Le": "≤", "Ge": "≥"}

_NAME = r"(?:\((?P<{0}2>..)|\[(?P<{0}n>[^\]]*)\]|(?P<{0}1>.))"

_ESCAPE = re.compile(
    r"\\(?:"
    r'["#].*'  # comment
    r"|\*" + _NAME.format("s") + r"|f(?:\(..|\[[^\]]*\]|.)"
    r"|s(?:[+-]?\(..|[+-]?\[[^\]]*\]|'[^']*'|[+-]?[1-3]\d|[+-]?\d)"
    r"|[nFgkmMVY][+-]?(?:\(..|\[[^\]]*\]|.)"
    r"|(?P<quoted>[ABCDHLNRSXZbhlovwx])(?P<mark>['\"])(?P<content>.*?)(?P=mark)"
    r"|\((?P<c2>..)|\[(?P<cn>[^\]]*)\]"
    r"|(?P<single>.)"
    r")|\\$"
)


def plain(text: str, strings: Mapping[str, str] | None = None, depth: int = 0) -> str:
    """Return what a line prints, without fonts, sizes and movements; `strings` are those the page has defined."""
    if "\\" not in text:
        return text
    known = strings or {}

    def printed(match: re.Match[str]) -> str:
        groups = match.groupdict()
        string = groups["s2"] or groups["sn"] or groups["s1"]
        if string is not None:
            value = known.get(string, _STRINGS.get(string, ""))
            return plain(value, known, depth + 1) if depth < 8 else ""
        character = groups["c2"] or groups["cn"]
        if character is not None:
            return _character(character)
        if groups["quoted"]:
            return _quoted(groups["quoted"], groups["content"] or "")
        return _SINGLE.get(groups["single"] or "", "")

    return _ESCAPE.sub(printed, text)


def arguments(text: str) -> list[str]:
    """Return the arguments of a macro, escapes and all: split at blanks outside double quotes."""
    found: list[str] = []
    position = 0
    while position < len(text):
        if text[position] in " \t":
            position += 1
            continue
        quoted = text[position] == '"'
        position += quoted
        part = ""
        while position < len(text):
            character = text[position]
            if quoted and character == '"':
                if text[position + 1 : position + 2] != '"':
                    break
                position += 1
            elif not quoted and character in " \t":
                break
            elif character == "\\" and position + 1 < len(text):
                part += character
                position += 1
                character = text[position]
            part += character
            position += 1
        found.append(part)
        position += 1
    return found


def _character(name: str) -> str:
    if match := re.fullmatch(r"u([0-9A-F]{4,6})", name):
        return chr(int(match[1], 16)) if int(match[1], 16) <= 0x10FFFF else ""
    if match := re.fullmatch(r"char(\d{1,3})", name):
        return chr(int(match[1]))
    return _CHARACTERS.get(name, "")


def _quoted(kind: str, content: str) -> str:
    if kind == "C":
        return _character(content)
    if kind == "N":
        return chr(int(content)) if content.isdigit() and int(content) < 256 else ""
    return content[:1] if kind == "o" else ""
