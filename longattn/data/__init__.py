"""Data: documents from anywhere as batches of token ids; knows no model."""

from longattn.data.datamodule import TextDataModule
from longattn.data.masking import Masking
from longattn.data.mixture import SourceConfig
from longattn.data.statistics import Statistics
from longattn.data.tokenizer import SpecialTokens, Tokenizer, load_tokenizer
from longattn.data.tokenizer_training import TokenizerTraining, train_tokenizer

__all__ = [
    "Masking",
    "SourceConfig",
    "SpecialTokens",
    "Statistics",
    "TextDataModule",
    "Tokenizer",
    "TokenizerTraining",
    "load_tokenizer",
    "train_tokenizer",
]
