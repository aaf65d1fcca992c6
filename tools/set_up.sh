#!/bin/sh
# Leaves a checkout ready to run, however far an earlier run came: Debian packages, a locked .venv with decamp in its
# bin/, the Pulumi engine. Nothing is done twice: what is in place is only looked at.
set -eu
cd "$(dirname "$0")/.."

fail() {
    echo "make setup: $1" >&2
    exit 2
}

install_debian_packages() {
    wanted=$(grep -v '^#' tools/debian-packages.txt)
    missing=
    for package in $wanted; do
        state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || state=absent
        [ "$state" = installed ] || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" != 0 ]; then
        # Everything but the rehearsal works without them; the rehearsal says itself what it lacks.
        echo "make setup: not root, so these Debian packages stay missing (only the rehearsal needs them):$missing"
        return 0
    fi
    echo "make setup: installing Debian packages:$missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086 # a list of package names
    apt-get install -qq --no-install-recommends $missing >.apt.log 2>&1 || { cat .apt.log; rm -f .apt.log; exit 1; }
    rm -f .apt.log
}

describe_environment() {
    cksum requirements/dev.txt pyproject.toml tools/set_up.sh
    "$1" --version
}

install_from_lock() {
    grep -A 60 '^uv==' requirements/dev.txt | awk 'NR > 1 && /^[^ ]/ { exit } { print }' >.venv/uv.txt
    .venv/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r .venv/uv.txt
    if ! VIRTUAL_ENV=.venv .venv/bin/uv pip sync -q --require-hashes requirements/dev.txt; then
        echo "make setup: uv could not install from the lock; trying pip, which knows pip's own configuration"
        .venv/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/dev.txt
    fi
    # As a plain path: the import hook of the default kind costs every start of Python a quarter of its time.
    VIRTUAL_ENV=.venv .venv/bin/uv pip install -q --no-deps --no-build-isolation -C editable_mode=compat -e .
}

make_environment() {
    python=${PYTHON:-python3}
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "$python: too old: expected Python 3.11 or newer, found $("$python" --version 2>&1); run: make setup PYTHON=python3.11"
    if [ "$(cat .venv/made-at .venv/set-up 2>/dev/null)" = "$(pwd; describe_environment "$python")" ]; then
        return 0
    fi
    echo "make setup: installing requirements/dev.txt into .venv"
    rm -f .venv/set-up
    # Console scripts carry the path of their environment, so one that was moved is made anew.
    if [ "$(cat .venv/made-at 2>/dev/null)" != "$PWD" ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        "$python" -m venv --clear .venv ||
            fail ".venv: could not be made: expected the venv module of $python; run: apt-get install python3-venv"
        pwd >.venv/made-at
    fi
    install_from_lock
    describe_environment "$python" >.venv/set-up
}

case $(uname -s) in
    Linux) if command -v dpkg-query >/dev/null; then install_debian_packages; fi ;;
esac
make_environment
.venv/bin/python tools/obtain_pulumi.py
