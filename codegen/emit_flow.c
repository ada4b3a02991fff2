/* emit_flow.c - loops and conditions of emit.h. */
#include "codegen/emit.h"
#include <llvm-c/DebugInfo.h>

static LLVMBasicBlockRef new_block(Emit *e) {
    return LLVMAppendBasicBlockInContext(e->ctx, e->fn, "");
}

/* Tells LLVM to leave the loop as it is: the emitters unroll where it pays, and a second
 * unrolling only costs compile time and registers. The node must point at itself to be
 * distinct from every other loop's. */
static void keep_rolled(Emit *e, LLVMValueRef branch) {
    static const char *const wish = "llvm.loop.unroll.disable";
    LLVMMetadataRef name = LLVMMDStringInContext2(e->ctx, wish, strlen(wish));
    LLVMMetadataRef self = LLVMTemporaryMDNode(e->ctx, NULL, 0);
    LLVMMetadataRef parts[2] = {self, LLVMMDNodeInContext2(e->ctx, &name, 1)};
    LLVMMetadataRef node = LLVMMDNodeInContext2(e->ctx, parts, 2);
    LLVMMetadataReplaceAllUsesWith(self, node);
    unsigned kind = LLVMGetMDKindIDInContext(e->ctx, "llvm.loop", 9);
    LLVMSetMetadata(branch, kind, LLVMMetadataAsValue(e->ctx, node));
}

/* The test is at the end of the body (with one before the first turn, unless lo < hi is
 * known), so no pass needs to turn the loop round. */
void loop_begin(Emit *e, Loop *l, LLVMValueRef lo, LLVMValueRef hi, int64_t step,
                int ncarry, const LLVMValueRef *init) {
    check(step > 0 && ncarry >= 0 && ncarry <= LOOP_CARRY_MAX);
    bool known = LLVMIsAConstantInt(lo) && LLVMIsAConstantInt(hi) &&
                 LLVMConstIntGetSExtValue(lo) < LLVMConstIntGetSExtValue(hi);
    l->hi = hi;
    l->step = step;
    l->ncarry = ncarry;
    l->guarded = !known;
    l->before = LLVMGetInsertBlock(e->b);
    l->body = new_block(e);
    l->after = new_block(e);
    if (known) {
        LLVMBuildBr(e->b, l->body);
    } else {
        LLVMValueRef any = emit_icmp(e, LLVMIntSLT, lo, hi);
        LLVMBuildCondBr(e->b, any, l->body, l->after);
    }
    LLVMPositionBuilderAtEnd(e->b, l->body);
    l->i = LLVMBuildPhi(e->b, e->i64, "");
    LLVMAddIncoming(l->i, &lo, &l->before, 1);
    for (int k = 0; k < ncarry; k++) {
        l->init[k] = init[k];
        l->carry[k] = l->phi[k] = LLVMBuildPhi(e->b, LLVMTypeOf(init[k]), "");
        LLVMAddIncoming(l->phi[k], &l->init[k], &l->before, 1);
    }
}

void loop_end(Emit *e, Loop *l, const LLVMValueRef *next) {
    check(next || l->ncarry == 0);
    LLVMBasicBlockRef end = LLVMGetInsertBlock(e->b);
    LLVMValueRef i = emit_addi(e, l->i, l->step);
    LLVMValueRef more = emit_icmp(e, LLVMIntSLT, i, l->hi);
    keep_rolled(e, LLVMBuildCondBr(e->b, more, l->body, l->after));
    LLVMAddIncoming(l->i, &i, &end, 1);
    LLVMMoveBasicBlockAfter(l->after, end);
    LLVMPositionBuilderAtEnd(e->b, l->after);
    for (int k = 0; k < l->ncarry; k++) {
        LLVMValueRef value = next[k];
        LLVMAddIncoming(l->phi[k], &value, &end, 1);
        l->carry[k] = LLVMBuildPhi(e->b, LLVMTypeOf(value), "");
        LLVMAddIncoming(l->carry[k], &value, &end, 1);
        if (l->guarded) LLVMAddIncoming(l->carry[k], &l->init[k], &l->before, 1);
    }
}

void if_begin(Emit *e, If *s, LLVMValueRef cond) {
    LLVMBasicBlockRef then = new_block(e);
    s->else_ = new_block(e);
    s->after = new_block(e);
    s->then_end = NULL;
    LLVMBuildCondBr(e->b, cond, then, s->else_);
    LLVMPositionBuilderAtEnd(e->b, then);
}

void if_else(Emit *e, If *s) {
    check(!s->then_end);
    s->then_end = LLVMGetInsertBlock(e->b);
    LLVMBuildBr(e->b, s->after);
    LLVMMoveBasicBlockAfter(s->else_, s->then_end);
    LLVMPositionBuilderAtEnd(e->b, s->else_);
}

void if_end(Emit *e, If *s) {
    if (!s->then_end) if_else(e, s);
    LLVMBasicBlockRef else_end = LLVMGetInsertBlock(e->b);
    LLVMBuildBr(e->b, s->after);
    LLVMMoveBasicBlockAfter(s->after, else_end);
    LLVMPositionBuilderAtEnd(e->b, s->after);
}
