"""Export a decoder as a Hugging Face folder: config, weights, tokenizer, and model code if no native layout fits.

The model code is one file, assembled from the source of the layers that the model uses. Stand-ins replace spec
validation and the kernels, so the file needs only torch and transformers.
"""

import ast
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from formerlab.errors import UserError
from formerlab.files import read_json, write_json
from formerlab.integrations.huggingface.modeling import FormerlabConfig, FormerlabForCausalLM
from formerlab.integrations.huggingface.native import to_native
from formerlab.layers.layer_spec import LayerSpec
from formerlab.models.decoder import Decoder, DecoderModel
from formerlab.spec import Spec

CODE_FILE = "modeling_formerlab.py"
"""File of model code, for models without a native layout in transformers."""


def save_folder(
    model: DecoderModel, tokenizer: Tokenizer | None, out: Path, *, end_of_text: int | None = None, card: str = ""
) -> None:
    """Write a model and its tokenizer, if given, for `AutoModelForCausalLM` and `AutoTokenizer`.

    The layout is LLaMA or GPT-NeoX if the spec allows it. Otherwise a file of model code is written beside the weights,
    and loading it needs `trust_remote_code`. `end_of_text` is the id of the token that ends a document; it becomes the
    eos and the padding token. `card` is the text of README.md. Weights keep their dtype. Raises UserError if `out`
    exists and is neither an empty folder nor a Hugging Face folder.
    """
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / "config.json").is_file())):
        raise UserError(f"{out}: exists and is not a Hugging Face folder; give --out another name")
    exported = to_native(model)
    if needs_code := exported is None:
        classes = {"AutoConfig": FormerlabConfig, "AutoModelForCausalLM": FormerlabForCausalLM}
        auto_map = {name: f"{CODE_FILE.removesuffix('.py')}.{cls.__name__}" for name, cls in classes.items()}
        with torch.device("meta"):  # allocate no memory; the weights are replaced below
            config = FormerlabConfig(spec=model.spec.to_dict(), dtype=model.embedding.dtype, auto_map=auto_map)
            exported = FormerlabForCausalLM(config)
        exported.decoder = model
    if end_of_text is not None:
        exported.generation_config.eos_token_id = exported.generation_config.pad_token_id = end_of_text
    exported.save_pretrained(out)
    (out / CODE_FILE).unlink(missing_ok=True)
    if needs_code:
        (out / CODE_FILE).write_text(model_code(model.spec), encoding="utf-8")
    for weights in out.glob("*.safetensors"):  # safetensors ignores the umask and creates private files
        weights.chmod((out / "config.json").stat().st_mode & 0o777)
    if tokenizer is not None:
        end_token = None if end_of_text is None else tokenizer.id_to_token(end_of_text)
        options = {"eos_token": end_token, "pad_token": end_token, "padding_side": "left"}
        context = model.spec.context
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=context, **options).save_pretrained(out)
    _add_transformers_4_keys(out)
    if card:
        (out / "README.md").write_text(card, encoding="utf-8")


def _add_transformers_4_keys(out: Path) -> None:
    """Add the keys of transformers 4 for the tokenizer class and the rotary position embedding to a saved folder.

    transformers 5 reads the old and the new keys. Without the old keys, transformers 4.57 finds no tokenizer and
    rotates a quarter of each GPT-NeoX head.
    """
    path = out / "config.json"
    config = read_json(path)
    if rope := config.get("rope_parameters"):
        old_keys = {"rope_theta": rope["rope_theta"]}
        if config["model_type"] == "gpt_neox":
            old_keys = {"rotary_emb_base": rope["rope_theta"], "rotary_pct": rope["partial_rotary_factor"]}
        write_json(path, config | old_keys)
    path = out / "tokenizer_config.json"
    if path.is_file():
        inputs = ["input_ids", "attention_mask"]  # 4.57 adds token_type_ids, which decoders do not accept
        old_keys = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs}
        write_json(path, read_json(path) | old_keys)


def model_card(record: dict[str, Any], weights_licence: str, data_licence: str) -> str:
    """Return the model card of a run from the content of run.json and names of licences, such as "CC-BY-4.0"."""
    data_set, final, git = record.get("data", {}), record.get("final", {}), record.get("git", {})
    losses = [(split, final.get(f"{split}_loss_nats")) for split in ("train", "valid", "test")]
    facts = {
        "Data": f"`{data_set.get('name')}`, fingerprint {data_set.get('fingerprint')}; licence: {data_licence}",
        "Training tokens": record.get("tokens"),
        "Parameters": record.get("parameters"),
        "Loss, nats per token": ", ".join(f"{split} {loss:.4f}" for split, loss in losses if loss is not None),
        "Code": f"formerlab, commit {git['commit']}" if git.get("commit") else "formerlab, unknown commit",
        "Licence of the weights": weights_licence,
    }
    rows = [f"- {name}: {'not recorded' if value in (None, '') else value}" for name, value in facts.items()]
    licence_line = f"license_name: {json.dumps(weights_licence)}"
    head = ["---", "library_name: transformers", "license: other", licence_line, "---", ""]
    use = "Load the model and tokenizer with `AutoModelForCausalLM.from_pretrained(folder)` and "
    use += "`AutoTokenizer.from_pretrained(folder)` (transformers 4.57 or 5). "
    use += f"If the folder contains `{CODE_FILE}`, pass `trust_remote_code=True` to both calls."
    return "\n".join([*head, f"# {record['id']}", "", *rows, "", use, ""])


