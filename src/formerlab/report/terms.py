"""A short key for tables: the terms that occur in a table, with their meanings."""

import re

_TERMS = {
    "Full": "all keys",
    "DynamicCache": "the full cache of the transformers library",
    "H2O": "retains the keys with the largest sum of attention and, in half of the budget, the last tokens",
    "Decay": "as H2O, but alpha (published: 0.2) multiplies the old sum at every token, and nothing is reserved",
    "half recent": "half of the budget for the last tokens, as for H2O",
    "plain sum": "as H2O, but nothing is reserved",
    "TOVA": "attention of the newest query alone",
    "StreamingLLM": "the first 4 and the last keys",
    "Local": "the last keys alone",
    "Random": "keys drawn at random",
    "protected": "the first 4 keys and, in a quarter of the budget, the last tokens are retained",
    "SnapKV": "attention of the last queries of the prompt",
    "Expected Attention": "attention that later queries are expected to give",
    "KeyDiff": "keys that differ most from the mean direction",
    "Knorm": "keys with the smallest norm",
    "Ideal": "the largest attention of each query, without eviction",
    "Tokenformer": "attention to parameter tokens in place of linear layers",
    "1x1": "after every block, a weighted average over all earlier blocks",
    "modern": "RMSNorm, SwiGLU and rotary positions",
    "parent": "the model before growth",
    "random keys": "new parameter tokens as published",
    "zero keys": "new parameter tokens that leave the output unchanged at the start",
    "5-gram": "a count of five tokens, fitted to at most 20M training tokens",
    "nats": "0.01 nats are about 1 % of perplexity",
}
"""Meaning by term."""


def terms(text: str) -> list[str]:
    """Return a list with one line that explains the terms in a text, or an empty list if the text has no such term."""
    found = [f"{term}: {words}" for term, words in _TERMS.items() if re.search(rf"\b{term}\b", text)]
    return [f"Terms. {'; '.join(found)}."] if found else []
