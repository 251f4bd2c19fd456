"""Every config file: it loads, passes the checks, says how to run it, and its fields are those of the default."""

import ast
import importlib
from pathlib import Path

import pytest

from configs import default
from ssa_jax.experiments import EXPERIMENTS, build
from ssa_jax.report.run_folder import flat

FOLDER = Path(default.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))
PARTS = ("task", "model", "functions.mlp", "functions.attention", "variants", "targets")


def loaded(name):
    return importlib.import_module(f"configs.{name}").get_config()


@pytest.mark.parametrize("name", NAMES)
def test_config_can_be_run(name):
    config = loaded(name)
    assert config.experiment in EXPERIMENTS
    build.check(config)


@pytest.mark.parametrize("name", NAMES)
def test_config_invents_no_field(name):
    plain = lambda fields: {f for f in flat(fields.to_dict()) if not f.startswith(PARTS)}
    assert plain(loaded(name)) == plain(default.get_config())


@pytest.mark.parametrize("name", NAMES)
def test_docstring_gives_the_command(name):
    text = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text()))
    assert f"python -m ssa_jax.main --config=configs/{name}.py" in text


def test_every_field_of_the_default_is_explained():
    """Each line that sets a field carries a comment; only those that open a group do not."""
    lines = (FOLDER / "default.py").read_text().split("    return ml_collections.ConfigDict(\n")[-1].splitlines()
    fields = [line.strip() for line in lines if "=" in line and not line.rstrip().endswith("dict(")]
    assert len(fields) > 30
    assert [line for line in fields if "#" not in line] == []
