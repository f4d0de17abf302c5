#!/bin/sh
# Make .venv-clients, where the tests of tests/clients run: Python 3.12, torch 2.11, Isaac Lab, Jupyter and JAX.
set -eu
cd "$(dirname "$0")/.."
wanted=$(cat pyproject.toml tests/clients/requirements.txt scripts/slimtorch.py "$0" | cksum)
test "$(cat .venv-clients/.ready 2>/dev/null)" = "$wanted" && exit 0

python=
for one in ${PYTHON_clients:-} python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python; do
    "$one" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null && python=$one && break
done
test -n "$python" || { echo "Isaac Lab 3.0.0 needs Python 3.12: set PYTHON_clients, or run 'pyenv install 3.12'." >&2; exit 1; }

pip=".venv-clients/bin/python -m pip install --quiet --disable-pip-version-check --no-compile"
"$python" -m venv --clear .venv-clients
"$python" scripts/slimtorch.py 2.11.0 .venv-clients/bin/python
$pip -r tests/clients/requirements.txt -e ".[export]"
$pip --no-deps isaaclab==3.0.0 rl-games==1.6.5
echo "$wanted" > .venv-clients/.ready
