"""CPU kernel for step-by-step eviction, compiled by numba.

`pruned_attention.py` has the formulas and defines head groups. A cache holds the keys of one head group of one
sequence, and one thread processes a cache. A slot is the index of one key in the arrays of a cache. Queries are
processed in blocks: a matrix product computes the logits of a block with the retained keys and the new keys, then the
eviction rule runs query by query. Sums have a fixed order, so results do not depend on the number of threads.

The loops are written so that LLVM vectorises them. The whole kernel is in this file, because numba's compiled code on
disk is valid until this file changes.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast, no_type_check

import numpy as np
from numba import njit, prange, types
from numba.extending import overload
from numpy.typing import NDArray

from formerlab.kernels import EMPTY_POSITION

BLOCK = 16
"""Largest number of queries per block."""
SLOT_MULTIPLE = 16
"""The number of slots is a multiple of this number, so that vectorised loops have no remainder."""

Array = NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., Any])


class RetainedKeys(NamedTuple):
    """Keys, values, positions and scores of one cache."""

    keys: Array
    """(key-value heads, slots, channels)"""
    values: Array
    """(key-value heads, channels, slots)"""
    positions: Array
    """(slots,)"""
    scores: Array
    """(slots,)"""


class Workspace(NamedTuple):
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


Held, Buffers = RetainedKeys, Workspace  # names of these classes in numba's files on disk from earlier versions


def compiled(function: Function, *, parallel: bool = False) -> Function:
    """Compile a function at its first call, without the GIL, and cache the machine code on disk if possible."""
    fastmath_flags = {"nnan", "nsz", "arcp", "contract", "afn", "reassoc"}  # without ninf: -inf marks masked keys
    dispatcher = njit(fastmath=fastmath_flags, nogil=True, error_model="numpy", parallel=parallel)(function)
    with contextlib.suppress(RuntimeError):  # numba found no writable folder
        dispatcher.enable_caching()
    return cast(Function, dispatcher)


compiled_parallel = functools.partial(compiled, parallel=True)
"""Compile like `compiled`, and run `prange` loops on numba's threads."""


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
    """Map float32 to int32 in the same order, and int32 back to float32, because LLVM vectorises the minimum of int32.

    The int32 has the bits of x; for negative x, the magnitude bits are inverted. Values of other types do not change.
    """
    raise NotImplementedError


@no_type_check
@overload(order_bits)
def _order_bits(x: Any) -> Callable[[Any], Any]:
    sign_shift, magnitude_mask = np.int32(31), np.int32(2**31 - 1)

    def to_integer(x: Any) -> Any:
        bits = np.float32(x).view(np.int32)
        return np.int32(bits ^ ((bits >> sign_shift) & magnitude_mask))

    def to_number(x: Any) -> Any:
        return np.int32(x ^ ((x >> sign_shift) & magnitude_mask)).view(np.float32)

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
    bias, mantissa_bits = np.int32(127), np.int32(23)

    def single(x: Any) -> Any:
        bounded = max(x, smallest_x)
        n = np.floor(bounded * log2_e + half)
        r = (bounded - n * ln2_high) - n * ln2_low
        series = ((((c7 * r + c6) * r + c5) * r + c4) * r + c3) * r + c2
        power_of_two = np.int32((np.int32(n) + bias) << mantissa_bits).view(np.float32)
        result = (series * (r * r) + r + one) * power_of_two
        return result if x >= smallest_x else zero

    def double(x: Any) -> Any:
        return np.exp(x)

    return single if x == types.float32 else double


@compiled
@no_type_check
def softmax(row: Array, positions: Array, query: int) -> None:
    """Replace the logits of one query by probabilities over the keys up to position `query`; other slots get 0."""
    masked = row.dtype.type(-np.inf)
    largest_bits, total = order_bits(masked), row.dtype.type(0)
    for slot in range(len(row)):
        logit = row[slot] if positions[slot] <= query else masked
        row[slot] = logit
        largest_bits = max(largest_bits, order_bits(logit))
    largest = order_bits(largest_bits)
    for slot in range(len(row)):
        weight = exponential(row[slot] - largest)
        row[slot] = weight
        total += weight
    factor = 1 / total
    for slot in range(len(row)):
        row[slot] *= factor


