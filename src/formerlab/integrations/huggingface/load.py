"""Released models for evaluation: a model, its tokenizer, and the token for an empty context."""

import io
from contextlib import redirect_stderr
from typing import Any, NamedTuple, cast

import psutil
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from formerlab.data.text.tokenizer import load_fast_tokenizer
from formerlab.errors import UserError, reason
from formerlab.integrations.huggingface.causal_lm import CausalLM
from formerlab.integrations.huggingface.modeling import FormerlabForCausalLM
from formerlab.models.decoder import DecoderModel
from formerlab.progress import short
from formerlab.released import ReleasedModel, refuse_kernels, shown_place


class Loaded(NamedTuple):
    """A released model for `evaluate_tasks` and `window_losses`."""

    model: DecoderModel
    """Our own decoder, or a model of transformers behind the same interface (`CausalLM`)."""
    tokenizer: Tokenizer
    prefix: int
    """The token in front of an empty context: begin of text where the tokenizer has one, else end of text."""


def load_any(source: ReleasedModel, *, device: str = "cpu") -> Loaded:
    """Load a released model: a folder of transformers or of ours, a GGUF file, or the hub's copy in its cache.

    The network is not used, and no code of the model is ever run. Raises UserError in one line for what is missing, for
    a device that is not there, a model larger than its memory, and a model that cannot run under cache policies.
    """
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {device!r}: this machine has no CUDA device that torch can use")
    dtype: torch.dtype | None = None if source.dtype is None else getattr(torch, source.dtype)
    arguments = source.arguments()
    model = load_causal_lm(arguments, device=device, dtype=dtype)
    tokenizer = load_fast_tokenizer(arguments)
    if not isinstance(model, FormerlabForCausalLM):
        # It has of DecoderModel what evaluation uses: forward, spec.context, embedding, position.
        return Loaded(cast(DecoderModel, CausalLM(model, source.context)), *tokenizer)
    if source.context is not None:
        raise UserError(f"context {source.context}: only models of transformers take one; that of ours is its own")
    return Loaded(model.decoder, *tokenizer)


def load_causal_lm(arguments: dict[str, Any], *, device: str = "cpu", dtype: torch.dtype | None = None) -> Any:
    """Return a causal model of transformers, given what its `from_pretrained` takes, after a look at its size."""
    name, level = shown_place(arguments), logging.get_verbosity()
    logging.set_verbosity_error()  # a bar for every pass over tensors, and of packed weights, which are expanded here
    try:
        with redirect_stderr(io.StringIO()):
            config = AutoConfig.from_pretrained(**arguments, trust_remote_code=False)
            refuse_kernels(config, name)
            with torch.device("meta"):
                parameters = AutoModelForCausalLM.from_config(config, trust_remote_code=False).num_parameters()
            saved = getattr(config.get_text_config(decoder=True), "dtype", None)
            check_room(name, parameters, dtype or saved or torch.float32, device)
            given = {"dtype": dtype or "auto", "trust_remote_code": False, "output_loading_info": True}
            model, found = AutoModelForCausalLM.from_pretrained(**arguments, **given)
    except UserError:
        raise
    except Exception as error:  # a damaged file may raise any error
        remedy = "fetch again what is cut or a pointer of git-lfs"
        raise UserError(f"{name}: no causal model of transformers ({reason(error)}); {remedy}") from None
    finally:
        logging.set_verbosity(level)
    if found["missing_keys"]:
        raise UserError(f"{name}: lacks the weights {min(found['missing_keys'])}; fetch or export the model again")
    return model.to(device).eval()


def check_room(name: str, parameters: int, dtype: torch.dtype, device: str | torch.device) -> None:
    """Raise UserError where a model of `parameters` values of `dtype` exceeds the device's free memory."""
    device = torch.device(device)
    need = parameters * dtype.itemsize
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if need > free:
        raise UserError(
            f"{name}: {short(parameters)} parameters as {str(dtype).removeprefix('torch.')} take {short(need)}B, "
            f"but {device} has {short(free)}B free; give it a smaller dtype or another device"
        )
