"""The commands export-huggingface, import-tokenformer and answer-tasks."""

import argparse
import re
from pathlib import Path
from typing import Any

import yaml

from formerlab.commands.context import add_command, command_line_config, find_job, load_plan
from formerlab.errors import UserError
from formerlab.files import read_json, read_record


def add_parsers(commands: Any) -> None:
    """Add the commands."""
    parser = add_command(commands, export_huggingface)
    parser.add_argument("run", help="folder of a finished run, or its id, such as denseformer/plain-4/seed0")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--licence", default="not stated", help="licence of the weights, for the model card")

    parser = add_command(commands, import_tokenformer, configured=False)
    parser.add_argument("checkpoint", type=Path, help="folder with pytorch_model.bin and tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="Hugging Face folder to write")
    parser.add_argument("--config", type=Path, help="configuration (.yml) of the official code; default: in the folder")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json of GPT-NeoX-20B; default: in the folder")

    parser = add_command(commands, answer_tasks, configured=False)
    text = "Hugging Face folder, .gguf file, hub id (owner/name) in the local cache, or Python package with a model"
    parser.add_argument("model", help=text)
    text = "long-context tasks (default: all) or generative tasks or groups of lm_eval"
    parser.add_argument("--tasks", nargs="+", help=text)
    parser.add_argument("--policies", nargs="+", help="cache policies; default: h2o 'decay alpha=0.2'")
    text = "cache budgets: fractions of the prompt such as 0.4 (default), or numbers of keys such as 64"
    parser.add_argument("--budgets", nargs="+", help=text)
    text = "numbers of prompt tokens of long-context tasks; default 1024 2048 4096"
    parser.add_argument("--lengths", nargs="+", type=int, help=text)
    parser.add_argument("--examples", type=int, help="number of examples of each task and length; default 20")
    parser.add_argument("--seed", type=int, help="seed of long-context tasks; default 0")
    text = "UTF-8 text file for the long-context tasks; default: Python's documentation"
    parser.add_argument("--text", help=text)
    parser.add_argument("--shots", type=int, help="number of few-shot examples of lm_eval's questions; default 0")
    parser.add_argument("--chat-template", action="store_true", help="wrap prompts in the tokenizer's chat template")
    parser.add_argument("--batch", type=int, default=1, help="number of prompts that are answered together; default 1")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default cpu")
    parser.add_argument("--dtype", help="dtype of the weights, such as bfloat16; default as saved")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write, one row per example and metric")


def answer_tasks(arguments: argparse.Namespace) -> None:
    """Run generative tasks on a released model under cache policies."""
    from pydantic import TypeAdapter, ValidationError

    from formerlab.integrations.generative import GenerativeTasks, measure_tasks, summary_table
    from formerlab.released import ReleasedModel

    model, options = arguments.model, {key: getattr(arguments, key, None) for key in GenerativeTasks.model_fields}
    if options["policies"]:
        options["policies"] = [policy_fields(text) for text in options["policies"]]
    if options["budgets"]:
        options["budgets"] = [int(text) if text.isdigit() else text for text in options["budgets"]]
    kinds = {"folder": Path(model).expanduser().is_dir(), "gguf": model.endswith(".gguf"), "hub": "/" in model}
    kind = next((kind for kind, matches in kinds.items() if matches), "package")
    source = {"kind": "gguf", "package": model} if kind == "package" else {"kind": kind, "path": model}
    if kind == "hub":
        source = {"kind": "hub", "name": model}
    try:
        settings = GenerativeTasks(**{key: value for key, value in options.items() if value is not None})
        released = TypeAdapter(ReleasedModel).validate_python(source | {"dtype": arguments.dtype})
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"--{'.'.join(map(str, first['loc']))}: {first['msg']}, not {first['input']!r}") from None
    rows = measure_tasks(released, settings, arguments.out, device=arguments.device)
    print("\n".join(summary_table(rows)))


def policy_fields(text: str) -> dict[str, Any]:
    """Parse a policy such as `decay alpha=0.2` or `pyramid(decay alpha=0.2) layers=30`; return its fields."""
    match = re.fullmatch(r"(\w+)(?:\((.*)\))?((?:\s+\S+)*)", text.strip())
    if match is None:
        raise UserError(f"--policies: {text!r} is not a kind with fields, such as 'decay alpha=0.2'")
    kind, inner, fields = match[1], match[2], match[3].split()
    if wrong := [field for field in fields if "=" not in field]:
        raise UserError(f"--policies: {wrong[0]!r} in {text!r} is not NAME=VALUE")
    values = {key: yaml.safe_load(value) for key, _, value in (field.partition("=") for field in fields)}
    return {"kind": kind, **values} | ({"policy": policy_fields(inner)} if inner else {})


def export_huggingface(arguments: argparse.Namespace) -> None:
    """Write a finished run as a Hugging Face folder."""
    from formerlab.data import load_tokenizer
    from formerlab.integrations.huggingface.export import CODE_FILE, model_card, save_folder
    from formerlab.models.decoder import DecoderModel
    from formerlab.training.load import find_finished_run, load_model

    run_id, out = arguments.run, arguments.out
    if arguments.plan or command_line_config(arguments):
        plan = load_plan(arguments)
        find_job(plan, "train", run_id)
        folder = Path(plan["results"], run_id)
    else:
        folder = find_finished_run(run_id)
    model, run = load_model(folder)
    if not isinstance(model, DecoderModel):
        raise UserError(f"{folder}: the model is a {run.model.kind}; only decoders can be exported")
    data = folder.resolve().parents[2] / "data" / run.data
    manifest = read_json(data / "manifest.json")
    card = model_card(read_record(folder / "run.json"), arguments.licence, manifest.get("licence", "not stated"))
    save_folder(model, load_tokenizer(data), out, end_of_text=manifest["tokenizer"]["end_of_text"], card=card)
    with_code = f", with trust_remote_code=True ({CODE_FILE})" if (out / CODE_FILE).is_file() else ""
    print(f"{out}: load it with AutoModelForCausalLM and AutoTokenizer{with_code}")


def import_tokenformer(arguments: argparse.Namespace) -> None:
    """Convert a released Tokenformer checkpoint to a Hugging Face folder."""
    from formerlab.data.text.tokenizer import TokenizerFile
    from formerlab.integrations.huggingface.export import save_folder
    from formerlab.integrations.huggingface.neox import load_released

    model = load_released(arguments.checkpoint, arguments.config)
    file = arguments.tokenizer or arguments.checkpoint / "tokenizer.json"
    tokenizer, end_of_text = TokenizerFile(path=str(file), vocabulary=model.spec.vocabulary).load()
    save_folder(model, tokenizer, arguments.out, end_of_text=end_of_text)
    in_blocks = model.spec.params(embedding=False)
    print(f"{arguments.out}: {model.spec.params():,} parameters, {in_blocks:,} of them in blocks")
