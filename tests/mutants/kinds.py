"""What is mutated: of each kind of file good ones, ways to change them, and how the
program and the readers are asked. See mutants.py."""
import json
import math
import os
import random
import re
import struct

import bpe
import config
import hf
import mutate
import readers
from checkpoint import read_checkpoint, read_newest
from readers import Bad
from xxh3 import hex_128, xxh3_64

HERE = os.path.dirname(os.path.abspath(__file__))
SEQ, SAMPLES, SEED = 6, 25, 77 # of read_gpt in kinds.c


def dump(v):
    return json.dumps(v).encode()


def pick(rng, files):
    """The name of one of them."""
    return rng.choice(sorted(files))


class Kind:
    """good: files by name. Mutants are made of them by `mutant`; `ask` is what read.c is
    told; `read` gives what the files hold, as in readers.py."""
    reader = None # the name in read.c, when it is another
    share = 1
    own_work = False # the reader writes to the folder: it gets one of its own

    def prepare(self, work):
        """Makes the good files; work.ask(kind, path, more) asks the program."""

    def goods(self):
        return [self.good]

    def mutant(self, rng):
        raise NotImplementedError

    def ask(self, folder):
        return folder, ""

    def read(self, files, limits):
        raise NotImplementedError


class OneFile(Kind):
    file = "file"

    def ask(self, folder):
        return os.path.join(folder, self.file), ""


# ---- safetensors ----

