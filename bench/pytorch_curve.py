#!/usr/bin/env python3
"""The same training in stator and in PyTorch: both curves, and a plot of them.

    pytorch_curve.py --stator BIN --out DIR [--text FILE] [--steps N]
                     [--vocab vocab.json --merges merges.txt | --tokenizer bytes]

Makes documents of the text, lets stator preprocess turn them into tokens, and makes the
initial weights of a GPT-2 of about 10 million parameters. Both start from these weights
and see the same samples in the same order (stator inspect CONFIG.yaml --samples), with
the same AdamW, clipping and schedule, in float32; both take the loss of the same
validation samples after the same steps. DIR (new or empty) gets

    curves.json   settings, and of both: loss of every step, validation loss, seconds
    curves.svg    the plot
    data init run config.yaml    what the two were given, and the run folder of stator

Without a vocabulary a BPE of --vocab-size tokens is learned from the text. The text is
FILE, or $STATOR_SHARED/data/tinyshakespeare.txt.
Exit codes: 0 the last validation losses differ by at most 2 %, 1 by more, 2 it could not
be compared. Needs PyTorch (pip install torch).
"""
import argparse
import json
import math
import os
import re
import struct
import subprocess
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = None

LIMIT = 0.02  # of the PyTorch loss
BETAS, EPS, DECAY, CLIP, NORM_EPS = (0.9, 0.95), 1e-8, 0.1, 1.0, 1e-5
SAMPLES_AT_ONCE = 256  # of one call of stator inspect
COLORS = {"stator": "#c2410c", "pytorch": "#1d4ed8"}


def stop(message):
    print("pytorch_curve.py: " + message, file=sys.stderr)
    sys.exit(2)


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--stator", required=True, help="the program")
    p.add_argument("--out", required=True, help="a new folder")
    p.add_argument("--text", help="$STATOR_SHARED/data/tinyshakespeare.txt")
    p.add_argument("--tokenizer", choices=("bpe", "bytes"), default="bpe")
    p.add_argument("--vocab", help="vocab.json; without it a BPE is learned")
    p.add_argument("--merges", help="merges.txt")
    for name, value, text in (
            ("vocab-size", 4096, "of the BPE that is learned"),
            ("steps", 200, "updates"), ("batch", 8, "sequences of a step"),
            ("seq", 256, "tokens of a sequence"), ("hidden", 320, "width"),
            ("layers", 7, ""), ("heads", 5, ""), ("threads", 2, "of both"),
            ("eval-interval", 50, "steps between validations"),
            ("eval-iters", 8, "batches of a validation"),
            ("seed", 1, "of weights and order")):
        p.add_argument("--" + name, type=int, default=value, help=f"{text} ({value})")
    p.add_argument("--lr", type=float, default=1e-3,
                   help="largest rate; the end has a tenth (1e-3)")
    a = p.parse_args()
    for name in ("steps", "batch", "seq", "hidden", "layers", "heads", "threads",
                 "eval_interval", "eval_iters"):
        if getattr(a, name) < 1:
            stop(f"--{name.replace('_', '-')} must be at least 1")
    if a.hidden % a.heads:
        stop(f"--hidden {a.hidden} cannot be divided by --heads {a.heads}")
    if bool(a.vocab) != bool(a.merges) or (a.vocab and a.tokenizer == "bytes"):
        stop("--vocab and --merges go together, and not with --tokenizer bytes")
    if not a.text:
        if not os.environ.get("STATOR_SHARED"):
            stop("give --text FILE (STATOR_SHARED is not set)")
        a.text = os.path.join(os.environ["STATOR_SHARED"], "data", "tinyshakespeare.txt")
    for path in filter(None, (a.text, a.vocab, a.merges)):
        if not os.path.isfile(path):
            stop(f"there is no file {path}")
    if os.path.isdir(a.out) and os.listdir(a.out):
        stop(f"--out {a.out}: the folder is not empty; name a new one")
    a.warmup = max(1, a.steps // 20)
    a.lr_end = a.lr / 10
    return a


def stator(a, *words, capture=False):
    try:
        done = subprocess.run([a.stator, *words], text=True,
                              stdout=subprocess.PIPE if capture else None)
    except OSError as error:
        stop(f"--stator {a.stator}: {error.strerror}")
    if done.returncode:
        stop(f"{a.stator} {words[0]} ended with exit code {done.returncode}")
    return done.stdout


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=1)


