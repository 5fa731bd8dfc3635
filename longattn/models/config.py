"""The architecture of an encoder as a value that goes through JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, get_args

from longattn.discovery import nearest
from longattn.errors import ConfigError
from longattn.kernels import check_kernel_name
from longattn.nn.activated_linear import Activation
from longattn.nn.attention import check_dropout, check_heads
from longattn.nn.block import NormPlacement
from longattn.nn.norm import Norm
from longattn.nn.position import Position, position_from_config
from longattn.patterns import Dense, Pattern, pattern_from_config

PatternLike = Pattern | Mapping[str, Any]


@dataclass(frozen=True)
class EncoderConfig:
    """All that decides which weights an encoder has and what it computes with them; checked when it is made."""

    vocab_size: int
    """Tokens in the vocabulary."""

    d_model: int = 512
    """Width of the hidden states."""

    num_heads: int = 8
    """Attention heads; must divide `d_model`."""

    num_layers: int = 6
    """Encoder layers."""

    d_ff: int = 2048
    """Hidden units of each feed-forward."""

    pattern: PatternLike | None = None
    """Who sees whom, in every layer: a Pattern, or what `Pattern.to_config` wrote. Dense() if neither this nor
    `layer_patterns` is given."""

    layer_patterns: Sequence[PatternLike] | None = None
    """A pattern per layer, or a shorter cycle that repeats: (Dense(), w, w) is one dense layer every three. Given
    instead of `pattern`."""

    position: Position | str | Mapping[str, Any] = "rope"
    """Position scheme: "learned", "sinusoidal", "rope", "alibi", "none", or a Position with fields of its own."""

    norm: Norm = "layer_norm"
    """"layer_norm" or "rms_norm"."""

    norm_placement: NormPlacement = "pre"
    """"pre": before each part, and once at the end; "post": after each residual sum."""

    norm_eps: float = 1e-5
    """Added to the variance in norms."""

    activation: Activation = "gelu"
    """Feed-forward: "gelu" or "geglu"."""

    dropout: float = 0.1
    """Probability to drop an element of the embeddings and of each part's output, in training."""

    attention_dropout: float = 0.0
    """Probability to drop an attention weight, in training."""

    tie_decoder: bool = True
    """Whether a vocabulary projection shares its weight with the token embedding."""

    pad_token_id: int | None = None
    """Token whose embedding stays 0; which tokens are padding is told by `attention_mask` alone."""

    initializer_range: float = 0.02
    """Standard deviation of initial weights; narrow models learn faster with about 1 / sqrt(d_model)."""

    kernel: str = "auto"
    """How attention is computed; changes no result beyond rounding, and is not part of a saved model."""

    def __post_init__(self) -> None:
        check_heads(self.d_model, self.num_heads)
        for name in ("vocab_size", "num_layers", "d_ff"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be an integer >= 1, got {value!r}")
        for name, choices in (("norm", Norm), ("norm_placement", NormPlacement), ("activation", Activation)):
            value = getattr(self, name)
            if value not in get_args(choices):
                hint = nearest(str(value), get_args(choices))
                raise ConfigError(f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}{hint}")
        for name in ("norm_eps", "initializer_range"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be > 0, got {getattr(self, name)!r}")
        check_dropout("dropout", self.dropout)
        check_dropout("attention_dropout", self.attention_dropout)
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ConfigError(
                f"pad_token_id must be in [0, vocab_size), got {self.pad_token_id} and vocab_size {self.vocab_size}"
            )
        check_kernel_name(self.kernel)
        object.__setattr__(self, "position", position_from_config(self.position))
        self.position_scheme.check_dimensions(self.d_model, self.num_heads)
        self._read_patterns()

    def _read_patterns(self) -> None:
        if self.layer_patterns is None:
            object.__setattr__(self, "pattern", Dense() if self.pattern is None else _pattern(self.pattern, "pattern"))
            return
        if self.pattern is not None:
            raise ConfigError(
                f"pattern and layer_patterns contradict each other, got pattern {self.pattern!r} and "
                f"{len(self.layer_patterns)} layer_patterns: give one of them"
            )
        given = self.layer_patterns
        if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
            raise ConfigError(f"layer_patterns must be a sequence of patterns, got {given!r}")
        if not 1 <= len(given) <= self.num_layers:
            raise ConfigError(
                f"layer_patterns must hold 1 to num_layers = {self.num_layers} patterns, got {len(given)}: "
                "one per layer, or a cycle that repeats"
            )
        patterns = tuple(_pattern(pattern, f"layer_patterns[{index}]") for index, pattern in enumerate(given))
        object.__setattr__(self, "layer_patterns", patterns)

    @property
    def position_scheme(self) -> Position:
        """The position scheme itself, whatever it was given as."""
        return position_from_config(self.position)

    def pattern_of(self, layer: int) -> Pattern:
        """Return the pattern of layer `layer`, with the random parts of that layer."""
        cycle = [self.pattern] if self.layer_patterns is None else self.layer_patterns
        pattern = cycle[layer % len(cycle)]
        assert isinstance(pattern, Pattern)
        return pattern.for_layer(layer)

    @property
    def uses_globals(self) -> bool:
        """Whether any layer looks at global tokens."""
        return any(self.pattern_of(layer).uses_globals for layer in range(self.num_layers))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that survive JSON and that `from_dict` turns back into an equal config."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["position"] = self.position_scheme.to_config()
        if isinstance(self.pattern, Pattern):
            values["pattern"] = self.pattern.to_config()
        if self.layer_patterns is not None:
            values["layer_patterns"] = [
                _pattern(pattern, "layer_patterns").to_config() for pattern in self.layer_patterns
            ]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build a config from what `to_dict` returned; ConfigError names unknown and missing fields."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise ConfigError(f"EncoderConfig has no field {name!r}{nearest(name, known)}; it has {sorted(known)}")
        if "vocab_size" not in values:
            raise ConfigError("EncoderConfig needs vocab_size, the number of tokens in the vocabulary")
        return cls(**values)


def _pattern(value: PatternLike, where: str) -> Pattern:
    if isinstance(value, Pattern):
        return value
    if isinstance(value, Mapping):
        return pattern_from_config(dict(value))
    raise ConfigError(f"{where} must be a Pattern such as SlidingWindow(radius=256), or its config, got {value!r}")
