"""longattn: Transformer encoders for long documents, with attention as a one-line choice."""

from __future__ import annotations

from longattn import kernels, patterns
from longattn.errors import ConfigError, LongattnError, UnsupportedError
from longattn.kernels import attention
from longattn.kernels.native import reuse_cpu_memory

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "LongattnError",
    "UnsupportedError",
    "__version__",
    "attention",
    "kernels",
    "patterns",
    "reuse_cpu_memory",
]
