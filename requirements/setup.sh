#!/bin/sh
# Makes .venv in the checkout: requirements/setup.sh run|test
#   run    what the gateway and its demo engine need
#   test   that, and what the checks and the suite need
# Everything comes from the hashed files in this folder. Repeating it costs nothing while they are unchanged.
set -eu
what=${1:?"run or test"}
cd "$(dirname "$0")/.."

find_python() {
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "FastLLM needs Python 3.11 or newer; none was found (set PYTHON=/path/to/python3)." >&2
    exit 1
}

if ! .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    rm -rf .venv
    if ! "$(find_python)" -m venv .venv; then
        rm -rf .venv
        echo "Could not make .venv. On Debian and Ubuntu the module comes with: apt-get install python3-venv" >&2
        exit 1
    fi
fi

files="requirements/tools.txt requirements/runtime.txt requirements/demo.txt"
if [ "$what" = test ]; then files="$files requirements/dev.txt"; fi
wanted=$(cat $files pyproject.toml | cksum; pwd)
stamp=.venv/installed-$what
if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then exit 0; fi

echo "Installing into .venv …" >&2
export UV_PYTHON_DOWNLOADS=never PIP_DISABLE_PIP_VERSION_CHECK=1
.venv/bin/python -m pip install --quiet --require-hashes --requirement requirements/tools.txt
install() { .venv/bin/python -m uv pip install --quiet --python .venv/bin/python "$@"; }
if [ "$what" = test ]; then base=requirements/dev.txt; else base=requirements/runtime.txt; fi
install --require-hashes --requirement "$base"
# The engine's wheels hold all that they need; what they declare besides would not be used.
install --require-hashes --no-deps --requirement requirements/demo.txt
install --no-deps --no-build-isolation --editable .
echo "$wanted" > "$stamp"
