#!/usr/bin/env bash
# strategies.sh - what every switch of a strategy costs and saves, as `stator plan` says it and
# as a run of a small GPT-2 on 1 to 4 ranks of this machine measures it; and GPT-2 13B planned
# in several ways on 32 ranks. Writes the tables of docs/strategies.md in place, between
# `<!-- table NAME -->` and `<!-- end -->`, and fails where a strategy changes a loss.
#     bench/strategies.sh [NAME ...]     (default: all tables; about 5 minutes on 2 cores)
# STATOR_PAGE=FILE writes to another page.
set -eu
cd "$(dirname "$0")/.."
stator=${STATOR:-build/stator}
page=${STATOR_PAGE:-docs/strategies.md}
work=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null || true; rm -rf "$work"' EXIT

pc=--parallel_config
level=--parallel.parallel_optimizer_config.optimizer_level
share=--parallel.parallel_optimizer_config.optimizer_weight_shard_size
scheduler=--parallel.pipeline_config.pipeline_scheduler
recompute=--recompute_config

# Eight sequences of 256 tokens a step in every row, so all losses are one loss.
cp LICENSE "$work/text.txt"
"$stator" preprocess --input "$work/text.txt" --output-prefix "$work/bytes" \
    --tokenizer-type ByteTokenizer >"$work/log" 2>&1
cat >"$work/small.yaml" <<YAML
base_config: [$PWD/configs/base/run.yaml]
context: {threads: 1}
model:
  model_config: {type: GPT2Config, vocab_size: 4096, seq_length: 256, hidden_size: 256,
                 num_layers: 8, num_heads: 8, eos_token: 10}
train_dataset:
  data_loader: {type: MegatronIndexed, dataset_dir: $work/bytes_text_document}
