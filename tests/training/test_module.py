"""The Lightning module: exact weighting by tokens, reproducible curves, and checkpoints of plain values."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from longattn.errors import ConfigError
from longattn.patterns import BigBird, BlockSparse, Dense, Fixed, Longformer, SlidingWindow, Strided
from longattn.training.architecture import ArchitectureConfig
from longattn.training.callbacks import SaveCheckpoints, Throughput
from longattn.training.module import EncoderModule
from longattn.training.optimizer import OptimizerConfig
from longattn.training.run import RunFolder

PATTERNS = [
    Dense(),
    SlidingWindow(radius=4),
    Longformer(radius=4),
    BigBird(block_size=8),
    BlockSparse([[abs(i - j) <= 1 for j in range(8)] for i in range(8)], block_size=8),
    Strided(stride=8),
    Fixed(stride=8, summary=2),
]


def test_accumulation_weighs_tokens_and_not_micro_batches(fit):
    """Case B34: one batch of two very uneven documents against two micro-batches of one each."""
    whole, whole_numbers = fit(steps=4, optimizer="sgd", data={"batch_size": 2})
    parts, parts_numbers = fit(steps=4, optimizer="sgd", data={"batch_size": 1}, trainer={"accumulate_grad_batches": 2})
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    for name in ("train/loss", "train/perplexity", "train/masked_accuracy", "gradient_norm"):
        assert parts_numbers.column(name) == pytest.approx(whole_numbers.column(name), rel=1e-5)


def test_the_logged_loss_is_the_mean_over_the_labels_of_the_step(make_data, make_trainer):
    """Case B34: neither multiplied by the micro-batches nor a mean of their means."""
    losses: list[float] = []
    counts: list[int] = []

    class Module(EncoderModule):
        def forward(self, **inputs):
            output = super().forward(**inputs)
            losses.append(output.loss.item())
            counts.append(int(output.label_count))
            return output

    module = Module(
        d_model=16, num_heads=2, num_layers=1, d_ff=16, architecture=ArchitectureConfig(initializer_range=1.0)
    )
    trainer = make_trainer(max_steps=1, accumulate_grad_batches=4)
    trainer.fit(module, make_data(batch_size=1, bucket_batches=1))
    assert len(set(counts)) > 1, "the documents must be uneven for this test to mean something"
    weighted = sum(loss * count for loss, count in zip(losses, counts, strict=True)) / sum(counts)
    assert float(trainer.callback_metrics["train/loss"]) == pytest.approx(weighted, rel=1e-6)
    assert sum(losses) / len(losses) != pytest.approx(weighted, rel=1e-3)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: type(pattern).__name__)
def test_every_pattern_learns(fit, pattern):
    _, numbers = fit(steps=30, pattern=pattern)
    loss = numbers.column("train/loss")
    assert sum(loss[-5:]) / 5 < sum(loss[:3]) / 3 - 0.5


def test_the_same_seed_gives_bitwise_the_same_losses(fit):
    first = fit(steps=6, architecture=ArchitectureConfig(dropout=0.1, attention_dropout=0.1), kernel="reference")[1]
    second = fit(steps=6, architecture=ArchitectureConfig(dropout=0.1, attention_dropout=0.1), kernel="reference")[1]
    assert first.column("train/loss") == second.column("train/loss")


def test_a_window_as_wide_as_the_document_is_dense(fit):
    dense = fit(steps=20, pattern=Dense())[1]
    window = fit(steps=20, pattern=SlidingWindow(radius=64))[1]
    assert window.column("train/loss") == pytest.approx(dense.column("train/loss"), abs=1e-4)


@pytest.mark.parametrize("pattern", [SlidingWindow(radius=4), Longformer(radius=4), BigBird(block_size=8)])
def test_two_kernels_give_the_same_curve(fit, pattern):
    chunked = fit(steps=20, pattern=pattern, kernel="chunked")[1]
    reference = fit(steps=20, pattern=pattern, kernel="reference")[1]
    assert chunked.column("train/loss") == pytest.approx(reference.column("train/loss"), abs=1e-3)


def test_initial_weights_depend_on_the_seed_alone(fit):
    small, _ = fit(steps=1, optimizer="none", data={"batch_size": 1})
    large, _ = fit(steps=1, optimizer="none", data={"batch_size": 4}, pattern=SlidingWindow(radius=4))
    for name, value in small.state_dict().items():
        assert torch.equal(large.state_dict()[name], value)


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed", "32-true"])
def test_precisions_train(fit, precision):
    module, numbers = fit(steps=20, pattern=SlidingWindow(radius=4), trainer={"precision": precision})
    loss = numbers.column("train/loss")
    assert all(map(math.isfinite, loss))
    assert loss[-1] < loss[0]
    wanted = torch.bfloat16 if precision == "bf16-true" else torch.float32
    assert {parameter.dtype for parameter in module.parameters()} == {wanted}


def test_metrics_keep_their_precision_when_the_model_is_turned_into_bf16(make_module):
    module = make_module().to(torch.bfloat16)
    assert module._metrics["train"]._sums.sums.dtype == torch.float64


def test_activation_checkpointing_changes_no_number(fit):
    kept = fit(steps=4, architecture=ArchitectureConfig(dropout=0.1))[1]
    again = fit(steps=4, architecture=ArchitectureConfig(dropout=0.1), activation_checkpointing="layer")[1]
    assert again.column("train/loss") == pytest.approx(kept.column("train/loss"), rel=1e-6)


def test_gradients_are_clipped_and_the_norm_before_is_logged(fit):
    module, numbers = fit(
        steps=1,
        optimizer="sgd",
        learning_rate=1.0,
        optimization=OptimizerConfig(weight_decay=0.0),
        trainer={"gradient_clip_val": 0.01},
    )
    start, _ = fit(steps=1, optimizer="none")
    moved = torch.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(module.parameters(), start.parameters(), strict=True)))
    assert numbers.column("gradient_norm")[0] > 0.1
    assert float(moved) == pytest.approx(0.01, rel=1e-3)


def test_every_number_that_people_watch_is_logged_per_step(fit):
    _, numbers = fit(steps=2, trainer={})
    for name in ("train/loss", "train/perplexity", "train/masked_accuracy", "learning_rate", "gradient_norm"):
        assert math.isfinite(numbers.column(name)[0])
    assert numbers.column("train/perplexity")[0] == pytest.approx(math.exp(numbers.column("train/loss")[0]), rel=1e-6)


def test_throughput_counts_real_tokens_of_all_micro_batches(make_data, make_module, make_trainer):
    seen: list[int] = []
    slots: list[int] = []

    class Module(EncoderModule):
        def training_step(self, batch, batch_idx):
            seen.append(int(batch["attention_mask"].sum()))
            slots.append(batch["attention_mask"].numel())
            return super().training_step(batch, batch_idx)

    trainer = make_trainer(max_steps=1, accumulate_grad_batches=3, callbacks=[Throughput()])
    trainer.fit(Module(d_model=8, num_heads=2, num_layers=1, d_ff=8), make_data())
    assert len(seen) == 3
    assert float(trainer.callback_metrics["packing_efficiency"]) == pytest.approx(sum(seen) / sum(slots))
    assert 0 < float(trainer.callback_metrics["tokens_per_second"]) < sum(seen) * 1000
    assert 2**20 < float(trainer.callback_metrics["peak_memory_bytes"]) < 2**40


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_validation_loss_does_not_depend_on_the_batch_size(make_data, make_module, make_trainer, batch_size):
    """Case B61."""
    values = []
    for size in (2, batch_size):
        torch.manual_seed(0)
        trainer = make_trainer(limit_val_batches=1.0)
        data = make_data(evaluation_batch_size=size, validation_fraction=0.4)
        values.append(trainer.validate(make_module(), data, verbose=False)[0])
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    assert set(values[0]) == {"val/loss", "val/perplexity", "val/masked_accuracy"}


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused(fit):
    with pytest.raises(ConfigError, match=r"vocab_size 10 .* 300"):
        fit(steps=1, vocab_size=10)


def test_a_larger_vocabulary_is_kept(fit):
    module, _ = fit(steps=1, vocab_size=512)
    assert module.network.config.vocab_size == 512


def test_global_tokens_reach_the_model_where_the_pattern_has_them(fit):
    module, _ = fit(steps=1, pattern=Longformer(radius=2))
    assert module.uses_globals
    assert module.network.encoder.layers[0].attention.w_q_global.weight.grad is not None
    with pytest.raises(ConfigError, match="global_tokens='first'"):
        fit(steps=1, pattern=SlidingWindow(radius=2), data={"global_tokens": "first"})


def plain(value) -> bool:
    if isinstance(value, dict):
        return all(plain(key) and plain(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(plain(part) for part in value)
    return value is None or type(value) in (int, float, str, bool, torch.Tensor)


def test_a_checkpoint_holds_plain_values_and_gives_the_module_back(tmp_path, make_data, make_module, make_trainer):
    """Case B69."""
    folder = RunFolder(tmp_path)
    module = make_module(
        layer_patterns=[Longformer(radius=4), BigBird(block_size=8)], position="alibi", kernel="reference"
    )
    trainer = make_trainer(max_steps=2, callbacks=[SaveCheckpoints(folder, 1)], enable_checkpointing=True)
    trainer.fit(module, make_data())
    assert [path.name for path in sorted(folder.checkpoints.iterdir())] == ["step_00000001.ckpt", "step_00000002.ckpt"]
    checkpoint = torch.load(folder.checkpoint_of(2), weights_only=True)
    assert plain({name: value for name, value in checkpoint.items() if name != "state_dict"})
    loaded = EncoderModule.load_from_checkpoint(folder.checkpoint_of(2), weights_only=True)
    assert dataclasses.replace(loaded.network.config, pad_token_id=0) == module.network.config
    for name, value in module.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d_ff": 64}, "d_ff 32 .here 64."),
        ({"num_heads": 4}, "num_heads"),
        ({"position": "alibi"}, "position"),
        ({"pattern": Longformer(radius=4)}, "weights do not fit.*missing"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_by_name(
    tmp_path, make_data, make_module, make_trainer, change, message
):
    folder = RunFolder(tmp_path)
    make_trainer(max_steps=1, callbacks=[SaveCheckpoints(folder, None)], enable_checkpointing=True).fit(
        make_module(), make_data()
    )
    with pytest.raises(ConfigError, match=message):
        make_trainer(limit_val_batches=1).validate(
            make_module(**change), make_data(), ckpt_path=str(folder.checkpoint_of(1)), verbose=False
        )


def test_another_pattern_with_the_same_weights_is_allowed_and_said(
    tmp_path, make_data, make_module, make_trainer, caplog
):
    folder = RunFolder(tmp_path)
    make_trainer(max_steps=1, callbacks=[SaveCheckpoints(folder, None)], enable_checkpointing=True).fit(
        make_module(), make_data()
    )
    make_trainer(limit_val_batches=1).validate(
        make_module(pattern=SlidingWindow(radius=2)), make_data(), ckpt_path=str(folder.checkpoint_of(1)), verbose=False
    )
    assert "another pattern" in caplog.text
