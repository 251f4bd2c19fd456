"""Flags to `experiments.run(config, workdir)`.

python -m ssa_jax.main --config=configs/parity.py --workdir=runs/parity --config.stage1.replicas=8
"""

import logging
import sys
from pathlib import Path

import jax
import rich
from absl import app, flags
from ml_collections import config_flags
from rich.logging import RichHandler

from ssa_jax import experiments
from ssa_jax.report import table
from ssa_jax.training.preemption import Preempted

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "Config file; fields are overridden as --config.FIELD=VALUE.", lock_config=True
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Run folder; the same call with the same folder resumes.")
_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "Join the other hosts of this job first (jax.distributed).")


def main(_: list[str]) -> None:
    logging.basicConfig(
        level=logging.WARNING, format="%(message)s", handlers=[RichHandler(show_path=False)], force=True
    )
    logging.getLogger("ssa_jax").setLevel(logging.INFO)
    if _DISTRIBUTED.value:
        jax.distributed.initialize()
    overrides = config_flags.get_override_values(flags.FLAGS["config"])
    try:
        summary = experiments.run(_CONFIG.value, _WORKDIR.value, overrides)
    except (ValueError, OSError) as error:
        sys.exit(f"ssa_jax: {error}")
    except Preempted as stopped:
        logging.getLogger(__name__).warning(stopped.message)
        raise
    if jax.process_index() == 0:
        folder = Path(_WORKDIR.value)
        rich.print(table.comparison(summary).rich(title=summary["verdict"]))
        rich.print(f"Pictures: {folder / 'plots'}, {folder / 'functions'}. Report: {folder / 'report.html'}.")


def run() -> None:
    """The console entry point."""
    sys.path.insert(0, ".")  # configs import each other from the folder of the call
    flags.mark_flags_as_required(["config", "workdir"])
    app.run(main, flags_parser=_parse)


def _parse(arguments: list[str]) -> list[str]:
    try:
        return flags.FLAGS(arguments)
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:  # an unknown field, a missing file, …
        sys.exit(f"ssa_jax: {error}")


if __name__ == "__main__":
    run()
