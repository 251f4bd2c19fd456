"""Learned functions as files: portable JSON, and CSV in the layout that the paper's authors publish."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ssa_jax.functions.catalogue import get
from ssa_jax.functions.spline import Spline

FORMAT, VERSION = "ssa_jax function", 1
Params = dict[str, Float[Array, "..."]]


@dataclass(frozen=True)
class Learned:
    """A function with its parameters: call it on an array.

    support is what `Spline.support` had returned when the file was written, or None.
    """

    function: Any
    params: Params
    support: Params | None = None

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.function.apply(self.params, x)


def save(path_stem: str | Path, function: Any, params: Params, support: Mapping[str, Array] | None = None) -> Path:
    """Writes `path_stem`.json and returns its path. `load` gives back float32 numbers bit for bit.

    Raises ValueError, and writes nothing, when params or support do not fit the function or are not finite.
    """
    path = Path(f"{path_stem}.json")
    numbers = {"params": _checked(path, "params", params, _shapes(function))}
    numbers["support"] = None if support is None else _checked(path, "support", support, _support_shapes(function))
    content = {"format": FORMAT, "version": VERSION, "name": function.name, "options": function.options(), **numbers}
    path.parent.mkdir(parents=True, exist_ok=True)
    # a run that is killed here, or a reader at this moment, never meets half a file
    unfinished = path.with_name(path.name + ".partial")
    unfinished.write_text(json.dumps(content, default=np.ndarray.tolist, allow_nan=False) + "\n")
    os.replace(unfinished, path)
    return path


def load(path: str | Path) -> Learned:
    """The function in a JSON file, or in a folder (or in the functions/ of a run folder) that holds exactly one.

    Raises ValueError, naming the file, when there is none or more than one, or when it is not to be trusted: not JSON,
    another format or version, unknown names or options, lengths that do not fit the knots, numbers that are not finite.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted([*path.glob("*.json"), *path.glob("functions/*.json")])
        found = [file for file in files if f'"{FORMAT}"' in file.read_text(errors="replace")[:200]]
        if len(found) != 1:
            listed = ", ".join(str(file.relative_to(path)) for file in found) or "none"
            raise ValueError(f"{path}: load needs a file, or a folder with exactly one function file; found {listed}.")
        path = found[0]
    try:
        content = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error}).") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path}: not a function file (its format is not {FORMAT!r}).")
    if content.get("version") != VERSION:
        raise ValueError(f"{path}: version {content.get('version')!r} of the format, where {VERSION} is known.")
    missing = {"name", "options", "params", "support"} - content.keys()
    if missing:
        raise ValueError(f"{path}: {', '.join(sorted(missing))} missing.")
    try:
        function = get(content["name"], **content["options"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    params, support = _checked(path, "params", content["params"], _shapes(function)), content["support"]
    if support is not None:
        support = jax.tree.map(jnp.asarray, _checked(path, "support", support, _support_shapes(function)))
    return Learned(function, jax.tree.map(jnp.asarray, params), support)


def write_csv(path: str | Path, splines: Iterable[tuple[Spline, Params]]) -> None:
    """Two lines for each spline, the knots' positions and their values, without a header: the published layout.

    Raises ValueError for per-channel splines, for params that do not fit, and for values that are not finite.
    """
    lines = []
    for spline, params in splines:
        if spline.channels is not None:
            raise ValueError(f"{path}: the layout has no channels; got {spline}.")
        values = _checked(path, "params", params, _shapes(spline))["values"]
        lines += [",".join(map(repr, numbers.tolist())) for numbers in (np.asarray(spline.grid()), values)]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(line + "\n" for line in lines))


def read_csv(path: str | Path) -> list[tuple[Spline, Params]]:
    """The splines of a CSV file in the published layout (see `write_csv`), as (spline, params), constant outside.

    Raises ValueError, naming file and line, for an odd number of lines, lengths that differ within a pair, what is
    not a finite number, and positions that are not evenly spaced and increasing.
    """
    lines = _text(Path(path)).split()
    if not lines or len(lines) % 2:
        raise ValueError(f"{path}: {len(lines)} lines; expected pairs of lines, positions and values.")
    splines = []
    for number in range(0, len(lines), 2):
        where = f"{path}: lines {number + 1} and {number + 2}"
        try:
            anchors, values = (np.array(line.split(","), np.float32) for line in lines[number : number + 2])
        except ValueError as error:
            raise ValueError(f"{where}: {error}.") from None
        if anchors.size != values.size or anchors.size < 2:
            raise ValueError(f"{where}: {anchors.size} positions, {values.size} values; expected as many, at least 2.")
        if not (np.isfinite(anchors).all() and np.isfinite(values).all()):
            raise ValueError(f"{where}: not all numbers are finite.")
        even = np.linspace(anchors[0], anchors[-1], anchors.size)
        if not anchors[0] < anchors[-1] or np.abs(anchors - even).max() > 1e-3 * (even[1] - even[0]):
            raise ValueError(f"{where}: positions must increase in even steps.")
        spline = Spline(anchors.size, float(anchors[0]), float(anchors[-1]), init="constant")
        splines.append((spline, {"values": jnp.asarray(values)}))
    return splines


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error}).") from None


def _shapes(function: Any) -> dict[str, tuple[int, ...]]:
    arrays = jax.eval_shape(lambda: function.init(jax.random.key(0)))
    return {name: array.shape for name, array in arrays.items()}


def _support_shapes(function: Any) -> dict[str, tuple[int, ...]]:
    return {"counts": (function.knots - 1,), "outside": ()} if isinstance(function, Spline) else {}


def _checked(path: Path, what: str, arrays: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """The arrays as float32, once their names, shapes and finiteness are what the function needs."""
    if not isinstance(arrays, Mapping) or arrays.keys() != shapes.keys():
        got = list(arrays) if isinstance(arrays, Mapping) else arrays
        raise ValueError(f"{path}: {what} must have the names {list(shapes)}; got {got}.")
    checked = {}
    for name, shape in shapes.items():
        try:
            with np.errstate(over="ignore"):  # what overflows is infinite, and refused below
                checked[name] = np.asarray(arrays[name], np.float32)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {what} {name!r} are not numbers ({error}).") from None
        if checked[name].shape != shape:
            raise ValueError(f"{path}: {what} {name!r} need shape {shape}; got {checked[name].shape}.")
        if not np.isfinite(checked[name]).all():
            raise ValueError(f"{path}: {what} {name!r} are not all finite.")
    return checked
