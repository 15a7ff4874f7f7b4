"""CPU kernel of step-by-step eviction, compiled by numba.

For the queries q = 0, 1, ... of a sequence, in each head group (`cache/eviction.py`; Decay article, eq. 5):

    p[k] = softmax over the retained keys of scale q k^T        out[q] = sum over k of p[k] v[k]
    S[k] <- decay S[k] + gain sum over the group's heads of p[k]

A full cache evicts the key of lowest S. Queries are processed in blocks: one small matrix product computes the logits
of a block with the retained keys and its own keys, so that each key is read once per block. Then the eviction rule runs
row by row. One thread processes a head group of a sequence, and sums have a fixed order, so results do not depend on
the number of threads.

The loops have shapes that LLVM vectorises. numba caches compiled code on disk until this file changes and does not
track other files, so the whole kernel is in this file. Files of an earlier version must find the classes `Held` and
`Buffers`, so their names stay.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast, no_type_check

import numpy as np
from numba import njit, prange, types
from numba.extending import overload
from numpy.typing import NDArray

from formerlab.kernels import EMPTY

BLOCK = 16
"""Upper limit of queries per block."""
VECTOR = 16
"""The number of slots is a multiple of this, so that vectorised loops have no remainder."""

Array = NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., Any])


class Held(NamedTuple):
    """The buffers of one head group; the buffers of a whole cache have an additional first axis."""

    keys: Array
    """(key heads, slots, channels)"""
    values: Array
    """(key heads, channels, slots)"""
    positions: Array
    """(slots,)"""
    scores: Array
    """(slots,)"""


class Buffers(NamedTuple):
    """Work space of a thread."""

    logits: Array
    """(heads, rows, slots); overwritten by the probabilities"""
    queries: Array
    """(rows, channels)"""
    outputs: Array
    """(rows, channels)"""
    received: Array
    """Attention summed over the heads (slots,)"""
    new_slots: Array
    """Slots of the block's new keys (rows,)"""


def compiled(function: Function, *, parallel: bool = False) -> Function:
    """Compile for the types of the first call, without the GIL, and cache the result on disk if possible."""
    order_is_free = {"nnan", "nsz", "arcp", "contract", "afn", "reassoc"}  # without ninf: -inf marks unseen keys
    made = njit(fastmath=order_is_free, nogil=True, error_model="numpy", parallel=parallel)(function)
    with contextlib.suppress(RuntimeError):  # no writable folder
        made.enable_caching()
    return cast(Function, made)


def compiled_parallel(function: Function) -> Function:
    """Compile in the same way, with `prange` on numba's threads."""
    return compiled(function, parallel=True)


@compiled
@no_type_check
def product(out: Array, left: Array, right: Array, rows: int, columns: int, inner: int) -> None:
    """Write left right^T in tiles of four by two rows, so that each loaded element enters several products."""
    zero = out.dtype.type(0)
    tiled_rows, tiled_columns = rows - rows % 4, columns - columns % 2
    for i in range(0, tiled_rows, 4):
        a, b, c, d = left[i, :inner], left[i + 1, :inner], left[i + 2, :inner], left[i + 3, :inner]
        for j in range(0, tiled_columns, 2):
            x, y = right[j, :inner], right[j + 1, :inner]
            ax, bx, cx, dx, ay, by, cy, dy = zero, zero, zero, zero, zero, zero, zero, zero
            for n in range(inner):
                ax += a[n] * x[n]
                bx += b[n] * x[n]
                cx += c[n] * x[n]
                dx += d[n] * x[n]
                ay += a[n] * y[n]
                by += b[n] * y[n]
                cy += c[n] * y[n]
                dy += d[n] * y[n]
            out[i, j], out[i + 1, j], out[i + 2, j], out[i + 3, j] = ax, bx, cx, dx
            out[i, j + 1], out[i + 1, j + 1], out[i + 2, j + 1], out[i + 3, j + 1] = ay, by, cy, dy
    for i in range(rows):
        for j in range(tiled_columns if i < tiled_rows else 0, columns):
            total = zero
            for n in range(inner):
                total += left[i, n] * right[j, n]
            out[i, j] = total


