"""Parallel text: pairs stay together, splits are disjoint, and pairs beyond the limits are refused or counted."""

import gzip

import pytest
from corpora import write_letter_tokenizer
from pydantic import TypeAdapter

from formerlab.data import prepare
from formerlab.data.any_data import Data
from formerlab.data.manifest import read_manifest, verify
from formerlab.data.pairs.sources import Phrases, read_pairs
from formerlab.data.pairs.streams import load_pairs
from formerlab.data.splitting import SPLITS, SplitFractions
from formerlab.data.text.streams import load_tokenizer
from formerlab.errors import UserError

DATA = TypeAdapter(Data)
FRACTIONS = SplitFractions(0.1, 0.1)
WORDS = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]


def write(path, lines):
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def files(folder, **changes):
    """Return a data set of 300 line pairs; some of them are empty or long."""
    source = [f"{WORDS[i % 10]} {WORDS[i // 10 % 10]} {i}" for i in range(300)]
    target = [f"{i} {WORDS[i // 10 % 10]}" for i in range(300)]
    source[7], target[9], source[11] = "", "  ", "lang " * 40
    train = [str(write(folder / "train.de.gz", source)), str(write(folder / "train.en", target))]
    lines = {"test.de": ["eins zwei\u2028 drei", "vier"], "test.en": ["one two", "four"]}
    test = [str(write(folder / name, content)) for name, content in lines.items()]
    spec = {"kind": "files", "source": "de", "target": "en", "train": train, "test": test}
    limits = {"tokenizer": {"kind": "bpe", "vocabulary": 280}, "max_tokens": 40, "valid_share": 0.1}
    return DATA.validate_python({"kind": "parallel", "source": spec, **limits, **changes})


def test_phrases_are_distinct_and_in_one_split():
    phrases = Phrases(count=300)
    by_split = {split: list(phrases.pairs(split, FRACTIONS)) for split in SPLITS}
    sources = [source for pairs in by_split.values() for source, _ in pairs]
    assert len(sources) == len(set(sources)) == 300
    assert all(by_split.values())
    assert by_split == {split: list(Phrases(count=300).pairs(split, FRACTIONS)) for split in SPLITS}
    months = {"March": "März", "May": "Mai", "October": "Oktober"}
    dates = [(source.replace(",", "").split(), target) for source, target in by_split["train"]]
    dates = [(words, target) for words, target in dates if words[0] in months and len(words) == 3]
    assert dates
    for (month, day, year), target in dates:
        assert target == f"{day}. {months[month]} {year}"


def test_pairs_beyond_the_limits_are_noted(tmp_path, capsys):
    prepare("pairs", files(tmp_path, max_pairs=200, max_ratio=2.5), tmp_path / "out")
    notes = read_manifest(tmp_path / "out")["notes"]
    assert "max_pairs=200 leaves out further train pairs (max_pairs: null takes all)" in notes
    assert [note for note in notes if note.endswith(("left out with an empty sentence", "left out by max_tokens=40"))]
    assert all(f"pairs: {note}\n" in capsys.readouterr().err for note in notes[:1])
    prepare("pairs", files(tmp_path, max_pairs=None), tmp_path / "all")
    assert not [note for note in read_manifest(tmp_path / "all")["notes"] if note.startswith("max_pairs")]


def test_characters_without_a_token_are_noted_or_refused_for_each_language(tmp_path):
    characters = "abcdefghijklmnopqrstuvwxyz0123456789 "
    prepare(
        "pairs", files(tmp_path, tokenizer=write_letter_tokenizer(tmp_path / "t.json", characters)), tmp_path / "out"
    )
    lost = [note.partition(" of the ")[2] for note in read_manifest(tmp_path / "out")["notes"] if "no token" in note]
    assert "train de text have no token and are dropped" in lost  # ü
    with pytest.raises(UserError, match=r"t\.json: .* test en text have no token and are dropped; choose a tokenizer"):
        prepare(
            "pairs",
            files(tmp_path, tokenizer=write_letter_tokenizer(tmp_path / "t.json", "einszwdrv ")),
            tmp_path / "out",
        )


