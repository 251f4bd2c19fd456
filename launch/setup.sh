# Sourced by the other scripts: a virtual environment .venv that holds what requirements.txt asks for.
# usage: . launch/setup.sh [EXTRA]
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if ! .venv/bin/python -m pip --version > /dev/null 2>&1; then  # absent, or its making was interrupted
  "${PYTHON:-python3}" -m venv .venv
fi
wanted="$(cat requirements.txt pyproject.toml | cksum)"
installed=".venv/installed-${1:-base}"
if [ "$(cat "$installed" 2>/dev/null)" != "$wanted" ]; then
  echo "Installing into .venv (about a minute) …"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${1:+[$1]}"
  echo "$wanted" > "$installed"
fi
