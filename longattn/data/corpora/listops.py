"""ListOps: nested operations on digits (Nangia and Bowman 2018; long form: Tay et al. 2020, arXiv 2011.04006, 2.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar

import numpy as np

from longattn.data.corpora.base import Document
from longattn.data.corpora.generated import GeneratedCorpus
from longattn.data.masking import counter_generator

_OPERATORS = ("[MAX", "[MIN", "[MED", "[SM")
_MOST_ARGUMENTS = 10
_DEEPEST = 10
"""Level of the innermost digits; the outermost operator is level 1."""

_LRA_SHARE = 0.25
"""Probability of an operator at each place above the innermost level in Long Range Arena."""

_LRA_MINIMUM_LENGTH = 500
_LONGEST = 1_000_000
_BLOCK = 4096
"""Draws made at a time."""

_COUNTS = _MOST_ARGUMENTS - 1
"""Numbers of arguments that an operator may have: 2 to 10."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListOps(GeneratedCorpus):
    """Expressions such as `[MAX 4 3 [MIN 2 3 ] 1 0 ]`, labelled with their value, `0` to `9`.

    Use: can a model compute over a tree whose parts are far from each other? The operators are maximum, minimum, median
    (the whole part of it) and sum modulo 10, of 2 to 10 arguments, 10 levels deep. As in Long Range Arena, expressions
    are drawn at random and those outside the range of lengths are dropped: with the default options they are those of
    that benchmark. For a greater `minimum_length` operators become more frequent, or such lengths would hardly occur.
    A narrow range of lengths takes longer to draw.
    """

    name: ClassVar[str] = "listops"
    version: ClassVar[int] = 1

    minimum_length: int = 500
    """Words of the shortest expression; operators, digits and closing brackets are words."""

    maximum_length: int = 2000
    """Words of the longest expression."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("minimum_length", self.minimum_length, 4, _LONGEST, "words")
        self.check(
            "maximum_length", self.maximum_length, self.minimum_length, _LONGEST, "words, from minimum_length on"
        )

    def document(self, index: int) -> Document:
        draws = _draws(counter_generator(self.seed, index), self._operator_share)
        words: list[str] | None = None
        while words is None or len(words) < self.minimum_length:
            words = _expression(draws, self.maximum_length)
        return Document(text=" ".join(words), label=str(_value(words)), source=f"{self.name}#{index}")

    @cached_property
    def _operator_share(self) -> float:
        """Return the probability of an operator at each place.

        Expected lengths keep the ratio to `minimum_length` that they have in Long Range Arena.
        """
        wanted = _expected_length(_LRA_SHARE) * self.minimum_length / _LRA_MINIMUM_LENGTH
        low, high = _LRA_SHARE, 1.0
        while wanted > _expected_length(low) and (middle := (low + high) / 2) not in (low, high):
            low, high = (middle, high) if _expected_length(middle) <= wanted else (low, middle)
        return low


def _expected_length(operator_share: float) -> float:
    """Return the mean number of words of an expression, dropped ones included."""
    length = 1.0
    for _ in range(_DEEPEST - 1):
        length = (1 - operator_share) + operator_share * (2 + (2 + _MOST_ARGUMENTS) / 2 * length)
    return length


def _draws(generator: np.random.Generator, operator_share: float) -> Iterator[int]:
    """Yield 0 to 9 for a digit, 10 to 45 for an operator with its number of arguments, without end."""
    operators = len(_OPERATORS) * _COUNTS
    while True:
        uniform = generator.random(_BLOCK)
        digit = np.minimum((uniform - operator_share) / (1 - operator_share) * 10, 9)
        operator = 10 + np.minimum(uniform / operator_share * operators, operators - 1)
        yield from np.where(uniform < operator_share, operator, digit).astype(np.int64).tolist()


def _expression(draws: Iterator[int], most: int) -> list[str] | None:
    """Return the words of the next expression; None as soon as it has more than `most`."""
    words: list[str] = []
    missing: list[int] = []  # arguments still to come, of each open operator
    for draw in draws:
        if draw < 10:
            words.append(str(draw))
            while missing:
                missing[-1] -= 1
                if missing[-1]:
                    break
                missing.pop()
                words.append("]")
            if not missing:
                break
        elif len(missing) < _DEEPEST - 1:  # else: draw again, until it is a digit
            words.append(_OPERATORS[(draw - 10) // _COUNTS])
            missing.append(2 + (draw - 10) % _COUNTS)
        if len(words) + len(missing) > most:
            return None
    return words if len(words) <= most else None


def _value(words: list[str]) -> int:
    """Return the value of an expression."""
    operators: list[str] = []
    arguments: list[list[int]] = [[]]
    for word in words:
        if word in _OPERATORS:
            operators.append(word)
            arguments.append([])
        elif word == "]":
            value = _applied(operators.pop(), arguments.pop())
            arguments[-1].append(value)
        else:
            arguments[-1].append(int(word))
    return arguments[0][0]


def _applied(operator: str, arguments: list[int]) -> int:
    if operator == "[MAX":
        return max(arguments)
    if operator == "[MIN":
        return min(arguments)
    if operator == "[SM":
        return sum(arguments) % 10
    ordered = sorted(arguments)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2
