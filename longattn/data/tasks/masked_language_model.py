"""Masked language modelling: predict hidden tokens from both sides (Devlin et al. 2018, arXiv 1810.04805, sec. 3.1)."""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from longattn.data.collate import Segment
from longattn.data.masking import Masking, mask_tokens, masked_count
from longattn.data.tasks.base import Task, TaskSettings, WindowTokens
from longattn.data.tokenizer import Tokenizer

Integers = NDArray[np.int64]


class MaskedLanguageModelTask(Task):
    """[CLS] window [SEP], with a share of the window's ordinary tokens to be predicted, other ones in each epoch."""

    name: ClassVar[str] = "masked_language_model"

    def __init__(self, tokenizer: Tokenizer, masking: Masking, seed: int) -> None:
        self._tokenizer = tokenizer
        self._masking = masking
        self._seed = seed

    @classmethod
    def build(cls, settings: TaskSettings) -> Self:
        return cls(settings.tokenizer, settings.masking, settings.seed)

    def label_counts(self, epoch: int, windows: Integers, maskable: Integers) -> Integers:
        return masked_count(self._masking.probability, maskable, seed=self._seed, epoch=epoch, document=windows)

    def segment(self, window: WindowTokens, epoch: int) -> Segment:
        special = self._tokenizer.special
        tokens = np.concatenate([[special.cls], window.tokens, [special.sep]]).astype(np.int64)
        input_ids, labels = mask_tokens(
            tokens,
            self._tokenizer.is_ordinary[tokens],
            self._masking,
            mask_id=special.mask,
            ordinary_ids=self._tokenizer.ordinary_ids,
            seed=self._seed,
            epoch=epoch,
            document=window.window,
        )
        return Segment(input_ids, labels, window.document, window.window)