@no_type_check
def order(x: float) -> float:
    """Return a number with the same order as x; in float32 an integer, whose minimum vectorises.

    The result is the bits of x with the magnitude bits inverted for negative x, so the function is its own inverse.
    """
    raise NotImplementedError


@no_type_check
@overload(order)
def _order(x: Any) -> Callable[[Any], Any]:
    sign, magnitude = np.int32(31), np.int32(2**31 - 1)

    def to_integer(x: Any) -> Any:
        bits = np.float32(x).view(np.int32)
        return np.int32(bits ^ ((bits >> sign) & magnitude))

    def to_number(x: Any) -> Any:
        return np.int32(x ^ ((x >> sign) & magnitude)).view(np.float32)

    def as_it_is(x: Any) -> Any:
        return x

    return {types.float32: to_integer, types.int32: to_number}.get(x, as_it_is)


@no_type_check
def exponential(x: float) -> float:
    """Return e^x for x <= 0: a vectorised polynomial in float32, otherwise the library function."""
    raise NotImplementedError


@no_type_check
@overload(exponential, jit_options={"fastmath": {"contract", "nnan", "nsz"}})
def _exponential(x: Any) -> Callable[[Any], Any]:
    """e^x = 2^n e^r with |r| <= ln 2 / 2 and a polynomial of degree 7 for e^r (the constants of Cephes' expf)."""
    least, to_power = np.float32(-87.0), np.float32(1.44269504088896341)
    high, low = np.float32(0.693359375), np.float32(-2.12194440e-4)
    c7, c6, c5 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
    c4, c3, c2 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
    half, one, zero = np.float32(0.5), np.float32(1), np.float32(0)
    bias, mantissa = np.int32(127), np.int32(23)

    def single(x: Any) -> Any:
        bounded = max(x, least)
        n = np.floor(bounded * to_power + half)
        r = (bounded - n * high) - n * low
        series = ((((c7 * r + c6) * r + c5) * r + c4) * r + c3) * r + c2
        power_of_two = np.int32((np.int32(n) + bias) << mantissa).view(np.float32)
        result = (series * (r * r) + r + one) * power_of_two
        return result if x >= least else zero

    def double(x: Any) -> Any:
        return np.exp(x)

    return single if x == types.float32 else double


@compiled
@no_type_check
def softmax(row: Array, positions: Array, query: int) -> None:
    """Replace the logits of one query by probabilities over the keys up to position `query`; other slots get 0."""
    unseen = row.dtype.type(-np.inf)
    top, total = order(unseen), row.dtype.type(0)
    for slot in range(len(row)):
        logit = row[slot] if positions[slot] <= query else unseen
        row[slot] = logit
        top = max(top, order(logit))
    largest = order(top)
    for slot in range(len(row)):
        weight = exponential(row[slot] - largest)
        row[slot] = weight
        total += weight
    factor = 1 / total
    for slot in range(len(row)):
        row[slot] *= factor


@compiled
@no_type_check
def rescore(scores: Array, positions: Array, received: Array, rule: Array, sink: int, newest: int) -> float:
    """Set S <- decay S + gain p in every slot; return the lowest score among the positions sink, ..., newest."""
    decay, gain = scores.dtype.type(rule[0]), scores.dtype.type(rule[1])
    beyond = order(scores.dtype.type(np.inf))
    lowest = beyond
    for slot in range(len(received)):
        score, position = decay * scores[slot] + gain * received[slot], positions[slot]
        scores[slot] = score
        lowest = min(lowest, order(score) if (position >= sink) & (position <= newest) else beyond)
    return order(lowest)


