"""Learning-rate schedules as multipliers in [0, 1] of a replica's age in steps."""

from collections.abc import Callable

import optax

from ssa_jax.registry import no_such

SCHEDULES = ("constant", "cosine", "linear", "trapezoid")


def schedule(kind: str, steps: int, warmup: int = 0, floor: float = 0.0, cooldown: float = 0.5) -> Callable:
    """Multiplier after a linear warm-up over `warmup` steps: age -> [floor, 1].

    constant: 1. cosine, linear: fall from 1 to `floor` at `steps`. trapezoid: 1, then linear to `floor` over the
    last `cooldown` fraction of `steps`.

    >>> [round(float(schedule("trapezoid", 100, warmup=10)(age)), 2) for age in (0, 9, 50, 75, 100)]
    [0.1, 1.0, 1.0, 0.5, 0.0]
    """
    if kind == "constant":
        body = optax.constant_schedule(1.0)
    elif kind == "cosine":
        body = optax.cosine_decay_schedule(1.0, max(steps - warmup, 1), alpha=floor)
    elif kind == "linear":
        body = optax.linear_schedule(1.0, floor, max(steps - warmup, 1))
    elif kind == "trapezoid":
        length = max(int(cooldown * steps), 1)
        body = optax.linear_schedule(1.0, floor, length, transition_begin=max(steps - warmup - length, 0))
    else:
        raise no_such("schedule", kind, SCHEDULES)
    if warmup <= 1:
        return body
    return optax.join_schedules([optax.linear_schedule(1 / warmup, 1.0, warmup - 1), body], [warmup])
