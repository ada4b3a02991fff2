#!/usr/bin/env python3
"""Models of Hugging Face's families as transformers has them, for the tests of stator.

    tests/compare_models.py models tests/golden/families [--seed 1]
    tests/compare_models.py gpt2 DIR TEXT [--seed 1]
    tests/compare_models.py same DIR OTHER [DIR OTHER]...
    tests/compare_models.py answer DIR PROMPT COUNT

models: writes a config.json and the weights of small random models of every family, and what
transformers computes with them: expected.safetensors has for each case the tokens of a text
that it goes on with greedily, and the logits of some of its rows; expected.json the mean loss
of the tokens in data.safetensors. Weights are shared by cases that have the same shapes. A
model is taken only if in each step its best token leads by more than rounding could change, if
rounding changes the logits of transformers itself by much less than the tests allow, and if the
texts vary.
gpt2: a folder with a random GPT-2 and a tokenizer of its own, trained on TEXT, as
save_pretrained leaves them.
same: loads both folders of each pair and compares every tensor, the logits of a text, and what
the tokenizers make of texts, if there are any; numbers and texts must be equal. The classes
may differ: a Mistral without a window is a Llama.
answer: COUNT tokens that a folder goes on with greedily after PROMPT, as text.

Without the Python libraries transformers and torch it says so and ends with 0."""
import argparse
import json
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
try:
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError:
    print("compare_models: skipped: no Python libraries transformers and torch")
    sys.exit(0)

from safetensors.torch import save_file

VOCAB, PROMPT, NEW, LEAD, ROUNDING = 48, 16, 200, 1e-3, 3e-6
POSITIONS = 256
ROW_STEP = 9  # logits of every ninth row
LLAMA = dict(vocab_size=VOCAB, hidden_size=24, intermediate_size=36, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=4, head_dim=8,
             max_position_embeddings=POSITIONS, attention_dropout=0.1, tie_word_embeddings=False)
NEOX = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=36, num_hidden_layers=2,
            num_attention_heads=4, max_position_embeddings=POSITIONS, attention_dropout=0.1,
            hidden_dropout=0.1)
NO_ENDS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)


def rope(kind, **more):
    return dict(rope_type=kind, rope_theta=100.0, **more)


# case: weights, their type, class of the configuration, its members
CASES = {
    "gpt2": ("gpt2", torch.float32, transformers.GPT2Config,
             dict(vocab_size=VOCAB, n_positions=POSITIONS, n_embd=16, n_layer=2, n_head=4)),
    "llama3": ("llama", torch.bfloat16, transformers.LlamaConfig, dict(
        LLAMA, rope_parameters=rope("llama3", factor=4.0, low_freq_factor=1.0,
                                    high_freq_factor=4.0,
                                    original_max_position_embeddings=64))),
    "yarn": ("llama", torch.bfloat16, transformers.LlamaConfig, dict(
        LLAMA, rope_parameters=rope("yarn", factor=4.0, beta_fast=4.0, beta_slow=1.0,
                                    original_max_position_embeddings=64))),
    "yarn_exact": ("llama", torch.bfloat16, transformers.LlamaConfig, dict(
        LLAMA, rope_parameters=rope("yarn", factor=4.0, beta_fast=4.0, beta_slow=1.0,
                                    original_max_position_embeddings=64, truncate=False,
                                    mscale=0.7, mscale_all_dim=0.9))),
    "linear": ("llama", torch.bfloat16, transformers.LlamaConfig, dict(
        LLAMA, rope_parameters=rope("linear", factor=2.5))),
    "dynamic": ("llama", torch.bfloat16, transformers.LlamaConfig, dict(
        LLAMA, rope_parameters=rope("dynamic", factor=3.0))),
    "dynamic_longer": ("llama", torch.bfloat16, transformers.LlamaConfig, dict(
        LLAMA, max_position_embeddings=64, rope_parameters=rope("dynamic", factor=3.0))),
    "mistral": ("llama", torch.bfloat16, transformers.MistralConfig, dict(
        LLAMA, sliding_window=None, rope_parameters=rope("default"))),
    "mistral_window": ("llama", torch.bfloat16, transformers.MistralConfig, dict(
        LLAMA, sliding_window=23, rope_parameters=rope("default"))),
    "qwen2": ("qwen2", torch.float16, transformers.Qwen2Config, dict(
        {k: v for k, v in LLAMA.items() if k != "head_dim"}, hidden_size=32,
        num_key_value_heads=2, rope_parameters=rope("default"))),
    "qwen3": ("qwen3", torch.bfloat16, transformers.Qwen3Config, dict(
        LLAMA, num_key_value_heads=2, head_dim=16, rope_parameters=rope("default"))),
    "neox": ("neox", torch.float16, transformers.GPTNeoXConfig, dict(
        NEOX, rope_parameters=dict(rope("default"), partial_rotary_factor=0.25))),
    "neox_sequential": ("neox", torch.float16, transformers.GPTNeoXConfig, dict(
        NEOX, use_parallel_residual=False,
        rope_parameters=dict(rope("linear", factor=2.0), partial_rotary_factor=0.25))),
}
LONGER = "dynamic_longer"  # stretched over texts longer than max_position_embeddings