@compiled
@no_type_check
def oldest(scores: Array, positions: Array, lowest: float, sink: int, newest: int, slots: int) -> int:
    """Return the slot of the oldest candidate with the lowest score, or -1 if all scores are NaN."""
    nobody = np.int32(EMPTY)
    first = nobody
    for slot in range(slots):
        position = positions[slot]
        chosen = (scores[slot] == lowest) & (position >= sink) & (position <= newest)
        first = min(first, position if chosen else nobody)
    for slot in range(slots):
        if positions[slot] == first and first != nobody:
            return slot
    return -1


@compiled
@no_type_check
def admit(cache: Held, new_slots: Array, k: Array, v: Array, start: int) -> None:
    """Write the keys and values of a block into empty slots, and the indices of the slots into `new_slots`."""
    slot, (heads, rows, channels) = 0, k.shape
    for i in range(rows):
        while cache.positions[slot] != EMPTY:
            slot += 1
        cache.positions[slot] = start + i
        new_slots[i] = slot
        for head in range(heads):
            for channel in range(channels):
                cache.keys[head, slot, channel] = k[head, i, channel]
                cache.values[head, channel, slot] = v[head, i, channel]


@compiled
@no_type_check
def attend(logits: Array, i: int, positions: Array, query: int, received: Array) -> None:
    """Replace the logits (heads, rows, slots) of query i by probabilities, and write their sums over the heads."""
    received[:] = 0
    for head in range(len(logits)):
        row = logits[head, i, : len(received)]
        softmax(row, positions, query)
        for slot in range(len(received)):
            received[slot] += row[slot]


