"""Configurations: the part of YAML that people write, read without the program. The keys,
their types and bounds are those of docs/keys.md. See readers.py."""
import math
import os
import re

from readers import Bad, need

DOCS = os.path.join(os.path.dirname(__file__), "../../docs/keys.md")
ROW = re.compile(r"\| `([\w.]+)` \| ([^|`]*) \| [^|]* \| [^|]* \| [^|]* \|")
ALIAS = re.compile(r"\| `([\w.]+)` \| `")
LINE = re.compile(r"( *)([A-Za-z_]\w*):(?: +([^ ].*?))? *(?: #.*)?")
PLAIN = re.compile(r"[A-Za-z0-9_+./][A-Za-z0-9_+./-]*|-[0-9.][A-Za-z0-9_+./-]*")
NUMBER = re.compile(r"[+-]?(\d[\d_]*(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
TRUE = ("True", "true", "TRUE", "yes", "Yes", "YES", "on", "On", "ON")
FALSE = ("False", "false", "FALSE", "no", "No", "NO", "off", "Off", "OFF")
NULL = ("null", "Null", "NULL", "~", "")
UNITS = {"TB": 4, "GB": 3, "MB": 2, "KB": 1, "B": 0}

GOOD = """\
seed: 7
output_dir: ./output
context:
  max_device_memory: 30GB
runner_config:
  batch_size: 4
  max_steps: 20
model:
  model_config:
    vocab_size: 256
    hidden_size: 32
    num_layers: 2
    num_heads: 4
    seq_length: 16
    hidden_act: gelu
    norm_epsilon: 1e-5
    dropout_prob: 0.0
optimizer:
  type: AdamW
  beta1: 0.9
  beta2: 0.95
  weight_decay: 0.1
lr_schedule:
  type: cosine
  learning_rate: 6e-4
  warmup_ratio: 0.05
runner_wrapper:
  use_clip_grad: True
  max_grad_norm: 1.0
parallel_config:
  data_parallel: 1
  micro_batch_num: 2
train_dataset:
  data_loader:
    type: TextFile
    dataset_dir: embedded
    shuffle: False
"""
VALUES = [b"0", b"1", b"2", b"7", b"-1", b"+5", b"12", b"010", b"1_000", b"0x1f", b"1e3",
          b"12.0", b"0.5", b".5", b"5.", b"1e-3", b"1e400", b"2147483648",
          b"9223372036854775808", b"99999999999999999999", b"true", b"yes", b"Off", b"Y",
          b"null", b"~", b"", b'"8"', b"'8'", b'"True"', b"!!int 5", b"!!str 5", b"&a 5",
          b"*a", b"[1]", b"[]", b"{}", b"{a: 1}", b"- 3", b"|", b">", b"5 # five", b"#",
          b"30GB", b"0.5MB", b"64 MB", b"10 XB", b"1e3MB", b"nan", b".nan", b".inf", b"inf",
          b"gelu", b"swiglu", b"silu", b"relu", b"Adam", b"SGD", b"linear", b"constant",
          b"embedded", b"a b", b'"a\\nb"', b"\xc3\xa9", b"\xff", b"0o17", b"1:30",
          b"2001-01-01", b"<<", b"1__0", b"_1", b"1e", b"--1", b"0b1"]


class Outside(Exception):
    """More of YAML than is read here: no opinion."""


def keys_of_docs():
    rows, aliases = {}, set()
    with open(DOCS, encoding="utf-8") as f:
        for line in f:
            m, a = ROW.match(line), ALIAS.match(line)
            if m and m[1] not in rows:
                rows[m[1]] = m[2].strip()
            elif a:
                aliases.add(a[1])
    return rows, aliases


ROWS, ALIASES = keys_of_docs()
SECTIONS = {p.rsplit(".", i)[0] for p in list(ROWS) + list(ALIASES)
            for i in range(1, p.count(".") + 1)}


def scalar(s):
    """Text and whether it is quoted; None is null."""
    if s is None:
        return None
    if re.fullmatch(r'"[A-Za-z0-9_+./ -]*"', s) or re.fullmatch(r"'[A-Za-z0-9_+./ -]*'", s):
        return s[1:-1], True
    if not PLAIN.fullmatch(s):
        raise Outside()
    return None if s in NULL else (s, False)


def parse(b):
    """Paths with their scalars."""
    try:
        text = b.decode("ascii")
    except UnicodeDecodeError:
        raise Outside() from None
    values, stack = {}, [(-1, "")]
    lines = [x for x in text.split("\n") if x.strip(" ") and not x.lstrip(" ").startswith("#")]
    for i, line in enumerate(lines):
        m = LINE.fullmatch(line)
        if not m or any(ord(c) < 32 for c in line) or m[2] in NULL + TRUE + FALSE:
            raise Outside()
        indent = len(m[1])
        while stack[-1][0] >= indent:
            stack.pop()
        after = lines[i + 1] if i + 1 < len(lines) else ""
        deeper = len(after) - len(after.lstrip(" ")) > indent and after.strip(" ") != ""
        siblings = [s for s in values if s.rpartition(".")[0] == stack[-1][1]]
        if siblings and values[siblings[0]][1] != indent:
            raise Outside()
        path = f"{stack[-1][1]}.{m[2]}".lstrip(".")
        need(path not in values, f"{path} twice")
        if deeper and m[3] is not None:
            raise Outside()
        values[path] = (scalar(m[3]), indent, deeper)
        stack.append((indent, path))
    return values


def number(s):
    m = NUMBER.fullmatch(s)
    need(m, f"{s} is no number")
    v = float(s.replace("_", ""))
    need(math.isfinite(v), "infinite")
    return v


def integer(s):
    if re.fullmatch("0[xX][0-9a-fA-F]+", s):
        return int(s, 16)
    v = number(s)
    need(not re.match(r"[+-]?0\d", s.replace("_", "")), "leading zero")
    if re.fullmatch(r"[+-]?[\d_]+", s):
        v = int(s.replace("_", ""))
    need(v == int(v) and -2**63 <= v < 2**63, "no integer")
    return int(v)


def memory(s):
    m = re.fullmatch(r"([\d.]+) ?(TB|GB|MB|KB|B)", s)
    need(m, "no size")
    return int(number(m[1]) * 1024 ** UNITS[m[2]])


BOUND = r"(-?[\d.e+-]+)"
BOUNDS = re.compile(
    rf", (?:{BOUND} or )?(?:(at least|at most|above) {BOUND}(?:, up to {BOUND})?|"
    rf"{BOUND} to {BOUND})$")


def in_bounds(what, v):
    """Of "at least 1", "at most 1", "above 0", "above 0, up to 5", "1 to 5", "-1 or 1 to 5"."""
    m = BOUNDS.search(what)
    if not m or m[1] and v == float(m[1]):
        return True
    if m[2] == "at most":
        return v <= float(m[3])
    low, high = float(m[3] or m[5]), float(m[4] or m[6] or "inf")
    return (v > low if m[2] == "above" else v >= low) and v <= high


def boolean(s):
    need(s in TRUE + FALSE, "no True or False")
    return s in TRUE


KINDS = (("a whole number", integer, int), ("a number", number, float),
         ("True or False", boolean, lambda s: {"True": True, "False": False}[s]),
         ("a size", memory, memory), ("a text", str, str))


def expected(path, value):
    """What the value must be read as, and how the answer is to be read."""
    what = ROWS[path]
    for start, read, answer in KINDS:
        if what.startswith(start):
            v = read(value)
            if read in (integer, number):
                need(in_bounds(what, v), "out of bounds")
            return v, answer
    return None


def read_config(b, limits):
    limits.append("keys that do not go together")
    try:
        values = parse(b)
    except Outside:
        return stable
    want = {}
    for path, (value, _, deeper) in values.items():
        need(path in ROWS or path in ALIASES or path in SECTIONS
             or any(path.startswith(p + ".") and ROWS[p] == "a section" for p in ROWS),
             f"unknown key {path}")
        if path in ROWS and not deeper and value is not None and ROWS[path] != "a section":
            want[path] = expected(path, value[0])

    def differs(answer):
        wrong = stable(answer)
        for line in answer.splitlines():
            path, _, text = line.partition(" '")
            if not want.get(path):
                continue
            v, read = want[path]
            if read(bytes.fromhex(text).decode()) != v:
                wrong = f"{path} must be {v}"
        return wrong

    return differs


def stable(answer):
    return "its printed form is another" if "printed as another" in answer else None
