"""The verbs of interoperation: export-huggingface, import-tokenformer, zeroshot-folder, prune-folder."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from formerlab.commands.context import add_verb, job_of, load_plan
from formerlab.errors import UserError
from formerlab.files import read_json
from formerlab.results.write import write_rows

if TYPE_CHECKING:
    from formerlab.integrations.huggingface.load import Loaded
    from formerlab.released import ReleasedModel


def add_parsers(verbs: Any) -> None:
    """Add the verbs."""
    parser = add_verb(verbs, "export-huggingface", export, "write a finished run as a Hugging Face folder")
    parser.add_argument("run", help="a run, such as tokenformer/transformer/seed0, or the folder of a finished run")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--licence", default="not stated", help="of the weights, for the model card")

    text = "write a released Tokenformer checkpoint as our model"
    parser = add_verb(verbs, "import-tokenformer", import_tokenformer, text, configured=False)
    parser.add_argument("checkpoint", type=Path, help="folder with pytorch_model.bin and tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="Hugging Face folder to write")
    parser.add_argument("--config", type=Path, help="the official code's .yml; default: the one in the folder, if any")
    parser.add_argument("--tokenizer", type=Path, help="GPT-NeoX-20B's tokenizer.json; default: the one in the folder")

    text = "answer zero-shot questions with a model folder"
    _add_model_arguments(add_verb(verbs, "zeroshot-folder", zeroshot, text, configured=False))

    parser = add_verb(verbs, "prune-folder", prune, f"{text} under cache policies", configured=False)
    _add_model_arguments(parser)
    parser.add_argument("--sweep", type=Path, help="YAML file of a sweep; default: that of the Decay article")


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


def export(arguments: argparse.Namespace) -> None:
    """Write a model with its tokenizer and its card."""
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
    """Write the model of a released checkpoint with its tokenizer."""
    from formerlab.integrations.huggingface.export import save_folder
    from formerlab.integrations.huggingface.neox import load_released, released_tokenizer

    model = load_released(arguments.checkpoint, arguments.config)
    tokenizer, end_of_text = released_tokenizer(arguments.checkpoint, arguments.tokenizer, model.spec.vocabulary)
    save_folder(model, tokenizer, arguments.out, end_of_text=end_of_text)
    print(
        f"{arguments.out}: {model.spec.params():,} parameters, {model.spec.params(embedding=False):,} of them in blocks"
    )


def zeroshot(arguments: argparse.Namespace) -> None:
    """Write zeroshot.csv and print the means."""
    from formerlab.evaluation.language.zeroshot import COLUMNS
    from formerlab.integrations.huggingface.sweep import read_sweep, task_means
    from formerlab.progress import Progress

    sweep, loaded = read_sweep(None, **_changes(arguments)), _load(arguments)
    questions = sweep.questions(loaded, online=arguments.online)
    with Progress(len(questions), "questions", unit="question") as progress:
        options: dict[str, Any] = {"batch": sweep.batch, "batch_tokens": sweep.batch_tokens, "progress": progress}
        rows = [row[: len(COLUMNS)] for row in questions.answers(loaded.model, **options)]
    write_rows(arguments.out / "zeroshot.csv", COLUMNS, rows)
    for name, mean in task_means(rows).items():
        print(f"{name:<40} {mean:.4f}")
    for task, count in questions.cut(loaded.model.spec.context).items():
        print(f"{task}: {count} requests are longer than the model's context and lost their beginning", file=sys.stderr)
    print(f"answers in {arguments.out / 'zeroshot.csv'}", file=sys.stderr)


def prune(arguments: argparse.Namespace) -> None:
    """Write prune_questions.csv and print a row of means per policy."""
    from formerlab.integrations.huggingface.load import identity_of
    from formerlab.integrations.huggingface.sweep import read_sweep, run_sweep

    sweep = read_sweep(arguments.sweep, **_changes(arguments))
    identity = identity_of(_source(arguments), arguments.device)
    means = run_sweep(_load(arguments), sweep, arguments.out, identity=identity, online=arguments.online)
    columns = [name for name in means[0] if not name.endswith("acc_norm")]
    print("\t".join(columns))
    for row in means:
        cells = (
            "" if value is None else f"{value:.4f}" if isinstance(value, float) else value
            for value in map(row.get, columns)
        )
        print(*cells, sep="\t")
    print(f"every answer and window in {arguments.out}", file=sys.stderr)


def _changes(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in ("tasks", "limit", "batch", "leading_token")}


def _source(arguments: argparse.Namespace) -> "ReleasedModel":
    from formerlab.released import parse_released

    return parse_released(arguments.model, dtype=arguments.dtype, context=arguments.context)


def _load(arguments: argparse.Namespace) -> "Loaded":
    from formerlab.integrations.huggingface.load import load_any

    return load_any(_source(arguments), device=arguments.device, online=arguments.online)
