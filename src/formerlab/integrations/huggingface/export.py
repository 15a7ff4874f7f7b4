"""A Hugging Face folder of one of our models: its config, weights and tokenizer."""

from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from formerlab.errors import UserError
from formerlab.files import read_json
from formerlab.integrations.huggingface.modeling import MODEL_TYPE, FormerlabConfig, FormerlabForCausalLM
from formerlab.models.decoder import Decoder, DecoderModel


def save_folder(model: DecoderModel, tokenizer: Tokenizer | None, out: Path, *, end_of_text: int | None = None) -> None:
    """Write a model, and its tokenizer where there is one, for `AutoModelForCausalLM` and `AutoTokenizer`.

    `end_of_text` is the token that ends a document: it ends generated text, and pads batches. Weights keep their type.
    Raises UserError where the folder holds something else.
    """
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / "config.json").is_file())):
        raise UserError(f"{out}: exists and is no Hugging Face folder; give --out another name")
    with torch.device("meta"):  # a shell without memory of its own
        shell = FormerlabForCausalLM(FormerlabConfig(spec=model.spec.to_dict(), dtype=model.embedding.dtype))
    shell.decoder = model
    if end_of_text is not None:
        shell.generation_config.eos_token_id = shell.generation_config.pad_token_id = end_of_text
    shell.save_pretrained(out)
    for weights in out.glob("*.safetensors"):  # safetensors lets nobody but the owner read them, whatever the umask
        weights.chmod((out / "config.json").stat().st_mode & 0o777)
    if tokenizer is not None:
        save_tokenizer(tokenizer, out, end_of_text, context=model.spec.context)


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
