"""Mutations: of bytes, of JSON as a tree, of words in a text. All chance comes from the
random.Random that is handed in."""
import json

EDGES = [0, 1, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32,
         2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
NUMBERS = [str(n) for n in EDGES] + [
    "-1", "-0", "2", "3", "7", "18446744073709551616", "-9223372036854775808",
    "-9223372036854775809", "1e3", "1E3", "1.0", "0.5", "1e400", "1e-400", "-1e-3",
    "01", "+1", "0x10", "1.", ".5", "1e", "NaN", "Infinity", "-Infinity", "1_0",
    "9" * 400, "0." + "3" * 60]
STRINGS = [b'""', b'"\\u0000"', b'"a\\u0000b"', b'"\\ud800"', b'"\\udc00\\ud800"',
           b'"\\ud83d\\ude00"', b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b'"\t"',
           b'"\\x41"', b'"\\u12"', b'"/etc/passwd"', b'"../x"', b'"' + b"a" * 300 + b'"',
           '"\u00e9\u20ac"'.encode(), b'"%s%n"', b'"unclosed']
WORDS = [b"null", b"true", b"false", b"nul", b"True", b"[]", b"{}", b"[[]]", b'{"a":1}',
         b"[1,2]", b"[1,]", b"{,}", b""]


# ---- bytes ----

def span(rng, n):
    """A stretch [from, to) of n bytes, most often short."""
    at = rng.randrange(n + 1)
    return at, min(n, at + rng.choice((1, 1, 2, 4, 8, rng.randrange(1, 65))))


def flip(rng, b):
    if b:
        b[rng.randrange(len(b))] ^= 1 << rng.randrange(8)


def put(rng, b):
    if b:
        b[rng.randrange(len(b))] = rng.choice((0, 0xFF, 0x20, 0x22, 0x7B, rng.randrange(256)))


def edge(rng, b):
    size = rng.choice((2, 4, 8))
    if len(b) >= size:
        at = rng.randrange(0, len(b) - size + 1)
        old = int.from_bytes(b[at:at + size], "little")
        new = rng.choice(EDGES + [old + 1, old - 1, old * 2, ~old, old + size])
        b[at:at + size] = (new % (1 << 8 * size)).to_bytes(size, "little")


def remove(rng, b):
    i, j = span(rng, len(b))
    del b[i:j]


def double(rng, b):
    i, j = span(rng, len(b))
    b[i:i] = b[i:j]


def insert(rng, b):
    at = rng.randrange(len(b) + 1)
    b[at:at] = rng.randbytes(rng.choice((1, 1, 2, 8)))


def swap(rng, b):
    i, j = span(rng, len(b))
    at = rng.randrange(len(b) + 1 - (j - i))
    b[i:j], b[at:at + j - i] = b[at:at + j - i], b[i:j]


def cut(rng, b):
    del b[rng.choice((0, max(len(b) - 1, 0), rng.randrange(len(b) + 1))):]


def extend(rng, b):
    b += rng.choice((b"\0", b"\n", b" ", b"x", rng.randbytes(8), bytes(64)))


def zero(rng, b):
    i, j = span(rng, len(b))
    b[i:j] = bytes(j - i)


BYTE_WAYS = (flip, flip, flip, put, put, edge, edge, remove, double, insert, swap, cut,
             extend, zero)


def in_bytes(rng, data, times=None):
    b = bytearray(data)
    for _ in range(times or rng.choice((1, 1, 1, 2, 4))):
        rng.choice(BYTE_WAYS)(rng, b)
    return bytes(b)


# ---- JSON ----

class Obj(list):
    """Members as [key in bytes with quotes, value]."""


class Arr(list):
    pass


def tree_of(v):
    if isinstance(v, dict):
        return Obj([json.dumps(k).encode(), tree_of(e)] for k, e in v.items())
    if isinstance(v, list):
        return Arr(tree_of(e) for e in v)
    return json.dumps(v).encode()


def text_of(t, rng=None):
    if isinstance(t, bytes):
        return t
    comma = b", " if not rng or rng.random() < 0.5 else rng.choice((b",", b" ,\n", b",\t"))
    if isinstance(t, Obj):
        return b"{" + comma.join(k + b": " + text_of(v) for k, v in t) + b"}"
    return b"[" + comma.join(text_of(v) for v in t) + b"]"


def places(t, found):
    """Where a value can be replaced: pairs of a list and an index in it."""
    for i, e in enumerate(t):
        where = (e, 1) if isinstance(t, Obj) else (t, i)
        found.append((t, i, where))
        v = where[0][where[1]]
        if not isinstance(v, bytes):
            places(v, found)
    return found


def other_number(rng, old):
    try:
        n = int(old)
        near = [str(n + 1), str(n - 1), str(2 * n), str(-n), f"{n}.0", f"{n}e0", f'"{n}"',
                f"{n}.5"]
    except ValueError:
        near = []
    return rng.choice(NUMBERS + 4 * near).encode()


def other_string(rng, old):
    """Another string, or the same one written with escapes."""
    kind = rng.randrange(4)
    if kind == 0 and len(old) > 2 and old[1] < 128 and old[1] not in b'\\"':
        return b'"\\u%04x' % old[1] + old[2:]
    if kind == 1 and len(old) > 2:
        return in_bytes(rng, old, 1)
    if kind == 2:
        return old[:-1] + rng.choice((b'x"', b' "', b'\\u0000"', b'\xff"', b'\\n"'))
    return rng.choice(STRINGS)


def other_value(rng, old):
    kind = rng.randrange(10)
    if kind == 0:
        return rng.choice(WORDS)
    if kind == 1:
        return rng.choice(STRINGS)
    if kind == 2:
        return rng.choice(NUMBERS).encode()
    if kind == 3:
        deep = rng.choice((5, 60, 64, 65, 900, 20000))
        return (b"[" * deep + b"]" * deep if rng.randrange(2)
                else b'{"a":' * deep + b"1" + b"}" * deep)
    if not isinstance(old, bytes):
        return b"[" + text_of(old) + b"]" if rng.randrange(2) else rng.choice(WORDS)
    return other_string(rng, old) if old[:1] == b'"' else other_number(rng, old)


def change_tree(rng, t, words=()):
    """One change in a tree. `words` are values worth a try in any place."""
    found = places(t, [])
    if not found:
        return
    parent, i, (holder, at) = rng.choice(found)
    way = rng.randrange(12)
    if way == 0:
        parent.insert(rng.randrange(len(parent) + 1), clone(parent[i]))
    elif way == 1:
        del parent[i]
    elif way == 2 and len(parent) > 1:
        j = rng.randrange(len(parent))
        parent[i], parent[j] = parent[j], parent[i]
    elif way == 3 and isinstance(parent, Obj):
        key = rng.choice([e[0] for e in parent] + [b'"__metadata__"', b'"extra"', b'""'])
        parent[i][0] = other_string(rng, parent[i][0]) if rng.randrange(2) else key
    elif way == 4:
        other = rng.choice(found)[2]
        holder[at], other[0][other[1]] = clone(other[0][other[1]]), clone(holder[at])
    elif way == 5 and isinstance(parent, Obj):
        parent.append([rng.choice((b'"extra"', b'"__metadata__"', b'"x\\u0000"')),
                       rng.choice(WORDS + [b"1", b'"y"'])])
    elif way in (6, 7) and words:
        holder[at] = rng.choice(words)
    else:
        holder[at] = other_value(rng, holder[at])


def clone(t):
    if isinstance(t, bytes):
        return t
    if isinstance(t, Obj):
        return Obj([k, clone(v)] for k, v in t)
    return Arr(clone(e) for e in t)


def in_json(rng, tree, words=()):
    """The text of a changed copy of a tree; now and then its bytes are changed too."""
    t = clone(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change_tree(rng, t, words)
    text = text_of(t, rng)
    if rng.random() < 0.08:
        text = rng.choice((b"\xef\xbb\xbf", b" ", b"\n\t", b"\0")) + text
    if rng.random() < 0.08:
        text += rng.choice((b" ", b"\n", b"\0", b"x", b"{}", b","))
    return in_bytes(rng, text, 1) if rng.random() < 0.1 else text


# ---- words of a text ----

def words_of(text):
    """Pieces of a text: words and numbers, and the signs between them."""
    pieces, at = [], 0
    for i in range(1, len(text) + 1):
        same = i < len(text) and text[i:i + 1].isalnum() == text[at:at + 1].isalnum()
        if i == len(text) or not same or not text[at:at + 1].isalnum():
            pieces.append(text[at:i])
            at = i
    return pieces


def in_words(rng, text, words):
    """Words put in the place of others, lines moved; `words` are worth a try."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        way = rng.randrange(8)
        if way < 5:
            p = words_of(text) or [b""]
            at = [i for i, w in enumerate(p) if w.strip()] or [0]
            i = rng.choice(at)
            old = p[i]
            if old.isdigit():
                p[i] = rng.choice((str(int(old) + 1), str(max(int(old) - 1, 0)), "0", "1",
                                   rng.choice(NUMBERS))).encode()
            elif way == 4:
                p[i] = rng.choice((b"", old + old, b" "))
            else:
                p[i] = rng.choice(words) if rng.randrange(2) else p[rng.choice(at)]
            text = b"".join(p)
        else:
            lines = text.split(b"\n")
            i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
            if way == 5:
                lines.insert(j, lines[i])
            elif way == 6:
                del lines[i]
            else:
                lines[i], lines[j] = lines[j], lines[i]
            text = b"\n".join(lines)
    return in_bytes(rng, text, 1) if rng.random() < 0.1 else text
