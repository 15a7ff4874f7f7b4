"""The verbs of interoperation: export-huggingface, import-tokenformer."""

import argparse
from pathlib import Path
from typing import Any

from formerlab.commands.context import add_config_arguments, job_of, load_plan
from formerlab.errors import UserError
from formerlab.files import read_json


def add_parsers(verbs: Any) -> None:
    """Add the verbs."""
    parser = verbs.add_parser("export-huggingface", help="write a finished run as a Hugging Face folder")
    parser.add_argument("run", help="a run, such as tokenformer/transformer/seed0, or the folder of a finished run")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    add_config_arguments(parser)
    parser.set_defaults(function=export)

    parser = verbs.add_parser("import-tokenformer", help="write a released Tokenformer checkpoint as our model")
    parser.add_argument("checkpoint", type=Path, help="folder with pytorch_model.bin (or its like) and tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="Hugging Face folder to write")
    parser.add_argument("--config", type=Path, help="the official code's .yml; default: the one in the folder, if any")
    parser.add_argument("--tokenizer", type=Path, help="GPT-NeoX-20B's tokenizer.json; default: the one in the folder")
    parser.set_defaults(function=import_tokenformer)


def export(arguments: argparse.Namespace) -> None:
    """Write a model with its tokenizer."""
    from formerlab.data import load_tokenizer
    from formerlab.finished import load_model
    from formerlab.huggingface.export import save_folder
    from formerlab.models.decoder import Decoder

    folder = run_folder(arguments)
    model, run = load_model(folder)
    if not isinstance(model.spec, Decoder):
        raise UserError(f"{folder}: a {run.model.kind}; only decoders can be exported")
    data = folder.resolve().parents[2] / "data" / run.data
    end_of_text = read_json(data / "manifest.json")["tokenizer"]["end_of_text"]
    save_folder(model, load_tokenizer(data), arguments.out, end_of_text=end_of_text)
    print(f"{arguments.out}: import formerlab, then transformers.AutoModelForCausalLM.from_pretrained reads it")


def import_tokenformer(arguments: argparse.Namespace) -> None:
    """Write the model of a released checkpoint with its tokenizer."""
    from formerlab.huggingface.export import save_folder
    from formerlab.huggingface.neox import load_released, released_tokenizer

    model = load_released(arguments.checkpoint, arguments.config)
    tokenizer, end_of_text = released_tokenizer(arguments.checkpoint, arguments.tokenizer, model.spec.vocabulary)
    save_folder(model, tokenizer, arguments.out, end_of_text=end_of_text)
    print(
        f"{arguments.out}: {model.spec.params():,} parameters, {model.spec.params(embedding=False):,} of them in blocks"
    )


def run_folder(arguments: argparse.Namespace) -> Path:
    """Return the folder of the run: the one given, else that of the plan."""
    if (Path(arguments.run) / "run.json").is_file():
        return Path(arguments.run)
    plan = load_plan(arguments)
    job_of(plan, "train", arguments.run)
    return Path(plan["results"], arguments.run)
