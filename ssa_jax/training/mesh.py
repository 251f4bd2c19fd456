"""Where a step runs: one mesh with axes (replica, data, model), and how a function is applied to every replica."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ssa_jax.registry import no_such

AXES = ("replica", "data", "model")
MAPPINGS = ("auto", "vmap", "map")


def make_mesh(replicas: int, data: int = 1, model: int = 1, devices: list[jax.Device] | None = None) -> Mesh:
    """The mesh for `replicas` models: data x model devices a replica group, the rest along `replica`.

    The replica axis is the largest divisor of `replicas` that the devices left over allow. ValueError when
    data x model does not divide the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    if len(devices) % (data * model):
        raise ValueError(f"mesh.data {data} x mesh.model {model} does not divide the {len(devices)} devices.")
    groups = len(devices) // (data * model)
    along = max(d for d in range(1, groups + 1) if replicas % d == 0)
    used = devices[: along * data * model]
    if len({d.process_index for d in used}) < len({d.process_index for d in devices}):
        raise ValueError(f"{replicas} replicas use {len(used)} of {len(devices)} devices and leave a host without one.")
    return jax.make_mesh((along, data, model), AXES, axis_types=(AxisType.Auto,) * 3, devices=used)


def resolve_mapping(mapping: str) -> str:
    """'vmap' or 'map'; 'auto' takes map on a CPU, where small matmuls one after another are as fast, vmap elsewhere."""
    if mapping not in MAPPINGS:
        raise no_such("replica mapping", mapping, MAPPINGS)
    if mapping == "auto":
        return "map" if jax.default_backend() == "cpu" else "vmap"
    return mapping


def locally(f: Callable, mapping: str, mesh: Mesh) -> Callable:
    """f(shared, *arguments of one replica) over a device's own replicas: all at once (vmap), or one after another
    (map: the memory of one replica). Replicas that are spread over devices themselves always go all at once."""

    def local(shared: Any, *arguments: Any) -> Any:
        if mapping == "vmap" or not _whole(mesh):
            return jax.vmap(lambda *one: f(shared, *one), spmd_axis_name=None if _whole(mesh) else "replica")(
                *arguments
            )
        return jax.lax.map(lambda one: f(shared, *one), arguments)

    return local


def _whole(mesh: Mesh) -> bool:
    """Whether each replica lies on one device."""
    return mesh.size == mesh.shape["replica"]


def per_device(f: Callable, mesh: Mesh) -> Callable:
    """f(shared, *arguments of a device's replicas) for arguments whose leading axis R lies over `replica`.

    Devices work without any communication. Where a replica is spread over the axes `data` and `model`, f sees all
    replicas and the compiler divides the work.
    """
    if mesh.shape["replica"] == 1 or not _whole(mesh):
        return f
    along, everywhere = PartitionSpec("replica"), PartitionSpec()

    def split(shared: Any, *arguments: Any) -> Any:
        specs = (everywhere, *[along] * len(arguments))
        return jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=along, check_vma=False)(shared, *arguments)

    return split


def over_replicas(f: Callable, mapping: str, mesh: Mesh) -> Callable:
    """f(shared, *arguments of one replica) for arguments with a leading axis R over `replica`."""
    return per_device(locally(f, mapping, mesh), mesh)


def weights_sharding(mesh: Mesh, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
    """R over `replica`; the last axis of matrices over `model` where it divides."""
    parts = mesh.shape["model"]
    split = leaf.ndim >= 3 and parts > 1 and leaf.shape[-1] % parts == 0
    spec = ("replica", *[None] * (leaf.ndim - 2), "model") if split else ("replica",)
    return NamedSharding(mesh, PartitionSpec(*spec))


def shared_sharding(mesh: Mesh) -> NamedSharding:
    """The same on every device."""
    return NamedSharding(mesh, PartitionSpec())


def split_batch(batch: Any, mesh: Mesh) -> Any:
    """A replica's batch over the devices of its `data` axis."""
    if mesh.shape["data"] == 1:
        return batch
    return jax.lax.with_sharding_constraint(batch, NamedSharding(mesh, PartitionSpec("data")))
