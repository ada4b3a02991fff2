#!/usr/bin/env python3
"""The matrix products of a training step in stator and in PyTorch (MKL), alternating.

    compare_products.py [--bench build/bench/bench_products] [--type f32] [--rows 4096]
                        [--models gpt2_124m,llama_110m] [--threads N] [--rounds 3]

For each product: rows x columns x summed, milliseconds of PyTorch (torch.addmm or mm into a
result that is there, as MKL has it), of the form that stator's fixed rule chooses and of the
fastest form, and PyTorch's time over each. Each round runs both; the least of all rounds counts.
Operands are copied so often that no cache holds them. Needs PyTorch (pip install torch).
"""
import argparse
import os
import subprocess
import time

VOCABULARY = {"gpt2_124m": 50257, "llama_110m": 32000}
WIDTH, COLD_BYTES, RUNS = 768, 96 << 20, 5


def products(model, rows, tile):
    """name, m, n, k, how: letters of bench_products."""
    llama = model.startswith("llama")
    c, v = WIDTH, VOCABULARY[model]
    # Llama's weights lie as [out, in] and have no biases, GPT-2's as [in, out]
    forward, back = ("b", "-") if llama else ("+", "b")
    hidden = 2048 if llama else 4 * c
    out = []
    for name, width_in, width_out in (("qkv", c, 3 * c), ("out", c, c), ("up", c, hidden),
                                      ("down", hidden, c)):
        weight = (width_out, width_in) if llama else (width_in, width_out)
        out += [(name, rows, width_out, width_in, forward),
                (name + ", of inputs", rows, width_in, width_out, back),
                (name + ", of weights", *weight, rows, "a")]
    return out + [("logits", tile, v, c, "b"), ("logits, of inputs", tile, c, v, "-"),
                  ("logits, of the table", v, c, tile, "as")]


def torch_seconds(torch, dtype, m, n, k, how):
    """The least of some runs, each on other copies of the operands."""
    def matrix(rows, columns, across):
        x = torch.rand(columns, rows) if across else torch.rand(rows, columns)
        x = (x + 1).to(dtype)
        return x.t() if across else x
    size = torch.tensor([], dtype=dtype).element_size()
    copies = max(1, min(8, -(-COLD_BYTES // (size * (m * k + k * n + m * n)))))
    sets = [(matrix(m, k, "a" in how), matrix(k, n, "b" in how), matrix(m, n, False))
            for _ in range(copies)]
    bias = torch.rand(n).to(dtype)
    best = float("inf")
    for i in range(RUNS + 1):
        a, b, c = sets[i % copies]
        start = time.perf_counter()
        if "+" in how:
            torch.addmm(bias, a, b, out=c)
        elif "s" in how:
            c.addmm_(a, b)
        else:
            torch.mm(a, b, out=c)
        if i:
            best = min(best, time.perf_counter() - start)
    return best


def stator_seconds(a, m, n, k, how):
    """By form; the rule's is the first."""
    out = subprocess.run([a.bench, a.type, str(m), str(n), str(k), how, str(a.threads)],
                         check=True, stdout=subprocess.PIPE, text=True).stdout
    return {form: float(seconds) for form, seconds in map(str.split, out.splitlines())}


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bench", default="build/bench/bench_products")
    p.add_argument("--type", choices=("f32", "bf16"), default="f32")
    p.add_argument("--models", default="gpt2_124m,llama_110m")
    p.add_argument("--rows", type=int, default=4096)
    p.add_argument("--tile", type=int, default=0)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    # the rows of logits that a step has at a time (context.tile_size)
    a.tile = a.tile or (1024 if a.type == "f32" else 512)
    import torch
    torch.set_num_threads(a.threads)
    dtype = torch.float32 if a.type == "f32" else torch.bfloat16
    print("| product | shape | PyTorch | rule | ratio | fastest form | ratio |\n"
          "|---|---|---|---|---|---|---|")
    for model in a.models.split(","):
        for name, m, n, k, how in products(model, a.rows, a.tile):
            theirs, ours = float("inf"), {}
            for _ in range(a.rounds):
                theirs = min(theirs, torch_seconds(torch, dtype, m, n, k, how))
                for form, seconds in stator_seconds(a, m, n, k, how).items():
                    ours[form] = min(seconds, ours.get(form, seconds))
            best = min(ours, key=ours.get)
            print(f"| {model}: {name} | {m} x {n} x {k} | {1e3 * theirs:.1f} ms | "
                  f"{1e3 * ours['rule']:.1f} ms | {theirs / ours['rule']:.2f} | {best}, "
                  f"{1e3 * ours[best]:.1f} ms | {theirs / ours[best]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
