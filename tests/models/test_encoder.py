"""Encoder: what a document's hidden states depend on, and on what they do not."""

from __future__ import annotations

import gc
from typing import get_args

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import longattn.models.encoder
from longattn.errors import ConfigError
from longattn.models import Encoder
from longattn.models.encoder import document_starts
from longattn.nn import Learned, MultiHeadAttention
from longattn.nn.recompute import ActivationCheckpointing
from longattn.patterns import BigBird, BlockSparse, Causal, Dense, Fixed, Longformer, SlidingWindow, Strided

TRANSLATION_INVARIANT = [Dense(), Causal(), SlidingWindow(radius=3), SlidingWindow(radius=2, dilation=3)]
TRANSLATION_INVARIANT += [Longformer(radius=2), Strided(stride=4)]
PATTERNS = [*TRANSLATION_INVARIANT, BigBird(block_size=4, random_blocks=1), Fixed(stride=4, summary=1)]
POSITIONS = ["learned", "sinusoidal", "rope", "alibi", "none"]


def _padding(*lengths, total=None):
    return torch.arange(total or max(lengths)) < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@pytest.mark.parametrize("length", [1, 2, 8, 63])
def test_all_lengths_work_and_stay(small_model, tokens, pattern, length):
    out = small_model(model=Encoder, pattern=pattern)(tokens(2, length), output_hidden_states=True)
    assert out.last_hidden_state.shape == (2, length, 16)
    assert [tuple(state.shape) for state in out.hidden_states] == [(2, length, 16)] * 3
    assert out.last_hidden_state.isfinite().all()