def safetensors(tensors, meta=None):
    """Bytes of {name: (type, shape, data)}."""
    root, at = {}, 0
    if meta is not None:
        root["__metadata__"] = meta
    for name, (kind, shape, data) in tensors.items():
        root[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    header = dump(root)
    header += b" " * (-len(header) % 8)
    return (len(header).to_bytes(8, "little") + header +
            b"".join(d for _, _, d in tensors.values()))


def numbers(rng, kind, n):
    size = readers.FILE_TYPES[kind] // 8
    if kind == "F32":
        return struct.pack(f"<{n}f", *(rng.uniform(-2, 2) for _ in range(n)))
    return bytes(rng.randrange(0x30) for _ in range(n * size))


def any_tensors(rng):
    out = {}
    for i in range(rng.randrange(6)):
        kind = rng.choice(("F32", "F32", "F64", "BF16", "F16", "I64", "I32", "U8", "BOOL"))
        shape = [rng.choice((0, 1, 1, 2, 3, 5)) for _ in range(rng.randrange(4))]
        name = rng.choice(("w", "h.0.x", "\u20ac", 'q"\\', "a b", "")) + str(i)
        out[name] = kind, shape, numbers(rng, kind, math.prod(shape))
    return out


def split_safetensors(b):
    n = int.from_bytes(b[:8], "little")
    return b[8:8 + n], b[8 + n:]


def join_safetensors(header, data):
    return len(header).to_bytes(8, "little") + header + data


TENSOR_WORDS = [b'"F32"', b'"BF16"', b'"F16"', b'"I64"', b'"F4"', b'"f32"', b"[]", b"[0]",
                b"[0,0]", b"[2,3]", b"[0,24]", b"[24,24]", b"[1,1,1,1,1,1,1,1,6]"]


def change_safetensors(rng, b):
    """Header with its length made right, or the bytes as they come."""
    way = rng.randrange(6)
    if way == 0:
        return mutate.in_bytes(rng, b)
    header, data = split_safetensors(b)
    if way == 1:
        return join_safetensors(mutate.in_bytes(rng, header), data)
    if way == 2:
        data = mutate.in_bytes(rng, data)
        return join_safetensors(header, data)
    tree = mutate.tree_of(json.loads(header))
    return join_safetensors(mutate.in_json(rng, tree, TENSOR_WORDS), data)


class Safetensors(OneFile):
    name = reader = "safetensors"
    file = "x.safetensors"
    share = 3

    def prepare(self, work):
        rng = random.Random(1)
        self.good = {self.file: safetensors(any_tensors(rng) | {
            "last": ("F32", [2, 3], numbers(rng, "F32", 6))}, {"format": "pt"})}

    def mutant(self, rng):
        b = safetensors(any_tensors(rng), rng.choice((None, {}, {"a": "b", "c": ""})))
        return {self.file: change_safetensors(rng, b) if rng.random() < 0.93 else b}

    def read(self, files, limits):
        return readers.read_safetensors(files[self.file], limits)


def sharded(tensors, parts):
    """The files of a folder with an index."""
    names, files, where = list(tensors), {}, {}
    for i in range(parts):
        file = f"model-{i + 1:05d}-of-{parts:05d}.safetensors"
        mine = names[i::parts]
        files[file] = safetensors({k: tensors[k] for k in mine})
        where.update({k: file for k in mine})
    size = sum(len(d) for _, _, d in tensors.values())
    files["model.safetensors.index.json"] = dump(
        {"metadata": {"total_size": size}, "weight_map": where})
    return files


def change_folder(rng, files):
    """A change of one file of a folder of weights: its content, or its name."""
    files = dict(files)
    name = pick(rng, files)
    way = rng.randrange(12)
    if way == 0:
        del files[name]
    elif way == 1:
        other = pick(rng, files)
        files[name], files[other] = files[other], files[name]
    elif name.endswith(".json"):
        words = [dump(k) for k in files] + [b'"' + name.encode() + b'"', b'"."', b'".."']
        files[name] = mutate.in_json(rng, mutate.tree_of(json.loads(files[name])), words)
    else:
        files[name] = change_safetensors(rng, files[name])
    return files


class Shards(Kind):
    name, reader = "shards", "safetensors"

    def prepare(self, work):
        rng = random.Random(2)
        self.good = sharded({f"t{i}": ("F32", [2], numbers(rng, "F32", 2))
                             for i in range(5)}, 2)

    def mutant(self, rng):
        return change_folder(rng, self.good)

    def read(self, files, limits):
        if "model.safetensors.index.json" not in files:
            raise Bad("no index")
        return readers.read_shards(files, limits)


class HuggingFace(Kind):
    name = reader = "hf"
    share = 2

    def prepare(self, work):
        rng = random.Random(3)
        self.all = []
        for i, v in enumerate((hf.GPT2, hf.LLAMA, hf.GPT2)):
            spec = hf.spec_of(dump(v), [])
            kinds = ("F32", "F16", "BF16")
            tensors = {}
            for k, shape in hf.tensors_of(spec).items():
                kind = kinds[rng.randrange(3)] if i else "F32"
                tensors[k] = kind, shape, numbers(rng, kind, math.prod(shape))
            files = sharded(tensors, 2) if i == 2 else {"model.safetensors":
                                                        safetensors(tensors)}
            self.all.append(files | {"config.json": dump(v)})

    def goods(self):
        return self.all

    def mutant(self, rng):
        files = dict(rng.choice(self.all))
        if rng.random() < 0.5:
            tree = mutate.tree_of(json.loads(files["config.json"]))
            words = [b'"gelu"', b'"silu"', b"true", b"false", b"null", b"4", b"2", b"1",
                     b"0.1", b"[10, 3]", b'"llama"', b"1e-6", b"16"]
            files["config.json"] = mutate.in_json(rng, tree, words)
            return files
        return change_folder(rng, files)

    def read(self, files, limits):
        if "config.json" not in files:
            raise Bad("no config.json")
        if not {"model.safetensors", "model.safetensors.index.json"} & set(files):
            raise Bad("no weights")
        return hf.read_hf(files, limits)


# ---- data ----

class Npy(OneFile):
    name = reader = "npy"
    file = "x.npy"

    @staticmethod
    def npy(kind, shape, data, version=1):
        text = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (kind, shape)
        wide = 2 if version == 1 else 4
        text += " " * (-(len(text) + 9 + wide) % 64) + "\n"
        return (b"\x93NUMPY" + bytes((version, 0)) + len(text).to_bytes(wide, "little") +
                text.encode() + data)

    def prepare(self, work):
        self.good = {self.file: self.npy("<f4", (2, 3), bytes(range(24)))}

    def mutant(self, rng):
        kind = rng.choice(("<f4", "<f8", "<f2", "<i4", "<i8", "|u1", "|b1", "<u2", "|i1"))
        shape = tuple(rng.choice((0, 1, 2, 3)) for _ in range(rng.randrange(4)))
        data = bytes(rng.randrange(2) for _ in range(math.prod(shape) * int(kind[-1])))
        b = self.npy(kind, shape, data, rng.choice((1, 1, 2, 3)))
        way = rng.random()
        if way < 0.05:
            return {self.file: b}
        if way < 0.4:
            return {self.file: mutate.in_bytes(rng, b)}
        wide = 2 if b[6] == 1 else 4
        header, data = b[8 + wide:len(b) - len(data)], b[len(b) - len(data):]
        words = [b"True", b"False", b"'<f4'", b"(", b")", b",", b"shape", b"descr", b"None",
                 b"-1", b"0", b"()", b"(6,)", b"(6)", b"[6]", b"'", b"#", b"\\x27", b">"]
        header = (mutate.in_words(rng, header, words) if rng.randrange(2)
                  else mutate.in_bytes(rng, header))[:60000]
        return {self.file: b[:8] + len(header).to_bytes(wide, "little") + header + data}

    def read(self, files, limits):
        return readers.read_npy(files[self.file], limits)


def indexed_pair(rng, code=None):
    """.idx and .bin of a few documents."""
    code = code or rng.choice((8, 8, 4, 4, 1, 2, 3, 5, 6, 7))
    documents = [[rng.randrange(1, 9) for _ in range(rng.choice((1, 1, 1, 2, 0)))]
                 for _ in range(rng.randrange(1, 6))]
    lengths = [n for d in documents for n in d]
    size = struct.calcsize("<" + readers.CODES[code])
    pointers, at = [], 0
    for n in lengths:
        pointers.append(at)
        at += n * size
    ends = [0]
    for d in documents:
        ends.append(ends[-1] + len(d))
    tokens = [rng.randrange(100) for _ in range(sum(lengths))]
    data = struct.pack(f"<{len(tokens)}{readers.CODES[code]}", *tokens)
    return join_idx(code, lengths, pointers, ends), data


def join_idx(code, lengths, pointers, ends):
    s = len(lengths)
    return (b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, s, len(ends)) +
            struct.pack(f"<{s}i{s}q{len(ends)}q", *lengths, *pointers, *ends))


