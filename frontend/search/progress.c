/* progress.c - what a search says on a terminal while it is under way, and when it ends early. */
#include "frontend/search/search_state.h"
#include <unistd.h>

bool search_goes_on(const Search *s) {
    return !s->o.stop || !*s->o.stop;
}

void search_tell(Search *s, const Verified *top, int n) {
    double now = clock_seconds(), best = 0;
    if (!s->o.stop || now - s->told < 0.2 || !isatty(STDERR_FILENO)) return;
    s->told = now;
    for (int i = 0; i < n; i++)
        if (top[i].fits && (best == 0 || top[i].seconds < best)) best = top[i].seconds;
    fprintf(stderr, "\r\033[K%lld strategies, %d programs looked at, %d planned",
            (long long)s->choices, s->programs, n);
    if (best > 0) fprintf(stderr, ", best %.4g s", best);
}

void search_told(const Search *s) {
    if (s->told > 0) fprintf(stderr, "\r\033[K");
}
