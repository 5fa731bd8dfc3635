"""Wrong input: exit code 2 and one line that says what, where, and what to do."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

FILES = {
    "empty.jsonl": b"",
    "good.jsonl": b'{"text": "a cup of tea"}\n{"text": "and a spoon"}\n',
    "broken.jsonl": b'{"text": "a cup of tea"}\n{"text"\n',
    "latin.txt": b"caf\xe9",
    "unknown.yaml": b"model:\n  d_modle: 3\n",
    "section.yaml": b"modle:\n  d_model: 3\n",
    "field.yaml": b"model:\n  pattern:\n    class_path: SlidingWindow\n    init_args:\n      radus: 3\n",
    "broken.yaml": b"model: [1\n",
    "nothing.yaml": b"# nothing\n",
    "word.yaml": b"hello\n",
    "utf16.yaml": "model:".encode("utf-16"),
    "hollow.yaml": b"model:\n",
    "hollow_class.yaml": b"model:\n  pattern:\n    class_path: SlidingWindow\n    init_args:\n",
    "utf16.txt": "tea".encode("utf-16"),
    "number.jsonl": b'{"text": "a", "n": ' + b"9" * 5000 + b"}\n",
    "lines.jsonl": b'{\n"text": "a"\n}\n',
    "half.jsonl.gz": gzip.compress(b'{"text": "a cup of tea"}\n' * 99)[:-20],
    "texts/a.txt": b"a cup of tea",
}

CASES: dict[str, tuple[str, list[str]]] = {
    # the list: what the line must hold, flags that make it
    "missing file": ("none.jsonl", ["--data.data_files=none.jsonl"]),
    "empty file": ("empty.jsonl", ["--data.data_files=empty.jsonl"]),
    "wrong column": ("there are: text", ["--data.data_files=good.jsonl", "--data.text_column=txt"]),
    "not UTF-8": ("latin.txt", ["--data.path=text", "--data.data_files=latin.txt"]),
    "broken JSON": ("broken.jsonl:2", ["--data.data_files=broken.jsonl"]),
    "negative radius": ("radius must be an integer >= 0, got -1", ["--model.pattern.radius=-1"]),
    "heads": ("num_heads 3 and d_model 16", ["--model.num_heads=3"]),
    "learned positions": (
        "longer than the learned position table of 32 rows",
        ["--model.position=Learned", "--model.position.max_length=32"],
    ),
    "unknown flag": ("--model.d_modl is unknown (did you mean '--model.d_model'?)", ["--model.d_modl=3"]),
    "flag without its section": ("(did you mean '--trainer.max_steps'?)", ["--max_steps=3"]),
    "unknown key of a file": ("of unknown.yaml is unknown (did you mean 'model.d_model'?)", ["unknown.yaml"]),
    "unknown section of a file": ("'modle.d_model' of section.yaml is unknown", ["section.yaml"]),
    "unknown field of a pattern": ("SlidingWindow has no setting 'radus' (did you mean 'radius'?)", ["field.yaml"]),
    "not YAML": ("broken.yaml", ["broken.yaml"]),
    "missing config": ("nope.yaml' does not exist", ["nope.yaml"]),
    "config without a setting": ("nothing.yaml holds no setting", ["nothing.yaml"]),
    "config that is a word": ("must hold settings such as 'model:'", ["word.yaml"]),
    "config not UTF-8": ("utf16.yaml is not UTF-8", ["utf16.yaml"]),
    "section without a setting": ("'model' of --config hollow.yaml is empty", ["hollow.yaml"]),
    "class without a setting": ("init_args' of --config hollow_class.yaml is empty", ["hollow_class.yaml"]),
    "UTF-16": ("iconv -f utf-16", ["--data.path=text", "--data.data_files=utf16.txt"]),
    "number of thousands of digits": ("number.jsonl:1: JSON that cannot be read", ["--data.data_files=number.jsonl"]),
    "object over several lines": ("write each object in one line", ["--data.data_files=lines.jsonl"]),
    "broken compressed file": ("half.jsonl.gz cannot be read", ["--data.data_files=half.jsonl.gz"]),
    "no name of a file": ("data_files is an empty word", ["--data.data_files=[\"\"]"]),
    "folder of texts": ("give path='text' and data_files=", ["--data.path=texts", "--data.data_files=null"]),
    # contradictions
    "pattern twice": ("contradict each other", ["--model.layer_patterns=[Dense, Dense]"]),
    "too many layers' patterns": (
        "num_layers = 2 patterns, got 3",
        ["--model.pattern=null", "--model.layer_patterns=[Dense, Dense, Dense]"],
    ),
    "a window's stride as long as itself": ("stride", ["--data.stride=64"]),
    "layout too short": (
        "covers 16 tokens",
        ["--model.pattern=BlockSparse", "--model.pattern.layout=[[1, 1], [1, 1]]", "--model.pattern.block_size=8"],
    ),
    "globals without a use": ("global_tokens='first'", ["--data.global_tokens=first"]),
    "no end": ("nothing ends the training: give --trainer.max_steps", ["--trainer.max_steps=-1"]),
    "no length for the schedule": (
        "schedule 'cosine' must know how many optimizer steps",
        ["--trainer.max_steps=-1", "--trainer.max_time=00:00:01:00"],
    ),
    "decay without wsd": ("decay_steps 5", ["--model.schedule.decay_steps=5"]),
    "small vocabulary": ("vocab_size 10 is smaller than the tokenizer's 300", ["--model.vocab_size=10"]),
    # wrong values
    "unknown pattern": ("no class that is known (did you mean 'SlidingWindow'?)", ["--model.pattern=SlidingWindw"]),
    "word for a number": ("SlidingWindow.radius must be int, got 'wide'", ["--model.pattern.radius=wide"]),
    "no such field": ("Dense has no setting 'radius'", ["--model.pattern=Dense", "--model.pattern.radius=3"]),
    "unknown position": ("(did you mean 'rope'?)", ["--model.position=rop"]),
    "unknown kernel": ("(did you mean 'chunked'?)", ["--model.kernel=chunkd"]),
    "unknown task": ("task 'classify' is unknown", ["--model.task=classify"]),
    "unknown optimizer": ("must be adamw, sgd or none, got 'adam' (did you mean 'adamw'?)", ["--model.optimizer=adam"]),
    "learning rate": ("learning_rate must be positive and finite, got -1.0", ["--model.learning_rate=-1"]),
    "dropout": ("dropout must be in [0, 1), got 1.5", ["--model.architecture.dropout=1.5"]),
    "precision": ("trainer.precision must be", ["--trainer.precision=bf17"]),
    "seed": ("seed_everything must be bool or int, got 'x'", ["--seed_everything=x"]),
    "seed below 0": ("seed_everything=-1: give a number from 0", ["--seed_everything=-1"]),
    "seed beyond 32 bits": ("seed_everything=4294967296: give a number", ["--seed_everything=4294967296"]),
    "no name of a run folder": ("run.dir is an empty word", ["--run.dir="]),
    "cache within a file": ("data.cache_dir: ", ["--data.cache_dir=good.jsonl/cache"]),
    "unigram too small": (
        "too small for the characters",
        ["--data.tokenizer_training.kind=unigram", "--data.tokenizer_training.vocab_size=12"],
    ),
    "steps between checkpoints": ("save_every_steps must be at least 1", ["--run.save_every_steps=0"]),
    "run folder is a file": ("is a file", ["--run.dir=good.jsonl"]),
    "missing checkpoint": ("'none.ckpt' does not exist", ["--ckpt_path=none.ckpt"]),
    "file that is no checkpoint": ("is no checkpoint", ["--ckpt_path=good.jsonl"]),
    "no tokenizer there": ("none.json", ["--data.tokenizer=./none.json"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_exit_code_2(longattn, settings, tmp_path, monkeypatch, case):
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    expected, flags = CASES[case]
    if flags[0].endswith(".yaml"):
        flags = ["--config", *flags]
    outcome = longattn(
        "fit", *settings, "--model.pattern=SlidingWindow", "--model.pattern.radius=4", "--trainer.max_steps=2",
        f"--run.dir={tmp_path / 'run'}", *flags,
    )  # fmt: skip
    assert outcome.code == 2, outcome.err
    assert outcome.err.startswith("longattn: error: ")
    assert outcome.err.count("\n") == 1, outcome.err
    assert "Traceback" not in outcome.out + outcome.err
    assert expected in outcome.err
    assert not (tmp_path / "run" / "config.yaml").exists(), "nothing is left that looks like a run"


def test_a_missing_setting_says_how_to_give_it(longattn):
    outcome = longattn("fit", "--trainer.max_steps=2")
    assert outcome.code == 2
    assert outcome.err == (
        "longattn: error: data.path is missing: give --data.path, or write it into a --config file (or data.sources)\n"
    )


def test_an_accelerator_that_is_not_there(longattn, settings, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    outcome = longattn("fit", *settings, "--trainer.accelerator=gpu", "--trainer.max_steps=2", f"--run.dir={tmp_path}")
    assert outcome.code == 2
    assert outcome.err == "longattn: error: trainer: No supported gpu backend found!\n"


def test_a_checkpoint_with_code_in_it_is_refused_and_not_run(longattn, settings, tmp_path):
    import torch

    marker = tmp_path / "marker"

    class Evil:
        def __reduce__(self):
            return Path.touch, (marker,)

    torch.save({"state_dict": {}, "evil": Evil()}, tmp_path / "evil.ckpt")
    outcome = longattn(
        "fit", *settings, "--trainer.max_steps=2", f"--run.dir={tmp_path / 'run'}",
        f"--ckpt_path={tmp_path / 'evil.ckpt'}",
    )  # fmt: skip
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert "more than tensors and plain values" in outcome.err
    assert not marker.exists()
