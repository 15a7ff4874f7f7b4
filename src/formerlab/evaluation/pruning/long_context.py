"""Long-context tasks by the rules of RULER (arXiv:2404.06654, appendix B), generated from seeds without a download.

Templates, counts and scores follow RULER, with these deviations: keys and listed words come from the text, noise is
added one sentence at a time, the solved example of variable tracking is shorter, and examples below `SOLVED_LENGTH`
tokens have no solved example. A unit is a word of the text or list, or a sentence of noise; the number of units
determines the length of an example.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from string import ascii_lowercase, ascii_uppercase
from typing import Any, NamedTuple

from formerlab.data.splitting import Digests
from formerlab.data.text.embedded import Embedded, read_modules
from formerlab.errors import UserError

MIN_FULL_SCORE = 0.5
"""Minimum mean score of the full cache; a task with a lower score is excluded from the comparison of policies."""
LENGTHS = range(512, 8193)
"""Valid lengths in tokens, including the answer."""
SOLVED_LENGTH = 1024
"""Examples of at least this length have a solved example (variable tracking and common words)."""
SOLVED_CHAIN_LENGTH = 256
"""Maximum length of the solved example of variable tracking, without its answer."""
LONG_LIST_LENGTH = 4096
"""Examples of at least this length have the larger counts of `common_words`."""
TOKENS_PER_CODED_WORD = 50
"""Example length in tokens divided by the number of coded words (`frequent_words`)."""
TEXT_WORDS = 20_000
"""Minimum number of words that are read from the embedded text."""
NOISE = "The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again."
DEPTHS = [round(100 * position / 39) for position in range(40)]
"""Depths of needles in per cent of the sentences."""
NEEDLES = (
    "Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you about "
    "the numbers afterwards.\n{context}\nWhat are all the special magic numbers for {query} mentioned in the provided "
    "text?",
    "The special magic numbers for {query} mentioned in the provided text are",
)
NEEDLE = (
    "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about the "
    "number afterwards.\n{context}\nWhat is the special magic number for {query} mentioned in the provided text?",
    "The special magic number for {query} mentioned in the provided text is",
)
CHAIN = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\nQuestion: Find "
    "all variables that are assigned the value {query} in the text above.",
    "Answer: According to the chain(s) of variable assignment in the text above, 5 variables are assigned the value "
    "{query}, they are:",
)
COMMON = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list?",
    "Answer: The top 10 words that appear most often in the list are:",
)
FREQUENT = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared "
    "coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the "
    "three most frequently appeared words in the above coded text?",
    "Answer: According to the coded text above, the three most frequently appeared words are:",
)


class Example(NamedTuple):
    """A prompt and the strings that its answer must contain."""

    input: str
    gen_prefix: str
    """Beginning of the answer, which ends the prompt."""
    outputs: list[str]


class Text:
    """The words of the text in which needles are hidden and from which listed words are taken."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = [word for word in words if len(word) <= 20]  # with longer words, lengths would be less exact
        self.vocabulary = sorted({word for word in self.words if re.fullmatch("[a-z]{4,9}", word)})


def read_text(path: Path | None = None) -> Text:
    """Return the text of a file, by default documentation of this Python's standard library.

    Raises UserError for a file that is not readable.
    """
    if path is not None:
        try:
            return Text(path.read_text(encoding="utf-8").split())
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--text: {path} is not a readable UTF-8 file ({error}); give another file") from None
    words: list[str] = []
    for module in read_modules(Embedded(packages=()).module_files(), Digests()):
        words += module.render().split()
        if len(words) >= TEXT_WORDS:
            break
    return Text(words)


