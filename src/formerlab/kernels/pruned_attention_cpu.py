"""CPU kernel of step-by-step eviction, compiled by numba.

For the queries q = 0, 1, ... of a sequence, in each head group (`cache/eviction.py`; Decay article, eq. 5):

    p[k] = softmax over the retained keys of scale q k^T        out[q] = sum over k of p[k] v[k]
    S[k] <- decay S[k] + gain sum over the group's heads of p[k]

A full cache evicts the key of lowest S. Queries are processed in blocks. A matrix product computes the logits of a
block with the retained keys and the new keys, so each key is read once per block. Then the eviction rule runs query by
query. One thread processes a chain (one head group of one sequence), and sums have a fixed order, so results do not
depend on the number of threads.

The loops have forms that LLVM vectorises. numba caches compiled code on disk until this file changes, and it does not
track other files, so the whole kernel is in this file. Cache files of earlier versions refer to the classes `Held` and
`Buffers`; do not rename these classes.
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
"""Largest number of queries per block."""
VECTOR = 16
"""The number of slots is a multiple of this, so that vectorised loops have no remainder."""

Array = NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., Any])


class Held(NamedTuple):
    """The buffers of one chain; the buffers of a whole cache have an additional first axis for the chains."""

    keys: Array
    """(key-value heads, slots, channels)"""
    values: Array
    """(key-value heads, channels, slots)"""
    positions: Array
    """(slots,)"""
    scores: Array
    """(slots,)"""


class Buffers(NamedTuple):
    """Workspace of one thread."""

    logits: Array
    """(heads, rows, slots); the probabilities overwrite the logits"""
    queries: Array
    """(rows, channels)"""
    outputs: Array
    """(rows, channels)"""
    received: Array
    """Attention summed over the heads (slots,)"""
    new_slots: Array
    """Slots of the new keys of a block (rows,)"""


def compiled(function: Function, *, parallel: bool = False) -> Function:
    """Compile a function at its first call, run it without the GIL, and cache the machine code on disk if possible."""
    any_order_of_sums = {"nnan", "nsz", "arcp", "contract", "afn", "reassoc"}  # without ninf: -inf marks unseen keys
    dispatcher = njit(fastmath=any_order_of_sums, nogil=True, error_model="numpy", parallel=parallel)(function)
    with contextlib.suppress(RuntimeError):  # numba found no writable folder
        dispatcher.enable_caching()
    return cast(Function, dispatcher)


def compiled_parallel(function: Function) -> Function:
    """Compile like `compiled`, and run `prange` loops on numba's threads."""
    return compiled(function, parallel=True)


@compiled
@no_type_check
def multiply_transposed(out: Array, left: Array, right: Array, rows: int, columns: int, inner: int) -> None:
    """Write the matrix product left right^T (rows, columns) to `out`.

    A tile has four rows of `left` (a, b, c, d) and two rows of `right` (x, y), so each loaded element is used several
    times.
    """
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
def order_bits(x: float) -> float:
    """Return a number with the same order as x. For float32 it is an int32, whose minimum vectorises.

    The int32 has the bits of x, and for negative x the magnitude bits are inverted. An int32 is converted back to
    float32, so the function is its own inverse. Other types are returned unchanged.
    """
    raise NotImplementedError


@no_type_check
@overload(order_bits)
def _order_bits(x: Any) -> Callable[[Any], Any]:
    sign, magnitude = np.int32(31), np.int32(2**31 - 1)

    def to_integer(x: Any) -> Any:
        bits = np.float32(x).view(np.int32)
        return np.int32(bits ^ ((bits >> sign) & magnitude))

    def to_number(x: Any) -> Any:
        return np.int32(x ^ ((x >> sign) & magnitude)).view(np.float32)

    def unchanged(x: Any) -> Any:
        return x

    return {types.float32: to_integer, types.int32: to_number}.get(x, unchanged)


@no_type_check
def exponential(x: float) -> float:
    """Return e^x for x <= 0, by a vectorised polynomial in float32 and by np.exp in float64."""
    raise NotImplementedError


@no_type_check
@overload(exponential, jit_options={"fastmath": {"contract", "nnan", "nsz"}})
def _exponential(x: Any) -> Callable[[Any], Any]:
    """Compute e^x = 2^n e^r with |r| <= ln 2 / 2 and a polynomial of degree 7 for e^r (constants of Cephes' expf)."""
    smallest_x, log2_e = np.float32(-87.0), np.float32(1.44269504088896341)
    ln2_high, ln2_low = np.float32(0.693359375), np.float32(-2.12194440e-4)
    c7, c6, c5 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
    c4, c3, c2 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
    half, one, zero = np.float32(0.5), np.float32(1), np.float32(0)
    bias, mantissa = np.int32(127), np.int32(23)

    def single(x: Any) -> Any:
        bounded = max(x, smallest_x)
        n = np.floor(bounded * log2_e + half)
        r = (bounded - n * ln2_high) - n * ln2_low
        series = ((((c7 * r + c6) * r + c5) * r + c4) * r + c3) * r + c2
        power_of_two = np.int32((np.int32(n) + bias) << mantissa).view(np.float32)
        result = (series * (r * r) + r + one) * power_of_two
        return result if x >= smallest_x else zero

    def double(x: Any) -> Any:
        return np.exp(x)

    return single if x == types.float32 else double


