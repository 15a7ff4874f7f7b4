"""Triton kernels for step-by-step eviction over whole sequences, the simulation engine on a GPU.

For the queries i = 0, 1, ... of a sequence, in each head group (`cache/eviction.py`, Decay article, eq. 5):

    p[i, j] = softmax over the retained keys j of (q[i] . k[j] / sqrt(d_head))    out[i] = sum over j of p[i, j] v[j]
    S[j] <- decay * S[j] + gain * (sum of p[i, j] over the query heads of the head group)

A full cache evicts the key with the lowest S outside the sink and the recent window. A head group is the set of query
heads that share one eviction decision. One program processes one head group of one sequence. It keeps the positions and
scores of the retained keys in registers and processes queries in blocks of 16: a matrix product computes the logits of
the block with the retained and the new keys, the eviction rule runs query by query, and a second matrix product
multiplies the probabilities by the values. Logits and sums are float32 for inputs of every dtype. The torch engine
(`cache/engines.py`) rounds the logits to the dtype of the inputs.

Each program needs workspace in GPU memory: 16 logits per slot and head, and two positions per slot, of 4 bytes each.
The number of slots is the smallest power of two that is at least capacity + 16, and at least 64; the capacity is the
largest number of retained keys. T queries cost at most T * slots dot products per head (full attention: T^2 / 2) and T
sequential steps, which dominate the time.

Variables of the kernels: `q_batch`, `q_head`, `q_time` and so on are strides in elements. `row` is the index of a query
in its block, `member` is the index of a query head in its group, and `line` = row * heads_per_group + member is the
index of a (query, head) pair, which has `slots` logits. `line_maxima` and `line_sums` contain the maximum and the sum
of exponentials of the logits of each pair. `slot_log` has two entries per slot: the position of its key, and the last
query that sees the key. `limits` contains the length, capacity, sink and recent window of each sequence, in tokens.

`cache/triton_engine.py` launches the kernels. With TRITON_INTERPRET=1, set before this module is imported, the same
code runs on the CPU.
"""

import triton
import triton.language as tl

from formerlab import kernels

BLOCK = 16
"""Number of queries per block, the smallest size of a tensor-core product."""
CHUNK = 64
"""Number of slots whose keys or values are loaded at a time."""
REGISTERS = {4: 168, 8: 128, 16: 128}
"""Registers per thread, by number of warps. A multiprocessor fits three programs of 4 warps or two programs of 8 warps;
only benchmarks use 16 warps."""
EMPTY_POSITION = tl.constexpr(kernels.EMPTY_POSITION)
LOWEST = tl.constexpr(-1e30)
"""Initial value of a running maximum, finite so that exp(x - LOWEST) is 0 for a masked x = -inf."""
SMALLEST_SUM = tl.constexpr(1 / 16)
"""If the sum of exp(x - maximum) is below this value, the kernel recomputes it with the exact maximum."""


def slot_count(capacity: int) -> int:
    """Return the number of slots of a program that retains at most `capacity` keys between blocks."""
    return max(int(triton.next_power_of_2(capacity + BLOCK)), CHUNK)


