"""The Transformer encoder, any pattern in any layer (Vaswani et al. 2017, arXiv 1706.03762, sec. 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longattn.errors import ConfigError
from longattn.models.config import EncoderConfig
from longattn.models.initialise import initialise
from longattn.models.outputs import EncoderOutput
from longattn.models.pretrained import Pretrained
from longattn.nn import BoundAttention, Embeddings, EncoderLayer, FeedForward, MultiHeadAttention, bind_attention
from longattn.nn.masks import read_flags
from longattn.nn.norm import make_norm
from longattn.nn.recompute import ActivationCheckpointing
from longattn.patterns import Pattern


class Encoder(Pretrained):
    """Embeddings, `num_layers` encoder layers, and for pre-norm a final norm."""

    part_prefix = "encoder."

    activation_checkpointing: ActivationCheckpointing
    """What each layer computes again in the backward pass instead of keeping it: "none", "selective" (norms),
    "attention" (it and its projections) or "layer" (all). How to train, not what to compute, so not in the config."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.activation_checkpointing = "none"
        self.position = config.position_scheme
        self.embeddings = Embeddings(
            config.vocab_size,
            config.d_model,
            position=self.position,
            pad_token_id=config.pad_token_id,
            norm=config.norm,
            norm_eps=config.norm_eps,
            dropout=config.dropout,
        )
        self.layers = nn.ModuleList(_layer(config, index) for index in range(config.num_layers))
        pre_norm = config.norm_placement == "pre"
        self.final_norm = make_norm(config.norm, config.d_model, config.norm_eps) if pre_norm else nn.Identity()
        initialise(self, config)

    @classmethod
    def from_parts(cls, config: EncoderConfig, head: dict[str, Any]) -> Self:
        return cls(config)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> EncoderOutput:
        """Return the hidden states of a batch of documents.

        All (B, L): `input_ids` integers; `attention_mask` boolean or 0 and 1, 1 = real token, all real if not given;
        `global_attention_mask` likewise, 1 = global token; `document_ids` integers, several documents packed in a row
        one after the other, -1 = padding, which do not see each other; `position_ids` integers, tokens from the start
        of the document, which is how they are counted if not given. ConfigError says what does not fit.
        """
        batch = self._prepare(input_ids, attention_mask, global_attention_mask, document_ids, position_ids)
        hidden: Tensor = self.embeddings(input_ids, batch.position_ids)
        states = [hidden]
        for layer in self.layers:
            assert isinstance(layer, EncoderLayer)
            hidden = self._run(layer, hidden, batch.bound[layer.attention.pattern])
            if output_hidden_states:
                states.append(hidden)
        return EncoderOutput(self.final_norm(hidden), tuple(states) if output_hidden_states else None)

    # Looks at values, once per batch: nothing that a compiler could fuse.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _prepare(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        global_attention_mask: Tensor | None,
        document_ids: Tensor | None,
        position_ids: Tensor | None,
    ) -> _Batch:
        """Check a batch, count its positions, and bind each distinct pattern of the layers to it once."""
        self._check_input_ids(input_ids)
        shape = tuple(input_ids.shape)
        attention_mask = _read(attention_mask, "attention_mask", shape)
        is_global = _read(global_attention_mask, "global_attention_mask", shape)
        if attention_mask is not None and bool(attention_mask.all()):
            attention_mask = None  # more kernels can do without
        if document_ids is not None:
            _check_integers("document_ids", document_ids, shape)
        position_ids = self._positions(input_ids, position_ids, document_ids)  # hidden tokens within a document count
        if document_ids is not None and attention_mask is not None:
            document_ids = document_ids.masked_fill(~attention_mask, -1)
            attention_mask = None
        patterns = self._patterns(is_global is not None)
        config, dtype = self.config, self.embeddings.token.weight.dtype
        rotation = self.position.rotation(position_ids, config.d_model // config.num_heads, dtype)
        bound = {
            pattern: bind_attention(
                pattern,
                num_heads=config.num_heads,
                query_length=input_ids.shape[1],
                key_padding=attention_mask,
                document=document_ids,
                is_global=is_global if pattern.uses_globals else None,
                rotation=rotation,
                bias=self.position.bias(config.num_heads),
            )
            for pattern in patterns
        }
        return _Batch(position_ids, bound)

    def _run(self, layer: EncoderLayer, hidden: Tensor, bound: BoundAttention) -> Tensor:
        if self.activation_checkpointing == "layer" and torch.is_grad_enabled():
            # The random state is put back for the second run, so dropout is the same in both.
            hidden = checkpoint(layer, hidden, bound, use_reentrant=False)
        else:
            hidden = layer(hidden, bound, self.activation_checkpointing)
        return hidden

    def _positions(self, input_ids: Tensor, position_ids: Tensor | None, document_ids: Tensor | None) -> Tensor:
        given = position_ids is not None
        if position_ids is not None:
            _check_integers("position_ids", position_ids, tuple(input_ids.shape))
            if not self.position.uses_position_ids:
                raise ConfigError(f"position_ids have no effect with position {self.position.name!r}: leave them out")
        else:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
            if document_ids is not None:
                position_ids = position_ids - document_starts(document_ids)
        self.position.check_positions(position_ids, given=given)
        return position_ids

    def _patterns(self, has_globals: bool) -> list[Pattern]:
        """Return the distinct patterns of the layers; ConfigError if the batch has global tokens and none uses them."""
        patterns = list(dict.fromkeys(self.config.pattern_of(index) for index in range(self.config.num_layers)))
        if has_globals and not any(pattern.uses_globals for pattern in patterns):
            raise ConfigError(
                "global_attention_mask is given, but no pattern of this model has global tokens "
                f"({', '.join(map(repr, patterns))}): use Longformer, or leave the mask out"
            )
        return patterns

    def _check_input_ids(self, input_ids: Tensor) -> None:
        if input_ids.dim() != 2 or input_ids.dtype not in (torch.int64, torch.int32):
            raise ConfigError(
                "input_ids must be int64 or int32 of shape (batch, tokens), "
                f"got {input_ids.dtype} {tuple(input_ids.shape)}"
            )
        # On a GPU the look would stall the queue, and the embedding asserts by itself.
        if input_ids.device.type == "cpu" and input_ids.numel():
            lowest, highest = (int(value) for value in input_ids.aminmax())
            if lowest < 0 or highest >= self.config.vocab_size:
                raise ConfigError(
                    f"input_ids must be in [0, vocab_size = {self.config.vocab_size}), got {lowest} to {highest}: "
                    "is the tokenizer the one that the model was trained with?"
                )


@dataclass(frozen=True, eq=False)
class _Batch:
    """What the layers need to know of a batch besides its tokens."""

    position_ids: Tensor
    bound: dict[Pattern, BoundAttention]


def _layer(config: EncoderConfig, index: int) -> EncoderLayer:
    return EncoderLayer(
        MultiHeadAttention(
            config.d_model,
            config.num_heads,
            config.pattern_of(index),
            dropout=config.attention_dropout,
            kernel=config.kernel,
        ),
        FeedForward(config.d_model, config.d_ff, config.activation),
        norm=config.norm,
        norm_placement=config.norm_placement,
        norm_eps=config.norm_eps,
        dropout=config.dropout,
    )


def document_starts(document_ids: Tensor) -> Tensor:
    """Return, for each token of (B, L) document ids, where its run of equal ids starts in the row, int64."""
    index = torch.arange(document_ids.shape[1], device=document_ids.device)
    starts = torch.zeros_like(document_ids, dtype=torch.int64)
    starts[:, 1:] = index[1:] * (document_ids[:, 1:] != document_ids[:, :-1])
    return starts.cummax(dim=1).values


def _read(mask: Tensor | None, name: str, shape: tuple[int, ...]) -> Tensor | None:
    return None if mask is None else read_flags(name, mask, (shape,), f"(batch, tokens) = {shape}")


def _check_integers(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype not in (torch.int64, torch.int32):
        raise ConfigError(
            f"{name} must be int64 or int32 of shape (batch, tokens) = {shape}, "
            f"got {tensor.dtype} {tuple(tensor.shape)}"
        )
