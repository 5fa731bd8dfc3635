"""Documents as batches for a Lightning trainer, or for a plain loop."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import datasets
import lightning.pytorch as pl
import numpy as np
from numpy.typing import NDArray

from longattn.data.collate import Collator, GlobalTokens
from longattn.data.loader import BatchLoader, WindowRows
from longattn.data.masking import Masking, counter_generator, random_order
from longattn.data.mixture import SourceConfig, chosen_sources, repeated
from longattn.data.packing import RowTable, best_fit, one_per_row
from longattn.data.preparation import Preparation
from longattn.data.prepared import copy_prepared, refuse_existing
from longattn.data.records import BadRecords
from longattn.data.sampler import BatchShape, EvaluationSampler, LabelCounts, TrainingSampler
from longattn.data.statistics import Statistics, draw_lengths, log_statistics, summary_of
from longattn.data.tasks import Task, TaskSettings, task_class
from longattn.data.token_store import TokenStore, write_folder
from longattn.data.tokenizer import Tokenizer, load_tokenizer
from longattn.data.tokenizer_training import TokenizerTraining
from longattn.data.windows import LongDocuments, Windowing, Windows, cut
from longattn.errors import ConfigError

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class _Part:
    """A split, ready to be read."""

    store: TokenStore
    windows: Windows
    table: RowTable
    statistics: Statistics
    label_counts: LabelCounts
    rows: WindowRows


class TextDataModule(pl.LightningDataModule):
    """Documents from anywhere, tokenised once, cut to max_length, in batches of like length.

    After `setup`: `tokenizer`, `vocab_size`, `statistics` and `validation_statistics`. Which documents make up a global
    batch, and what each is given to train on, depends on `seed`, the epoch and the global batch size alone. Nothing is
    read before `prepare_data` and `setup`.

    Args:
        path: Where the documents come from: a corpus of this machine (such as `python_library`, `manual_pages` or
            `listops`), a format (`json`, `csv`, `text`, `parquet`, `arrow`) with data_files, a folder of
            `save_to_disk`, or a data set of the Hugging Face hub.
        name: Configuration of a hub data set.
        data_files: Files, patterns or URLs: one, a list, or a dictionary from splits to these. A text file is one
            document; JSON, CSV and the others hold one per line or row.
        options: Settings of a corpus of this machine, such as its length in words.
        sources: Several sources instead of one, each with a weight; then no other setting tells where the documents
            come from.
        split: Split to train on, such as `train` or `train[:10%]`.
        validation_split: Split to validate on; null: the `validation` of data_files, or a share of the documents.
        validation_fraction: Share of the documents to validate on where no split is named, chosen by the seed.
        test_split: Split for `test` and `predict`; null: the `test` of data_files, or the validation documents.
        text_column: Column that holds the text, or several whose texts are joined; `a.b` is field b of column a, and of
            every entry where a is a list.
        text_separator: Stands between the texts of several columns, and between the strings of a list.
        text_pair_column: Column that holds the second text of a pair.
        label_column: Column that holds the label, for tasks that have one.
        bad_records: What to do with a line that is no JSON, or a record whose text is none: `error`, or `skip` and
            count.
        minimum_characters: Leave out shorter documents; null: empty ones, or what the corpus of this machine advises.
        maximum_documents: Keep the first so many documents of each split; null: all.
        tokenizer: A tokenizer.json, its folder, or a hub id; null: train one on the training documents.
        tokenizer_training: How to train a tokenizer where none is given.
        task: What the model is to learn from the documents; the model's task.
        masking: How many tokens are hidden, and behind what.
        max_length: Largest input, in tokens, special tokens included.
        long_documents: `windows` cuts longer documents in windows that cover all tokens; `keep_head`, `keep_tail` and
            `keep_ends` leave out what is too much at the end, at the start or in the middle; `keep_whole` nothing.
        stride: Tokens that a window shares with the one before it.
        packing: Put several short windows in one row of up to max_length tokens; they do not see each other.
        global_tokens: Tokens that see all and are seen by all: `first` of each document, `none`, or `auto`: `first`
            where the model's attention pattern has global tokens.
        batch_size: Rows per batch of one rank; one optimizer step takes batch_size x ranks x accumulated batches.
        evaluation_batch_size: Rows per batch in validation, test and prediction; null: batch_size.
        bucket_batches: Documents are sorted by length in groups of so many global batches; 1 keeps them in any order.
        pad_to_multiple_of: Batches are padded to the longest row, rounded up to a multiple of this, in tokens.
        seed: Seed of the order, the masks and the choice of validation documents.
        num_workers: Processes that build batches beside the training process; 0 is fast enough for most models.
        cache_dir: Folder for caches; null: that of `datasets` (HF_HOME, HF_DATASETS_CACHE).
        progress: Show progress bars; null: when stderr is a terminal.
    """

    def __init__(
        self,
        path: str | None = None,
        name: str | None = None,
        data_files: str | list[str] | dict[str, str | list[str]] | None = None,
        options: dict[str, Any] | None = None,
        sources: list[SourceConfig] | None = None,
        split: str = "train",
        validation_split: str | None = None,
        validation_fraction: float = 0.05,
        test_split: str | None = None,
        text_column: str | list[str] = "text",
        text_separator: str = "\n\n",
        text_pair_column: str | list[str] | None = None,
        label_column: str | None = None,
        bad_records: BadRecords = "error",
        minimum_characters: int | None = None,
        maximum_documents: int | None = None,
        tokenizer: str | None = None,
        tokenizer_training: TokenizerTraining = TokenizerTraining(),  # noqa: B008 - frozen, and jsonargparse shows it
        task: str = "masked_language_model",
        masking: Masking = Masking(),  # noqa: B008
        max_length: int = 4096,
        long_documents: LongDocuments = "windows",
        stride: int = 0,
        packing: bool = False,
        global_tokens: Literal["auto", "none", "first"] = "auto",
        batch_size: int = 1,
        evaluation_batch_size: int | None = None,
        bucket_batches: int = 32,
        pad_to_multiple_of: int = 8,
        seed: int = 0,
        num_workers: int = 0,
        cache_dir: str | None = None,
        progress: bool | None = None,
    ) -> None:
        super().__init__()
        _check_at_least(1, batch_size=batch_size, evaluation_batch_size=evaluation_batch_size)
        _check_at_least(1, bucket_batches=bucket_batches, pad_to_multiple_of=pad_to_multiple_of)
        _check_at_least(1, maximum_documents=maximum_documents)
        _check_at_least(0, num_workers=num_workers, minimum_characters=minimum_characters)
        if not 0.0 <= validation_fraction < 1.0:
            raise ConfigError(f"data.validation_fraction={validation_fraction}: give a share from 0 to below 1")
        if global_tokens not in ("auto", "none", "first"):
            raise ConfigError(f"data.global_tokens={global_tokens!r}: give auto, none or first")
        self._task_class = task_class(task)
        self._windowing = Windowing(
            max_length=max_length,
            long_documents=long_documents,
            stride=stride,
            special_tokens=self._task_class.special_tokens_per_window,
        )
        root = Path(cache_dir or datasets.config.HF_DATASETS_CACHE).expanduser()
        one = SourceConfig(
            path=path or "",
            name=name,
            data_files=data_files,
            options=options,
            split=split,
            validation_split=validation_split,
            test_split=test_split,
            text_column=text_column,
            text_separator=text_separator,
            text_pair_column=text_pair_column,
            label_column=label_column,
            bad_records=bad_records,
            minimum_characters=minimum_characters,
            maximum_documents=maximum_documents,
        )
        self._sources = chosen_sources(one, sources)
        cache = str(root) if cache_dir is not None else None
        self._preparation = Preparation(
            sources=tuple(source.splits(validation_fraction, cache) for source in self._sources),
            tokenizer=tokenizer,
            training=tokenizer_training,
            seed=seed,
            root=root / "longattn",
            progress=sys.stderr.isatty() if progress is None else progress,
        )
        self.batch_size = batch_size
        self._evaluation_batch_size = evaluation_batch_size or batch_size
        self._bucket_batches = bucket_batches
        self._pad_to_multiple_of = pad_to_multiple_of
        self._packing = packing
        self._masking = masking
        self._seed = seed
        self._num_workers = num_workers
        self._global_tokens: Literal["auto", "none", "first"] = global_tokens
        self._tokenizer: Tokenizer | None = None
        self._parts: dict[str, _Part] = {}

    @property
    def max_length(self) -> int:
        """Largest input, in tokens."""
        return self._windowing.max_length

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, after `setup`."""
        if self._tokenizer is None:
            raise RuntimeError("the tokenizer is there after setup()")
        return self._tokenizer

    @property
    def vocab_size(self) -> int:
        """Rows that an embedding of the tokenizer's ids needs, after `setup`."""
        return self.tokenizer.vocab_size

    @property
    def statistics(self) -> Statistics:
        """What the training documents hold, after `setup`."""
        return self._part_for("train").statistics

    @property
    def validation_statistics(self) -> Statistics | None:
        """What the validation documents hold, after `setup`; None where there are none."""
        part = self._parts.get("validation")
        return None if part is None else part.statistics

    def prepare_data(self) -> None:
        """Load, train the tokenizer and tokenise, as far as that is not in the cache; one rank does it for all."""
        self._preparation.run()

    def setup(self, stage: str | None = None) -> None:
        """Map what `prepare_data` has written into memory; without a trainer, prepare it first."""
        if self._parts:
            return
        prepared = self._preparation.run() if self.trainer is None else self._preparation.result()
        self._tokenizer = load_tokenizer(prepared.tokenizer)
        task = self._task_class.build(TaskSettings(tokenizer=self.tokenizer, masking=self._masking, seed=self._seed))
        self._parts = {name: self._part(name, folders, task) for name, folders in prepared.parts.items()}

    def write_prepared(self, folder: Path) -> dict[str, Any]:
        """Write all that `setup` has read, tokenised, into `folder`, which `path` then may name; return its summary.

        The folder appears whole or not at all. Raises ConfigError where it is there already, or cannot be written.
        """
        refuse_existing(folder)
        parts = {name: summary_of(part.store.lengths, part.statistics) for name, part in self._parts.items()}

        def write(partial: Path) -> None:
            lengths = {name: part.store.lengths for name, part in self._parts.items()}
            draw_lengths(lengths, self.max_length, partial / "lengths.png")
            copy_prepared(self._preparation.result(), parts, partial)

        try:
            write_folder(folder, write)
        except OSError as error:
            raise ConfigError(f"output={str(folder)!r} cannot be written: {error.strerror or error}") from error
        summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        return summary

    def resolve_global_tokens(self, pattern_uses_globals: bool) -> GlobalTokens:
        """Settle `global_tokens="auto"` by whether the model's pattern has global tokens, and return the choice."""
        if self._global_tokens == "auto":
            self._global_tokens = "first" if pattern_uses_globals else "none"
        elif self._global_tokens == "first" and not pattern_uses_globals:
            raise ConfigError(
                "data.global_tokens='first', but no layer's pattern has global tokens: take auto, or Longformer"
            )
        return self._global_tokens

    def train_dataloader(self) -> BatchLoader:
        """Return this rank's training batches."""
        part = self._part_for("train")
        sampler = TrainingSampler(
            part.table.lengths,
            part.label_counts,
            self._shape(self.batch_size, training=True),
            seed=self._seed,
            bucket_batches=self._bucket_batches,
            # Lightning's check that a model can learn a few batches by heart needs them to stay the same.
            same_each_epoch=getattr(self.trainer, "overfit_batches", 0) > 0,
        )
        return BatchLoader(part.rows, sampler, self._collator(), num_workers=self._num_workers)

    def val_dataloader(self) -> BatchLoader | list[BatchLoader]:
        """Return this rank's validation batches; an empty list where nothing is held out."""
        return self._evaluation_loader("validation") if "validation" in self._parts else []

    def test_dataloader(self) -> BatchLoader:
        """Return this rank's test batches: the test documents, or else those of validation."""
        return self._evaluation_loader("test" if "test" in self._parts else "validation")

    def predict_dataloader(self) -> BatchLoader:
        """Return this rank's batches for prediction: the documents of `test_dataloader`, in order."""
        return self.test_dataloader()

    def _evaluation_loader(self, name: str) -> BatchLoader:
        part = self._part_for(name)
        shape = self._shape(self._evaluation_batch_size, training=False)
        sampler = EvaluationSampler(len(part.table), part.label_counts, shape)
        return BatchLoader(part.rows, sampler, self._collator(), num_workers=self._num_workers)

    def _part_for(self, name: str) -> _Part:
        if not self._parts:
            raise RuntimeError("call setup() before asking for batches")
        if name not in self._parts:
            raise ConfigError(f"no {name} documents: give data.{name}_split, or a data.validation_fraction")
        return self._parts[name]

    def _part(self, name: str, folders: list[Path], task: Task) -> _Part:
        store = TokenStore(*folders)
        windows, counts = cut(store.lengths, self._windowing, store.pair_start)
        if len(windows) == 0:
            raise ConfigError(f"{self._where}: no {name} document has a token")
        if name == "train":
            windows = repeated(windows, store.folder_sizes, [source.weight for source in self._sources], self._seed)
        maskable = store.maskable(windows)
        if name == "train" and not maskable.any():
            raise ConfigError(
                f"{self._where}: the tokenizer knows no word of the train documents, all tokens are special ones such "
                "as [UNK]; take another data.tokenizer"
            )
        table = self._rows(windows)
        statistics = Statistics(
            documents=len(store.lengths),
            empty_documents=int((store.lengths == 0).sum()),
            long_documents=counts.long_documents,
            windows=len(windows),
            rows=len(table),
            row_tokens=int(table.lengths.sum()),
            tokens=int(store.lengths.sum()),
            truncated_tokens=counts.truncated_tokens,
            unigram_entropy=store.unigram_entropy(self.tokenizer),
        )
        if self.trainer is None or self.trainer.is_global_zero:
            log_statistics(name, statistics, self._windowing.max_length)

        def label_counts(epoch: int, rows: Integers) -> Integers:
            chosen = table.windows_of(rows)
            return table.sums(task.label_counts(epoch, chosen, maskable[chosen]), rows)

        return _Part(
            store=store,
            windows=windows,
            table=table,
            statistics=statistics,
            label_counts=label_counts,
            rows=WindowRows(store, windows, table, task, self.tokenizer),
        )

    def _rows(self, windows: Windows) -> RowTable:
        lengths = windows.length + self._windowing.special_tokens
        if not self._packing:
            return one_per_row(lengths)
        order = random_order(counter_generator(self._seed, len(windows), 2), len(windows))
        return best_fit(lengths, self._windowing.max_length, order)

    @property
    def _where(self) -> str:
        return ", ".join(f"path={source.path!r}" for source in self._sources)

    def _shape(self, batch_size: int, *, training: bool) -> BatchShape:
        trainer = self.trainer
        if trainer is None:
            return BatchShape(batch_size=batch_size)
        accumulation = trainer.accumulate_grad_batches if training else 1
        return BatchShape(
            batch_size=batch_size, ranks=trainer.world_size, rank=trainer.global_rank, accumulation=accumulation
        )

    def _collator(self) -> Collator:
        return Collator(
            pad_id=self.tokenizer.special.pad,
            max_length=self._windowing.max_length,
            pad_to_multiple_of=self._pad_to_multiple_of,
            global_tokens="none" if self._global_tokens == "auto" else self._global_tokens,
            packed=self._packing,
        )


def _check_at_least(least: int, **flags: int | None) -> None:
    for flag, value in flags.items():
        if value is not None and value < least:
            raise ConfigError(f"data.{flag}={value}: give at least {least}")
