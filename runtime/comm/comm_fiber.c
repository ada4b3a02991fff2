/* comm_fiber.c - a second stack of the main thread. A failure on it ends the process as
 * anywhere else; AddressSanitizer is told of every switch. */
#define _GNU_SOURCE
#include "runtime/comm/comm_fiber.h"
#include "base/base.h"
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define FIBER_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(FIBER_ASAN)
#include <sanitizer/common_interface_defs.h>
#define SWITCH_BEGINS(save, to, bytes) __sanitizer_start_switch_fiber(save, to, bytes)
#define SWITCH_ENDS(save, from, bytes) __sanitizer_finish_switch_fiber(save, from, bytes)
#else
#define SWITCH_BEGINS(save, to, bytes) ((void)(save), (void)(to), (void)(bytes))
#define SWITCH_ENDS(save, from, bytes) ((void)(save), (void)(from), (void)(bytes))
#endif

/* Collectives keep little on the stack; the rest is for what MPI calls. */
enum { STACK_BYTES = 1 << 20 };

/* A place to go on, and its stack as the sanitizer sees it. */
typedef struct Side {
    ucontext_t context;
    void *fake;
    const void *stack;
    size_t stack_bytes;
} Side;
static Side program, fiber;
static void (*fiber_body)(void);

static void start(void) {
    SWITCH_ENDS(NULL, &program.stack, &program.stack_bytes);
    fiber_body();
    die("the body of a fiber returned");
}

void fiber_make(void (*body)(void)) {
    if (fiber_body) {
        check(fiber_body == body);
        return;
    }
    size_t guard = (size_t)sysconf(_SC_PAGESIZE);
    char *stack = mmap(NULL, guard + STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, guard, PROT_NONE) != 0) {
        fail(EXIT_MEMORY, "no memory for a stack of 1 MiB, on which messages are sent; "
                          "write parallel.overlap off");
    }
    check(getcontext(&fiber.context) == 0);
    fiber.stack = stack + guard;
    fiber.stack_bytes = STACK_BYTES;
    fiber.context.uc_stack.ss_sp = stack + guard;
    fiber.context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&fiber.context, start, 0);
    fiber_body = body;
}

void fiber_enter(void) {
    SWITCH_BEGINS(&program.fake, fiber.stack, fiber.stack_bytes);
    check(swapcontext(&program.context, &fiber.context) == 0);
    SWITCH_ENDS(program.fake, NULL, NULL);
}

void fiber_leave(void) {
    SWITCH_BEGINS(&fiber.fake, program.stack, program.stack_bytes);
    check(swapcontext(&fiber.context, &program.context) == 0);
    SWITCH_ENDS(fiber.fake, &program.stack, &program.stack_bytes);
}
