#!/usr/bin/env python3
"""Compares stator's tokenizer with the Python library `tokenizers`, on generated texts.

    tests/compare_tokenizers.py --stator build/stator [--texts 100000] [--seed 1]
                                [--keep DIR] [FAMILY...]
    tests/compare_tokenizers.py --fixtures tests/golden/tokenizers

For each family (gpt2, neox, llama2, llama2_metaspace, mistral, llama3, qwen2) a small
tokenizer is trained with the library and written as the tokenizer.json of that family is
built. Texts are made of words, code, numbers, contractions, spaces of every kind, emoji,
characters with marks, any other characters of Unicode, and added tokens. Ids, with and
without the template, and what they decode to must be equal. Without the library it says so
and ends with 0. --fixtures writes smaller tokenizers and what the library makes of a few
texts, for the tests of the checkout, which need no library."""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

try:
    import tokenizers
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers
    from tokenizers import pre_tokenizers, processors, trainers
except ImportError:
    print("compare_tokenizers: skipped: no Python library tokenizers")
    sys.exit(0)

CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3, QWEN2 = CL100K % r"\p{N}{1,3}", CL100K % r"\p{N}"
META = "\u2581"
SPACES = ("\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008"
          "\u2009\u200a\u2028\u2029\u202f\u205f\u3000")


def added(content, special=True, normalized=False, lstrip=False, rstrip=False,
          single_word=False):
    return dict(content=content, special=special, normalized=normalized, lstrip=lstrip,
                rstrip=rstrip, single_word=single_word)


def byte_level(corpus, pattern, vocab, normalizer=None, ignore_merges=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    t.normalizer = normalizer
    if pattern:
        t.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), "isolated", invert=False),
             pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    return t


