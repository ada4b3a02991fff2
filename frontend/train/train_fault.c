/* train_fault.c - data that fail while the run goes on: nothing that was trained is lost.
 * Of several ranks some may have their batch and be in the step already. So the one that
 * has none takes part with zeros and votes against the step (fault.h); then all know, as
 * they all know of a bad step, ask each other, save and end. A good step costs nothing.
 * Of a pipeline only the ranks of one stage vote: there all ask for batches before each step, and
 * what the step itself finds makes it one of no numbers. */
#include "frontend/train/train.h"
#include "runtime/comm/comm.h"
#include "runtime/core/fault.h"

bool train_has_news(const Train *t) {
    return t->step > t->start_step && t->saved_step != t->step;
}

void train_feed(const Feed *f, const DataBatch *b, int64_t first_row) {
    if (b)
        feed_batch(f, b, first_row);
    else
        feed_zeros(f);
}

/* Ops read data before anything is updated, so one rank just leaves the program. */
void train_run(Program *p) {
    Catch c;
    if (comm_size() > 1) {
        program_run(p);
        return;
    }
    if (fault_kept(NULL)) return;
    if (CATCH(c)) {
        program_run(p);
        catch_end(&c);
    } else {
        fault_keep(c.code, c.message);
    }
}

static _Noreturn void end_for_data(Train *t) {
    const char *message;
    int code = fault_kept(&message);
    if (train_has_news(t)) train_state_save(t);
    report_plot(t);
    if (code) fail_again(code, message);
    comm_barrier(); /* those whose data have failed end the others */
    fail(EXIT_DATA, "the data of another rank have failed");
}

void train_end_if_data_failed(Train *t, bool possible) {
    bool later = t->program->stages > 1; /* a row that nothing reads makes no step bad */
    if (!possible && (later || !fault_kept(NULL))) return;
    check(possible || comm_size() == 1); /* others would not ask */
    if (comm_max_i64(fault_kept(NULL))) end_for_data(t);
}
