"""a + b (or a b) modulo p, for all pairs: two tokens, one answer."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Int

from ssa_jax.registry import no_such
from ssa_jax.tasks.base import Enumerated
from ssa_jax.tasks.registry import registry

OPERATIONS = {"add": jnp.add, "multiply": jnp.multiply}


@registry.register("modular_addition")
@dataclasses.dataclass(frozen=True, kw_only=True)
class ModularAddition(Enumerated):
    """Tokens a, b below p, answered by a + b mod p at the last position; (a, b) and (b, a) are two examples.

    `equals=True` appends '=' (token p), at which a Transformer answers. `operation` is 'add' or 'multiply'. p from 3
    to 1000. Zhong & Andreas (2024) take p = 199 and 95 % for training; 53 and 60 % are our setting.

    >>> task = ModularAddition(p=7, equals=True)
    >>> inputs, answer = task.example(jnp.array([5 * 7 + 4]))
    >>> inputs.tolist(), answer.tolist()
    ([[5, 4, 7]], [2])
    """

    p: int = 53
    operation: str = "add"
    equals: bool = False

    name: ClassVar[str] = "modular_addition"

    def __post_init__(self) -> None:
        if not 3 <= self.p <= 1000:
            raise ValueError(f"p = {self.p}: from 3 to 1000.")
        if self.operation not in OPERATIONS:
            raise no_such("operation", self.operation, tuple(OPERATIONS))
        super().__post_init__()

    @property
    def vocab_size(self) -> int:
        return self.p + self.equals

    @property
    def outputs(self) -> int:
        return self.p

    @property
    def length(self) -> int:
        return 2 + self.equals

    @property
    def count(self) -> int:
        return self.p**2

    def example(self, index: Int[Array, "B"]) -> tuple[Int[Array, "B T"], Int[Array, "B"]]:
        a, b = index // self.p, index % self.p
        tokens = (a, b, jnp.full_like(a, self.p)) if self.equals else (a, b)
        return jnp.stack(tokens, axis=-1), OPERATIONS[self.operation](a, b) % self.p

    def token_text(self, token: int) -> str:
        return "=" if token == self.p else str(token)
