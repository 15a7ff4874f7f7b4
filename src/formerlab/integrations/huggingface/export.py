"""A Hugging Face folder of one of our models: its config, weights and tokenizer."""

import json
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from formerlab.errors import UserError
from formerlab.files import read_json
from formerlab.integrations.huggingface.modeling import MODEL_TYPE, FormerlabConfig, FormerlabForCausalLM
from formerlab.integrations.huggingface.native import native
from formerlab.integrations.huggingface.travel import code_of
from formerlab.models.decoder import Decoder, DecoderModel

CODE = "modeling_formerlab.py"
"""The file of code beside weights that no layout of transformers' own fits."""


def save_folder(
    model: DecoderModel, tokenizer: Tokenizer | None, out: Path, *, end_of_text: int | None = None, card: str = ""
) -> None:
    """Write a model, and its tokenizer where there is one, for `AutoModelForCausalLM` and `AutoTokenizer` anywhere.

    It has the layout of LLaMA or GPT-NeoX where the spec allows it, else a file of code beside the weights, for
    `trust_remote_code`. `end_of_text` is the token that ends a document: it ends generated text, and pads batches.
    `card` is the README. Weights keep their type. Raises UserError where the folder holds something else.
    """
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / "config.json").is_file())):
        raise UserError(f"{out}: exists and is no Hugging Face folder; give --out another name")
    shell = native(model) or _with_code(model)
    if end_of_text is not None:
        shell.generation_config.eos_token_id = shell.generation_config.pad_token_id = end_of_text
    shell.save_pretrained(out)
    (out / CODE).unlink(missing_ok=True)
    if isinstance(shell, FormerlabForCausalLM):
        (out / CODE).write_text(code_of(model.spec), encoding="utf-8")
    for weights in out.glob("*.safetensors"):  # safetensors lets nobody but the owner read them, whatever the umask
        weights.chmod((out / "config.json").stat().st_mode & 0o777)
    if tokenizer is not None:
        save_tokenizer(tokenizer, out, end_of_text, context=model.spec.context)
    if card:
        (out / "README.md").write_text(card, encoding="utf-8")


def _with_code(model: DecoderModel) -> FormerlabForCausalLM:
    classes = {"AutoConfig": FormerlabConfig, "AutoModelForCausalLM": FormerlabForCausalLM}
    places = {name: f"{CODE.removesuffix('.py')}.{cls.__name__}" for name, cls in classes.items()}
    with torch.device("meta"):  # a shell without memory of its own
        config = FormerlabConfig(spec=model.spec.to_dict(), dtype=model.embedding.dtype, auto_map=places)
        shell = FormerlabForCausalLM(config)
    shell.decoder = model
    return shell


def card_of(record: dict[str, Any], licence: str, data: str) -> str:
    """Return the model card of a run, given its run.json, the licence of its weights and that of its data."""
    made, final, git = record.get("data", {}), record.get("final", {}), record.get("git", {})
    losses = [(split, final.get(f"{split}_loss_nats")) for split in ("train", "valid", "test")]
    said = {
        "Data": f"`{made.get('name')}`, fingerprint {made.get('fingerprint')}; licence: {data}",
        "Tokens read": record.get("tokens"),
        "Parameters": record.get("parameters"),
        "Loss, nats a token": ", ".join(f"{split} {loss:.4f}" for split, loss in losses if loss is not None),
        "Code": f"formerlab, commit {git.get('commit')}",
        "Licence of the weights": licence,
    }
    rows = [f"- {name}: {'not recorded' if value in (None, '') else value}" for name, value in said.items()]
    head = ["---", "library_name: transformers", "license: other", f"license_name: {json.dumps(licence)}", "---", ""]
    use = f"`AutoModelForCausalLM.from_pretrained(folder)` loads it; give `trust_remote_code` beside `{CODE}`."
    return "\n".join([*head, f"# {record['id']}", "", *rows, "", use, ""])


def save_tokenizer(tokenizer: Tokenizer, out: Path, end_of_text: int | None, *, context: int) -> None:
    """Write the tokenizer, with the token that ends a document as its end and its padding on the left."""
    end = None if end_of_text is None else tokenizer.id_to_token(end_of_text)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=end, pad_token=end, model_max_length=context, padding_side="left"
    )
    wrapped.save_pretrained(out)


def load_spec(folder: Path) -> Decoder:
    """Return the spec of a folder that `save_folder` wrote. Raises UserError where it is of another kind."""
    config = read_json(folder / "config.json")
    if config.get("model_type") != MODEL_TYPE or "spec" not in config:
        raise UserError(f"{folder}/config.json: model_type {config.get('model_type')!r} is not ours ({MODEL_TYPE})")
    try:
        return Decoder.model_validate(config["spec"])
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("spec", *first["loc"])))
        raise UserError(f"{folder}/config.json: {place}: {first['msg']}; written by another version?") from None


def load_folder(folder: Path) -> DecoderModel:
    """Return the decoder of a folder that `save_folder` wrote, in the type its weights are saved in.

    Raises UserError where the folder is of another kind or not whole.
    """
    spec = load_spec(folder)
    path = folder / "model.safetensors"
    if not path.is_file():
        raise UserError(f"{path}: no such file; export the model again")
    try:
        weights = {name.removeprefix("decoder."): tensor for name, tensor in load_file(path).items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: not a whole file of weights ({error}); export the model again") from None
    model = DecoderModel(spec)
    expected = model.state_dict()
    for name in sorted(expected.keys() | weights.keys()):
        if name not in expected or name not in weights or expected[name].shape != weights[name].shape:
            raise UserError(f"{path}: tensor {name} does not belong to the spec in config.json; export the model again")
    model.to(weights["embedding"].dtype).load_state_dict(weights)
    return model.eval()
