# shellcheck shell=bash
# For quickstart and check: stages with a line of progress each. Sourced, not run; wants
# $log_dir to exist.
: "${log_dir:?is the folder of the logs}"

# A line that the next one overwrites; only on a terminal.
progress() {
    [ ! -t 1 ] || printf '\r\033[K%s' "$*"
}

say() {
    progress
    printf '%s\n' "$*"
}

# Shows the end of a stage's log and ends the script.
give_up() {
    progress
    echo "$1 failed; the end of $2:" >&2
    tail -n 30 "$2" >&2
    exit 1
}

# build_preset PRESET [TARGET...]: configures and builds with all cores.
build_preset() {
    local preset=$1 start=$SECONDS
    local log="$log_dir/build-$preset.log"
    shift
    progress "build $preset"
    cmake --preset "$preset" >"$log" 2>&1 || give_up "cmake --preset $preset" "$log"
    local command=(cmake --build --preset "$preset" -j "$(nproc)")
    [ $# = 0 ] || command+=(--target "$@")
    {
        "${command[@]}" 2>&1 || echo "build_preset: failed"
    } | tee -a "$log" | while read -r line; do
        case $line in
        \[*%\]*) progress "build $preset ${line%%]*}]" ;;
        esac
    done
    [ "$(tail -n 1 "$log")" != "build_preset: failed" ] || give_up "the build" "$log"
    say "build $preset: $((SECONDS - start)) s"
}
