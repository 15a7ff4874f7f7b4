"""Long-context tasks by the rules of RULER (arXiv:2404.06654, appendix B), generated from seeds, without a download.

Seven tasks: needles (one, several keys, several values, several queries) in a given text, variable tracking
between sentences of noise, common words of a list, and frequent coded words. Templates, counts and scores are RULER's.
Deviations from RULER: keys and listed words come from the text. Noise is added one sentence at a time. The solved
example of variable tracking is shorter; below `SOLVED` tokens, no task has a solved example.
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

FLOOR = 0.5
"""Minimum mean score of the full cache; tasks below it are excluded from the comparison of policies."""
LENGTHS = range(512, 8193)
"""Valid lengths in tokens, including the answer."""
SOLVED, SOLVED_CHAIN = 1024, 256
"""Minimum length with a solved example, and the length of the solved example of variable tracking."""
MANY_WORDS = 4096
"""Length from which common words are repeated 30 times and other words 3 times, otherwise 6 times and once."""
CODE_SHARE = 50
"""`frequent_words` has one coded word per this many tokens of the length."""
TEXT_WORDS = 20_000
"""Words read from the embedded text."""
NOISE = "The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again."
DEPTHS = [round(100 * place / 39) for place in range(40)]
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
    """The words of a text, which is the haystack of needles and the source of listed words."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = [word for word in words if len(word) <= 20]  # a longer word would make lengths coarse
        plain = {word for word in self.words if re.fullmatch("[a-z]{4,9}", word)}
        self.vocabulary = sorted(plain)


def read_text(path: Path | None = None) -> Text:
    """Return the text of a file, by default the documentation of the standard library of this Python."""
    if path is not None:
        try:
            return Text(path.read_text(encoding="utf-8").split())
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--text: {path} is not a readable UTF-8 file ({error}); name another") from None
    words: list[str] = []
    for module in read_modules(Embedded(packages=()).located(), Digests()):
        words += module.render().split()
        if len(words) >= TEXT_WORDS:
            break
    return Text(words)


