"""Multiple-choice questions made from held-out documentation.

The three tasks ask for the summary of a definition (given its signature), the last sentence of a paragraph, or the last
word of a paragraph. Wrong choices are correct answers from other modules.
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

SAMPLED_ANSWERS = 24
"""Number of answers that are sampled for the wrong choices of a question."""

FOLDER = "questions"

VERSION = 1.0


@dataclass(frozen=True)
class QuestionTask:
    """A task of multiple-choice questions."""

    name: str
    delimiter: str
    """Text between query and choice."""
    candidates: Callable[[Documented], Iterator[tuple[str, str]]]
    """Yields (query, answer) pairs of a documented definition."""


def summaries(entry: Documented) -> Iterator[tuple[str, str]]:
    """Yield the signature and the summary of a definition if the summary is a sentence of suitable length."""
    summary = " ".join(entry.paragraphs[0].split())
    defines = entry.signature.startswith(("def ", "class "))
    if defines and entry.summary and REPEATABLE_CHARACTERS <= len(summary) <= 160 and summary.endswith("."):
        yield entry.signature, summary


def next_sentences(entry: Documented) -> Iterator[tuple[str, str]]:
    """Yield the beginning of each paragraph of prose, and its last sentence."""
    for text in prose(entry):
        *sentences, last = re.split(r"(?<=[.!?]) (?=[A-Z`])", text)
        query = " ".join(sentences)
        if 30 <= len(query) <= 600 and 20 <= len(last) <= 250:
            yield query, last


def last_words(entry: Documented) -> Iterator[tuple[str, str]]:
    """Yield the beginning of each paragraph of prose, and its last word."""
    for text in prose(entry):
        query, _, last = text.removesuffix(".").rpartition(" ")
        if 40 <= len(query) <= 400 and re.fullmatch(r"[A-Za-z]{3,}", last):
            yield query, last


TASKS = (
    QuestionTask("embedded_summary", "\n", summaries),
    QuestionTask("embedded_next_sentence", " ", next_sentences),
    QuestionTask("embedded_last_word", " ", last_words),
)


def prose(entry: Documented) -> Iterator[str]:
    """Yield the paragraphs that are running text and occur once in the corpus, each joined to one line."""
    for paragraph in entry.paragraphs:
        lines = paragraph.splitlines()
        if len(paragraph) < REPEATABLE_CHARACTERS or not re.match(r"[A-Z`]", paragraph):
            continue
        has_markup = any(re.match(r"\s|>>>|\.\.|[-=*:|+#]", line) for line in lines)
        if not has_markup and paragraph.endswith(".") and "::" not in paragraph and " : " not in paragraph:
            yield " ".join(paragraph.split())


def make_questions(task: QuestionTask, modules: Sequence[Module], count: int) -> list[dict[str, Any]]:
    """Return up to `count` random questions, the same on all machines; raise UserError if no question can be made."""
    pairs = [(module.name, *pair) for module in modules for entry in module.entries for pair in task.candidates(entry)]
    random = Random(task.name)
    random.shuffle(pairs)
    candidates = list({query: (module, query, answer) for module, query, answer in pairs}.values())
    gold_positions = [index % CHOICES for index in range(count)]
    random.shuffle(gold_positions)
    questions: list[dict[str, Any]] = []
    for module, query, answer in candidates:
        if len(questions) == count:
            break
        distractors: dict[str, str] = {}
        for other_module, _, text in random.sample(candidates, min(SAMPLED_ANSWERS, len(candidates))):
            if other_module != module and text.lower() != answer.lower():
                distractors.setdefault(text.lower(), text)
        wrong = list(distractors.values())[: CHOICES - 1]
        if len(wrong) == CHOICES - 1:
            gold = gold_positions[len(questions)]
            choices, name = [*wrong[:gold], answer, *wrong[gold:]], f"{task.name}-{len(questions):04d}"
            questions.append({"id": name, "query": query, "choices": choices, "gold": gold})
    if not questions:
        raise UserError(f"questions={count}: the test documents yield no '{task.name}'; raise test_share, or set 0")
    if len(questions) < count:
        print(f"{task.name}: the test documents yield only {len(questions)} questions", file=sys.stderr)
    return questions


def write_questions(modules: Sequence[Module], count: int, out: Path) -> list[dict[str, Any]]:
    """Write the questions of all tasks below `out`; return their manifest entries."""
    entries = []
    for task in TASKS:
        questions = make_questions(task, modules, count)
        path = out / FOLDER / f"{task.name}.jsonl"
        write_text(path, "".join(json.dumps(question, ensure_ascii=False) + "\n" for question in questions))
        entry = {"task": task.name, "version": VERSION, "file": path.relative_to(out).as_posix()}
        entries.append({**entry, "examples": len(questions), "sha256": sha256(path)})
    return entries
