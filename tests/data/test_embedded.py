"""Embedded text: signatures and docstrings read from Python sources, and splits without common text."""

from importlib import metadata

import pytest
from corpora import embedded_data

from formerlab.data import Embedded
from formerlab.data.splitting import SPLITS
from formerlab.data.text.docstrings import read_code, read_module
from formerlab.data.text.documents import Deduplicator
from formerlab.data.text.embedded import PACKAGES, REPEATABLE_CHARACTERS
from formerlab.errors import UserError

SOURCE = '''
"""Module summary.

Second paragraph.
"""
import missing_package
raise SystemExit("never run")

class Ridge(Base, metaclass=Meta):
    """Linear model.


    Longer text
      with an indented line.
    """

    def fit(self, X, /, y=None, *rest: int, alpha: float = 1.0, **others) -> "Ridge":
        """Fit the model."""
        def inner():
            """Not reached from outside."""

    def silent(self): ...

if True:
    async def fetch():
        r"""Fetch \\d."""
'''

RENDERED = """\
package.module
Module summary.

Second paragraph.

class Ridge(Base):
Linear model.

Longer text
  with an indented line.

def fit(X, y, *rest, alpha, **others):
Fit the model.

def fetch():
Fetch \\d."""


def test_signatures_and_docstrings_in_source_order():
    module = read_module("package.module", SOURCE.encode())
    assert module.render() == RENDERED
    remaining = module.filtered(lambda text: "summary" not in text and "Fit" not in text)
    entries = [(entry.signature, entry.summary) for entry in remaining.entries]
    assert entries == [("package.module", False), ("class Ridge(Base):", True), ("def fetch():", True)]


CODE = """\
package.module
import missing_package
raise SystemExit('never run')

class Ridge(Base, metaclass=Meta):

    def fit(self, X, /, y=None, *rest: int, alpha: float=1.0, **others) -> 'Ridge':

        def inner():
            pass

    def silent(self):
        ...
if True:

    async def fetch():
        pass"""


def test_code_without_docstrings_and_comments():
    assert read_code("package.module", SOURCE.encode().replace(b"raise", b"# why\nraise")).render() == CODE


@pytest.mark.parametrize("read", [read_module, read_code])
@pytest.mark.parametrize("source", [b"def broken(:", b"\xff\xfe", b'"""  """', b"a\0b"])
def test_sources_without_text_are_skipped(source, read):
    assert read("x", source).entries == ()


@pytest.fixture(scope="module")
def docstrings():
    return divided("docstrings")


def divided(content):
    """Return the documents of networkx by split."""
    source = {"kind": "embedded", "packages": ["networkx"], "standard_library": False, "content": content}
    data = embedded_data(source=source, max_bytes=None, max_held_out_bytes=None, questions=0)
    documents: dict[str, list[str]] = {split: [] for split in SPLITS}
    for split, text in Deduplicator(data).documents(data.source.open(data.fractions).shards):
        documents[split].append(text)
    assert all(documents.values())
    return documents


def test_code_and_docstrings_share_no_text(docstrings):
    documents = divided("code")
    assert "import networkx as nx" in "".join(documents["train"])
    prose, code = (
        {paragraph for texts in split.values() for text in texts for paragraph in text.split("\n\n")}
        for split in (docstrings, documents)
    )
    assert not [paragraph for paragraph in prose & code if len(paragraph) >= REPEATABLE_CHARACTERS]


def test_long_paragraphs_occur_once(docstrings):
    paragraphs = [paragraph for texts in docstrings.values() for text in texts for paragraph in text.split("\n\n")]
    paragraphs = [text.partition(":\n")[2] if text.startswith(("def ", "class ")) else text for text in paragraphs]
    long = ["".join(text.split()) for text in paragraphs if len(text) >= REPEATABLE_CHARACTERS]
    assert len(long) > 1000
    assert len(set(long)) == len(long)


def test_documents_do_not_depend_on_questions():
    data = embedded_data(max_bytes=None, max_held_out_bytes=1)
    plain, with_questions = (data.source.open(data.fractions) for _ in range(2))
    modules = list(with_questions.test_modules)
    assert list(Deduplicator(data).documents(plain.shards)) == list(Deduplicator(data).documents(with_questions.shards))
    assert list(plain.test_modules) == modules


def test_tests_of_packages_are_not_read():
    names = [name for name, _ in Embedded(packages=("networkx",), standard_library=True).module_files()]
    assert "networkx.algorithms.dag" in names
    assert "asyncio.events" in names
    assert not [name for name in names if ".tests" in name or name.startswith("test.") or "site-packages" in name]
    assert len(set(names)) == len(names)


def test_state_and_notice_have_versions_and_licences():
    source = Embedded(packages=("networkx", "no-such-package"), standard_library=False)
    assert source.versions() == {"networkx": metadata.version("networkx")}
    assert "networkx" in source.licence_notice()
    assert "BSD" in source.licence_notice()
    assert source.state() == Embedded(packages=("networkx",), standard_library=False).state()
    assert source.state() != Embedded(packages=("networkx",)).state()
    with pytest.raises(UserError, match="no package of no-such-package is installed"):
        Embedded(packages=("no-such-package",), standard_library=False).module_files()
    assert all("not stated" not in notice for notice in Embedded(packages=PACKAGES).licence_notice().split(";"))