def change_pair(rng, idx, data):
    way = rng.randrange(8)
    if way == 0:
        return idx, mutate.in_bytes(rng, data)
    if way == 1:
        return idx + rng.choice((bytes(1), bytes(int.from_bytes(idx[18:26], "little")),
                                 b"\1")), data
    if way == 2: # another type of element, or a field of the header
        b = bytearray(idx)
        b[rng.choice((9, 17, 17, 18, 26))] = rng.randrange(10)
        return bytes(b), data
    if way == 3: # two sequences in another order, made right again
        code, lengths, ends, _ = readers.indexed(idx, data, [])
        lengths = list(lengths)
        rng.shuffle(lengths)
        size = len(data) // max(sum(lengths), 1)
        pointers = [size * sum(lengths[:i]) for i in range(len(lengths))]
        return join_idx(code, lengths, pointers, ends), data
    if way in (4, 5): # one entry of a table: a near number, or one at an edge
        code, lengths, ends, _ = readers.indexed(idx, data, [])
        size = len(data) // max(sum(lengths), 1)
        tables = [list(lengths), [size * sum(lengths[:i]) for i in range(len(lengths))],
                  list(ends)]
        table = rng.choice([t for t in tables if t])
        i = rng.randrange(len(table))
        table[i] += rng.choice((-1, 1, 2, size, -size, rng.choice(mutate.EDGES[:14])))
        if rng.random() < 0.2:
            rng.shuffle(table)
        tables[0] = [(n + 2**31) % 2**32 - 2**31 for n in tables[0]]
        return join_idx(code, *tables), data
    return mutate.in_bytes(rng, idx), data


class Indexed(Kind):
    name = reader = "indexed"
    share = 2

    def prepare(self, work):
        idx, data = indexed_pair(random.Random(4))
        self.good = {"x.idx": idx, "x.bin": data}

    def mutant(self, rng):
        idx, data = indexed_pair(rng)
        if rng.random() < 0.95:
            idx, data = change_pair(rng, idx, data)
        return {"x.idx": idx, "x.bin": data}

    def ask(self, folder):
        return os.path.join(folder, "x"), ""

    def read(self, files, limits):
        return readers.read_indexed(files["x.idx"], files["x.bin"], limits)


