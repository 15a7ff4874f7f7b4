"""Triton kernel of step-by-step eviction over whole sequences: the engine of a simulation on a GPU.

For q = 0, 1, ... of a sequence, in each head group (`cache/eviction.py`, Decay article, eq. 5):

    p[k] = softmax over the keys held of q k^T / sqrt(d_head)        out[q] = sum over k of p[k] v[k]
    S[k] <- decay S[k] + gain sum over the head group of p[k]        the key of the lowest S leaves a full cache

One program works on a sequence and a head group. The positions and scores of the keys held stay in its registers.
Queries come in blocks of 16: a block meets the held keys and its own in one product, which reads each of them once and
bounds the logits of each query; then the rule acts row by row; then the probabilities meet the values. Sums are float32
for all tensors, so logits in half precision are not rounded, as `cache/torch_engine.py`, the reference, rounds them.

Memory, besides `out`: a program notes 16 logits per slot and head of its group and two positions per slot, 4 bytes
each, where slots are the next power of two above budget + 16. Time: the products of T queries with budget + 16 keys,
which full attention has with T / 2 keys on average, and T times a sum for each head of the group and a minimum over
the slots, one after another, which take longer than the products; sequences and head groups run side by side.

`cache/triton_engine.py` starts it. With TRITON_INTERPRET=1, set before this module is imported, the same code runs on
the CPU.
"""

import triton
import triton.language as tl

from formerlab.kernels import EMPTY

BLOCK = 16
"""Queries of a block: the least that a tensor core multiplies."""
CHUNK = 64
"""Slots whose keys or values are loaded together."""
REGISTERS = {4: 168, 8: 128, 16: 128}
"""Of a thread, by warps: three programs of four, two of eight or one of sixteen run at a time on a multiprocessor."""
NOBODY = tl.constexpr(EMPTY)
FAINT = tl.constexpr(1 / 16)
"""Sum of exp(x - bound) below which the bound is too far above the logits of the keys that are still held."""


def slots_for(most: int) -> int:
    """Return the slots of a program that keeps `most` keys between blocks."""
    return max(int(triton.next_power_of_2(most + BLOCK)), CHUNK)


def launch(slots: int, d_head: int) -> dict[str, int]:
    """Return what the compiler must know of the sizes."""
    channels = max(int(triton.next_power_of_2(d_head)), 16)
    warps = min(max(slots // 128, 4), 8)
    sizes = {"slots": slots, "channels": channels, "block": BLOCK, "chunk": CHUNK}
    return sizes | {"num_warps": warps, "num_stages": 2, "maxnreg": REGISTERS[warps]}


@triton.jit
def evict(  # noqa: ANN201
    q, q_batch, q_head, q_time, k, k_batch, k_head, k_time, v, v_batch, v_head, v_time, out, out_batch, out_head,
    out_time, initial, last, final, logits, tops, totals, noted, bounds, decay, gain, scale, head_groups, number, share,
    time, d_head, enters: tl.constexpr, slots: tl.constexpr, channels: tl.constexpr, block: tl.constexpr,
    chunk: tl.constexpr,
):  # fmt: skip
    """Simulate eviction over whole sequences; a program for each sequence and head group."""
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
    lines = number * block + 1  # one more, which is loaded ahead and not used
    logits += program * lines * slots
    tops += program * lines
    totals += program * lines
    noted += program * 2 * slots
    slot = tl.arange(0, slots)
    positions = tl.full([slots], NOBODY, tl.int32)
    scores = tl.zeros([slots], tl.float32)
    for start in range(0, length, block):
        rows = tl.minimum(length - start, block)
        # The block's own keys take the first empty slots; a query does not see the later ones of them.
        vacant = positions == NOBODY
        order = tl.cumsum(vacant.to(tl.int32), 0)
        positions = tl.where(vacant & (order <= rows), start + order - 1, positions)
        used = tl.minimum(start + block, slots)
        tl.store(noted + slot, positions)
        tl.store(noted + slots + slot, NOBODY)
        tl.debug_barrier()  # what a thread has written, the other threads of the program see only behind one
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
                if not (total >= FAINT):  # the key with the largest logit has gone within this block
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
                priority = tl.where(scores == scores, scores, -float("inf"))  # what is not a number goes first
                priority = tl.where(candidate, priority, float("inf"))
                _, gone = tl.reduce((priority, tl.where(candidate, positions, NOBODY)), 0, _lower_or_older)
                tl.store(last + gone, now, mask=gone != NOBODY)
                tl.store(noted + slots + slot, now, mask=positions == gone)
                positions = tl.where(positions == gone, NOBODY, positions)
        tl.debug_barrier()
        first = out + start * out_time
        _collect(first, out_head, out_time, v, v_head, v_time, logits, tops, totals, noted, number, share, start, rows,
                 used, d_head, slots, channels, block, chunk)  # fmt: skip
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
    """Write the logits of a block of queries and the keys in the slots, and the largest that each query may see."""
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
    """Write the outputs of a block of queries: each sees the keys from their own query to the last."""
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
