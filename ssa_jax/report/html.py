"""report.html: one file that says what was asked, what came out, and what it cost; pictures are inside it."""

import base64
import html
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssa_jax.report import table
from ssa_jax.report.run_folder import RunFolder, flat, is_writer, write_atomic

_STYLE = """
:root { --ink: #222; --quiet: #6b6b6b; --line: #e3e3e3; --accent: #0072b2; --wash: #f3f8fb; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff; font: 16px/1.55 system-ui, "DejaVu Sans", sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 1rem; }
h1 .note { font-size: 1.1rem; font-weight: 400; margin-left: .4rem; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .6rem; }
.verdict { margin: 0; padding: .9rem 1.1rem; font-size: 1.1rem; }
.verdict { background: var(--wash); border-left: 4px solid var(--accent); }
.note, figcaption, footer { color: var(--quiet); font-size: .88rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .94rem; }
th, td { padding: .42rem .7rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: bottom; }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead th { border-bottom: 2px solid var(--ink); font-weight: 600; }
tr.learned { font-weight: 600; background: var(--wash); }
table.fields td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
table.fields td:first-child { color: var(--quiet); width: 16rem; }
figure { margin: 0 0 1.6rem; }
img { max-width: min(100%, 46rem); height: auto; display: block; }
details { margin-top: .8rem; }
summary { cursor: pointer; color: var(--accent); }
pre { background: #f7f7f7; padding: 1rem; overflow-x: auto; font-size: .82rem; line-height: 1.45; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .8rem; }
"""


def write_report(run_folder: RunFolder | str | os.PathLike) -> Path:
    """Writes report.html from what lies in the run folder and returns its path. Process 0 only.

    It needs config.json and summary.json and shows every picture of plots/ and functions/. It refers to
    nothing outside itself. FileNotFoundError when the run has no summary yet.
    """
    run = run_folder if isinstance(run_folder, RunFolder) else RunFolder(run_folder)
    path = run.path / "report.html"
    if is_writer():
        write_atomic(path, _page(run, table.read_summary(run), run.read_json("config.json")))
    return path


def _page(run: RunFolder, summary: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    title = str(summary["experiment"]).replace("_", " ")
    resumed = f" Environments since: {len(config['history'])} (config.json)." if config["history"] else ""
    parts = [
        f'<h1>{_text(title)} <span class="note">{_text(run.path.name)}</span></h1>',
        f'<p class="verdict">{_text(_verdict(summary["verdict"]))}</p>',
        "<h2>Results</h2>",
        _table(table.comparison(summary)),
        '<p class="note">Mean over fresh seeds with its 95 % interval; steps to a threshold are the median over '
        "all seeds, and (reached/all) says how many got there. One model-step is one step of one model.</p>",
        _pictures("Plots", run.path / "plots"),
        _pictures("Learned functions", run.path / "functions"),
        "<h2>Cost</h2>",
        _table(table.costs(summary)),
        "<h2>Configuration</h2>",
        _fields(config["overrides"]) if config["overrides"] else '<p class="note">Nothing was overridden.</p>',
        f"<details><summary>All fields</summary>{_code(config['config'])}</details>",
        "<h2>Environment</h2>",
        _fields(flat(summary["environment"])),
        f"<footer>Begun {_text(config['time'])}.{resumed} Numbers by seed: summary.json; "
        "over time: metrics.jsonl.</footer>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}, {_text(run.path.name)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _text(value: Any) -> str:
    return html.escape(value if isinstance(value, str) else json.dumps(value))


def _verdict(verdict: Any) -> str:
    """A verdict is a sentence, or a dict of named findings."""
    if isinstance(verdict, Mapping):
        return "; ".join(f"{name.replace('_', ' ')}: {finding}" for name, finding in verdict.items())
    return str(verdict)


def _table(cells: table.Table) -> str:
    def row(tag: str, values: tuple[str, ...]) -> str:
        return "".join(f"<{tag}>{_text(value)}</{tag}>" for value in values)

    kinds = [' class="learned"' if table.is_learned(values[0]) else "" for values in cells.rows]
    body = "\n".join(f"<tr{kind}>{row('td', values)}</tr>" for kind, values in zip(kinds, cells.rows, strict=True))
    head = f"<thead><tr>{row('th', cells.header)}</tr></thead>"
    return f'<div class="scroll"><table>\n{head}\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _fields(fields: Mapping[str, Any]) -> str:
    rows = "\n".join(f"<tr><td>{_text(name)}</td><td>{_text(value)}</td></tr>" for name, value in fields.items())
    return f'<table class="fields"><tbody>\n{rows}\n</tbody></table>'


def _pictures(heading: str, folder: Path) -> str:
    """All pictures of a folder and of those in it, each with its name below."""
    figures = []
    for path in sorted(folder.rglob("*.png")):
        name = _text(path.relative_to(folder).with_suffix("").as_posix().replace("_", " "))
        data = base64.b64encode(path.read_bytes()).decode()
        image = f'<img alt="{name}" src="data:image/png;base64,{data}">'
        figures.append(f"<figure>{image}<figcaption>{name}</figcaption></figure>")
    inside = "\n".join(figures)
    return f"<h2>{heading}</h2>\n{inside}" if figures else ""


def _code(tree: Mapping[str, Any]) -> str:
    return f"<pre>{_text(json.dumps(tree, indent=2))}</pre>"
