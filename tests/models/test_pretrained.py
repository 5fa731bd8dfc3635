"""Saving and loading: the same model comes back, or one clear line says why not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from longattn.errors import ConfigError
from longattn.models import Encoder, MaskedLanguageModel
from longattn.nn import Learned
from longattn.patterns import BigBird, Dense, Longformer, SlidingWindow


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tie_decoder": False, "norm_placement": "post", "norm": "rms_norm", "activation": "geglu"},
        {"layer_patterns": (Longformer(radius=2), BigBird(block_size=4)), "position": Learned(max_length=30)},
        {"pattern": SlidingWindow(radius=2), "position": "alibi", "pad_token_id": 0, "kernel": "reference"},
    ],
    ids=["tied", "untied post-norm", "layer patterns", "alibi"],
)
def test_round_trip_is_bitwise(small_model, tokens, tmp_path, options, dtype):
    model, ids = small_model(dtype=dtype, **options), tokens(2, 21)
    model.save_pretrained(tmp_path / "model")
    random_state = torch.get_rng_state()
    loaded = MaskedLanguageModel.from_pretrained(tmp_path / "model", kernel=model.config.kernel)
    assert torch.equal(random_state, torch.get_rng_state())
    assert loaded.config == model.config
    assert not loaded.training
    state, again = model.state_dict(), loaded.state_dict()
    assert list(state) == list(again)
    assert all(torch.equal(state[name], again[name]) and again[name].dtype == dtype for name in state)
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    assert torch.equal(model(ids).logits, loaded(ids).logits)


def test_tied_weight_is_stored_once_and_tied_again(small_model, tokens, tmp_path):
    small_model().save_pretrained(tmp_path)
    assert "decoder.weight" not in load_file(tmp_path / "model.safetensors")
    loaded = MaskedLanguageModel.from_pretrained(tmp_path)
    assert loaded.decoder.weight is loaded.encoder.embeddings.token.weight
    loaded.train()(tokens(1, 9), labels=tokens(1, 9)).loss.backward()
    torch.optim.SGD(loaded.parameters(), lr=0.1).step()
    assert torch.equal(loaded.decoder.weight, loaded.encoder.embeddings.token.weight)


def test_tied_weight_may_be_stored_twice_if_equal(small_model, tmp_path):
    small_model().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["decoder.weight"] = weights["encoder.embeddings.token.weight"].clone()
    save_file(weights, tmp_path / "model.safetensors")
    MaskedLanguageModel.from_pretrained(tmp_path)
    weights["decoder.weight"] += 1
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"decoder.weight differs from encoder.embeddings.token.weight"):
        MaskedLanguageModel.from_pretrained(tmp_path)


def test_encoder_comes_out_of_a_task_models_folder(small_model, tokens, tmp_path):
    model, ids = small_model(pattern=Longformer(radius=2)), tokens(1, 9)
    model.save_pretrained(tmp_path)
    encoder = Encoder.from_pretrained(str(tmp_path))
    assert type(encoder) is Encoder
    assert torch.equal(encoder(ids).last_hidden_state, model(ids).last_hidden_state)
    encoder.save_pretrained(tmp_path / "alone")
    again = Encoder.from_pretrained(tmp_path / "alone")
    assert torch.equal(again(ids).last_hidden_state, model(ids).last_hidden_state)


def test_non_contiguous_weights_are_saved(small_model, tmp_path):
    """Case B53: a weight initialised through its transpose."""
    model = small_model()
    weight = model.transform[0].weight
    weight.data = torch.randn(16, 16).T
    model.save_pretrained(tmp_path)
    assert torch.equal(MaskedLanguageModel.from_pretrained(tmp_path).transform[0].weight, weight)


def test_saved_model_does_not_hang_on_its_file(small_model, tmp_path):
    small_model().save_pretrained(tmp_path)
    loaded = MaskedLanguageModel.from_pretrained(tmp_path)
    before = loaded.transform[0].weight.clone()
    (tmp_path / "model.safetensors").write_bytes(b"\0" * (tmp_path / "model.safetensors").stat().st_size)
    assert torch.equal(loaded.transform[0].weight, before)


def test_kernel_belongs_to_the_machine_not_to_the_folder(small_model, tmp_path):
    small_model(kernel="reference").save_pretrained(tmp_path)
    assert "kernel" not in json.loads((tmp_path / "config.json").read_text())["encoder"]
    assert Encoder.from_pretrained(tmp_path).config.kernel == "auto"
    assert Encoder.from_pretrained(tmp_path, kernel="reference").layers[0].attention.kernel == "reference"


class _Tokenizer:
    def __init__(self, fail=False):
        self.fail = fail

    def save_pretrained(self, folder):
        with open(f"{folder}/tokenizer.json", "w") as file:
            file.write("{}")
        if self.fail:
            raise OSError("disk full")


class _OwnTokenizer:
    def save(self, folder):
        _Tokenizer().save_pretrained(folder)


@pytest.mark.parametrize("tokenizer", [_Tokenizer(), _OwnTokenizer()], ids=["transformers", "longattn"])
def test_tokenizer_goes_along(small_model, tmp_path, tokenizer):
    small_model().save_pretrained(tmp_path / "new" / "model", tokenizer=tokenizer)
    assert sorted(file.name for file in (tmp_path / "new" / "model").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


@pytest.mark.parametrize("exists", [True, False])
def test_failed_save_leaves_nothing_behind(small_model, tmp_path, exists):
    folder = tmp_path / "model"
    if exists:
        small_model(pattern=SlidingWindow(radius=3)).save_pretrained(folder)
    with pytest.raises(OSError, match="disk full"):
        small_model(pattern=Dense()).save_pretrained(folder, tokenizer=_Tokenizer(fail=True))
    assert [file.name for file in tmp_path.iterdir()] == (["model"] if exists else [])
    if exists:
        assert Encoder.from_pretrained(folder).config.pattern == SlidingWindow(radius=3)


def test_saves_into_the_current_folder(small_model, tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    small_model().save_pretrained(".")
    assert Encoder.from_pretrained(".").config.vocab_size == 40
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_save_replaces_an_older_model_and_keeps_other_files(small_model, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for pattern in (Dense(), SlidingWindow(radius=3)):
        small_model(pattern=pattern).save_pretrained(tmp_path)
        assert Encoder.from_pretrained(tmp_path).config.pattern == pattern
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 3


def test_loads_without_trainer_or_data_libraries(small_model, tmp_path):
    small_model().save_pretrained(tmp_path)
    program = (
        "import sys; from longattn.models import Encoder; Encoder.from_pretrained(sys.argv[1]); "
        "sys.exit(','.join({'lightning', 'deepspeed', 'datasets', 'transformers'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert result.stderr.strip() == ""


def test_same_random_blocks_in_another_process(small_model, tokens, tmp_path):
    """Case B05."""
    model = small_model(pattern=BigBird(block_size=4, random_blocks=2))
    model.save_pretrained(tmp_path)
    program = (
        "import sys, torch; from longattn.models import Encoder\n"
        "ids = torch.randint(1, 40, (1, 64), generator=torch.Generator().manual_seed(0))\n"
        "print(Encoder.from_pretrained(sys.argv[1])(ids).last_hidden_state.double().cos().sum().item())"
    )
    result = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    wanted = model(tokens(1, 64)).last_hidden_state.double().cos().sum().item()
    assert float(result.stdout) == pytest.approx(wanted, abs=1e-4)


def _edit_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def _edit_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def _cut(folder, size):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "is no model folder: it has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "is not JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "model of type None"),
        (
            lambda f: _edit_config(f, model_type="roberta"),
            "model of type 'roberta', not 'longattn': .*longattn convert",
        ),
        (lambda f: _edit_config(f, format_version=99), "format_version 99, this longattn reads 1"),
        (lambda f: _edit_config(f, architectures=[]), r"must name one class in 'architectures', got \[\]"),
        (lambda f: _edit_config(f, architectures=["Other"]), "holds a model of class Other, not MaskedLanguageModel"),
        (lambda f: _edit_config(f, encoder={"vocab_size": 40, "dmodel": 3}), "config.json.*no field 'dmodel'"),
        (lambda f: _edit_config(f, encoder=None), "must hold a dictionary 'encoder', got None"),
        (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors"),
        (lambda f: _cut(f, 4), "damaged or cut short"),
        (lambda f: _cut(f, 100), "damaged or cut short"),
        (lambda f: _cut(f, -10), "damaged or cut short"),
        (
            lambda f: _edit_weights(f, lambda w: w.pop("decoder.bias")),
            "misses decoder.bias: the weights are not those of",
        ),
        (lambda f: _edit_weights(f, lambda w: w.update(extra=torch.zeros(1))), "has unexpected extra: the weights"),
        (
            lambda f: _edit_weights(f, lambda w: w.update({"decoder.bias": torch.zeros(41)})),
            r"decoder.bias has shape \(41,\), config.json asks for \(40,\)",
        ),
    ],
)
def test_damage_is_named_in_one_line(small_model, tmp_path, damage, message):
    small_model().save_pretrained(tmp_path)
    damage(tmp_path)
    with pytest.raises(ConfigError, match=message) as raised:
        MaskedLanguageModel.from_pretrained(tmp_path)
    assert "\n" not in str(raised.value)
    assert str(tmp_path) in str(raised.value)


def test_missing_folder_is_named():
    with pytest.raises(ConfigError, match=r"no model folder 'allenai/longformer-base-4096'.*longattn convert"):
        Encoder.from_pretrained("allenai/longformer-base-4096")


def test_head_cannot_come_out_of_a_bare_encoder(small_model, tmp_path):
    small_model(model=Encoder).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="holds a model of class Encoder, not MaskedLanguageModel"):
        MaskedLanguageModel.from_pretrained(tmp_path)


def test_file_in_the_way_is_named(small_model, tmp_path):
    (tmp_path / "model").write_text("")
    with pytest.raises(ConfigError, match="it is a file, not a folder"):
        small_model().save_pretrained(tmp_path / "model")
