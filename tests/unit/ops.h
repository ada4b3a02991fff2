/* ops.h - one-op programs for every row of ops.def: the samples of ops.c. A type `F[...]`
 * is f64 when gradients and expansions are checked, f32, bf16 or f16 else, `S[...]` what that is
 * summed in; odd sizes on purpose.
 * Arguments of a float type are differentiated; names steer the numbers they get (see
 * fill_argument in op_programs.h): pos* in (0.5, 1.5), nz* away from 0, ids* rows of a table of
 * 4, lab* labels of 4 classes or -1, first* up to the place in
 * the row, zero* 0, off* the offset 2, later* 4, back* -2, lost* -1000, far* the largest
 * integer, far_back* -70, all others in (-1, 1); table* is no parameter. In collectives
 * 4* is 4 times the ranks of axis a, 12/ a share. Those that say `of="..."` run on a mesh
 * too. */
#ifndef STATOR_TESTS_OPS_H
#define STATOR_TESTS_OPS_H
#include <stddef.h>

// clang-format off
#define ATTN_AT(off, q, k)                                                               \
    "%q: F[" q "], %k: F[" k "], %v: F[" k "], " off                                     \
    ": i32[], %zerok: i32[], %rng: i32[4]"
#define ATTN_OUT_AT(off, attrs, q, lse)                                                  \
    "%o, %l = attention %q, %k, %v, " off ", %zerok, %rng {" attrs "} : F[" q            \
    "], S[" lse "]"
#define ATTN(q, k) ATTN_AT("%off", q, k)
#define ATTN_OUT(attrs, q, lse) ATTN_OUT_AT("%off", attrs, q, lse)
#define ATTN_EACH(q, k)                                                                  \
    "%q: F[" q "], %k: F[" k "], %v: F[" k "], %ids: i32[3], %zerok: i32[], %rng: i32[4]"
#define ATTN_GRAD_ARGS(q, k, lse)                                                        \
    ATTN_AT("%off", q, k) ", %o: F[" q "], %lse: S[" lse "], %do: F[" q "]"
#define ATTN_GRAD_OUT(attrs, q, k)                                                       \
    "%dq, %dk, %dv = attention_grad %q, %k, %v, %off, %zerok, %rng, %o, %lse, %do "      \
    "{" attrs "} : F[" q "], F[" k "], F[" k "]"
