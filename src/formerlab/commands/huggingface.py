"""The commands for formats of other libraries: export-huggingface, import-tokenformer."""

import argparse
from pathlib import Path
from typing import Any

from formerlab.commands.context import add_command, given_values, job_of, load_plan
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
    parser.add_argument("--config", type=Path, help="the official code's .yml; default: the one in the folder, if any")
    parser.add_argument("--tokenizer", type=Path, help="GPT-NeoX-20B's tokenizer.json; default: the one in the folder")


def export_huggingface(arguments: argparse.Namespace) -> None:
    """Write a finished run as a Hugging Face folder."""
    from formerlab.data import load_tokenizer
    from formerlab.integrations.huggingface.export import CODE, card_of, save_folder
    from formerlab.models.decoder import DecoderModel
    from formerlab.training.load import finished_run_folder, load_model

    run_id, out = arguments.run, arguments.out
    if arguments.plan or given_values(arguments):
        plan = load_plan(arguments)
        job_of(plan, "train", run_id)
        folder = Path(plan["results"], run_id)
    else:
        folder = finished_run_folder(run_id)
    model, run = load_model(folder)
    if not isinstance(model, DecoderModel):
        raise UserError(f"{folder}: the model is a {run.model.kind}; only decoders can be exported")
    data = folder.resolve().parents[2] / "data" / run.data
    manifest = read_json(data / "manifest.json")
    card = card_of(read_record(folder / "run.json"), arguments.licence, manifest.get("licence", "not stated"))
    save_folder(model, load_tokenizer(data), out, end_of_text=manifest["tokenizer"]["end_of_text"], card=card)
    with_code = f", with trust_remote_code=True ({CODE})" if (out / CODE).is_file() else ""
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
    inside = model.spec.params(embedding=False)
    print(f"{arguments.out}: {model.spec.params():,} parameters, {inside:,} of them in blocks")
