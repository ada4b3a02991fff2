#!/usr/bin/env bash
# Installs the Debian packages that are missing: what the build needs, and with the
# argument `check` what fuzzing, tests/mutants and scripts/style.sh need too. Says what it installs; does
# nothing, and needs no rights, when all of them are there.
set -eu

packages="gcc libc6-dev make cmake llvm-19-dev libdnnl-dev libyaml-dev libxxhash-dev zlib1g-dev libzstd-dev libopenmpi-dev openmpi-bin"
[ "${1:-}" != check ] || packages="$packages clang-19 libclang-rt-19-dev clang-format-14 shellcheck python3 coinor-cbc"

missing=""
for package in $packages; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

as_root=""
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "These packages are missing and installing them needs root or sudo:" >&2
        echo "   $missing" >&2
        exit 1
    fi
    as_root="sudo"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" >"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        echo "apt-get $1 failed" >&2
        exit 1
    }
}
echo "installing with apt-get:$missing"
apt update
# shellcheck disable=SC2086 # a list of words
apt install --no-install-recommends $missing
