"""`longattn fit` on documents of 10,240 tokens, with every pattern that the README offers."""

from __future__ import annotations

import pytest

PATTERNS = {
    "dense": ["--model.pattern=Dense"],
    "window": ["--model.pattern=SlidingWindow", "--model.pattern.radius=64"],
    "longformer": ["--model.pattern=Longformer", "--model.pattern.radius=64"],
    "bigbird": ["--model.pattern=BigBird"],
    "block_sparse": ["--config=configs/pattern/block_sparse.yaml"],
    "strided": ["--model.pattern=Strided", "--model.pattern.stride=100"],
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
@pytest.mark.parametrize("name", PATTERNS)
def test_loss_falls_and_the_same_seed_gives_the_same_curve(longattn, metrics_of, tmp_path, cache, name):
    """Each document fills the window of 10,240 tokens, and two runs agree to the last bit."""
    curves = []
    for attempt in ("first", "second"):
        outcome = longattn(
            "fit", *PATTERNS[name], "--seed_everything=3", "--trainer.accelerator=cpu", "--trainer.max_steps=5",
            "--trainer.limit_val_batches=0", "--model.d_model=32", "--model.num_heads=2", "--model.num_layers=1",
            "--model.d_ff=64", "--model.architecture.dropout=0", "--model.learning_rate=0.02",
            "--model.schedule.warmup_steps=1", "--data.path=python_library", "--data.minimum_characters=100000",
            "--data.maximum_documents=8", "--data.max_length=10240", "--data.validation_fraction=0.2",
            "--data.tokenizer_training.vocab_size=512", f"--data.cache_dir={cache}", "--run.tensorboard=false",
            f"--run.dir={tmp_path / attempt}",
        )  # fmt: skip
        assert outcome.code == 0, outcome.err
        rows = metrics_of(tmp_path / attempt)
        curves.append([row["train/loss"] for row in rows])
        assert max(float(row["packing_efficiency"]) for row in rows) > 0.99
    assert curves[0] == curves[1]
    losses = [float(loss) for loss in curves[0]]
    assert losses[-1] < losses[0] - 0.1, losses
