"""Several sources as one: what each is told by, and how often its documents are seen."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from longattn.data.masking import counter_generator, random_order
from longattn.data.preparation import SourceSplits
from longattn.data.sources import Source, SourceSettings
from longattn.data.windows import Windows
from longattn.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SourceConfig(SourceSettings):
    """One source of documents, which of them are for what, and how often they are seen."""

    weight: float = 1.0
    """How often each training document is seen per epoch: 2 = twice; 0.5 = half of them are, chosen by the seed."""

    split: str = "train"
    """Split to train on."""

    validation_split: str | None = None
    """Split to validate on; null: the `validation` of data_files, or a share of the documents."""

    test_split: str | None = None
    """Split for test and predict; null: the `test` of data_files, or the validation documents."""

    def __post_init__(self) -> None:
        if not 0.0 < self.weight < float("inf"):
            raise ConfigError(f"weight={self.weight!r} of path={self.path!r}: give a number above 0")

    def splits(self, validation_fraction: float, cache_dir: str | None) -> SourceSplits:
        """Return what is to be prepared of it."""
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(SourceSettings)}
        return SourceSplits(
            source=Source(**settings, cache_dir=cache_dir),
            split=self.split,
            validation_split=self.validation_split or ("validation" if "validation" in self.files else None),
            validation_fraction=validation_fraction,
            test_split=self.test_split or ("test" if "test" in self.files else None),
        )


def chosen_sources(one: SourceConfig, several: list[SourceConfig] | None) -> list[SourceConfig]:
    """Return the sources that the settings mean: `one` told by single settings, or `several`, but not both."""
    if several is None:
        if not one.path:
            raise ConfigError(
                "data.path is missing: give --data.path, or write it into a --config file (or data.sources)"
            )
        return [one]
    if not several:
        raise ConfigError("data.sources is empty: give at least one source, or data.path")
    default = SourceConfig(path="")
    for field, value in vars(one).items():
        if value != getattr(default, field):
            raise ConfigError(f"data.{field}={value!r} has no effect beside data.sources: give it within the sources")
    return several


def repeated(windows: Windows, documents: list[int], weights: list[float], seed: int) -> Windows:
    """Return the windows of an epoch, those of source k `weights[k]` times; it has `documents[k]` documents."""
    if all(weight == 1.0 for weight in weights):
        return windows
    chosen = []
    first = 0
    for number, (size, weight) in enumerate(zip(documents, weights, strict=True)):
        mine = np.flatnonzero((windows.document >= first) & (windows.document < first + size))
        order = random_order(counter_generator(seed, number, size, 3), size)
        kept = np.zeros(size, dtype=np.bool_)
        kept[order[: round((weight % 1.0) * size)]] = True
        chosen += [mine] * int(weight) + [mine[kept[windows.document[mine] - first]]]
        first += size
    return windows.take(np.sort(np.concatenate(chosen), kind="stable"))
