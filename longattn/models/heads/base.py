"""What a task model is: an encoder and a head, trained for one task."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

from torch import Tensor

from longattn.discovery import classes_in, nearest
from longattn.errors import ConfigError
from longattn.models.config import EncoderConfig
from longattn.models.encoder import Encoder
from longattn.models.pretrained import Pretrained


class TaskModel(Pretrained):
    """An encoder with a head. A subclass in a file of this folder is found by its `task`.

    Its constructor takes the EncoderConfig and, by keyword, the options of its own head (such as a number of labels);
    `forward` takes the arguments of `Encoder.forward` and `labels`, and returns a named tuple with `loss`, `loss_sum`,
    `label_count` (None without labels) and `logits` (which may be None with labels).
    """

    task: ClassVar[str]
    """Name of the task, as in `--model.task`."""

    encoder: Encoder

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)

    @abstractmethod
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> Any:
        """Return the task's output; see `Encoder.forward` for the inputs, `labels` are the task's own."""

    @classmethod
    def from_parts(cls, config: EncoderConfig, head: dict[str, Any]) -> Self:
        return cls(config, **head)


def tasks() -> dict[str, type[TaskModel]]:
    """Return every task model of this folder by the name of its task."""
    return {model.task: model for model in classes_in("longattn.models.heads", TaskModel).values()}  # type: ignore[type-abstract]


def task_model(task: str) -> type[TaskModel]:
    """Return the model class of `task`; ConfigError names the tasks there are."""
    known = tasks()
    if task not in known:
        raise ConfigError(f"task {task!r} is unknown{nearest(task, known)}: choose one of {', '.join(sorted(known))}")
    return known[task]
