"""The code of a model in one file, which travels beside its weights where no layout of transformers' own fits them.

The file is made of the source of the very layers that the model has, so every formula stands once. A few lines stand
in for what checks a spec and for the kernels, and nothing but torch and transformers is imported.
"""

import ast
import inspect
import re
import sys

from formerlab.models.decoder import Decoder
from formerlab.spec import Spec

FIRST = ["seeding", "layers.position", "layers.linear", "layers.mlp", "layers.norm", "layers.score"]
FIRST += ["layers.depth.identity"]
LAST = ["layers.attention", "layers.block", "models.decoder"]
LAST += [f"integrations.huggingface.{name}" for name in ("padding", "cache_argument", "modeling")]
"""Modules that every file is made of, in this order; those of the model's own parts stand behind the first."""
HEAD = '''"""A decoder of formerlab (Apache-2.0) in one file: its layers, and the class of transformers around them."""

from __future__ import annotations'''
STAND_INS = '''
class Spec:
    """A spec without checks: the plain values of config.json, and defaults."""

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


class _Shape:
    """A type of tensors without its shape."""

    def __class_getitem__(cls, item):
        return item[0]


class UserError(ValueError):
    """What a caller can mend."""


class Layout:
    """The sources of averages over depth."""

    def __init__(self, table):
        self.table = table


class FusedHistory:
    """What a faster path would remember."""


class _NoKernel:
    """No kernel fits: all is computed in torch."""

    @staticmethod
    def fits(*tensors):
        return False


def lean_pattention(x, keys, values, tau):
    """Return gelu(tau A / ||A||_2) V with A = x K^T (arXiv:2410.23168, eq. 4)."""
    return SCORES["l2_gelu"](x @ keys.T, tau) @ values


def current_attend():
    """Attention is that of the model."""


def Field(default=None, **_):
    return default


def model_validator(**_):
    return lambda method: method


Float = Int = Bool = _Shape
rotary_cpu = _NoKernel
# None of what a model that runs does not use
'''
UNUSED = "# None of what a model that runs does not use"
AFTER = {"formerlab.layers.depth.dwa": "DepthWeightedAverageLayer.fused = False\n"}
"""What is said behind a module."""


def code_of(spec: Decoder) -> str:
    """Return the file of code that builds and runs a model: its layers, and the class of transformers around them."""
    own = [cls.__module__ for part in spec.parts() for cls in reversed(type(part).__mro__)]
    first, last = ([f"formerlab.{name}" for name in names] for names in (FIRST, LAST))
    around = {*last, Spec.__module__}
    modules = [name for name in dict.fromkeys([*first, *own]) if name.startswith("formerlab.") and name not in around]
    imports: dict[str, set[str]] = {"": {"torch"}, "typing": {"Any", "ClassVar"}}
    bodies, wanted = [], set[str]()
    for module in (*modules, *last):
        body = _without_imports(inspect.getsource(sys.modules[module]), imports, wanted)
        bodies.append(f"# {module}\n\n{body}{AFTER.get(module, '')}")
    lines = [f"from {name} import {', '.join(sorted(of))}" for name, of in sorted(imports.items()) if name]
    plain = [f"import {name}" for name in sorted(imports[""])]
    text = "\n\n".join([HEAD, "\n".join([*plain, *lines]), STAND_INS, *bodies])
    absent = wanted - set(re.findall(r"^(?:def |class )?(\w+)", text, re.MULTILINE)) - {"Int", "Bool"}
    return text.replace(UNUSED, " = ".join([*sorted(absent), "None"]), 1)


def _without_imports(source: str, imports: dict[str, set[str]], wanted: set[str]) -> str:
    """Return the statements of a module without imports and unions; note what it needs of others, and of ours."""
    kept, lines = [], source.splitlines(keepends=True)
    for statement in ast.parse(source).body[1:]:
        if isinstance(statement, ast.Import):
            imports[""].update(alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            if (name := str(statement.module)).partition(".")[0] in ("formerlab", "pydantic", "jaxtyping"):
                wanted.update(alias.asname or alias.name for alias in statement.names)
            else:
                imports.setdefault(name, set()).update(ast.unparse(alias) for alias in statement.names)
        elif not (isinstance(statement, ast.Assign) and ast.unparse(statement.value).startswith("Annotated[")):
            first = min([statement.lineno, *(line.lineno for line in getattr(statement, "decorator_list", ()))])
            kept.append("".join(lines[first - 1 : statement.end_lineno]))
    return "\n".join(kept)
