"""Different heads, different score functions.

Head h uses member h modulo their number. Every row has the law, the invariances and the limits of its own member.
The family is the members' own where they agree; otherwise 'product', which only says that no one fast form runs them
all: attention runs every member's heads by themselves.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ssa_jax.scores.base import Params, Score


@dataclasses.dataclass(frozen=True)
class Mixed(Score):
    """Members take heads in turn; params hold a dictionary for each that learns, {'1_ssa': {...}}.

    Args:
      members: score functions; `scores.get('mixed', members=...)` takes names too.
    """

    name: ClassVar[str] = "mixed"
    members: tuple[Score, ...] = ()

    def __post_init__(self):
        if not self.members or any(isinstance(member, Mixed) for member in self.members):
            raise ValueError(f"members={self.members} must be one or more score functions, none of them mixed.")

    @property
    def family(self) -> str:
        families = {member.family for member in self.members}
        return families.pop() if len(families) == 1 else "product"

    @property
    def sums_to_one(self) -> bool:
        return all(member.sums_to_one for member in self.members)

    @property
    def learnable(self) -> bool:
        return any(member.learnable for member in self.members)

    def init(self, heads):
        parts = enumerate(self.members[:heads])
        return {
            f"{i}_{member.name}": member.init(len(range(i, heads, len(self.members))))
            for i, member in parts
            if member.learnable
        }

    def parts(self, params: Params, heads: int) -> list[tuple[slice, Score, Params]]:
        """For each member that has heads: which heads, the member, its params."""
        return [
            (slice(i, heads, len(self.members)), member, params.get(f"{i}_{member.name}", {}))
            for i, member in enumerate(self.members[:heads])
        ]

    def join(self, outputs: list[Float[Array, "..."]], axis: int) -> Float[Array, "..."]:
        """Puts what the parts gave back into the order of heads."""
        heads = sum(output.shape[axis] for output in outputs)
        order = np.concatenate([np.arange(i, heads, len(self.members)) for i in range(len(outputs))])
        return jnp.take(jnp.concatenate(outputs, axis), np.argsort(order), axis=axis)

    def masked_weights(self, z, mask, params):
        heads = z.shape[-3]
        outputs = []
        for part, member, own in self.parts(params, heads):
            visible = mask if mask.shape[-3] == 1 else mask[..., part, :, :]
            outputs.append(member.masked_weights(z[..., part, :, :], visible, member.checked(own)))
        return self.join(outputs, axis=-3)

    def checked(self, params):
        # a mixed score with heads for its plain members only has nothing to learn
        return params or {}
