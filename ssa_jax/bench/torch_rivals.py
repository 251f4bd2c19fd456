"""PyTorch's side of the comparisons; nothing here needs it until it is called."""

import functools as ft
import importlib.util
import math
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

Rival = Callable[..., Any]
WAITING = "OMP_WAIT_POLICY"


def cores() -> int:
    """The cores that this process may use: what XLA takes on a CPU, and what torch is given."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def why_not() -> str:
    """Why torch cannot be compared here; empty when it can, and then it has as many threads as XLA."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed (pip install -e '.[bench]')"
    if jax.default_backend() != "cpu":
        return f"torch's rivals run on the CPU, XLA on {jax.default_backend()}"
    # torch's threads spin while they wait: where another process holds a core, a step of small matrices took 80 times
    # as long as with sleeping ones. Read when torch is loaded; what the user set stays.
    os.environ.setdefault(WAITING, "passive")
    import torch

    torch.set_num_threads(cores())
    return ""


def tensor(x: Any, grad: bool = False) -> Any:
    """A torch tensor with a copy of an array."""
    import torch

    return torch.from_numpy(np.array(x)).requires_grad_(grad)


def on_threads(threads: int, work: Callable[[], Any]) -> Any:
    """work() with that many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    done = work()
    torch.set_num_threads(before)
    return done


def with_gradients(function: Rival, inputs: tuple, cotangent: Any) -> Callable[[], tuple]:
    """A call that returns function(*inputs) and the gradients of its product with the cotangent."""
    import torch

    def call() -> tuple:
        out = function(*inputs)
        return out.detach(), torch.autograd.grad(out, inputs, cotangent)

    return call


def forward_only(function: Rival, inputs: tuple) -> Callable[[], Any]:
    """A call that returns function(*inputs) without recording for gradients."""
    import torch

    def call() -> Any:
        with torch.no_grad():
            return function(*(x.detach() for x in inputs))

    return call


# --- attention: q, k, v [B, H, T, E], the layout that torch prefers; b and n [H] unconstrained, as softplus makes them


def fused_softmax(q: Any, k: Any, v: Any) -> Any:
    """Causal `scaled_dot_product_attention`, held to its fused kernel."""
    import torch

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _eager(weights: Rival, q: Any, k: Any, v: Any, b: Any, n: Any) -> Any:
    import torch

    z = q @ k.mT / math.sqrt(q.shape[-1])
    visible = torch.ones(z.shape[-2:], dtype=torch.bool).tril()
    softplus = torch.nn.functional.softplus
    return weights(z, visible, softplus(b)[:, None, None], 1 + softplus(n)[:, None, None]) @ v


def _power_weights(z: Any, visible: Any, b: Any, n: Any) -> Any:
    import torch

    base = 1 + b * z.abs()
    powers = torch.where(z >= 0, base**n, base**-n).masked_fill(~visible, 0)
    return powers / powers.sum(-1, keepdim=True)


def _log_weights(z: Any, visible: Any, b: Any, n: Any) -> Any:
    import torch

    log_weights = torch.sign(z) * n * torch.log1p(b * z.abs())
    return torch.softmax(log_weights.masked_fill(~visible, -math.inf), -1)


eager_ssa_power = ft.partial(_eager, _power_weights)
eager_ssa_log = ft.partial(_eager, _log_weights)


@ft.cache
def flex_ssa(length: int) -> Rival:
    """FlexAttention, compiled, with SSA as its score_mod and a causal block mask."""
    import torch
    from torch.nn.attention import flex_attention as flex

    mask = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="cpu")
    # without fullgraph a failed compilation would fall back to materialised scores, and we would measure those
    run = torch.compile(flex.flex_attention, fullgraph=True, dynamic=False)

    def attend(q: Any, k: Any, v: Any, b: Any, n: Any) -> Any:
        b, n = torch.nn.functional.softplus(b), 1 + torch.nn.functional.softplus(n)

        def ssa(z: Any, batch: Any, h: Any, i: Any, j: Any) -> Any:
            return torch.sign(z) * n[h] * torch.log1p(b[h] * z.abs())

        return run(q, k, v, score_mod=ssa, block_mask=mask)

    return attend


# --- splines


def spline(x: Any, values: Any, grid: Any) -> Any:
    """A linear spline by `torch.bucketize` and two gathers, constant outside the grid."""
    import torch

    inside = x.clamp(grid[0], grid[-1])
    index = (torch.bucketize(inside, grid) - 1).clamp(0, len(grid) - 2)
    left = values[index]
    return left + (inside - grid[index]) / (grid[1] - grid[0]) * (values[index + 1] - left)
