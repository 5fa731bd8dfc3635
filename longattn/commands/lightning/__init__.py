"""The machinery behind the trainer commands; a folder of its own, so that listing commands does not import it."""
