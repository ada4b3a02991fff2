/* rt_call.c - see rt_call.h. */
#include "codegen/rt_call.h"
#include "runtime/core/rt.h"

typedef enum RtType { RT_void, RT_int64_t, RT_F64, RT_PTR } RtType;

enum { RT_PARAMS_MOST = 10 };
typedef struct RtRow {
    const char *name;
    RtType result;
    int nparams;
    RtType param[RT_PARAMS_MOST];
} RtRow;

#define PTR(type, name)  RT_PTR
#define FUNC(type, name) RT_PTR
#define I64(name)        RT_int64_t
#define F64(name)        RT_F64
#define LIST(...)                                                                        \
    { __VA_ARGS__ }
#define COUNT(...)                     (int)(sizeof((RtType[]){__VA_ARGS__}) / sizeof(RtType))
#define RT(result, name, params, what) {#name, RT_##result, COUNT params, LIST params},
static const RtRow rows[RT_CALLS] = {
#include "runtime/core/rt.def"
};

static LLVMTypeRef type_of(const Emit *e, RtType t) {
    const LLVMTypeRef type[] = {[RT_void] = e->void_,
                                [RT_int64_t] = e->i64,
                                [RT_F64] = e->f64,
                                [RT_PTR] = e->ptr};
    return type[t];
}

LLVMValueRef rt_call(Emit *e, RtCall which, const LLVMValueRef *args, int n) {
    const RtRow *r = &rows[which];
    LLVMTypeRef param[RT_PARAMS_MOST];
    for (int i = 0; i < r->nparams; i++) param[i] = type_of(e, r->param[i]);
    emit_extern(e, r->name, type_of(e, r->result), param, r->nparams);
    return emit_call(e, r->name, args, n);
}

const JitSymbol rt_thread_symbols[RT_THREAD_SYMBOLS] = {
    {"rt_parallel", (void *)rt_parallel},
    {"rt_parallel_balanced", (void *)rt_parallel_balanced},
};