class Gpt(Indexed):
    name = reader = "gpt"
    share = 1

    def read(self, files, limits):
        _, lengths, _, tokens = readers.indexed(files["x.idx"], files["x.bin"], limits)
        indices = readers.gpt_indices(lengths, SEQ, SAMPLES, SEED)
        return readers.gpt_samples(lengths, tokens, indices, SEQ, len(indices[2]))


class GptCache(Kind):
    """The pair is always good; its index cache is not. It never fails a run."""
    name, reader = "gpt_cache", "gpt"
    own_work = True

    def prepare(self, work):
        idx, data = indexed_pair(random.Random(11), 8)
        self.pair = {"x.idx": idx, "x.bin": data}
        folder = work.write(self.pair)
        cache = os.path.join(folder, "cache")
        work.ask(self.reader, os.path.join(folder, "x"), cache)
        (self.file,) = os.listdir(cache)
        with open(os.path.join(cache, self.file), "rb") as f:
            self.good = self.pair | {"cache/" + self.file: f.read()}

    def mutant(self, rng):
        b = self.good["cache/" + self.file]
        if rng.random() < 0.25:
            b = mutate.in_bytes(rng, b)
        else:
            key, data = b[8:40], b[64:]
            if rng.random() < 0.1:
                key = mutate.in_bytes(rng, key, 1).ljust(32, b"0")[:32]
            data = mutate.in_bytes(rng, data)
            head = b[:8] + key + struct.pack("<QQ", len(data), xxh3_64(data))
            b = head + struct.pack("<Q", xxh3_64(head)) + data
        return self.pair | {"cache/" + self.file: b}

    def ask(self, folder):
        return os.path.join(folder, "x"), os.path.join(folder, "cache")

    def read(self, files, limits):
        _, lengths, _, tokens = readers.indexed(files["x.idx"], files["x.bin"], [])
        try:
            indices = readers.gpt_cache(files["cache/" + self.file],
                                        self.file[:32].encode(), lengths, SEQ)
        except Bad:
            indices = readers.gpt_indices(lengths, SEQ, SAMPLES, SEED)
        return readers.gpt_samples(lengths, tokens, indices, SEQ, len(indices[2]))


class Object(OneFile):
    """A compiled object: what is taken would run."""
    name = reader = "object"
    key = "0123456789abcdef0123456789abcdef"
    file = key + ".o"
    own_work = True

    def seal(self, head, data):
        sum_of = hex_128(head + bytes(32) + data).encode()
        return head + sum_of + data

    def prepare(self, work):
        data = random.Random(5).randbytes(300)
        self.head = b"statorO2" + len(data).to_bytes(8, "little") + self.key.encode()
        self.data = data
        self.good = {self.file: self.seal(self.head, data)}

    def mutant(self, rng):
        b = self.good[self.file]
        if rng.random() < 0.4:
            return {self.file: mutate.in_bytes(rng, b)}
        head, data = self.head, self.data
        if rng.randrange(2):
            head = mutate.in_bytes(rng, head)
        else:
            data = mutate.in_bytes(rng, data)
            if rng.randrange(2):
                head = head[:8] + len(data).to_bytes(8, "little") + head[16:]
        return {self.file: self.seal(head, data)}

    def ask(self, folder):
        return os.path.join(folder, self.file), self.key

    def read(self, files, limits):
        return readers.read_object(files[self.file], self.key.encode(), limits)


# ---- tables ----

class RankTable(OneFile):
    name = reader = "rank_table"
    file = "table.json"

    def prepare(self, work):
        table = {"version": "1.0", "server_count": "2", "status": "completed",
                 "server_list": [
                     {"server_id": "10.0.0.1", "host_nic_ip": "reserve", "device": [
                         {"device_id": "0", "device_ip": "192.1.1.6", "rank_id": "0"},
                         {"device_id": "1", "rank_id": "2"}]},
                     {"server_id": "node-b", "device": [{"device_id": 0, "rank_id": 1}]}]}
        self.tree = mutate.tree_of(table)
        self.good = {self.file: dump(table)}

    def mutant(self, rng):
        words = [b'"0"', b'"1"', b"0", b"1", b"2", b'"2"', b'"10.0.0.1"', b'"-x"', b'"a b"',
                 b'"00000000001"', b'"+1"', b"3.0"]
        return {self.file: mutate.in_json(rng, self.tree, words)}

    def read(self, files, limits):
        return readers.read_rank_table(files[self.file], limits)