def needles(
    text: Text, random: Random, units: int, length: int, *, keys: int = 1, values: int = 1, queries: int = 1
) -> Example:
    """Hide `keys` x `values` needles between the sentences of the first `units` words; ask for `queries` keys."""
    del length
    if units > len(text.words):
        raise TextTooShort
    names = _distinct(keys, lambda: "-".join(random.sample(text.vocabulary, 2)))
    numbers = [str(number) for number in random.sample(range(10**6, 10**7), keys * values)]
    by_name = {name: numbers[index * values : (index + 1) * values] for index, name in enumerate(names)}
    hidden = [f"One of the special magic numbers for {name} is: {n}." for name in names for n in by_name[name]]
    random.shuffle(hidden)
    depths, queried = sorted(random.sample(DEPTHS, len(hidden))), random.sample(names, queries)
    sentences = re.split(r"(?<=[.!?]) ", " ".join(text.words[:units]))
    total = len(sentences)
    for depth, needle in reversed([*zip(depths, hidden, strict=True)]):
        sentences.insert(total * depth // 100, needle)
    query = " and ".join([", ".join(queried[:-1]) + ",", queried[-1]]) if queries > 1 else queried[0]
    templates = NEEDLE if values * queries == 1 else NEEDLES
    prompt, start = (template.format(context=" ".join(sentences), query=query) for template in templates)
    return Example(prompt, start, [number for name in queried for number in by_name[name]])


def variable_tracking(text: Text, random: Random, units: int, length: int, *, letters: int = 5) -> Example:
    """Hide a chain of five assignments, in order, between `units` sentences of noise."""
    names = _distinct(5, lambda: "".join(random.choices(ascii_uppercase, k=letters)))
    value = random.randrange(10_000, 99_999)
    assigned = [str(value), *(f"VAR {name}" for name in names)]
    sentences = [NOISE[index % len(NOISE)] for index in range(units)]
    positions = sorted(random.sample(range(units), len(names)), reverse=True)
    for position, name, right in zip(positions, reversed(names), reversed(assigned[:-1]), strict=True):
        sentences.insert(position, f"VAR {name} = {right}")
    prompt, start = (template.format(context=" ".join(sentences), query=value) for template in CHAIN)
    return Example(prompt, start, names)


def common_words(
    text: Text, random: Random, units: int, length: int, *, repeats: tuple[int, int] | None = None
) -> Example:
    """List `units` different words in random order, ten of them more often than the others. Raises TextTooShort.

    `repeats` has the count of each of ten common words and the count of each other word (default: RULER's counts).
    """
    common_count, other_count = repeats or ((30, 3) if length >= LONG_LIST_LENGTH else (6, 1))
    if units > len(text.vocabulary):
        raise TextTooShort
    words = random.sample(text.vocabulary, units)
    listed = words[:10] * common_count + words[10:] * other_count
    random.shuffle(listed)
    return Example(COMMON[0].format(context=_numbered(listed)), COMMON[1], words[:10])


def frequent_words(text: Text, random: Random, units: int, length: int) -> Example:
    """Return an example with about `units` words in random order, whose frequencies follow Zipf's law (exponent 2).

    The number of different words is `length` / TOKENS_PER_CODED_WORD, at least 5. The most frequent word is replaced by
    "...". Raises TooFewUnits.
    """
    coded = _distinct(max(5, length // TOKENS_PER_CODED_WORD), lambda: "".join(random.choices(ascii_lowercase, k=6)))
    counts = [int(units * 6 / math.pi**2 / rank**2) for rank in range(1, len(coded) + 1)]
    if counts[3] == counts[4]:
        raise TooFewUnits
    words = [*chain.from_iterable([word] * count for word, count in zip(["...", *coded[1:]], counts, strict=True))]
    random.shuffle(words)
    return Example(FREQUENT[0].format(context=" ".join(words)), FREQUENT[1], coded[1:4])


class TooFewUnits(Exception):
    """The words with ranks 4 and 5 would be equally frequent."""


class TextTooShort(Exception):
    """The text has fewer units than the example needs."""


def _distinct(number: int, make: Callable[[], str]) -> list[str]:
    """Call `make` until it has returned `number` different strings; return these strings in order."""
    strings: dict[str, None] = {}
    while len(strings) < number:
        strings[make()] = None
    return list(strings)


def _numbered(words: Iterable[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, 1))


class Task(NamedTuple):
    """A task: its generator, the maximum length of an answer in tokens, and the smallest number of units."""

    make: Callable[[Text, Random, int, int], Example]
    answer_tokens: int
    min_units: int = 1


TASKS = {
    "needle_single": Task(needles, 128),
    "needle_multikey": Task(partial(needles, keys=4), 128),
    "needle_multivalue": Task(partial(needles, values=4), 128),
    "needle_multiquery": Task(partial(needles, keys=4, queries=4), 128),
    "variable_tracking": Task(variable_tracking, 30, 5),
    "common_words": Task(common_words, 120, 11),
    "frequent_words": Task(frequent_words, 50, 12),
}
"""The tasks by name, with RULER's numbers of needles and lengths of answers."""
CountTokens = Callable[[str], int]


def examples(name: str, length: int, number: int, count: CountTokens, text: Text, seed: int = 0) -> Iterator[Example]:
    """Yield `number` examples of a task whose prompt and maximum answer have 98 % to 100 % of `length` tokens together.

    The seed of an example is (seed, task, length, index). Raises UserError for a length outside LENGTHS or too short
    for the task, and for a text that is too short.
    """
    if length not in LENGTHS:
        raise UserError(f"lengths: {length} is not in {LENGTHS[0]} to {LENGTHS[-1]} tokens; give another length")
    for index in range(number):
        key = f"{seed} {name} {length} {index}"
        solved = _solved(name, length, count, text, f"{key} solved") if length >= SOLVED_LENGTH else ""
        room = length - TASKS[name].answer_tokens - (count(solved) if solved else 0)
        example = _longest_example(name, TASKS[name], room, length, count, text, key)
        yield example._replace(input=solved + example.input)


def _solved(name: str, length: int, count: CountTokens, text: Text, seed: str) -> str:
    """Return the solved example of variable tracking or common words, or "" for other tasks."""
    random = Random(seed)
    if name == "common_words":
        units, repeats = (40, (10, 3)) if length >= LONG_LIST_LENGTH else (20, (3, 1))
        example = common_words(text, random, units, 0, repeats=repeats)
        answer = _numbered(example.outputs)
    elif name == "variable_tracking":
        short = Task(partial(variable_tracking, letters=3), 0, 5)
        example = _longest_example(name, short, SOLVED_CHAIN_LENGTH, SOLVED_CHAIN_LENGTH, count, text, seed)
        answer = " ".join(example.outputs)
    else:
        return ""
    return f"{example.input} {example.gen_prefix} {answer}\n\n"


def _largest(fits: Callable[[int], bool], min_units: int, max_units: int) -> int:
    """Return the largest n, min_units <= n < max_units, for which `fits(n)` is true, by bisection, or 0."""
    low, high = min_units - 1, max_units
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low if low >= min_units else 0


def _longest_example(
    name: str, task: Task, room: int, length: int, count: CountTokens, text: Text, seed: str
) -> Example:
    """Return the example with the most units whose prompt has at most `room` tokens.

    Raises UserError if the text is too short, or if no example fits.
    """

    def make(units: int) -> Example:
        return task.make(text, Random(seed), units, length)

    def tokens(example: Example) -> int:
        return count(f"{example.input} {example.gen_prefix}")

    def fits(units: int) -> bool:
        try:
            return tokens(make(units)) <= room
        except (TooFewUnits, TextTooShort) as error:
            return isinstance(error, TooFewUnits)

    units = _largest(fits, task.min_units, 2 * length)
    with suppress(TooFewUnits):
        if units and tokens(example := make(units)) < room - 0.02 * length:
            words = f"{len(text.words)} words ({len(text.vocabulary)} different words of 4 to 9 letters)"
            raise UserError(f"--text: {words} are too few for {name} at {length} tokens; give a longer text")
        if units:
            return example
    raise UserError(f"lengths: {length} tokens leave no room for an example of {name}; give a larger length")


def score(document: dict[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Return RULER's scores of an answer: the fraction of outputs that it contains, and whether it contains any."""
    answer = re.sub(r"[\x00-\x1f]", "\n", results[0]).strip().lower()
    contained = [output.lower() in answer for output in document["outputs"]]
    return {"string_match": sum(contained) / len(contained), "string_match_part": float(any(contained))}


def task_config(name: str, length: int, rows: Sequence[Example]) -> dict[str, Any]:
    """Return a task configuration of lm-evaluation-harness with these examples, named as in `needle_single_1024`."""
    from datasets import Dataset

    metrics = ("string_match", "string_match_part")
    return {
        "task": f"{name}_{length}",
        "custom_dataset": lambda **_: {"test": Dataset.from_list([row._asdict() for row in rows])},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{input}}",
        "doc_to_target": "{{outputs[0]}}",
        "gen_prefix": "{{gen_prefix}}",
        "process_results": score,
        "generation_kwargs": {"until": [], "do_sample": False, "max_gen_toks": TASKS[name].answer_tokens},
        "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in metrics],
        "metadata": {"version": 1.0},
    }
