#!/usr/bin/env python3
"""predict.py - predicted seconds of a step beside measured ones, on this machine.

    bench/predict.py MACHINE.yaml [--quick] [--part K/N] [--only NAME,...] [--rounds N]
                                  [--strategies N] [--random N] [--parts] [--drift] [--check]

MACHINE.yaml is made by `stator calibrate -n 1,2,4`. Each configuration is planned first, then
trained; runs of all configurations alternate, and the median of all their steps but the first
of each run counts. --part does each N-th configuration from K on. --strategies compares the
order of N strategies of a small model on 4 ranks instead (Kendall's tau), beside it the order that
half of the rounds measured with that of the other half. --random takes N configurations drawn at
random instead: models of two families, all axes, schedules, recomputation, dropout. --parts compares
compute, messages and waits for other stages, of runs that are recorded (the key profile), one
by one. --drift runs one configuration first and beside each of the others: what it takes then, over
what it took at first, is how much slower the machine became since it was calibrated. Errors are
printed with that and without. --check fails where
the median error is above 5 %, an error above 10 %, or tau below 0.9.
"""
import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STATOR = os.environ.get("STATOR", os.path.join(ROOT, "build", "stator"))
PC = "parallel_config."
ZERO = {PC + "optimizer_shard": True}
LEVEL = "parallel.parallel_optimizer_config.optimizer_level"
MODEL = "model.model_config."
BF16 = {MODEL + "compute_dtype": "bfloat16"}


def model(layers, width, heads, vocab, length):
    return {
        MODEL + "num_layers": layers,
        MODEL + "hidden_size": width,
        MODEL + "num_heads": heads,
        MODEL + "vocab_size": vocab,
        MODEL + "seq_length": length,
    }


TINY = model(4, 192, 6, 2048, 128)
SMALL = model(4, 384, 6, 8192, 256)
GPT2 = model(2, 768, 12, 50257, 256)
FULL = model(12, 768, 12, 50257, 256)


def batch(size, micro=1):
    return {"runner_config.batch_size": size, PC + "micro_batch_num": micro}


def zero(level, ranks):
    return {PC + "data_parallel": ranks, **ZERO, LEVEL: "level%d" % level}


def dp(n):
    return {PC + "data_parallel": n}


def tp(n, sequence=False):
    return {PC + "model_parallel": n, **({PC + "sequence_parallel": True} if sequence else {})}


def pp(n, chunks=1):
    return {PC + "pipeline_stage": n, **({PC + "pp_interleave_num": chunks} if chunks > 1 else {})}


RECOMPUTE = {"recompute_config.recompute": True}
LEAST_SHARE = 0.03  # of a step: parts below that are printed, and not counted