@compiled
@no_type_check
def softmax(row: Array, positions: Array, query: int) -> None:
    """Replace the logits of one query by probabilities over the keys up to position `query`; other slots get 0."""
    unseen = row.dtype.type(-np.inf)
    top, total = order_bits(unseen), row.dtype.type(0)
    for slot in range(len(row)):
        logit = row[slot] if positions[slot] <= query else unseen
        row[slot] = logit
        top = max(top, order_bits(logit))
    largest = order_bits(top)
    for slot in range(len(row)):
        weight = exponential(row[slot] - largest)
        row[slot] = weight
        total += weight
    factor = 1 / total
    for slot in range(len(row)):
        row[slot] *= factor


@compiled
@no_type_check
def update_scores(scores: Array, positions: Array, received: Array, rule: Array, sink: int, newest: int) -> float:
    """Set S <- decay S + gain `received` in every slot; return the lowest score of the positions sink, ..., newest.

    `rule` is (decay, gain, scale of the logits).
    """
    decay, gain = scores.dtype.type(rule[0]), scores.dtype.type(rule[1])
    excluded = order_bits(scores.dtype.type(np.inf))
    lowest = excluded
    for slot in range(len(received)):
        score, position = decay * scores[slot] + gain * received[slot], positions[slot]
        scores[slot] = score
        lowest = min(lowest, order_bits(score) if (position >= sink) & (position <= newest) else excluded)
    return order_bits(lowest)


@compiled
@no_type_check
def slot_to_evict(scores: Array, positions: Array, lowest: float, sink: int, newest: int, slots: int) -> int:
    """Return the slot of the oldest key with score `lowest` among the positions sink, ..., newest.

    Returns -1 if all scores are NaN.
    """
    no_key = np.int32(EMPTY)
    first = no_key
    for slot in range(slots):
        position = positions[slot]
        is_candidate = (scores[slot] == lowest) & (position >= sink) & (position <= newest)
        first = min(first, position if is_candidate else no_key)
    for slot in range(slots):
        if positions[slot] == first and first != no_key:
            return slot
    return -1


@compiled
@no_type_check
def insert_block(cache: Held, new_slots: Array, k: Array, v: Array, start: int) -> None:
    """Write the keys and values of a block to empty slots, and the indices of these slots to `new_slots`."""
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
    """Replace the logits (heads, rows, slots) of query i by probabilities; write their sum over heads to `received`."""
    received[:] = 0
    for head in range(len(logits)):
        row = logits[head, i, : len(received)]
        softmax(row, positions, query)
        for slot in range(len(received)):
            received[slot] += row[slot]


