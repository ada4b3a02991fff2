"""Checkpoints as docs/data.md has them, read without the program: see readers.py."""
import math
import re
import struct

from readers import (Bad, crc, member, name_hex, need, parse_json, safetensors, shape_text,
                     text_in, whole)
from xxh3 import hex_128

TYPES = {"F32": "f32", "F64": "f64", "BF16": "bf16", "F16": "f16", "I32": "i32", "I64": "i64"}
BYTES = {"f32": 4, "f64": 8, "bf16": 2, "f16": 2, "i32": 4, "i64": 8}
SEAL = re.compile(rb'"xxh3": "([0-9a-f]{32})"\n\}\n\Z')


# ---- manifest.json ----

def file_order(name, version):
    """(rank, kind) of a file's name; layout.json is of rank -1."""
    if version == 1:
        whole_names = ["model.safetensors", "optimizer.safetensors"]
        need(name in whole_names, "file name")
        return 0, whole_names.index(name)
    if name == "layout.json":
        return -1, 0
    m = re.fullmatch(r"(model|optimizer)\.rank_(\d{5})\.safetensors", name)
    need(m, "file name")
    return int(m[2]), ["model", "optimizer"].index(m[1])


def manifest(files, limits):
    text = files["manifest.json"]
    seal = SEAL.search(text)
    need(seal and hex_128(text[:seal.start()]).encode() == seal[1], "seal")
    root = parse_json(text, limits)
    need(text_in(member(root, "format"), limits) == "stator checkpoint", "format")
    version = whole(member(root, "version"), 1, 3, limits)
    step = whole(member(root, "step"), 0, 2**63 - 1, limits)
    listed = member(root, "files")
    need(isinstance(listed, list), "files")
    order = []
    for f in listed:
        name = text_in(member(f, "name"), limits)
        order.append(file_order(name, version))
        need(name in files, "file is missing")
        need(whole(member(f, "size"), 0, 2**63 - 1, limits) == len(files[name]), "size")
        need(text_in(member(f, "xxh3"), limits) == hex_128(files[name]), "checksum")
    need(order == sorted(set(order)), "order of files")
    need(len(order) == 2 if version == 1 else order[:1] == [(-1, 0)], "files")
    state = member(root, "state")
    need(isinstance(state, dict), "state")
    return version, step, order, state


# ---- layout.json ----

def read_axes(text, mesh, used):
    """Numbers of the axes that "tp.cp" names, outermost first."""
    names = [a for a, _ in mesh]
    axes = []
    for name in text.split(".") if text else []:
        need(name in names and names.index(name) not in axes + used, "axes")
        axes.append(names.index(name))
    need(axes == sorted(axes) or axes == sorted(axes, reverse=True), "order of axes")
    return axes


def read_whole(text, mesh, limits):
    """Type and [(size, axes)] of "f32[4,32:tp,96]"."""
    m = re.fullmatch(r"([a-z0-9]+)\[(.*)\]", text.replace(" ", ""), re.S)
    need(m and m[1] in BYTES, "type")
    if " " in text or "#" in text:
        limits.append("blanks")
    dims, used = [], []
    for part in m[2].split(",") if m[2] else []:
        p = re.fullmatch(r"(\d+)(?::([^:]+))?", part)
        need(p and int(p[1]) >= 1, "dimension")
        if p[1] != str(int(p[1])):
            limits.append("leading zero")
        axes = read_axes(p[2] or "", mesh, used)
        used += axes
        dims.append((int(p[1]), axes))
    need(len(dims) <= 8, "rank")
    return m[1], dims, used


def group(mesh, axes):
    return math.prod(mesh[a][1] for a in axes)


def place(mesh, rank, axes):
    """A rank's number among those that differ from it in these axes."""
    coordinate = [0] * len(mesh)
    for a in reversed(range(len(mesh))):
        coordinate[a] = rank % mesh[a][1]
        rank //= mesh[a][1]
    n = 0
    for a in axes:
        n = n * mesh[a][1] + coordinate[a]
    return n