@compiled
@no_type_check
def block(
    cache: Held, work: Buffers, rule: Array, bounds: Array, q: Array, k: Array, v: Array, out: Array,
    initial: Array, last: Array, used: int, start: int,
) -> int:  # fmt: skip
    """Attend, score and evict for the queries of a block (heads, rows, channels); return the number of used slots."""
    (heads, rows, channels), group_size = q.shape, len(q) // len(k)
    admit(cache, work.new_slots, k, v, start)
    used = max(used, work.new_slots[rows - 1] + 1)
    slots = (used + VECTOR - 1) // VECTOR * VECTOR
    positions, scores, received, sink = cache.positions, cache.scores, work.received[:slots], np.int32(bounds[1])
    for head in range(heads):
        work.queries[:rows] = q[head] * scores.dtype.type(rule[2])
        product(work.logits[head], work.queries, cache.keys[head // group_size], rows, slots, channels)
    for i in range(rows):
        query = np.int32(start + i)  # the dtype of the positions, for full vectors
        newest = np.int32(query - bounds[2])
        attend(work.logits, i, positions, query, received)
        scores[work.new_slots[i]] = initial[i] if initial.size else 0
        lowest = rescore(scores, positions, received, rule, sink, newest)
        if query >= bounds[0]:
            slot = oldest(scores, positions, lowest, sink, newest, slots)
            slot = slot if slot >= 0 else work.new_slots[i]  # all scores are NaN: evict the query's own key
            if last.size:
                last[positions[slot]] = query
            positions[slot] = EMPTY
    for head in range(heads):
        product(work.outputs, work.logits[head], cache.values[head // group_size], rows, channels, slots)
        out[head] = work.outputs[:rows]
    return used


@compiled
@no_type_check
def work_space(heads: int, rows: int, slots: int, channels: int, like: Array) -> Buffers:
    """Return the work space of a thread."""
    logits = np.zeros((heads, rows, slots), like.dtype)
    queries, outputs = np.zeros((rows, channels), like.dtype), np.zeros((rows, channels), like.dtype)
    return Buffers(logits, queries, outputs, np.zeros(slots, like.dtype), np.zeros(rows, np.int64))


@compiled
@no_type_check
def some_sequences(
    thread: int, threads: int, rule: Array, bounds: Array, lengths: Array, most: int, q: Array, k: Array, v: Array,
    out: Array, initial: Array, last: Array, final: Array,
) -> None:  # fmt: skip
    """Process every `threads`-th head group of `whole_sequences`, which balances the work of a padded batch."""
    channels, groups = q.shape[3], len(last) // len(q)
    heads, key_heads = q.shape[1] // groups, k.shape[1] // groups
    slots = (most + BLOCK + VECTOR - 1) // VECTOR * VECTOR
    work = work_space(heads, BLOCK, slots, channels, final)
    keys = np.zeros((key_heads, slots, channels), final.dtype)
    values = np.zeros((key_heads, channels, slots), final.dtype)
    cache = Held(keys, values, np.empty(slots, np.int32), np.zeros(slots, final.dtype))
    for unit in range(thread, len(last), threads):
        batch, group = unit // groups, unit % groups
        in_group = slice(group * heads, (group + 1) * heads)
        in_key_group = slice(group * key_heads, (group + 1) * key_heads)
        cache.positions[:] = EMPTY
        used = 0
        for start in range(0, lengths[batch], BLOCK):
            time = slice(start, min(start + BLOCK, lengths[batch]))
            tensors = (
                q[batch, in_group, time],
                k[batch, in_key_group, time],
                v[batch, in_key_group, time],
                out[batch, in_group, time],
            )
            used = block(cache, work, rule, bounds[batch], *tensors, initial[unit, time], last[unit], used, start)
        for slot in range(used):
            if cache.positions[slot] != EMPTY:
                final[unit, cache.positions[slot]] = cache.scores[slot]


@compiled
@no_type_check
def some_caches(
    thread: int, threads: int, rule: Array, bounds: Array, q: Array, k: Array, v: Array, out: Array, initial: Array,
    keys: Array, values: Array, positions: Array, scores: Array, query: int,
) -> None:  # fmt: skip
    """Process every `threads`-th head group of `one_token`."""
    groups = len(positions) // len(q)
    heads, key_heads = q.shape[1] // groups, k.shape[1] // groups
    work = work_space(heads, 1, positions.shape[1], q.shape[3], scores)
    nothing = np.empty(0, np.int32)
    for unit in range(thread, len(positions), threads):
        batch, group = unit // groups, unit % groups
        in_group = slice(group * heads, (group + 1) * heads)
        in_key_group = slice(group * key_heads, (group + 1) * key_heads)
        cache = Held(keys[unit], values[unit], positions[unit], scores[unit])
        tensors = q[batch, in_group], k[batch, in_key_group], v[batch, in_key_group], out[batch, in_group]
        block(cache, work, rule, bounds[batch], *tensors, initial[unit], nothing, positions.shape[1], query)


@compiled_parallel
@no_type_check
def whole_sequences(
    threads: int, rule: Array, bounds: Array, lengths: Array, most: int, q: Array, k: Array, v: Array, out: Array,
    initial: Array, last: Array, final: Array,
) -> None:  # fmt: skip
    """Simulate eviction over whole sequences (batch, heads, time, channels) with `threads` threads.

    `rule` is (decay, gain, factor of q k^T), `bounds` is (capacity, sink, recent) of each sequence, and `most` the
    largest capacity. `initial`, `last` and `final` have a row per sequence and head group. Writes `out`; `last`, the
    last query that sees each evicted key; and `final`, the scores of the retained keys.
    """
    for thread in prange(threads):
        some_sequences(thread, threads, rule, bounds, lengths, most, q, k, v, out, initial, last, final)


@compiled_parallel
@no_type_check
def one_token(
    threads: int, rule: Array, bounds: Array, q: Array, k: Array, v: Array, out: Array, initial: Array, keys: Array,
    values: Array, positions: Array, scores: Array, query: int,
) -> None:  # fmt: skip
    """Process one token at position `query` in the buffers of a cache, which have a row per sequence and head group."""
    for thread in prange(threads):
        some_caches(thread, threads, rule, bounds, q, k, v, out, initial, keys, values, positions, scores, query)
