"""Multiple-choice questions made from held-out documentation.

Three tasks of four choices: which summary belongs to this signature, which sentence continues this paragraph, which
word ends this sentence. Wrong choices are right ones of other modules. Small models answer above chance when scored
by mutual information, log p(choice | query) - log p(choice): `acc_mutual_info`.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from formerlab.data.text.docstrings import Documented, Module
from formerlab.data.text.embedded import REPEATABLE_CHARACTERS
from formerlab.errors import UserError
from formerlab.files import sha256, write_text

CHOICES = 4

DRAWN = 24
"""Answers drawn for the wrong choices of a question, some of which are of the same module or equal."""

FOLDER = "questions"

VERSION = 1.0


@dataclass(frozen=True)
class QuestionTask:
    """A kind of question."""

    name: str
    delimiter: str
    """Text between query and choice."""
    candidates: Callable[[Documented], Iterator[tuple[str, str]]]
    """Queries and answers that an entry yields."""


def summaries(entry: Documented) -> Iterator[tuple[str, str]]:
    """Yield a definition's signature and the sentence that sums it up."""
    summary = " ".join(entry.paragraphs[0].split())
    defines = entry.signature.startswith(("def ", "class "))
    if defines and entry.summary and REPEATABLE_CHARACTERS <= len(summary) <= 160 and summary.endswith("."):
        yield entry.signature, summary


def next_sentences(entry: Documented) -> Iterator[tuple[str, str]]:
    """Yield the beginning of each paragraph of prose and its last sentence."""
    for text in prose(entry):
        *before, last = re.split(r"(?<=[.!?]) (?=[A-Z`])", text)
        beginning = " ".join(before)
        if 30 <= len(beginning) <= 600 and 20 <= len(last) <= 250:
            yield beginning, last


def last_words(entry: Documented) -> Iterator[tuple[str, str]]:
    """Yield each paragraph of prose without its last word, and that word."""
    for text in prose(entry):
        before, _, last = text.removesuffix(".").rpartition(" ")
        if 40 <= len(before) <= 400 and re.fullmatch(r"[A-Za-z]{3,}", last):
            yield before, last


TASKS = (
    QuestionTask("embedded_summary", "\n", summaries),
    QuestionTask("embedded_next_sentence", " ", next_sentences),
    QuestionTask("embedded_last_word", " ", last_words),
)


def prose(entry: Documented) -> Iterator[str]:
    """Yield the paragraphs that are running text and occur once in the whole corpus, on one line each."""
    for paragraph in entry.paragraphs:
        lines = paragraph.splitlines()
        if len(paragraph) < REPEATABLE_CHARACTERS or not re.match(r"[A-Z`]", paragraph):
            continue
        marked = any(re.match(r"\s|>>>|\.\.|[-=*:|+#]", line) for line in lines)
        if not marked and paragraph.endswith(".") and "::" not in paragraph and " : " not in paragraph:
            yield " ".join(paragraph.split())


def make_questions(task: QuestionTask, modules: Sequence[Module], count: int) -> list[dict[str, Any]]:
    """Return up to `count` questions drawn at random, the same on every machine. Raises UserError where none can be."""
    found = [(module.name, *pair) for module in modules for entry in module.entries for pair in task.candidates(entry)]
    random = Random(task.name)
    random.shuffle(found)
    candidates = list({query: (module, query, answer) for module, query, answer in found}.values())
    places = [index % CHOICES for index in range(count)]
    random.shuffle(places)
    questions: list[dict[str, Any]] = []
    for module, query, answer in candidates:
        if len(questions) == count:
            break
        # Wrong choices are of other modules, all different, and drawn like the right one: nothing but the query tells.
        different: dict[str, str] = {}
        for elsewhere, _, other in random.sample(candidates, min(DRAWN, len(candidates))):
            if elsewhere != module and other.lower() != answer.lower():
                different.setdefault(other.lower(), other)
        wrong = list(different.values())[: CHOICES - 1]
        if len(wrong) == CHOICES - 1:
            gold = places[len(questions)]
            choices, name = [*wrong[:gold], answer, *wrong[gold:]], f"{task.name}-{len(questions):04d}"
            questions.append({"id": name, "query": query, "choices": choices, "gold": gold})
    if not questions:
        raise UserError(f"questions={count}: the test documents yield no '{task.name}'; raise test_share, or set 0")
    if len(questions) < count:
        print(f"{task.name}: {len(questions)} questions, for the test documents yield no more", file=sys.stderr)
    return questions


def write_questions(modules: Sequence[Module], count: int, out: Path) -> list[dict[str, Any]]:
    """Write `questions/<task>.jsonl` below `out`; return the manifest's entries."""
    entries = []
    for task in TASKS:
        questions = make_questions(task, modules, count)
        path = out / FOLDER / f"{task.name}.jsonl"
        write_text(path, "".join(json.dumps(question, ensure_ascii=False) + "\n" for question in questions))
        about = {"task": task.name, "version": VERSION, "file": path.relative_to(out).as_posix()}
        entries.append({**about, "examples": len(questions), "sha256": sha256(path)})
    return entries