@compiled
@no_type_check
def update_scores(
    scores: Array, positions: Array, received: Array, coefficients: Array, sink: int, newest_candidate: int
) -> float:
    """Set S <- decay S + gain `received` in every slot; return the lowest score of the keys that may be evicted.

    These keys have the positions sink, ..., `newest_candidate`; without such keys, the result is +inf. The arrays are
    (slots,), and `coefficients` is (decay, gain, scale of the logits).
    """
    decay, gain = scores.dtype.type(coefficients[0]), scores.dtype.type(coefficients[1])
    excluded = order_bits(scores.dtype.type(np.inf))
    lowest = excluded
    for slot in range(len(received)):
        score, position = decay * scores[slot] + gain * received[slot], positions[slot]
        scores[slot] = score
        lowest = min(lowest, order_bits(score) if (position >= sink) & (position <= newest_candidate) else excluded)
    return order_bits(lowest)


@compiled
@no_type_check
def slot_to_evict(scores: Array, positions: Array, lowest: float, sink: int, newest_candidate: int, slots: int) -> int:
    """Return the slot of the oldest key with score `lowest` among the keys that may be evicted.

    These keys have the positions sink, ..., `newest_candidate`. Returns -1 if all their scores are NaN.
    """
    empty_position = np.int32(EMPTY_POSITION)
    oldest = empty_position
    for slot in range(slots):
        position = positions[slot]
        is_candidate = (scores[slot] == lowest) & (position >= sink) & (position <= newest_candidate)
        oldest = min(oldest, position if is_candidate else empty_position)
    for slot in range(slots):
        if positions[slot] == oldest and oldest != empty_position:
            return slot
    return -1


