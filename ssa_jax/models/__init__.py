"""Models by name, as pure functions of (variables, inputs).

>>> import jax, jax.numpy as jnp
>>> model = get("decoder", layers=1, width=16, vocab_size=5, length=8)
>>> variables = model.init(jax.random.key(0), {"inputs": jnp.zeros((2, 8), jnp.int32)})
>>> model.apply(variables, jnp.zeros((2, 8), jnp.int32)).shape
(2, 8, 5)
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
from clu import parameter_overview
from jaxtyping import Array, Float, Int

from ssa_jax.models.mlp import MLPModel
from ssa_jax.models.transformer import Transformer
from ssa_jax.registry import Registry, no_such

_REGISTRY = Registry("model")


@dataclasses.dataclass(frozen=True)
class Model:
    """A linen module seen as two pure functions; `arch` is always there, empty when nothing is learnable in it."""

    module: nn.Module

    def init(self, key: jax.Array, batch: Mapping[str, Array] | Int[Array, "B T"]) -> dict[str, Any]:
        """Fresh {'params', 'arch'} for the shapes of `batch` (a task's batch or its inputs)."""
        variables = self.module.init(key, batch["inputs"] if isinstance(batch, Mapping) else batch)
        return {"params": variables["params"], "arch": variables.get("arch", {})}

    def apply(
        self, variables: Mapping[str, Any], inputs: Int[Array, "B T"], **inputs_by_name: Array
    ) -> Float[Array, "B A V"]:
        """Logits at the last A positions (all positions when the model's `answers` is None)."""
        return self.module.apply(variables, inputs, **inputs_by_name)

    def visits(self, variables: Mapping[str, Any], inputs: Int[Array, "B T"]) -> dict[str, Any]:
        """How the inputs of each learnable function spread over its intervals: {site: {'counts', 'outside'}}."""
        _, state = self.module.apply(variables, inputs, mutable=["support"])
        averages = {}
        for site, calls in state.get("support", {}).items():
            stacked = jax.tree.map(lambda *each: sum(each), *calls["visits"])
            averages[site] = {"counts": stacked["counts"], "outside": stacked["outside"] / len(calls["visits"])}
        return averages

    def overview(self, batch: Mapping[str, Array]) -> str:
        """Weights and architecture by name with their shapes, and which attention backend runs, and why."""
        shapes = jax.eval_shape(lambda: self.init(jax.random.key(0), batch))
        tables = [
            f"{part}\n{parameter_overview.get_parameter_overview(shapes[part], include_stats=False)}" for part in shapes
        ]
        if isinstance(self.module, Transformer):
            T = batch["inputs"].shape[1]
            tables.append(f"attention backend\n{self.module.backend_choice(T)}")
        return "\n\n".join(tables) + "\n"


def names() -> tuple[str, ...]:
    """Names of all models."""
    return _REGISTRY.names()


def options(name: str) -> tuple[str, ...]:
    """Options of a model."""
    builder = _REGISTRY.builder(name)
    return tuple(field.name for field in dataclasses.fields(builder) if field.name not in ("parent", "name", "causal"))


def get(name: str, **chosen: Any) -> Model:
    """The model `name`; ValueError for an unknown name, option or an impossible combination."""
    builder = _REGISTRY.builder(name)
    for option in chosen:
        if option not in options(name):
            raise no_such(f"option of model {name!r}", option, options(name))
    module = builder(**chosen, causal=False) if name == "encoder" else builder(**chosen)
    module.check()
    return Model(module)


_REGISTRY.register("decoder")(Transformer)
_REGISTRY.register("encoder")(Transformer)
_REGISTRY.register("mlp")(MLPModel)
