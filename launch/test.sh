#!/usr/bin/env bash
# Sets up .venv and runs lint, the layer contract and the fast tests; arguments go to pytest (-m slow for the slow ones).
set -euo pipefail
. "$(dirname "$0")/setup.sh" dev
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/lint-imports --no-cache
.venv/bin/python -m pytest -n auto --dist loadscope "$@"
