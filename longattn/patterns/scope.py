"""What a pattern may know besides positions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Scope:
    """What a pattern may know besides positions: the document's length and its global tokens."""

    length: int | None = None
    """Tokens in the whole document, of which the positions asked about may be a part."""

    query_is_global: Tensor | None = None
    """Bool, broadcastable with `query`; None where no token is global."""

    key_is_global: Tensor | None = None
    """Bool, broadcastable with `key`; None where no token is global."""

    def length_of(self, query: Tensor, key: Tensor) -> int:
        """Return the document's length in tokens; without one, the positions given must reach its end."""
        if self.length is not None:
            return self.length
        return 1 + max(int(query.max()) if query.numel() else -1, int(key.max()) if key.numel() else -1)


NO_SCOPE = Scope()
