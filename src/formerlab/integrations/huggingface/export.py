"""A Hugging Face folder of one of our models: its config, weights and tokenizer."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from formerlab.errors import UserError
from formerlab.integrations.huggingface.modeling import FormerlabConfig, FormerlabForCausalLM
from formerlab.integrations.huggingface.native import native
from formerlab.integrations.huggingface.travel import code_of
from formerlab.models.decoder import DecoderModel

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
    shell = native(model)
    if own := shell is None:
        places = {"AutoConfig": FormerlabConfig, "AutoModelForCausalLM": FormerlabForCausalLM}
        travelling = {name: f"{CODE.removesuffix('.py')}.{cls.__name__}" for name, cls in places.items()}
        with torch.device("meta"):  # a shell without memory of its own
            config = FormerlabConfig(spec=model.spec.to_dict(), dtype=model.embedding.dtype, auto_map=travelling)
            shell = FormerlabForCausalLM(config)
        shell.decoder = model
    if end_of_text is not None:
        shell.generation_config.eos_token_id = shell.generation_config.pad_token_id = end_of_text
    shell.save_pretrained(out)
    (out / CODE).unlink(missing_ok=True)
    if own:
        (out / CODE).write_text(code_of(model.spec), encoding="utf-8")
    for weights in out.glob("*.safetensors"):  # safetensors lets nobody but the owner read them, whatever the umask
        weights.chmod((out / "config.json").stat().st_mode & 0o777)
    if tokenizer is not None:
        end = None if end_of_text is None else tokenizer.id_to_token(end_of_text)
        ends = {"eos_token": end, "pad_token": end, "padding_side": "left"}
        context = model.spec.context
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=context, **ends).save_pretrained(out)
    if card:
        (out / "README.md").write_text(card, encoding="utf-8")


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
