"""Several runs in one table, and where their pictures lie.

python -m ssa_jax.report runs/demo/parity runs/demo/modular_addition [--markdown] [--picture=functions.png]
"""

import argparse
from pathlib import Path

import rich

from ssa_jax.report import functions as report_functions
from ssa_jax.report import table


def main() -> None:
    """Prints accuracy and steps to the threshold of every condition of the given run folders."""
    parser = argparse.ArgumentParser(prog="python -m ssa_jax.report")
    parser.add_argument("folders", nargs="+", type=Path, help="run folders with a summary.json")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--picture", type=Path, help="draw the learned functions of all runs into this PNG")
    arguments = parser.parse_args()
    try:
        summaries = {folder: table.read_summary(folder) for folder in arguments.folders}
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if arguments.picture:
        report_functions.gallery(arguments.picture, arguments.folders)
    joint = table.joined({folder.name.replace("_", " "): summary for folder, summary in summaries.items()})
    if arguments.markdown:
        print(joint.markdown(), end="")
        return
    rich.print(joint.rich())
    for folder, summary in summaries.items():
        rich.print(f"[bold]{folder.name}[/bold]: {summary['verdict']}\n  {folder}/report.html, plots/, functions/")


if __name__ == "__main__":
    main()