FIRST_MODULES = ["seeding", "layers.autocast", "layers.position", "layers.linear", "layers.mlp", "layers.norm"]
FIRST_MODULES += ["layers.score", "layers.depth.identity"]
LAST_MODULES = ["layers.attention", "layers.block", "models.decoder", "integrations.huggingface.modeling"]
"""Modules in every file of model code, in this order; other layers of the model come after FIRST_MODULES."""
HEADER = '''"""A decoder of formerlab (Apache-2.0) in one file: its layers and its transformers class."""

from __future__ import annotations'''
STAND_INS = '''
class Spec:
    """A spec without validation. It contains the values of config.json; missing fields have the class defaults."""

    kinds: ClassVar[dict[str, type]] = {}

    def __init_subclass__(cls):
        if isinstance(kind := vars(cls).get("kind"), str):
            Spec.kinds[kind] = cls

    def __init__(self, **values):
        built = {key: Spec.kinds[value["kind"]](**value) if isinstance(value, dict) else value
                 for key, value in values.items()}
        vars(self).update(built)

    @classmethod
    def model_validate(cls, values):
        return cls(**values)

    def to_dict(self):
        return {key: value.to_dict() if isinstance(value, Spec) else value for key, value in vars(self).items()}


LayerSpec = Spec


class _Shape:
    """A tensor type that ignores its shape."""

    def __class_getitem__(cls, item):
        return item[0]


class UserError(ValueError):
    """An error in the caller's input."""


ArgumentError = UserError

class Layout:
    """The sources of depth-weighted averages."""

    def __init__(self, sources):
        self.sources = sources


class FusedHistory:
    """Replaces formerlab's FusedHistory: returns the list that the unfused loop uses."""

    def __new__(cls, layout, weights, x):
        return [x]


class _NoKernel:
    """Stand-in for kernels: `fits` is always False, so torch computes everything."""

    @staticmethod
    def fits(*tensors):
        return False


def current_attend():
    """Return None: the model computes its own attention."""


def Field(default=None, **_):
    return default


def model_validator(**_):
    return lambda method: method


Float = Int = Bool = _Shape
rotary_cpu = _NoKernel
norm_gelu_cpu = _NoKernel
'''


def model_code(spec: Decoder) -> str:
    """Return the source of a file that builds and runs a model: its layers and the class for transformers."""
    layers = [cls.__module__ for layer in spec.nested_specs() for cls in reversed(type(layer).__mro__)]
    first, last = ([f"formerlab.{name}" for name in names] for names in (FIRST_MODULES, LAST_MODULES))
    skipped = {*last, Spec.__module__, LayerSpec.__module__}
    candidates = dict.fromkeys([*first, *layers])
    modules = [name for name in candidates if name.startswith("formerlab.") and name not in skipped]
    imports: dict[str, set[str]] = {"": {"torch"}, "typing": {"Any", "ClassVar"}}
    bodies, package_names = [], set[str]()
    for module in (*modules, *last):
        body = _without_imports(inspect.getsource(sys.modules[module]), imports, package_names)
        bodies.append(f"# {module}\n\n{body}")
    lines = [f"import {name}" for name in sorted(imports[""])]
    lines += [f"from {name} import {', '.join(sorted(names))}" for name, names in sorted(imports.items()) if name]
    text = "\n\n".join([HEADER, "\n".join(lines), STAND_INS, *bodies])
    undefined = package_names - set(re.findall(r"^(?:def |class )?(\w+)", text, re.MULTILINE)) - {"Int", "Bool"}
    unused = " = ".join([*sorted(undefined), "None"])  # the exported model never evaluates these names
    return text.replace(STAND_INS, f"{STAND_INS}{unused}\n", 1)


def _without_imports(source: str, imports: dict[str, set[str]], package_names: set[str]) -> str:
    """Return the source of a module without its docstring, imports and type aliases (`X = Annotated[...]`).

    Adds imports of other packages to `imports`, and names imported from formerlab, pydantic and jaxtyping to
    `package_names`.
    """
    statements, lines = [], source.splitlines(keepends=True)
    for statement in ast.parse(source).body[1:]:
        if isinstance(statement, ast.Import):
            imports[""].update(alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            if (name := str(statement.module)).partition(".")[0] in ("formerlab", "pydantic", "jaxtyping"):
                package_names.update(alias.asname or alias.name for alias in statement.names)
            else:
                imports.setdefault(name, set()).update(ast.unparse(alias) for alias in statement.names)
        elif not (isinstance(statement, ast.Assign) and ast.unparse(statement.value).startswith("Annotated[")):
            first = min([statement.lineno, *(line.lineno for line in getattr(statement, "decorator_list", ()))])
            statements.append("".join(lines[first - 1 : statement.end_lineno]))
    return "\n".join(statements)
