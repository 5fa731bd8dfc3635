"""The window united with the batch's global tokens, both ways (Beltagy et al. 2020, arXiv 2004.05150, sec. 3.1)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from longattn.patterns.scope import NO_SCOPE, Scope
from longattn.patterns.sliding_window import SlidingWindow


@dataclass(frozen=True)
class Longformer(SlidingWindow):
    """A window, and besides it every token sees every global token, and every global token sees every token.

    Which tokens are global belongs to the batch (`is_global`); with none the pattern is the window alone.
    """

    def sees(self, head: Tensor, query: Tensor, key: Tensor, scope: Scope = NO_SCOPE) -> Tensor:
        seen = super().sees(head, query, key, scope)
        if scope.query_is_global is not None:
            seen = seen | scope.query_is_global
        if scope.key_is_global is not None:
            seen = seen | scope.key_is_global
        return seen

    @property
    def uses_globals(self) -> bool:
        return True

    @property
    def shows_all_global_pairs(self) -> bool:
        return True
