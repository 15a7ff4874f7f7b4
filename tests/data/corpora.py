"""Small corpora for the tests: realistic text that is equal in every run."""

from random import Random

from formerlab.data import BytePairs, Embedded, Files, TextData

COMMON_WORDS = """
the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you
were all her she there would their we him been has when who will no more if out so up said what its about than into them
can only other time new some could these two may first then do any like my now over such our man me even most made after
also well many fore must through years where much your way down should because long each café naïve Übung 漢字 x_1 3.14
don't it's
"""
WORDS = COMMON_WORDS.split()


def sentence(random):
    """Return a sentence of 6 to 16 words. The last word is random, so it nearly always occurs only once."""
    words = [random.choice(WORDS) for _ in range(random.randint(5, 15))]
    words.append(f"w{random.randrange(10**6)}")
    return " ".join(words).capitalize() + random.choice(".!?")


def document(seed, sentences=12):
    """Return a document of `sentences` sentences in paragraphs of four."""
    random = Random(str(seed))
    return "\n\n".join(" ".join(sentence(random) for _ in range(4)) for _ in range(sentences // 4))


def write_text_folder(path, documents=60):
    """Write a folder of text files and return it."""
    path.mkdir(parents=True)
    for number in range(documents):
        (path / f"{number:03}.txt").write_text(document(number), encoding="utf-8")
    return path


def folder_data(path, **changes):
    """Return the spec of a corpus in a folder of text files, which is split by a hash of the content."""
    settings: dict[str, object] = {
        "source": Files(paths=(str(path),)),
        "tokenizer": BytePairs(vocabulary=300),
        "valid_share": 0.2,
        "test_share": 0.2,
    }
    return TextData.model_validate(settings | changes)


def embedded_data(**changes):
    """Return the spec of a small corpus of embedded text."""
    settings: dict[str, object] = {
        "source": Embedded(packages=("networkx",), standard_library=False),
        "tokenizer": BytePairs(vocabulary=320, training_bytes=200_000),
        "valid_share": 0.1,
        "test_share": 0.2,
        "max_bytes": 300_000,
        "questions": 8,
    }
    return TextData.model_validate(settings | changes)


def write_letter_tokenizer(path, alphabet):
    """Write a tokenizer whose tokens are single letters and which drops other letters; return its spec."""
    from tokenizers import Tokenizer, models

    Tokenizer(models.BPE({token: i for i, token in enumerate(["<|endoftext|>", *alphabet])}, [])).save(str(path))
    return {"kind": "file", "path": str(path), "vocabulary": 300}
