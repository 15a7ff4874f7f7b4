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
    from formerlab.integrations.huggingface.sweep import QuestionSweep
    from formerlab.released import ReleasedModel


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
    identity = identity_of(source, arguments.device)
    loaded = load_any(source, device=arguments.device, online=arguments.online)
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
