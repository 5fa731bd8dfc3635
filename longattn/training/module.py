"""The Lightning module: a task model, its loss weighted by tokens, its optimizer, and what it logs."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim import Optimizer

from longattn.data import TextDataModule
from longattn.errors import ConfigError
from longattn.kernels.native import reuse_cpu_memory
from longattn.models import EncoderConfig, TaskModel, task_model
from longattn.nn.position import Position, positions
from longattn.nn.recompute import ActivationCheckpointing
from longattn.patterns import Pattern
from longattn.training.architecture import ArchitectureConfig
from longattn.training.callbacks.throughput import ends_optimizer_step
from longattn.training.checkpoint import check_checkpoint, plain_arguments
from longattn.training.metrics import TaskMetrics, build_metrics
from longattn.training.optimizer import OptimizerConfig, build_optimizer, check_optimizer
from longattn.training.precision import warn_if_slow
from longattn.training.schedule import ScheduleConfig, build_scheduler

MODEL_INPUTS = ("input_ids", "attention_mask", "global_attention_mask", "document_ids", "position_ids", "labels")
"""The entries of a batch that a model takes; the others are about the batch."""

GroupT = TypeVar("GroupT")

PositionName = str
if not TYPE_CHECKING:
    PositionName = Literal[tuple(sorted(positions()))]  # so that the command line knows names from classes


class EncoderModule(LightningModule):
    """Trains a task model on the batches of a TextDataModule.

    A step's gradient is that of (sum of losses) / (labels) over the whole optimizer step: all ranks, all micro-batches.
    However the step is split, each label weighs the same. The batch's `loss_denominator` tells the number of labels.
    """

    def __init__(
        self,
        task: str = "masked_language_model",
        pattern: Pattern | None = None,
        layer_patterns: list[Pattern] | None = None,
        kernel: str = "auto",
        vocab_size: int | None = None,
        d_model: int = EncoderConfig.d_model,
        num_heads: int = EncoderConfig.num_heads,
        num_layers: int = EncoderConfig.num_layers,
        d_ff: int = EncoderConfig.d_ff,
        position: Position | PositionName = "rope",
        architecture: ArchitectureConfig = ArchitectureConfig(),  # noqa: B008  frozen
        optimizer: Literal["adamw", "sgd", "none"] = "adamw",
        learning_rate: float = 5e-4,
        optimization: OptimizerConfig = OptimizerConfig(),  # noqa: B008  frozen
        schedule: ScheduleConfig = ScheduleConfig(),  # noqa: B008  frozen
        compile: bool = False,
        activation_checkpointing: ActivationCheckpointing = "none",
    ) -> None:
        """Check the settings; the weights are made in `configure_model`, when the data are known.

        Args:
            task: What to train for: masked_language_model.
            pattern: Who sees whom, in every layer: a class of longattn.patterns, such as SlidingWindow; Dense if
                neither this nor layer_patterns is given.
            layer_patterns: Patterns of the layers instead of `pattern`: one per layer, or a shorter cycle that repeats.
            kernel: How attention is computed: auto, or a name that `longattn.kernels.available()` lists.
            vocab_size: Tokens in the vocabulary, at least those of the tokenizer; None = exactly those.
            d_model: Width of the hidden states.
            num_heads: Attention heads; must divide d_model.
            num_layers: Encoder layers.
            d_ff: Hidden units of each feed-forward.
            position: Position scheme: learned, sinusoidal, rope, alibi or none; or a class of longattn.nn with settings
                of its own, such as Rope.
            architecture: How the layers are built.
            optimizer: adamw, sgd, or none (forward and backward alone, for measuring).
            learning_rate: Peak learning rate, per optimizer step.
            optimization: Further settings of the optimizer.
            schedule: How the learning rate goes over the run.
            compile: Whether torch.compile builds the network.
            activation_checkpointing: What to compute again in the backward pass: none, selective, attention or
                layer.
        """
        super().__init__()
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        check_optimizer(optimizer, learning_rate)
        self._model_class = task_model(task)
        self._fields: dict[str, Any] = {
            "d_model": d_model,
            "num_heads": num_heads,
            "num_layers": num_layers,
            "d_ff": d_ff,
            "pattern": pattern,
            "layer_patterns": layer_patterns,
            "position": position,
            "kernel": kernel,
            **dataclasses.asdict(_group(ArchitectureConfig, architecture)),
        }
        self.encoder_config(vocab_size=1 if vocab_size is None else vocab_size)  # raises what is wrong, before any data
        self._vocab_size = vocab_size
        self._pad_token_id: int | None = None
        self._tokenizer: str | None = None
        self._optimizer_name = optimizer
        self._learning_rate = learning_rate
        self._optimization = _group(OptimizerConfig, optimization)
        self.schedule = _group(ScheduleConfig, schedule)
        self._compile = compile
        self._activation_checkpointing = activation_checkpointing
        self._metrics: dict[str, TaskMetrics] = {stage: build_metrics(task) for stage in ("train", "val", "test")}
        self.network: TaskModel | None = None
        self.save_hyperparameters(plain_arguments(arguments), logger=False)

    def encoder_config(self, vocab_size: int, pad_token_id: int | None = None) -> EncoderConfig:
        """Return the architecture for a vocabulary of `vocab_size` tokens; ConfigError says what is wrong with it."""
        return EncoderConfig(vocab_size=vocab_size, pad_token_id=pad_token_id, **self._fields)

    @property
    def uses_globals(self) -> bool:
        """Whether a pattern of the model looks at global tokens."""
        return self.encoder_config(vocab_size=1).uses_globals

    def setup(self, stage: str) -> None:
        """Take over from the data what the network depends on."""
        device = self.trainer.strategy.root_device
        if device.type == "cpu":
            reuse_cpu_memory()
        warn_if_slow(str(self.trainer.precision), device)
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, TextDataModule):
            return
        needed = data.tokenizer.vocab_size
        if self._vocab_size is None:
            self._vocab_size = needed
        elif self._vocab_size < needed:
            raise ConfigError(
                f"model.vocab_size {self._vocab_size} is smaller than the tokenizer's {needed} tokens: leave it out, "
                f"or give at least {needed}"
            )
        data.resolve_global_tokens(self.uses_globals)
        self._pad_token_id = data.tokenizer.special.pad
        self._tokenizer = data.tokenizer.fingerprint

    def configure_model(self) -> None:
        """Make the network, once; its initial weights are a function of the seed and the architecture alone."""
        if self.network is not None:
            return
        if self._vocab_size is None:
            raise ConfigError("vocab_size is not known: give it, or train with a TextDataModule")
        config = self.encoder_config(self._vocab_size, self._pad_token_id)
        self.hparams["vocab_size"] = self._vocab_size
        # What the data have drawn from the global generator must not change the weights.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch.initial_seed())
            network = self._model_class(config)
        network.encoder.activation_checkpointing = self._activation_checkpointing
        if self._compile:
            network.compile()
        self.network = network

    def forward(self, **inputs: Any) -> Any:
        """Return the output of the task model for its inputs, the entries of a batch."""
        assert self.network is not None, "configure_model makes the network"
        return self.network(**inputs)

    def _output(self, batch: dict[str, Any]) -> Any:
        return self(**{name: batch[name] for name in MODEL_INPUTS if name in batch})

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the micro-batch's part of the step's loss, scaled so that Lightning's averaging cancels."""
        output = self._output(batch)
        self._metrics["train"].update(output, batch)
        self._last_of_step = ends_optimizer_step(self.trainer, batch_idx)
        # Lightning divides by the micro-batches of a step, and DDP, FSDP and ZeRO average over the ranks.
        averaged_over = self.trainer.world_size * self.trainer.accumulate_grad_batches
        loss: Tensor = output.loss_sum * (averaged_over / batch["loss_denominator"])
        return loss

    def on_train_start(self) -> None:
        self._metrics["train"].to(self.device)
        self._metrics["train"].reset()

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Log the step's numbers, once all its micro-batches are in."""
        if not self._last_of_step:  # DeepSpeed calls this for each micro-batch
            return
        metrics = self._metrics["train"]
        self.log_dict({f"train/{name}": value for name, value in metrics.compute().items()}, prog_bar=True)
        metrics.reset()
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        if gradients:
            self.log("gradient_norm", torch.nn.utils.get_total_norm(gradients).float())
        if optimizer.param_groups:
            rate = torch.tensor(optimizer.param_groups[0]["lr"], dtype=torch.float64)
            self.log("learning_rate", rate, prog_bar=True)

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self._metrics["val"].update(self._output(batch), batch)

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self._metrics["test"].update(self._output(batch), batch)

    def on_validation_epoch_start(self) -> None:
        self._start("val")

    def on_test_epoch_start(self) -> None:
        self._start("test")

    def on_validation_epoch_end(self) -> None:
        self._finish("val")

    def on_test_epoch_end(self) -> None:
        self._finish("test")

    def _start(self, stage: str) -> None:
        self._metrics[stage].to(self.device)
        self._metrics[stage].reset()

    def _finish(self, stage: str) -> None:
        # torchmetrics has put the ranks' sums together already.
        values = self._metrics[stage].compute()
        self.log_dict({f"{stage}/{name}": value for name, value in values.items()}, prog_bar=True)

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, list[Any]]:
        """Return columns of counts and sums, one entry per segment of the batch, and the segment's document."""
        sums = self._metrics["test"].document_sums(self._output(batch), batch)
        return {"document": batch["document_index"].tolist(), **{name: value.tolist() for name, value in sums.items()}}

    def finish_prediction(self, sums: dict[str, Any]) -> dict[str, Any]:
        """Return the row of a document from the sums over its windows."""
        return self._metrics["test"].document_row(sums)

    def configure_optimizers(self) -> Any:
        optimizer = build_optimizer(self, self._optimizer_name, self._learning_rate, self._optimization)
        if optimizer is None:
            return None
        steps = self.trainer.estimated_stepping_batches
        schedule = self.schedule.resolve(int(steps) if math.isfinite(steps) else None)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": build_scheduler(optimizer, schedule), "interval": "step"},
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        assert self.network is not None
        checkpoint["longattn"] = {
            "task": self._model_class.task,
            "encoder": self.network.config.to_dict(),
            "tokenizer": self._tokenizer,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.configure_model()
        assert self.network is not None
        check_checkpoint(checkpoint, self.network, self._tokenizer, set(self.state_dict()))


def _group(group: type[GroupT], value: Any) -> GroupT:
    """Return `value` as a `group`; a checkpoint holds its fields as a dictionary."""
    return value if isinstance(value, group) else group(**value)
