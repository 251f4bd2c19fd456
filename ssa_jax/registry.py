"""Names to parts: the one way in which functions, score functions, tasks, models and experiments are looked up."""

import dataclasses
import difflib
import inspect
from collections.abc import Callable
from typing import Any


def no_such(what: str, name: str, allowed: list[str] | tuple[str, ...]) -> ValueError:
    """The error for an unknown name: says what was asked for, the nearest match, and what there is."""
    near = difflib.get_close_matches(str(name), allowed, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ValueError(f"Unknown {what} {name!r}.{hint} Allowed: {', '.join(sorted(allowed))}.")


class Registry:
    """Builders by name. `get` refuses unknown names and unknown options with one clear error.

    >>> shapes = Registry("shape")
    >>> @shapes.register("square")
    ... def square(side=1.0):
    ...     return side**2
    >>> shapes.get("square", side=3.0)
    9.0
    """

    def __init__(self, kind: str):
        self.kind = kind
        self._builders: dict[str, Callable[..., Any]] = {}

    def register(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A decorator that adds a builder (function or dataclass) under `name`."""

        if name in self._builders:
            raise ValueError(f"{self.kind} {name!r} is registered already.")

        def add(builder: Callable[..., Any]) -> Callable[..., Any]:
            self._builders[name] = builder
            return builder

        return add

    def names(self) -> tuple[str, ...]:
        """All registered names, sorted."""
        return tuple(sorted(self._builders))

    def options(self, name: str) -> tuple[str, ...]:
        """The options that `get(name, ...)` takes."""
        builder = self.builder(name)
        if dataclasses.is_dataclass(builder):
            return tuple(field.name for field in dataclasses.fields(builder) if field.init)
        return tuple(inspect.signature(builder).parameters)

    def builder(self, name: str) -> Callable[..., Any]:
        """The registered builder; ValueError with the nearest match when there is none."""
        if name not in self._builders:
            raise no_such(self.kind, name, self.names())
        return self._builders[name]

    def get(self, name: str, **options: Any) -> Any:
        """Builds `name` with `options`; ValueError for an unknown name or option."""
        builder, allowed = self.builder(name), self.options(name)
        for option in options:
            if option not in allowed:
                raise no_such(f"option of {self.kind} {name!r}", option, allowed)
        return builder(**options)
