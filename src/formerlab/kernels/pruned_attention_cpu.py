"""Step-by-step eviction, compiled by numba: one program per sequence and set of heads, each on one thread.

A block of queries meets the held keys and its own in one small matrix product, which reads every key once per block
and not once per query; then the rule acts row by row. Sums run in a fixed order, so results do not depend on threads.
All that numba keeps on disk stands in this file, because its file cache looks at no other.
"""

from typing import no_type_check

import numpy as np

from formerlab.kernels.cache_state import EMPTY
from formerlab.kernels.pruned_attention_data import Bounds, Heads, Held, Room, Rule, Shape, Tensors
from formerlab.kernels.simd import LANES, TILE, Array, Strided, compiled, oldest, product, rescore, softmax, vector

PARTS_SHA256 = "f00df5ef3f24b745"
"""Start of the hash of kernel_data.py and lanes.py, so that a change there changes this file too and outdates what
numba kept."""
BLOCK = 16
"""Most queries of a block."""


@compiled
@no_type_check
def admit(held: Held, free: Array, heads: Heads, k: Strided, v: Strided, start: int, rows: int) -> None:
    """Write the keys and values of a block into free slots, which `free` then lists."""
    channels, slot = held.keys.shape[1], 0
    for i in range(rows):
        while held.positions[slot] != EMPTY:
            slot += 1
        held.positions[slot] = start + i
        free[i] = slot
        for head in range(held.keys.shape[0]):
            column, row = held.keys[head], held.values[head, slot]
            key = vector(k, heads.batch, heads.key_head + head, start - heads.origin + i, channels)
            value = vector(v, heads.batch, heads.key_head + head, start - heads.origin + i, channels)
            for channel in range(channels):
                column[channel, slot] = key[channel]
            for channel in range(channels):
                row[channel] = value[channel]


@compiled
@no_type_check
def attention(room: Room, positions: Array, heads: Heads, i: int, now: int, slots: int) -> Array:
    """Make probabilities of the logits of row i; return their sum over the heads."""
    for head in range(heads.number):
        softmax(room.logits[head, i], positions, now, slots)
    if heads.number == 1:
        return room.logits[0, i]
    room.received[:slots] = room.logits[0, i, :slots]
    for head in range(1, heads.number):
        row = room.logits[head, i]
        for slot in range(slots):
            room.received[slot] += row[slot]
    return room.received


@compiled
@no_type_check
def turn(
    held: Held, room: Room, rule: Rule, bounds: Bounds, heads: Heads, last: Array, i: int, query: int, slots: int
) -> None:
    """Let one query of a block attend, score and evict."""
    now = np.int32(query)  # as narrow as the positions, or half of the lanes would lie idle
    received = attention(room, held.positions, heads, i, now, slots)
    sink, newest = np.int32(bounds.sink), np.int32(now - bounds.recent)
    lowest = rescore(held.scores, received, held.positions, rule.decay, rule.gain, sink, newest, slots)
    if query >= bounds.limit:
        slot = min(oldest(held.scores, held.positions, lowest, sink, newest, slots), slots)
        if slot == slots:  # attention is not a number; something has to go
            slot = room.free[i]
        if last.size:
            last[held.positions[slot]] = now
        held.positions[slot] = EMPTY