def needles(
    text: Text, random: Random, units: int, length: int, *, keys: int = 1, values: int = 1, queries: int = 1
) -> Example:
    """Hide `keys` x `values` needles at random depths between the sentences of the first `units` words."""
    del length
    if units > len(text.words):
        raise OutOfText
    names = _distinct(keys, lambda: "-".join(random.sample(text.vocabulary, 2)))
    numbers = [str(number) for number in random.sample(range(10**6, 10**7), keys * values)]
    of_key = {name: numbers[index * values : (index + 1) * values] for index, name in enumerate(names)}
    hidden = [f"One of the special magic numbers for {name} is: {number}." for name in names for number in of_key[name]]
    random.shuffle(hidden)
    depths, asked = sorted(random.sample(DEPTHS, len(hidden))), random.sample(names, queries)
    sentences = re.split(r"(?<=[.!?]) ", " ".join(text.words[:units]))
    total = len(sentences)
    for depth, needle in reversed([*zip(depths, hidden, strict=True)]):
        sentences.insert(total * depth // 100, needle)
    query = " and ".join([", ".join(asked[:-1]) + ",", asked[-1]]) if queries > 1 else asked[0]
    forms = NEEDLE if values * queries == 1 else NEEDLES
    prompt, start = (form.format(context=" ".join(sentences), query=query) for form in forms)
    return Example(prompt, start, [number for name in asked for number in of_key[name]])


def variable_tracking(text: Text, random: Random, units: int, length: int, *, letters: int = 5) -> Example:
    """Hide a chain of five assignments, in order, between `units` sentences of noise."""
    names = _distinct(5, lambda: "".join(random.choices(ascii_uppercase, k=letters)))
    value = random.randrange(10_000, 99_999)
    assigned = [str(value), *(f"VAR {name}" for name in names)]
    sentences = [NOISE[index % len(NOISE)] for index in range(units)]
    places = sorted(random.sample(range(units), len(names)), reverse=True)
    for place, name, right in zip(places, reversed(names), reversed(assigned[:-1]), strict=True):
        sentences.insert(place, f"VAR {name} = {right}")
    prompt, start = (form.format(context=" ".join(sentences), query=value) for form in CHAIN)
    return Example(prompt, start, names)


def common_words(text: Text, random: Random, units: int, length: int, *, repeats: tuple[int, int] = (0, 0)) -> Example:
    """List `units` words in random order, ten of them more often; `repeats` defaults to RULER's counts."""
    often, seldom = repeats if any(repeats) else (30, 3) if length >= MANY_WORDS else (6, 1)
    if units > len(text.vocabulary):
        raise OutOfText
    words = random.sample(text.vocabulary, units)
    listed = words[:10] * often + words[10:] * seldom
    random.shuffle(listed)
    return Example(COMMON[0].format(context=_numbered(listed)), COMMON[1], words[:10])


def frequent_words(text: Text, random: Random, units: int, length: int) -> Example:
    """Draw about `units` coded words with frequencies of a Zipf law (exponent 2); the most frequent is noise."""
    coded = _distinct(max(5, length // CODE_SHARE), lambda: "".join(random.choices(ascii_lowercase, k=6)))
    counts = [int(units * 6 / math.pi**2 / rank**2) for rank in range(1, len(coded) + 1)]
    if counts[3] == counts[4]:
        raise TooShort
    words = [*chain.from_iterable([word] * count for word, count in zip(["...", *coded[1:]], counts, strict=True))]
    random.shuffle(words)
    return Example(FREQUENT[0].format(context=" ".join(words)), FREQUENT[1], coded[1:4])


class TooShort(Exception):
    """The units are too few for the task's rule."""


class OutOfText(Exception):
    """The units are more than the text has."""


def _distinct(number: int, draw: Callable[[], str]) -> list[str]:
    """Return the first `number` different draws, in their order."""
    drawn: dict[str, None] = {}
    while len(drawn) < number:
        drawn[draw()] = None
    return list(drawn)


def _numbered(words: Iterable[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, 1))


class Task(NamedTuple):
    """A task: its generator, the maximum length of an answer in tokens, and the smallest number of units."""

    make: Callable[[Text, Random, int, int], Example]
    answer_tokens: int
    least: int = 1


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
Count = Callable[[str], int]
"""Returns the number of tokens of a text."""


def examples(name: str, length: int, number: int, count: Count, text: Text, seed: int = 0) -> Iterator[Example]:
    """Yield `number` examples of a task whose prompts and answers have 98 % to 100 % of `length` tokens.

    Each example has its own seed: (seed, task, length, index). Raises UserError for a length or a text that is too
    short for the task.
    """
    if length not in LENGTHS:
        raise UserError(f"lengths: {length} is not in {LENGTHS[0]} to {LENGTHS[-1]} tokens; give another")
    for index in range(number):
        source = f"{seed} {name} {length} {index}"
        solved = _solved(name, count, text, source) if length >= SOLVED else ""
        room = length - TASKS[name].answer_tokens - (count(solved) if solved else 0)
        example = _fitted(name, TASKS[name], room, length, count, text, source)
        yield example._replace(input=solved + example.input)


def _solved(name: str, count: Count, text: Text, source: str) -> str:
    """Return the solved example that RULER puts before the tasks of chains and common words."""
    random = Random(f"{source} solved")
    if name == "common_words":
        units, repeats = (40, (10, 3)) if int(source.split()[2]) >= MANY_WORDS else (20, (3, 1))
        example = common_words(text, random, units, 0, repeats=repeats)
        answer = _numbered(example.outputs)
    elif name == "variable_tracking":
        short = Task(partial(variable_tracking, letters=3), 0, 5)
        example = _fitted(name, short, SOLVED_CHAIN, SOLVED_CHAIN, count, text, f"{source} solved")
        answer = " ".join(example.outputs)
    else:
        return ""
    return f"{example.input} {example.gen_prefix} {answer}\n\n"


def _largest(fits: Callable[[int], bool], least: int, most: int) -> int:
    """Return the largest number from `least` to `most` that fits, by bisection; 0 if `least` does not fit."""
    low, high = least - 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low if low >= least else 0


def _fitted(name: str, task: Task, room: int, length: int, count: Count, text: Text, source: str) -> Example:
    """Return the example with the most units whose prompt has at most `room` tokens."""

    def make(units: int) -> Example:
        return task.make(text, Random(source), units, length)

    def tokens(example: Example) -> int:
        return count(f"{example.input} {example.gen_prefix}")

    def fits(units: int) -> bool:
        try:
            return tokens(make(units)) <= room
        except (TooShort, OutOfText) as error:
            return isinstance(error, TooShort)

    low = _largest(fits, task.least, 2 * length)
    with suppress(TooShort):
        if low and tokens(example := make(low)) < room - 0.02 * length:
            raise UserError(f"--text: {len(text.words)} words are too few for {name} at {length} tokens; give more")
        if low:
            return example
    raise UserError(f"lengths: {length} tokens leave no room for an example of {name}; give more")


def score(document: dict[str, Any], results: Sequence[str]) -> dict[str, float]:
    """Return RULER's scores of an answer: the fraction of outputs that it contains, and whether it contains any."""
    answer = re.sub(r"[\x00-\x1f]", "\n", results[0]).strip().lower()
    contained = [output.lower() in answer for output in document["outputs"]]
    return {"string_match": sum(contained) / len(contained), "string_match_part": float(any(contained))}


def task_config(name: str, length: int, rows: Sequence[Example]) -> dict[str, Any]:
    """Return the task of lm-evaluation-harness that asks these examples, named as in `needle_single_1024`."""
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
