"""Is the number of ones odd? All strings of `bits` bits, read as tokens 0 and 1."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Int

from ssa_jax.tasks.base import Enumerated
from ssa_jax.tasks.registry import registry


@registry.register("parity")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Parity(Enumerated):
    """The sum of the bits modulo 2, answered at the last bit. `bits` from 2 to 20; our setting.

    >>> inputs, answer = Parity(bits=4).example(jnp.array([0b1011, 0b0110]))
    >>> inputs.tolist(), answer.tolist()
    ([[1, 0, 1, 1], [0, 1, 1, 0]], [1, 0])
    """

    bits: int = 10

    name: ClassVar[str] = "parity"
    vocab_size: ClassVar[int] = 2
    outputs: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 20:
            raise ValueError(f"bits = {self.bits}: from 2 to 20.")
        super().__post_init__()

    @property
    def length(self) -> int:
        return self.bits

    @property
    def count(self) -> int:
        return 2**self.bits

    def example(self, index: Int[Array, "B"]) -> tuple[Int[Array, "B T"], Int[Array, "B"]]:
        bits = index[:, None] >> jnp.arange(self.bits - 1, -1, -1) & 1
        return bits, bits.sum(-1) % 2