def test_prepared_pairs_are_the_lines(tmp_path):
    data = files(tmp_path)
    prepare("pairs", data, tmp_path / "out", code_hash="c")
    manifest, tokenizer = read_manifest(tmp_path / "out"), load_tokenizer(tmp_path / "out")
    verify(tmp_path / "out")
    dropped = [manifest["splits"][split]["dropped"] for split in SPLITS]
    assert sum(counts["empty"] for counts in dropped) == 2
    assert sum(counts["too_long"] for counts in dropped) == 1
    counts = {split: manifest["splits"][split]["pairs"] for split in SPLITS}
    assert counts["train"] + counts["valid"] == 297
    pairs = load_pairs(tmp_path / "out", "test")
    assert len(pairs) == counts["test"] == 2
    texts = [[tokenizer.decode(pairs.sentence(i, side)[:-1].tolist()) for side in (0, 1)] for i in range(2)]
    assert texts == [["eins zwei\u2028 drei", "one two"], ["vier", "four"]]
    assert all(pairs.sentence(i, side)[-1] == pairs.end for i in range(2) for side in (0, 1))
    for path in tmp_path.glob("*.de*"):
        path.unlink()
    with pytest.raises(UserError, match="no such file"):
        prepare("pairs", data.model_copy(update={"max_tokens": 39}), tmp_path / "out")
    assert read_manifest(tmp_path / "out") == manifest, "prepared data stay if the new preparation fails"


def test_files_with_different_numbers_of_lines_are_refused(tmp_path):
    left, right = write(tmp_path / "a", ["x", "y", "z"]), write(tmp_path / "b", ["1", "2"])
    with pytest.raises(UserError, match=r"b: ends after line 2, but .*a has more"):
        list(read_pairs(left, right))
    with pytest.raises(UserError, match=r"b: ends after line 2, but .*a has more"):
        list(read_pairs(right, left))
    (tmp_path / "c").write_bytes(b"ok\n\xff\n")
    with pytest.raises(UserError, match=r"c: not utf-8 at byte 3"):
        list(read_pairs(tmp_path / "c", left))
    with pytest.raises(UserError, match="none: no such file"):
        list(read_pairs(tmp_path / "none", left))


def test_a_long_test_sentence_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"^data: pairs: a test pair has .* tokens .*raise max_tokens"):
        prepare("pairs", files(tmp_path, max_tokens=8), tmp_path / "out")


def test_the_hub_reads_the_two_languages_of_a_row(monkeypatch):
    import datasets

    rows = datasets.Dataset.from_list([{"translation": {"de": f"Satz {i}", "en": f"sentence {i}"}} for i in range(50)])
    calls = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, **keys: calls.append((names, keys)) or rows)
    source = {"kind": "hub", "name": "wmt/wmt14", "subset": "de-en", "source": "de", "target": "en", "valid": None}
    data = DATA.validate_python({"kind": "parallel", "source": source})
    assert list(data.source.pairs("test", FRACTIONS)) == [(f"Satz {i}", f"sentence {i}") for i in range(50)]
    assert calls == [(("wmt/wmt14", "de-en"), {"revision": None, "split": "test"})]
    split = [list(data.source.pairs(name, FRACTIONS)) for name in ("train", "valid")]
    assert sorted(split[0] + split[1]) == sorted((f"Satz {i}", f"sentence {i}") for i in range(50))
    wrong = DATA.validate_python({"kind": "parallel", "source": source | {"target": "fr"}})
    with pytest.raises(UserError, match=r"no translation.de and translation.fr"):
        list(wrong.source.pairs("test", FRACTIONS))


def test_an_unknown_locale_is_refused():
    with pytest.raises(ValueError, match="not a locale of CLDR"):
        Phrases(source="xx_nowhere")
