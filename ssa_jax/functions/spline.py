"""Linear splines on uniform knots: the nonlinearity that is learned.

y(x) = v_i + f (v_{i+1} - v_i) for x in interval i, where f in [0, 1] is its position there; only the K values v are
parameters. Source: Teney et al., "Can Transformers Really Do It All?", and the code published with it.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ssa_jax.functions.activations import ACTIVATIONS, to_floating
from ssa_jax.registry import no_such

EXTRAPOLATIONS = ("constant", "linear")
STARTS = ("constant", *ACTIVATIONS)
# elements that a CPU adds up at a time: 3 MB of indices and products that are used again, where large ones would cost
# a page fault for every 4 KB
CHUNK = 2**18


@dataclass(frozen=True, init=False)
class Spline:
    """A piecewise-linear function with K learned values at evenly spaced knots in [low, high].

    Args:
        knots: K, at least 2.
        low, high: first and last knot, in units of x.
        extrapolation: 'constant' keeps the end value outside [low, high]: slope 0, and the end value still learns.
            'linear' continues the first and the last interval.
        init: what the values start from: 'constant', or an activation sampled at the knots. Kept as `.start`.
        constant: the value that init='constant' gives to every knot.
        channels: None for one function, or F for one function per entry of x's last axis.

    NaN in x gives NaN there, slope 0, and adds nothing to the gradient of the values. ±inf gives the end value under
    'constant'; under 'linear' the limit (±inf, or the end value where the end slope is 0) and nothing to the gradient
    of the values. A gradient that arrives as NaN reaches only the two values next to its x.

    Raises ValueError for an option outside these ranges.

    >>> spline = Spline(knots=3, low=-1.0, high=1.0, init="identity")
    >>> spline.apply(spline.init(jax.random.key(0)), jnp.array([-0.25, 0.5, 7.0])).tolist()
    [-0.25, 0.5, 1.0]
    """

    knots: int
    low: float
    high: float
    extrapolation: str
    start: str
    constant: float
    channels: int | None
    name: ClassVar[str] = "spline"
    learnable: ClassVar[bool] = True

    # written out because the option `init` and the method `init` share their name
    def __init__(
        self,
        knots: int = 32,
        low: float = -4.0,
        high: float = 4.0,
        extrapolation: str = "constant",
        init: str = "gelu",
        constant: float = 0.01,
        channels: int | None = None,
    ):
        if not isinstance(knots, int | np.integer) or isinstance(knots, bool) or knots < 2:
            raise ValueError(f"A spline needs a whole number of knots, at least 2; got knots={knots!r}.")
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"A spline needs finite low < high; got low={low!r}, high={high!r}.")
        if extrapolation not in EXTRAPOLATIONS:
            raise no_such("extrapolation", extrapolation, EXTRAPOLATIONS)
        if init not in STARTS:
            raise no_such("init of a spline", init, STARTS)
        if not math.isfinite(constant):
            raise ValueError(f"A spline needs a finite constant; got constant={constant!r}.")
        if channels is not None and (not isinstance(channels, int | np.integer) or channels < 1):
            raise ValueError(f"channels is None or a whole number, at least 1; got channels={channels!r}.")
        fields = {"knots": int(knots), "low": float(low), "high": float(high), "extrapolation": extrapolation}
        fields |= {"start": init, "constant": float(constant), "channels": None if channels is None else int(channels)}
        for field, value in fields.items():
            object.__setattr__(self, field, value)

    def options(self) -> dict[str, object]:
        """What builds this spline again: `Spline(**spline.options()) == spline`."""
        return {"init" if field == "start" else field: value for field, value in vars(self).items()}

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of params['values']: [K], or [F, K] with channels."""
        return (self.knots,) if self.channels is None else (self.channels, self.knots)

    @property
    def step(self) -> float:
        """The distance between neighbouring knots."""
        return (self.high - self.low) / (self.knots - 1)

    def grid(self) -> Float[Array, "K"]:
        """The positions of the knots, float32."""
        return jnp.asarray(np.linspace(self.low, self.high, self.knots), jnp.float32)

    def init(self, key: PRNGKeyArray) -> dict[str, Float[Array, "..."]]:
        """{'values': float32 [K] or [F, K]}. Nothing is random: the key is there for the common interface."""
        if self.start == "constant":
            values = jnp.full(self.knots, self.constant, jnp.float32)
        else:
            values = ACTIVATIONS[self.start](self.grid())
        return {"values": jnp.broadcast_to(values, self.shape)}

    def apply(self, params: dict[str, Float[Array, "..."]], x: Float[Array, "..."]) -> Float[Array, "..."]:
        """The spline at x, elementwise, evaluated in at least float32 and returned in x's dtype.

        Raises ValueError when the values do not fit the knots, or x's last axis the channels.
        """
        x, values = self._checked(x), jnp.asarray(params["values"])
        if values.shape != self.shape:
            raise ValueError(f"{self} needs values of shape {self.shape}; got {values.shape}.")
        return _evaluate(self, values.astype(jnp.result_type(jnp.float32, x, values)), x)

    @partial(jax.jit, static_argnums=0, inline=True)
    def support(self, x: Float[Array, "..."]) -> dict[str, Float[Array, "..."]]:
        """Where x falls: {'counts': visits per interval [K-1], 'outside': fraction of x not in [low, high]}.

        counts leave out what is outside (NaN counts as outside) and add up the channels.
        """
        x = self._checked(x)
        inside = ((x >= self.low) & (x <= self.high)).astype(jnp.float32)
        counts = interval_sums(self, x, inside)[0].reshape(-1, self.knots - 1).sum(0)
        return {"counts": counts, "outside": (1 - inside).mean()}

    def roughness(self, params: dict[str, Float[Array, "..."]]) -> Float[Array, ""]:
        """Sum over knots (and channels) of squared second differences, (v_{i-1} - 2 v_i + v_{i+1})^2."""
        return jnp.sum(jnp.diff(params["values"], n=2) ** 2)

    def _checked(self, x) -> Float[Array, "..."]:
        x = to_floating(x)
        if self.channels is not None and (x.ndim == 0 or x.shape[-1] != self.channels):
            raise ValueError(f"{self} needs x of shape [..., {self.channels}]; got {x.shape}.")
        return x