@compiled
@no_type_check
def process_block(
    cache: Held, work: Buffers, rule: Array, bounds: Array, q: Array, k: Array, v: Array, out: Array,
    initial: Array, last: Array, used: int, start: int,
) -> int:  # fmt: skip
    """Attend, score and evict for the queries of a block (heads, rows, channels); return the number of used slots."""
    (heads, rows, channels), group_size = q.shape, len(q) // len(k)
    insert_block(cache, work.new_slots, k, v, start)
    used = max(used, work.new_slots[rows - 1] + 1)
    slots = (used + VECTOR - 1) // VECTOR * VECTOR
    positions, scores, received, sink = cache.positions, cache.scores, work.received[:slots], np.int32(bounds[1])
    for head in range(heads):
        work.queries[:rows] = q[head] * scores.dtype.type(rule[2])
        multiply_transposed(work.logits[head], work.queries, cache.keys[head // group_size], rows, slots, channels)
    for i in range(rows):
        query = np.int32(start + i)  # the dtype of `positions`, so that comparisons use full vectors
        newest = np.int32(query - bounds[2])
        attend(work.logits, i, positions, query, received)
        scores[work.new_slots[i]] = initial[i] if initial.size else 0
        lowest = update_scores(scores, positions, received, rule, sink, newest)
        if query >= bounds[0]:
            slot = slot_to_evict(scores, positions, lowest, sink, newest, slots)
            slot = slot if slot >= 0 else work.new_slots[i]  # all scores are NaN: evict the query's own key
            if last.size:
                last[positions[slot]] = query
            positions[slot] = EMPTY
    for head in range(heads):
        multiply_transposed(work.outputs, work.logits[head], cache.values[head // group_size], rows, channels, slots)
        out[head] = work.outputs[:rows]
    return used


@compiled
@no_type_check
def work_space(heads: int, rows: int, slots: int, channels: int, like: Array) -> Buffers:
    """Return the workspace of one thread, of the dtype of `like`."""
    logits = np.zeros((heads, rows, slots), like.dtype)
    queries, outputs = np.zeros((rows, channels), like.dtype), np.zeros((rows, channels), like.dtype)
    return Buffers(logits, queries, outputs, np.zeros(slots, like.dtype), np.zeros(rows, np.int64))


@compiled
@no_type_check
def process_sequences(
    thread: int, threads: int, rule: Array, bounds: Array, lengths: Array, capacity: int, q: Array, k: Array, v: Array,
    out: Array, initial: Array, last: Array, final: Array,
) -> None:  # fmt: skip
    """Process every `threads`-th chain of `whole_sequences`, so that a padded batch is balanced over threads."""
    channels, groups = q.shape[3], len(last) // len(q)
    heads, kv_heads = q.shape[1] // groups, k.shape[1] // groups
    slots = (capacity + BLOCK + VECTOR - 1) // VECTOR * VECTOR
    work = work_space(heads, BLOCK, slots, channels, final)
    keys = np.zeros((kv_heads, slots, channels), final.dtype)
    values = np.zeros((kv_heads, channels, slots), final.dtype)
    cache = Held(keys, values, np.empty(slots, np.int32), np.zeros(slots, final.dtype))
    for chain in range(thread, len(last), threads):
        batch, group = chain // groups, chain % groups
        query_group = slice(group * heads, (group + 1) * heads)
        kv_group = slice(group * kv_heads, (group + 1) * kv_heads)
        cache.positions[:] = EMPTY
        used = 0
        for start in range(0, lengths[batch], BLOCK):
            time = slice(start, min(start + BLOCK, lengths[batch]))
            tensors = (
                q[batch, query_group, time],
                k[batch, kv_group, time],
                v[batch, kv_group, time],
                out[batch, query_group, time],
            )
            used = process_block(
                cache, work, rule, bounds[batch], *tensors, initial[chain, time], last[chain], used, start
            )
        for slot in range(used):
            if cache.positions[slot] != EMPTY:
                final[chain, cache.positions[slot]] = cache.scores[slot]


@compiled
@no_type_check
def process_caches(
    thread: int, threads: int, rule: Array, bounds: Array, q: Array, k: Array, v: Array, out: Array, initial: Array,
    keys: Array, values: Array, positions: Array, scores: Array, query: int,
) -> None:  # fmt: skip
    """Process every `threads`-th chain of `one_token`."""
    groups = len(positions) // len(q)
    heads, kv_heads = q.shape[1] // groups, k.shape[1] // groups
    work = work_space(heads, 1, positions.shape[1], q.shape[3], scores)
    no_last = np.empty(0, np.int32)
    for chain in range(thread, len(positions), threads):
        batch, group = chain // groups, chain % groups
        query_group = slice(group * heads, (group + 1) * heads)
        kv_group = slice(group * kv_heads, (group + 1) * kv_heads)
        cache = Held(keys[chain], values[chain], positions[chain], scores[chain])
        tensors = q[batch, query_group], k[batch, kv_group], v[batch, kv_group], out[batch, query_group]
        process_block(cache, work, rule, bounds[batch], *tensors, initial[chain], no_last, positions.shape[1], query)


@compiled_parallel
@no_type_check
def whole_sequences(
    threads: int, rule: Array, bounds: Array, lengths: Array, capacity: int, q: Array, k: Array, v: Array, out: Array,
    initial: Array, last: Array, final: Array,
) -> None:  # fmt: skip
    """Simulate eviction over whole sequences (batch, heads, time, channels) with `threads` threads.

    `rule` is (decay, gain, scale of the logits), `bounds` has (capacity, sink, recent) of each sequence in tokens, and
    `capacity` is the largest capacity. `initial`, `last` and `final` have a row per chain (one head group of one
    sequence). The function writes `out`, the last query that sees each evicted key to `last`, and the scores of the
    retained keys to `final`.
    """
    for thread in prange(threads):
        process_sequences(thread, threads, rule, bounds, lengths, capacity, q, k, v, out, initial, last, final)


@compiled_parallel
@no_type_check
def one_token(
    threads: int, rule: Array, bounds: Array, q: Array, k: Array, v: Array, out: Array, initial: Array, keys: Array,
    values: Array, positions: Array, scores: Array, query: int,
) -> None:  # fmt: skip
    """Process one token at position `query` in the buffers of a cache, which have a row per chain; write `out`."""
    for thread in prange(threads):
        process_caches(thread, threads, rule, bounds, q, k, v, out, initial, keys, values, positions, scores, query)
