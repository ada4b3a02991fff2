"""Readers of our formats that share nothing with the program: each gives what a file holds
as the text that read.c writes, or raises Bad for a file that must be refused. What a format
allows and the program says it does not take (limits, deliberate strictness) goes to
`limits`: then it may be refused, but if it is taken it must be read like this.

Written from: the safetensors README and its reference implementation
(https://github.com/huggingface/safetensors), NumPy's numpy.lib.format, Megatron-LM's
indexed_dataset.py and gpt_dataset.py, MindSpore's rank table, docs/data.md of this project.
"""
import ast
import json
import math
import re
import struct
import zlib

from xxh3 import hex_128, xxh3_64

FILE_TYPES = {"F32": 32, "F64": 64, "BF16": 16, "I32": 32, "I64": 64, "F16": 16, "BOOL": 8,
              "U8": 8, "I8": 8, "I16": 16, "U16": 16, "U32": 32, "U64": 64, "C64": 64,
              "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
              "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


class Bad(Exception):
    """The file must be refused, and why."""


def need(good, why):
    if not good:
        raise Bad(why)


def crc(b):
    return f" {zlib.crc32(b):08x}"


def name_hex(s):
    """Up to a zero byte, as the program's texts end there."""
    return " '" + s.encode().split(b"\0")[0].hex()


def shape_text(shape):
    return " [" + ",".join(map(str, shape)) + "]"


# ---- JSON ----

class Num(str):
    """A number as it is written."""

    @property
    def whole(self):
        return re.fullmatch(r"-?\d+", self) is not None and self != "-0"

    def value(self):
        return int(self) if self.whole and len(self) < 4000 else float(self)


def depth_of(b):
    deep = most = 0
    inside = skip = False
    for c in b:
        if inside:
            if skip:
                skip = False
            elif c == 0x5C:
                skip = True
            elif c == 0x22:
                inside = False
        elif c == 0x22:
            inside = True
        elif c in b"[{":
            deep += 1
            most = max(most, deep)
        elif c in b"]}":
            deep -= 1
    return most


def members(pairs):
    need(len({k for k, _ in pairs}) == len(pairs), "a key twice")
    return dict(pairs)


def constant(_):
    raise Bad("no JSON number")


def parse_json(b, limits):
    """Objects without duplicates, numbers as Num, no lone surrogates, strict UTF-8."""
    if b.startswith(b"\xef\xbb\xbf"):
        limits.append("byte order mark")
        b = b[3:]
    if depth_of(b) > 64:
        limits.append("deep")
        if depth_of(b) > 500:
            raise Bad("deeper than anything that is read")

    def number(raw):
        if len(raw) > 1024 or math.isinf(float(raw)):
            limits.append("number")
        return Num(raw)

    try:
        v = json.loads(b.decode("utf-8"), object_pairs_hook=members, parse_int=number,
                       parse_float=number, parse_constant=constant)
        json.dumps(v, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as e:
        raise Bad(f"JSON: {e}") from None
    return v


def member(v, key):
    need(isinstance(v, dict) and key in v, f"no {key}")
    return v[key]


def text_in(v, limits):
    need(isinstance(v, str) and not isinstance(v, Num), "no string")
    if "\0" in v:
        limits.append("zero byte")
        raise Bad("zero byte")
    return v


def whole(v, low, high, limits):
    """An integer; written as 3.0 or 3e0 it may be refused."""
    need(isinstance(v, Num), "no number")
    n = v.value()
    if not v.whole:
        need(math.isfinite(n) and n == int(n), "no integer")
        limits.append("integer with a point")
        n = int(n)
    need(low <= n <= high, "integer out of bounds")
    return n


def real(v):
    need(isinstance(v, Num), "no number")
    return float(v)


# ---- safetensors ----

def natural(v):
    need(isinstance(v, Num) and v.whole and 0 <= int(v) < 2**64, "no natural number")
    return int(v)


def tensor_info(v, limits):
    kind = member(v, "dtype")
    need(isinstance(kind, str) and kind in FILE_TYPES, "dtype")
    shape, at = member(v, "shape"), member(v, "data_offsets")
    need(isinstance(shape, list) and isinstance(at, list) and len(at) == 2, "no lists")
    shape = [natural(d) for d in shape]
    if len(shape) > 8 or any(d >= 2**63 for d in shape):
        limits.append("shape")
    bits = 1
    for d in shape + [FILE_TYPES[kind]]:
        bits *= d
        need(bits < 2**64, "overflow")
    need(bits % 8 == 0, "no whole bytes")
    begin, end = natural(at[0]), natural(at[1])
    need(end - begin == bits // 8, "offsets do not fit the shape")
    return kind, shape, begin, end


def safetensors(b, limits):
    """Tensors as {name: (type, shape, bytes)}, and the metadata."""
    need(len(b) >= 8, "too short")
    n = int.from_bytes(b[:8], "little")
    need(n <= 100_000_000 and 8 + n <= len(b), "length of the header")
    need(b[8:8 + n].lstrip(b" \t\r\n")[:1] == b"{", "no object")
    root = parse_json(b[8:8 + n], limits)
    need(isinstance(root, dict), "no object")
    data, tensors, meta = b[8 + n:], {}, {}
    for name, v in root.items():
        if name == "__metadata__":
            if v is None:
                limits.append("metadata null")
                continue
            need(isinstance(v, dict), "metadata")
            for s in v.values():
                need(isinstance(s, str) and not isinstance(s, Num), "metadata")
            meta = v
        else:
            if "\0" in name:
                limits.append("zero byte")
            tensors[name] = tensor_info(v, limits)
    at = 0
    for _, _, begin, end in sorted(tensors.values(), key=lambda t: t[2:]):
        need(begin == at, "a hole or an overlap")
        at = end
    need(at == len(data), "data beyond the tensors")
    return {k: (t, s, data[i:j]) for k, (t, s, i, j) in tensors.items()}, meta


def tensor_lines(tensors):
    return "".join(f"tensor{name_hex(k)} {t}{shape_text(s)}{crc(d)}\n" for k, (t, s, d) in
                   sorted(tensors.items(), key=lambda e: e[0].encode()))


def read_safetensors(b, limits):
    tensors, meta = safetensors(b, limits)
    return tensor_lines(tensors) + "".join(
        f"meta{name_hex(k)}{name_hex(v)}\n" for k, v in meta.items())


def shard_tensors(files, limits):
    """files: of a folder, by name; the index says which tensor is in which."""
    index = parse_json(files["model.safetensors.index.json"], limits)
    where, tensors = member(index, "weight_map"), {}
    need(isinstance(where, dict), "weight_map")
    for name, file in where.items():
        need(isinstance(file, str) and not isinstance(file, Num), "no file name")
        need(file in files and "/" not in file and not file.startswith("."), "file name")
        shard, _ = safetensors(files[file], limits)
        need(name in shard, "not in its shard")
        tensors[name] = shard[name]
    return tensors


def read_shards(files, limits):
    return tensor_lines(shard_tensors(files, limits))


# ---- .npy ----

NPY_PLAIN = re.compile(
    r"\s*\{(\s*'(descr|fortran_order|shape)'\s*:\s*('[<|=>][a-z]\d'|False|True|"
    r"\((\s*(0|[1-9]\d*)\s*,)*\s*(0|[1-9]\d*)?\s*\))\s*,?)+\s*\}\s*")


def read_npy(b, limits):
    need(len(b) >= 10 and b[:6] == b"\x93NUMPY", "magic")
    need(b[6] in (1, 2, 3) and b[7] == 0, "version")
    wide = 2 if b[6] == 1 else 4
    need(len(b) >= 8 + wide, "too short")
    n = int.from_bytes(b[8:8 + wide], "little")
    need(8 + wide + n <= len(b), "header cut off")
    try:
        text = b[8 + wide:8 + wide + n].decode("utf-8" if b[6] == 3 else "latin-1")
        v = ast.literal_eval(text.strip(" \t\r\n"))
    except Exception as e:  # literal_eval raises many
        raise Bad(f"no dictionary: {e}") from None
    if not NPY_PLAIN.fullmatch(text) or text[0] != "{":
        limits.append("written in another way")
    need(isinstance(v, dict) and set(v) == {"descr", "fortran_order", "shape"}, "keys")
    need(v["fortran_order"] is False, "order")
    shape, kind = v["shape"], v["descr"]
    need(isinstance(shape, tuple) and all(isinstance(d, int) and d >= 0 for d in shape),
         "shape")
    need(isinstance(kind, str) and re.fullmatch(r"[<|=>]?(f[248]|[iu][1248]|b1)", kind),
         "type")
    size = int(kind[-1])
    need(kind[0] != ">" or size == 1, "big-endian")
    if kind[0] not in "<|" or len(shape) > 8 or text.count("'shape'") > 1:
        limits.append("type or shape")
    count = math.prod(shape)
    if any(d >= 2**60 for d in shape):
        limits.append("dimension")
    data = b[8 + wide + n:]
    need(count * size == len(data), "size")
    return f"{kind[-2]}{size}{shape_text(shape)}{crc(data)}"


# ---- .idx and .bin ----

CODES = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 6: "d", 7: "f", 8: "H"}


def indexed(idx, data, limits):
    """Type code, lengths, document boundaries, tokens."""
    need(len(idx) >= 34 and idx[:9] == b"MMIDIDX\0\0", "magic")
    version, code, sequences, entries = struct.unpack_from("<QBQQ", idx, 9)
    need(version == 1 and code in CODES and entries >= 1, "header")
    need(sequences < len(idx) and entries < len(idx), "counts")
    end = 34 + 12 * sequences + 8 * entries
    need(len(idx) in (end, end + sequences), "size")
    need(not any(idx[end:]), "modes")
    lengths = struct.unpack_from(f"<{sequences}i", idx, 34)
    pointers = struct.unpack_from(f"<{sequences}q", idx, 34 + 4 * sequences)
    documents = struct.unpack_from(f"<{entries}q", idx, 34 + 12 * sequences)
    size, at = struct.calcsize("<" + CODES[code]), 0
    for length, pointer in zip(lengths, pointers):
        need(length >= 0 and pointer == at, "pointers")
        at += length * size
    need(at == len(data), "size of the .bin")
    need(documents[0] == 0 and documents[-1] == sequences, "documents")
    need(list(documents) == sorted(documents), "documents")
    tokens = struct.unpack(f"<{len(data) // size}{CODES[code]}", data)
    if not sequences:
        limits.append("nothing in it")
    return code, lengths, documents, tokens


def token_of(v):
    need(math.isfinite(v) and v == int(v) and 0 <= v < 2**31, "no token")
    return int(v)


def read_indexed(idx, data, limits):
    code, lengths, documents, tokens = indexed(idx, data, limits)
    tokens = [token_of(t) for t in tokens]
    pack = lambda c, v: crc(struct.pack(f"<{len(v)}{c}", *v))
    return (f"{code} {len(lengths)} {len(documents) - 1}" + pack("i", lengths)
            + pack("q", documents) + pack("i", tokens))


# ---- samples of GPTDataset ----

class Twister:
    """numpy.random.RandomState(seed).shuffle, over MT19937 as numpy seeds it."""

    def __init__(self, seed):
        import random
        mt = [seed & 0xFFFFFFFF]
        for i in range(1, 624):
            mt.append(1812433253 * (mt[-1] ^ mt[-1] >> 30) + i & 0xFFFFFFFF)
        self.random = random.Random()
        self.random.setstate((3, tuple(mt) + (624,), None))

    def shuffle(self, v):
        for i in reversed(range(1, len(v))):
            mask = (1 << i.bit_length()) - 1
            while True:
                j = self.random.getrandbits(32) & mask
                if j <= i:
                    break
            v[i], v[j] = v[j], v[i]


def gpt_indices(lengths, seq, samples, seed):
    tokens = sum(lengths)
    need(tokens >= 1, "no tokens")
    epochs = 1
    while epochs * tokens < samples * seq + 1:
        epochs += 1
    separate = False
    before = 0
    if epochs > 1:
        before = ((epochs - 1) * tokens - 1) // seq
        separate = samples - before < int(0.80 * ((tokens - 1) // seq))
    rng = Twister(seed)
    documents = list(range(len(lengths))) * (epochs - separate)
    rng.shuffle(documents)
    if separate:
        last = list(range(len(lengths)))
        rng.shuffle(last)
        documents += last
    count = (epochs * tokens - 1) // seq
    starts, place, offset = [(0, 0)], 0, 0
    for _ in range(count):
        left = seq + 1
        while left:
            here = lengths[documents[place]] - offset
            left -= here
            if left <= 0:
                offset += left + here - 1
                left = 0
            else:
                place, offset = place + 1, 0
        starts.append((place, offset))
    shuffle = list(range(before if separate else count))
    rng.shuffle(shuffle)
    if separate:
        last = list(range(before, count))
        rng.shuffle(last)
        shuffle += last
    return documents, starts, shuffle


def gpt_samples(lengths, tokens, indices, seq, count):
    documents, starts, shuffle = indices
    begin = [0]
    for n in lengths:
        begin.append(begin[-1] + n)
    lines = []
    for sample in shuffle[:count]:
        place, offset = starts[sample]
        row = []
        while len(row) < seq + 1:
            d = documents[place]
            row += tokens[begin[d] + offset:begin[d + 1]]
            place, offset = place + 1, 0
        lines.append(" ".join(str(token_of(t)) for t in row[:seq + 1]) + "\n")
    return "".join(lines)


def gpt_cache(b, key, lengths, seq):
    """Indices of a cache file; Bad when it must be made again."""
    need(len(b) >= 64 + 32 and b[:8] == b"STATORC1", "frame")
    size, data_hash, frame_hash = struct.unpack_from("<QQQ", b, 40)
    need(frame_hash == xxh3_64(b[:56]) and b[8:40] == key, "frame")
    need(size == len(b) - 64 and data_hash == xxh3_64(b[64:]), "data")
    documents, samples, _, _ = struct.unpack_from("<4q", b, 64)
    need(0 < documents < len(b) and 0 < samples < len(b), "counts")
    need(len(b) == 64 + 32 + 4 * documents + 8 * (samples + 1) + 4 * samples, "size")
    order = struct.unpack_from(f"<{documents}i", b, 96)
    flat = struct.unpack_from(f"<{2 * samples + 2}i", b, 96 + 4 * documents)
    shuffle = struct.unpack_from(f"<{samples}I", b, 104 + 4 * documents + 8 * samples)
    need(all(0 <= d < len(lengths) for d in order), "document")
    starts = list(zip(flat[::2], flat[1::2]))
    last = 0
    for place, offset in starts:
        need(last <= place < documents and 0 <= offset < lengths[order[place]], "sample")
        last = place
    need(all(s < samples for s in shuffle), "shuffle")
    return order, starts, shuffle


# ---- rank tables ----

def table_number(v, low, high, limits):
    if isinstance(v, str) and not isinstance(v, Num):
        need(re.fullmatch("[0-9]+", v) and low <= int(v) <= high, "number")
        if len(v) > 9:
            limits.append("digits")
        return int(v)
    return whole(v, low, high, limits)


def read_rank_table(b, limits):
    root = parse_json(b, limits)
    need(text_in(member(root, "version"), limits) == "1.0", "version")
    need(text_in(member(root, "status"), limits) == "completed", "status")
    servers = member(root, "server_list")
    need(isinstance(servers, list), "server_list")
    count = table_number(member(root, "server_count"), 1, 65536, limits)
    need(count == len(servers), "server_count")
    ranks = {}
    for server in servers:
        name, devices = text_in(member(server, "server_id"), limits), member(server, "device")
        need(re.fullmatch(r"[A-Za-z0-9._][A-Za-z0-9._-]{0,254}", name), "name")
        need(isinstance(devices, list) and devices, "server")
        for d in devices:
            rank = table_number(member(d, "rank_id"), 0, 65535, limits)
            need(rank not in ranks, "twice")
            ranks[rank] = name
    need(sorted(ranks) == list(range(len(ranks))), "ranks")
    return "".join(f"{name} " for _, name in sorted(ranks.items()))


# ---- metrics.jsonl ----

def number_text(v):
    return " nan" if math.isnan(v) else " %.17g" % v


def optional(v, key, otherwise):
    e = v.get(key)
    return otherwise if e is None else real(e)


def named(v, key):
    name = v.get(key + "_is")
    name = "nan" if name is None else text_in(name, [])
    return optional(v, key, {"inf": math.inf, "-inf": -math.inf}.get(name, math.nan))


def metrics_row(line, limits):
    v = parse_json(line, limits)
    step = whole(member(v, "step"), 1, 2**63 - 1, limits)
    member(v, "loss")
    loss, norm, skipped = named(v, "loss"), named(v, "grad_norm"), v.get("skipped")
    need(skipped is None or isinstance(skipped, bool), "skipped")
    unit = "samples" if "samples" in v else "tokens"
    count = v.get(unit)
    count = 0 if count is None else whole(count, 0, 2**63 - 1, limits)
    rest = [optional(v, "lr", math.nan), optional(v, "seconds", math.nan),
            optional(v, unit + "_per_second", math.nan), optional(v, "mfu", -1)]
    text = f"{step} {int(bool(skipped))} {int(unit == 'samples')} {count}"
    return step, text + "".join(map(number_text, [loss, norm] + rest)) + "\n"


def read_metrics(b, resumed, limits):
    """A line that may be refused makes all the rest uncertain: no opinion then."""
    rows, kept, last = "", b"", 0
    for line in b.split(b"\n")[:-1]:
        try:
            step, text = metrics_row(line, limits)
        except Bad:
            continue
        rows += text
        if last < step <= resumed:
            kept += line + b"\n"
            last = step
    if limits:
        return lambda answer: None
    need(rows or b"\n" not in b, "no metrics")
    return f"{rows}kept {len(kept)}{crc(kept)}"


# ---- compiled objects ----

def read_object(b, key, _limits):
    try:
        need(len(b) >= 80 and b[:8] == b"statorO2" and b[16:48] == key, "header")
        need(int.from_bytes(b[8:16], "little") == len(b) - 80, "size")
        need(hex_128(b[:48] + bytes(32) + b[80:]).encode() == b[48:80], "checksum")
    except Bad:
        return "none"
    return f"object {len(b) - 80}{crc(b[80:])}"
