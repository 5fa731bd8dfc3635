from __future__ import annotations

import builtins
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers

from longattn.data import SpecialTokens, Tokenizer, TokenizerTraining, load_tokenizer, train_tokenizer
from longattn.data.tokenizer_training import NAMES, _in_pieces
from longattn.errors import ConfigError

KINDS = ("bpe", "wordpiece", "unigram")
TEXTS = [f"The tokenizer of number {number} reads words, wording and wordless text again." for number in range(50)]


@pytest.fixture(scope="module", params=KINDS)
def trained(request):
    return train_tokenizer(lambda: TEXTS, TokenizerTraining(kind=request.param, vocab_size=320))


def test_ids_of_special_tokens_come_first(trained):
    assert trained.special == SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)
    assert [trained.token(number) for number in range(5)] == list(NAMES.values())
    assert trained.special_ids == {0, 1, 2, 3, 4}
    assert len(trained.ordinary_ids) == trained.vocab_size - 5
    assert 5 < trained.vocab_size <= 320


def test_encodes_without_special_tokens_and_decodes(trained):
    first, second = trained.encode_batch([TEXTS[3], ""])
    assert trained.decode(first) == TEXTS[3]
    assert trained.is_ordinary[first].all()
    assert len(second) == 0


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_frequent_words_are_one_token(kind):
    tokenizer = train_tokenizer(lambda: TEXTS, TokenizerTraining(kind=kind, vocab_size=320))
    assert len(tokenizer.encode_batch(["tokenizer"])[0]) <= 3


def test_bytes_spell_every_text():
    tokenizer = train_tokenizer(lambda: TEXTS, TokenizerTraining(vocab_size=300))
    text = "unseen ü 漢字 \u2028\x0b\x0c \x00 🙂\r\n end"
    assert tokenizer.decode(tokenizer.encode_batch([text])[0]) == text


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_in_a_text_are_only_text(kind):
    texts = [*TEXTS, "[CLS] [MASK] [SEP] [PAD] stand in this text"]
    tokenizer = train_tokenizer(lambda: texts, TokenizerTraining(kind=kind, vocab_size=320))
    ids = tokenizer.encode_batch(["a [MASK] in [PAD] text"])[0]
    assert not {tokenizer.special.mask, tokenizer.special.pad}.intersection(ids.tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_lowercase_joins_upper_and_lower(kind):
    training = TokenizerTraining(kind=kind, vocab_size=320, lowercase=True)
    upper, lower = train_tokenizer(lambda: TEXTS, training).encode_batch(["WORDS", "words"])
    assert upper.tolist() == lower.tolist()


def test_saved_and_loaded_it_is_the_same(trained, tmp_path):
    trained.save(tmp_path)
    for place in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path)):
        loaded = load_tokenizer(place)
        assert loaded.fingerprint == trained.fingerprint
        assert loaded.special == trained.special
    copy = pickle.loads(pickle.dumps(trained))
    assert copy.encode_batch(TEXTS[:1])[0].tolist() == trained.encode_batch(TEXTS[:1])[0].tolist()


def test_transformers_loads_what_is_saved(trained, tmp_path):
    transformers = pytest.importorskip("transformers")
    trained.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = theirs(TEXTS[0])["input_ids"]
    assert ids == [trained.special.cls, *trained.encode_batch([TEXTS[0]])[0].tolist(), trained.special.sep]
    assert (theirs.mask_token_id, theirs.pad_token_id) == (trained.special.mask, trained.special.pad)


def test_earlier_padding_and_truncation_change_nothing(trained, tmp_path):  # case B22
    trained.save(tmp_path)
    used = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    used.enable_truncation(4)
    used.enable_padding(length=8)
    used.encode_batch(TEXTS)
    again = Tokenizer(used, dict(NAMES))
    assert again.fingerprint == trained.fingerprint
    assert again.encode_batch(TEXTS[:1])[0].tolist() == trained.encode_batch(TEXTS[:1])[0].tolist()


def test_names_of_other_families_are_understood(tmp_path):
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, "a": 5, "b": 7}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    plain.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    plain.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert (loaded.special.cls, loaded.special.pad, loaded.special.sep, loaded.special.mask) == (0, 1, 2, 4)
    assert loaded.vocab_size == 8  # ids up to 7, although 6 is no token
    assert loaded.ordinary_ids.tolist() == [5, 7]


def test_declared_names_win(tmp_path):
    vocabulary = {
        name: number for number, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<|hide|>"])
    }
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    plain.add_special_tokens(list(vocabulary))
    plain.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"mask_token": {"content": "<|hide|>"}}))
    assert load_tokenizer(tmp_path).special.mask == 5


def test_a_missing_role_is_named(tmp_path):
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "</s>": 1, "a": 2}, unk_token="a"))
    plain.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"no special token for pad: \[PAD\] or <pad>; mask: \[MASK\] or <mask>"):
        load_tokenizer(tmp_path)


def test_no_such_file():
    with pytest.raises(ConfigError, match="tokenizer='/no/where': no such file or folder"):
        load_tokenizer("/no/where")


def test_another_json_file(tmp_path):
    (tmp_path / "tokenizer.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"is no tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_hub_id_without_transformers_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without_transformers(name, *rest):
        if name == "transformers":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_transformers)
    with pytest.raises(ConfigError, match=r"'some/tokenizer'.*needs transformers: pip install 'longattn\[hub\]'"):
        load_tokenizer("some/tokenizer")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "word"}, "kind='word': give one of bpe, wordpiece, unigram"),
        ({"vocab_size": 200}, "vocab_size=200: bpe needs at least 261"),
        ({"maximum_characters": 0}, "maximum_characters=0"),
    ],
)
def test_training_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        TokenizerTraining(**wrong)


SCRIPT = """
import sys
from longattn.data.tokenizer_training import TokenizerTraining, train_tokenizer
texts = ["Wel come to the Tok en izers libr ary."] + sys.argv[1:]
for kind in ("bpe", "wordpiece"):
    print([train_tokenizer(lambda: texts, TokenizerTraining(kind=kind, vocab_size=320)).fingerprint for _ in range(20)])
"""


def test_training_is_the_same_each_time_and_in_every_process():  # case B30
    """The hash maps of the library have an order of their own in each training, also within one process."""
    found = []
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, "-c", SCRIPT, *TEXTS[:20]]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.append([set(json.loads(line.replace("'", '"'))) for line in done.stdout.splitlines()])
    assert found[0] == found[1]
    assert [len(fingerprints) for fingerprints in found[0]] == [1, 1]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_text_of_any_length_trains_the_tokenizer_of_its_parts(kind, monkeypatch):
    text = " ".join(TEXTS * 5)
    training = TokenizerTraining(kind=kind, vocab_size=330)
    whole = train_tokenizer(lambda: [text], training)
    monkeypatch.setattr("longattn.data.tokenizer_training._LARGEST_PIECE", 100)
    with_a_long_word = [text + " " + "x" * 300, "", "short"]
    pieces = list(_in_pieces(with_a_long_word))
    assert max(map(len, pieces)) == 100
    assert "".join(pieces) == "".join(with_a_long_word)
    assert train_tokenizer(lambda: [text], training).fingerprint == whole.fingerprint
