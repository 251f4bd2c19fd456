"""Fixed nonlinearities: what a learned function is compared with, and what it can start from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ssa_jax.registry import no_such

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "square": jnp.square,
}


def to_floating(x) -> Float[Array, "..."]:
    """x as an array of floating point; integers become float32."""
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)


@dataclass(frozen=True)
class Activation:
    """A named function without parameters, evaluated in at least float32, returned in x's dtype.

    >>> float(Activation("relu2").apply({}, 3.0))
    9.0
    """

    name: str
    learnable: ClassVar[bool] = False

    def __post_init__(self):
        if self.name not in ACTIVATIONS:
            raise no_such("activation", self.name, tuple(ACTIVATIONS))

    def options(self) -> dict[str, object]:
        """What `get` takes beside the name: nothing."""
        return {}

    def init(self, key: PRNGKeyArray) -> dict[str, Array]:
        """No parameters: an empty dict."""
        return {}

    def apply(self, params: dict[str, Array], x: Float[Array, "..."]) -> Float[Array, "..."]:
        """The activation of x, elementwise."""
        x = to_floating(x)
        return ACTIVATIONS[self.name](x.astype(jnp.promote_types(x.dtype, jnp.float32))).astype(x.dtype)
