#!/usr/bin/env python3
"""Training steps of one model in stator and in PyTorch, alternating on one machine.

    compare_pytorch.py --stator BIN [--model gpt2_124m] [--batch 4] [--seq 1024]
                       [--runs 5] [--steps 3] [--threads N]
                       [--kinds stator-f32,eager-f32,compiled-f32,stator-bf16,...]
                       [--flags "--recompute_config.recompute True"] [--out FILE.json]

Models: gpt2_124m, gpt2_355m, gpt2_774m, llama_110m; --layers cuts them short. PyTorch runs
the model as nanoGPT writes it: one matmul for queries, keys and values, attention by
scaled_dot_product_attention, fused AdamW, clipping by the global norm; bf16 by autocast with
float32 weights. --flags are keys of stator's runs. Every run is a process of its own that
does one step to warm up and then --steps; a round runs each kind once. Prints, for each kind, the median of tokens/s over the
rounds, the largest over the smallest, the share of the step's bound in its time, and the peak
of resident memory, and ratios of stator to the best of PyTorch in the same type. The bound is
that of `stator plan --measure` (docs/plan.md), measured in each round; the least counts. Needs
PyTorch (pip install torch).
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

MODELS = {  # layers, width, heads, vocabulary
    "gpt2_124m": (12, 768, 12, 50257),
    "gpt2_355m": (24, 1024, 16, 50257),
    "gpt2_774m": (36, 1280, 20, 50257),
    "llama_110m": (12, 768, 12, 32000),
}
LLAMA_MLP = 2048
KINDS = ("stator-f32", "eager-f32", "compiled-f32", "stator-bf16", "eager-bf16",
         "compiled-bf16")


def torch_model(name, layers, seq):
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    depth, width, heads, vocab = MODELS[name]
    llama = name.startswith("llama")

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            norm = (lambda: nn.RMSNorm(width, 1e-5)) if llama else (
                lambda: nn.LayerNorm(width))
            self.norm1, self.norm2 = norm(), norm()
            self.qkv = nn.Linear(width, 3 * width, bias=not llama)
            self.out = nn.Linear(width, width, bias=not llama)
            hidden = LLAMA_MLP if llama else 4 * width
            self.up = nn.Linear(width, (2 if llama else 1) * hidden, bias=not llama)
            self.down = nn.Linear(hidden, width, bias=not llama)

        def forward(self, x, turn):
            b, t, c = x.shape
            q, k, v = self.qkv(self.norm1(x)).split(c, dim=2)
            q, k, v = (z.view(b, t, heads, c // heads).transpose(1, 2) for z in (q, k, v))
            if llama:
                q, k = rotated(q, turn), rotated(k, turn)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
            h = self.up(self.norm2(x))
            if llama:
                gate, up = h.chunk(2, dim=-1)
                h = F.silu(gate) * up
            else:
                h = F.gelu(h, approximate="tanh")
            return x + self.down(h)

    def rotated(x, turn):
        cos, sin = turn
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocab, width)
            if not llama:
                self.positions = nn.Embedding(seq, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers or depth))
            self.norm = nn.RMSNorm(width, 1e-5) if llama else nn.LayerNorm(width)
            self.head = nn.Linear(width, vocab, bias=False)
            if not llama:
                self.head.weight = self.tokens.weight
            half = width // heads // 2
            angle = torch.outer(torch.arange(seq), 10000.0 ** (-torch.arange(half) / half))
            self.register_buffer("cos", angle.cos())
            self.register_buffer("sin", angle.sin())
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)

        def forward(self, ids, labels):
            x = self.tokens(ids)
            if not llama:
                x = x + self.positions(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x, (self.cos, self.sin))
            logits = self.head(self.norm(x))
            return F.cross_entropy(logits.view(-1, vocab), labels.view(-1))

    return Model(), vocab


def run_torch(a):
    import torch
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model, vocab = torch_model(a.model, a.layers, a.seq)
    step_of = torch.compile(model) if a.child.startswith("compiled") else model
    bf16 = a.child.endswith("bf16")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95),
                                  weight_decay=0.1, fused=True)
    seconds = []
    for _ in range(a.steps + 1):
        ids = torch.randint(0, vocab, (a.batch, a.seq))
        labels = torch.randint(0, vocab, (a.batch, a.seq))
        start = time.monotonic()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = step_of(ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        seconds.append(time.monotonic() - start)
    print(json.dumps(seconds[1:]))


def model_yaml(a):
    depth, width, heads, vocab = MODELS[a.model]
    llama = a.model.startswith("llama")
    lines = [
        "model:", "  model_config:",
        f"    type: {'LlamaConfig' if llama else 'GPT2Config'}",
        f"    vocab_size: {vocab}", f"    seq_length: {a.seq}", f"    hidden_size: {width}",
        f"    num_layers: {a.layers or depth}", f"    num_heads: {heads}", "    eos_token: -1"]
    if llama:
        lines += [f"    intermediate_size: {LLAMA_MLP}"]
    lines += ["train_dataset:", "  data_loader: {type: MegatronIndexed}",
              "runner_wrapper: {use_clip_grad: True, max_grad_norm: 1.0}",
              "optimizer: {type: AdamW, weight_decay: 0.1}"]
    return "\n".join(lines) + "\n"


def stator_command(a, command, kind, folder):
    return [a.stator, command, os.path.join(folder, "model.yaml"),
            "--dataset_dir", os.path.join(folder, "data_text_document"),
            "--runner_config.batch_size", str(a.batch),
            "--runner_config.max_steps", str(a.steps + 1),
            "--model.model_config.compute_dtype",
            "bfloat16" if kind.endswith("bf16") else "float32",
            "--context.threads", str(a.threads), "--output_dir",
            os.path.join(folder, "run"), "--resume", "never",
            "--callbacks.CheckpointMonitor.save_checkpoint_steps", "0"] + a.flags.split()


def measured_bound(a, kind, folder):
    """Seconds below which no step of that type can be on this machine."""
    plan = subprocess.run(stator_command(a, "plan", kind, folder) + ["--measure", "--json"],
                          check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(plan.stdout)["bound_seconds"]


def torch_command(a, kind):
    return [sys.executable, os.path.abspath(__file__), "--child", kind, "--model", a.model,
            "--batch", str(a.batch), "--seq", str(a.seq), "--steps", str(a.steps),
            "--threads", str(a.threads), "--layers", str(a.layers)]


def peak_memory_of(command, folder):
    """Runs it; its output, and the peak of resident memory of its largest process."""
    with open(os.path.join(folder, "log"), "w+") as log:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        out = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        if status:
            log.seek(0)
            sys.exit(f"{' '.join(command)}\n{out}{log.read()}")
    return out, usage.ru_maxrss * 1024


def run_kind(a, kind, folder):
    """Seconds of each step, and bytes."""
    if not kind.startswith("stator"):
        out, peak = peak_memory_of(torch_command(a, kind), folder)
        return json.loads(out.splitlines()[-1]), peak
    subprocess.run(["rm", "-rf", os.path.join(folder, "run")], check=True)
    _, peak = peak_memory_of(stator_command(a, "train", kind, folder), folder)
    with open(os.path.join(folder, "run", "metrics.jsonl")) as f:
        steps = [json.loads(line)["seconds"] for line in f]
    return steps[1:], peak


def make_data(a, folder):
    with open(os.path.join(folder, "model.yaml"), "w") as f:
        f.write(model_yaml(a))
    text = os.path.join(folder, "text.txt")
    with open(text, "wb") as f:
        f.write(bytes(32 + i * i % 95 for i in range(1 << 20)))
    subprocess.run([a.stator, "preprocess", "--input", text, "--output-prefix",
                    os.path.join(folder, "data"), "--tokenizer-type", "ByteTokenizer"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def report(a, results):
    tokens = a.batch * a.seq
    rate = {k: [tokens / s for s in r["seconds"]] for k, r in results.items()}
    print(f"\n{a.model}, {a.batch} x {a.seq}, {a.threads} threads, {a.runs} rounds\n")
    print("| kind | tokens/s, median | max / min | bound | bound / step, median | "
          "peak memory |\n|---|---|---|---|---|---|")
    for k, r in rate.items():
        bound = min(results[k]["bound"])
        step = statistics.median(results[k]["seconds"])
        print(f"| {k} | {statistics.median(r):.0f} | {max(r) / min(r):.2f} | {bound:.3f} s | "
              f"{bound / step:.2f} | {max(results[k]['bytes']) / 1e9:.2f} GB |")
    for kind in ("f32", "bf16"):
        ours, others = f"stator-{kind}", [k for k in rate if k.endswith("-" + kind)]
        others = [k for k in others if not k.startswith("stator")]
        if ours not in rate or not others:
            continue
        best = max(others, key=lambda k: statistics.median(rate[k]))
        speed = statistics.median(rate[ours]) / statistics.median(rate[best])
        least = min(max(results[k]["bytes"]) for k in others)
        print(f"{kind}: {speed:.2f} times the tokens/s of {best}, "
              f"{max(results[ours]['bytes']) / least:.2f} of the least memory")


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--stator", default="build/stator")
    p.add_argument("--model", choices=sorted(MODELS), default="gpt2_124m")
    p.add_argument("--layers", type=int, default=0)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--seq", type=int, default=1024)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--kinds", default=",".join(KINDS))
    p.add_argument("--flags", default="")
    p.add_argument("--out")
    p.add_argument("--child", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.child:
        return run_torch(a)
    results = {k: {"seconds": [], "bytes": [], "bound": []} for k in a.kinds.split(",")}
    with tempfile.TemporaryDirectory() as folder:
        make_data(a, folder)
        for i in range(a.runs):
            bound = {t: measured_bound(a, t, folder)
                     for t in ("f32", "bf16") if any(k.endswith("-" + t) for k in results)}
            for kind, r in results.items():
                r["bound"].append(bound[kind.split("-")[1]])
                seconds, peak = run_kind(a, kind, folder)
                r["seconds"].append(min(seconds))
                r["bytes"].append(peak)
                print(f"round {i + 1}: {kind}: {min(seconds):.2f} s a step, "
                      f"{peak / 1e9:.2f} GB", flush=True)
    report(a, results)
    if a.out:
        with open(a.out, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
