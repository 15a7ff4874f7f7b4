"""The verbs of other people's formats: export-huggingface, import-tokenformer."""

import argparse
from pathlib import Path
from typing import Any

from formerlab.commands.context import add_verb, job_of, load_plan
from formerlab.errors import UserError
from formerlab.files import read_json


def add_parsers(verbs: Any) -> None:
    """Add the verbs."""
    parser = add_verb(verbs, export_huggingface)
    parser.add_argument("run", help="a run, such as denseformer/plain-4/seed0, or the folder of a finished run")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--licence", default="not stated", help="of the weights, for the model card")

    parser = add_verb(verbs, import_tokenformer, configured=False)
    parser.add_argument("checkpoint", type=Path, help="folder with pytorch_model.bin and tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="Hugging Face folder to write")
    parser.add_argument("--config", type=Path, help="the official code's .yml; default: the one in the folder, if any")
    parser.add_argument("--tokenizer", type=Path, help="GPT-NeoX-20B's tokenizer.json; default: the one in the folder")


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