def launch_options(slots: int, d_head: int) -> dict[str, int]:
    """Return the compile-time constants and launch options of `evict`."""
    warps = min(max(slots // 128, 4), 8)
    # A matrix product needs a power of two of at least 16 channels.
    channels = max(int(triton.next_power_of_2(d_head)), 16)
    sizes = {"slots": slots, "channels": channels, "block": BLOCK, "chunk": CHUNK}
    return sizes | {"num_warps": warps, "num_stages": 2, "maxnreg": REGISTERS[warps]}


# Without do_not_specialize, Triton recompiles when one of these arguments is a multiple of 16.
@triton.jit(do_not_specialize=("head_groups", "time"))
def evict(  # noqa: ANN201
    q, q_batch, q_head, q_time, k, k_batch, k_head, k_time, v, v_batch, v_head, v_time, out, out_batch, out_head,
    out_time, initial_scores, last_queries, final_scores, logits, line_maxima, line_sums, slot_log, limits, decay, gain,
    scale, head_groups, heads_per_group, heads_per_kv_head, time, d_head, with_initial_scores: tl.constexpr,
    slots: tl.constexpr, channels: tl.constexpr, block: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """Simulate eviction over whole sequences, with batch * head_groups programs.

    q and out are (batch, heads, time, d_head); k and v are (batch, key-value heads, time, d_head). `initial_scores`,
    `last_queries` and `final_scores` are contiguous (batch, head_groups, time), and `limits` is (batch, 4). The
    workspace is `logits` (programs, 16 heads_per_group + 1, slots), `line_maxima` and `line_sums` (programs, 16
    heads_per_group + 1), in float32, and `slot_log` (programs, 2, slots), in int32. `scale` multiplies the logits.
    Writes `last_queries` for evicted keys, `final_scores` for retained keys, and `out`.
    """
    program = tl.program_id(0).to(tl.int64)
    batch, head = program // head_groups, program % head_groups * heads_per_group
    length, capacity = tl.load(limits + 4 * batch), tl.load(limits + 4 * batch + 1)
    sink, recent = tl.load(limits + 4 * batch + 2), tl.load(limits + 4 * batch + 3)
    q += batch * q_batch + head * q_head
    k += batch * k_batch + head // heads_per_kv_head * k_head
    v += batch * v_batch + head // heads_per_kv_head * v_head
    out += batch * out_batch + head * out_head
    last_queries += program * time
    final_scores += program * time
    lines = heads_per_group * block + 1  # one extra line, because the next line is prefetched
    logits += program * lines * slots
    line_maxima += program * lines
    line_sums += program * lines
    slot_log += program * 2 * slots
    slot = tl.arange(0, slots)
    positions = tl.full([slots], EMPTY_POSITION, tl.int32)
    scores = tl.zeros([slots], tl.float32)
    for start in range(0, length, block):
        rows = tl.minimum(length - start, block)
        # The keys of the block take the first empty slots; a query does not see later keys of the block.
        empty = positions == EMPTY_POSITION
        order = tl.cumsum(empty.to(tl.int32), 0)
        positions = tl.where(empty & (order <= rows), start + order - 1, positions)
        used_slots = tl.minimum(start + block, slots)
        tl.store(slot_log + slot, positions)
        tl.store(slot_log + slots + slot, EMPTY_POSITION)
        tl.debug_barrier()  # makes writes visible to the other threads of the program
        block_q = q + start * q_time
        _write_logits(
            block_q, q_head, q_time, k, k_head, k_time, logits, line_maxima, slot_log, scale, heads_per_group,
            heads_per_kv_head, start, rows, used_slots, d_head, slots, channels, block, chunk,
        )  # fmt: skip
        tl.debug_barrier()
        next_logits, next_maximum = tl.load(logits + slot), tl.load(line_maxima)
        for row in range(rows):
            query = start + row
            received = tl.zeros([slots], tl.float32)
            for line in range(row * heads_per_group, (row + 1) * heads_per_group):
                x, maximum = tl.where(positions <= query, next_logits, -float("inf")), next_maximum
                next_logits, next_maximum = tl.load(logits + (line + 1) * slots + slot), tl.load(line_maxima + line + 1)
                weight = tl.exp(x - maximum)
                total = tl.sum(weight, 0)
                if not (total >= SMALLEST_SUM):  # the key with the largest logit was evicted within this block
                    maximum = tl.max(x, 0)
                    weight = tl.exp(x - maximum)
                    total = tl.sum(weight, 0)
                    tl.store(line_maxima + line, maximum)
                tl.store(line_sums + line, total)
                received += weight / total
            initial_score = tl.load(initial_scores + program * time + query) if with_initial_scores else 0.0
            scores = decay * tl.where(positions == query, initial_score, scores) + gain * received
            if query >= capacity:
                candidate = (positions >= sink) & (positions <= query - recent)
                priority = tl.where(scores == scores, scores, -float("inf"))  # evict keys with NaN scores first
                priority = tl.where(candidate, priority, float("inf"))
                _, evicted = tl.reduce((priority, tl.where(candidate, positions, EMPTY_POSITION)), 0, _lower_or_older)
                tl.store(last_queries + evicted, query, mask=evicted != EMPTY_POSITION)
                tl.store(slot_log + slots + slot, query, mask=positions == evicted)
                positions = tl.where(positions == evicted, EMPTY_POSITION, positions)
        tl.debug_barrier()
        block_out = out + start * out_time
        _write_outputs(
            block_out, out_head, out_time, v, v_head, v_time, logits, line_maxima, line_sums, slot_log,
            heads_per_group, heads_per_kv_head, start, rows, used_slots, d_head, slots, channels, block, chunk,
        )  # fmt: skip
        tl.debug_barrier()
    tl.store(final_scores + positions, scores, mask=positions != EMPTY_POSITION)


@triton.jit
def _lower_or_older(score, position, other_score, other_position):
    is_left = (score < other_score) | ((score == other_score) & (position < other_position))
    return tl.where(is_left, score, other_score), tl.where(is_left, position, other_position)


@triton.jit
def _write_logits(
    q, q_head, q_time, k, k_head, k_time, logits, line_maxima, slot_log, scale, heads_per_group, heads_per_kv_head,
    start, rows, used_slots, d_head, slots: tl.constexpr, channels: tl.constexpr, block: tl.constexpr,
    chunk: tl.constexpr,
):  # fmt: skip
    """Write the logits of a block of queries with all slots, and the largest visible logit of each query."""
    row, channel, column = tl.arange(0, block), tl.arange(0, channels), tl.arange(0, chunk)
    for member in range(heads_per_group):
        q_pointers = q + member * q_head + row[:, None] * q_time + channel[None, :]
        queries = tl.load(q_pointers, mask=(row < rows)[:, None] & (channel < d_head)[None, :], other=0.0)
        line = row * heads_per_group + member
        maxima = tl.full([block, chunk], -float("inf"), tl.float32)
        for first in range(0, used_slots, chunk):
            position = tl.load(slot_log + first + column)
            occupied = (position != EMPTY_POSITION)[:, None] & (channel < d_head)[None, :]
            offsets = position[:, None].to(tl.int64) * k_time + channel[None, :]
            keys = tl.load(k + member // heads_per_kv_head * k_head + offsets, mask=occupied, other=0.0)
            product = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
            tl.store(logits + line[:, None] * slots + first + column[None, :], product)
            visible = position[None, :] <= start + row[:, None]
            maxima = tl.where(visible, tl.maximum(maxima, product), maxima)
        tl.store(line_maxima + line, tl.max(maxima, 1))


@triton.jit
def _write_outputs(
    out, out_head, out_time, v, v_head, v_time, logits, line_maxima, line_sums, slot_log, heads_per_group,
    heads_per_kv_head, start, rows, used_slots, d_head, slots: tl.constexpr, channels: tl.constexpr,
    block: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """Write the outputs of a block of queries; the key at position p is visible to the queries p, ..., last_query."""
    row, channel, column = tl.arange(0, block), tl.arange(0, channels), tl.arange(0, chunk)
    query = start + row[:, None]
    for member in range(heads_per_group):
        line = row * heads_per_group + member
        maximum, total = tl.load(line_maxima + line), tl.load(line_sums + line, mask=row < rows, other=1.0)
        output = tl.zeros([block, channels], tl.float32)
        for first in range(0, used_slots, chunk):
            position = tl.load(slot_log + first + column)
            occupied = (position != EMPTY_POSITION)[:, None] & (channel < d_head)[None, :]
            offsets = position[:, None].to(tl.int64) * v_time + channel[None, :]
            values = tl.load(v + member // heads_per_kv_head * v_head + offsets, mask=occupied, other=0.0)
            last_query = tl.load(slot_log + slots + first + column)
            x = tl.load(logits + line[:, None] * slots + first + column[None, :])
            visible = (position[None, :] <= query) & (query <= last_query[None, :])
            p = tl.where(visible, tl.exp(x - maximum[:, None]) / total[:, None], 0.0)
            output = tl.dot(p.to(values.dtype), values, output, input_precision="ieee")
        out_pointers = out + member * out_head + row[:, None] * out_time + channel[None, :]
        inside = (row < rows)[:, None] & (channel < d_head)[None, :]
        tl.store(out_pointers, output.to(out.dtype.element_ty), mask=inside)