class Metrics(OneFile):
    name = reader = "metrics"
    file = "metrics.jsonl"
    own_work = True
    resumed = 4

    def prepare(self, work):
        rows = []
        for step in range(1, 7):
            row = {"step": step, "loss": 3.5 / step, "grad_norm": 1.25, "lr": 6e-4,
                   "tokens": 1024, "seconds": 0.5, "tokens_per_second": 2048, "mfu": 0.1}
            if step == 3:
                row |= {"loss": None, "loss_is": "inf", "skipped": True}
            rows.append(row)
        self.rows = rows
        self.good = {self.file: b"".join(dump(r) + b"\n" for r in rows)}

    def mutant(self, rng):
        lines = [dump(r) for r in self.rows]
        words = [b'"nan"', b'"inf"', b'"-inf"', b"null", b"true", b"1e-320", b"3.0"]
        for _ in range(rng.randrange(3)):
            i = rng.randrange(len(lines))
            lines[i] = mutate.in_json(rng, mutate.tree_of(rng.choice(self.rows)), words)
        b = b"".join(line + b"\n" for line in lines)
        return {self.file: mutate.in_words(rng, b, words) if rng.random() < 0.3 else b}

    def ask(self, folder):
        return os.path.join(folder, self.file), str(self.resumed)

    def read(self, files, limits):
        return readers.read_metrics(files[self.file], self.resumed, limits)


# ---- texts ----

class Config(OneFile):
    name = reader = "config"
    file = "x.yaml"
    share = 3

    def prepare(self, work):
        self.good = {self.file: config.GOOD.encode()}

    def mutant(self, rng):
        lines = self.good[self.file].split(b"\n")
        for _ in range(rng.choice((1, 1, 2, 3))):
            i = rng.randrange(len(lines))
            head, colon, _ = lines[i].partition(b": ")
            if colon:
                lines[i] = head + colon + rng.choice(config.VALUES)
        b = b"\n".join(lines)
        way = rng.random()
        if way < 0.3:
            b = mutate.in_words(rng, b, config.VALUES + [b"\n", b"  ", b": ", b"- "])
        return {self.file: mutate.in_bytes(rng, b) if way > 0.85 else b}

    def ask(self, folder):
        keys = [p for p in config.parse(config.GOOD.encode()) if p in config.ROWS
                and config.ROWS[p] != "a section"]
        return os.path.join(folder, self.file), ",".join(keys)

    def read(self, files, limits):
        return config.read_config(files[self.file], limits)


UNARY = ("exp", "tanh", "relu", "gelu", "gelu_erf", "fast_gelu", "silu", "softmax", "copy")
BINARY = ("add", "sub", "mul", "log_add")
TYPES = ("f32[", "f64[", "bf16[", "f16[")


