"""Masked-language-model masking as a function of (seed, epoch, document) (Devlin et al. 2018, arXiv 1810.04805, 3.1).

No random state is kept: a document's draw comes from a hash of three numbers, so any rank, worker or resumed run draws
the same, and the number of labelled tokens is known to the sampler before anything is masked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from longattn.errors import ConfigError

IGNORED_LABEL = -100
"""Label of a token that the loss leaves out."""

Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Masking:
    """How many tokens of a document are to be predicted, and what stands in their place."""

    probability: float = 0.15
    """Share of a document's ordinary tokens that are predicted, in (0, 1]."""

    mask_share: float = 0.8
    """Share of the predicted tokens that are replaced by the mask token."""

    random_share: float = 0.1
    """Share of the predicted tokens that are replaced by a random ordinary token; the rest stays as it is."""

    def __post_init__(self) -> None:
        if not 0.0 < self.probability <= 1.0:
            raise ConfigError(f"masking.probability={self.probability!r}: give a share above 0, at most 1")
        if self.mask_share < 0 or self.random_share < 0 or self.mask_share + self.random_share > 1 + 1e-9:
            raise ConfigError(
                f"masking.mask_share={self.mask_share!r} and masking.random_share={self.random_share!r}: "
                "give two shares of at least 0 whose sum is at most 1, such as 0.8 and 0.1"
            )


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the finalizer of SplitMix64 (Steele et al. 2014): each output bit depends on each input bit."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def counter_hash(*counters: int | Integers) -> NDArray[np.uint64]:
    """Return 64 well mixed bits for each tuple of integers; the counters broadcast, the result has an axis or more."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    state = np.zeros(1, dtype=np.uint64)
    for counter in counters:
        # Arrays, not scalars: numpy's unsigned arrays wrap around without a warning.
        state = _mixed((state ^ np.atleast_1d(np.asarray(counter, dtype=np.int64)).astype(np.uint64)) + golden)
    return state


def counter_generator(*counters: int) -> np.random.Generator:
    """Return a generator of its own stream for a tuple of integers; the global random state is not touched."""
    key = np.concatenate([counter_hash(0, *counters), counter_hash(1, *counters)])
    return np.random.Generator(np.random.Philox(key=key))


def random_order(generator: np.random.Generator, size: int) -> Integers:
    """Return the integers below `size` in random order, by sorting random numbers.

    Only `random()` is used: numpy keeps its stream from version to version, unlike that of choice or permutation.
    """
    return np.argsort(generator.random(size), kind="stable")


def masked_count(probability: float, maskable: Integers, *, seed: int, epoch: int, document: Integers) -> Integers:
    """Return how many tokens of each document are masked: floor(probability * maskable + u), u uniform in [0, 1).

    `maskable` and `document` have one entry per document; u is a function of (seed, epoch, document), so the expected
    count is exactly `probability * maskable`, and a document too short for one token on average gets one now and then.
    """
    uniform = (counter_hash(2, seed, epoch, document) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.minimum(np.floor(probability * maskable + uniform).astype(np.int64), maskable)


def mask_tokens(
    tokens: Integers,
    maskable: NDArray[np.bool_],
    masking: Masking,
    *,
    mask_id: int,
    ordinary_ids: Integers,
    seed: int,
    epoch: int,
    document: int,
) -> tuple[Integers, Integers]:
    """Return (input tokens, labels) of one document, both of the shape of `tokens`.

    Only tokens where `maskable` is true are chosen; labels are `IGNORED_LABEL` elsewhere. Random replacements are drawn
    from `ordinary_ids`, the ids of all tokens that are not special.
    """
    candidates = np.flatnonzero(maskable)
    counts = masked_count(
        masking.probability, np.array([candidates.size]), seed=seed, epoch=epoch, document=np.array([document])
    )
    count = int(counts[0])
    inputs = tokens.astype(np.int64, copy=True)
    labels = np.full(tokens.shape, IGNORED_LABEL, dtype=np.int64)
    if count == 0:
        return inputs, labels
    # Only `random()` is used: numpy keeps its stream from version to version, unlike that of choice or permutation.
    generator = counter_generator(seed, epoch, document)
    chosen = np.sort(candidates[np.argpartition(generator.random(candidates.size), count - 1)[:count]])
    fate = generator.random(count)
    replacement = ordinary_ids[(generator.random(count) * len(ordinary_ids)).astype(np.int64)]
    labels[chosen] = inputs[chosen]
    masked = fate < masking.mask_share
    replaced = ~masked & (fate < masking.mask_share + masking.random_share)
    inputs[chosen[masked]] = mask_id
    inputs[chosen[replaced]] = replacement[replaced]
    return inputs, labels
