"""Where a benchmark's numbers go: the terminal, and its own section of the document of results."""

import argparse
import dataclasses
import datetime
import importlib.metadata
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import rich
import rich.markup

from ssa_jax.bench.torch_rivals import WAITING, cores
from ssa_jax.report.run_folder import environment, write_atomic
from ssa_jax.report.table import Table

DOCUMENT = Path("docs/results/performance.md")
_TITLE = "# Performance\n\nEach section is written by the command that it names; running that again replaces it.\n"


@dataclasses.dataclass(frozen=True)
class Part:
    """A table with what it shows; `notes` are sentences below it."""

    title: str
    table: Table
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """As it stands in the document."""
        return "\n".join([f"### {self.title}", "", self.table.markdown(), *(f"{note}\n" for note in self.notes)])


def arguments(description: str, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """`--quick` and `--results`: a smoke test writes nothing unless told where."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and few rounds: whether it runs, not how fast"
    )
    parser.add_argument("--results", type=Path, help=f"Markdown file to write (default {DOCUMENT}; none with --quick)")
    chosen = parser.parse_args(argv)
    if chosen.results is None and not chosen.quick:
        chosen.results = DOCUMENT
    return chosen


def show(part: Part) -> None:
    """Prints a table as soon as it is measured."""
    rich.print(part.table.rich(title=part.title))
    for note in part.notes:
        rich.print(rich.markup.escape(note))


def publish(path: Path | None, heading: str, parts: Sequence[Part]) -> None:
    """Writes the parts as the section `heading` of the document at `path`, in place of what stood there."""
    if path is None:
        return
    section = "\n".join([f"## {heading}", "", f"{conditions()}\n", *(part.markdown() for part in parts)])
    write_atomic(path, replace_section(path.read_text() if path.exists() else _TITLE, heading, section))
    rich.print(f"Written to {path}.")


def replace_section(document: str, heading: str, section: str) -> str:
    """The document with its section `## heading` replaced, or appended where it has none.

    >>> replace_section("# All\\n\\n## A\\n\\nold\\n\\n## B\\n\\nkept\\n", "A", "## A\\n\\nnew\\n")
    '# All\\n\\n## A\\n\\nnew\\n\\n## B\\n\\nkept\\n'
    """
    section = section.strip() + "\n"
    pattern = re.compile(rf"^## {re.escape(heading)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if not (found := pattern.search(document)):
        return f"{document.rstrip()}\n\n{section}"
    rest = document[found.end() :]
    return document[: found.start()] + section + (f"\n{rest}" if rest else "")


def conditions() -> str:
    """Command, device, cores, versions, commit and date, as two lines of Markdown."""
    here = environment()
    versions = here["versions"] | _rival_versions()
    module = sys.modules["__main__"].__spec__
    command = shlex.join(["python", "-m", module.name if module else "?", *sys.argv[1:]])
    kept = ", ".join(f"{name} {versions[name]}" for name in ("python", "jax", "torch", "entmax") if name in versions)
    waiting = f" ({WAITING}={os.environ[WAITING]})" if WAITING in os.environ else ""
    load = f"load average {os.getloadavg()[0]:.1f} at the end" if hasattr(os, "getloadavg") else ""
    return (
        f"`{command}`, {datetime.date.today():%Y-%m-%d}, commit `{here['commit'][:12]}`"
        f"{' with changes' if here['commit'].endswith('-dirty') else ''}.\n"
        f"{processor()}, {cores()} cores for XLA and as many threads for torch{waiting}; {kept}; {load}."
    )


def processor() -> str:
    """The accelerator's or the processor's name."""
    kind = environment()["devices"]["kind"]
    cpuinfo = Path("/proc/cpuinfo")
    if kind == "cpu" and cpuinfo.exists() and (found := re.search(r"model name\s*: (.*)", cpuinfo.read_text())):
        return found[1]
    return kind


def _rival_versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "entmax"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
