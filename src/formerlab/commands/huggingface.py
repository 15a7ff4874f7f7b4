"""The verbs of models of others: export-huggingface, import-tokenformer, zeroshot-folder, prune-folder, released."""

import argparse
import platform
import sys
import textwrap
import time
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from formerlab.commands.context import add_verb, job_of, load_plan
from formerlab.errors import UserError
from formerlab.files import read_json
from formerlab.results.write import write_rows

if TYPE_CHECKING:
    from formerlab.integrations.huggingface.load import Loaded
    from formerlab.integrations.huggingface.sweep import QuestionSweep
    from formerlab.released import ReleasedModel


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
    """Add the verbs."""
    parser = add_verb(verbs, export_huggingface)
    parser.add_argument("run", help="a run, such as tokenformer/transformer/seed0, or the folder of a finished run")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--licence", default="not stated", help="of the weights, for the model card")

    parser = add_verb(verbs, import_tokenformer, configured=False)
    parser.add_argument("checkpoint", type=Path, help="folder with pytorch_model.bin and tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="Hugging Face folder to write")
    parser.add_argument("--config", type=Path, help="the official code's .yml; default: the one in the folder, if any")
    parser.add_argument("--tokenizer", type=Path, help="GPT-NeoX-20B's tokenizer.json; default: the one in the folder")

    _add_model_arguments(add_verb(verbs, zeroshot_folder, configured=False))
    parser = add_verb(verbs, prune_folder, configured=False)
    _add_model_arguments(parser)
    parser.add_argument("--sweep", type=Path, help="YAML file of a sweep; default: that of the Decay article")

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


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        help="folder (of transformers, ours, or a released Tokenformer), .gguf file, hub:owner/name, or a known name "
        "such as smollm2-135m-instruct",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the rows")
    parser.add_argument("--tasks", type=lambda text: tuple(text.split(",")), help="task names or .yaml files, by comma")
    parser.add_argument("--limit", type=int, help="first examples of each task; default: all")
    parser.add_argument("--batch", type=int, help="sequences per forward pass; default: 64")
    parser.add_argument("--device", default="cpu", help="cpu or cuda; default: cpu")
    parser.add_argument("--dtype", help="float32, float16, bfloat16 or float64; default: as saved")
    parser.add_argument("--context", type=int, help="longest sequence, in tokens; default: the model's")
    parser.add_argument("--leading-token", action="store_true", default=None, help="begin every context with <bos>")
    parser.add_argument("--online", action="store_true", help="let the harness and hub:... fetch from the hub")


def export_huggingface(arguments: argparse.Namespace) -> None:
    """Write a finished run as a Hugging Face folder."""
    from formerlab.data import load_tokenizer
    from formerlab.integrations.huggingface.export import CODE, card_of, save_folder
    from formerlab.models.decoder import DecoderModel
    from formerlab.training.load import load_model

    folder, out = Path(arguments.run), arguments.out
    if not (folder / "run.json").is_file():  # a run of the plan
        plan = load_plan(arguments)
        job_of(plan, "train", arguments.run)
        folder = Path(plan["results"], arguments.run)
    model, run = load_model(folder)
    if not isinstance(model, DecoderModel):
        raise UserError(f"{folder}: a {run.model.kind}; only decoders can be exported")
    data = folder.resolve().parents[2] / "data" / run.data
    manifest = read_json(data / "manifest.json")
    card = card_of(read_json(folder / "run.json"), arguments.licence, manifest.get("licence", "not stated"))
    save_folder(model, load_tokenizer(data), out, end_of_text=manifest["tokenizer"]["end_of_text"], card=card)
    own = (out / CODE).is_file()
    print(f"{out}: AutoModelForCausalLM reads it" + (f", with trust_remote_code ({CODE})" if own else ""))


def import_tokenformer(arguments: argparse.Namespace) -> None:
    """Write a released Tokenformer checkpoint as our model."""
    from formerlab.data.text.tokenizer import TokenizerFile
    from formerlab.integrations.huggingface.export import save_folder
    from formerlab.integrations.huggingface.neox import load_released

    model = load_released(arguments.checkpoint, arguments.config)
    file = arguments.tokenizer or arguments.checkpoint / "tokenizer.json"
    tokenizer, end_of_text = TokenizerFile(path=str(file), vocabulary=model.spec.vocabulary).load()
    save_folder(model, tokenizer, arguments.out, end_of_text=end_of_text)
    inside = model.spec.params(embedding=False)
    print(f"{arguments.out}: {model.spec.params():,} parameters, {inside:,} of them in blocks")


def zeroshot_folder(arguments: argparse.Namespace) -> None:
    """Answer zero-shot questions with a model folder."""
    from formerlab.evaluation.language.zeroshot import COLUMNS
    from formerlab.integrations.huggingface.load import load_any
    from formerlab.integrations.huggingface.sweep import means_by_name
    from formerlab.progress import Progress

    sweep, source = _asked(arguments)
    loaded = load_any(source, device=arguments.device, online=arguments.online)
    questions = sweep.questions(loaded, online=arguments.online)
    with Progress(len(questions.encoded), "questions", unit="answer") as progress:
        options: dict[str, Any] = {"batch": sweep.batch, "batch_tokens": sweep.batch_tokens, "progress": progress}
        rows = [row[: len(COLUMNS)] for row in questions.answers(loaded.model, **options)]
    write_rows(arguments.out / "zeroshot.csv", COLUMNS, rows)
    for name, mean in means_by_name((f"{row[0]} {row[3]}", row[4]) for row in rows).items():
        print(f"{name:<40} {mean:.4f}")
    for task, count in questions.cut(loaded.model.spec.context).items():
        print(f"{task}: {count} requests are longer than the model's context and lost their beginning", file=sys.stderr)
    print(f"answers in {arguments.out / 'zeroshot.csv'}", file=sys.stderr)


def prune_folder(arguments: argparse.Namespace) -> None:
    """Answer zero-shot questions with a model folder under cache policies."""
    from pandas import DataFrame

    from formerlab.integrations.huggingface.load import identity_of, load_any
    from formerlab.integrations.huggingface.sweep import run_sweep

    sweep, source = _asked(arguments)
    loaded = load_any(source, device=arguments.device, online=arguments.online)
    identity = identity_of(source, arguments.device, arguments.out)  # after the hub was asked
    means = run_sweep(loaded, sweep, arguments.out, identity=identity, online=arguments.online)
    table = DataFrame(means).filter(regex="(?<!acc_norm)$")
    print(table.to_csv(sep="\t", index=False, float_format="%.4f"), end="")
    print(f"every answer and window in {arguments.out}", file=sys.stderr)


def _asked(arguments: argparse.Namespace) -> "tuple[QuestionSweep, ReleasedModel]":
    """Return what is asked of which model."""
    from formerlab.integrations.huggingface.sweep import read_sweep
    from formerlab.released import parse_released

    changes = {name: getattr(arguments, name) for name in ("tasks", "limit", "batch", "leading_token")}
    sweep = read_sweep(getattr(arguments, "sweep", None), **changes)
    return sweep, parse_released(arguments.model, dtype=arguments.dtype, context=arguments.context)


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
    means = run_sweep(loaded, sweep, out, identity=identity_of(narrowed, arguments.device, out))
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