@pytest.mark.parametrize("length", [8, 1315])
def test_window_wider_than_or_unequal_to_the_document(small_model, tokens, length):
    """Case B14."""
    windowed = small_model(pattern=SlidingWindow(radius=256), num_layers=1)
    ids = tokens(1, length)
    out = windowed(ids, labels=ids, output_hidden_states=True)
    assert out.last_hidden_state.shape[1] == length
    assert all(state.shape[1] == length for state in out.hidden_states)
    assert out.losses.shape == (length,)
    index = torch.arange(length)
    band = (index[:, None] - index).abs() <= 256
    masked = small_model(pattern=BlockSparse(band.numpy(), block_size=1), num_layers=1, kernel="reference")
    torch.testing.assert_close(out.loss, masked(ids, labels=ids).loss, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pattern", [SlidingWindow(radius=50), Longformer(radius=50), BigBird(block_size=64)], ids=repr)
@pytest.mark.parametrize("position", POSITIONS)
def test_pattern_that_sees_everything_equals_dense(small_model, tokens, pattern, position):
    ids, real = tokens(2, 50), _padding(50, 31)
    wide, dense = small_model(pattern=pattern, position=position), small_model(pattern=Dense(), position=position)
    state = dense.state_dict()
    wide.load_state_dict(state, strict=False)
    torch.testing.assert_close(wide(ids, real).logits[real], dense(ids, real).logits[real], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kernel", ["reference", "auto"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("pattern", [*TRANSLATION_INVARIANT, Fixed(stride=4, summary=1)], ids=repr)
def test_other_documents_and_padding_do_not_matter(small_model, tokens, pattern, position, kernel):
    """Case B15."""
    model = small_model(pattern=pattern, position=position, kernel=kernel)
    document = tokens(1, 37)
    alone = model(document).logits[0]
    for total in (100, 164):
        ids = tokens(2, total, seed=5)
        ids[0, :37] = document
        together = model(ids, _padding(37, 100, total=total)).logits
        torch.testing.assert_close(together[0, :37], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kernel", ["reference", "auto"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("pattern", TRANSLATION_INVARIANT, ids=repr)
def test_packed_documents_equal_separate_ones(small_model, tokens, pattern, position, kernel):
    model = small_model(pattern=pattern, position=position, dtype=torch.float64, kernel=kernel)
    first, second, third = tokens(1, 9), tokens(1, 14, seed=1), tokens(1, 20, seed=2)
    ids = torch.stack((torch.cat((first[0], second[0])), torch.cat((third[0], torch.full((3,), 39)))))
    document_ids = torch.tensor([[0] * 9 + [1] * 14, [5] * 20 + [-1] * 3])
    flags = None
    if pattern.uses_globals:
        flags = torch.zeros(2, 23, dtype=torch.bool)
        flags[0, [0, 9, 12]] = flags[1, 0] = True
    packed = model(ids, None, flags, document_ids).logits
    for row, start, document in ((0, 0, first), (0, 9, second), (1, 0, third)):
        part = slice(start, start + document.shape[1])
        own = None if flags is None else flags[row : row + 1, part]
        alone = model(document, None, own).logits[0]
        torch.testing.assert_close(packed[row, part], alone, rtol=0, atol=1e-10)


def test_attention_mask_and_document_ids_go_together(small_model, tokens):
    model, ids = small_model(pattern=SlidingWindow(radius=3)), tokens(1, 12)
    document_ids = torch.tensor([[0] * 5 + [1] * 7])
    real = torch.arange(12)[None] < 10
    both = model(ids, real, None, document_ids).logits
    one = model(ids, None, None, document_ids.masked_fill(~real, -1)).logits
    torch.testing.assert_close(both, one, rtol=0, atol=0)


@pytest.mark.parametrize("pattern", [SlidingWindow(radius=3), BigBird(block_size=4, random_blocks=1)], ids=repr)
def test_hidden_tokens_within_a_document_keep_their_positions(small_model, tokens, pattern):
    """One document in the row, said so or not, is the same."""
    model, ids = small_model(pattern=pattern), tokens(2, 30)
    real = torch.arange(30) < torch.tensor([[30], [22]])
    real[:, [0, 5, 6, 13]] = False
    silent = model(ids, real).logits
    said = model(ids, real, None, torch.zeros(2, 30, dtype=torch.int32)).logits
    torch.testing.assert_close(said[real], silent[real], rtol=0, atol=1e-5)


@pytest.mark.parametrize("position", POSITIONS)
def test_order_of_tokens_matters_with_positions_only(small_model, tokens, position):
    model, ids = small_model(position=position, dtype=torch.float64), tokens(2, 9)
    order = torch.tensor([3, 0, 8, 1, 7, 2, 6, 4, 5])
    shuffled_after, shuffled_before = model(ids).logits[:, order], model(ids[:, order]).logits
    assert torch.allclose(shuffled_after, shuffled_before, rtol=0, atol=1e-10) == (position == "none")


def test_positions_restart_with_each_document():
    starts = document_starts(torch.tensor([[3, 3, 3, 0, 0, 7], [1, 1, 1, 1, -1, -1]]))
    assert starts.tolist() == [[0, 0, 0, 3, 3, 5], [0, 0, 0, 0, 4, 4]]


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope"])
def test_position_ids_of_the_user_replace_the_counted_ones(small_model, tokens, position):
    model, ids = small_model(position=position, dtype=torch.float64), tokens(2, 6)
    counted = model(ids).logits
    torch.testing.assert_close(model(ids, position_ids=torch.arange(6).expand(2, 6)).logits, counted, rtol=0, atol=0)
    other = model(ids, position_ids=torch.tensor([[0, 1, 2, 3, 4, 9]] * 2)).logits
    assert not torch.allclose(other, counted, atol=1e-4)


@pytest.mark.parametrize("global_at", [0, None])
def test_global_token_reaches_everything_in_one_layer(small_model, tokens, global_at):
    """Case B08, through the whole model."""
    model, ids = small_model(pattern=Longformer(radius=2), num_layers=1), tokens(1, 64)
    flags = None
    if global_at is not None:
        flags = torch.zeros(1, 64, dtype=torch.int64)
        flags[0, global_at] = 1
    before = model(ids, None, flags).logits
    for changed, watched in ((60, 0), (0, 60)):
        other = ids.clone()
        other[0, changed] = 40 - other[0, changed]
        moved = not torch.equal(model(other, None, flags).logits[0, watched], before[0, watched])
        assert moved == (global_at is not None)


def test_dropout_acts_in_training_only(small_model, tokens):
    """Case B09."""
    dropping = small_model(dropout=0.5, attention_dropout=0.9)
    ids = tokens(1, 20)
    assert torch.equal(dropping(ids).logits, dropping(ids).logits)
    torch.testing.assert_close(dropping(ids).logits, small_model()(ids).logits, rtol=0, atol=1e-6)
    dropping.train()
    assert not torch.equal(dropping(ids).logits, dropping(ids).logits)


def test_eval_forward_leaves_the_random_state_alone(small_model, tokens):
    """Case B05."""
    model, ids = small_model(pattern=BigBird(block_size=4, random_blocks=2), attention_dropout=0.5), tokens(1, 64)
    state = torch.get_rng_state()
    first = model(ids).logits
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first, model(ids).logits)


@pytest.mark.parametrize("kernel", ["reference", "auto"])
@pytest.mark.parametrize(
    "pattern", [Dense(), Longformer(radius=2), BigBird(block_size=4)], ids=lambda pattern: type(pattern).__name__
)
def test_activation_checkpointing_changes_no_gradient(small_model, tokens, pattern, kernel):
    model = small_model(pattern=pattern, dropout=0.3, attention_dropout=0.3, kernel=kernel).train()
    ids = tokens(2, 21)
    flags = torch.arange(21).expand(2, 21) == 0 if pattern.uses_globals else None
    results = []
    for mode in get_args(ActivationCheckpointing):
        model.encoder.activation_checkpointing = mode
        model.zero_grad()
        torch.manual_seed(3)
        loss = model(ids, None, flags, labels=ids).loss
        loss.backward()
        results.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    for checkpointed in results[1:]:
        for plain, again in zip(results[0], checkpointed, strict=True):
            assert torch.equal(plain, again)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("norm_placement", ["pre", "post"])
def test_each_mode_keeps_less_than_the_one_before(small_model, tokens, norm_placement, autocast):
    """Counted in numbers per token and layer that outlive the forward pass."""
    ids, kept = tokens(1, 512), {}
    for mode in get_args(ActivationCheckpointing):
        model = small_model(num_layers=2, norm_placement=norm_placement, pattern=SlidingWindow(radius=2)).train()
        model.encoder.activation_checkpointing = mode
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            kept[mode] = _bytes_kept(model, ids) / (512 * 2 * 16 * 4)
    assert list(kept.values()) == sorted(kept.values(), reverse=True)
    saved = {mode: kept["none"] - numbers for mode, numbers in kept.items()}
    width = 0.5 if autocast else 1.0  # of what linear layers take and give, in numbers of fp32
    norms, attention = (2, 5) if norm_placement == "pre" else (1, 4)  # q, k, v, the output; pre-norm: their input too
    assert saved["selective"] >= 0.95 * norms * width
    assert saved["attention"] >= 0.8 * attention * width
    assert kept["layer"] <= 2.7, "the layer's input, and what the embeddings and the head keep"


def _bytes_kept(model, ids):
    """Return the bytes of all tensors made by a forward pass that are alive after it."""
    made = {}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            out = function(*arguments, **(keywords or {}))
            for tensor in out if isinstance(out, tuple | list) else (out,):
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
            return out

    with Watch():
        loss = model(ids, labels=torch.full_like(ids, -100)).loss
    gc.collect()
    assert loss.requires_grad
    return sum(size for reference, size in made.values() if not reference.expired())


def test_activation_checkpointing_runs_each_layer_again(small_model, tokens):
    model, ids = small_model(num_layers=3).train(), tokens(1, 9)
    calls = []
    for layer in model.encoder.layers:
        layer.register_forward_pre_hook(lambda *_: calls.append(1))
    model.encoder.activation_checkpointing = "layer"
    model(ids, labels=ids).loss.backward()
    assert len(calls) == 6


def test_each_distinct_pattern_is_bound_once(small_model, tokens, monkeypatch):
    bound, original = [], longattn.models.encoder.bind_attention

    def spy(pattern, **options):
        bound.append(pattern)
        return original(pattern, **options)

    monkeypatch.setattr(longattn.models.encoder, "bind_attention", spy)
    window = SlidingWindow(radius=2)
    small_model(num_layers=6, layer_patterns=(Dense(), window, window))(tokens(1, 9))
    assert bound == [Dense(), window]


def test_each_layer_has_its_own_pattern_and_the_kernel(small_model, tokens, monkeypatch):
    """The kernel's name reaches every attention call."""
    import longattn.nn.attention as module

    seen, original = [], module.attention

    def spy(q, k, v, bound, **options):
        seen.append((bound.pattern, options["kernel"]))
        return original(q, k, v, bound, **options)

    monkeypatch.setattr(module, "attention", spy)
    small_model(num_layers=3, layer_patterns=(Dense(), SlidingWindow(radius=2)), kernel="reference")(tokens(1, 9))
    assert seen == [(pattern, "reference") for pattern in (Dense(), SlidingWindow(radius=2), Dense())]


def test_norm_placement_decides_on_the_final_norm(small_model, tokens):
    out = small_model(model=Encoder, norm_placement="pre")(tokens(1, 9), output_hidden_states=True)
    assert not torch.equal(out.hidden_states[-1], out.last_hidden_state)
    out = small_model(model=Encoder, norm_placement="post")(tokens(1, 9), output_hidden_states=True)
    assert torch.equal(out.hidden_states[-1], out.last_hidden_state)


@pytest.mark.parametrize("mode", ["bf16-true", "bf16-mixed"])
def test_position_tables_stay_exact_in_low_precision(small_model, mode):
    """Case B62."""
    model = small_model(model=Encoder, num_layers=1, pattern=SlidingWindow(radius=2))
    tables = []
    model.layers[0].register_forward_pre_hook(lambda _, arguments: tables.append(arguments[1].rotation))
    ids = torch.ones(1, 16_384, dtype=torch.int64)
    if mode == "bf16-true":
        model.to(torch.bfloat16)(ids)
    else:
        with torch.autocast("cpu", torch.bfloat16):
            model(ids)
    frequencies = torch.tensor([10_000.0 ** (-i / 4) for i in range(4)], dtype=torch.float64)
    angles = torch.arange(16_384, dtype=torch.float64)[:, None] * frequencies
    assert (tables[0].cos_BLR[0].double() - angles.cos()).abs().max() <= 4e-3
    assert (tables[0].sin_BLR[0].double() - angles.sin()).abs().max() <= 4e-3


def test_initial_weights_follow_the_seed_and_the_documented_scale(small_model):
    first, second = (small_model(d_model=128, d_ff=256, num_layers=8, initializer_range=0.02) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    attention = first.encoder.layers[0].attention
    assert isinstance(attention, MultiHeadAttention)
    assert attention.w_q.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert attention.w_o.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert first.encoder.embeddings.token.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert (attention.w_q.bias == 0).all()
    post = small_model(d_model=128, d_ff=256, num_layers=8, initializer_range=0.02, norm_placement="post")
    assert post.encoder.layers[0].attention.w_o.weight.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize(
    ("options", "inputs", "message"),
    [
        (
            {},
            {"input_ids": torch.zeros(3, dtype=torch.int64)},
            r"int64 or int32 of shape \(batch, tokens\), got torch.int64 \(3,\)",
        ),
        ({}, {"input_ids": torch.zeros(1, 3)}, r"got torch.float32 \(1, 3\)"),
        ({}, {"input_ids": torch.zeros(1, 3, dtype=torch.int16)}, r"got torch.int16 \(1, 3\)"),
        ({}, {"input_ids": torch.tensor([[1, 40]])}, r"\[0, vocab_size = 40\), got 1 to 40"),
        (
            {},
            {"attention_mask": torch.ones(1, 4)},
            r"attention_mask must have shape \(batch, tokens\) = \(1, 5\), got \(1, 4\)",
        ),
        ({}, {"attention_mask": torch.ones(1, 5)}, "attention_mask must be boolean or .* got torch.float32"),
        (
            {},
            {"attention_mask": torch.tensor([[2, 1, 1, 1, 0]])},
            "attention_mask must hold 0 and 1 only, got 2; global tokens go into global_attention_mask",
        ),
        ({}, {"global_attention_mask": torch.ones(1, 5).bool()}, r"no pattern of this model has global tokens \(Dense"),
        ({}, {"document_ids": torch.ones(1, 5)}, r"document_ids must be int64 or int32 .* got torch.float32 \(1, 5\)"),
        ({}, {"position_ids": torch.ones(1, 5)}, r"position_ids must be int64 or int32"),
        ({"position": "alibi"}, {"position_ids": torch.arange(5)[None]}, "no effect with position 'alibi'"),
        ({"position": Learned(max_length=4)}, {}, "a document of 5 tokens is longer .* table of 4 rows"),
        (
            {"pattern": BlockSparse([[1, 0], [1, 1]], block_size=2)},
            {},
            "covers 4 tokens, the document has 5",
        ),
    ],
)
def test_wrong_inputs_are_named(small_model, tokens, options, inputs, message):
    with pytest.raises(ConfigError, match=message) as raised:
        small_model(**options)(**({"input_ids": tokens(1, 5)} | inputs))
    assert "\n" not in str(raised.value)