def config_of(case):
    kind, members = CASES[case][2:]
    config = kind(**members, **NO_ENDS)
    config._attn_implementation = "eager"
    return config


def random_weights(config, dtype, generator):
    """Of a size that makes tokens differ; rounded to dtype."""
    model = AutoModelForCausalLM.from_config(config)
    state = {}
    for name, value in model.state_dict().items():
        if "rotary" in name:
            continue
        noise = torch.randn(value.shape, generator=generator)
        if value.ndim == 1:
            noise = 0.1 * noise + (0 if name.endswith("bias") else 1)
        elif "embed_in" not in name and "embed_tokens" not in name and "wte" not in name:
            noise = 1.25 * noise / min(value.shape) ** 0.5
        state[name] = noise.to(dtype)
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["transformer.wte.weight"]
    return state


def model_of(case, state):
    model = AutoModelForCausalLM.from_config(config_of(case))
    wide = {name: value.float() for name, value in state.items()}
    missing, extra = model.load_state_dict(wide, strict=False)
    assert not extra and all("rotary" in name for name in missing), (missing, extra)
    return model.eval()


@torch.no_grad()
def logits_of(model, tokens):
    return model(tokens).logits


@torch.no_grad()
def go_on(model, prompt):
    """Tokens with their greedy continuation, and the least lead of a best token."""
    tokens = model.generate(prompt, max_new_tokens=NEW, do_sample=False,
                            attention_mask=torch.ones_like(prompt))
    best = logits_of(model, tokens)[0, PROMPT - 1:-1].topk(2).values
    return tokens, float((best[:, 0] - best[:, 1]).min())


def rounding(case, state, tokens):
    """How far the logits are from those in double precision, of the largest of their row."""
    exact = logits_of(model_of(case, state).double(), tokens)[0]
    off = (logits_of(model_of(case, state), tokens)[0] - exact).abs().amax(-1)
    return float((off / exact.abs().amax(-1)).max())


def usable(state, cases, prompt):
    """The texts of all cases with these weights; None: one of them is no test."""
    texts = {}
    for case in cases:
        if case == LONGER:
            continue
        tokens, lead = go_on(model_of(case, state), prompt)
        kinds = len(set(tokens[0, PROMPT:].tolist()))
        if lead < LEAD or kinds < 10 or rounding(case, state, tokens) > ROUNDING:
            return None
        texts[case] = tokens
    return texts


def find_weights(name, seed):
    """The first random weights after `seed` with which all cases that share them are usable."""
    cases = [case for case in CASES if CASES[case][0] == name]
    for attempt in range(2000):
        generator = torch.Generator().manual_seed(100003 * seed + attempt)
        state = random_weights(config_of(cases[0]), CASES[cases[0]][1], generator)
        prompt = torch.randint(VOCAB, (1, PROMPT), generator=generator)
        texts = usable(state, cases, prompt)
        if texts:
            return state, texts
    sys.exit(f"no weights of {name} make texts that vary")


def save_weights(folder, name, state):
    """GPT-NeoX as pytorch_model.bin, which it was published in."""
    if name == "neox":
        state = {("embed_out.weight" if k == "lm_head.weight" else k): v
                 for k, v in state.items()}
        torch.save(state, os.path.join(folder, "neox.bin"))
        return
    if name == "gpt2":
        state = {k: v for k, v in state.items() if k != "lm_head.weight"}
    save_file({k: v.contiguous() for k, v in state.items()},
              os.path.join(folder, name + ".safetensors"), metadata={"format": "pt"})


def loss_of(model, data):
    """The mean over all labels of [batches, rows, length + 1], in double precision."""
    rows = data.reshape(-1, data.shape[-1])
    logits = logits_of(model, rows[:, :-1]).double()
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))