def locate(spline: Spline, x: Float[Array, "..."], dtype: jnp.dtype) -> tuple[Int[Array, "..."], Float[Array, "..."]]:
    """The interval of x, in [0, K-2] whatever x is, and the position in it: 0 at its left knot, 1 at its right one."""
    x = x.astype(dtype)
    inside = jnp.clip(x, spline.low, spline.high)
    index = jnp.clip(((inside - spline.low) * (1 / spline.step)).astype(jnp.int32), 0, spline.knots - 2)
    # (x - low) / step - index would lose the low bits of x: 1e-5 of an interval at 256 knots. The knot low + i step
    # is therefore a coarse part, exact in this dtype for every i, and a small remainder.
    quantum = 2.0 ** (math.frexp(max(abs(spline.low), abs(spline.high)))[1] + 1 - jnp.finfo(dtype).nmant)
    low, step = (round(number / quantum) * quantum for number in (spline.low, spline.step))
    steps = index.astype(dtype)
    rest = (spline.low - low) + steps * (spline.step - step)
    position = inside if spline.extrapolation == "constant" else x
    return index, ((position - (low + steps * step)) - rest) * (1 / spline.step)


def _lookup(spline: Spline, table: Float[Array, "..."], index: Int[Array, "..."]) -> Float[Array, "..."]:
    """table[index], or table[channel, index]. On a TPU, which gathers one by one, a masked sum over the knots."""

    def gather(table, index):
        if spline.channels is not None:
            index, table = index + spline.knots * jnp.arange(spline.channels, dtype=jnp.int32), table.reshape(-1)
        return table.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)

    def masked_sum(table, index):
        return jnp.sum(jnp.where(index[..., None] == jnp.arange(spline.knots), table, 0), axis=-1)

    return jax.lax.platform_dependent(table, index, tpu=masked_sum, default=gather)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _evaluate(spline: Spline, values: Float[Array, "..."], x: Float[Array, "..."]) -> Float[Array, "..."]:
    return _forward(spline, values, x)[0]


# compiled also where the caller is not, as in a notebook; inlined into a caller that is
@partial(jax.jit, static_argnums=0, inline=True)
def _forward(spline, values, x):
    index, position = locate(spline, x, values.dtype)
    difference = _lookup(spline, jnp.diff(values, append=values[..., -1:]), index)
    rise = position * difference
    if spline.extrapolation == "constant":
        straight = (x >= spline.low) & (x <= spline.high)
    else:
        straight = ~jnp.isnan(x)
        rise = jnp.where(jnp.isinf(position) & (difference == 0), 0, rise)
    slope = jnp.where(straight, difference * (1 / spline.step), 0)
    return (_lookup(spline, values, index) + rise).astype(x.dtype), (x, slope)