# ---- what both are given: tokens, weights, configuration

def prepare_tokens(a):
    """Makes OUT/data/text_text_document, by paragraphs; the size of the vocabulary."""
    data = os.path.join(a.out, "data")
    os.makedirs(data)
    with open(a.text, encoding="utf-8", errors="replace", newline="") as f:
        paragraphs = [p for p in re.split(r"\n\n+", f.read()) if p.strip()]
    documents = os.path.join(data, "text.jsonl")
    with open(documents, "w") as f:
        for p in paragraphs:
            f.write(json.dumps({"text": p + "\n\n"}) + "\n")
    vocab, merges, size = a.vocab, a.merges, 256
    flags = ["--tokenizer-type", "ByteTokenizer"]
    if a.tokenizer == "bpe":
        if not vocab:
            folder = os.path.join(data, "tokenizer")
            stator(a, "tokenizer", "train", "--input", a.text, "--vocab-size",
                   str(a.vocab_size), "--output", folder)
            vocab = os.path.join(folder, "vocab.json")
            merges = os.path.join(folder, "merges.txt")
        flags = ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", vocab,
                 "--merge-file", merges, "--append-eod"]
        with open(vocab, encoding="utf-8") as f:
            size = max(json.load(f).values()) + 1
    stator(a, "preprocess", "--input", documents, "--output-prefix",
           os.path.join(data, "text"), "--workers", str(a.threads), *flags)
    return size


def initial_weights(a, vocab):
    """GPT-2's: normal 0.02, the projections into the residual stream 0.02 / sqrt(2 L)."""
    gen = torch.Generator().manual_seed(a.seed)
    h, w = a.hidden, {}
    normal = lambda *shape, std=0.02: torch.randn(*shape, generator=gen) * std
    last = 0.02 / math.sqrt(2 * a.layers)

    def norm(name):
        w[name + ".weight"], w[name + ".bias"] = torch.ones(h), torch.zeros(h)

    w["wte.weight"], w["wpe.weight"] = normal(vocab, h), normal(a.seq, h)
    for i in range(a.layers):
        for name, rows, cols, std in (("attn.c_attn", h, 3 * h, 0.02),
                                      ("attn.c_proj", h, h, last),
                                      ("mlp.c_fc", h, 4 * h, 0.02),
                                      ("mlp.c_proj", 4 * h, h, last)):
            w[f"h.{i}.{name}.weight"] = normal(rows, cols, std=std)
            w[f"h.{i}.{name}.bias"] = torch.zeros(cols)
        norm(f"h.{i}.ln_1")
        norm(f"h.{i}.ln_2")
    norm("ln_f")
    return w


def save_safetensors(path, tensors):
    header, at = {}, 0
    for name, t in tensors.items():
        end = at + 4 * t.numel()
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            f.write(t.contiguous().numpy().astype("<f4").tobytes())


def save_model(a, vocab, weights):
    folder = os.path.join(a.out, "init")
    os.makedirs(folder)
    write_json(os.path.join(folder, "config.json"), {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": a.layers,
        "n_embd": a.hidden, "n_head": a.heads, "vocab_size": vocab, "n_positions": a.seq,
        "activation_function": "gelu_new", "layer_norm_epsilon": NORM_EPS,
        "tie_word_embeddings": True, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
        "resid_pdrop": 0.0})
    save_safetensors(os.path.join(folder, "model.safetensors"), weights)


