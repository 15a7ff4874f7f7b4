"""What the compiled programs of `kernel` hand each other.

They are compiled for these, so a change here has to be noted in `kernel`, as one in `lanes` (a test says how).
"""

from typing import NamedTuple

from formerlab.kernels.simd import Array, Strided


class Rule(NamedTuple):
    """S <- decay S + gain p."""

    decay: float
    gain: float
    scale: float
    """Factor of q k^T."""


class Heads(NamedTuple):
    """Heads that choose together, and where they stand in the tensors."""

    batch: int
    head: int
    """First query head."""
    key_head: int
    """First key head."""
    number: int
    """Query heads."""
    share: int
    """Query heads per key head."""
    origin: int
    """Position of the tensors' first token."""


class Bounds(NamedTuple):
    """Keys that may stay, first and last positions that are not evicted."""

    limit: int
    sink: int
    recent: int


class Held(NamedTuple):
    """What such heads hold."""

    keys: Array
    """(key heads, channels, slots)"""
    values: Array
    """(key heads, slots, channels)"""
    positions: Array
    """(slots,)"""
    scores: Array
    """(slots,)"""


class Room(NamedTuple):
    """Work space of a thread."""

    logits: Array
    """(heads, rows, slots)"""
    queries: Array
    """(rows, channels)"""
    outputs: Array
    """(rows, channels)"""
    received: Array
    """(slots,)"""
    free: Array
    """Slots of the block's own keys (rows,)"""


Tensors = tuple[Strided, Strided, Strided, Strided]
"""Queries, keys, values, outputs."""
Shape = tuple[int, int, int, int, int]
"""Sets per sequence, query heads per set, query heads per key head, channels, most keys that may stay."""