runner_config: {max_steps: 3}
lr_schedule: {type: constant, learning_rate: 1e-3}
YAML
cat >"$work/read.awk" <<'AWK'
# From a plan as JSON, and its line of all ranks' flops: numbers as key=value.
function of(key) {
    return match($0, "\"" key "\": [0-9.e+-]+") \
        ? substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4) + 0 : 0
}
function keep(w, o, g, a, all) {
    if (all <= total) return
    weights = w; optimizer = o; gradients = g; activations = a; total = all
}
/^  "memory_bytes"/ && !stages {
    keep(of("weights"), of("optimizer"), of("gradients"), of("activations"), of("total"))
}
/^  "pipeline"/ { stages = of("stages"); bubble = of("bubble") * 100 }
/^ *{"stage"/ {
    keep(of("weights_bytes"), of("optimizer_bytes"), of("gradients_bytes"),
         of("activations_bytes"), of("memory_bytes"))
    if (of("in_flight") > flight) flight = of("in_flight")
    count = bytes = 0
    rest = $0
    while (match(rest, /"messages": [0-9]+, "bytes": [0-9]+/)) {
        split(substr(rest, RSTART, RLENGTH), word, /[:,]/)
        count += word[2]
        bytes += word[4]
        rest = substr(rest, RSTART + RLENGTH)
    }
    if (bytes > most) { most = bytes; messages = count }
}
/^    {"axes"/ { sent += of("sent_bytes_per_step"); calls += of("operations_per_step") }
/all ranks [0-9.]+ x the model/ { match($0, /all ranks [0-9.]+/); all = substr($0, RSTART + 10, RLENGTH - 10) }
END {
    printf "weights=%.1f\noptimizer=%.1f\ngradients=%.1f\nactivations=%.1f\ntotal=%.1f\n",
        weights / 1e6, optimizer / 1e6, gradients / 1e6, activations / 1e6, total / 1e6
    printf "sent=%.1f\ncalls=%d\nmessages=%d\nmost=%.1f\n", sent / 1e6, calls, messages, most / 1e6
    printf "bubble=%.1f\nflight=%d\nall=%s\n", bubble, flight, all
}
AWK

weights='' optimizer='' gradients='' activations='' total='' # MB of the largest stage
calls='' sent='' messages='' most='' bubble='' flight='' all=''

show_log() {
    cat "$work/log" >&2
    exit 1
}

read_plan() { # words of a plan -> the variables above
    "$stator" plan "$@" >"$work/plan.txt" 2>"$work/log" || show_log
    "$stator" plan "$@" --json >"$work/plan.json" 2>"$work/log" || show_log
    eval "$(awk -f "$work/read.awk" "$work/plan.json" "$work/plan.txt")"
}

anonymous_kb() { # memory of a process that is no file's
    local key value
    while read -r key value _; do
        [ "$key" != RssAnon: ] || echo "$value"
    done 2>/dev/null <"/proc/$1/status" || true
}

watch_memory() { # most memory of a rank of the run, in kB, until process $1 ends
    local p kb peak=0 args
    while kill -0 "$1" 2>/dev/null; do
        for p in /proc/[0-9]*; do
            args=()
            mapfile -d '' -t args 2>/dev/null <"$p/cmdline" || continue
            [ "${args[1]:-}" = train ] || continue
            [[ " ${args[*]} " == *" $work/run "* ]] || continue
            kb=$(anonymous_kb "${p#/proc/}")
            [ "${kb:-0}" -le "$peak" ] || peak=$kb
        done
        sleep 0.1
    done
    echo "$peak" >"$work/peak"
}

one_loss=
run() { # RANKS WORDS... -> measured (MB of a rank), seconds (the fastest step), loss
    local ranks=$1
    shift
    "$stator" launch -n "$ranks" --threads 1 train "$work/small.yaml" "$@" --output_dir "$work/run" \
        --eval_iters 0 --callbacks.CheckpointMonitor.save_checkpoint_steps 0 --resume never \
        >"$work/log" 2>&1 &
    pid=$!
    watch_memory "$pid"
    wait "$pid" || show_log
    pid=
    measured=$(awk '{ printf "%.1f", $1 * 1024 / 1e6 }' "$work/peak")
    seconds=$(sed -n '2,$s/.*"seconds": *\([0-9.e-]*\).*/\1/p' "$work/run/metrics.jsonl" | sort -g | head -1)
    seconds=$(awk -v s="$seconds" 'BEGIN { printf "%.2f", s }')
    loss=$(sed -n '3s/.*"loss": *\([0-9.]*\).*/\1/p' "$work/run/metrics.jsonl")
    rm -rf "$work/run"
    [ -n "$one_loss" ] || one_loss=$loss
    awk -v a="$loss" -v b="$one_loss" 'BEGIN { exit !(a - b < 1e-4 && b - a < 1e-4) }' || {
        echo "loss $loss, not $one_loss: $*" >&2
        exit 1
    }
    loss=$(awk -v s="$loss" 'BEGIN { printf "%.5f", s }')
}

# ---- rows: LABEL RANKS BATCH MICRO-BATCHES WORDS... ----

plan_and_run() {
    local ranks=$2 batch=$3 micro=$4
    shift 4
    set -- --runner_config.batch_size "$batch" "$pc.micro_batch_num" "$micro" "$@"
    read_plan "$work/small.yaml" -n "$ranks" "$@"
    run "$ranks" "$@"
}

ranks_head() {
    echo "| | ranks | weights | optimizer | gradients | activations | planned | measured | operations | sent | flops | loss |"
    echo "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
}
ranks_row() {
    plan_and_run "$@"
    echo "| $1 | $2 | $weights | $optimizer | $gradients | $activations | $total | $measured | $calls | $sent | $all | $loss |"
}

pipe_head() {
    echo "| | micro-batches | bubble | in flight | weights | optimizer | gradients | activations | planned | measured | messages | sent | loss |"
    echo "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
}
pipe_row() {
    plan_and_run "$@"
    echo "| $1 | $4 x $3 | $bubble % | $flight | $weights | $optimizer | $gradients | $activations | $total | $measured | $messages | $most | $loss |"
}

alone_head() {
    echo "| | ranks | gradients | activations | planned | measured | flops | sent | s a step | loss |"
    echo "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
}
alone_row() { # more steps, so that the fastest is one without other programs
    plan_and_run "$@" --runner_config.max_steps 7
    [ "$2" = 1 ] || seconds=-
    echo "| $1 | $2 | $gradients | $activations | $total | $measured | $all | $sent | $seconds | $loss |"
}

# ---- tables ----

table_data() {
    local zero=("$pc.data_parallel" 4 "$pc.optimizer_shard" True "$level")
    ranks_head
    ranks_row "one rank" 1 4 2
    ranks_row "\`data_parallel: 4\`" 4 1 2 "$pc.data_parallel" 4
    ranks_row "... \`optimizer_level: level1\`" 4 1 2 "${zero[@]}" level1
    ranks_row "... \`optimizer_level: level2\`" 4 1 2 "${zero[@]}" level2
    ranks_row "... \`optimizer_level: level3\`" 4 1 2 "${zero[@]}" level3
    ranks_row "... ... \`optimizer_weight_shard_size: 2\`" 4 1 2 "${zero[@]}" level3 "$share" 2
}

table_overlap() {
    local zero=("$pc.data_parallel" 4 "$pc.optimizer_shard" True "$level")
    ranks_head
    ranks_row "level1, \`overlap: off\`" 4 1 2 "${zero[@]}" level1 --parallel.overlap off
    ranks_row "... \`overlap: thread\`, \`overlap_param_gather: False\`" 4 1 2 "${zero[@]}" level1 \
        --parallel.overlap thread --parallel.overlap_param_gather False
    ranks_row "... \`overlap: thread\`" 4 1 2 "${zero[@]}" level1 --parallel.overlap thread
    ranks_row "... and \`bucket_size: 0\`" 4 1 2 "${zero[@]}" level1 --parallel.overlap thread \
        --parallel.bucket_size 0B
}

table_tensor() {
    local tp=("$pc.model_parallel" 4)
    ranks_head
    ranks_row "one rank" 1 8 1
    ranks_row "\`model_parallel: 2\`" 2 8 1 "$pc.model_parallel" 2
    ranks_row "\`model_parallel: 4\`" 4 8 1 "${tp[@]}"
    ranks_row "... \`vocab_emb_dp: False\`" 4 8 1 "${tp[@]}" "$pc.vocab_emb_dp" False
    ranks_row "... \`sequence_parallel: True\`" 4 8 1 "${tp[@]}" "$pc.sequence_parallel" True
    ranks_row "... both" 4 8 1 "${tp[@]}" "$pc.sequence_parallel" True "$pc.vocab_emb_dp" False
}

table_context() {
    local cp=("$pc.context_parallel" 4 "$pc.context_parallel_algo")
    ranks_head
    ranks_row "one rank" 1 8 1
    ranks_row "\`ulysses_cp_algo\`" 4 8 1 "${cp[@]}" ulysses_cp_algo
    ranks_row "\`megatron_cp_algo\`" 4 8 1 "${cp[@]}" megatron_cp_algo
    ranks_row "\`hybrid_cp_algo\`, \`ulysses_degree_in_cp: 2\`" 4 8 1 "${cp[@]}" hybrid_cp_algo \
        "$pc.ulysses_degree_in_cp" 2
}

# A head as small as the other chunks, so that schedules alone make the difference.
pp=("$pc.pipeline_stage" 4 --model.model_config.vocab_size 256)
two=("${pp[@]}" "$pc.pp_interleave_num" 2)
table_pipeline() {
    one_loss=
    pipe_head
    pipe_row "one rank" 1 1 8 --model.model_config.vocab_size 256
    pipe_row "\`gpipe\`" 4 1 8 "${pp[@]}" "$scheduler" gpipe
    pipe_row "\`1f1b\`" 4 1 8 "${pp[@]}"
    pipe_row "..., fewer micro-batches" 4 2 4 "${pp[@]}"
    pipe_row "..., \`pp_interleave_num: 2\`" 4 1 8 "${two[@]}"
    pipe_row "\`breadth_first\`, \`pp_interleave_num: 2\`" 4 1 8 "${two[@]}" "$scheduler" breadth_first
    pipe_row "\`zero_bubble_h1\`" 4 1 8 "${pp[@]}" "$scheduler" zero_bubble_h1
    pipe_row "\`zero_bubble_v\`, \`pp_interleave_num: 2\`" 4 1 8 "${two[@]}" "$scheduler" zero_bubble_v
    one_loss=
}

table_uneven() {
    pipe_head
    pipe_row "\`1f1b\`" 4 1 8 "$pc.pipeline_stage" 4
    pipe_row "... \`offset: [0, 0, 1, -1]\`" 4 1 8 "$pc.pipeline_stage" 4 "$pc.offset" "[0,0,1,-1]"
}

table_micro() {
    alone_head
    for n in 1 2 4 8; do
        alone_row "\`micro_batch_num: $n\`, \`batch_size: $((8 / n))\`" 1 $((8 / n)) $n
    done
}

table_recompute() {
    alone_head
    alone_row "nothing" 1 8 1
    alone_row "\`recompute_elementwise: False\`" 1 8 1 "$recompute.recompute_elementwise" False
    alone_row "\`select_recompute: True\`" 1 8 1 "$recompute.select_recompute" True
    alone_row "\`recompute: 4\`" 1 8 1 "$recompute.recompute" 4
    alone_row "\`recompute: True\`" 1 8 1 "$recompute.recompute" True
    alone_row "\`recompute: 2\`, \`recompute_method: uniform\`" 1 8 1 "$recompute.recompute" 2 \
        "$recompute.recompute_method" uniform
    alone_row "\`recompute: auto\`, \`max_device_memory: 300MB\`" 1 8 1 "$recompute.recompute" auto \
        --context.max_device_memory 300MB
    alone_row "\`model_parallel: 2\`, nothing" 2 8 1 "$pc.model_parallel" 2
    alone_row "... \`recompute: True\`" 2 8 1 "$pc.model_parallel" 2 "$recompute.recompute" True
    alone_row "... and \`recompute_slice_activation: True\`" 2 8 1 "$pc.model_parallel" 2 \
        "$recompute.recompute" True "$recompute.recompute_slice_activation" True
    alone_row "... or \`sequence_parallel: True\`" 2 8 1 "$pc.model_parallel" 2 \
        "$recompute.recompute" True "$pc.sequence_parallel" True
    alone_row "... and \`mp_comm_recompute: False\`" 2 8 1 "$pc.model_parallel" 2 "$recompute.recompute" True \
        "$pc.sequence_parallel" True "$recompute.mp_comm_recompute" False
    alone_row "\`sequence_parallel: True\`, nothing" 2 8 1 "$pc.model_parallel" 2 "$pc.sequence_parallel" True
    alone_row "... \`select_comm_recompute: False\`" 2 8 1 "$pc.model_parallel" 2 \
        "$pc.sequence_parallel" True "$recompute.select_comm_recompute" False
}

# GPT-2 13B, planned only: 192 sequences a step on 32 ranks.
large_row() { # LABEL DATA TENSOR STAGES BATCH MICRO-BATCHES WORDS...
    local label=$1 axes=("$pc.data_parallel" "$2" "$pc.model_parallel" "$3" "$pc.pipeline_stage" "$4"
        --runner_config.batch_size "$5" "$pc.micro_batch_num" "$6" --context.max_device_memory 0B)
    shift 6
    read_plan configs/gpt2/run_gpt2_13b.yaml "${axes[@]}" "$@"
    local g='BEGIN { printf "%.1f", v / 1e3 }'
    echo "| $label | $(awk -v v="$weights" "$g") | $(awk -v v="$optimizer" "$g") |" \
        "$(awk -v v="$gradients" "$g") | $(awk -v v="$activations" "$g") | $(awk -v v="$total" "$g") |" \
        "$(awk -v v="$sent" "$g") | $(awk -v v="$most" "$g") | $all | $bubble % |"
}
table_large() {
    local sp=("$pc.sequence_parallel" True "$pc.vocab_emb_dp" False "$recompute.recompute_slice_activation" False)
    local one=("$level" level1)
    echo "| | weights | optimizer | gradients | activations | planned | collectives | messages | flops | bubble |"
    echo "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    large_row "dp 32, level3" 32 1 1 1 6 "$level" level3
    large_row "dp 4, tp 8, sequence and vocabulary split, level2" 4 8 1 2 24 "${sp[@]}"
    large_row "... level1" 4 8 1 2 24 "${sp[@]}" "${one[@]}"
    large_row "dp 4, tp 2, pp 4, level2: the file" 4 2 4 2 24
    large_row "... level1" 4 2 4 2 24 "${one[@]}"
    large_row "... and sequence and vocabulary split" 4 2 4 2 24 "${sp[@]}" "${one[@]}"
    large_row "... and \`recompute: False\`" 4 2 4 2 24 "${sp[@]}" "${one[@]}" "$recompute.recompute" False
    large_row "... and \`pp_interleave_num: 2\`" 4 2 4 2 24 "${sp[@]}" "${one[@]}" "$pc.pp_interleave_num" 2
    large_row "... or \`zero_bubble_v\`" 4 2 4 2 24 "${sp[@]}" "${one[@]}" "$pc.pp_interleave_num" 2 \
        "$scheduler" zero_bubble_v
    large_row "... or \`zero_bubble_h1\`" 4 2 4 2 24 "${sp[@]}" "${one[@]}" "$scheduler" zero_bubble_h1
}

# Schedules as plan draws them; as pictures too where it can.
table_schedules() {
    local name words svg=
    ! "$stator" help plan 2>/dev/null | grep -q -- '--svg' || svg=1
    for name in gpipe 1f1b interleaved breadth_first zero_bubble_h1 zero_bubble_v; do
        words=("${pp[@]}" "$scheduler" "$name")
        case $name in
        interleaved) words=("${two[@]}") ;;
        breadth_first | zero_bubble_v) words=("${two[@]}" "$scheduler" "$name") ;;
        esac
        words+=(--runner_config.batch_size 1 "$pc.micro_batch_num" 8)
        read_plan "$work/small.yaml" "${words[@]}"
        echo
        echo "\`$name\`: $bubble % bubble, $flight micro-batches in flight."
        echo
        if [ -n "$svg" ]; then
            mkdir -p "$(dirname "$page")/img"
            "$stator" plan "$work/small.yaml" "${words[@]}" --svg "$(dirname "$page")/img/$name.svg" >/dev/null
            echo "![schedule $name](img/$name.svg)"
            echo
        fi
        sed -n '/^pipeline /,/time goes to/s/^  stage [0-9]/    &/p' "$work/plan.txt" | sed 's/^ */    /'
    done
    echo
    sed -n 's/^ *time goes to the right; /To the right: time. /p' "$work/plan.txt" | fold -s -w 92
}

write_table() { # NAME: what stands on standard input goes between its marks
    awk -v name="$1" -v table="$work/table" '
        $0 == "<!-- table " name " -->" {
            print
            while ((getline line <table) > 0) print line
            skip = 1
            found = 1
        }
        skip && $0 == "<!-- end -->" { skip = 0 }
        !skip { print }
        END { exit !found }' "$page" >"$work/page" || {
        echo "$page has no table $1" >&2
        exit 1
    }
    cat "$work/page" >"$page"
}

[ $# -gt 0 ] || set -- data overlap tensor context pipeline uneven schedules micro recompute large
awk '$1 > 0.5 { print "other programs run: the seconds will be too many" }' /proc/loadavg >&2
start=$SECONDS
for name in "$@"; do
    # Not in a subshell: all rows are held against one loss.
    "table_$name" >"$work/table"
    cat "$work/table"
    write_table "$name"
done
echo "$((SECONDS - start)) s"
