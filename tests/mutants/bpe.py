"""GPT-2's byte-level BPE, slow and plain: text to ids by the files of a tokenizer.

Written from OpenAI's encoder.py (https://github.com/openai/gpt-2) and the format of
Hugging Face's tokenizer.json.
"""
import json
import unicodedata

from readers import Num, Bad, member, need, parse_json, text_in, whole

END = "<|endoftext|>"
SPACES = {0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0x20,
          *range(0x09, 0x0E), *range(0x2000, 0x200B)}


def byte_chars():
    """The character that stands for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars = {b: chr(b) for b in plain}
    for n, b in enumerate(b for b in range(256) if b not in chars):
        chars[b] = chr(256 + n)
    return chars


CHARS = byte_chars()
BYTE_OF = {c: b for b, c in CHARS.items()}


def kind(c):
    if ord(c) in SPACES:
        return "s"
    return {"L": "l", "N": "n"}.get(unicodedata.category(c)[0], "o")


def pieces(text):
    """GPT-2's pre-tokens."""
    i = 0
    while i < len(text):
        j = i
        for end in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"):
            if text.startswith(end, i):
                j = i + len(end)
        if j == i:
            k = i + (text[i] == " " and i + 1 < len(text) and kind(text[i + 1]) != "s")
            j = k
            while j < len(text) and kind(text[j]) == kind(text[k]):
                j += 1
            if kind(text[k]) == "s" and j < len(text) and j - i > 1:
                j -= 1
        yield text[i:j]
        i = j


class Tokenizer:
    def __init__(self, vocab, merges, specials):
        """vocab: text -> id; merges: pairs in order; specials: texts with ids."""
        self.vocab, self.specials = vocab, specials
        self.rank = {pair: i for i, pair in enumerate(merges)}
        self.known = {}

    def word(self, piece):
        if piece in self.known:
            return self.known[piece]
        parts = [CHARS[b] for b in piece.encode()]
        while len(parts) > 1:
            best = min(zip(parts, parts[1:]), key=lambda p: self.rank.get(p, 1 << 40))
            if best not in self.rank:
                break
            i, joined = 0, []
            while i < len(parts):
                both = tuple(parts[i:i + 2]) == best
                joined.append("".join(parts[i:i + 1 + both]))
                i += 1 + both
            parts = joined
        self.known[piece] = [self.vocab[p] for p in parts]
        return self.known[piece]

    def encode(self, text, special):
        ids, plain, i = [], 0, 0
        while special and i < len(text):
            here = [s for s in self.specials if text.startswith(s, i)]
            if not here:
                i += 1
                continue
            found = max(here, key=lambda s: len(s.encode()))
            for piece in pieces(text[plain:i]):
                ids += self.word(piece)
            ids.append(self.specials[found])
            i = plain = i + len(found)
        for piece in pieces(text[plain:]):
            ids += self.word(piece)
        return ids

    def answer(self, size, texts):
        lines = f"{size} {self.specials.get(END, -1)}\n"
        for text in texts:
            for special in (False, True):
                ids = self.encode(text, special)
                lines += "".join(f"{i} " for i in ids) + "\n"
        return lines


def read_vocab(v, size, limits):
    """Ids 0 .. size - 1, each once; a byte each; text -> id."""
    need(isinstance(v, dict), "vocab")
    ids = {}
    for text, i in v.items():
        need(isinstance(i, Num), "id")
        if not i.whole:
            limits.append("id")
        ids[text] = whole(i, 0, size - 1, limits)
        if not text or "\0" in text:
            limits.append("empty or a zero byte")
    need(len(set(ids.values())) == len(ids), "id twice")
    need(all(c in ids for c in BYTE_OF), "a byte is missing")
    return ids


def add_merges(pairs, vocab):
    """The texts that merges make; each part must be a byte or made before."""
    made, seen = set(BYTE_OF), set()
    for left, right in pairs:
        need(left in made and right in made, "part of a merge")
        need(left + right in vocab and (left, right) not in seen, "merge")
        made.add(left + right)
        seen.add((left, right))
    return made


def split_merge(text):
    parts = text.split(" ")
    need(len(parts) == 2 and all(parts) and "\0" not in text, "merge")
    return tuple(parts)