@compiled
@no_type_check
def block(
    held: Held,
    room: Room,
    rule: Rule,
    bounds: Bounds,
    heads: Heads,
    tensors: Tensors,
    entry: Array,
    last: Array,
    used: int,
    start: int,
    rows: int,
) -> int:
    """Let `rows` queries from position `start` on attend and evict in turn; return how many slots were ever used."""
    q, k, v, out = tensors
    admit(held, room.free, heads, k, v, start, rows)
    used = max(used, room.free[rows - 1] + 1)
    slots, channels, origin = (used + LANES - 1) // LANES * LANES, held.keys.shape[1], start - heads.origin
    scale = held.scores.dtype.type(rule.scale)
    for head in range(heads.number):
        for i in range(rows):
            row, query = room.queries[i], vector(q, heads.batch, heads.head + head, origin + i, channels)
            for channel in range(channels):
                row[channel] = query[channel] * scale
        product(room.logits[head], room.queries, held.keys[head // heads.share], rows, channels, slots)
    for i in range(rows):
        held.scores[room.free[i]] = entry[origin + i] if entry.size else 0
        turn(held, room, rule, bounds, heads, last, i, start + i, slots)
    for head in range(heads.number):
        values = held.values[head // heads.share]
        product(room.outputs, room.logits[head], values, rows, slots, values.shape[1])
        for i in range(rows):
            row, result = room.outputs[i], vector(out, heads.batch, heads.head + head, origin + i, channels)
            for channel in range(channels):
                result[channel] = row[channel]
    return used


@compiled
@no_type_check
def workroom(heads: int, rows: int, slots: int, channels: int, kind: Array) -> Room:
    """Return the work space of a thread."""
    wide = (channels + LANES - 1) // LANES * LANES
    return Room(
        np.zeros((heads, rows, slots), kind.dtype),
        np.zeros((rows, channels), kind.dtype),
        np.zeros((rows, wide), kind.dtype),
        np.zeros(slots, kind.dtype),
        np.zeros(rows, np.int64),
    )


@compiled
@no_type_check
def whole_sequences(
    first: int,
    end: int,
    rule: Rule,
    shape: Shape,
    tensors: Tensors,
    bounds: Array,
    lengths: Array,
    entry: Array,
    last: Array,
    final: Array,
) -> None:
    """Simulate the sets of heads first, ..., end - 1 over whole sequences.

    Fills `last`, the last query that sees each key, where a key is evicted, and `final`, the scores of the others.
    """
    sets, number, share, channels, most = shape
    key_heads, kind = max(1, number // share), tensors[0].flat
    slots, wide = (most + BLOCK + LANES - 1) // LANES * LANES, (channels + LANES - 1) // LANES * LANES
    room = workroom(number, BLOCK, slots, channels, kind)
    held = Held(
        np.zeros((key_heads, channels, slots), kind.dtype),
        np.zeros((key_heads, slots, wide), kind.dtype),
        np.empty(slots, np.int32),
        np.zeros(slots, kind.dtype),
    )
    for unit in range(first, end):
        batch, member = unit // sets, unit % sets
        heads = Heads(batch, member * number, member * number // share, number, share, 0)
        limits = Bounds(bounds[batch, 0], bounds[batch, 1], bounds[batch, 2])
        held.positions[:] = EMPTY
        used = 0
        for start in range(0, lengths[batch], BLOCK):
            rows = min(BLOCK, lengths[batch] - start)
            used = block(held, room, rule, limits, heads, tensors, entry[unit], last[unit], used, start, rows)
        for slot in range(used):
            if held.positions[slot] != EMPTY:
                final[unit, held.positions[slot]] = held.scores[slot]


@compiled
@no_type_check
def one_token(
    first: int, end: int, rule: Rule, shape: Shape, tensors: Tensors, bounds: Array, held: Held, entry: Array, now: int
) -> None:
    """Let the sets of heads first, ..., end - 1 take in one token at position `now`, in the cache's own buffers."""
    sets, number, share, channels, _ = shape
    slots = held.positions.shape[1]
    room = workroom(number, TILE, slots, channels, tensors[0].flat)
    nothing = np.empty(0, np.int32)
    for unit in range(first, end):
        batch, member = unit // sets, unit % sets
        heads = Heads(batch, member * number, member * number // share, number, share, now)
        limits = Bounds(bounds[batch, 0], bounds[batch, 1], bounds[batch, 2])
        own = Held(held.keys[unit], held.values[unit], held.positions[unit], held.scores[unit])
        block(own, room, rule, limits, heads, tensors, entry[unit], nothing, slots, now, 1)
