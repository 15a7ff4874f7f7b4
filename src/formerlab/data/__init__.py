"""Data: from a source of text to tokenised, memory-mapped streams with a manifest.

`prepare` writes them, `load_stream` and `load_tokenizer` read them, `verify` checks them, `task_configs` hands the
embedded questions to lm-evaluation-harness; `TextData` is the spec of a corpus.
"""

from formerlab.data.dataset import source_fingerprint
from formerlab.data.text.prepare import prepare
from formerlab.data.text.questions import task_configs
from formerlab.data.text.spec import (
    BytePairs,
    Embedded,
    Files,
    Hub,
    Source,
    TextData,
    Tokenizer,
    TokenizerFile,
    TokenizerOf,
)
from formerlab.data.text.streams import load_stream, load_tokenizer, verify

__all__ = [
    "BytePairs",
    "Embedded",
    "Files",
    "Hub",
    "Source",
    "TextData",
    "Tokenizer",
    "TokenizerFile",
    "TokenizerOf",
    "load_stream",
    "load_tokenizer",
    "prepare",
    "source_fingerprint",
    "task_configs",
    "verify",
]
