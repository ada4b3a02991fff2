/* lower_kernel_phase.h - inside lower_kernel.c: what a kernel does with an item, a row or a block
 * of one, in each of its phases. */
#ifndef STATOR_LOWER_KERNEL_PHASE_H
#define STATOR_LOWER_KERNEL_PHASE_H
#include "codegen/lower.h"

typedef struct Kernel {
    Lower *l;
    Emit *e;
    Arena *mem;
    const Func *f;
    Space s;
    LLVMValueRef *start;  /* by value index: its pointer at the start of the item's row */
    LLVMValueRef *number; /* by value index: the number of the row, once known */
    LLVMValueRef *vector; /* by value index: in the present vector step */
    LLVMValueRef partial; /* this thread's partial sums */
    /* by op, of dropout; see MapContext */
    Part **part;
    LLVMValueRef *part_base, *part_first_row;
    LLVMValueRef base; /* first element of the block within the row */
    LLVMValueRef row;
} Kernel;

int kernel_index(const Kernel *k, const Value *v);           /* in Space.value */
LLVMTypeRef kernel_element(const Kernel *k, const Value *v); /* in memory */
bool kernel_has_inner(const Kernel *k, const SpaceValue *v);
/* Lanes of a whole sum's partial; as many bytes behind them are of what it lost to rounding. */
enum { KERNEL_SUM_BYTES = 64 };
/* Offset in bytes of op number `op`'s partial sum within a thread's; total in *bytes, or NULL. */
int64_t kernel_sums_at(const Space *s, int op, int64_t *bytes);

/* Before the first phase: reads operands that are one number a row. */
void kernel_numbers(Kernel *k);
/* Numbers of the row, then the vector loop over `length` elements from k->base on. */
void kernel_phase(Kernel *k, int phase, LLVMValueRef length);

#endif
