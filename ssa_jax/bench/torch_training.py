"""Stage 1 as a plain torch program: a Python loop over the models, one spline shared by all, the same sizes as ours.

The models read our weights by our names, so that a test can hold both to the same loss and gradients. They are plain
functions: a loop over `torch.nn.Module`s has the work of their calls on top.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from ssa_jax.bench.torch_rivals import spline, tensor

Tensors = dict[str, Any]


def from_flax(params: Mapping[str, Any], prefix: str = "") -> Tensors:
    """Our weights as torch leaves by path; kernels become [out, in], as `torch.nn.functional.linear` takes them."""
    found = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            found |= from_flax(value, f"{prefix}{name}/")
        else:
            array = np.asarray(value)
            found[prefix + name] = tensor(array.T.copy() if name == "kernel" else array, grad=True)
    return found


def logits(w: Tensors, values: Any, inputs: Any, grid: Any, layers: int, heads: int, answers: int | None) -> Any:
    """A causal pre-norm decoder with RMSNorm, learned positions and the spline in its MLPs: [B, A, outputs].

    With `answers` the last layer works on the last A positions only, as ours does; None reads all positions.
    """
    import torch

    linear = torch.nn.functional.linear

    def dense(x: Any, name: str) -> Any:
        return linear(x, w[f"{name}/kernel"], w.get(f"{name}/bias"))

    def norm(x: Any, name: str) -> Any:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], w[f"{name}/scale"], eps=1e-6)

    def split(x: Any) -> Any:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def attention(x: Any, last: int, name: str) -> Any:
        q, k, v = (
            split(dense(x[:, -last:], f"{name}/query")),
            *(split(dense(x, f"{name}/{part}")) for part in ("key", "value")),
        )
        T = x.shape[1]
        late = None if last == T else torch.ones(T, T, dtype=torch.bool).tril()[-last:]
        attend = torch.nn.functional.scaled_dot_product_attention
        out = attend(q, k, v, attn_mask=late, is_causal=late is None)
        return dense(out.transpose(1, 2).flatten(2), f"{name}/out")

    x = torch.nn.functional.embedding(inputs, w["embedding/embedding"]) + w["positions"][: inputs.shape[1]]
    for layer in range(layers):
        name = f"block_{layer}"
        last = answers if answers and layer == layers - 1 else x.shape[1]
        x = x[:, -last:] + attention(norm(x, f"{name}/norm_attention"), last, f"{name}/attention")
        hidden = dense(norm(x, f"{name}/norm_mlp"), f"{name}/mlp/in")
        x = x + dense(spline(hidden, values, grid), f"{name}/mlp/out")
    return linear(norm(x, "norm_final"), w["readout/kernel"])


def loss(scores: Any, targets: Any, mask: Any) -> Any:
    """Mean cross-entropy over the masked targets of the last positions that the logits cover."""
    import torch

    answers = scores.shape[1]
    hidden = torch.where(mask[:, -answers:], targets[:, -answers:], -100)  # what cross_entropy leaves out
    return torch.nn.functional.cross_entropy(scores.flatten(0, 1), hidden.flatten())


def examples(task: Any, split: str, count: int = 4096) -> Tensors:
    """A pool of examples to draw batches from: a plain program keeps its data in memory."""
    import torch

    batch = task.batch(jax.random.key(0), split, count)
    pool = {name: tensor(batch[name]) for name in ("inputs", "targets", "mask")}
    return pool | {name: pool[name].to(torch.int64) for name in ("inputs", "targets")}


def draw(pool: Tensors, size: int) -> Tensors:
    """A batch with replacement."""
    import torch

    index = torch.randint(len(pool["inputs"]), (size,))
    return {name: array[index] for name, array in pool.items()}


def search_loop(
    weights: list[Tensors], values: Any, grid: Any, pools: tuple[Tensors, Tensors], batch_size: int, **sizes: Any
) -> Callable[[], None]:
    """A call that makes one step of stage 1: every model learns its weights, then all the knots' values once.

    AdamW and Adam are torch's fused ones; sizes are those of `logits`.
    """
    import torch

    optimizers = [_adamw(model) for model in weights]
    of_values = torch.optim.Adam([values], lr=0.02, betas=(0.99, 0.999), fused=True)

    def step() -> None:
        held_out, total = draw(pools[1], batch_size), torch.zeros_like(values)
        for model, optimizer in zip(weights, optimizers, strict=True):
            batch, leaves = draw(pools[0], batch_size), list(model.values())
            scores = logits(model, values.detach(), batch["inputs"], grid, **sizes)
            gradients = torch.autograd.grad(loss(scores, batch["targets"], batch["mask"]), leaves)
            scores = logits(model, values, held_out["inputs"], grid, **sizes)
            total += torch.autograd.grad(loss(scores, held_out["targets"], held_out["mask"]), values)[0]
            for leaf, gradient in zip(leaves, gradients, strict=True):
                leaf.grad = gradient
            torch.nn.utils.clip_grad_norm_(leaves, 1.0)
            optimizer.step()
        values.grad = total / len(weights)
        of_values.step()

    return step


def _adamw(model: Tensors) -> Any:
    import torch

    matrices, rest = ([x for x in model.values() if (x.ndim >= 2) == wide] for wide in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.98), fused=True)