def fallback(corpus, vocab, metaspace):
    """Characters that are rare get no token of their own, so that bytes take their place."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(META, "always", split=True)
    trained.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=vocab, limit_alphabet=70, show_progress=False))
    made = json.loads(trained.to_str())["model"]
    names = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    names += sorted(made["vocab"], key=made["vocab"].get)
    model = models.BPE({s: i for i, s in enumerate(names)},
                       [tuple(m) for m in made["merges"]], unk_token="<unk>", fuse_unk=True,
                       byte_fallback=True)
    t = Tokenizer(model)
    if metaspace:
        t.pre_tokenizer = pre_tokenizers.Metaspace(META, metaspace, split=False)
    else:
        t.normalizer = normalizers.Sequence(
            [normalizers.Prepend(META), normalizers.Replace(" ", META)])
    t.decoder = decoders.Sequence(
        [decoders.Replace(META, " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)])
    return t


def template(t, token):
    t.post_processor = processors.TemplateProcessing(
        single=f"{token}:0 $A:0", pair=f"{token}:0 $A:0 {token}:1 $B:1",
        special_tokens=[(token, t.token_to_id(token))])


def add(t, tokens):
    for a in tokens:
        a = dict(a)
        special = a.pop("special")
        one = tokenizers.AddedToken(a.pop("content"), special=special, **a)
        (t.add_special_tokens if special else t.add_tokens)([one])


def family(name, corpus, size):
    """The tokenizer of about `size` ids, and the texts of its added tokens."""
    extra = [added("<left>", lstrip=True), added("<right>", rstrip=True),
             added("<both>", special=False, lstrip=True, rstrip=True),
             added("word", special=False, single_word=True),
             added("x\u0301 y", special=False, normalized=True)]
    if name == "gpt2":
        t, own = byte_level(corpus, None, size), [added("<|endoftext|>", normalized=True)]
        t.post_processor = processors.ByteLevel(trim_offsets=False)
    elif name == "neox":
        t = byte_level(corpus, None, size, normalizers.NFC())
        own = [added("<|endoftext|>"), added("<|padding|>")]
        own += [added(" " * n, special=False, normalized=True) for n in range(24, 1, -1)]
        t.post_processor = processors.ByteLevel(trim_offsets=False)
    elif name == "llama3":
        t = byte_level(corpus, LLAMA3, size, ignore_merges=True)
        # words that no merge makes: only ignore_merges finds them
        j = json.loads(t.to_str())
        for s in ["\u0120zebra", "quixotic", "\u0120\u0120\u0120x", "123"]:
            j["model"]["vocab"].setdefault(s, len(j["model"]["vocab"]))
        t = Tokenizer.from_str(json.dumps(j))
        own = [added("<|begin_of_text|>"), added("<|end_of_text|>")]
    elif name == "qwen2":
        t = byte_level(corpus, QWEN2, size, normalizers.NFC())
        own = [added("<|endoftext|>"), added("<|im_start|>"), added("<|im_end|>"),
               added("<tool_call>", special=False)]
        t.post_processor = processors.ByteLevel(trim_offsets=False)
    elif name in ("llama2", "mistral", "llama2_metaspace"):
        meta = {"llama2": None, "mistral": "always", "llama2_metaspace": "first"}[name]
        t = fallback(corpus, size - 256, meta)
        own = [added("<unk>"), added("<s>"), added("</s>")]
        if name == "mistral":
            own += [added("[INST]"), added("[/INST]", normalized=True)]
    else:
        sys.exit(f"compare_tokenizers: no family {name}")
    if name not in ("gpt2", "llama2_metaspace"):
        own += extra
    add(t, own)
    if name == "llama3":
        t.post_processor = processors.Sequence(
            [processors.ByteLevel(trim_offsets=False),
             processors.TemplateProcessing(
                 single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B",
                 special_tokens=[("<|begin_of_text|>",
                                  t.token_to_id("<|begin_of_text|>"))])])
    if t.token_to_id("<s>") is not None:
        template(t, "<s>")
    return t, [a["content"] for a in own]


def characters():
    """All characters that Unicode 14 (Python 3.11's) or earlier has, but for surrogates."""
    return [chr(c) for c in range(0x110000)
            if unicodedata.category(chr(c)) not in ("Cn", "Cs")]


class Texts:
    def __init__(self, corpus, tokens, seed):
        self.random = random.Random(seed)
        self.words = sorted(set(" ".join(corpus).split()))
        self.tokens = tokens + [META, "<0x41>", "<0xE2>", "<s", "|>"]
        self.any = characters()
        self.marks = [c for c in self.any if unicodedata.combining(c)]
        self.changed = [c for c in self.any if unicodedata.normalize("NFC", c) != c or
                        len(unicodedata.normalize("NFD", c)) > 1]

    def part(self):
        r = self.random
        kind = r.randrange(16)
        if kind < 4:
            return " " + r.choice(self.words)
        if kind == 4:
            return r.choice(self.words).upper() + r.choice(["", "'s", "'LL", "'Ve", "'\u017f",
                                                            "'D", "'re", "'x", "\u2019s"])
        if kind == 5:
            return str(r.randrange(10 ** r.randrange(1, 12))) + r.choice(
                ["", "\u00b2", "\u0663", "\u2167", ".5", "%"])
        if kind == 6:
            return "".join(r.choice(SPACES) for _ in range(r.randrange(1, 5)))
        if kind == 7:
            return r.choice([" ", "\n", "\t", "\r\n"]) * r.randrange(1, 30)
        if kind == 8:
            return r.choice(["if (a[i] == 0) {\n        return b->c;\n    }\n",
                             "def f(x):\n\treturn x**2 != 3\n\n\n", "</div>\r\n\r\n  <p>",
                             "x = {'a': [1, 2]};//!?\n", "#include <stdio.h>\n"])
        if kind == 9:
            return r.choice(["\U0001F600", "\U0001F468\u200d\U0001F469\u200d\U0001F467",
                             "\U0001F1E9\U0001F1EA", "\u2764\ufe0f", "\U0001F44D\U0001F3FD"])
        if kind == 10:
            return "".join(r.choice(self.any) for _ in range(r.randrange(1, 6)))
        if kind == 11:
            return r.choice("aeiouyAEO\u0105\u01a1 ") + "".join(
                r.choice(self.marks) for _ in range(r.randrange(1, 4)))
        if kind == 12:
            return "".join(r.choice(self.changed) for _ in range(r.randrange(1, 4)))
        if kind == 13:
            syllable = 0xAC00 + r.randrange(11172)
            s = chr(syllable) + chr(0xAC00 + r.randrange(11172))
            return unicodedata.normalize(r.choice(["NFD", "NFC"]), s)
        if kind == 14:
            return r.choice(["\u4f60\u597d\uff0c\u4e16\u754c", "\u041f\u0440\u0438\u0432\u0435\u0442",
                             "\u0645\u0631\u062d\u0628\u0627", "\u0928\u092e\u0938\u094d\u0924\u0947",
                             "na\u00efve caf\u00e9", "zebra quixotic   x 123"])
        return r.choice(["", " ", "a", "_"]) + r.choice(self.tokens) + r.choice(["", " ", "b"])

    def text(self):
        return "".join(self.part() for _ in range(self.random.randrange(1, 9)))


def run(stator, path, args, lines):
    out = subprocess.run([stator, "tokenizer", *args, "--tokenizer-file", path, "--json"],
                         input="".join(json.dumps(x) + "\n" for x in lines),
                         capture_output=True, text=True, encoding="utf-8")
    if out.returncode:
        sys.exit(f"compare_tokenizers: {out.stderr}")
    return [json.loads(x) for x in out.stdout.split("\n") if x]


def bytes_are_text(t, ids):
    """Are the bytes of fallback tokens whole characters, run by run? The library replaces
    each byte of a run that is not; stator gives bytes as they are."""
    run = b""
    for i in list(ids) + [None]:
        token = t.id_to_token(i) if i is not None else ""
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            run += bytes([int(token[3:5], 16)])
            continue
        try:
            run.decode("utf-8")
        except UnicodeDecodeError:
            return False
        run = b""
    return True


def differences(what, inputs, got, want):
    bad = [i for i in range(len(want)) if got[i] != want[i]]
    for i in bad[:3]:
        print(f"  {what} of {inputs[i]!r}:\n    stator     {got[i]}\n    tokenizers {want[i]}")
    return len(bad) + abs(len(got) - len(want))


def compare(stator, name, t, tokens, corpus, count, seed, folder):
    path = os.path.join(folder, f"{name}.json")
    t.save(path)
    make = Texts(corpus, tokens, seed)
    texts = [make.text() for _ in range(count)]
    want = [e.ids for e in t.encode_batch(texts, add_special_tokens=False)]
    got = run(stator, path, ["encode", "--allow-special"], texts)
    bad = differences("ids", texts, got, want)
    part = texts[:count // 10]
    bad += differences("ids in the template", part,
                       run(stator, path, ["encode", "--allow-special", "--template"], part),
                       [e.ids for e in t.encode_batch(part)])
    t.encode_special_tokens = True
    bad += differences("ids without special tokens", part,
                       run(stator, path, ["encode"], part),
                       [e.ids for e in t.encode_batch(part, add_special_tokens=False)])
    t.encode_special_tokens = False
    ids = want + [[make.random.randrange(t.get_vocab_size()) for _ in range(9)]
                  for _ in range(count // 10)]
    ids = [x for x in ids if bytes_are_text(t, x)]
    bad += differences("text", ids, run(stator, path, ["decode"], ids),
                       t.decode_batch(ids, skip_special_tokens=False))
    print(f"{name}: {count} texts, {sum(map(len, want))} ids, {len(ids)} decoded: "
          f"{bad or 'no'} differences", flush=True)
    return bad


def fixtures(folder, families, corpus):
    os.makedirs(folder, exist_ok=True)
    for name in families:
        t, tokens = family(name, corpus, 400)
        with open(os.path.join(folder, f"{name}.json"), "w", encoding="utf-8") as f:
            f.write(t.to_str() + "\n")
        make = Texts(corpus, tokens, 3)
        with open(os.path.join(folder, f"{name}.jsonl"), "w", encoding="utf-8") as f:
            for _ in range(60):
                text = make.text()
                line = {"text": text, "ids": t.encode(text).ids}
                line["decoded"] = t.decode(line["ids"], skip_special_tokens=False)
                t.encode_special_tokens = True
                line["plain"] = t.encode(text, add_special_tokens=False).ids
                t.encode_special_tokens = False
                f.write(json.dumps(line) + "\n")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--stator", default="build/stator")
    p.add_argument("--texts", type=int, default=100000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--keep", help="folder for the tokenizer files")
    p.add_argument("--fixtures", help="folder to write them to")
    p.add_argument("family", nargs="*")
    a = p.parse_args()
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    corpus = []
    for name in ["docs/design.md", "docs/data.md", "docs/ir.md", "runtime/text/bpe.c",
                 "README.md"]:
        corpus += open(os.path.join(root, name), encoding="utf-8").read().splitlines(True)
    families = a.family or ["gpt2", "neox", "llama2", "llama2_metaspace", "mistral",
                            "llama3", "qwen2"]
    if a.fixtures:
        fixtures(a.fixtures, families, corpus)
        return
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        if a.keep:
            os.makedirs(a.keep, exist_ok=True)
        for name in families:
            t, tokens = family(name, corpus, 1200)
            bad += compare(a.stator, name, t, tokens, corpus, a.texts, a.seed,
                           a.keep or folder)
    sys.exit(1 if bad else 0)


main()
