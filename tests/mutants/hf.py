"""Hugging Face folders, read without the program: config.json as GPT2Config and LlamaConfig
of transformers define it, and the tensors that such a model has. See readers.py."""
import json
import re
import struct

from readers import (Bad, Num, crc, member, need, parse_json, real, safetensors, shape_text,
                     shard_tensors, text_in, whole)

ACTS = {"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu",
        "gelu": "gelu_erf", "quick_gelu": "fast_gelu", "relu": "relu", "silu": "silu",
        "swish": "silu"}


class Config:
    """Members of config.json with the defaults of transformers."""

    def __init__(self, v, limits):
        self.v, self.limits = v, limits

    def get(self, key):
        return self.v.get(key)

    def size(self, key, otherwise=None):
        if self.get(key) is None:
            need(otherwise is not None and (key not in self.v or self.v[key] is None), key)
            return otherwise
        return whole(self.get(key), 1, 2**31, self.limits)

    def real(self, key, otherwise):
        return otherwise if self.get(key) is None else real(self.get(key))

    def flag(self, key, otherwise):
        v = self.get(key)
        need(v is None or isinstance(v, bool), key)
        return otherwise if v is None else v

    def act(self, key, otherwise):
        v = self.get(key)
        if v is None:
            return otherwise
        need(text_in(v, self.limits) in ACTS, "activation")
        return ACTS[v]

    def only(self, key, value):
        if self.flag(key, value) != value:
            raise Bad(key)

    def token(self, key, vocab):
        v = self.get(key)
        n = -1 if v is None else whole(v, -1, 2**31 - 1, self.limits)
        return n if n < vocab else -1

    def tokens(self, s):
        s["bos_token"] = self.token("bos_token_id", s["vocab"])
        s["pad_token"] = self.token("pad_token_id", s["vocab"])
        eos = self.get("eos_token_id")
        if isinstance(eos, list):
            need(len(eos) <= 8, "many eos")
            eos = [whole(e, 0, 2**31 - 1, self.limits) for e in eos]
            s["eos"] = [e for e in eos if e < s["vocab"]]
        else:
            n = self.token("eos_token_id", s["vocab"])
            s["eos"] = [n] if n >= 0 else []


def gpt2(c):
    s = dict(family="gpt2", vocab=c.size("vocab_size"), hidden=c.size("n_embd"),
             layers=c.size("n_layer"), heads=c.size("n_head"),
             max_positions=c.size("n_positions"), positions="learned", norm="layernorm",
             gated=False, qkv_bias=True, mlp_bias=True, rope_base=10000)
    need(s["hidden"] % s["heads"] == 0, "heads")
    s.update(kv_heads=s["heads"], head_dim=s["hidden"] // s["heads"],
             ffn=c.size("n_inner", 4 * s["hidden"]),
             norm_eps=c.real("layer_norm_epsilon", 1e-5),
             act=c.act("activation_function", "gelu"),
             tied=c.flag("tie_word_embeddings", True),
             embd_dropout=c.real("embd_pdrop", 0.1),
             attn_dropout=c.real("attn_pdrop", 0.1),
             resid_dropout=c.real("resid_pdrop", 0.1),
             block_std=c.real("initializer_range", 0.02))
    c.only("scale_attn_weights", True)
    c.only("scale_attn_by_inverse_layer_idx", False)
    c.only("add_cross_attention", False)
    return s


