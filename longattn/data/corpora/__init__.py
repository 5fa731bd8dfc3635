"""Offline corpora: documents that are on the machine already; one class in one file each."""

from longattn.data.corpora.base import Corpus, Document, build_corpus, corpora

__all__ = ["Corpus", "Document", "build_corpus", "corpora"]
