"""Tokenizers: training, files, and the fast way to encode against the library's own."""

import json

import numpy as np
import pytest
from corpora import document
from hypothesis import given
from hypothesis import strategies as st

from formerlab.data import BytePairs, TokenizerFile
from formerlab.data.text.encoding import Encoder, is_plain_byte_level, stream_type
from formerlab.data.text.tokenizer import END_OF_TEXT, read_tokenizer
from formerlab.errors import UserError

TEXTS = [document(seed) for seed in range(8)]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    BytePairs(vocabulary=400).train(TEXTS).save(str(path))
    return path


def reference(path, texts):
    encodings = read_tokenizer(path).encode_batch(texts, add_special_tokens=False)
    return [token for encoding in encodings for token in (*encoding.ids, 0)]


def test_vocabulary_is_exact_and_begins_with_end_of_text_and_bytes(path):
    tokenizer = read_tokenizer(path)
    assert tokenizer.get_vocab_size() == 400
    assert tokenizer.token_to_id(END_OF_TEXT) == 0
    assert all(len(tokenizer.id_to_token(token)) == 1 for token in range(1, 257))
    assert len(tokenizer.id_to_token(257)) == 2


def test_too_little_text_for_the_vocabulary_is_said():
    with pytest.raises(UserError, match=r"tokenizer\.vocabulary=5000: the training text yields only \d+ tokens"):
        BytePairs(vocabulary=5000).train(["one two one two"])


CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXTLIKE = st.one_of(st.text(CHARACTERS), st.text(" \n\t'sdtabé_0=.", max_size=60), st.sampled_from(TEXTS))


@given(st.lists(TEXTLIKE, min_size=1, max_size=4))
def test_words_encode_as_the_library_encodes_texts(path, texts):
    tokenizer = read_tokenizer(path)
    assert is_plain_byte_level(tokenizer)
    encoded = Encoder(tokenizer, 0, "uint16")(texts)
    assert encoded.tokens.tolist() == reference(path, texts)
    assert (encoded.documents, encoded.bytes) == (len(texts), sum(len(text.encode()) for text in texts))


@given(TEXTLIKE)
def test_decoding_returns_the_text(path, text):
    tokenizer = read_tokenizer(path)
    tokens = Encoder(tokenizer, 0, "uint16")([text]).tokens
    assert tokenizer.decode(tokens[:-1].tolist()) == text


def test_the_end_of_text_written_in_a_text_is_text(path):
    tokens = Encoder(read_tokenizer(path), 0, "uint16")([f"a{END_OF_TEXT}b"]).tokens
    assert tokens.tolist().index(0) == len(tokens) - 1


def test_a_full_table_changes_nothing_and_long_words_are_not_in_it(path, monkeypatch):
    monkeypatch.setattr("formerlab.data.text.encoding.TABLE_WORDS", 3)
    monkeypatch.setattr("formerlab.data.text.encoding.TABLE_CHARACTERS", 5)
    encoder = Encoder(read_tokenizer(path), 0, "uint32")
    assert encoder(TEXTS).tokens.tolist() == reference(path, TEXTS)
    assert 0 < len(encoder._words) <= 3
    assert max(map(len, encoder._words)) <= 5


def word_piece(path):
    """Write a tokenizer of another family, one that lowers, pads, truncates and adds special tokens."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "one": 1, "two": 2, "</s>": 3}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing("</s> $A", special_tokens=[("</s>", 3)])
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(path))
    return path


def test_other_tokenizers_encode_whole_texts_without_additions(tmp_path):
    spec = TokenizerFile(path=str(word_piece(tmp_path / "t.json")), vocabulary=8, end_of_text="</s>")
    tokenizer = spec.load()
    assert not is_plain_byte_level(tokenizer)
    assert Encoder(tokenizer, 3, "uint16")(["One two three", "two"]).tokens.tolist() == [1, 2, 0, 3, 2, 3]
    assert 3 not in Encoder(tokenizer, 3, "uint16")(["one </s> two"]).tokens[:-1], "written in a text, it is text"


def test_tokenizer_files_are_checked(tmp_path, path):
    (tmp_path / "broken.json").write_text("{}")
    hole = json.loads(path.read_text())
    hole["model"]["vocab"]["\u0120seldom"] = 600
    (tmp_path / "hole.json").write_text(json.dumps(hole))
    for spec, message in [
        (TokenizerFile(path=str(tmp_path / "none.json"), vocabulary=400), r"none\.json: no such tokenizer file"),
        (TokenizerFile(path=str(tmp_path / "broken.json"), vocabulary=400), r"broken\.json: not a tokenizer\.json"),
        (TokenizerFile(path=str(path), vocabulary=399), "needs 400 tokens, more than tokenizer.vocabulary=399"),
        (TokenizerFile(path=str(tmp_path / "hole.json"), vocabulary=512), "needs 601 tokens.*its largest id is 600"),
        (TokenizerFile(path=str(path), vocabulary=400, end_of_text="</s>"), "has no token '</s>'"),
    ]:
        with pytest.raises(UserError, match=message):
            spec.load()


def test_every_token_fits_the_stream():
    for vocabulary in (2, 1 << 16, (1 << 16) + 1, 1 << 20):
        assert np.iinfo(stream_type(vocabulary)).max >= vocabulary - 1
    assert stream_type(50_257) == "uint16"