# name: ranks, settings
CONFIGURATIONS = {
    "tiny": (1, TINY, batch(8)),
    "small": (1, SMALL, batch(4)),
    "small bf16": (1, SMALL, batch(4), BF16),
    "small micro 4": (1, SMALL, batch(2, 4)),
    "small bf16 recompute": (1, SMALL, batch(8), BF16, RECOMPUTE),
    "gpt2 2 layers": (1, GPT2, batch(2)),
    "gpt2 2 layers bf16": (1, GPT2, batch(4), BF16),
    "gpt2 full bf16": (1, FULL, batch(2), BF16),
    "gpt2 full": (1, FULL, batch(1)),
    "small dp2": (2, SMALL, batch(4), dp(2)),
    "small bf16 dp2": (2, SMALL, batch(4), BF16, dp(2)),
    "small tp2": (2, SMALL, batch(4), tp(2)),
    "small tp2 sp": (2, SMALL, batch(4), tp(2, True)),
    "small bf16 tp2 sp": (2, SMALL, batch(4), BF16, tp(2, True)),
    "small zero1 dp2": (2, SMALL, batch(2), zero(1, 2)),
    "small zero2 dp2": (2, SMALL, batch(2, 2), zero(2, 2)),
    "small zero3 dp2": (2, SMALL, batch(2), zero(3, 2)),
    "small pp2": (2, SMALL, batch(2, 4), pp(2)),
    "small bf16 pp2": (2, SMALL, batch(4, 4), BF16, pp(2)),
    "small pp2 interleaved": (2, SMALL, batch(2, 4), pp(2, 2)),
    "gpt2 2 layers bf16 dp2": (2, GPT2, batch(2), BF16, dp(2)),
    "gpt2 2 layers bf16 pp2": (2, GPT2, batch(2, 4), BF16, pp(2)),
    "small dp2 recompute": (2, SMALL, batch(4), dp(2), RECOMPUTE),
    "small dp4": (4, SMALL, batch(2), dp(4)),
    "small tp4": (4, model(4, 384, 8, 8192, 256), batch(4), tp(4)),
    "small dp2 tp2": (4, SMALL, batch(4), dp(2), tp(2)),
    "small zero2 dp4": (4, SMALL, batch(1, 2), zero(2, 4)),
    "small pp4": (4, SMALL, batch(2, 8), pp(4)),
    "small dp2 pp2": (4, SMALL, batch(2, 4), dp(2), pp(2)),
    "small bf16 tp2 pp2": (4, SMALL, batch(2, 4), BF16, tp(2), pp(2)),
}
REFERENCE = CONFIGURATIONS["small"]
QUICK = ["tiny", "small bf16", "small dp2", "small tp2 sp", "small pp2", "small dp4", "small dp2 pp2"]


