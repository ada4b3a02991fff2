/* fault.c - see fault.h. Of the main thread alone. */
#include "runtime/core/fault.h"
#include <stdarg.h>

static int kept_code;
static char kept_message[sizeof((Catch *)0)->message];
static bool goes_on;

void fault_go_on(bool go_on) {
    goes_on = go_on;
}

void fault_keep(int code, const char *message) {
    if (kept_code) return;
    kept_code = code;
    snprintf(kept_message, sizeof kept_message, "%s", message);
}

int fault_kept(const char **message) {
    if (message) *message = kept_message;
    return kept_code;
}

void fault_raise(int code, const char *fmt, ...) {
    char message[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    if (!goes_on) fail(code, "%s", message);
    Catch c;
    if (CATCH(c)) fail(code, "%s", message);
    fault_keep(c.code, c.message);
}
