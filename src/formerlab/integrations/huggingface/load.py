"""Any model folder as evaluation wants it: a model, its tokenizer, and the token that stands for no context."""

from pathlib import Path
from typing import Any, NamedTuple, cast

import psutil
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from formerlab.data.text.tokenizer import read_tokenizer
from formerlab.errors import UserError
from formerlab.files import read_json
from formerlab.integrations.huggingface.causal_lm import CausalLM
from formerlab.integrations.huggingface.export import load_folder, load_spec
from formerlab.integrations.huggingface.modeling import MODEL_TYPE
from formerlab.integrations.huggingface.neox import load_released, released_tokenizer
from formerlab.models.decoder import DecoderModel
from formerlab.progress import short

DTYPES = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16", "float64")}


class Loaded(NamedTuple):
    """What `evaluate_tasks` and `window_losses` take."""

    model: DecoderModel
    """Our own decoder, or a model of transformers behind the same interface (`CausalLM`)."""
    tokenizer: Tokenizer
    prefix: int
    """The token in front of an empty context: begin of text where the tokenizer has one, else end of text."""


def load_any(folder: Path, *, device: str = "cpu", dtype: str | None = None, context: int | None = None) -> Loaded:
    """Load a folder written by us, one of the official Tokenformer code, or one of any causal model of transformers.

    No network is used and no code of the folder is run. `dtype` is float32, float16, bfloat16 or float64 (default: as
    saved), `context` the longest sequence of a model of transformers (default: what its config says).
    Raises UserError in one line for what is missing, for a device that is not there, a model larger than its memory,
    and a model that cannot run under cache policies.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    if dtype is not None and dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r} is none of {', '.join(DTYPES)}")
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {device!r}: this machine has no CUDA device that torch can use")
    wanted = None if dtype is None else DTYPES[dtype]
    kind = read_json(folder / "config.json").get("model_type") if (folder / "config.json").is_file() else None
    if kind not in (None, MODEL_TYPE):
        return _foreign(folder, device, wanted, context)
    if context is not None:
        raise UserError(f"context {context}: only models of transformers take one; that of ours is part of the model")
    return _ours(folder, device, wanted) if kind == MODEL_TYPE else _released(folder, device, wanted)


def _released(folder: Path, device: str, dtype: torch.dtype | None) -> Loaded:
    model = load_released(folder)
    check_room(str(folder), model.spec.params(), dtype or torch.float32, device)
    tokenizer, end_of_text = released_tokenizer(folder, None, model.spec.vocabulary)
    return Loaded(model.to(device, dtype), tokenizer, end_of_text)


def _ours(folder: Path, device: str, dtype: torch.dtype | None) -> Loaded:
    check_room(str(folder), load_spec(folder).params(), dtype or torch.float32, device)
    tokenizer = read_tokenizer(folder / "tokenizer.json")
    end = read_json(folder / "tokenizer_config.json").get("eos_token")
    prefix = None if end is None else tokenizer.token_to_id(end)
    if prefix is None:
        raise UserError(f"{folder}/tokenizer_config.json: names no eos_token of the tokenizer; export the model again")
    return Loaded(load_folder(folder).to(device, dtype), tokenizer, prefix)


def _foreign(folder: Path, device: str, dtype: torch.dtype | None, context: int | None) -> Loaded:
    model = load_causal_lm(folder, device=device, dtype=dtype)
    tokenizer, prefix = _tokenizer(folder)
    # It has of DecoderModel what evaluation uses: forward, spec.context, embedding, position.
    return Loaded(cast(DecoderModel, CausalLM(model, context)), tokenizer, prefix)


def load_causal_lm(folder: Path, *, device: str = "cpu", dtype: torch.dtype | None = None) -> Any:
    """Return a causal model of transformers from a local folder, after a look at its size.

    Raises UserError where the folder holds none, or the model exceeds the device's free memory.
    """
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            parameters = AutoModelForCausalLM.from_config(config).num_parameters()
        saved = getattr(config.get_text_config(decoder=True), "dtype", None)
        check_room(str(folder), parameters, dtype or saved or torch.float32, device)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype or "auto", local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: no causal model of transformers ({_reason(error)})") from None
    return model.to(device).eval()


def check_room(name: str, parameters: int, dtype: torch.dtype, device: str | torch.device) -> None:
    """Raise UserError where a model of `parameters` values of `dtype` exceeds the device's free memory."""
    device = torch.device(device)
    need = parameters * dtype.itemsize
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if need > free:
        raise UserError(
            f"{name}: {short(parameters)} parameters as {str(dtype).removeprefix('torch.')} take {short(need)}B, "
            f"but {device} has {short(free)}B free; choose a smaller --dtype or another --device"
        )


def _tokenizer(folder: Path) -> tuple[Tokenizer, int]:
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder}: no tokenizer of transformers ({_reason(error)})") from None
    backend: Tokenizer | None = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(f"{folder}: the tokenizer has no fast form; save it once as tokenizer.json")
    backend.no_truncation()
    backend.no_padding()
    prefix = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if prefix is None:
        raise UserError(f"{folder}: the tokenizer names neither a bos_token nor an eos_token")
    return backend, prefix


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0]