def strategies(count):
    """Random strategies of a small model on 4 ranks, of equal work."""
    chosen, random_ = {}, random.Random(1)
    wide = model(4, 256, 8, 4096, 128)
    for data, tensor, stage in itertools.product((1, 2, 4), repeat=3):
        if data * tensor * stage != 4:
            continue
        for micro, level, sequence, chunks, again in itertools.product(
            (1, 2, 4), (0, 1, 2, 3), (False, True), (1, 2), (False, True)
        ):
            if (level and data == 1) or (sequence and tensor == 1) or (chunks > 1 and stage != 2):
                continue
            if micro < stage:
                continue
            settings = [wide, batch(16 // micro // data, micro)]
            settings += [dp(data), tp(tensor, sequence), pp(stage, chunks)]
            settings += [zero(level, data)] if level else []
            settings += [RECOMPUTE] if again else []
            name = f"dp{data} tp{tensor} pp{stage} micro {micro} level {level}"
            name += " sp" * sequence + " interleaved" * (chunks > 1) + " recompute" * again
            chosen[name] = (4, *settings)
    names = random_.sample(sorted(chosen), min(count, len(chosen)))
    return {name: chosen[name] for name in names}


def drawn(draw):
    """A model and a strategy on 1 to 4 ranks, and their name."""
    ranks, width, heads = draw.choice((1, 2, 2, 2, 4)), draw.choice((256, 384, 512, 768)), 8
    layers, length = draw.choice((2, 4, 8)), draw.choice((128, 256, 512, 1024))
    vocab, llama, bf16 = draw.choice((1000, 8192, 50257)), draw.random() < 0.5, draw.random() < 0.5
    axes = {"dp": 1, "tp": 1, "cp": 1, "pp": 1}
    for _ in range(ranks.bit_length() - 1):
        axes[draw.choice(list(axes))] *= 2
    data, tensor, context, stages = axes.values()
    chunks = 2 if 1 < stages and layers % (2 * stages) == 0 and draw.random() < 0.3 else 1
    micro = max(stages, draw.choice((1, 2, 4)))
    size = max(1, draw.choice((1024, 2048, 4096)) // length // micro // data)
    options = {
        "sp": tp(tensor, True) if tensor > 1 else None,
        "ring": {PC + "context_parallel_algo": "megatron_cp_algo"} if context > 1 else None,
        "zero": zero(draw.choice((1, 2, 3)), data) if data > 1 else None,
        "zero bubble": {"parallel.pipeline_config.pipeline_scheduler": "zero_bubble_h1"}
        if stages > 1 and chunks == 1 else None,
        "recompute": RECOMPUTE,
        "select": {"recompute_config.select_recompute": True},
        "dropout": {MODEL + "hidden_dropout_prob": 0.1},
    }
    taken = [o for o in options if options[o] and draw.random() < 0.4]
    if "recompute" in taken and "select" in taken:
        taken.remove("select")
    settings = [model(layers, width, heads, vocab, length), batch(size, micro), dp(data),
                tp(tensor), pp(stages, chunks), {PC + "context_parallel": context}]
    settings += [{MODEL + "type": "LlamaConfig", MODEL + "n_kv_heads": 4}] if llama else []
    settings += ([BF16] if bf16 else []) + [options[o] for o in taken]
    name = " ".join(["llama" if llama else "gpt2", f"{layers}x{width}", f"{size}x{length}",
                     f"{vocab // 1000}k", "bf16" if bf16 else "f32", f"micro {micro}"]
                    + [f"{axis}{n}" for axis, n in axes.items() if n > 1]
                    + ["interleaved"] * (chunks > 1) + taken)
    return name, (ranks, *settings)


def random_configurations(count):
    draw, chosen = random.Random(1), {}
    while len(chosen) < count:
        name, configuration = drawn(draw)
        chosen[name] = configuration
    return chosen


def cpu_seconds():
    """That all processes but this one and its children have computed."""
    user, nice, system, _, _, irq, soft, steal = map(
        int, open("/proc/stat").readline().split()[1:9])
    own = os.times()
    busy = (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
    return busy - sum(own[:4])


class Bench:
    def __init__(self, machine, folder):
        self.machine = os.path.abspath(machine)
        self.folder = folder
        self.disturbed = 0
        self.config = os.path.join(folder, "bench.yaml")
        text = os.path.join(folder, "text.txt")
        with open(text, "w") as f:
            for name in ("README.md", "docs/design.md", "docs/keys.md"):
                f.write(open(os.path.join(ROOT, name)).read())
        self.call(["preprocess", "--input", text, "--output-prefix",
                   os.path.join(folder, "bytes"), "--tokenizer-type", "ByteTokenizer"])
        with open(self.config, "w") as f:
            f.write(f"""base_config: [{ROOT}/configs/base/run.yaml]
model:
  model_config: {{type: GPT2Config, eos_token: 10}}
train_dataset:
  data_loader: {{type: MegatronIndexed, dataset_dir: {folder}/bytes_text_document}}
lr_schedule: {{type: constant, learning_rate: 1e-4}}
""")

    def call(self, words):
        done = subprocess.run([STATOR, *words], capture_output=True, text=True, timeout=170)
        if done.returncode:
            sys.exit(f"{' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
        return done.stdout

    def words(self, ranks, settings):
        merged = {"context.threads": max(1, (os.cpu_count() or 1) // ranks)}
        for s in settings:
            merged.update(s)
        out = [self.config]
        for key, value in merged.items():
            out += ["--" + key, str(value)]
        return out

    def predict(self, ranks, *settings):
        words = self.words(ranks, settings) + ["--machine", self.machine, "-n", str(ranks), "--json"]
        return json.loads(self.call(["plan", *words]))

    def measure(self, steps, *configuration):
        """Again where other programs computed meanwhile, a few times."""
        for _ in range(3):
            before, start = cpu_seconds(), time.monotonic()
            seconds = self.run(steps, *configuration)
            took = time.monotonic() - start
            other = cpu_seconds() - before
            if other < 0.04 * took * os.cpu_count():
                break
            self.disturbed += 1
        return seconds

    def run(self, steps, ranks, *settings):
        with self.train(steps, ranks, *settings) as run:
            rows = [json.loads(line) for line in open(os.path.join(run, "metrics.jsonl"))]
        return [row["seconds"] for row in rows[1:]]

    def reference(self):
        """Median seconds of a step of one configuration, now."""
        return statistics.median(self.run(6, *REFERENCE))

    def parts(self, steps, ranks, *settings):
        """What a rank of the first stage is predicted to do, and what they do."""
        recorded = {"context.machine": self.machine, "profile": True, "profile_start_step": 3,
                    "profile_stop_step": steps}
        with self.train(steps, ranks, *settings, recorded) as run:
            both = json.load(open(os.path.join(run, "predicted.json")))
            events = json.load(open(os.path.join(run, "profile", "trace.json")))["traceEvents"]
        said, took = both["predicted"], both["measured"]
        said["compute"] = sum(said[kind] for kind in COMPUTE)
        return said, {**took, **took_of(events, steps - 2)}

    @contextlib.contextmanager
    def train(self, steps, ranks, *settings):
        run = os.path.join(self.folder, "run")
        words = self.words(ranks, settings) + [
            "--runner_config.max_steps", str(steps), "--output_dir", run, "--resume", "never",
            "--callbacks.CheckpointMonitor.save_checkpoint_steps", "0"]
        launch = ["launch", "-n", str(ranks)] if ranks > 1 else []
        self.call([*launch, "train", *words])
        yield run
        shutil.rmtree(run)


COMPUTE = ["products", "attention", "kernels", "update", "copies"]
PARTS = ["compute", "messages", "waiting"]
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ring_shift", "arrive"]
STAGES = ["send", "receive", "sent"]


def took_of(events, steps):
    """Seconds of a step, of the ranks whose program is that of rank 0: of each op the median of the
    steps. A collective takes as long as on the rank that comes to it last: what it takes longer on
    others is a wait for that one."""
    ranks = {}
    for e in sorted(events, key=lambda e: e.get("ts", 0)):
        if e["ph"] == "X" and e["tid"] == 0 and e["cat"] != "call" and "where" in e["args"]:
            ranks.setdefault(e["pid"], []).append((e["cat"], e["name"], 1e-6 * e["dur"]))
    first = ranks[min(ranks)]
    same = [r for r in ranks.values() if [e[:2] for e in r] == [e[:2] for e in first]]
    each = len(first) // steps
    if each * steps != len(first):
        sys.exit(f"{len(first)} ops in {steps} steps")
    took = {"compute": 0, "messages": 0, "waiting": 0}
    for op in range(each):
        kind = first[op][0]
        part = ("messages" if kind in COLLECTIVES else
                "waiting" if kind in STAGES else "compute")
        of = min if part == "messages" else statistics.mean
        took[part] += statistics.median(
            of([r[step * each + op][2] for r in same]) for step in range(steps))
    return took


def compare_parts(bench, table, names, seconds):
    """Compute, messages and waits for other stages, of ranks of the first stage; and compute
    of rank 0 by kind."""
    errors = {part: [] for part in PARTS + COMPUTE}
    for name in names:
        step = bench.predict(*table[name])["step_seconds"]
        steps = 4 + int(min(max(seconds / max(step, 1e-3), 3), 40))
        said, took = bench.parts(steps, *table[name])
        print(f"{name}: {1e3 * step:.2f} ms a step")
        for part in PARTS + COMPUTE:
            share = took[part] / took["step_seconds"]
            if share < 0.001:
                continue
            error = said[part] / took[part] - 1
            if share >= LEAST_SHARE:
                errors[part].append(abs(error))
            print(f"  {part:10} {1e3 * said[part]:9.3f} {1e3 * took[part]:9.3f} ms "
                  f"{100 * error:+7.1f} % of {100 * share:5.1f} %", flush=True)
    for part in PARTS + COMPUTE:
        if errors[part]:
            print(f"{part}: {len(errors[part])} of {100 * LEAST_SHARE:.0f} % of a step or more, "
                  f"median error {100 * statistics.median(errors[part]):.1f} %, "
                  f"worst {100 * max(errors[part]):.1f} %")


def kendall_of_rounds(rounds):
    """Of what the first half of the rounds measured and the other half, for each name: the order
    of a prediction without any error agrees no better with one of them. 1 where there is one."""
    half = len(next(iter(rounds.values()))) // 2
    if not half:
        return 1
    pairs = [tuple(statistics.median(sum(part, [])) for part in (of[:half], of[half:]))
             for of in rounds.values()]
    return kendall(pairs)


def kendall(pairs):
    """Of all pairs that differ: in the same order less in the other one, over all."""
    same = other = 0
    for (a, b), (c, d) in itertools.combinations(pairs, 2):
        sign = (a - c) * (b - d)
        same += sign > 0
        other += sign < 0
    return (same - other) / max(same + other, 1)


def main():
    words = argparse.ArgumentParser()
    words.add_argument("machine")
    words.add_argument("--quick", action="store_true")
    words.add_argument("--part", default="1/1")
    words.add_argument("--only", default="")
    words.add_argument("--rounds", type=int, default=2)
    words.add_argument("--seconds", type=float, default=2.0, help="of steps in a run")
    words.add_argument("--strategies", type=int, default=0)
    words.add_argument("--random", type=int, default=0)
    words.add_argument("--parts", action="store_true")
    words.add_argument("--drift", action="store_true")
    words.add_argument("--check", action="store_true")
    o = words.parse_args()
    table = CONFIGURATIONS
    if o.strategies:
        table = strategies(o.strategies)
    if o.random:
        table = random_configurations(o.random)
    names = list(table)
    if o.quick and table is CONFIGURATIONS:
        names = QUICK
    if o.only:
        names = o.only.split(",")
    part, parts = map(int, o.part.split("/"))
    names = names[part - 1 :: parts]
    wide = max(map(len, names))
    rounds = o.rounds
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(o.machine, folder)
        if o.parts:
            compare_parts(bench, table, names, o.seconds)
            return
        said = {name: bench.predict(*table[name]) for name in names}
        took = {name: [] for name in names}
        errors, drifted, pairs = [], [], []
        first = bench.reference() if o.drift else 0
        drift = {name: [] for name in names}
        print(f"{'':{wide}} {'predicted':>9} {'measured':>9} {'error':>8}")
        for round_ in range(rounds):
            for name in names:
                a = said[name]["step_seconds"]
                steps = 2 + int(min(max(o.seconds / max(a, 1e-3), 3), 40))
                before = bench.reference() if o.drift else 0
                took[name].append(bench.measure(steps, *table[name]))
                if o.drift:
                    drift[name].append((before + bench.reference()) / 2 / first)
                if round_ < rounds - 1:
                    continue
                b = statistics.median(sum(took[name], []))
                slower = statistics.median(drift[name]) if o.drift else 1
                errors.append(abs(a / b - 1))
                drifted.append(abs(a * slower / b - 1))
                pairs.append((a, b))
                now = f", {100 * (a * slower / b - 1):+.1f} % where it is {slower:.3f} times as slow"
                print(f"{name:{wide}} {a:9.4f} {b:9.4f} {100 * (a / b - 1):+7.1f} %"
                      + (now if o.drift else ""), flush=True)
    middle, worst, tau = statistics.median(errors), max(errors), kendall(pairs)
    print(f"{len(names)} configurations: median error {100 * middle:.1f} %, worst "
          f"{100 * worst:.1f} %, Kendall's tau {tau:.3f}")
    if o.drift:
        print(f"with what the machine became slower: median "
              f"{100 * statistics.median(drifted):.1f} %, worst {100 * max(drifted):.1f} %")
    if rounds > 1:
        print(f"Kendall's tau of one half of the rounds and the other: "
              f"{kendall_of_rounds(took):.3f}")
    fastest = min(took, key=lambda name: statistics.median(sum(took[name], [])))
    chosen = min(names, key=lambda name: said[name]["step_seconds"])
    loss = (statistics.median(sum(took[chosen], []))
            / statistics.median(sum(took[fastest], [])) - 1)
    print(f"predicted fastest: {chosen}, {100 * loss:.1f} % slower than the fastest, {fastest}")
    if bench.disturbed:
        print(f"{bench.disturbed} runs were disturbed by other programs and done again")
    if o.check:
        bad = tau < 0.9 if o.strategies else middle > 0.05 or worst > 0.10
        sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