def write_config(a, vocab):
    path = os.path.join(a.out, "config.yaml")
    quoted = lambda *parts: json.dumps(os.path.abspath(os.path.join(a.out, *parts)))
    text = f"""\
seed: {a.seed}
init_from: {quoted("init")}
output_dir: {quoted("run")}
context: {{threads: {a.threads}}}
model:
  model_config: {{type: GPT2Config, vocab_size: {vocab}, seq_length: {a.seq},
    hidden_size: {a.hidden}, num_layers: {a.layers}, num_heads: {a.heads},
    hidden_act: gelu, norm_epsilon: {NORM_EPS}, eos_token: -1}}
train_dataset:
  data_loader: {{type: GPTDataset, data_path: [{quoted("data", "text_text_document")}],
    split: [90, 10, 0]}}
runner_config: {{max_steps: {a.steps}, batch_size: {a.batch}, log_interval: 10,
  eval_interval: {a.eval_interval}, eval_iters: {a.eval_iters}}}
runner_wrapper: {{use_clip_grad: True, max_grad_norm: {CLIP}}}
optimizer: {{type: AdamW, beta1: {BETAS[0]}, beta2: {BETAS[1]}, eps: {EPS},
  weight_decay: {DECAY}}}
lr_schedule: {{type: cosine, learning_rate: {a.lr!r}, lr_end: {a.lr_end!r},
  warmup_steps: {a.warmup}}}
callbacks:
  - {{type: CheckpointMonitor, save_checkpoint_steps: 0}}
"""
    with open(path, "w") as f:
        f.write(text)
    return path


# ---- stator

