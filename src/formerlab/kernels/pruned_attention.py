"""Triton kernels of step-by-step eviction over whole sequences, the simulation engine on a GPU.

For q = 0, 1, ... of a sequence, in each head group (`cache/eviction.py`, Decay article, eq. 5):

    p[k] = softmax over the retained keys of q k^T / sqrt(d_head)    out[q] = sum over k of p[k] v[k]
    S[k] <- decay S[k] + gain sum over the head group of p[k]        a full cache evicts the key of lowest S

One program processes one sequence and head group, and keeps positions and scores of the retained keys in registers.
Queries are processed in blocks of 16. One product computes the logits of a block with the retained keys and its own
keys, which reads each key once and bounds the logits of each query. Then the eviction rule runs row by row, and another
product multiplies the probabilities with the values. Sums are float32, so half-precision logits are not rounded; the
reference, `cache/torch_engine.py`, rounds them.

Memory besides `out`: 16 logits per slot and head of the group, and two positions per slot, 4 bytes each; the number of
slots is the next power of two above budget + 16. Time: the products of T queries with budget + 16 keys (full attention
has T / 2 keys on average), plus T sequential steps of a sum per head and a minimum over the slots, which dominate.
Sequences and head groups run in parallel.

The outputs depend only on the last query that sees each key. So `evict` can leave them out and then runs in fewer warps
(one warp up to 512 slots, which waits for no other), and `attend` computes them as full attention with a mask.

`cache/triton_engine.py` launches the kernels. With TRITON_INTERPRET=1, set before this module is imported, the same
code runs on the CPU.
"""

import triton
import triton.language as tl

from formerlab.kernels import EMPTY

BLOCK = 16
"""Queries per block, the smallest size of a tensor-core product."""
CHUNK = 64
"""Slots whose keys or values are loaded at a time."""
REGISTERS = {4: 168, 8: 128, 16: 128}
"""Registers per thread, by number of warps: a multiprocessor runs three programs of 4 warps, two of 8 or one of 16."""
NOBODY = tl.constexpr(EMPTY)
FINITE = tl.constexpr(-1e30)
"""Running maximum of a query that has seen no key: exp(x - FINITE) is 0 for a masked x."""
FAINT = tl.constexpr(1 / 16)
"""Sum of exp(x - bound) below which the bound is too far above the logits of the retained keys."""


def slots_for(most: int) -> int:
    """Return the number of slots of a program that retains `most` keys between blocks."""
    return max(int(triton.next_power_of_2(most + BLOCK)), CHUNK)