def change_ir(rng, text):
    """A change that most often leaves a good program: a size everywhere, a type
    everywhere, an op of the same kind, two letters, operands, lines, a number."""
    text = text.decode()
    way = rng.randrange(8)
    words = re.findall(r"(?<![\w.])\d+(?![\w.])", text)
    if way == 0 and words:
        text = re.sub(rf"(?<![\w.%@]){rng.choice(words)}(?![\w.])",
                      str(rng.choice((1, 2, 3, 5, 6, 8, 12))), text)
    elif way == 1:
        text = re.sub(rf"(?<!\w){re.escape(rng.choice(TYPES))}", rng.choice(TYPES), text)
    elif way in (2, 3):
        ops = UNARY if way == 2 else BINARY
        found = list(re.finditer(r"= (\w+) ", text))
        found = [m for m in found if m[1] in ops] or found
        m = rng.choice(found)
        text = text[:m.start(1)] + rng.choice(ops) + text[m.end(1):]
    elif way == 4: # the letters of one rule
        rules = list(re.finditer(r"\{[a-z_,]+->[a-z_,]+\}", text))
        if rules:
            m = rng.choice(rules)
            a, b = (rng.choice("abchitvox") for _ in range(2))
            text = text[:m.start()] + m[0].translate({ord(a): b, ord(b): a}) + text[m.end():]
    elif way == 5: # an operand
        found = list(re.finditer(r"%\w+", text))
        m = rng.choice(found)
        text = text[:m.start()] + rng.choice(found)[0] + text[m.end():]
    elif way == 6: # two lines of a body
        lines = text.split("\n")
        body = [i for i, x in enumerate(lines) if x.startswith("  %")] or [0]
        i, j = rng.choice(body), rng.choice(body)
        lines[i], lines[j] = lines[j], lines[i]
        text = "\n".join(lines)
    else:
        found = list(re.finditer(r"=-?[0-9.]+(e-?\d+)?", text))
        if found:
            m = rng.choice(found)
            new = rng.choice(("0", "1", "2", "0.5", "1e-8", "-1", "1e30", "3"))
            text = text[:m.start() + 1] + new + text[m.end():]
    return text.encode()


class Ir(OneFile):
    name = reader = "ir"
    file = "x.ir"
    share = 4

    def prepare(self, work):
        folders = [os.path.join(HERE, "../ir"), os.path.join(HERE, "../ir/mesh")]
        self.texts = []
        for folder in folders:
            for name in sorted(os.listdir(folder)):
                if name.endswith(".ir"):
                    with open(os.path.join(folder, name), "rb") as f:
                        self.texts.append(f.read())

    def goods(self):
        return [{self.file: t} for t in self.texts]

    def mutant(self, rng):
        text = rng.choice(self.texts)
        if rng.random() < 0.6:
            for _ in range(rng.choice((1, 1, 2, 3))):
                text = change_ir(rng, text)
            return {self.file: text}
        words = mutate.words_of(rng.choice(self.texts)) + [
            b"%", b"->", b"{", b"}", b"0", b"-1", b"1e30", b"f64", b"bf16", b"f16", b"i32",
            b"nan", b"[1,1,1,1,1,1,1,1,"]
        b = mutate.in_words(rng, text, words)
        return {self.file: mutate.in_bytes(rng, b) if rng.random() < 0.1 else b}

    def read(self, files, limits):
        limits.append("no reader but the program's")
        return lambda answer: None if answer.startswith("the same ") else "not the same"


class Vocabulary(Kind):
    """vocab.json and merges.txt."""
    name, reader = "vocab", "tokenizer"

    texts = ["the cat sat on the mat", "they'll see that we've 12 12 345, didn't they",
             "  two  spaces\t\ttabs \u00a0\u3000x", "caf\u00e9 \u4f60\u597d\u4e16\u754c \U0001f600!",
             "<|endoftext|>the<|endoftext|> the", "a  <|endoftext|>  b", "", "x", " ", "'S 's"]

    def prepare(self, work):
        space = bpe.CHARS[32]
        # (t, h) and (h, e), (s, a) and (a, t) meet in words: their order matters
        pairs = [("t", "h"), ("h", "e"), ("s", "a"), ("a", "t"), ("th", "e"),
                 (space, "the"), (space, "c"), (space, space), ("1", "2"),
                 (space + "c", "at"), ("the", "y"), ("\u00c3", "\u00a9")]
        vocab = {c: i for i, c in enumerate(bpe.CHARS[b] for b in range(256))}
        for left, right in pairs:
            vocab[left + right] = len(vocab)
        vocab[bpe.END] = len(vocab)
        self.vocab = vocab
        self.pairs = pairs
        merges = "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in pairs)
        self.good = {"vocab.json": dump(vocab), "merges.txt": merges.encode()}
        self.texts_path = work.file("texts", "\n".join(self.texts).encode())

    def mutant(self, rng):
        files = dict(self.good)
        if rng.randrange(2):
            tree = mutate.tree_of(self.vocab)
            words = [str(rng.randrange(len(tree) + 1)).encode() for _ in range(3)]
            tail = mutate.Obj(tree[250:])
            if rng.random() < 0.8: # the interesting part: merged tokens
                text = mutate.in_json(rng, tail, words)
                files["vocab.json"] = (mutate.text_of(mutate.Obj(tree[:250]))[:-1] + b", " +
                                       text[1:])
            else:
                files["vocab.json"] = mutate.in_json(rng, tree, words)
        else:
            words = [a.encode() for p in self.pairs for a in p] + [b" ", b"\n", b"\r", b"#"]
            files["merges.txt"] = mutate.in_words(rng, files["merges.txt"], words)
        return files

    def ask(self, folder):
        return folder, self.texts_path

    def read(self, files, limits):
        return bpe.read_pair(files["vocab.json"], files["merges.txt"], self.texts, limits)


