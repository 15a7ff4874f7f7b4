"""Checkpoints of the official Tokenformer code on disk: weights in the forms it writes, and its settings."""

import re
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from formerlab.errors import UserError

Weights = dict[str, Tensor]

LAYER_FILE = re.compile(r"layer_(\d+)-model_00-model_states\.pt")
STATES_FILE = "mp_rank_00_model_states.pt"


def read_weights(folder: Path) -> Weights:
    """Return all tensors of a checkpoint under the names of a sequential model, `sequential.<module>.<...>`.

    The folder holds `pytorch_model.bin` (what is released), `model.safetensors`, DeepSpeed's
    `mp_rank_00_model_states.pt`, or one `layer_NN-model_00-model_states.pt` per module. Files are read as tensors only.
    Raises UserError where there is none of them, or it is broken.
    """
    if (folder / "pytorch_model.bin").is_file():
        return _tensors(folder / "pytorch_model.bin")
    if (folder / "model.safetensors").is_file():
        return load_file(folder / "model.safetensors")
    if (folder / STATES_FILE).is_file():
        return _tensors(folder / STATES_FILE, inside="module")
    layers = {path: match for path in sorted(folder.glob("layer_*")) if (match := LAYER_FILE.fullmatch(path.name))}
    if not layers:
        raise UserError(f"{folder}: holds no Tokenformer checkpoint (pytorch_model.bin, {STATES_FILE} or layer_*.pt)")
    return {
        f"sequential.{int(match[1])}.{name}": tensor
        for path, match in layers.items()
        for name, tensor in _tensors(path).items()
    }


def _tensors(path: Path, inside: str | None = None) -> Weights:
    """Return the tensors of a file that `torch.save` wrote, those under the key `inside` where one is given."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # what a damaged file makes of the reader is anybody's guess
        reason = (str(error) or type(error).__name__).partition("\n")[0].partition(". ")[0]
        raise UserError(
            f"{path}: not a file of tensors ({reason}); fetch it again, or save its weights alone"
        ) from None
    content = content.get(inside) if inside is not None and isinstance(content, dict) else content
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"{path}: not a mapping of names to tensors; save the model's weights alone")
    return content


def read_settings(folder: Path, config: Path | None) -> dict[str, Any] | None:
    """Return the official code's settings: those of `config`, else of the folder's one .yml, else nothing.

    Raises UserError where the file cannot be read or the folder holds several.
    """
    if config is None:
        found = sorted(folder.glob("*.yml"))
        if len(found) > 1:
            raise UserError(f"{folder}: holds {len(found)} .yml files; name one with --config")
        if not found:
            return None
        config = found[0]
    try:
        settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    except OSError:
        raise UserError(f"{config}: no such file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{config}: not YAML ({str(error).partition(chr(10))[0]})") from None
    if not isinstance(settings, dict):
        raise UserError(f"{config}: not a mapping of settings to values")
    return {str(key).replace("-", "_"): value for key, value in settings.items()}
