"""Tokenizers: training, files, and the behaviour that `Encoder` adds to the tokenizers library."""

import json

import pytest
from corpora import document
from hypothesis import given
from hypothesis import strategies as st

from formerlab.data import BytePairs, TokenizerFile
from formerlab.data.text.encoder import Encoder
from formerlab.data.text.tokenizer import END_OF_TEXT, read_tokenizer
from formerlab.errors import UserError

TEXTS = [document(seed) for seed in range(8)]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    BytePairs(vocabulary=400).train(TEXTS).save(str(path))
    return path


def encoded(path, texts, end=0):
    """Return the tokens of texts, encoded together."""
    return [int(token) for tokens in Encoder(path, end)(texts)[0] for token in tokens]


def test_vocabulary_is_exact_and_begins_with_end_of_text_and_bytes(path):
    tokenizer = read_tokenizer(path)
    assert tokenizer.get_vocab_size() == 400
    assert tokenizer.token_to_id(END_OF_TEXT) == 0
    assert all(len(tokenizer.id_to_token(token)) == 1 for token in range(1, 257))
    assert len(tokenizer.id_to_token(257)) == 2


CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXTLIKE = st.one_of(st.text(CHARACTERS), st.text(" \n\t'sdtabé_0=.", max_size=60), st.sampled_from(TEXTS))


@given(TEXTLIKE, TEXTLIKE)
def test_decoding_returns_the_texts(path, first, second):
    tokens = encoded(path, [first, second])
    ends = [index for index, token in enumerate(tokens) if token == 0]
    tokenizer = read_tokenizer(path)
    assert [tokenizer.decode(tokens[: ends[0]]), tokenizer.decode(tokens[ends[0] + 1 : ends[1]])] == [first, second]


def test_end_of_text_within_a_text_is_plain_text(path):
    assert encoded(path, [f"a{END_OF_TEXT}b"]).count(0) == 1


def word_level(path):
    """Write a tokenizer of another family, which lowercases, pads, truncates and adds special tokens."""
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
    path = word_level(tmp_path / "t.json")
    assert TokenizerFile(path=str(path), vocabulary=8, end_of_text="</s>").load()[1] == 3
    assert encoded(path, ["One two three", "two"], end=3) == [1, 2, 0, 3, 2, 3]
    # a special token inside a text is encoded as ordinary text
    assert 3 not in encoded(path, ["one </s> two"], end=3)[:-1]


def test_tokenizer_files_are_checked(tmp_path, path):
    (tmp_path / "broken.json").write_text("{}")
    hole = json.loads(path.read_text())
    hole["model"]["vocab"]["\u0120seldom"] = 600
    (tmp_path / "hole.json").write_text(json.dumps(hole))
    for file, settings, message in [
        (tmp_path / "none.json", {}, r"none\.json: no such tokenizer file"),
        (tmp_path / "broken.json", {}, r"broken\.json: not a tokenizer\.json"),
        (path, {"vocabulary": 399}, "needs 400 tokens, more than tokenizer.vocabulary=399"),
        (tmp_path / "hole.json", {"vocabulary": 512}, "needs 601 tokens.*its largest id is 600"),
        (path, {"end_of_text": "</s>"}, "no token '</s>'"),
    ]:
        with pytest.raises(UserError, match=message):
            TokenizerFile(**{"path": str(file), "vocabulary": 400} | settings).load()


def tokenizer_of_family(family):
    """Return a tokenizer of a family with the token `the` and the letters `thecasd`.

    "fallback" also has a token for every byte. "bytes" has only four tokens: the letters of `the` and the byte B4.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = sorted(set("▁thecasd"))
    numbers = {token: number for number, token in enumerate(["<unk>", "the", *letters])}
    byte_tokens = {f"<0x{byte:02X}>": len(numbers) + byte for byte in range(256)}
    # UTF-8 of д is D0 B4; byte D0 has no token, byte B4 (´) has one
    lead_missing = {letter: number for number, letter in enumerate({*"the", "\u00b4"})}
    models_of = {
        "dropping": models.BPE(numbers, []),
        "unknown": models.BPE(numbers, [], unk_token="<unk>", fuse_unk=True),
        "fallback": models.BPE(numbers | byte_tokens, [], byte_fallback=True),
        "bytes": models.BPE(lead_missing, []),
        "words": models.WordLevel(numbers, unk_token="<unk>"),
        "pieces": models.WordPiece(numbers, unk_token="<unk>"),
        "unigram": models.Unigram([(token, -1.0) for token in numbers], unk_id=0),
    }
    tokenizer = Tokenizer(models_of[family])
    if family == "bytes":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif family in ("words", "pieces"):
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    return tokenizer


@pytest.mark.parametrize(
    ("family", "lost"),
    [
        *[("dropping", [0, 3, 1]), ("unknown", [0, 3, 1]), ("unigram", [0, 3, 1]), ("fallback", [0, 0, 0])],
        *[("bytes", [0, 3, 1]), ("words", [0, 3, 2]), ("pieces", [0, 3, 2])],
    ],
)
def test_characters_without_a_token_are_counted(family, lost, tmp_path):
    tokenizer_of_family(family).save(str(tmp_path / "t.json"))
    encoder = Encoder(tmp_path / "t.json", 0, "t.json")
    assert encoder(["the the\n" if family in ("words", "pieces") else "the the", "the ддд", "the tд the"])[1] == lost
    assert not encoder.notes("train", 0, 10)
    assert "7 of 20 characters (35.00%) of the test text have no token" in encoder.notes("test", 7, 20)[0]
    message = r"t\.json: 11 of 20 characters .* choose a tokenizer that was made for such text"
    with pytest.raises(UserError, match=message):
        encoder.notes("test", 11, 20)


def test_a_tokenizer_without_its_unknown_token_is_refused(tmp_path):
    from tokenizers import Tokenizer, models

    unknown = {"unk_token": "[UNK]"}
    for model in (
        models.WordLevel({"a": 0}, **unknown),
        models.BPE({"a": 0}, [], **unknown),
        models.Unigram([("a", -1)]),
    ):
        Tokenizer(model).save(str(tmp_path / "t.json"))
        with pytest.raises(UserError, match=r"t\.json: .*; add the token to its vocabulary, or choose another"):
            Encoder(tmp_path / "t.json", 0, "t.json")(["b"])
