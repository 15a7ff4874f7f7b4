"""Loops over slots in vectors, with what numba lacks for them: a register tile of a product, e^x, minimum, maximum.

They are written for `kernel`, whose compiled code numba keeps on disk until `kernel` itself changes. So a change here
has to be noted there (a test says how).
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast, no_type_check

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from formerlab.kernels.cache_state import EMPTY

LANES = 16
"""Numbers worked on at a time, whatever the machine's vectors hold."""
TILE = 4
"""Rows of a register tile."""
BEYOND = 3e38
"""More than any score; an infinity here would let the compiler see a condition where it should see a minimum."""

Array = NDArray[Any]
Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile for the types of the first call, without the interpreter's lock; keep the result on disk if possible."""
    order_is_free = {"nnan", "nsz", "arcp", "contract", "afn", "reassoc"}  # but infinities stay: they mark the unseen
    made = njit(fastmath=order_is_free, nogil=True, error_model="numpy")(function)
    with contextlib.suppress(RuntimeError):  # no folder can be written to
        made.enable_caching()
    return cast(Function, made)


@no_type_check
@intrinsic
def tile(typing_context: Any, out: Any, row: Any, column: Any, left: Any, right: Any, inner: Any) -> Any:
    """Write `left right`, summed over `inner`, into TILE rows and LANES columns of `out`, with the sums in registers.

    Loops would keep the sums in memory; this is twice as fast.
    """
    signature = types.void(out, types.intp, types.intp, left, right, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, a, b = (
            context.make_array(kind)(context, builder, value=value)
            for kind, value in zip(signature.args, arguments, strict=True)
            if isinstance(kind, types.Array)
        )
        number, align = signature.args[0].dtype, signature.args[0].dtype.bitwidth // 8
        vector, index = ir.VectorType(context.get_data_type(number), LANES), ir.IntType(64)

        def pointer(array: Any, i: Any, j: Any) -> Any:
            width = cgutils.unpack_tuple(builder, array.shape)[1]
            return builder.gep(array.data, [builder.add(builder.mul(i, width), j)])

        def lanes(array: Any, i: Any, j: Any) -> Any:
            return builder.bitcast(pointer(array, i, j), vector.as_pointer())

        def everywhere(scalar: Any) -> Any:
            nothing = ir.Constant(vector, ir.Undefined)
            first = builder.insert_element(nothing, scalar, ir.Constant(ir.IntType(32), 0))
            zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            return builder.shuffle_vector(first, nothing, zeros)

        rows = [builder.add(arguments[1], ir.Constant(index, i)) for i in range(TILE)]
        sums = [cgutils.alloca_once_value(builder, ir.Constant(vector, None)) for _ in rows]
        with cgutils.for_range(builder, arguments[5]) as loop:
            factors = builder.load(lanes(b, loop.index, arguments[2]), align=align)
            for i, total in zip(rows, sums, strict=True):
                product = builder.fmul(everywhere(builder.load(pointer(a, i, loop.index))), factors, flags=["contract"])
                builder.store(builder.fadd(product, builder.load(total), flags=["contract"]), total)
        for i, total in zip(rows, sums, strict=True):
            builder.store(builder.load(total), lanes(target, i, arguments[2]), align=align)
        return context.get_dummy_value()

    return signature, generate


@no_type_check
def _of_two(name: str) -> Callable[[float, float], float]:
    """Return the smaller or larger of two numbers, in a form that the compiler knows how to reduce in vectors."""

    @intrinsic
    def operation(typing_context: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            number = arguments[0].type
            function = builder.module.declare_intrinsic(name, [number], ir.FunctionType(number, [number, number]))
            return builder.call(function, arguments, fastmath=["nnan", "nsz"])

        return a(a, a), generate

    return operation


least, greatest = _of_two("llvm.minnum"), _of_two("llvm.maxnum")


@no_type_check
@intrinsic
def power_of_two(typing_context: Any, exponent: Any) -> Any:
    """Return 2^exponent in single precision, by writing the exponent's bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bias, mantissa = ir.Constant(ir.IntType(32), 127), ir.Constant(ir.IntType(32), 23)
        return builder.bitcast(builder.shl(builder.add(arguments[0], bias), mantissa), ir.FloatType())

    return types.float32(types.int32), generate


@no_type_check
def exponential(x: float) -> float:
    """Return e^x for x <= 0: in single precision a polynomial that runs in vectors, else the library's."""
    raise NotImplementedError


@no_type_check
@overload(exponential, jit_options={"fastmath": {"contract", "nnan", "nsz"}})
def _exponential(x: Any) -> Callable[[Any], Any]:
    """e^x = 2^n e^r with |r| <= ln 2 / 2 and a polynomial of degree 7 for e^r (the constants of Cephes' expf)."""

    def double(x: Any) -> Any:
        return np.exp(x)

    if x != types.float32:
        return double
    least_x, to_power = np.float32(-87.0), np.float32(1.44269504088896341)
    high, low = np.float32(0.693359375), np.float32(-2.12194440e-4)
    c7, c6, c5 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
    c4, c3, c2 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
    half, one, zero = np.float32(0.5), np.float32(1), np.float32(0)

    def single(x: Any) -> Any:
        bounded = max(x, least_x)
        power = np.floor(bounded * to_power + half)
        r = (bounded - power * high) - power * low
        series = ((((c7 * r + c6) * r + c5) * r + c4) * r + c3) * r + c2
        result = (series * (r * r) + r + one) * power_of_two(np.int32(power))
        return result if x >= least_x else zero

    return single


@compiled
@no_type_check
def product(out: Array, left: Array, right: Array, rows: int, inner: int, columns: int) -> None:
    """Write left @ right; rows up to the next multiple of TILE and columns, a multiple of LANES, are written too."""
    for column in range(0, columns, LANES):
        for row in range(0, rows, TILE):
            tile(out, row, column, left, right, inner)


@compiled
@no_type_check
def softmax(row: Array, positions: Array, now: int, slots: int) -> None:
    """Turn the logits of one query into probabilities over the keys no later than `now`; the other slots get 0."""
    nothing = row.dtype.type(-np.inf)
    top = nothing
    for slot in range(slots):
        logit = row[slot] if positions[slot] <= now else nothing
        row[slot] = logit
        top = greatest(top, logit)
    total = row.dtype.type(0)
    for slot in range(slots):
        weight = exponential(row[slot] - top)
        row[slot] = weight
        total += weight
    share = 1 / total
    for slot in range(slots):
        row[slot] *= share


@compiled
@no_type_check
def rescore(
    scores: Array, received: Array, positions: Array, decay: float, gain: float, sink: int, newest: int, slots: int
) -> float:
    """Set S <- decay S + gain p in every slot; return the lowest score among the positions sink, ..., newest."""
    keep, add, beyond = scores.dtype.type(decay), scores.dtype.type(gain), scores.dtype.type(BEYOND)
    lowest = beyond
    for slot in range(slots):
        score, position = keep * scores[slot] + add * received[slot], positions[slot]
        scores[slot] = score
        lowest = least(lowest, score if (position >= sink) & (position <= newest) else beyond)
    return lowest


@compiled
@no_type_check
def oldest(scores: Array, positions: Array, lowest: float, sink: int, newest: int, slots: int) -> int:
    """Return the slot of the oldest among the candidates of the lowest score; no slot where no score is a number."""
    none = np.int32(EMPTY)
    first, found = none, none
    for slot in range(slots):
        position = positions[slot]
        chosen = (scores[slot] == lowest) & (position >= sink) & (position <= newest)
        first = min(first, position if chosen else none)
    for slot in range(slots):
        found = min(found, np.int32(slot) if positions[slot] == first else none)
    return found


class Strided(NamedTuple):
    """A tensor (batch, heads, time, channels) as its flat storage and three strides; channels lie side by side."""

    flat: Array
    batch: int
    head: int
    time: int


@compiled
@no_type_check
def vector(tensor: Strided, batch: int, head: int, time: int, channels: int) -> Array:
    """Return the channels of one head at one time."""
    start = batch * tensor.batch + head * tensor.head + time * tensor.time
    return tensor.flat[start : start + channels]
