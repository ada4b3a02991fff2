#!/usr/bin/env bash
# Trains or predicts on the ranks of a RANK_TABLE.json, called as MindFormers' script of this
# name is: once on every host, each with its own range of ranks.
#
#   run_distribute.sh RANK_TABLE CONFIG [S,E] train|predict SIZE [--a.b.c VALUE ...]
#   run_distribute.sh RANK_TABLE CONFIG [S,E] train|predict           (one host)
#
# S,E: ranks from S up to, but not including, E. The host whose range begins with 0 starts
# all ranks, on all hosts, by ssh and mpirun; calls with another range have nothing to do,
# say so and end well. A range [0,SIZE] starts on this host alone, as does a call without
# SIZE, with E-S ranks. STATOR names the program (else build/stator beside this folder).
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
stator=${STATOR:-$here/../build/stator}

refuse() {
    printf 'run_distribute: %s\n' "$1" >&2
    exit 2
}

[ $# -ge 4 ] || refuse "write run_distribute.sh RANK_TABLE CONFIG [S,E] train|predict SIZE"
table=$1 config=$2 range=$3 mode=$4
shift 4
size=
if [ $# -gt 0 ] && [[ $1 != --* ]]; then
    [[ $1 =~ ^[0-9]{1,5}$ ]] || refuse "'$1' is no number of ranks"
    size=$((10#$1))
    shift
fi
form='^\[([0-9]{1,5}),([0-9]{1,5})[])]$' # [S,E], or [S,E) as it is meant
[[ $range =~ $form ]] ||
    refuse "write the ranks of this host as [S,E], not '$range'"
first=$((10#${BASH_REMATCH[1]})) end=$((10#${BASH_REMATCH[2]}))
((first < end)) || refuse "the range $range holds no rank"
[ -z "$size" ] || ((end <= size)) || refuse "the range $range goes beyond $size ranks"
[ -e "$config" ] || refuse "there is no $config"
[ -x "$stator" ] || refuse "there is no program $stator; build it, or set STATOR"
case $mode in
train | predict) ;;
finetune) mode=train ;;
*) refuse "the mode is train or predict, not '$mode'" ;;
esac

if [ -z "$size" ]; then # one host, and all of its ranks
    exec "$stator" launch -n $((end - first)) "$mode" "$config" "$@"
elif ((first == 0 && end == size)); then
    exec "$stator" launch -n "$size" "$mode" "$config" "$@"
elif ((first > 0)); then
    echo "run_distribute: the host of rank 0 starts all ranks, $first to $((end - 1)) here;" \
        "this call has nothing to do"
    exit 0
fi
[ -e "$table" ] || refuse "there is no $table"
exec "$stator" launch -n "$size" --rank-table "$table" "$mode" "$config" "$@"