@partial(jax.jit, static_argnums=0, inline=True)
def _backward(spline, residuals, dy):
    x, slope = residuals
    dy = dy.astype(slope.dtype)
    return knot_gradient(spline, x, dy), (dy * slope).astype(x.dtype)


_evaluate.defvjp(_forward, _backward)


def knot_gradient(spline: Spline, x: Float[Array, "..."], dy: Float[Array, "..."]) -> Float[Array, "..."]:
    """sum over x of dy dy(x)/dv, [K] or [F, K]: each dy is shared by the two knots around its x.

    With A_i = sum of dy in interval i and B_i = sum of dy f: dv = [A - B, 0] + [0, B].
    """
    whole, right = interval_sums(spline, x, dy)
    zero = jnp.zeros_like(whole[..., :1])
    return jnp.concatenate([whole - right, zero], -1) + jnp.concatenate([zero, right], -1)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def interval_sums(
    spline: Spline, x: Float[Array, "..."], dy: Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """A = sum of dy and B = sum of dy f over the x in each interval, both [K-1] or [F, K-1].

    A CPU scatters. Accelerators, on which scattered additions collide (GPU) or queue (TPU), reduce over masks: the
    compiler fuses these into the sum, so no [..., K] array exists, and sharded x costs one all-reduce.
    """
    return jax.lax.platform_dependent(
        x, dy, cpu=partial(_scattered_sums, spline), default=partial(_masked_sums, spline)
    )


@interval_sums.defjvp
def _(spline, primals, tangents):
    # second derivatives: the flat pass over replicas below cannot be transposed
    return interval_sums(spline, *primals), jax.jvp(partial(_masked_sums, spline), primals, tangents)[1]


def _addends(spline, x, dy):
    index, position = locate(spline, x, dy.dtype)
    finite = jnp.isfinite(position)
    dy = jnp.where(finite, dy, 0)
    return index, dy, jnp.where(finite, dy * position, 0)


def _masked_sums(spline, x, dy):
    index, whole, right = _addends(spline, x, dy)
    here = index[..., None] == jnp.arange(spline.knots - 1)
    axes = tuple(range(x.ndim if spline.channels is None else x.ndim - 1))
    return tuple(jnp.sum(jnp.where(here, addend[..., None], 0), axes) for addend in (whole, right))


def _scattered_sums(spline, x, dy):
    rows = jax.custom_batching.custom_vmap(partial(_scattered_rows, spline))

    @rows.def_vmap
    def _(size, batched, *arrays):
        # replicas are further rows of one flat pass: batched scatters and loops are slower
        arrays = [a if b else jnp.broadcast_to(a, (size, *a.shape)) for a, b in zip(arrays, batched, strict=True)]
        sums = rows(*(array.reshape(-1, *array.shape[2:]) for array in arrays))
        return tuple(part.reshape(size, -1, *part.shape[1:]) for part in sums), (True, True)

    return tuple(part[0] for part in rows(x[None], dy[None]))


def _scattered_rows(spline, x, dy):
    # Each row of a shared spline has four tables, filled in turn: neighbours that fall in one interval need not wait
    # for each other. A and B are the real and the imaginary part of a table, so that one pass adds both.
    count, tables, intervals = x.shape[0], spline.channels or 4, spline.knots - 1
    row, chunk = x[0].size, tables * max(1, CHUNK // tables)

    def add(sums, elements):
        start, x, dy = elements
        index, whole, right = _addends(spline, x, dy)
        place = start + jnp.arange(x.size, dtype=jnp.int32)
        table = place % tables + (place // row * tables if count > 1 else 0)
        index, both = table * intervals + index, jax.lax.complex(whole, right)
        return sums.at[index].add(both, mode="promise_in_bounds", wrap_negative_indices=False), None

    sums = jnp.zeros(count * tables * intervals, jnp.result_type(dy, jnp.complex64))
    x, dy, done = x.reshape(-1), dy.reshape(-1), 0
    if x.size > chunk:
        done = x.size // chunk * chunk
        starts = jnp.arange(0, done, chunk, dtype=jnp.int32)
        sums, _ = jax.lax.scan(add, sums, (starts, x[:done].reshape(-1, chunk), dy[:done].reshape(-1, chunk)))
    if x.size > done:
        sums, _ = add(sums, (done, x[done:], dy[done:]))
    sums = sums.reshape(count, tables, intervals)
    sums = sums.sum(1) if spline.channels is None else sums
    return sums.real, sums.imag
