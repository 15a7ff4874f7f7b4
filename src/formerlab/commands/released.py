"""The verb `released`: a released language model under cache policies, measured, drawn and heard, in minutes."""

import argparse
import platform
import textwrap
import time
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from formerlab.commands.context import add_verb
from formerlab.errors import UserError

if TYPE_CHECKING:
    from formerlab.integrations.huggingface.load import Loaded

BUDGETS = (0.4, 0.2)
ALPHA = 0.2
KINDS, CHOICES = 3, 4
"""Of questions in the sample, and of answers to each."""
COLUMN = 58
"""Characters of each of two texts side by side."""
SHORT = 64
"""Tokens of a prompt, below which a share of them is too few to tell a policy by its text."""
PROMPT = """\
The village of Harrow lay between the river and the hills, and everyone in it knew the old clockmaker, Anna Brandt. \
She had a small shop beside the bridge, a grey cat called Tobias, and a habit of telling visitors that every clock has \
a temper of its own. One winter morning a boy came in with a silver watch that had stopped at nine minutes to four. \
"It was my grandfather's," he said. "He wore it every day at the mill, until the flood." Anna turned the watch over, \
opened it with a thin blade and held it to the light. Between the wheels there was a grain of sand, and under the \
spring somebody had scratched four words. She read them twice, put on her other glasses and asked the boy to sit down. \
"Before I mend this," she said, "I must tell you something about your grandfather."
"""


def add_parsers(verbs: Any) -> None:
    """Add the verb."""
    parser = add_verb(verbs, released, configured=False)
    parser.add_argument(
        "model",
        nargs="?",
        default="smollm2-135m-instruct",
        help="as for prune-folder: a known name, a folder, a .gguf file or hub:owner/name; default: %(default)s",
    )
    parser.add_argument("--out", type=Path, default=Path("results/released"), help="default: %(default)s")
    parser.add_argument("--questions", type=int, default=60, help="of each of three kinds; default: %(default)s")
    parser.add_argument("--windows", type=int, default=16, help="of 512 tokens; default: %(default)s")
    parser.add_argument("--prompt", help="text to be continued by the full and the pruned cache; default: a story")
    parser.add_argument("--tokens", type=int, default=64, help="of the continuation; default: %(default)s")
    parser.add_argument("--device", default="cpu", help="cpu or cuda; default: cpu")
    parser.add_argument("--dtype", help="default: bfloat16 where the processor computes in it, else as saved")


def released(arguments: argparse.Namespace) -> None:
    """Show a released language model under cache policies: accuracy, loss, figure, texts side by side."""
    import torch

    from formerlab.integrations.huggingface.load import computes_in_bfloat16, identity_of, load_any
    from formerlab.integrations.huggingface.sweep import read_sweep, run_sweep, write_sample
    from formerlab.released import parse_released
    from formerlab.report.pages import plain
    from formerlab.report.released import picture, summarised

    start = time.perf_counter()
    for name in ("questions", "windows", "tokens"):
        if getattr(arguments, name) < 1:
            raise UserError(f"--{name} {getattr(arguments, name)}: give at least 1")
    source = parse_released(arguments.model)
    fast = "bfloat16" if computes_in_bfloat16(arguments.device) else source.dtype
    narrowed = parse_released(arguments.model, dtype=arguments.dtype or fast)  # refuses an unknown type
    out = arguments.out / Path(arguments.model).name
    sample = write_sample(out / "sample", arguments.questions)
    print(f"{arguments.model}: loading", flush=True)
    loaded = load_any(source, device=arguments.device)
    print(_side_by_side(loaded, arguments.prompt or PROMPT, arguments.tokens), flush=True)
    if narrowed.dtype is not None:
        loaded.model.to(getattr(torch, narrowed.dtype))
    policies = ({"kind": "local"}, {"kind": "h2o"})
    asked: dict[str, Any] = {"policies": policies, "alphas": (ALPHA,), "budgets": BUDGETS, **sample}
    sweep = read_sweep(None, windows=arguments.windows, **asked)
    means = run_sweep(loaded, sweep, out, identity=identity_of(narrowed, arguments.device))
    name = f"python-docs-{platform.python_version()}"  # which change with every release
    rows = summarised(means, KINDS * arguments.questions)
    (out / "table.txt").write_text(plain(rows) + "\n", encoding="utf-8")
    picture(rows, 100 / CHOICES, f"{arguments.model}, {name}", out / "accuracy_and_loss")
    chance = f"{CHOICES} choices, chance {100 // CHOICES} %, 95 % intervals"
    print(f"\n{arguments.model} ({narrowed.dtype or 'as saved'}) on {name}, {chance}:\n\n{plain(rows)}")
    print(f"\n{time.perf_counter() - start:.0f} s. Figure, table, answers, losses and texts are in {out}")
    print("The same on your own prompt:   make released PROMPT='...'      on your own model: docs/pruning.md")


def _side_by_side(loaded: "Loaded", prompt: str, tokens: int) -> str:
    """Continue a prompt by the full cache and by one that forgets; return both texts with speed and bytes."""
    from formerlab.cache import Decay, KVCache, PrunedCache
    from formerlab.evaluation.language.generate import check_text
    from formerlab.evaluation.language.generate import sample as continued

    check_text("--prompt", prompt)
    ids = loaded.tokenizer.encode(prompt.strip(), add_special_tokens=False).ids
    if not 1 < len(ids) <= loaded.model.spec.context - tokens:
        raise UserError(f"--prompt: {len(ids)} tokens; give 2 to {loaded.model.spec.context - tokens}")
    columns: list[Sequence[str]] = []
    pruned = PrunedCache(Decay(alpha=ALPHA), BUDGETS[0], loaded.model.position)
    for title, cache in (("full cache", KVCache()), (f"Decay {ALPHA} at {BUDGETS[0]:.0%}", pruned)):
        new, times = [], []
        for token in continued(loaded.model, ids, tokens=tokens, temperature=0.0, attend=cache):
            new.append(token)
            times.append(time.perf_counter())
        speed = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else float("nan")
        lines = textwrap.wrap(" ".join(loaded.tokenizer.decode(new).split()), COLUMN)
        columns.append([title, f"{speed:.1f} tokens/s, {cache.bytes() / 1e6:.2f} MB of keys and values", "", *lines])
    story = textwrap.fill(prompt.strip(), 2 * COLUMN + 3)
    if len(ids) < SHORT:
        story += f"\nOf {len(ids)} tokens too few are left to tell a policy by its text; give {SHORT} or more."
    rows = [f"{left:<{COLUMN}} | {right}".rstrip() for left, right in zip_longest(*columns, fillvalue="")]
    return "\n".join(["", story, "", *rows])
