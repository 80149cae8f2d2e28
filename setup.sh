#!/bin/sh
# Creates .venv, or recreates it when it is stale; `make setup`, `make demo` and `make test` call it.
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
    fail "$PYTHON was not found; install Python 3.10 or newer (Debian, Ubuntu: apt install python3 python3-venv)"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$PYTHON is $("$PYTHON" -V), but 3.10 or newer is needed: make setup PYTHON=python3.12"
"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$PYTHON has no venv module; install it (Debian, Ubuntu: apt install python3-venv)"

# What the environment is made from: it is stale if any of this changed, or the folder was moved.
stamp="$(pwd) $("$PYTHON" -V) $TORCH $TORCH_INDEX $(cat setup.sh pyproject.toml requirements.lock | cksum)"
if [ "$(cat .venv/stamp 2>/dev/null)" = "$stamp" ] && .venv/bin/python -c '' 2>/dev/null; then
    exit 0
fi

echo "setup: creating .venv with $("$PYTHON" -V) (a few minutes the first time)"
"$PYTHON" -m venv --clear .venv
pip() {
    .venv/bin/python -m pip --disable-pip-version-check "$@"
}
echo "setup: installing $TORCH"
# shellcheck disable=SC2086  # TORCH may be several words
pip install $TORCH ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} ||
    fail "could not install $TORCH; see the message above, or choose another build: make setup TORCH=..."
echo "setup: installing the other packages"
# The lock pins the tested versions, except PyTorch's: that is your choice.
grep -v '^torch==' requirements.lock >.venv/constraints.txt
extras=dev
[ ! -d staff ] || extras=dev,staff
pip install --quiet --constraint .venv/constraints.txt --editable ".[$extras]" ||
    fail "could not install the packages; see the message above, then run it again"
echo "$stamp" >.venv/stamp
echo "setup: done; use .venv/bin/python, or type: . .venv/bin/activate"