class TokenizerJson(Vocabulary):
    name = "tokenizer"
    file = "tokenizer.json"

    def prepare(self, work):
        super().prepare(work)
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                      "use_regex": True}
        end = {"id": self.vocab[bpe.END], "content": bpe.END, "single_word": False,
               "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        self.root = {"version": "1.0", "truncation": None, "padding": None,
                     "added_tokens": [end], "normalizer": None, "pre_tokenizer": byte_level,
                     "post_processor": None, "decoder": byte_level,
                     "model": {"type": "BPE", "dropout": None, "unk_token": None,
                               "continuing_subword_prefix": "", "end_of_word_suffix": "",
                               "fuse_unk": False, "byte_fallback": False,
                               "ignore_merges": False, "vocab": self.vocab,
                               "merges": [f"{a} {b}" for a, b in self.pairs]}}
        self.good = {self.file: dump(self.root)}

    def mutant(self, rng):
        root = mutate.tree_of(self.root)
        members = dict((k, i) for i, (k, _) in enumerate(root))
        model = root[members[b'"model"']][1]
        words = [b"true", b"false", b"null", b"256", b"267", b"268", b'"th e"',
                 b'["t", "h"]', b'"ByteLevel"', b'"the"']
        changes = rng.randrange(4) # of what an added token is like
        for _ in range(changes):
            added = root[members[b'"added_tokens"']][1][0]
            i = rng.randrange(2, len(added))
            added[i][1] = rng.choice([b"true", b"false"])
        vocab, merges = model[-2][1], model[-1][1]
        way = rng.randrange(5)
        if way == 0: # the end of the vocabulary, the merges, the rest
            tail = mutate.Obj(vocab[250:])
            mutate.change_tree(rng, tail, words)
            vocab[250:] = tail
        elif way == 1:
            mutate.change_tree(rng, merges, words)
        elif way == 2:
            mutate.change_tree(rng, root[members[b'"added_tokens"']][1], words)
        elif way == 3:
            saved = model[-2][1]
            model[-2][1] = b"{}"
            mutate.change_tree(rng, root, words)
            if len(model) > 1 and isinstance(model[-2], list) and model[-2][1] == b"{}":
                model[-2][1] = saved
        text = mutate.text_of(root)
        return {self.file: mutate.in_bytes(rng, text, 1) if way == 4 else text}

    def ask(self, folder):
        return os.path.join(folder, self.file), self.texts_path

    def read(self, files, limits):
        return bpe.read_json(files[self.file], self.texts, limits)


# ---- checkpoints ----

def seal_manifest(files, text=None):
    """The manifest's own checksum made anew, over a text without it."""
    if text is None:
        text = files["manifest.json"]
        text = text[:text.rindex(b'"xxh3": "')]
    files["manifest.json"] = text + b'"xxh3": "' + hex_128(text).encode() + b'"\n}\n'


def remake(files):
    """Sizes and checksums of all files the manifest lists, as a writer would."""
    text = files["manifest.json"]
    text = text[:text.rindex(b'"xxh3": "')]
    root = json.loads(text.rstrip().rstrip(b",") + b"}")
    root["files"] = [{"name": f["name"], "size": len(files.get(f["name"], b"")),
                      "xxh3": hex_128(files.get(f["name"], b""))} for f in root["files"]]
    head, at = text[:text.index(b'"files": [')], text.index(b'"state":')
    rows = ",\n".join(json.dumps(f) for f in root["files"]).encode()
    seal_manifest(files, head + b'"files": [\n' + rows + b"],\n" + text[at:])