def launch(slots: int, d_head: int) -> dict[str, int]:
    """Return the compile-time constants and launch options of `evict` with outputs."""
    warps = min(max(slots // 128, 4), 8)
    sizes = {"mixes": True, "slots": slots, "channels": padded(d_head), "block": BLOCK, "chunk": CHUNK}
    return sizes | {"num_warps": warps, "num_stages": 2, "maxnreg": REGISTERS[warps]}


def launch_eviction(slots: int, d_head: int, itemsize: int) -> dict[str, int]:
    """Return the compile-time constants and launch options of `evict` without outputs."""
    warps = max(slots // 512, padded(d_head) // 128, 1)
    sizes = {"mixes": False, "slots": slots, "channels": padded(d_head), "block": BLOCK, "chunk": 64 // itemsize}
    return sizes | {"num_warps": warps, "num_stages": 2}


def launch_attention(d_head: int, itemsize: int) -> dict[str, int]:
    """Return the compile-time constants and launch options of `attend`."""
    rows, columns, warps = (128, 64, 8) if itemsize == 2 else (32, 32, 4)
    sizes = {"channels": padded(d_head), "rows": rows, "columns": columns}
    return sizes | {"num_warps": warps, "num_stages": 2}


def padded(d_head: int) -> int:
    """Return the number of channels in a product."""
    return max(int(triton.next_power_of_2(d_head)), 16)


@triton.jit(do_not_specialize=("head_groups", "time"))  # otherwise compiled again where 16 divides one, or does not
def evict(  # noqa: ANN201
    q, q_batch, q_head, q_time, k, k_batch, k_head, k_time, v, v_batch, v_head, v_time, out, out_batch, out_head,
    out_time, initial, last, final, logits, tops, totals, noted, bounds, decay, gain, scale, head_groups, number, share,
    time, d_head, enters: tl.constexpr, mixes: tl.constexpr, slots: tl.constexpr, channels: tl.constexpr,
    block: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """Simulate eviction over whole sequences, with one program per sequence and head group; `mixes`: write `out`."""
    program = tl.program_id(0).to(tl.int64)
    batch, head = program // head_groups, program % head_groups * number
    length, capacity = tl.load(bounds + 4 * batch), tl.load(bounds + 4 * batch + 1)
    sink, recent = tl.load(bounds + 4 * batch + 2), tl.load(bounds + 4 * batch + 3)
    q += batch * q_batch + head * q_head
    k += batch * k_batch + head // share * k_head
    v += batch * v_batch + head // share * v_head
    out += batch * out_batch + head * out_head
    last += program * time
    final += program * time
    lines = number * block + 1  # one extra line, because the next line is prefetched
    logits += program * lines * slots
    tops += program * lines
    totals += program * lines
    noted += program * 2 * slots
    slot = tl.arange(0, slots)
    positions = tl.full([slots], NOBODY, tl.int32)
    scores = tl.zeros([slots], tl.float32)
    for start in range(0, length, block):
        rows = tl.minimum(length - start, block)
        # The keys of the block take the first empty slots; a query does not see later keys of the block.
        vacant = positions == NOBODY
        order = tl.cumsum(vacant.to(tl.int32), 0)
        positions = tl.where(vacant & (order <= rows), start + order - 1, positions)
        used = tl.minimum(start + block, slots)
        tl.store(noted + slot, positions)
        tl.store(noted + slots + slot, NOBODY)
        tl.debug_barrier()  # makes writes visible to the other threads of the program
        first = q + start * q_time
        _meet(first, q_head, q_time, k, k_head, k_time, logits, tops, noted, scale, number, share, start, rows, used,
              d_head, slots, channels, block, chunk)  # fmt: skip
        tl.debug_barrier()
        ahead, bound = tl.load(logits + slot), tl.load(tops)
        for i in range(rows):
            now = start + i
            received = tl.zeros([slots], tl.float32)
            for line in range(i * number, (i + 1) * number):
                x, top = tl.where(positions <= now, ahead, -float("inf")), bound
                ahead, bound = tl.load(logits + (line + 1) * slots + slot), tl.load(tops + line + 1)
                weight = tl.exp(x - top)
                total = tl.sum(weight, 0)
                if not (total >= FAINT):  # the key with the largest logit was evicted within this block
                    top = tl.max(x, 0)
                    weight = tl.exp(x - top)
                    total = tl.sum(weight, 0)
                    tl.store(tops + line, top)
                tl.store(totals + line, total)
                received += weight / total
            own = tl.load(initial + program * time + now) if enters else 0.0
            scores = decay * tl.where(positions == now, own, scores) + gain * received
            if now >= capacity:
                candidate = (positions >= sink) & (positions <= now - recent)
                priority = tl.where(scores == scores, scores, -float("inf"))  # evict NaN scores first
                priority = tl.where(candidate, priority, float("inf"))
                _, gone = tl.reduce((priority, tl.where(candidate, positions, NOBODY)), 0, _lower_or_older)
                tl.store(last + gone, now, mask=gone != NOBODY)
                tl.store(noted + slots + slot, now, mask=positions == gone)
                positions = tl.where(positions == gone, NOBODY, positions)
        tl.debug_barrier()
        if mixes:
            first = out + start * out_time
            _collect(first, out_head, out_time, v, v_head, v_time, logits, tops, totals, noted, number, share, start,
                     rows, used, d_head, slots, channels, block, chunk)  # fmt: skip
            tl.debug_barrier()
    tl.store(final + positions, scores, mask=positions != NOBODY)


@triton.jit
def _lower_or_older(score, position, other, other_position):
    first = (score < other) | ((score == other) & (position < other_position))
    return tl.where(first, score, other), tl.where(first, position, other_position)


@triton.jit
def _meet(
    q, q_head, q_time, k, k_head, k_time, logits, tops, noted, scale, number, share, start, rows, used, d_head,
    slots: tl.constexpr, channels: tl.constexpr, block: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """Write the logits of a block of queries with all slots, and the largest visible logit of each query."""
    row, channel, column = tl.arange(0, block), tl.arange(0, channels), tl.arange(0, chunk)
    for member in range(number):
        mine = q + member * q_head + row[:, None] * q_time + channel[None, :]
        queries = tl.load(mine, mask=(row < rows)[:, None] & (channel < d_head)[None, :], other=0.0)
        line = row * number + member
        highest = tl.full([block, chunk], -float("inf"), tl.float32)
        for first in range(0, used, chunk):
            at = tl.load(noted + first + column)
            held = (at != NOBODY)[:, None] & (channel < d_head)[None, :]
            place = at[:, None].to(tl.int64) * k_time + channel[None, :]
            keys = tl.load(k + member // share * k_head + place, mask=held, other=0.0)
            product = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
            tl.store(logits + line[:, None] * slots + first + column[None, :], product)
            seen = at[None, :] <= start + row[:, None]
            highest = tl.where(seen, tl.maximum(highest, product), highest)
        tl.store(tops + line, tl.max(highest, 1))


@triton.jit
def _collect(
    out, out_head, out_time, v, v_head, v_time, logits, tops, totals, noted, number, share, start, rows, used, d_head,
    slots: tl.constexpr, channels: tl.constexpr, block: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """Write the outputs of a block of queries; a query sees a key from the key's own query to its last query."""
    row, channel, column = tl.arange(0, block), tl.arange(0, channels), tl.arange(0, chunk)
    now = start + row[:, None]
    for member in range(number):
        line = row * number + member
        top, total = tl.load(tops + line), tl.load(totals + line, mask=row < rows, other=1.0)
        mixed = tl.zeros([block, channels], tl.float32)
        for first in range(0, used, chunk):
            at = tl.load(noted + first + column)
            held = (at != NOBODY)[:, None] & (channel < d_head)[None, :]
            place = at[:, None].to(tl.int64) * v_time + channel[None, :]
            values = tl.load(v + member // share * v_head + place, mask=held, other=0.0)
            until = tl.load(noted + slots + first + column)
            x = tl.load(logits + line[:, None] * slots + first + column[None, :])
            seen = (at[None, :] <= now) & (now <= until[None, :])
            p = tl.where(seen, tl.exp(x - top[:, None]) / total[:, None], 0.0)
            mixed = tl.dot(p.to(values.dtype), values, mixed, input_precision="ieee")
        mine = out + member * out_head + row[:, None] * out_time + channel[None, :]
        inside = (row < rows)[:, None] & (channel < d_head)[None, :]
        tl.store(mine, mixed.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=("head_groups", "time"))
def attend(  # noqa: ANN201
    q, q_batch, q_head, q_time, k, k_batch, k_head, k_time, v, v_batch, v_head, v_time, out, out_batch, out_head,
    out_time, last, scale, head_groups, number, share, time, d_head, channels: tl.constexpr, rows: tl.constexpr,
    columns: tl.constexpr,
):  # fmt: skip
    """Write out[q] = softmax over k <= q <= last[k] of q k^T / sqrt(d_head), times v, a tile of queries per program.

    The softmax is computed online over tiles of keys (FlashAttention, arXiv:2205.14135, Algorithm 1).
    """
    program = tl.program_id(0).to(tl.int64)
    batch, head = program // (head_groups * number), program % (head_groups * number)
    start = tl.program_id(1) * rows
    row, column, channel = tl.arange(0, rows), tl.arange(0, columns), tl.arange(0, channels)
    now = start + row[:, None]
    inside = (now < time) & (channel < d_head)[None, :]
    place = q + batch * q_batch + head * q_head + now.to(tl.int64) * q_time + channel[None, :]
    queries = tl.load(place, mask=inside, other=0.0)
    k += batch * k_batch + head // share * k_head
    v += batch * v_batch + head // share * v_head
    last += (batch * head_groups + head // number) * time
    top, total = tl.full([rows], FINITE, tl.float32), tl.zeros([rows], tl.float32)
    mixed = tl.zeros([rows, channels], tl.float32)
    for first in range(0, tl.minimum(start + rows, time), columns):
        at = first + column
        until = tl.load(last + at, mask=at < time, other=-1)
        held = (at < time)[:, None] & (channel < d_head)[None, :]
        keys = tl.load(k + at[:, None].to(tl.int64) * k_time + channel[None, :], mask=held, other=0.0)
        x = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        x = tl.where((at[None, :] <= now) & (now <= until[None, :]), x, -float("inf"))
        higher = tl.maximum(top, tl.max(x, 1))
        weight, shrink = tl.exp(x - higher[:, None]), tl.exp(top - higher)
        values = tl.load(v + at[:, None].to(tl.int64) * v_time + channel[None, :], mask=held, other=0.0)
        mixed = tl.dot(weight.to(values.dtype), values, mixed * shrink[:, None], input_precision="ieee")
        top, total = higher, total * shrink + tl.sum(weight, 1)
    place = out + batch * out_batch + head * out_head + now.to(tl.int64) * out_time + channel[None, :]
    tl.store(place, (mixed / total[:, None]).to(out.dtype.element_ty), mask=inside)
