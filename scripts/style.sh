#!/usr/bin/env bash
# Holds the form of the sources: C as clang-format writes it (the version of Debian 12, as
# others write otherwise), shell scripts without a word from shellcheck. Prints what is not
# so; `clang-format-14 -i FILE` mends the former.
set -eu -o pipefail
cd "$(dirname "$0")/.."
good=0

find base ir passes codegen runtime frontend tests bench scripts -name '*.[ch]' \
    ! -name "*_tables.h" -print0 |
    xargs -0 -n 50 -P "$(nproc)" clang-format-14 -n -Werror || good=1
shellcheck -x check quickstart .ci/run scripts/*.sh bench/*.sh || good=1
exit "$good"
