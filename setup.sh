#!/bin/sh
# Makes .venv, or makes it anew where it is stale: `make setup`, `make demo` and `make test` call it.
#
#   PYTHON=python3.12     the interpreter to use
#   TORCH=torch==2.13.0   the build of PyTorch to install; TORCH_INDEX=URL, where to find it
set -eu
cd "$(dirname "$0")"
PYTHON=${PYTHON:-python3}
TORCH=${TORCH:-torch==2.13.0}
TORCH_INDEX=${TORCH_INDEX:-}

fail() {
    echo "setup: $1" >&2
    exit 1
}

command -v "$PYTHON" >/dev/null ||
    fail "there is no $PYTHON; install Python 3.10 or newer (Debian, Ubuntu: apt install python3 python3-venv)"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$PYTHON is $("$PYTHON" -V), which is too old; name a newer one: make setup PYTHON=python3.12"
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$PYTHON has no venv; install it (Debian, Ubuntu: apt install python3-venv)"

# What the environment was made from: if any of it has changed, or the folder was moved, it is stale.
stamp="$(pwd) $("$PYTHON" -V) $TORCH $TORCH_INDEX $(cat setup.sh pyproject.toml requirements.lock | cksum)"
if [ "$(cat .venv/stamp 2>/dev/null)" = "$stamp" ] && .venv/bin/python -c '' 2>/dev/null; then
    exit 0
fi

echo "setup: making .venv with $("$PYTHON" -V) (a few minutes the first time)"
"$PYTHON" -m venv --clear .venv
pip() {
    .venv/bin/python -m pip --disable-pip-version-check "$@"
}
echo "setup: installing $TORCH"
# shellcheck disable=SC2086  # TORCH may be several words
pip install $TORCH ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} ||
    fail "could not install $TORCH; look at the message above, or name another build: make setup TORCH=..."
echo "setup: installing the other packages"
# The lock holds what was tested; a PyTorch of your choice is not held to it.
grep -v '^torch==' requirements.lock >.venv/constraints.txt
pip install --quiet --constraint .venv/constraints.txt --editable '.[dev]' ||
    fail "could not install the packages; look at the message above and run it again"
echo "$stamp" >.venv/stamp
echo "setup: done; run things with .venv/bin/python, or type: . .venv/bin/activate"