def make_models(a):
    os.makedirs(a.folder, exist_ok=True)
    expected, losses = {}, {}
    generator = torch.Generator().manual_seed(a.seed)
    data = torch.randint(VOCAB, (2, 4, 97), generator=generator)
    for name in sorted({row[0] for row in CASES.values()}):
        state, texts = find_weights(name, a.seed)
        save_weights(a.folder, name, state)
        for case in (case for case in CASES if CASES[case][0] == name):
            model = model_of(case, state)
            tokens = texts.get(case, texts.get("dynamic"))
            expected[case + ".tokens"] = tokens.to(torch.int32)
            rows = torch.arange(PROMPT - 1, PROMPT + NEW, ROW_STEP)
            expected[case + ".logits"] = logits_of(model, tokens)[0, rows].contiguous()
            # dynamic positions stay stretched after a longer text: a new model
            losses[case] = loss_of(model_of(case, state), data)
            config = config_of(case)
            config.architectures = [type(model).__name__]
            with open(os.path.join(a.folder, case + ".json"), "w", encoding="utf-8") as f:
                f.write(config.to_json_string())
    save_file(expected, os.path.join(a.folder, "expected.safetensors"))
    save_file({"tokens": data}, os.path.join(a.folder, "data.safetensors"))
    with open(os.path.join(a.folder, "expected.json"), "w", encoding="utf-8") as f:
        json.dump({"loss": losses}, f, indent=1)
        f.write("\n")


def make_gpt2(a):
    from tokenizers import ByteLevelBPETokenizer
    made = ByteLevelBPETokenizer()
    made.train([a.text], vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False)
    os.makedirs(a.folder, exist_ok=True)
    made.save(os.path.join(a.folder, "tokenizer.json"))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=os.path.join(a.folder, "tokenizer.json"),
        bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    end = tokenizer.eos_token_id
    torch.manual_seed(a.seed)
    config = transformers.GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=32,
                                     n_layer=2, n_head=4, bos_token_id=end, eos_token_id=end)
    transformers.GPT2LMHeadModel(config).save_pretrained(a.folder)
    tokenizer.save_pretrained(a.folder)


def load(folder):
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[what], (folder, what, report[what])
    return model.eval()


def texts_of(folder):
    """What its tokenizer makes of texts and back; None: it has none."""
    if not os.path.exists(os.path.join(folder, "tokenizer.json")):
        return None
    tokenizer = AutoTokenizer.from_pretrained(folder)
    made = []
    for text in ("one two  three\n", "It's 12,345 \u00e9\u4e2d", "<|endoftext|>", " a\tb "):
        ids = tokenizer(text).input_ids
        made.append((ids, tokenizer.decode(ids)))
    return made


def check_pair(folder, other):
    one, two = load(folder), load(other)
    x, y = one.state_dict(), two.state_dict()
    assert x.keys() == y.keys(), (type(one), type(two))
    for name in x:
        assert x[name].dtype == y[name].dtype and torch.equal(x[name], y[name]), name
    config = one.config
    generator = torch.Generator().manual_seed(1)
    length = min(config.max_position_embeddings, 200)
    tokens = torch.randint(config.vocab_size, (2, length), generator=generator)
    assert torch.equal(logits_of(one, tokens), logits_of(two, tokens)), "logits differ"
    for key in ("eos_token_id", "bos_token_id", "pad_token_id", "tie_word_embeddings"):
        assert getattr(config, key) == getattr(two.config, key), key
    assert texts_of(folder) == texts_of(other), "tokenizers differ"
    print(f"same: {len(x)} tensors of {folder}")


def check_same(a):
    for i in range(0, len(a.folders), 2):
        check_pair(a.folders[i], a.folders[i + 1])


def answer(a):
    model, tokenizer = load(a.folder), AutoTokenizer.from_pretrained(a.folder)
    ids = tokenizer(a.prompt, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=a.count, do_sample=False,
                         pad_token_id=tokenizer.eos_token_id)
    print(tokenizer.decode(out[0]))


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = p.add_subparsers(dest="what", required=True)
    for name, run, words in [("models", make_models, ["folder"]),
                             ("gpt2", make_gpt2, ["folder", "text"]),
                             ("same", check_same, ["folders"]),
                             ("answer", answer, ["folder", "prompt", "count"])]:
        q = kinds.add_parser(name)
        q.set_defaults(run=run)
        q.add_argument("--seed", type=int, default=1)
        for word in words:
            q.add_argument(word, type=int if word == "count" else str,
                           nargs="+" if word == "folders" else None)
    a = p.parse_args()
    a.run(a)


main()
