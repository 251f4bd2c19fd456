"""Where a function sits in a model: its parameters live in the `arch` collection, apart from the weights."""

from types import ModuleType
from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float

from ssa_jax.registry import no_such

SHARINGS = ("all_layers", "per_layer", "middle_layers", "per_channel")


class Nonlinearity(nn.Module):
    """Applies one function; layers that share it call the same instance.

    Parameters of a learnable function are the variable `function` of the collection `arch`. When the
    collection `support` is mutable, each call adds how often every interval was visited.
    """

    function: Any

    @nn.compact
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        if not self.function.learnable:
            return self.function.apply({}, x)
        params = self.variable("arch", "function", lambda: self.function.init(self.make_rng("params"))).value
        if self.is_mutable_collection("support") and hasattr(self.function, "support") and not self.is_initializing():
            self.sow("support", "visits", self.function.support(x))
        return self.function.apply(params, x)


def site(place: str, layer: int, layers: int, sharing: str) -> str:
    """Name in `arch` of the function that `layer` uses at `place`.

    >>> [site("mlp", layer, 4, "middle_layers") for layer in range(4)]
    ['mlp_first', 'mlp_middle', 'mlp_middle', 'mlp_last']
    """
    if sharing == "all_layers":
        return f"{place}_all"
    if sharing in ("per_layer", "per_channel"):
        return f"{place}_{layer}"
    if sharing == "middle_layers":
        return f"{place}_first" if layer == 0 else f"{place}_last" if layer == layers - 1 else f"{place}_middle"
    raise no_such("sharing", sharing, SHARINGS)


def part(registry: ModuleType, chosen: Any) -> Any:
    """A function or score function given by name or as an object."""
    return registry.get(chosen) if isinstance(chosen, str) else chosen


def for_hidden(function: Any, sharing: str, hidden: int) -> Any:
    """The MLP's function for `hidden` channels: each channel has its own where sharing is 'per_channel'."""
    if sharing != "per_channel":
        return function
    if not hasattr(function, "channels"):
        raise ValueError(f"sharing 'per_channel' needs a function with channels (spline), not {function.name!r}.")
    return type(function)(**function.options() | {"channels": hidden})