def read_pair(vocab, merges, texts, limits):
    """vocab.json and merges.txt."""
    v = parse_json(vocab, limits)
    need(isinstance(v, dict), "vocab")
    ids = read_vocab(v, len(v), limits)
    lines = merges.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if lines and lines[0].startswith(b"#version"):
        lines.pop(0)
    if b"\r" in merges:
        limits.append("carriage return")
    try:
        lines = [line.decode() for line in lines]
    except UnicodeDecodeError:
        raise Bad("merges are no UTF-8") from None
    pairs = [split_merge(line.removesuffix("\r")) for line in lines]
    made = add_merges(pairs, ids)
    rest = {t: i for t, i in ids.items() if t not in made}
    need(len(rest) <= 1024, "special tokens")
    return Tokenizer(ids, pairs, rest).answer(len(ids), texts)


TOP = {"version": ["1.0"], "truncation": [None], "padding": [None], "normalizer": [None],
       "added_tokens": "*", "pre_tokenizer": "*", "post_processor": "*", "decoder": "*",
       "model": "*"}
MODEL = {"type": ["BPE"], "dropout": [None], "unk_token": "*", "fuse_unk": [True, False],
         "continuing_subword_prefix": [None, ""], "end_of_word_suffix": [None, ""],
         "byte_fallback": [False], "ignore_merges": [False], "vocab": "*", "merges": "*"}
ADDED = {"id": "*", "content": "*", "special": [True], "single_word": [False],
         "lstrip": [False], "rstrip": [False], "normalized": [True, False]}
SPLITTER = {"type": ["ByteLevel"], "add_prefix_space": [False],
            "trim_offsets": [True, False], "use_regex": [True]}
OTHER = {"type": ["ByteLevel"], "add_prefix_space": [True, False],
         "trim_offsets": [True, False], "use_regex": [True, False]}


def check_members(v, allowed, needed):
    """Nothing that would change what GPT-2's tokenizer does."""
    need(isinstance(v, dict), "no object")
    for key, value in v.items():
        need(key in allowed, f"member {key}")
        fits = allowed[key] == "*" or any(type(a) is type(value) and a == value
                                          for a in allowed[key])
        need(fits, f"value of {key}")
    for key in needed:
        member(v, key)


def read_json(b, texts, limits):
    """tokenizer.json."""
    root = parse_json(b, limits)
    if json.dumps("\\u") != '"\\\\u"' or b"\\u" in b or b"\\/" in b:
        limits.append("escapes in words that are compared as they are written")
    check_members(root, TOP, ("pre_tokenizer", "decoder", "model"))
    check_members(root["pre_tokenizer"], SPLITTER, ("type", "add_prefix_space"))
    for key in ("post_processor", "decoder"):
        if root.get(key) is not None:
            check_members(root[key], OTHER, ("type",))
    model = root["model"]
    check_members(model, MODEL, ("type", "vocab", "merges"))
    added = root.get("added_tokens") or []
    need(isinstance(added, list) and isinstance(model["vocab"], dict), "lists")
    contents = []
    for a in added:
        check_members(a, ADDED, ("id", "content", "special"))
        content = text_in(a["content"], limits)
        need(content and content not in contents, "added token")
        contents.append(content)
    size = len(model["vocab"]) + sum(c not in model["vocab"] for c in contents)
    ids = read_vocab(model["vocab"], size, limits)
    need(isinstance(model["merges"], list), "merges")
    pairs = []
    for m in model["merges"]:
        if isinstance(m, list):
            need(len(m) == 2, "merge")
            m = tuple(text_in(e, limits) for e in m)
        else:
            m = split_merge(text_in(m, limits))
        pairs.append(m)
    made, specials = add_merges(pairs, ids), {}
    for a in added:
        i, content = whole(a["id"], 0, size - 1, limits), a["content"]
        need(ids.get(content, i) == i and content not in made, "added token")
        need(content in ids or i not in ids.values(), "id is taken")
        need(i not in specials.values(), "id twice")
        specials[content] = i
    need(len(set(ids.values()) | set(specials.values())) == size, "ids with a gap")
    return Tokenizer(ids, pairs, specials).answer(size, texts)
