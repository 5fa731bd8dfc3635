"""MaskedLanguageModel: loss at labelled positions, tied weights, and no NaN anywhere."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch.nn import functional

from longattn.errors import ConfigError
from longattn.models import EncoderConfig, MaskedLanguageModel, TaskModel, task_model, tasks
from longattn.nn.recompute import ActivationCheckpointing
from longattn.patterns import BigBird, Causal, Dense, Longformer, SlidingWindow


def _labels(ids, share=0.3, seed=4):
    chosen = torch.rand(ids.shape, generator=torch.Generator().manual_seed(seed)) < share
    return ids.masked_fill(~chosen, -100)


def test_is_found_by_its_task():
    assert tasks()["masked_language_model"] is MaskedLanguageModel
    assert task_model("masked_language_model") is MaskedLanguageModel
    with pytest.raises(
        ConfigError, match=r"task 'masked_language_modle' is unknown .did you mean 'masked_language_model'"
    ):
        task_model("masked_language_modle")
    assert all(issubclass(model, TaskModel) for model in tasks().values())


@pytest.mark.parametrize("tie_decoder", [True, False])
def test_loss_and_gradients_equal_those_of_all_logits(small_model, tokens, tie_decoder):
    model, ids = (
        small_model(dtype=torch.float64, pattern=SlidingWindow(radius=2), tie_decoder=tie_decoder),
        tokens(3, 17),
    )
    labels = _labels(ids)
    out = model(ids, labels=labels)
    logits = model(ids).logits
    assert logits.shape == (3, 17, 40)
    wanted = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(out.loss, wanted, rtol=0, atol=1e-12)
    parameters = list(model.parameters())
    for got, expected in zip(
        torch.autograd.grad(out.loss, parameters), torch.autograd.grad(wanted, parameters), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_losses_of_labelled_positions_say_where_they_belong(small_model, tokens):
    model, ids = small_model(dtype=torch.float64), tokens(3, 17)
    labels = _labels(ids)
    out = model(ids, labels=labels)
    count = int((labels != -100).sum())
    assert out.logits is None
    assert out.losses.shape == (count,)
    assert not out.losses.requires_grad
    assert out.label_count == count
    entry, token = out.label_positions.unbind(1)
    assert torch.equal(labels[entry, token], labels[labels != -100])
    logits = model(ids).logits[entry, token]
    wanted = functional.cross_entropy(logits, labels[entry, token], reduction="none")
    torch.testing.assert_close(out.losses, wanted, rtol=0, atol=1e-12)
    assert torch.equal(out.predictions, logits.argmax(-1))
    torch.testing.assert_close(out.loss_sum, out.loss * count)


def test_vocabulary_projection_runs_at_labelled_positions_only(small_model, tokens):
    model, ids = small_model(), tokens(2, 17)
    rows = []
    model.decoder.register_forward_hook(lambda _, inputs, __: rows.append(inputs[0].shape[:-1].numel()))
    labels = _labels(ids)
    model(ids, labels=labels)
    assert rows == [int((labels != -100).sum())]


def test_token_zero_counts_as_a_label(small_model, tokens):
    """Case B31 (c)."""
    labels = torch.full((1, 5), -100)
    labels[0, 2] = 0
    out = small_model()(tokens(1, 5), labels=labels)
    assert out.label_count == 1
    assert out.loss > 0


@pytest.mark.parametrize(
    "pattern", [Dense(), SlidingWindow(radius=2), Longformer(radius=2), BigBird(block_size=4)], ids=repr
)
@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("checkpointing", get_args(ActivationCheckpointing))
def test_every_parameter_gets_a_finite_gradient(small_model, tokens, pattern, labelled, checkpointing):
    """Cases B42 and B31 (b): with and without labels, global tokens, checkpointing."""
    model, ids = small_model(pattern=pattern, position="learned", tie_decoder=False).train(), tokens(2, 9)
    model.encoder.activation_checkpointing = checkpointing
    out = model(ids, labels=_labels(ids) if labelled else torch.full_like(ids, -100))
    assert out.loss.isfinite()
    assert (out.loss > 0) == labelled
    out.loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("kernel", ["reference", "auto"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    "pattern",
    [Dense(), Causal(), SlidingWindow(radius=2), Longformer(radius=2), BigBird(block_size=4)],
    ids=lambda pattern: type(pattern).__name__,
)
def test_padding_only_rows_spread_no_nan(small_model, tokens, pattern, packed, dtype, kernel):
    """Case B12: one entry is all padding, one has a single real token far from most queries."""
    model, ids = small_model(pattern=pattern, dtype=dtype, kernel=kernel).train(), tokens(3, 32)
    real = torch.ones(3, 32, dtype=torch.bool)
    real[1], real[2, 1:] = False, False
    flags = torch.arange(32).expand(3, 32) == 0 if pattern.uses_globals else None
    documents = torch.zeros(3, 32, dtype=torch.int64) if packed else None
    out = model(ids, real, flags, documents, labels=ids)
    out.loss.backward()
    assert out.losses.isfinite().all()
    assert out.loss.isfinite()
    assert out.last_hidden_state.isfinite().all()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
    alone = model(ids[:1], None, None if flags is None else flags[:1], labels=ids[:1]).losses
    tolerance = 1e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(out.losses[:32], alone, rtol=0, atol=tolerance)


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
def test_loss_is_computed_in_fp32(small_model, tokens, precision):
    model, ids = small_model(pattern=Longformer(radius=2)), tokens(2, 17)
    exact = model(ids, labels=ids).loss
    flags = torch.zeros_like(ids)
    flags[0, 3] = 1
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
        lowered = model.to(torch.bfloat16) if precision == "bf16-true" else model
        out, with_globals = lowered(ids, labels=ids), lowered(ids, None, flags, labels=ids)
        assert lowered(ids).logits.dtype == torch.bfloat16
    assert out.losses.dtype == torch.float32
    assert out.loss.dtype == torch.float32
    torch.testing.assert_close(out.loss, exact, rtol=0.03, atol=0)
    with_globals.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("checkpointing", get_args(ActivationCheckpointing))
def test_compiled_model_computes_the_same(small_model, tokens, checkpointing):
    model, ids = small_model(pattern=Longformer(radius=2), dtype=torch.float64).train(), tokens(2, 17)
    model.encoder.activation_checkpointing = checkpointing
    flags = torch.zeros_like(ids)
    flags[0, 3] = 1
    results = []
    for compiled in (False, True):
        if compiled:
            model.compile(backend="aot_eager")
        model.zero_grad()
        loss = model(ids, None, flags, labels=_labels(ids)).loss
        loss.backward()
        results.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager, rtol=0, atol=1e-10)


def test_decoder_shares_its_weight_when_tied(small_model):
    tied, untied = small_model(), small_model(tie_decoder=False)
    assert tied.decoder.weight is tied.encoder.embeddings.token.weight
    assert untied.decoder.weight is not untied.encoder.embeddings.token.weight
    assert sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters()) == 40 * 16


def test_learns_to_look_up(tokens):
    """A document repeats itself after 8 tokens: what is hidden stands 8 tokens away, inside the window."""
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=40,
        d_model=32,
        num_heads=2,
        num_layers=2,
        d_ff=64,
        dropout=0.0,
        initializer_range=0.1,
        pattern=SlidingWindow(radius=8),
    )
    model = MaskedLanguageModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(120):
        ids = tokens(16, 8, seed=step).repeat(1, 3)
        labels = _labels(ids, share=0.1, seed=step)
        losses.append(model(ids.masked_fill(labels != -100, 0), labels=labels).loss)
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert torch.stack(losses[-10:]).mean() < 1.0  # uniform guessing gives ln 39 = 3.66


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(1, 4, dtype=torch.int64), r"shape of input_ids \(1, 5\), got torch.int64 \(1, 4\)"),
        (torch.zeros(1, 5), r"labels must be int64 .* got torch.float32"),
        (torch.full((1, 5), 40), r"\[0, vocab_size = 40\), got 40"),
        (torch.full((1, 5), -1), "got -1"),
    ],
)
def test_wrong_labels_are_named(small_model, tokens, labels, message):
    with pytest.raises(ConfigError, match=message):
        small_model()(tokens(1, 5), labels=labels)