def llama(c):
    s = dict(family="llama", vocab=c.size("vocab_size"), hidden=c.size("hidden_size"),
             layers=c.size("num_hidden_layers"), heads=c.size("num_attention_heads"),
             max_positions=c.size("max_position_embeddings"),
             ffn=c.size("intermediate_size"), positions="rope", norm="rmsnorm", gated=True)
    s["kv_heads"] = c.size("num_key_value_heads", s["heads"])
    need(s["heads"] % s["kv_heads"] == 0, "kv_heads")
    if c.get("head_dim") is None:
        need(s["hidden"] % s["heads"] == 0, "heads")
    s.update(head_dim=c.size("head_dim", s["hidden"] // s["heads"] or 1),
             norm_eps=c.real("rms_norm_eps", 1e-6), act=c.act("hidden_act", "silu"),
             qkv_bias=c.flag("attention_bias", False), mlp_bias=c.flag("mlp_bias", False),
             tied=c.flag("tie_word_embeddings", False),
             attn_dropout=c.real("attention_dropout", 0),
             block_std=c.real("initializer_range", 0.02),
             rope_base=c.real("rope_theta", 10000))
    return s


def spec_of(b, limits):
    v = parse_json(b, limits)
    family = text_in(member(v, "model_type"), limits)
    need(family in ("gpt2", "llama"), "model_type")
    c = Config(v, limits)
    if any(k in v for k in ("quantization_config", "sliding_window", "rope_scaling",
                            "rope_parameters", "partial_rotary_factor", "stator")):
        raise Bad("not made here")
    s = gpt2(c) if family == "gpt2" else llama(c)
    c.tokens(s)
    s["out_bias"] = s["qkv_bias"]
    bounds = {"norm_eps": (1e-30, 1), "rope_base": (1, 1e12), "block_std": (0, 10)}
    bounds |= {k: (0, 0.999) for k in s if k.endswith("dropout")}
    if any(not low <= s[k] <= high for k, (low, high) in bounds.items()):
        limits.append("bounds")
    if s["vocab"] < 2 or s["positions"] == "rope" and s["head_dim"] % 2:
        limits.append("bounds")
    return s


def tensors_of(s):
    """Names and shapes, one layer after the other."""
    h, f, v = s["hidden"], s["ffn"], s["vocab"]
    need(s["layers"] <= 64, "more layers than any file here has")
    out = {}
    if s["family"] == "gpt2":
        out.update({"wte.weight": [v, h], "wpe.weight": [s["max_positions"], h],
                    "ln_f.weight": [h], "ln_f.bias": [h]})
        layer = {"ln_1.weight": [h], "ln_1.bias": [h], "attn.c_attn.weight": [h, 3 * h],
                 "attn.c_attn.bias": [3 * h], "attn.c_proj.weight": [h, h],
                 "attn.c_proj.bias": [h], "ln_2.weight": [h], "ln_2.bias": [h],
                 "mlp.c_fc.weight": [h, f], "mlp.c_fc.bias": [f],
                 "mlp.c_proj.weight": [f, h], "mlp.c_proj.bias": [h]}
        prefix = "h.%d."
    else:
        q, kv = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
        out.update({"model.embed_tokens.weight": [v, h], "model.norm.weight": [h]})
        layer = {"input_layernorm.weight": [h], "post_attention_layernorm.weight": [h],
                 "self_attn.q_proj.weight": [q, h], "self_attn.k_proj.weight": [kv, h],
                 "self_attn.v_proj.weight": [kv, h], "self_attn.o_proj.weight": [h, q],
                 "mlp.gate_proj.weight": [f, h], "mlp.up_proj.weight": [f, h],
                 "mlp.down_proj.weight": [h, f]}
        if s["qkv_bias"]:
            layer.update({"self_attn.q_proj.bias": [q], "self_attn.k_proj.bias": [kv],
                          "self_attn.v_proj.bias": [kv], "self_attn.o_proj.bias": [h]})
        if s["mlp_bias"]:
            layer.update({"mlp.gate_proj.bias": [f], "mlp.up_proj.bias": [f],
                          "mlp.down_proj.bias": [h]})
        prefix = "model.layers.%d."
    for i in range(s["layers"]):
        out.update({prefix % i + k: shape for k, shape in layer.items()})
    if not s["tied"]:
        out["lm_head.weight"] = [v, h]
    return out


def widened(kind, data):
    """The bytes as f32."""
    if kind == "F32":
        return data
    need(kind in ("F16", "BF16"), "type")
    out = []
    for h in struct.unpack(f"<{len(data) // 2}H", data):
        if kind == "BF16":
            out.append(h << 16)
        elif h & 0x7C00 == 0x7C00:
            out.append((h & 0x8000) << 16 | 0x7F800000 | (h & 0x3FF) << 13)
        else:
            v = struct.unpack("<e", struct.pack("<H", h))[0]
            out.append(struct.unpack("<I", struct.pack("<f", v))[0])
    return struct.pack(f"<{len(out)}I", *out)


def read_hf(files, limits):
    """A function that says what is wrong with the program's answer."""
    spec = spec_of(files["config.json"], limits)
    have = (shard_tensors(files, limits) if "model.safetensors.index.json" in files
            else safetensors(files["model.safetensors"], limits)[0])
    want, lines, used = tensors_of(spec), [], set()
    for name, shape in want.items():
        found = name if name in have else "transformer." + name
        need(found in have and have[found][1] == shape, f"shape of {name}")
        used.add(found)
        lines.append(f"{name}{shape_text(shape)}{crc(widened(have[found][0], have[found][2]))}")
    for name in set(have) - used:
        buffer = re.fullmatch(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias", name)
        table = [k for k in have if k.endswith(("wte.weight", "embed_tokens.weight"))]
        tied = name == "lm_head.weight" and any(have[k] == have[name] for k in table)
        need(buffer or tied, f"extra {name}")

    def differs(answer):
        at = answer.index("{")
        if sorted(answer[:at].splitlines()) != sorted(lines):
            return f"tensors: {lines}"
        got = json.loads(answer[at:])["stator"]
        wrong = {k: (got[k], v) for k, v in spec.items() if got[k] != v}
        return f"(got, wanted) {wrong}" if wrong else None

    return differs


GPT2 = dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_layer=2, n_embd=4,
            n_head=2, vocab_size=11, n_positions=5, n_inner=None,
            activation_function="gelu_new", layer_norm_epsilon=1e-05, embd_pdrop=0.0,
            attn_pdrop=0.25, resid_pdrop=0.1, initializer_range=0.02, bos_token_id=10,
            eos_token_id=10, tie_word_embeddings=True, torch_dtype="float32")
LLAMA = dict(model_type="llama", architectures=["LlamaForCausalLM"], num_hidden_layers=2,
             hidden_size=4, num_attention_heads=2, num_key_value_heads=1,
             intermediate_size=6, vocab_size=9, max_position_embeddings=7,
             hidden_act="silu", rms_norm_eps=1e-05, rope_theta=500000.0,
             tie_word_embeddings=False, attention_bias=False, mlp_bias=False,
             bos_token_id=1, eos_token_id=[2, 3])
