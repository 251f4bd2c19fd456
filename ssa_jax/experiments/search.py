"""Stage 1: learn an architecture, or load one that was learned before."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ssa_jax import functions
from ssa_jax.evaluation import curves
from ssa_jax.experiments import build
from ssa_jax.experiments.build import Config, Functions
from ssa_jax.experiments.session import Session
from ssa_jax.report import functions as report_functions
from ssa_jax.training.loop import Stage
from ssa_jax.training.step import example_batch


@dataclasses.dataclass(frozen=True)
class Source:
    """A learned architecture: its functions and their parameters, site by site.

    Sources of one `group` differ by the seed of their search only. `arch` may hold parameters of score functions too.
    """

    name: str
    group: str
    parts: Functions
    arch: Any
    support: dict[str, np.ndarray]
    facts: dict[str, Any]


def learned_functions(parts: Functions, arch: Any) -> dict[str, Any]:
    """Site -> parameters of its function, for every site of `arch` that holds one of `parts`."""
    return {site: next(iter(entry.values())) for site, entry in arch.items() if parts.at(site) is not None}


def roughness(parts: Functions) -> Callable[[Any], jax.Array]:
    """arch -> summed squared second differences of all its functions."""

    def penalty(arch: Any) -> jax.Array:
        return sum(parts.at(site).roughness(params) for site, params in learned_functions(parts, arch).items())

    return penalty


def search(session: Session, config: Config, group: str, seed: int, cost: str) -> Source:
    """Learns an architecture with `stage1.replicas` models and exports it to functions/GROUP-SEED."""
    name = f"{group}-{seed}"
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
    trained = session.train(stage, None, cost)
    arch = jax.device_get(trained.state.arch)
    examples = task.examples("validation")
    visits = _visits(model, arch, trained.state.weights, examples["inputs"])
    initial = jax.jit(lambda: model.init(jax.random.key(0), examples)["arch"])()
    before, facts, support = learned_functions(parts, initial), {}, {}
    for site, params in learned_functions(parts, arch).items():
        function = parts.at(site)
        support[site], outside = visits[site]["counts"], float(visits[site]["outside"])
        facts[site] = curves.describe(function, params, support[site]) | {"outside": outside}
        shape = function.shape  # a score function's parameters have an axis of heads before it
        now, start = ({"values": np.asarray(p["values"]).reshape(shape)} for p in (params, before[site]))
        report_functions.export(session.folder, f"{name}/{site}", function, now, start, support[site], outside)
    for site in arch.keys() - facts.keys():  # parameters of a score function, such as b and n of ssa
        (numbers,) = arch[site].values()
        facts[site] = {parameter: np.asarray(value).tolist() for parameter, value in numbers.items()}
        session.folder.write_json(f"scores/{name}/{site}.json", facts[site])
    return Source(name, group, parts, arch, support, facts)


def _visits(model: Any, arch: Any, weights: Any, inputs: jax.Array) -> dict[str, Any]:
    """Interval visits of all replicas together on `inputs`, and the mean fraction outside."""
    one = lambda w: model.visits({"params": w, "arch": arch}, inputs)
    everywhere = jax.tree.leaves(weights)[0].sharding.update(spec=jax.P())
    each = jax.device_get(jax.jit(lambda weights: jax.lax.map(one, weights), out_shardings=everywhere)(weights))
    finite = {site: np.isfinite(v["outside"]) & (v["counts"].sum(-1) > 0) for site, v in each.items()}
    return {
        site: {
            "counts": v["counts"].sum(0),
            "outside": v["outside"][finite[site]].mean() if finite[site].any() else 1.0,
        }
        for site, v in each.items()
    }


def load(config: Config) -> Source:
    """The architecture that `functions.load` names, fitted to the sites of the configured model.

    A folder functions/NAME of a run holds one file a site; a single .json serves the MLP's site; a .csv in the
    published layout holds the MLP functions of all layers, then the attention functions.
    """
    path = Path(config.functions.load)
    parts = build.functions_of(config)
    task = build.task_of(config)
    model = build.model_of(config, task, parts)
    sites = jax.eval_shape(lambda: model.init(jax.random.key(0), example_batch(task)))["arch"]
    if not sites:
        raise ValueError(f"functions.load {path}: the model has no learnable function to put it in. See functions.mlp.")
    found = _read(path, list(sites))
    if missing := [site for site in sites if site not in found]:
        raise ValueError(f"functions.load {path} has no function for {', '.join(missing)}; it has {', '.join(found)}.")
    by_place = {site.startswith("mlp"): function for site, (function, _) in found.items()}
    parts = dataclasses.replace(
        parts, mlp=by_place.get(True, parts.mlp), attention=by_place.get(False, parts.attention)
    )
    for site in sites:
        function, expected = found[site][0], parts.at(site)
        if not isinstance(function, functions.Spline):
            raise ValueError(f"functions.load {path}: {site} is a {function.name}; only splines can be loaded.")
        if expected is None or (function.shape, function.low, function.high) != (
            expected.shape,
            expected.low,
            expected.high,
        ):
            raise ValueError(f"functions.load {path}: {site} has other knots or range than its siblings.")
    arch = {}
    for site, entry in sites.items():
        (kind, like), (function, params) = next(iter(entry.items())), found[site]
        if params["values"].size != like["values"].size // like["values"].shape[-1] * function.knots:
            raise ValueError(f"functions.load {path}: {site} has {params['values'].shape} values, the model differs.")
        arch[site] = {kind: {"values": params["values"].reshape(*like["values"].shape[:-1], function.knots)}}
    facts = {site: curves.describe(*found[site], None) for site in sites}
    return Source("loaded", "loaded", parts, jax.device_get(arch), {}, facts)


def _read(path: Path, sites: list[str]) -> dict[str, tuple[Any, Any]]:
    if path.suffix == ".csv":
        rows = functions.read_csv(path)
        of_mlp = sum(site.startswith("mlp") for site in sites)
        if of_mlp == len(sites) and (len(rows) % 2 or len(rows) == of_mlp):
            return {site: _row(rows, site, path) for site in sites}  # a file without attention functions
        if len(rows) % 2:
            raise ValueError(f"functions.load {path}: {len(rows)} functions are not MLP and attention in equal number.")
        mlp, attention = rows[: len(rows) // 2], rows[len(rows) // 2 :]
        return {site: _row(mlp if site.startswith("mlp") else attention, site, path) for site in sites}
    if path.is_dir():
        root = path / "functions" if (path / "functions").is_dir() else path
        folders = sorted({file.parent for file in root.rglob("*.json")}) or [path]
        if len(folders) > 1:
            raise ValueError(
                f"functions.load {path} holds several searches: give one of {', '.join(map(str, folders))}."
            )
        files = sorted(folders[0].glob("*.json"))
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
