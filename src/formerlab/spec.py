"""Spec: a frozen, validated configuration that builds a module, a task or a data set.

A variant (of a projection, a depth mixer, a data source, ...) is a subclass with a literal `kind`. A union of variants,
discriminated by `kind`, is their registry.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field

from formerlab.files import fingerprint as fingerprint  # re-exported

# Ranges that many specs share. The upper limits catch typing errors.
Size = Annotated[int, Field(gt=0, le=10**7)]
"""Size of a tensor dimension: channels, heads, tokens, pixels."""
Layers = Annotated[int, Field(gt=0, le=1000)]
"""A number of layers."""
Count = Annotated[int, Field(gt=0, le=10**9)]
"""A positive number of steps, windows, sentences or repetitions."""
AnyCount = Annotated[int, Field(ge=0, le=10**9)]
"""A count that may be zero."""
Bytes = Annotated[int, Field(gt=0, le=10**15)]
"""A size of text in bytes."""
Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""A seed of random numbers."""
Std = Annotated[float, Field(gt=0, le=10)]
"""A standard deviation of initial values."""
Epsilon = Annotated[float, Field(gt=0, le=1)]
"""A small number that is added to a divisor."""


def is_none(value: object) -> bool:
    """Return whether the value is None, for fields that are not saved if they are None."""
    return value is None


class Spec(BaseModel):
    """A frozen, hashable configuration that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as plain JSON values."""
        return self.model_dump(mode="json")

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that identify the values of the spec."""
        return fingerprint(self.to_dict())

    def nested_specs(self) -> Iterator["Spec"]:
        """Yield this spec and all nested specs."""
        yield self
        for name in type(self).model_fields:
            value = getattr(self, name)
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Spec):
                    yield from item.nested_specs()


def variants(union: object) -> tuple[type[Spec], ...]:
    """Return the classes of a discriminated union, or the class itself for a single variant."""
    if get_origin(union) is Annotated:
        return variants(get_args(union)[0])
    if isinstance(union, type):
        return (union,)
    if get_origin(union) is Union or get_args(union):
        return tuple(cls for arg in get_args(union) for cls in variants(arg))
    raise TypeError(f"{union!r} is not a union of specs")