#define UNARY(op)                                                                        \
    {#op, NULL, "%x: F[3,5]", "%y = " #op " %x : F[3,5]"},                               \
    {#op, NULL, "%nzx: F[2,1,7]", "%y = " #op " %nzx : F[2,1,7]"},                       \
    {#op, NULL, "%x: F[]", "%y = " #op " %x : F[]"}
#define UNARY_POS(op)                                                                    \
    {#op, NULL, "%posx: F[3,5]", "%y = " #op " %posx : F[3,5]"},                         \
    {#op, NULL, "%posx: F[]", "%y = " #op " %posx : F[]"}
#define BINARY(op)                                                                       \
    {#op, NULL, "%x: F[3,5], %y: F[3,5]", "%z = " #op " %x, %y : F[3,5]"},               \
    {#op, NULL, "%x: F[], %y: F[]", "%z = " #op " %x, %y : F[]"}
#define BROADCAST(op)                                                                    \
    {#op, NULL, "%x: F[3,5], %posy: F[3,5]", "%z = " #op " %x, %posy : F[3,5]"},         \
    {#op, NULL, "%x: F[2,3,5], %posy: F[5]",                                             \
     "%z = " #op " %x, %posy {btc,c->btc} : F[2,3,5]"},                                  \
    {#op, NULL, "%x: F[3], %posy: F[2,3,5]",                                             \
     "%z = " #op " %x, %posy {t,btc->btc} : F[2,3,5]"},                                  \
    {#op, NULL, "%x: F[2,3,5], %posy: F[2,3]",                                           \
     "%z = " #op " %x, %posy {...c,...->...c} : F[2,3,5]"},                              \
    {#op, NULL, "%x: F[3,2], %posy: F[]",                                                \
     "%z = " #op " %x, %posy {...,_->...} : F[3,2]"},                                    \
    {#op, NULL, "%x: F[3], %posy: F[5]", "%z = " #op " %x, %posy {m,n->mn} : F[3,5]"},   \
    {#op, NULL, "%x: F[5,3], %posy: F[5,2]",                                             \
     "%z = " #op " %x, %posy {nm,nb->mbn} : F[3,2,5]"},                                  \
    {#op, NULL, "%posx: F[4]", "%z = " #op " %posx, %posx : F[4]"}
// clang-format on

typedef struct Sample {
    const char *kind;
    const char *more; /* functions before the one with the op, or NULL */
    const char *args, *body;
} Sample;

static const Sample samples[] = {
    {"dot", NULL, "%x: F[3,5], %w: F[5,2]", "%y = dot %x, %w {mk,kn->mn} : F[3,2]"},
    {"dot", NULL, "%x: F[3,5], %w: F[2,5], %b: F[2]",
     "%y = dot %x, %w, %b {mk,nk,n->mn} : F[3,2]"},
    {"dot", NULL, "%x: F[3,5], %w: F[5,2], %b: F[2], %a: F[3,2]",
     "%y = dot %x, %w, %b, %a {mk,kn,n,mn->mn} : F[3,2]"},
    {"dot", NULL, "%x: F[2,3,5], %w: F[5,3,2,1]",
     "%y = dot %x, %w {btc,cahd->btahd} : F[2,3,3,2,1]"},
    {"dot", NULL, "%x: F[2,3,4,5], %w: F[2,3,4,7]",
     "%y = dot %x, %w {bhik,bhij->bhjk} : F[2,3,7,5]"},
    {"dot", NULL, "%x: F[3], %w: F[3]", "%y = dot %x, %w {k,k->_} : F[]"},
    {"dot", NULL, "%x: F[3], %w: F[4]", "%y = dot %x, %w {m,n->nm} : F[4,3]"},
    {"dot", NULL, "%x: F[2,3,5], %w: F[5,4]",
     "%y = dot %x, %w {...k,kn->...n} : F[2,3,4]"},
    {"dot", NULL, "%x: F[3,3]", "%y = dot %x, %x {mk,kn->mn} : F[3,3]"},
    {"dot", NULL, "%x: F[3,2,5], %w: F[5,4]", "%y = dot %x, %w {tbh,hv->btv} : F[2,3,4]"},
    {"dot", NULL, "%x: F[3,2,5], %g: F[2,3,4]", "%y = dot %x, %g {tbh,btv->hv} : F[5,4]"},
    {"dot", NULL, "%x: F[2,4,5], %w: F[2,5,3], %b: F[3,2], %c: F[2,4]",
     "%y = dot %x, %w, %b, %c {bmk,bkn,nb,bm->mnb} : F[4,3,2]"},
    {"sum", NULL, "%x: F[3,5]", "%y = sum %x {mn->m} : F[3]"},
    {"sum", NULL, "%x: F[3,5]", "%y = sum %x {mn->n} : F[5]"},
    {"sum", NULL, "%x: F[2,3,5]", "%y = sum %x {...->_} : F[]"},
    {"sum", NULL, "%x: F[2,3,5]", "%y = sum %x {abc->ca} : F[5,2]"},
    {"sum", NULL, "%x: F[2,3,5]", "%y = sum %x {...c->...} : F[2,3]"},
    {"max", NULL, "%x: F[3,5]", "%y = max %x {mn->m} : F[3]"},
    {"max", NULL, "%x: F[3,5]", "%y = max %x {mn->n} : F[5]"},
    {"rearrange", NULL, "%x: F[2,3,5]", "%y = rearrange %x {abc->cab} : F[5,2,3]"},
    {"rearrange", NULL, "%x: F[2,3,5]", "%y = rearrange %x {...c->c...} : F[5,2,3]"},
    {"rearrange", NULL, "%ids: i32[2,3]", "%y = rearrange %ids {ab->ba} : i32[3,2]"},
    {"reshape", NULL, "%x: F[2,3,5]", "%y = reshape %x : F[6,5]"},
    {"reshape", NULL, "%x: F[1,1]", "%y = reshape %x : F[]"},
    {"unstack", NULL, "%x: F[2,3,5]",
     "%a, %b, %c = unstack %x {dim=1} : F[2,5], F[2,5], F[2,5]"},
    {"unstack", NULL, "%x: F[2,3]", "%a, %b = unstack %x {dim=0} : F[3], F[3]"},
    {"unstack", NULL, "%x: F[3,1]", "%a = unstack %x {dim=1} : F[3]"},
    {"stack", NULL, "%x: F[2,3], %y: F[2,3], %z: F[2,3]",
     "%a = stack %x, %y, %z {dim=1} : F[2,3,3]"},
    {"stack", NULL, "%x: F[2,3], %y: F[2,3]", "%a = stack %x, %y {dim=2} : F[2,3,2]"},
    {"stack", NULL, "%x: F[]", "%a = stack %x, %x {dim=0} : F[2]"},
    {"pad", NULL, "%x: F[2,3]", "%y = pad %x : F[2,5]"},
    {"pad", NULL, "%x: F[3,4]", "%y = pad %x : F[3,4]"},
    {"pad", NULL, "%ids: i32[3]", "%y = pad %ids : i32[7]"},
    {"unpad", NULL, "%x: F[2,2,5]", "%y = unpad %x : F[2,2,3]"},
    {"unpad", NULL, "%ids: i32[7]", "%y = unpad %ids : i32[3]"},
    {"slice", NULL, "%x: F[5,2,3]", "%y = slice %x {dim=0; first=1; size=3} : F[3,2,3]"},
    {"slice", NULL, "%x: F[2,4,3]", "%y = slice %x {dim=1; first=3; size=1} : F[2,1,3]"},
    {"slice", NULL, "%ids: i32[7]", "%y = slice %ids {dim=0; first=0; size=7} : i32[7]"},
    {"copy", NULL, "%x: F[3,5]", "%y = copy %x : F[3,5]"},
    {"copy", NULL, "%ids: i32[7]", "%y = copy %ids : i32[7]"},
    BROADCAST(add),
    BROADCAST(sub),
    BROADCAST(mul),
    BROADCAST(div),
    {"fill", NULL, "", "%y = fill {value=0.3} : F[2,3]"},
    {"fill", NULL, "", "%y = fill {value=-2} : i32[]"},
    {"fill", NULL, "", "%y = fill {value=inf} : F[]"},
    {"scale", NULL, "%x: F[3,5]", "%y = scale %x {by=-0.7} : F[3,5]"},
    {"scale", NULL, "%x: F[]", "%y = scale %x {by=0.3333333333333333} : F[]"},
    {"offset", NULL, "%x: F[3,5]", "%y = offset %x {by=1e-05} : F[3,5]"},
    {"atmost", NULL, "%x: F[3,5]", "%y = atmost %x {by=0.25} : F[3,5]"},
    {"cast", NULL, "%x: F[3,5]", "%y = cast %x : f64[3,5]"},
    {"cast", NULL, "%x: F[3]", "%y = cast %x : i32[3]"},
    {"cast", NULL, "%ids: i32[3]", "%y = cast %ids : F[3]"},
    BINARY(log_add),
    UNARY(exp),
    UNARY_POS(log),
    UNARY_POS(sqrt),
    UNARY_POS(rsqrt),
    UNARY(tanh),
    {"softcap", NULL, "%x: F[3,5]", "%y = softcap %x {cap=0.7} : F[3,5]"},
    {"softcap", NULL, "%x: F[2,1,7]", "%y = softcap %x {cap=30} : F[2,1,7]"},
    {"softcap", NULL, "%x: F[]", "%y = softcap %x {cap=0.1} : F[]"},
    {"relu", NULL, "%nzx: F[3,5]", "%y = relu %nzx : F[3,5]"},
    {"relu", NULL, "%nzx: F[]", "%y = relu %nzx : F[]"},
    BINARY(relu_grad),
    UNARY(gelu),
    BINARY(gelu_grad),
    UNARY(gelu_erf),
    BINARY(gelu_erf_grad),
    UNARY(fast_gelu),
    BINARY(fast_gelu_grad),
    UNARY(silu),
    BINARY(silu_grad),
    {"log_add", NULL, "%x: F[3,4], %y: F[3,4]", "%z = log_add %x, %y : F[3,4]"},
    {"pick", NULL, "%x: F[3,4], %lab: i32[3]", "%y = pick %x, %lab : F[3,4]"},
    {"pick", NULL, "%x: F[4], %lab: i32[]", "%y = pick %x, %lab : F[4]"},
    {"valid", NULL, "%lab: i32[2,3]", "%y = valid %lab : F[2,3]"},
    {"valid", NULL, "%lab: i32[3,5]", "%y = valid %lab : i32[3,5]"},
    {"valid", NULL, "%lab: i32[]", "%y = valid %lab : i32[]"},
    {"onehot", NULL, "%lab: i32[2,3]", "%y = onehot %lab : F[2,3,4]"},
    {"onehot", NULL, "%lab: i32[3]", "%y = onehot %lab : F[3,1]"},
    {"onehot", NULL, "%lab: i32[2,3]", "%y = onehot %lab : i32[2,3,5]"},
    {"onehot", NULL, "%lab: i32[3]", "%y = onehot %lab : i32[3,1]"},
    {"dropout", NULL, "%x: F[3,5], %rng: i32[4]",
     "%y = dropout %x, %rng {p=0.3; site=5} : F[3,5]"},
    {"dropout", NULL, "%x: F[7], %rng: i32[4]",
     "%y = dropout %x, %rng {p=0; site=4294967295} : F[7]"},
    {"dropout", NULL, "%x: F[2,3,8], %rng: i32[4]",
     "%y = dropout %x, %rng {p=0.3; site=5; of=\"f32[2,3,8*:a]\"} : F[2,3,8]"},
    {"dropout", NULL, "%x: F[2,3,6], %rng: i32[4]",
     "%y = dropout %x, %rng {p=0.3; site=5; of=\"f32[2,3*:a,6]\"} : F[2,3,6]"},
    {"dropout", NULL, "%x: F[2,6,5], %rng: i32[4]",
     "%y = dropout %x, %rng {p=0.3; site=5; zigzag=3} : F[2,6,5]"},
    {"dropout", NULL, "%x: F[2,12,16], %rng: i32[4]",
     "%y = dropout %x, %rng {p=0.3; site=5; zigzag=2} : F[2,12,16]"},
    {"dropout", NULL, "%x: F[2,8], %rng: i32[4]",
     "%y = dropout %x, %rng {p=0.3; site=5; zigzag=2} : F[2,8]"},
    {"dropout", NULL, "%x: F[2,6,5], %rng: i32[4]",
     "%y = dropout %x, %rng {p=0.3; site=5; of=\"f32[2,6*:a,5]\"; zigzag=3} : F[2,6,5]"},
    {"dropout", NULL, "%x: F[1,1], %rng: i32[4]",
     "%y = dropout %x, %rng {p=0.3; site=5} : F[1,1]"},
    {"dropout", NULL, "%x: F[1,1], %rng: i32[4]",
     "%y = dropout %x, %rng {p=0.3; site=5; of=\"f32[1*:a,1]\"} : F[1,1]"},
    {"layernorm", NULL, "%x: F[2,3,5], %posg: F[5], %b: F[5]",
     "%y, %m, %r = layernorm %x, %posg, %b {eps=1e-05} : F[2,3,5], F[2,3], F[2,3]"},
    {"layernorm", NULL, "%x: F[7], %posg: F[7], %b: F[7]",
     "%y, %m, %r = layernorm %x, %posg, %b {eps=0.1} : F[7], F[], F[]"},
    {"layernorm", NULL, "%x: F[3,1], %posg: F[1], %b: F[1]",
     "%y, %m, %r = layernorm %x, %posg, %b {eps=0.1} : F[3,1], F[3], F[3]"},
    {"layernorm_grad", NULL,
     "%x: F[2,3,5], %posg: F[5], %m: F[2,3], %posr: F[2,3], %dy: F[2,3,5]",
     "%dx, %dg, %db = layernorm_grad %x, %posg, %m, %posr, %dy : F[2,3,5], F[5], F[5]"},
    {"rmsnorm", NULL, "%x: F[2,3,5], %posg: F[5]",
     "%y, %r = rmsnorm %x, %posg {eps=1e-06} : F[2,3,5], F[2,3]"},
    {"rmsnorm", NULL, "%x: F[7], %posg: F[7]",
     "%y, %r = rmsnorm %x, %posg {eps=0.01} : F[7], F[]"},
    {"rmsnorm_grad", NULL, "%x: F[2,3,5], %posg: F[5], %posr: F[2,3], %dy: F[2,3,5]",
     "%dx, %dg = rmsnorm_grad %x, %posg, %posr, %dy : F[2,3,5], F[5]"},
    {"softmax", NULL, "%x: F[2,3,5]", "%y = softmax %x : F[2,3,5]"},
    {"softmax", NULL, "%x: F[7]", "%y = softmax %x : F[7]"},
    {"softmax", NULL, "%x: F[3,1]", "%y = softmax %x : F[3,1]"},
    {"softmax_grad", NULL, "%y: F[3,5], %dy: F[3,5]",
     "%d = softmax_grad %y, %dy : F[3,5]"},
    {"xent", NULL, "%x: F[2,5,4], %lab: i32[2,5]",
     "%l, %s = xent %x, %lab : F[2,5], F[2,5]"},
    {"xent", NULL, "%x: F[4], %lab: i32[]", "%l, %s = xent %x, %lab : F[], F[]"},
    {"xent", NULL, "%x: F[3,1], %zero: i32[3]", "%l, %s = xent %x, %zero : F[3], F[3]"},
    {"xent_grad", NULL, "%x: F[5,4], %lab: i32[5], %posl: F[5], %d: F[5]",
     "%dx = xent_grad %x, %lab, %posl, %d : F[5,4]"},
    {"embed", NULL, "%t: F[4,3], %ids: i32[2,5]", "%y = embed %t, %ids : F[2,5,3]"},
    {"embed", NULL, "%t: F[4,3], %ids: i32[]", "%y = embed %t, %ids : F[3]"},
    {"embed", NULL, "%t: F[3,6], %lab: i32[2,5]",
     "%y = embed %t, %lab {partial=1} : F[2,5,6]"},
    {"embed_grad", NULL, "%ids: i32[2,5], %dy: F[2,5,3]",
     "%y = embed_grad %ids, %dy : F[4,3]"},
    {"embed_grad", NULL, "%lab: i32[2,5], %dy: F[2,5,6]",
     "%y = embed_grad %lab, %dy {partial=1} : F[3,6]"},
    {"embed_add", NULL, "%t: F[4,3], %ids: i32[2,5], %dy: F[2,5,3]",
     "%y = embed_add %t, %ids, %dy : F[4,3]"},
    {"embed_add", NULL, "%t: F[3,6], %lab: i32[2,5], %dy: F[2,5,6]",
     "%y = embed_add %t, %lab, %dy {partial=1} : F[3,6]"},
    {"positions", NULL, "%off: i32[]", "%y = positions %off : i32[5]"},
    {"positions", NULL, "%back: i32[]", "%y = positions %back {zigzag=3} : i32[12]"},
    {"rng_layer", NULL, "%rng: i32[4], %off: i32[]",
     "%y = rng_layer %rng, %off : i32[4]"},
    {"rope_table", NULL, "%off: i32[]", "%y = rope_table %off {base=10000} : S[5,3,2]"},
    {"rope_table", NULL, "%off: i32[]",
     "%y = rope_table %off {freqs=\"1 0.25 3e-2\"; scale=1.5} : S[5,3,2]"},
    {"rope_table_each", NULL, "%ids: i32[2,5]",
     "%y = rope_table_each %ids {base=10000} : S[2,5,3,2]"},
    {"rope_table_each", NULL, "%ids: i32[2,5]",
     "%y = rope_table_each %ids {freqs=\"1 0.25 3e-2\"; scale=1.5} : S[2,5,3,2]"},
    {"rope", NULL, "%x: F[2,3,2,7], %table: S[3,2,2]",
     "%y = rope %x, %table : F[2,3,2,7]"},
    {"rope", NULL, "%x: F[2,3,5,4], %table: S[3,2,2]",
     "%y = rope %x, %table : F[2,3,5,4]"},
    {"rope", NULL, "%x: F[1,3,1,2], %table: S[3,1,2]",
     "%y = rope %x, %table {inverse=1} : F[1,3,1,2]"},
    {"rope_each", NULL, "%x: F[2,3,5,4], %table: S[2,3,2,2]",
     "%y = rope_each %x, %table : F[2,3,5,4]"},
    {"rope_each", NULL, "%x: F[3,1,2,2], %table: S[3,1,1,2]",
     "%y = rope_each %x, %table {inverse=1} : F[3,1,2,2]"},
    {"attention", NULL, ATTN("2,3,4,5", "2,3,4,5"),
     ATTN_OUT("scale=0.4; causal=1", "2,3,4,5", "2,3,4")},
    {"attention", NULL, ATTN("1,3,4,2", "1,5,2,2"),
     ATTN_OUT("scale=0.7; causal=1", "1,3,4,2", "1,3,4")},
    {"attention", NULL, ATTN("2,3,3,5", "2,4,1,5"),
     ATTN_OUT("scale=0.4; causal=0; p=0.25; site=3", "2,3,3,5", "2,3,3")},
    {"attention", NULL, ATTN("1,1,1,1", "1,1,1,1"),
     ATTN_OUT("scale=1; causal=1; p=0.1; site=0", "1,1,1,1", "1,1,1")},
    {"attention_grad", NULL, ATTN_GRAD_ARGS("2,3,4,5", "2,3,2,5", "2,3,4"),
     ATTN_GRAD_OUT("scale=0.4; causal=1; p=0.2; site=1", "2,3,4,5", "2,3,2,5")},
    {"attention", NULL,
     ATTN_AT("%back", "1,5,4,3", "1,6,2,3"), /* the first two see none */
     ATTN_OUT_AT("%back", "scale=0.7; causal=1", "1,5,4,3", "1,5,4")},
    {"attention", NULL, ATTN_AT("%lost", "1,3,2,3", "1,5,2,3"),
     ATTN_OUT_AT("%lost", "scale=0.7; causal=1; p=0.2; site=1", "1,3,2,3", "1,3,2")},
    {"attention", NULL, ATTN_AT("%far", "1,3,2,3", "1,5,2,3"),
     ATTN_OUT_AT("%far", "scale=0.7; causal=1", "1,3,2,3", "1,3,2")},
    {"attention", NULL, ATTN_AT("%zero", "1,8,2,3", "1,8,1,3"),
     ATTN_OUT_AT("%zero", "scale=0.7; causal=1; zigzag=2", "1,8,2,3", "1,8,2")},
    {"attention", NULL, ATTN("2,3,2,6", "2,4,2,6"), /* a part of everything */
     ATTN_OUT("scale=0.4; causal=1; p=0.25; site=3; of=\"f32[2*:a,2,5,9]\"", "2,3,2,6",
              "2,3,2")},
    {"attention_grad", NULL, ATTN_GRAD_ARGS("2,3,2,6", "2,4,2,6", "2,3,2"),
     ATTN_GRAD_OUT("scale=0.4; causal=1; p=0.25; site=3; of=\"f32[2,2*:a,3,4]\"",
                   "2,3,2,6", "2,4,2,6")},
    {"attention_grad", NULL,
     "%q: F[1,5,4,3], %k: F[1,6,2,3], %v: F[1,6,2,3], %back: i32[], %zero: i32[], "
     "%rng: i32[4], %o: F[1,5,4,3], %lse: S[1,5,4], %do: F[1,5,4,3]",
     "%dq, %dk, %dv = attention_grad %q, %k, %v, %back, %zero, %rng, %o, %lse, %do "
     "{scale=0.4; causal=1} : F[1,5,4,3], F[1,6,2,3], F[1,6,2,3]"},
    {"attention_within", NULL,
     "%q: F[2,3,4,5], %k: F[2,3,2,5], %v: F[2,3,2,5], %off: i32[], %zeroo: i32[], "
     "%rng: i32[4], %zero: i32[2,3]",
     "%o, %l = attention_within %q, %k, %v, %off, %zeroo, %rng, %zero "
     "{scale=0.4; causal=1} : F[2,3,4,5], S[2,3,4]"},
    {"attention_within", NULL,
     "%q: F[1,5,2,3], %k: F[1,7,2,3], %v: F[1,7,2,3], %off: i32[], %zero: i32[], "
     "%rng: i32[4], %first: i32[1,5]",
     "%o, %l = attention_within %q, %k, %v, %off, %zero, %rng, %first "
     "{scale=0.4; causal=1; p=0.2; site=2} : F[1,5,2,3], S[1,5,2]"},
    {"attention_within_grad", NULL,
     "%q: F[2,3,4,5], %k: F[2,3,2,5], %v: F[2,3,2,5], %off: i32[], %zero: i32[], "
     "%rng: i32[4], %first: i32[2,3], %o: F[2,3,4,5], %lse: S[2,3,4], %do: F[2,3,4,5]",
     "%dq, %dk, %dv = attention_within_grad %q, %k, %v, %off, %zero, %rng, %first, %o, "
     "%lse, "
     "%do "
     "{scale=0.4; causal=1} : F[2,3,4,5], F[2,3,2,5], F[2,3,2,5]"},
    /* keys that begin behind the first queries, as a chunk of a ring does */
    {"attention", NULL,
     "%q: F[1,7,2,3], %k: F[1,5,2,3], %v: F[1,5,2,3], %off: i32[], %later: i32[], "
     "%rng: i32[4]",
     "%o, %l = attention %q, %k, %v, %off, %later, %rng "
     "{scale=0.4; causal=1; p=0.2; site=2; of=\"f32[1,2*:a,14,12]\"} : F[1,7,2,3], "
     "S[1,7,2]"},
    {"attention_within_grad", NULL,
     "%q: F[1,7,2,3], %k: F[1,5,1,3], %v: F[1,5,1,3], %off: i32[], %later: i32[], "
     "%rng: i32[4], %first: i32[1,7], %o: F[1,7,2,3], %lse: S[1,7,2], %do: F[1,7,2,3]",
     "%dq, %dk, %dv = attention_within_grad %q, %k, %v, %off, %later, %rng, %first, %o, "
     "%lse, %do "
     "{scale=0.4; causal=1; p=0.2; site=2; of=\"f32[1*:a,2,14,12]\"} : F[1,7,2,3], "
     "F[1,5,1,3], F[1,5,1,3]"},
    /* windows: of one key, cut by a document, behind all keys, of a ring's chunk */
    {"attention", NULL, ATTN("2,5,4,3", "2,5,2,3"),
     ATTN_OUT("scale=0.4; causal=1; window=1", "2,5,4,3", "2,5,4")},
    {"attention", NULL, ATTN_AT("%lost", "1,3,2,3", "1,5,2,3"),
     ATTN_OUT_AT("%lost", "scale=0.7; causal=1; window=2", "1,3,2,3", "1,3,2")},
    {"attention", NULL, ATTN_AT("%far", "1,3,2,3", "1,5,2,3"),
     ATTN_OUT_AT("%far", "scale=0.7; causal=1; window=3", "1,3,2,3", "1,3,2")},
    {"attention", NULL, ATTN_AT("%zero", "1,8,2,3", "1,8,1,3"),
     ATTN_OUT_AT("%zero", "scale=0.7; causal=1; zigzag=2; window=3", "1,8,2,3", "1,8,2")},
    {"attention_grad", NULL, ATTN_GRAD_ARGS("2,6,4,5", "2,6,2,5", "2,6,4"),
     ATTN_GRAD_OUT("scale=0.4; causal=1; p=0.2; site=1; window=3", "2,6,4,5", "2,6,2,5")},
    {"attention_within", NULL,
     "%q: F[1,5,2,3], %k: F[1,7,2,3], %v: F[1,7,2,3], %off: i32[], %zero: i32[], "
     "%rng: i32[4], %first: i32[1,5]",
     "%o, %l = attention_within %q, %k, %v, %off, %zero, %rng, %first "
     "{scale=0.4; causal=1; p=0.2; site=2; window=4} : F[1,5,2,3], S[1,5,2]"},
    {"attention_within_grad", NULL,
     "%q: F[1,7,2,3], %k: F[1,5,1,3], %v: F[1,5,1,3], %off: i32[], %later: i32[], "
     "%rng: i32[4], %first: i32[1,7], %o: F[1,7,2,3], %lse: S[1,7,2], %do: F[1,7,2,3]",
     "%dq, %dk, %dv = attention_within_grad %q, %k, %v, %off, %later, %rng, %first, %o, "
     "%lse, %do "
     "{scale=0.4; causal=1; window=2; of=\"f32[1*:a,2,14,12]\"} : F[1,7,2,3], "
     "F[1,5,1,3], F[1,5,1,3]"},
    {"cache_write", NULL, "%c: F[2,5,2,3], %x: F[2,3,2,3], %off: i32[]",
     "%y = cache_write %c, %x, %off : F[2,5,2,3]"},
    {"cache_write_each", NULL,
     "%c: F[3,6,2,3], %x: F[3,3,2,3], %ids: i32[3], %ids_n: i32[3]",
     "%y = cache_write_each %c, %x, %ids, %ids_n : F[3,6,2,3]"},
    {"cache_write_each", NULL,
     "%c: F[9,2,1,3], %x: F[9,3,1,3], %ids: i32[9], %ids_n: i32[9]",
     "%y = cache_write_each %c, %x, %ids, %ids_n : F[9,2,1,3]"},
    {"attention_each", NULL, ATTN_EACH("3,3,4,5", "3,7,2,5"),
     "%o, %l = attention_each %q, %k, %v, %ids, %zerok, %rng "
     "{scale=0.4; causal=1} : F[3,3,4,5], S[3,3,4]"},
    {"attention_each", NULL, ATTN_EACH("3,1,4,5", "3,7,2,5"),
     "%o, %l = attention_each %q, %k, %v, %ids, %zerok, %rng "
     "{scale=0.4; causal=1; window=2} : F[3,1,4,5], S[3,1,4]"},
    UNARY(finite),
    {"select", NULL, "%c: F[], %x: F[3,5], %y: F[3,5]",
     "%z = select %c, %x, %y : F[3,5]"},
    {"select", NULL, "%zero: F[], %x: F[2,1,7], %y: F[2,1,7]",
     "%z = select %zero, %x, %y : F[2,1,7]"},
    {"select", NULL, "%c: F[], %x: F[], %y: F[]", "%z = select %c, %x, %y : F[]"},
    {"agree", NULL, "%x: F[]", "%y = agree %x : F[]"},
    {"adamw", NULL,
     "%p: F[3,5], %g: F[3,5], %m: F[3,5], %posv: F[3,5], %lr: F[], %wd: F[], "
     "%posa: F[], %posb: F[], %clip: F[]",
     "%a, %b, %c = adamw %p, %g, %m, %posv, %lr, %wd, %posa, %posb, %clip "
     "{beta1=0.9; beta2=0.95; eps=1e-08; decay=1} : F[3,5], F[3,5], F[3,5]"},
    {"adamw", NULL,
     "%p: F[], %g: F[], %m: F[], %posv: F[], %lr: F[], %wd: F[], %posa: F[], %posb: F[], "
     "%clip: F[]",
     "%a, %b, %c = adamw %p, %g, %m, %posv, %lr, %wd, %posa, %posb, %clip "
     "{beta1=0.8; beta2=0.999; eps=0.001} : F[], F[], F[]"},
    {"adam", NULL,
     "%p: F[3,5], %g: F[3,5], %m: F[3,5], %posv: F[3,5], %lr: F[], %wd: F[], "
     "%posa: F[], %posb: F[], %clip: F[]",
     "%a, %b, %c = adam %p, %g, %m, %posv, %lr, %wd, %posa, %posb, %clip "
     "{beta1=0.9; beta2=0.95; eps=1e-08; decay=1} : F[3,5], F[3,5], F[3,5]"},
    {"adam", NULL,
     "%p: F[7], %g: F[7], %m: F[7], %posv: F[7], %lr: F[], %wd: F[], %posa: F[], "
     "%posb: F[], %clip: F[]",
     "%a, %b, %c = adam %p, %g, %m, %posv, %lr, %wd, %posa, %posb, %clip "
     "{beta1=0.8; beta2=0.999; eps=0.001; decay=0} : F[7], F[7], F[7]"},
    {"momentum", NULL,
     "%p: F[3,5], %g: F[3,5], %b: F[3,5], %lr: F[], %wd: F[], %clip: F[]",
     "%a, %c = momentum %p, %g, %b, %lr, %wd, %clip {momentum=0.9; decay=1} : F[3,5], "
     "F[3,5]"},
    {"sgd", NULL, "%p: F[3,5], %g: F[3,5], %lr: F[], %wd: F[], %clip: F[]",
     "%a = sgd %p, %g, %lr, %wd, %clip {decay=1} : F[3,5]"},
    {"sgd", NULL, "%p: F[7], %g: F[7], %lr: F[], %wd: F[], %clip: F[]",
     "%a = sgd %p, %g, %lr, %wd, %clip : F[7]"},
    {"call",
     "func @f(%x: F[3], %w: F[3,5]) -> (F[5], F[3]) {\n"
     "  %y = dot %x, %w {k,kn->n} : F[5]\n  %z = tanh %x : F[3]\n  return %y, %z\n}\n",
     "%x: F[3], %w: F[3,5]", "%y, %z = call %x, %w {fn=@f} : F[5], F[3]"},
    {"call", /* carry, each, an invariant, a stacked result */
     "func @f(%x: F[3], %w: F[3,3], %b: F[3]) -> (F[3], F[3]) {\n"
     "  %y = dot %x, %w {k,kn->n} : F[3]\n  %z = add %y, %b : F[3]\n"
     "  %a = tanh %z : F[3]\n  %c = mul %a, %x : F[3]\n  return %a, %c\n}\n",
     "%x: F[3], %w: F[4,3,3], %b: F[3]",
     "%y, %z = call %x, %w, %b {fn=@f; times=4; carry=1; each=1} : F[3], F[4,3]"},
    {"call", /* last slice first */
     "func @f(%x: F[3], %w: F[3,3], %b: F[3]) -> (F[3], F[3]) {\n"
     "  %y = dot %x, %w {k,kn->n} : F[3]\n  %z = add %y, %b : F[3]\n"
     "  %a = tanh %z : F[3]\n  %c = mul %a, %x : F[3]\n  return %a, %c\n}\n",
     "%x: F[3], %w: F[4,3,3], %b: F[3]",
     "%y, %z = call %x, %w, %b {fn=@f; times=4; carry=1; each=1; reverse=1} : F[3], "
     "F[4,3]"},
    {"call", /* a loop without carried values, and one inside another */
     "func @g(%x: F[2], %w: F[2]) -> (F[2]) {\n  %y = mul %x, %w : F[2]\n"
     "  %z = tanh %y : F[2]\n  return %z\n}\n"
     "func @f(%x: F[2], %w: F[3,2]) -> (F[2]) {\n"
     "  %y = call %x, %w {fn=@g; times=3; carry=1; each=1} : F[2]\n  return %y\n}\n",
     "%x: F[5,2], %w: F[3,2]", "%y = call %x, %w {fn=@f; times=5; each=1} : F[5,2]"},
    {"call", /* carried integers beside carried floats; a value handed through */
     "func @f(%x: F[3], %n: i32[], %w: F[3]) -> (F[3], i32[], F[3]) {\n"
     "  %t = rope_table %n {base=10} : S[1,1,2]\n  %u = sum %t {abc->_} : S[]\n"
     "  %s = cast %u : F[]\n"
     "  %y = mul %x, %s {...,_->...} : F[3]\n  %z = mul %y, %w : F[3]\n"
     "  return %z, %n, %x\n}\n",
     "%x: F[3], %off: i32[], %w: F[2,3]",
     "%y, %n, %h = call %x, %off, %w {fn=@f; times=2; carry=2; each=1} : F[3], i32[], "
     "F[2,3]"},
    {"all_reduce", NULL, "%x: f32[3,4]", "%y = all_reduce %x {axis=a} : f32[3,4]"},
    {"all_reduce", NULL, "%x: f32[3,4]",
     "%y = all_reduce %x {axis=a; of=max} : f32[3,4]"},
    {"all_reduce", NULL, "%x: f32[3,4], %ids: i32[6], %z: f32[]",
     "%a, %b, %c = all_reduce %x, %ids, %z {axis=a} : f32[3,4], i32[6], f32[]"},
    {"all_gather", NULL, "%x: f32[3,4]",
     "%y = all_gather %x {axis=a; dim=1} : f32[3,4*]"},
    {"all_gather", NULL, "%x: f32[3,4], %z: f32[6], %ids: i32[2,1,3]", /* from the end */
     "%a, %b, %c = all_gather %x, %z, %ids {axis=a; dim=-1} : f32[3,4*], f32[6*], "
     "i32[2,1,3*]"},
    {"all_gather", NULL, "%x: f32[3,4]",
     "%y = all_gather %x {axis=a; dim=0} : f32[3*,4]"},
    {"all_gather", NULL, "%ids: i32[5]",
     "%y = all_gather %ids {axis=a; dim=0} : i32[5*]"},
    {"reduce_scatter", NULL, "%x: f32[12,5]",
     "%y = reduce_scatter %x {axis=a; dim=0} : f32[12/,5]"},
    {"reduce_scatter", NULL, "%x: f32[2,12,3]",
     "%y = reduce_scatter %x {axis=a; dim=1} : f32[2,12/,3]"},
    {"reduce_scatter", NULL, "%x: f32[2,12,3], %z: f32[1,12]",
     "%a, %b = reduce_scatter %x, %z {axis=a; dim=1} : f32[2,12/,3], f32[1,12/]"},
    {"all_to_all", NULL, "%x: f32[3,12], %ids: i32[2,1,3,12]",
     "%a, %b = all_to_all %x, %ids {axis=a; split=-1; join=0} : f32[3*,12/], "
     "i32[2*,1,3,12/]"},
    {"all_to_all", NULL, "%x: f32[12,5]",
     "%y = all_to_all %x {axis=a; split=0; join=1} : f32[12/,5*]"},
    {"all_to_all", NULL, "%x: f32[3,2,12]",
     "%y = all_to_all %x {axis=a; split=2; join=0} : f32[3*,2,12/]"},
    {"all_to_all", NULL, "%x: f32[12,5]",
     "%y = all_to_all %x {axis=a; split=0; join=0} : f32[12,5]"},
    {"ring_shift", NULL, "%x: f32[3,4]", "%y = ring_shift %x {axis=a} : f32[3,4]"},
    {"ring_shift", NULL, "%x: f32[3,4], %ids: i32[6]",
     "%a, %b = ring_shift %x, %ids {axis=a} : f32[3,4], i32[6]"},
    {"arrive", NULL, "%x: F[3,5], %z: F[2]", "%y = arrive %x, %z : F[3,5]"},
    {"arrive", NULL, "%x: F[3,5], %ids: i32[2], %z: F[2]",
     "%y, %k = arrive %x, %ids, %z : F[3,5], i32[2]"},
    {"reshard", NULL, "%x: F[3,5]", "%y = reshard %x : F[3,5]"},
    {"on_first", NULL, "%x: f32[3,4]", "%y = on_first %x {axis=a} : f32[3,4]"},
    {"coord", NULL, "", "%y = coord {axis=a; by=-5} : i32[]"},
    {"index_from", NULL, "%lab: i32[2,5], %off: i32[]",
     "%y = index_from %lab, %off : i32[2,5]"},
    {"shard", NULL, "%x: f32[3,12]", "%y = shard %x {axis=a; dim=-1} : f32[3,12/]"},
    {"shard", NULL, "%x: f32[12,5]", "%y = shard %x {axis=a; dim=0} : f32[12/,5]"},
    {"shard", NULL, "%ids: i32[3,12]", "%y = shard %ids {axis=a; dim=1} : i32[3,12/]"},
};

#endif
