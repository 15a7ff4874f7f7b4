"""Load released models for evaluation: the model, its tokenizer, and the token for an empty context."""

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
from formerlab.released import ReleasedModel, refuse_kernels, source_path


class LoadedModel(NamedTuple):
    """A released model for `Questions.scores` and `window_losses`."""

    model: DecoderModel
    """A formerlab decoder, or a transformers model with the same interface (`CausalLM`)."""
    tokenizer: Tokenizer
    prefix_token: int
    """Token that replaces an empty context: the begin-of-text token if the tokenizer has one, otherwise end of text."""


def load_any(source: ReleasedModel, *, device: str = "cpu") -> LoadedModel:
    """Load a released model from a transformers or formerlab folder, a GGUF file, or the local cache of the hub.

    Only local files are read, and code in a model folder is ignored. Raises UserError for a missing file or device, a
    model that exceeds the free memory or does not support cache policies, and `context` with a formerlab model.
    """
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {device!r}: this machine has no CUDA device that torch can use")
    dtype: torch.dtype | None = None if source.dtype is None else getattr(torch, source.dtype)
    arguments = source.arguments()
    model = load_causal_lm(arguments, device=device, dtype=dtype)
    tokenizer = load_fast_tokenizer(arguments)
    if not isinstance(model, FormerlabForCausalLM):
        # CausalLM has the attributes of DecoderModel that evaluation uses: forward, spec.context, embedding, position.
        return LoadedModel(cast(DecoderModel, CausalLM(model, source.context)), *tokenizer)
    if source.context is not None:
        raise UserError(f"context {source.context}: a formerlab model has a fixed context; remove this setting")
    return LoadedModel(model.decoder, *tokenizer)


def load_causal_lm(arguments: dict[str, Any], *, device: str = "cpu", dtype: torch.dtype | None = None) -> Any:
    """Load a causal language model of transformers in evaluation mode; `arguments` are passed to `from_pretrained`.

    Raises UserError if the model is larger than the free memory of the device, or cannot be read.
    """
    name, verbosity = source_path(arguments), logging.get_verbosity()
    logging.set_verbosity_error()  # hide progress bars and warnings about quantised weights, which are dequantised here
    try:
        with redirect_stderr(io.StringIO()):
            config = AutoConfig.from_pretrained(**arguments, trust_remote_code=False)
            refuse_kernels(config, name)
            with torch.device("meta"):
                parameters = AutoModelForCausalLM.from_config(config, trust_remote_code=False).num_parameters()
            saved_dtype = getattr(config.get_text_config(decoder=True), "dtype", None)
            check_memory(name, parameters, dtype or saved_dtype or torch.float32, device)
            options = {"dtype": dtype or "auto", "trust_remote_code": False, "output_loading_info": True}
            model, loading_info = AutoModelForCausalLM.from_pretrained(**arguments, **options)
    except UserError:
        raise
    except Exception as error:  # a damaged file may raise any error
        remedy = "if a file is truncated or a git-lfs pointer, fetch it again"
        raise UserError(f"{name}: not a causal language model of transformers ({reason(error)}); {remedy}") from None
    finally:
        logging.set_verbosity(verbosity)
    if missing := loading_info["missing_keys"]:
        raise UserError(f"{name}: weights {min(missing)} are missing; fetch or export the model again")
    return model.to(device).eval()


def check_memory(name: str, parameters: int, dtype: torch.dtype, device: str | torch.device) -> None:
    """Raise UserError if a model of `parameters` values of `dtype` exceeds the free memory of the device."""
    device = torch.device(device)
    need = parameters * dtype.itemsize
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if need > free:
        size = f"{short(parameters)} parameters in {str(dtype).removeprefix('torch.')} need {short(need)}B"
        remedy = "use a smaller dtype or another device"
        raise UserError(f"{name}: {size}, but {device} has {short(free)}B free; {remedy}")