def read_lines(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


def train_stator(a, config):
    begin = time.time()
    stator(a, "train", config, "--resume", "never")
    seconds = time.time() - begin
    steps = read_lines(os.path.join(a.out, "run", "metrics.jsonl"))
    steps = [s for s in steps if "loss" in s]
    for s in steps:
        if abs(s["lr"] - learning_rate(a, s["step"])) > 1e-5 * a.lr:
            stop(f"step {s['step']}: stator's learning rate is {s['lr']}, and "
                 f"{learning_rate(a, s['step'])} is asked for")
    valid = read_lines(os.path.join(a.out, "run", "valid.jsonl"))
    valid = [v for v in valid if "valid_loss" in v]
    return {"train": [[s["step"], s["loss"]] for s in steps],
            "valid": [[v["step"], v["valid_loss"]] for v in valid], "seconds": seconds}


# ---- PyTorch

def samples(a, config, split, count):
    """Tokens, labels, mask, each [count, seq]: what stator's training meets, in order."""
    rows = []
    for at in range(0, count, SAMPLES_AT_ONCE):
        wanted = range(at, min(at + SAMPLES_AT_ONCE, count))
        answer = json.loads(stator(a, "inspect", config, "--split", split, "--samples",
                                   ",".join(map(str, wanted)), "--json", capture=True))
        rows += answer["items"]
    for r in rows:
        if r["position_ids"] != list(range(a.seq)) or any(r["attends_from"]):
            stop(f"{split} sample {r['sample']}: positions or attention begin anew in it")
    return (torch.tensor([r["tokens"] for r in rows]),
            torch.tensor([r["labels"] for r in rows]),
            torch.tensor([r["loss_mask"] for r in rows]))


def learning_rate(a, step):
    """Of update `step`, from 1. The clock starts at 0: a warm-up begins with rate 0."""
    clock = step - 1
    if clock < a.warmup:
        return a.lr * clock / a.warmup
    done = (clock - a.warmup) / max(1, a.steps - a.warmup)
    return a.lr_end + 0.5 * (a.lr - a.lr_end) * (1 + math.cos(math.pi * min(done, 1)))


def mean_loss(a, w, tokens, labels, mask):
    """Masked mean of -log softmax(logits)[label] of one batch, of GPT-2."""
    b, t = tokens.shape
    linear = lambda x, name: x @ w[name + ".weight"] + w[name + ".bias"]
    norm = lambda x, name: F.layer_norm(x, (a.hidden,), w[name + ".weight"],
                                        w[name + ".bias"], NORM_EPS)
    heads = lambda x: x.view(b, t, a.heads, -1).transpose(1, 2)
    s = w["wte.weight"][tokens] + w["wpe.weight"][:t]
    for i in range(a.layers):
        p = f"h.{i}."
        qkv = linear(norm(s, p + "ln_1"), p + "attn.c_attn").split(a.hidden, -1)
        y = F.scaled_dot_product_attention(*map(heads, qkv), is_causal=True)
        s = s + linear(y.transpose(1, 2).reshape(b, t, a.hidden), p + "attn.c_proj")
        y = F.gelu(linear(norm(s, p + "ln_2"), p + "mlp.c_fc"), approximate="tanh")
        s = s + linear(y, p + "mlp.c_proj")
    logits = norm(s, "ln_f") @ w["wte.weight"].T
    each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return (each * mask.flatten()).sum() / mask.sum()


def validate(a, w, batches):
    """Mean of the batches' losses, over the first eval_iters batches."""
    with torch.no_grad():
        losses = [mean_loss(a, w, *(x[k * a.batch:(k + 1) * a.batch] for x in batches))
                  for k in range(a.eval_iters)]
    return torch.stack(losses).double().mean().item()


def train_pytorch(a, weights, train, valid):
    torch.set_num_threads(a.threads)
    w = {name: t.clone().requires_grad_() for name, t in weights.items()}
    groups = [{"params": [p for p in w.values() if p.dim() > 1], "weight_decay": DECAY},
              {"params": [p for p in w.values() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=a.lr, betas=BETAS, eps=EPS)
    curve = {"train": [], "valid": []}
    begin = time.time()
    for step in range(1, a.steps + 1):
        rows = slice((step - 1) * a.batch, step * a.batch)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(a, step)
        optimizer.zero_grad()
        loss = mean_loss(a, w, *(x[rows] for x in train))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(w.values(), CLIP)
        optimizer.step()
        curve["train"].append([step, loss.item()])
        if step % 10 == 0 or step == a.steps:
            print(f"PyTorch step {step}/{a.steps}: loss {loss.item():.4f}, "
                  f"{time.time() - begin:.0f} s", flush=True)
        if step % a.eval_interval == 0 or step == a.steps:
            curve["valid"].append([step, validate(a, w, valid)])
    curve["seconds"] = time.time() - begin
    return curve


# ---- results

def ticks(low, high):
    """About six round numbers within low .. high."""
    raw = (high - low) / 6
    unit = 10.0 ** math.floor(math.log10(raw))
    unit *= next(m for m in (1, 2, 5, 10) if m * unit >= raw * 0.999)
    first = math.ceil(low / unit - 1e-9)
    return [k * unit for k in range(first, math.floor(high / unit + 1e-9) + 1)]


def svg(curves, title):
    """Validation losses as lines with marks, losses of the steps as pale lines."""
    width, height, left, top, right, bottom = 760, 460, 62, 40, 24, 48
    points = [p for c in curves.values() for p in c["train"] + c["valid"]]
    x_high = max(max(p[0] for p in points), 1)
    y_low, y_high = min(p[1] for p in points), max(p[1] for p in points)
    room = max(0.05 * (y_high - y_low), 0.01)
    y_low, y_high = y_low - room, y_high + room
    x = lambda v: left + v / x_high * (width - left - right)
    y = lambda v: top + (y_high - v) / (y_high - y_low) * (height - top - bottom)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="24" font-size="14">{title}</text>']
    for v in ticks(y_low, y_high):
        out.append(f'<path d="M{left} {y(v):.1f}H{width - right}" stroke="#e5e5e5"/>'
                   f'<text x="{left - 8}" y="{y(v) + 4:.1f}" '
                   f'text-anchor="end">{v:g}</text>')
    for v in ticks(0, x_high):
        out.append(f'<path d="M{x(v):.1f} {top}V{height - bottom}" stroke="#f0f0f0"/>'
                   f'<text x="{x(v):.1f}" y="{height - bottom + 18}" '
                   f'text-anchor="middle">{v:g}</text>')
    out.append(f'<text x="{(left + width - right) / 2}" y="{height - 10}" '
               'text-anchor="middle">step</text><text transform="translate(16 '
               f'{height / 2}) rotate(-90)" text-anchor="middle">loss</text>')
    for k, (name, c) in enumerate(curves.items()):
        color, dash = COLORS[name], ' stroke-dasharray="6 5"' if k else ""
        line = lambda part: " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in c[part])
        out.append(f'<polyline points="{line("train")}" fill="none" stroke="{color}" '
                   f'stroke-opacity="0.3"{dash}/>')
        out.append(f'<polyline points="{line("valid")}" fill="none" stroke="{color}" '
                   f'stroke-width="2"{dash}/>')
        out += [f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="{6 - 3 * k}" '
                f'fill="{"white" if k == 0 else color}" stroke="{color}"/>'
                for s, v in c["valid"]]
        row, at = top + 20 + 20 * k, width - right - 250
        out.append(f'<path d="M{at} {row - 4}h30" stroke="{color}" '
                   f'stroke-width="2"{dash}/><text x="{at + 38}" y="{row}">'
                   f'{name}: validation (pale: training)</text>')
    return "\n".join(out) + "\n</svg>\n"


def compare(curves):
    """Prints the points; the ratio of the last losses."""
    one, two = curves["stator"], curves["pytorch"]
    for part in ("train", "valid"):
        if [p[0] for p in one[part]] != [p[0] for p in two[part]]:
            stop(f"the two have other steps in their {part} curves")
    worst = max(zip(one["train"], two["train"]), key=lambda p: abs(p[0][1] - p[1][1]))
    print(f"\ntraining loss of {len(one['train'])} steps: largest difference "
          f"{abs(worst[0][1] - worst[1][1]):.2e}, at step {worst[0][0]}")
    print(f"seconds, start and compilation included: stator {one['seconds']:.1f}, "
          f"PyTorch {two['seconds']:.1f}")
    print("  step  stator    PyTorch   difference")
    for (step, s), (_, p) in zip(one["valid"], two["valid"]):
        print(f"{step:6d}  {s:.5f}  {p:.5f}  {100 * (s - p) / p:+.4f} %")
    ratio = one["valid"][-1][1] / two["valid"][-1][1]
    print(f"ratio valid_loss stator/pytorch = {ratio:.6f}")
    return ratio


def main():
    a = parse_arguments()
    if torch is None:
        stop("PyTorch is needed: pip install torch")
    vocab = prepare_tokens(a)
    weights = initial_weights(a, vocab)
    save_model(a, vocab, weights)
    config = write_config(a, vocab)
    parameters = sum(t.numel() for t in weights.values())
    title = (f"GPT-2 of {parameters / 1e6:.1f} million parameters, {a.steps} steps of "
             f"{a.batch} x {a.seq} tokens, {vocab} tokens in the vocabulary")
    print(title, flush=True)
    train = samples(a, config, "train", a.steps * a.batch)
    valid = samples(a, config, "valid", a.eval_iters * a.batch)
    curves = {"stator": train_stator(a, config)}
    curves["pytorch"] = train_pytorch(a, weights, train, valid)
    settings = {k: v for k, v in vars(a).items() if k not in ("stator", "out")}
    settings.update(parameters=parameters, vocabulary=vocab, pytorch=torch.__version__)
    write_json(os.path.join(a.out, "curves.json"), {"settings": settings, **curves})
    with open(os.path.join(a.out, "curves.svg"), "w") as f:
        f.write(svg(curves, title))
    ratio = compare(curves)
    return 0 if abs(ratio - 1) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