class Row:
    """A tensor of layout.json."""

    def __init__(self, v, mesh, limits):
        self.mesh = mesh
        self.name = text_in(member(v, "name"), limits)
        kind = text_in(member(v, "file"), limits)
        need(kind in ("model", "optimizer"), "file")
        self.kind = ["model", "optimizer"].index(kind)
        self.type = text_in(member(v, "dtype"), limits)
        need(self.type in BYTES, "dtype")
        shape = member(v, "shape")
        need(isinstance(shape, list) and len(shape) <= 8, "shape")
        self.shape = [whole(d, 0, 2**50, limits) for d in shape]
        need(math.prod(max(d, 1) for d in self.shape) <= 2**50, "too large")
        if 0 in self.shape:
            limits.append("no elements")
        self.dims = [(d, []) for d in self.shape]
        self.flat, self.lead, used = None, 0, []
        if "whole" in v:
            kind, self.dims, used = read_whole(text_in(v["whole"], limits), mesh, limits)
            need(kind == self.type and len(self.dims) == len(self.shape), "whole")
            for i, (d, axes) in enumerate(self.dims):
                need(d % group(mesh, axes) == 0, "does not divide")
                need(d == self.shape[i] or i == 0 and d > self.shape[0], "whole")
            if "flat" in v:
                self.flat = read_axes(text_in(v["flat"], limits), mesh, used)
                used = used + self.flat
            if v.get("lead") is not None:
                self.lead = whole(v["lead"], 0, 1, limits)
            need(self.lead <= len(self.dims), "lead")
            need(not self.lead or self.flat is not None, "lead")
        elif "flat" in v or "lead" in v:
            limits.append("flat without whole")
        self.copies = [a for a in range(len(mesh)) if a not in used]
        self.copy = 0
        if v.get("copy") is not None:
            self.copy = whole(v["copy"], 0, group(mesh, self.copies) - 1, limits)
        self.box = [d // group(mesh, axes) for d, axes in self.dims]
        if self.flat is not None:
            n, parts = math.prod(self.box[self.lead:]), group(mesh, self.flat)
            self.part = -(-n // parts)

    def local_count(self):
        if self.flat is None:
            return math.prod(self.box)
        return math.prod(self.box[:self.lead]) * self.part

    def elements(self, rank):
        """For each element of the rank's part its number in the tensor, or None."""
        first = [place(self.mesh, rank, axes) * b for (_, axes), b in
                 zip(self.dims, self.box)]
        n = math.prod(self.box[self.lead:]) if self.flat is not None else 0
        for i in range(self.local_count()):
            if self.flat is not None:
                lead, at = divmod(i, self.part)
                at += place(self.mesh, rank, self.flat) * self.part
                if at >= n:
                    yield None
                    continue
                i = lead * n + at
            index = []
            for b in reversed(self.box):
                i, r = divmod(i, b)
                index.insert(0, r)
            index = [f + r for f, r in zip(first, index)]
            if index and index[0] >= self.shape[0]:
                yield None
                continue
            number = 0
            for d, r in zip(self.shape, index):
                number = number * d + r
            yield number


def layout(text, limits):
    need(b"\0" not in text, "zero byte")
    root = parse_json(text, limits)
    listed, mesh = member(root, "tensors"), []
    need(isinstance(listed, list) and isinstance(member(root, "mesh"), list), "lists")
    for a in root["mesh"]:
        mesh.append((text_in(member(a, "axis"), limits),
                     whole(member(a, "size"), 1, 2**20, limits)))
    need(len(mesh) <= 8 and group(mesh, range(len(mesh))) <= 2**20, "mesh")
    need(len({a for a, _ in mesh}) == len(mesh), "axis twice")
    if any(not re.fullmatch("[a-z]+", a) for a, _ in mesh):
        limits.append("name of an axis")
    rows = [Row(v, mesh, limits) for v in listed]
    need(len({(r.kind, r.name) for r in rows}) == len(rows), "tensor twice")
    return mesh, rows


# ---- tensors ----

def not_finite(kind, data):
    size = BYTES[kind]
    if kind[0] == "i":
        return False
    mask = {"bf16": 0x7F80, "f16": 0x7C00, "f32": 0x7F800000, "f64": 0x7FF << 52}[kind]
    code = {2: "H", 4: "I", 8: "Q"}[size]
    values = struct.unpack(f"<{len(data) // size}{code}", data)
    return any(v & mask == mask for v in values)


def gather(row, ranks, parts):
    """The whole tensor's bytes out of the parts by rank."""
    size = BYTES[row.type]
    out = bytearray(math.prod(row.shape) * size)
    need(len(out) <= 1 << 24, "too large")
    for rank in ranks:
        need(rank in parts, "part is missing")
        kind, _, data = parts[rank]
        need(TYPES.get(kind) == row.type, "type of a part")
        need(len(data) == row.local_count() * size, "size of a part")
        for i, at in enumerate(row.elements(rank)):
            if at is not None:
                out[at * size:at * size + size] = data[i * size:i * size + size]
    return bytes(out)


def of_ranks(files, order, limits):
    mesh, rows = layout(files["layout.json"], limits)
    ranks, held, extra = group(mesh, range(len(mesh))), {}, False
    for rank, kind in order[1:]:
        name = f"{['model', 'optimizer'][kind]}.rank_{rank:05d}.safetensors"
        held[rank, kind], _ = safetensors(files[name], limits)
    out, used = [], 0
    for r in rows:
        need(ranks <= 4096 or not r.shape, "many ranks")
        writers = [i for i in range(ranks) if place(mesh, i, r.copies) == r.copy]
        parts = {i: held[i, r.kind][r.name] for i in writers
                 if (i, r.kind) in held and r.name in held[i, r.kind]}
        used += len(parts)
        out.append((r.kind, r.name, r.type, r.shape, gather(r, writers, parts)))
    if used != sum(map(len, held.values())):
        limits.append("parts that layout.json does not have")
        extra = True
    bad = any(not_finite(TYPES.get(k, "i32"), d) for f in held.values()
              for k, _, d in f.values())
    return out, bad, extra


def of_files(files, limits):
    out = []
    for kind, name in enumerate(("model.safetensors", "optimizer.safetensors")):
        for k, (t, s, d) in safetensors(files[name], limits)[0].items():
            need(t in TYPES, "type")
            if 0 in s:
                limits.append("no elements")
            out.append((kind, k, TYPES[t], s, d))
    return out, any(not_finite(t, d) for _, _, t, _, d in out), False


class Found:
    """What a checkpoint holds."""

    def __init__(self, files, limits):
        version, self.step, order, self.state = manifest(files, limits)
        tensors, bad, extra = (of_files(files, limits) if version == 1
                               else of_ranks(files, order, limits))
        tensors.sort(key=lambda t: (t[0], t[1].encode()))
        self.lines = "".join(f"{k}{name_hex(n)} {t}{shape_text(s)}{crc(d)}\n"
                             for k, n, t, s, d in tensors)
        self.shapes = [t[:4] for t in tensors]
        self.word = "damaged" if extra else "not finite" if bad else "sound"

    def differs(self, answer, inspected):
        """What is wrong with the program's answer."""
        head, _, rest = answer.partition("\n")
        step, _, state = head.partition(" '")
        if step != f"step {self.step}" or parse_json(bytes.fromhex(state), []) != self.state:
            return f"step {self.step}, state {self.state}"
        want = self.lines + (self.word + "\n" if inspected else "")
        return None if rest == want else "wanted\n" + want


def read_checkpoint(files, limits):
    found = Found(files, limits)
    return lambda answer: found.differs(answer, True)


def read_newest(good, files, number, limits):
    """What is loaded where `files` is the checkpoint of step `number`, and `good` one
    before it. One that no accident makes, all checksums right, may also be refused."""
    found = before = Found(good, [])
    why = None
    try:
        need(manifest(files, limits)[1] == number, "step")
        limits.append("checksums are right")
        found = Found(files, limits)
    except Bad as e:
        why = e
    if found.shapes != before.shapes:
        raise Bad("of another model")

    def differs(answer):
        wrong = found.differs(answer, False)
        return wrong and f"{wrong}{f'; step {number}: {why}' if found is before else ''}"

    return differs
