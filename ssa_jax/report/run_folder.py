"""The run folder: everything that a run leaves, written so that a kill at any moment harms nothing."""

import contextlib
import dataclasses
import datetime
import errno
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

_VERSIONS = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def is_writer() -> bool:
    """Whether this process writes: process 0 of a job. All others may read."""
    return jax.process_index() == 0


def plain(value: Any) -> Any:
    """The value as JSON knows it: arrays become lists, tuples lists, paths strings, non-finite floats None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return plain(np.asarray(value).tolist())
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turns an operating system's error into one that says which file, and that the rest is safe."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(
            error.errno or errno.EIO,
            f"Cannot write {path}: {reason}. What was saved before is intact. "
            "Make room or fix the permissions and give the same command again: it resumes",
        ) from error


def write_atomic(path: str | os.PathLike, data: str | bytes) -> None:
    """Writes a file whole or not at all: a reader sees the old content or the new. Process 0 only.

    Raises OSError with the path when the disk is full or not writable; the old content stays.
    """
    if not is_writer():
        return
    path = Path(path)
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")  # one writer, so a kill leaves one such file at most
        try:
            with open(temporary, "wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def environment() -> dict[str, Any]:
    """Where a run takes place: git commit of this package, versions, devices of the whole job."""
    devices = jax.devices()
    return {
        "commit": _commit(),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _VERSIONS},
        "devices": {
            "platform": devices[0].platform,
            "kind": devices[0].device_kind,
            "count": len(devices),
            "processes": jax.process_count(),
        },
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _commit() -> str:
    """The git commit of the code, with '-dirty' when files were changed since; 'unknown' outside git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested dict as {'stage1.replicas': 8, ...}.

    >>> flat({"stage1": {"replicas": 8, "lr": 0.01}, "seed": 0})
    {'stage1.replicas': 8, 'stage1.lr': 0.01, 'seed': 0}
    """
    leaves = {}
    for key, value in tree.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return leaves


class _Absent:
    def __repr__(self) -> str:
        return "absent"


_ABSENT = _Absent()


def changed_fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Every field that differs, as 'field: old -> new'.

    >>> changed_fields({"stage1": {"replicas": 8}}, {"stage1": {"replicas": 4}, "seed": 0})
    ['seed: absent -> 0', 'stage1.replicas: 8 -> 4']
    """
    old, new = flat(old), flat(new)
    pairs = {field: (old.get(field, _ABSENT), new.get(field, _ABSENT)) for field in sorted(old.keys() | new.keys())}
    return [f"{field}: {a!r} -> {b!r}" for field, (a, b) in pairs.items() if a != b]


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """A run's folder. Reading works anywhere (`RunFolder(path)`); a run opens its own with `open_run`.

    `path` may be given as a string; it is made absolute. ValueError for a URL such as gs://...
    """

    path: Path

    def __post_init__(self) -> None:
        if "://" in str(self.path):
            raise ValueError(f"workdir {str(self.path)!r} is a URL; give a folder of a mounted file system.")
        object.__setattr__(self, "path", Path(self.path).expanduser().resolve())

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def log(self, record: Mapping[str, Any]) -> None:
        """Appends one record to metrics.jsonl, whole and flushed; non-finite numbers become null. Process 0 only.

        Raises OSError with the path when the disk is full; the records before stay readable.
        """
        if not is_writer():
            return
        line = (json.dumps(plain(record), allow_nan=False) + "\n").encode()
        with _naming(self.metrics), open(self.metrics, "ab", buffering=0) as file:
            start = file.tell()
            try:
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(start)
                raise

    def records(self, stage: str | None = None) -> list[dict[str, Any]]:
        """The records so far, in order, of one stage or of all. A last line that a kill tore is left out.

        Raises ValueError with the line's number when a line before it is not a record.
        """
        records = []
        for number, line in enumerate(self._whole_lines(), start=1):
            try:
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise ValueError("no record")
            except ValueError as error:
                raise ValueError(
                    f"{self.metrics}, line {number} is not a record: {line[:80]!r}. The file was changed from outside; "
                    "start again in another workdir."
                ) from error
            records.append(record)
        return [record for record in records if stage is None or record.get("stage") == stage]

    def truncate(self, stage: str, step: int) -> None:
        """Drops the records of `stage` beyond `step`, and a torn last line: a resumed run logs them again."""
        beyond = [r.get("stage") == stage and (r.get("step") or 0) > step for r in self.records()]
        self._rewrite([line for line, drop in zip(self._whole_lines(), beyond, strict=True) if not drop])

    def write_json(self, name: str, value: Any) -> None:
        """Writes `name` (such as 'summary.json') atomically; arrays and non-finite numbers as `plain` says."""
        write_atomic(self.path / name, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")

    def read_json(self, name: str) -> Any:
        """Reads `name`; FileNotFoundError when the run has not written it, ValueError when it is not JSON."""
        try:
            return json.loads((self.path / name).read_text())
        except ValueError as error:
            raise ValueError(f"{self.path / name} is not JSON: {error}.") from error

    def _whole_lines(self) -> list[bytes]:
        if not self.metrics.exists():
            return []
        return self.metrics.read_bytes().split(b"\n")[:-1]  # what follows the last newline is a torn record

    def _rewrite(self, lines: list[bytes]) -> None:
        data = b"".join(line + b"\n" for line in lines)
        if self.metrics.exists() and self.metrics.stat().st_size != len(data):
            write_atomic(self.metrics, data)


def open_run(workdir: str | os.PathLike, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> RunFolder:
    """Opens the run folder of a new run, or of the same run again, and records what runs where in config.json.

    Args:
        workdir: the folder; made when absent. Relative paths are resolved at once.
        config: the resolved config as nested dicts.
        overrides: what the user gave on the command line.

    Raises ValueError that lists every changed field as 'field: old -> new' when the folder holds a run with
    another config. Another environment (devices, versions, commit) is no refusal: it joins `history`.
    """
    run = RunFolder(workdir)
    config, here = plain(config), plain(environment())
    if (run.path / "config.json").exists():
        record = run.read_json("config.json")
        if not isinstance(record, dict) or not {"config", "history", "environment"} <= record.keys():
            raise ValueError(f"{run.path / 'config.json'} is not a run's config. Give another workdir.")
        if changed := changed_fields(record["config"], config):
            raise ValueError(
                f"{run.path} holds a run with another config. Changed:\n  "
                + "\n  ".join(changed)
                + "\nGive another workdir, or the old values to resume."
            )
        if here != (record["history"] or [record])[-1]["environment"]:
            record["history"].append({"time": _now(), "environment": here})
            run.write_json("config.json", record)
    else:
        if left := [name for name in ("checkpoints", "metrics.jsonl") if (run.path / name).exists()]:
            raise ValueError(
                f"{run.path} holds {' and '.join(left)} of a run without config.json. Give another workdir."
            )
        seeds = {field: value for field, value in flat(config).items() if "seed" in field.rsplit(".", 1)[-1]}
        record = {"config": config, "overrides": overrides, "seeds": seeds, "time": _now(), "environment": here}
        run.write_json("config.json", record | {"history": []})
    if is_writer():
        run._rewrite(run._whole_lines())  # the next record must not be glued to a torn one
    return run


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
