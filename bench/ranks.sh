#!/usr/bin/env bash
# ranks.sh - a training step of GPT-2 124M on 2 ranks of 1 thread against 1 rank of 2 threads,
# in one run: data parallel, with optimizer shard, tensor and sequence parallel, and two stages
# of 8 micro-batches (the layers cut so that the head has its share). Prints the fastest step of
# each and the ratio to one rank; the mark is 0.85, for stages 0.85 of 1 - bubble, 8/9.
#     bench/ranks.sh [ROUNDS] [STEPS]     (default 2 rounds of 3 steps; about 20 minutes)
set -eu
cd "$(dirname "$0")/.."
stator=${STATOR:-build/stator}
rounds=${1:-2} steps=${2:-3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pc=parallel_config
# Bytes as numbers of a pair: GPT-2's vocabulary takes no text as bytes.
cat README.md docs/*.md >"$work/text.txt"
"$stator" preprocess --input "$work/text.txt" --output-prefix "$work/bytes" \
    --tokenizer-type ByteTokenizer >"$work/log" 2>&1
common="configs/gpt2_124m.yaml --train_dataset.data_loader.type MegatronIndexed
    --dataset_dir $work/bytes_text_document --runner_config.max_steps $steps
    --callbacks.CheckpointMonitor.save_checkpoint_steps 0 --resume never"
two="launch -n 2 --threads 1 train $common"
whole="--$pc.micro_batch_num 1"
eighths="--$pc.micro_batch_num 8 --runner_config.batch_size 1 --model.model_config.seq_length 512"
stages="$eighths --$pc.pipeline_stage 2 --$pc.offset [3,-3]"
declare -A words=(
    [one]="train $common $whole --runner_config.batch_size 4"
    [dp2]="$two $whole --$pc.data_parallel 2 --runner_config.batch_size 2"
    [dp2_zero1]="$two $whole --$pc.data_parallel 2 --runner_config.batch_size 2
        --$pc.optimizer_shard True
        --parallel.parallel_optimizer_config.optimizer_level level1"
    [tp2_sp]="$two $whole --$pc.model_parallel 2 --$pc.sequence_parallel True
        --runner_config.batch_size 4"
    [one_8]="train $common $eighths"
    [pp2_1f1b]="$two $stages"
    [pp2_zb]="$two $stages --parallel.pipeline_config.pipeline_scheduler zero_bubble_h1"
)

run() { # the fastest step of one run, without the first
    # shellcheck disable=SC2086
    $stator ${words[$1]} --output_dir "$work/run" >"$work/log" 2>&1 || {
        cat "$work/log" >&2
        exit 1
    }
    sed -n '2,$s/.*"seconds": *\([0-9.]*\).*/\1/p' "$work/run/metrics.jsonl" | sort -n | head -1
    rm -rf "$work/run"
}

names=(one dp2 dp2_zero1 tp2_sp one_8 pp2_1f1b pp2_zb)
declare -A best
for _ in $(seq "$rounds"); do
    for name in "${names[@]}"; do
        seconds=$(run "$name")
        best[$name]=$(printf '%s\n%s\n' "${best[$name]:-1e9}" "$seconds" | sort -g | head -1)
        echo "$name $seconds s"
    done
done
echo
for name in "${names[@]}"; do
    base=one
    [ "${name#pp}" = "$name" ] || base=one_8
    awk -v n="$name" -v a="${best[$base]}" -v b="${best[$name]}" \
        'BEGIN { printf "%-10s %8.2f s a step, %.2f of one rank\n", n, b, a / b }'
done
