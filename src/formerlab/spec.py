"""Spec: a frozen value that says everything about a part and builds it.

A variant (a projection, a depth mixer, a data source, ...) is a subclass with a literal `kind`; the union of the
variants of one idea, discriminated by `kind`, is its registry: it checks configs, prints the choices in errors,
exports the JSON schema and is what the tests enumerate.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field

from formerlab.files import fingerprint as fingerprint  # for all that import it from here

# Ranges that many parts share. Their upper ends are beyond what anyone has built, so that a slip of the finger is
# refused when it is planned; what is too large only together, the plan finds by the sizes that result.
Size = Annotated[int, Field(gt=0, le=10**7)]
"""An extent of a tensor: channels, heads, tokens, pixels."""
Layers = Annotated[int, Field(gt=0, le=1000)]
"""A number of layers."""
Count = Annotated[int, Field(gt=0, le=10**9)]
"""How many steps, windows, sentences, repetitions."""
AnyCount = Annotated[int, Field(ge=0, le=10**9)]
"""The same, or none."""
Bytes = Annotated[int, Field(gt=0, le=10**15)]
"""A size of text."""
Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""A seed of random numbers."""
Std = Annotated[float, Field(gt=0, le=10)]
"""A standard deviation of initial values."""
Epsilon = Annotated[float, Field(gt=0, le=1)]
"""A small number that keeps a divisor from zero."""


def is_none(value: object) -> bool:
    """Say whether a field added later is empty; it is then left out, so older specs keep their fingerprints."""
    return value is None


class Spec(BaseModel):
    """A frozen, hashable description; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as plain JSON values."""
        return self.model_dump(mode="json")

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that change exactly when a value of the spec changes."""
        return fingerprint(self.to_dict())

    def parts(self) -> Iterator["Spec"]:
        """Yield this spec and every spec inside it."""
        yield self
        for name in type(self).model_fields:
            value = getattr(self, name)
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Spec):
                    yield from item.parts()


def variants(union: object) -> tuple[type[Spec], ...]:
    """Return the classes of a discriminated union, or the one class where there is a single variant."""
    if get_origin(union) is Annotated:
        return variants(get_args(union)[0])
    if isinstance(union, type):
        return (union,)
    if get_origin(union) is Union or get_args(union):
        return tuple(cls for arg in get_args(union) for cls in variants(arg))
    raise TypeError(f"{union!r} is not a union of specs")
