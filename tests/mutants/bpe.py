"""Byte-level BPE with GPT-2's words, slow and plain: text to ids by the files of a tokenizer.

Written from OpenAI's encoder.py (https://github.com/openai/gpt-2) and the format of
Hugging Face's tokenizer.json, its added tokens and ignore_merges.
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


def is_word(c):
    """\\w; of the characters in the texts."""
    return c.isalnum() or c == "_"


class Tokenizer:
    def __init__(self, vocab, merges, added, ignore_merges=False):
        """vocab: text -> id; merges: pairs in order; added: objects as in tokenizer.json."""
        self.vocab, self.added, self.ignore_merges = vocab, added, ignore_merges
        self.rank = {pair: i for i, pair in enumerate(merges)}
        self.known = {}
        self.bytes = {}
        for text, i in vocab.items():
            plain = all(c in BYTE_OF for c in text)
            self.bytes[i] = bytes(BYTE_OF[c] for c in text) if plain else text.encode()
        for a in added:
            self.bytes[a["id"]] = a["content"].encode()

    def word(self, piece):
        if piece in self.known:
            return self.known[piece]
        parts = [CHARS[b] for b in piece.encode()]
        if self.ignore_merges and "".join(parts) in self.vocab:
            parts = ["".join(parts)]
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

    def words(self, text, special):
        return [i for piece in pieces(text) for i in self.word(piece)]

    def find(self, text, special, normalized, between):
        """The added tokens of one set in a text; `between` does the rest."""
        ids, plain, i = [], 0, 0
        own = [a for a in self.added if a["content"] and
               a.get("normalized", not a["special"]) == normalized]
        while own and i < len(text):
            here = [a for a in own if text.startswith(a["content"], i)]
            if not here:
                i += 1
                continue
            a = max(here, key=lambda a: len(a["content"].encode()))
            start, stop = i, i + len(a["content"])
            i = stop
            if a["special"] and not special:
                continue
            if a.get("single_word") and (is_word(text[start - 1:start]) or
                                         is_word(text[stop:stop + 1])):
                continue
            while a.get("lstrip") and start > plain and kind(text[start - 1]) == "s":
                start -= 1
            while a.get("rstrip") and stop < len(text) and kind(text[stop]) == "s":
                stop += 1
            ids += between(text[plain:start], special) + [a["id"]]
            plain = stop
        return ids + between(text[plain:], special)

    def encode(self, text, special):
        return self.find(text, special, False, lambda part, special:
                         self.find(part, special, True, self.words))

    def answer(self, size, texts):
        ends = [a["id"] for a in self.added if a["special"] and a["content"] == END]
        lines = f"{size} {ends[0] if ends else -1}\n"
        for text in texts:
            for special in (False, True):
                ids = self.encode(text, special)
                lines += "".join(f"{i} " for i in ids)
                same = b"".join(self.bytes[i] for i in ids) == text.encode()
                lines += "\n" if same else "decoded to another\n"
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


def add_merges(pairs, vocab, in_order):
    """The texts that merges make. in_order: each part must be a byte or made before."""
    made, seen = set(BYTE_OF), set()
    for left, right in pairs:
        have = made if in_order else vocab
        need(left in have and right in have, "part of a merge")
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
    made = add_merges(pairs, ids, True)
    rest = [{"id": i, "content": t, "special": True, "normalized": False}
            for t, i in ids.items() if t not in made]
    need(len(rest) <= 1024, "special tokens")
    return Tokenizer(ids, pairs, rest).answer(len(ids), texts)


TOP = {"version": ["1.0"], "truncation": [None], "padding": [None], "normalizer": [None],
       "added_tokens": "*", "pre_tokenizer": "*", "post_processor": "*", "decoder": "*",
       "model": "*"}
MODEL = {"type": ["BPE"], "dropout": [None, 0, 0.0], "unk_token": "*", "fuse_unk": [True, False],
         "continuing_subword_prefix": [None, ""], "end_of_word_suffix": [None, ""],
         "byte_fallback": [False], "ignore_merges": [True, False], "vocab": "*", "merges": "*"}
ADDED = {"id": "*", "content": "*", "special": [True, False], "single_word": [True, False],
         "lstrip": [True, False], "rstrip": [True, False], "normalized": [True, False]}
SPLITTER = {"type": ["ByteLevel"], "add_prefix_space": [False],
            "trim_offsets": [True, False], "use_regex": [True]}
OTHER = {"type": ["ByteLevel"], "add_prefix_space": [True, False],
         "trim_offsets": [True, False], "use_regex": [True, False]}


def check_members(v, allowed, needed):
    """Nothing that is not read here."""
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
    check_members(root["decoder"], OTHER, ("type",))
    if root.get("post_processor") is not None:
        check_members(root["post_processor"], OTHER, ("type",))
    model = root["model"]
    check_members(model, MODEL, ("vocab", "merges"))
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
    add_merges(pairs, ids, False)
    given = {}
    for a in added:
        i, content = whole(a["id"], 0, size - 1, limits), a["content"]
        need(ids.get(content, i) == i, "added token")
        need(content in ids or i not in ids.values(), "id is taken")
        need(i not in given.values(), "id twice")
        a["id"] = given[content] = i
    need(len(set(ids.values()) | set(given.values())) == size, "ids with a gap")
    return Tokenizer(ids, pairs, added, model.get("ignore_merges")).answer(size, texts)
