"""Stage 1: learn an architecture, or load one that was learned before."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ssa_jax import functions
from ssa_jax.evaluation import curves
from ssa_jax.experiments import build
from ssa_jax.experiments.build import Config, Functions
from ssa_jax.experiments.session import Session
from ssa_jax.report import functions as report_functions
from ssa_jax.training.loop import Stage


@dataclasses.dataclass(frozen=True)
class Source:
    """A learned architecture: where it came from, its functions and their parameters, site by site."""

    name: str
    parts: Functions
    arch: Any
    support: dict[str, np.ndarray]
    facts: dict[str, Any]


def learned_functions(arch: Any) -> dict[str, Any]:
    """Site -> parameters of its function, for every site of `arch` that holds a function."""
    held = {site: next(iter(entry.values())) for site, entry in arch.items()}
    return {site: params for site, params in held.items() if "values" in params}


def roughness(parts: Functions) -> Callable[[Any], jax.Array]:
    """arch -> summed squared second differences of all its functions."""

    def penalty(arch: Any) -> jax.Array:
        return sum(parts.at(site).roughness(params) for site, params in learned_functions(arch).items())

    return penalty


def search(session: Session, config: Config, name: str, seed: int) -> Source:
    """Learns an architecture with `stage1.replicas` models and exports it to functions/NAME."""
    task, parts, stage1 = build.task_of(config), build.functions_of(config), config.stage1
    model = build.model_of(config, task, parts)
    replicas = build.search_replicas(config, seed)
    stage = Stage(
        name=f"stage1/{name}",
        model=model,
        task=task,
        plan=build.search_plan(config, seed),
        replicas=replicas,
        steps=stage1.steps,
        eval_every=stage1.eval_every,
        eval_splits=("validation",),
        checkpoint_every=config.checkpoint_every,
        roughness=roughness(parts) if config.functions.smoothness else None,
    )
    trained = session.train(stage, None, "stage1")
    arch = jax.device_get(trained.state.arch)
    if not arch:
        raise ValueError("Stage 1 has nothing to learn: no function of the model is learnable. See functions.mlp.")
    visits = _visits(model, arch, trained.state.weights, task.examples("validation")["inputs"])
    initial = learned_functions(jax.jit(lambda: model.init(jax.random.key(0), task.examples("validation"))["arch"])())
    facts, support = {}, {}
    for site, params in learned_functions(arch).items():
        function = parts.at(site)
        support[site], outside = visits[site]["counts"], float(visits[site]["outside"])
        facts[site] = curves.describe(function, params, support[site]) | {"outside": outside}
        shape = function.shape  # a score function's parameters have an axis of heads before it
        now, before = ({"values": np.asarray(p["values"]).reshape(shape)} for p in (params, initial[site]))
        report_functions.export(session.folder, f"{name}/{site}", function, now, before, support[site], outside)
    return Source(name, parts, arch, support, facts)


def _visits(model: Any, arch: Any, weights: Any, inputs: jax.Array) -> dict[str, Any]:
    """Interval visits of all replicas together on `inputs`, and the mean fraction outside."""
    one = lambda w: model.visits({"params": w, "arch": arch}, inputs)
    everywhere = jax.tree.leaves(weights)[0].sharding.update(spec=jax.P())
    each = jax.device_get(jax.jit(lambda weights: jax.lax.map(one, weights), out_shardings=everywhere)(weights))
    return {site: {"counts": v["counts"].sum(0), "outside": v["outside"].mean()} for site, v in each.items()}


def load(config: Config) -> Source:
    """The architecture that `functions.load` names, fitted to the sites of the configured model.

    A folder functions/NAME of a run holds one file a site; a single .json serves the MLP's site; a .csv in the
    published layout holds the MLP functions of all layers, then the attention functions.
    """
    path = Path(config.functions.load)
    parts = build.functions_of(config)
    model = build.model_of(config, build.task_of(config), parts)
    sites = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32)))["arch"]
    found = _read(path, list(sites))
    if missing := [site for site in sites if site not in found]:
        raise ValueError(f"functions.load {path} has no function for {', '.join(missing)}; it has {', '.join(found)}.")
    by_place = {site.startswith("mlp"): function for site, (function, _) in found.items()}
    parts = Functions(by_place.get(True, parts.mlp), by_place.get(False, parts.attention), parts.attention_place)
    for site in sites:
        if found[site][0] != parts.at(site):
            raise ValueError(f"functions.load {path}: {site} has other knots or range than its siblings.")
    arch = {}
    for site, entry in sites.items():
        (kind, like), (function, params) = next(iter(entry.items())), found[site]
        if params["values"].size != like["values"].size // like["values"].shape[-1] * function.knots:
            raise ValueError(f"functions.load {path}: {site} has {params['values'].shape} values, the model differs.")
        arch[site] = {kind: {"values": params["values"].reshape(*like["values"].shape[:-1], function.knots)}}
    facts = {site: curves.describe(*found[site], None) for site in sites}
    return Source("loaded", parts, jax.device_get(arch), {}, facts)


def _read(path: Path, sites: list[str]) -> dict[str, tuple[Any, Any]]:
    if path.suffix == ".csv":
        rows = functions.read_csv(path)
        half = len(rows) // 2
        mlp, attention = rows[:half] or rows, rows[half:]
        return {site: _row(mlp if site.startswith("mlp") else attention, site, path) for site in sites}
    if path.is_dir():
        files = sorted(path.glob("*.json"))
        if not files:
            raise ValueError(f"functions.load {path} holds no function (*.json).")
        learned = {file.stem: functions.load(file) for file in files}
        return {site: (f.function, f.params) for site, f in learned.items()}
    learned = functions.load(path)
    return {site: (learned.function, learned.params) for site in sites if site.startswith("mlp")}


def _row(rows: list, site: str, path: Path) -> tuple[Any, Any]:
    where = site.rsplit("_", 1)[-1]
    index = {"all": 0, "first": 0, "last": -1}.get(where, int(where) if where.isdigit() else len(rows) // 2)
    same = all(np.array_equal(rows[0][1]["values"], row[1]["values"]) for row in rows)
    if where == "all" and not same:
        raise ValueError(f"{path} has a function for each layer; set functions.sharing to per_layer.")
    if index >= len(rows):
        raise ValueError(f"{path} has functions for {len(rows)} layers; the model's {site} needs more.")
    return rows[index]
