"""Predicts hidden tokens from both sides (Devlin et al. 2019, arXiv 1810.04805, sec. 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from longattn.errors import ConfigError
from longattn.models.config import EncoderConfig
from longattn.models.heads.base import TaskModel
from longattn.models.initialise import initialise
from longattn.models.outputs import MaskedLanguageModelOutput
from longattn.nn.norm import make_norm
from longattn.nn.vocabulary import TokenLosses, VocabularyProjection

NOT_LABELLED = -100
"""Label of a position that no loss is asked of."""


class MaskedLanguageModel(TaskModel):
    """An encoder, a transform (dense, GELU, norm), and a projection onto the vocabulary."""

    task = "masked_language_model"

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.transform = nn.Sequential(
            nn.Linear(config.d_model, config.d_model),
            nn.GELU(),
            make_norm(config.norm, config.d_model, config.norm_eps),
        )
        self.decoder = VocabularyProjection(config.d_model, config.vocab_size)
        initialise(self.transform, config)
        if config.tie_decoder:
            nn.init.zeros_(self.decoder.bias)
        else:
            initialise(self.decoder, config)
        self.tie_weights()

    def tie_weights(self) -> None:
        if self.config.tie_decoder:
            self.decoder.weight = self.encoder.embeddings.token.weight

    @property
    def tied_weights(self) -> dict[str, str]:
        return {"decoder.weight": "encoder.embeddings.token.weight"} if self.config.tie_decoder else {}

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> MaskedLanguageModelOutput:
        """Return logits, or with `labels` the loss.

        `labels` (B, L) int64: the token wanted at each labelled position, -100 elsewhere. Then only the labelled
        positions are projected onto the vocabulary, some at a time, and no logits are returned: for long documents they
        would be the largest tensor of all. The other arguments are those of `Encoder.forward`.
        """
        if labels is not None:
            self._check_labels(labels, input_ids)
        encoded = self.encoder(
            input_ids, attention_mask, global_attention_mask, document_ids, position_ids, output_hidden_states
        )
        hidden_BLM: Tensor = encoded.last_hidden_state
        if labels is None:
            return MaskedLanguageModelOutput(
                logits=self.decoder(self.transform(hidden_BLM)),
                last_hidden_state=hidden_BLM,
                hidden_states=encoded.hidden_states,
            )
        positions_N2 = torch.nonzero(labels != NOT_LABELLED)
        entry_N, token_N = positions_N2.unbind(1)
        losses: TokenLosses = self.decoder(
            self.transform(hidden_BLM[entry_N, token_N]), wanted=labels[entry_N, token_N]
        )
        label_count = torch.tensor(entry_N.numel(), device=labels.device)
        return MaskedLanguageModelOutput(
            loss=losses.loss_sum / label_count.clamp(min=1),
            loss_sum=losses.loss_sum,
            label_count=label_count,
            label_positions=positions_N2,
            losses=losses.losses,
            predictions=losses.predictions,
            last_hidden_state=hidden_BLM,
            hidden_states=encoded.hidden_states,
        )

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _check_labels(self, labels: Tensor, input_ids: Tensor) -> None:
        if labels.shape != input_ids.shape or labels.dtype != torch.int64:
            raise ConfigError(
                f"labels must be int64 of the shape of input_ids {tuple(input_ids.shape)}, got {labels.dtype} "
                f"{tuple(labels.shape)}"
            )
        if labels.device.type == "cpu" and labels.numel():
            strange = (labels != NOT_LABELLED) & ((labels < 0) | (labels >= self.config.vocab_size))
            if bool(strange.any()):
                raise ConfigError(
                    f"labels must be {NOT_LABELLED} (none) or in [0, vocab_size = {self.config.vocab_size}), got "
                    f"{int(labels[strange][0])}"
                )