@compiled
@no_type_check
def insert_block(cache: RetainedKeys, new_slots: Array, k: Array, v: Array, start: int) -> None:
    """Write the keys and values of a block to empty slots, and the indices of these slots to `new_slots`."""
    slot, (kv_heads, rows, channels) = 0, k.shape
    for i in range(rows):
        while cache.positions[slot] != EMPTY_POSITION:
            slot += 1
        cache.positions[slot] = start + i
        new_slots[i] = slot
        for head in range(kv_heads):
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
    cache: RetainedKeys, work: Workspace, coefficients: Array, limits: Array, q: Array, k: Array, v: Array, out: Array,
    initial_scores: Array, last_query: Array, used_slots: int, start: int,
) -> int:  # fmt: skip
    """Attend, score and evict for the queries of a block (heads, rows, channels); return the number of used slots."""
    (heads, rows, channels), heads_per_kv_head = q.shape, len(q) // len(k)
    insert_block(cache, work.new_slots, k, v, start)
    used_slots = max(used_slots, work.new_slots[rows - 1] + 1)
    slots = (used_slots + SLOT_MULTIPLE - 1) // SLOT_MULTIPLE * SLOT_MULTIPLE
    positions, scores, received, sink = cache.positions, cache.scores, work.received[:slots], np.int32(limits[1])
    for head in range(heads):
        work.queries[:rows] = q[head] * scores.dtype.type(coefficients[2])
        multiply_transposed(
            work.logits[head], work.queries, cache.keys[head // heads_per_kv_head], rows, slots, channels
        )
    for i in range(rows):
        query = np.int32(start + i)  # int32 like `positions`, so that comparisons vectorise
        newest_candidate = np.int32(query - limits[2])
        attend(work.logits, i, positions, query, received)
        scores[work.new_slots[i]] = initial_scores[i] if initial_scores.size else 0
        lowest = update_scores(scores, positions, received, coefficients, sink, newest_candidate)
        if query >= limits[0]:
            slot = slot_to_evict(scores, positions, lowest, sink, newest_candidate, slots)
            slot = slot if slot >= 0 else work.new_slots[i]  # all scores are NaN: evict the query's own key
            if last_query.size:
                last_query[positions[slot]] = query
            positions[slot] = EMPTY_POSITION
    for head in range(heads):
        multiply_transposed(
            work.outputs, work.logits[head], cache.values[head // heads_per_kv_head], rows, channels, slots
        )
        out[head] = work.outputs[:rows]
    return used_slots


@compiled
@no_type_check
def allocate_workspace(heads: int, rows: int, slots: int, channels: int, like: Array) -> Workspace:
    """Return the workspace of one thread, of the dtype of `like`."""
    logits = np.zeros((heads, rows, slots), like.dtype)
    queries, outputs = np.zeros((rows, channels), like.dtype), np.zeros((rows, channels), like.dtype)
    return Workspace(logits, queries, outputs, np.zeros(slots, like.dtype), np.zeros(rows, np.int64))


@compiled
@no_type_check
def process_sequences(
    thread: int, threads: int, coefficients: Array, limits: Array, lengths: Array, capacity: int, q: Array, k: Array,
    v: Array, out: Array, initial_scores: Array, last_query: Array, final_scores: Array,
) -> None:  # fmt: skip
    """Process every `threads`-th cache, so that a padded batch is balanced over threads."""
    channels, head_groups = q.shape[3], len(last_query) // len(q)
    heads, kv_heads = q.shape[1] // head_groups, k.shape[1] // head_groups
    slots = (capacity + BLOCK + SLOT_MULTIPLE - 1) // SLOT_MULTIPLE * SLOT_MULTIPLE
    work = allocate_workspace(heads, BLOCK, slots, channels, final_scores)
    keys = np.zeros((kv_heads, slots, channels), final_scores.dtype)
    values = np.zeros((kv_heads, channels, slots), final_scores.dtype)
    cache = RetainedKeys(keys, values, np.empty(slots, np.int32), np.zeros(slots, final_scores.dtype))
    for index in range(thread, len(last_query), threads):
        batch, group = index // head_groups, index % head_groups
        query_group = slice(group * heads, (group + 1) * heads)
        kv_group = slice(group * kv_heads, (group + 1) * kv_heads)
        cache.positions[:] = EMPTY_POSITION
        used_slots = 0
        for start in range(0, lengths[batch], BLOCK):
            time = slice(start, min(start + BLOCK, lengths[batch]))
            tensors = (
                q[batch, query_group, time],
                k[batch, kv_group, time],
                v[batch, kv_group, time],
                out[batch, query_group, time],
            )
            buffers = initial_scores[index, time], last_query[index]
            used_slots = process_block(cache, work, coefficients, limits[batch], *tensors, *buffers, used_slots, start)
        for slot in range(used_slots):
            if cache.positions[slot] != EMPTY_POSITION:
                final_scores[index, cache.positions[slot]] = cache.scores[slot]


@compiled
@no_type_check
def process_caches(
    thread: int, threads: int, coefficients: Array, limits: Array, q: Array, k: Array, v: Array, out: Array,
    initial_scores: Array, keys: Array, values: Array, positions: Array, scores: Array, query: int,
) -> None:  # fmt: skip
    """Process one token in every `threads`-th cache."""
    head_groups = len(positions) // len(q)
    heads, kv_heads = q.shape[1] // head_groups, k.shape[1] // head_groups
    work = allocate_workspace(heads, 1, positions.shape[1], q.shape[3], scores)
    no_last_query = np.empty(0, np.int32)
    for index in range(thread, len(positions), threads):
        batch, group = index // head_groups, index % head_groups
        query_group = slice(group * heads, (group + 1) * heads)
        kv_group = slice(group * kv_heads, (group + 1) * kv_heads)
        cache = RetainedKeys(keys[index], values[index], positions[index], scores[index])
        tensors = q[batch, query_group], k[batch, kv_group], v[batch, kv_group], out[batch, query_group]
        buffers = initial_scores[index], no_last_query
        process_block(cache, work, coefficients, limits[batch], *tensors, *buffers, positions.shape[1], query)


@compiled_parallel
@no_type_check
def simulate_sequences(
    threads: int, coefficients: Array, limits: Array, lengths: Array, capacity: int, q: Array, k: Array, v: Array,
    out: Array, initial_scores: Array, last_query: Array, final_scores: Array,
) -> None:  # fmt: skip
    """Simulate eviction over whole sequences with `threads` threads.

    q and out are (batch, heads, time, channels); k and v are (batch, key-value heads, time, channels). `coefficients`
    is (decay, gain, scale of the logits). `limits` (batch, 3) has the capacity, sink and recent window of each sequence
    in tokens, `lengths` (batch,) has the lengths, and `capacity` is the largest capacity. `last_query` and
    `final_scores` are (caches, time), where caches = batch * head groups; `initial_scores` is (caches, time), or
    (caches, 0) without initial scores. Writes the attention output to `out`, the last query that sees each evicted key
    to `last_query`, and the scores of the retained keys to `final_scores`.
    """
    for thread in prange(threads):
        process_sequences(
            thread, threads, coefficients, limits, lengths, capacity, q, k, v, out, initial_scores, last_query,
            final_scores,
        )  # fmt: skip


@compiled_parallel
@no_type_check
def process_token(
    threads: int, coefficients: Array, limits: Array, q: Array, k: Array, v: Array, out: Array, initial_scores: Array,
    keys: Array, values: Array, positions: Array, scores: Array, query: int,
) -> None:  # fmt: skip
    """Process one token per sequence, at position `query`, in the caches of a layer; write `out`.

    q and out are (batch, heads, 1, channels); k and v are (batch, key-value heads, 1, channels). `initial_scores` is
    (caches, 1), or (caches, 0) without initial scores. `keys`, `values`, `positions` and `scores` have an axis
    for caches, then the axes of `RetainedKeys`.
    """
    for thread in prange(threads):
        process_caches(
            thread, threads, coefficients, limits, q, k, v, out, initial_scores, keys, values, positions, scores, query
        )
