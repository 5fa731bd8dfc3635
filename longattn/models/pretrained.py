"""Saves a model as a folder of config.json and model.safetensors, and loads it again."""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from longattn.errors import ConfigError

if TYPE_CHECKING:
    from longattn.models.config import EncoderConfig

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
MODEL_TYPE = "longattn"
FORMAT_VERSION = 1


class SavesItself(Protocol):
    """A tokenizer that writes its files into a folder, as that of longattn does."""

    def save(self, folder: str, /) -> Any:
        """Write all files into `folder`."""
        ...


@runtime_checkable
class SavesPretrained(Protocol):
    """A tokenizer that writes its files into a folder, as those of transformers do."""

    def save_pretrained(self, folder: str, /) -> Any:
        """Write all files into `folder`."""
        ...


class Pretrained(nn.Module, ABC):
    """Gives a model `save_pretrained` and `from_pretrained`."""

    config: EncoderConfig

    part_prefix: ClassVar[str | None] = None
    """Where this model sits inside larger ones, so that it can be loaded out of their folders."""

    @classmethod
    @abstractmethod
    def from_parts(cls, config: EncoderConfig, head: dict[str, Any]) -> Self:
        """Build the model from its encoder's config and the options of its head."""

    @property
    def head_options(self) -> dict[str, Any]:
        """Options of the head besides the encoder's config: plain values that `from_parts` takes."""
        return {}

    @property
    def tied_weights(self) -> dict[str, str]:
        """Names of parameters that are the same tensor as another one: {name: name of the one that is saved}."""
        return {}

    def tie_weights(self) -> None:
        """Make the parameters of `tied_weights` the same tensors again."""

    def save_pretrained(self, folder: str | Path, tokenizer: SavesItself | SavesPretrained | None = None) -> None:
        """Write config.json, model.safetensors and the tokenizer's files into `folder`.

        Nothing half-written is ever seen under the final names. Tied weights are stored once.
        """
        folder = Path(folder).resolve()
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"cannot save a model into {str(folder)!r}: it is a file, not a folder")
        staging = folder.parent / f".{folder.name}.{os.getpid()}.tmp"
        shutil.rmtree(staging, ignore_errors=True)  # of a process with the same number that was killed here
        staging.mkdir(parents=True)
        try:
            self._write(staging, tokenizer)
            _move_into_place(staging, folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _write(self, folder: Path, tokenizer: SavesItself | SavesPretrained | None) -> None:
        if tokenizer is not None:
            save = tokenizer.save_pretrained if isinstance(tokenizer, SavesPretrained) else tokenizer.save
            save(str(folder))
        tied = self.tied_weights
        tensors = {
            name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items() if name not in tied
        }
        save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        encoder = self.config.to_dict()
        del encoder["kernel"]  # how to compute is chosen where the model is used
        description = {
            "model_type": MODEL_TYPE,
            "architectures": [type(self).__name__],
            "format_version": FORMAT_VERSION,
            "encoder": encoder,
            "head": self.head_options,
        }
        (folder / CONFIG_FILE).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def from_pretrained(cls, path: str | Path, *, kernel: str = "auto") -> Self:
        """Return the model saved in the folder `path`, in evaluation mode, with the dtypes it was saved in.

        `kernel` names how attention is computed. An `Encoder` is also found inside a task model's folder. ConfigError
        says in one line what is missing, damaged, foreign or does not fit; weights are never left random.
        """
        folder = Path(path)
        description = _read_description(folder)
        config = _read_config(folder, description, kernel)
        stored = _architecture(folder, description)
        prefix = ""
        if stored != cls.__name__:
            if cls.part_prefix is None:
                raise ConfigError(f"{str(folder)!r} holds a model of class {stored}, not {cls.__name__}")
            prefix = cls.part_prefix
        tensors = _read_tensors(folder / WEIGHTS_FILE, prefix)
        head = {} if prefix else dict(description.get("head", {}))
        with torch.device("meta"):  # draws no random numbers and fills no memory
            model = cls.from_parts(config, head)
        tied = model.tied_weights
        expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
        _check_tensors(folder, tensors, expected, tied)
        tensors.update({name: tensors[source] for name, source in tied.items()})
        model.load_state_dict(tensors, assign=True)
        model.tie_weights()
        return model.eval()


def _move_into_place(staging: Path, folder: Path) -> None:
    files = [file for file in staging.rglob("*") if file.is_file()]
    for file in files:
        with file.open("rb+") as handle:
            os.fsync(handle.fileno())
    if not folder.exists():
        staging.rename(folder)
        return
    for file in sorted(
        files, key=lambda file: file.name == CONFIG_FILE
    ):  # the config last: it makes the folder a model
        target = folder / file.relative_to(staging)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)