def change_checkpoint(rng, files, other):
    """One change of a checkpoint; `other` is that of another step. Most often all
    checksums are made anew behind it."""
    files = dict(files)
    name = pick(rng, files)
    way = rng.randrange(10)
    sealed = rng.random() < 0.8
    if way == 0: # one rank's file of another step, or two ranks' swapped
        shards = [n for n in files if n.endswith(".safetensors")]
        name = rng.choice(shards)
        if rng.randrange(2):
            files[name] = other[name]
        else:
            second = rng.choice(shards)
            files[name], files[second] = files[second], files[name]
    elif way == 1 and name != "manifest.json":
        if rng.randrange(2):
            del files[name]
        else:
            files[name] = mutate.in_bytes(rng, files[name])
    elif way <= 3: # the manifest as a tree
        text = files["manifest.json"]
        text = text[:text.rindex(b'"xxh3": "')].rstrip().rstrip(b",") + b"}"
        tree = mutate.tree_of(json.loads(text))
        words = [dump(n) for n in files] + [b"1", b"2", b"3", b'"model"']
        changed = mutate.in_json(rng, tree, words).rstrip()
        if sealed and changed[-1:] == b"}" and b'"state":' in changed:
            seal_manifest(files, changed[:-1] + b",\n")
        else:
            files["manifest.json"] = changed
        return files
    elif way == 4 and not sealed:
        files["manifest.json"] = mutate.in_bytes(rng, files["manifest.json"])
    elif way <= 7 and "layout.json" in files:
        tree = mutate.tree_of(json.loads(files["layout.json"]))
        words = [b'"model"', b'"optimizer"', b'"f32"', b'"bf16"', b'"dp"', b'"tp"', b'"cp"',
                 b'"dp.tp"', b'"f32[10,6]"', b'"f32[12:tp,6]"', b'"f32[10:tp.dp,6]"',
                 b'"f32[3,4:dp,12]"', b'""', b"0", b"1", b"2", b"4", b"[10,6]", b"[6,10]"]
        files["layout.json"] = mutate.in_json(rng, tree, words)
        if rng.random() < 0.05:
            files["layout.json"] += b"\0" + rng.randbytes(3)
    else:
        name = rng.choice([n for n in files if n.endswith(".safetensors")])
        files[name] = change_safetensors(rng, files[name])
    if sealed:
        remake(files)
    return files


def files_in(folder):
    out = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as f:
            out[name] = f.read()
    return out


class Checkpoint(Kind):
    name = reader = "checkpoint"
    share = 4

    def prepare(self, work):
        folder = work.write({})
        count = int(work.ask("make_checkpoints", folder, ""))
        steps = ("step_00000001", "step_00000002")
        self.all = [[files_in(os.path.join(folder, str(i), s)) for s in steps]
                    for i in range(count)]

    def goods(self):
        return [both[1] for both in self.all]

    def mutant(self, rng):
        first, second = rng.choice(self.all)
        return change_checkpoint(rng, second, first)

    def read(self, files, limits):
        if "manifest.json" not in files:
            raise Bad("no manifest")
        return read_checkpoint(files, limits)


class Newest(Checkpoint):
    """A folder of two: the mutant is the newer one, and passed over when it is damaged."""
    name = reader = "newest"
    share = 2
    own_work = True

    def both(self, first, second):
        files = {"step_00000001/" + k: v for k, v in first.items()}
        return files | {"step_00000002/" + k: v for k, v in second.items()}

    def goods(self):
        return [self.both(*both) for both in self.all]

    def mutant(self, rng):
        first, second = rng.choice(self.all)
        return self.both(first, change_checkpoint(rng, second, first))

    def ask(self, folder):
        return folder, "step_00000001"

    def read(self, files, limits):
        part = [{k.partition("/")[2]: v for k, v in files.items() if k.startswith(s)}
                for s in ("step_00000001", "step_00000002")]
        if "manifest.json" not in part[1]:
            part[1]["manifest.json"] = b""
        return read_newest(part[0], part[1], 2, limits)


ALL = (Safetensors, Shards, HuggingFace, Npy, Indexed, Gpt, GptCache, Object, RankTable,
       Metrics, Config, Ir, Vocabulary, TokenizerJson, Checkpoint, Newest)