def _read_description(folder: Path) -> dict[str, Any]:
    if not folder.exists():
        raise ConfigError(
            f"there is no model folder {str(folder)!r}; checkpoints of the Hugging Face hub are imported by "
            "`longattn convert`"
        )
    if not (folder / CONFIG_FILE).is_file():
        raise ConfigError(f"{str(folder)!r} is no model folder: it has no {CONFIG_FILE}")
    try:
        description = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{str(folder / CONFIG_FILE)!r} is not JSON ({error})") from error
    model_type = description.get("model_type") if isinstance(description, dict) else None
    if not isinstance(description, dict) or model_type != MODEL_TYPE:
        raise ConfigError(
            f"{str(folder)!r} holds a model of type {model_type!r}, not {MODEL_TYPE!r}: import checkpoints of "
            "transformers by `longattn convert`"
        )
    version = description.get("format_version")
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"{str(folder)!r} has format_version {version!r}, this longattn reads {FORMAT_VERSION}: use the version "
            "that wrote it"
        )
    return description


def _architecture(folder: Path, description: dict[str, Any]) -> str:
    names = description.get("architectures")
    if not isinstance(names, list) or len(names) != 1:
        raise ConfigError(f"{str(folder / CONFIG_FILE)!r} must name one class in 'architectures', got {names!r}")
    return str(names[0])


def _read_config(folder: Path, description: dict[str, Any], kernel: str) -> EncoderConfig:
    from longattn.models.config import EncoderConfig

    encoder = description.get("encoder")
    if not isinstance(encoder, dict):
        raise ConfigError(f"{str(folder / CONFIG_FILE)!r} must hold a dictionary 'encoder', got {encoder!r}")
    try:
        return EncoderConfig.from_dict({**encoder, "kernel": kernel})
    except ConfigError as error:
        raise ConfigError(f"{str(folder / CONFIG_FILE)!r}: {error}") from error


def _read_tensors(file: Path, prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose name starts with `prefix`, without it."""
    if not file.is_file():
        raise ConfigError(f"{str(file.parent)!r} has no {WEIGHTS_FILE}")
    try:
        with safe_open(file, framework="pt") as stored:
            # Cloned, so that the model does not hang on a file that may be replaced.
            return {
                name.removeprefix(prefix): stored.get_tensor(name).clone()
                for name in stored.keys()  # noqa: SIM118  (not a dictionary)
                if name.startswith(prefix)
            }
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{str(file)!r} is damaged or cut short ({error}): copy or save it again") from error


def _check_tensors(
    folder: Path, tensors: dict[str, Tensor], expected: dict[str, torch.Size], tied: dict[str, str]
) -> None:
    """Raise ConfigError unless `tensors` are those expected, tied ones aside; drops tied ones that are stored too."""
    for name, source in tied.items():
        copy = tensors.pop(name, None)
        if copy is not None and source in tensors and not torch.equal(copy, tensors[source]):
            raise ConfigError(f"{str(folder)!r}: {name} differs from {source}, but the config ties them (tie_decoder)")
    missing = [name for name in expected if name not in tensors and name not in tied]
    unexpected = [name for name in tensors if name not in expected]
    if missing or unexpected:
        parts = [
            f"{what} {_listed(names)}" for what, names in (("misses", missing), ("has unexpected", unexpected)) if names
        ]
        raise ConfigError(
            f"{str(folder / WEIGHTS_FILE)!r} {' and '.join(parts)}: the weights are not those of {CONFIG_FILE}"
        )
    for name, tensor in tensors.items():
        if tensor.shape != expected[name]:
            raise ConfigError(
                f"{str(folder / WEIGHTS_FILE)!r}: {name} has shape {tuple(tensor.shape)}, {CONFIG_FILE} asks for "
                f"{tuple(expected[name])}"
            )


def _listed(names: list[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
