/* stop_signal.c - signals that are held back: which of them ask to end, and which end. */
#include "runtime/core/stop_signal.h"
#include "../test.h"
#include <sys/wait.h>
#include <unistd.h>

/* A process that takes signals; it ends by itself with the first, 5 seconds after that. */
static pid_t start_waiter(void) {
    int ready[2];
    char byte = 0;
    EXPECT(pipe(ready) == 0);
    fflush(NULL);
    pid_t pid = fork();
    EXPECT(pid >= 0);
    if (pid == 0) {
        stop_signals_hold();
        stop_signals_watch();
        if (stop_signal_taken()) _exit(1);
        if (write(ready[1], &byte, 1) != 1) _exit(2);
        while (!stop_signal_taken()) usleep(10000);
        usleep(5000000);
        _exit(100 + stop_signal_taken());
    }
    close(ready[1]);
    EXPECT(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    return pid;
}

/* 0 at the end of the numbers. */
static void send_all(pid_t pid, const int *number) {
    for (; *number; number++) EXPECT(kill(pid, *number) == 0);
}

static int status_of(pid_t pid) {
    int status = 0;
    EXPECT(waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

/* What a service manager sends, or a launcher and its parent. */
TEST(signals_that_come_together_are_one) {
    static const int sent[][5] = {{SIGTERM, SIGHUP},
                                  {SIGINT, SIGINT, SIGINT, SIGINT},
                                  {SIGUSR1, SIGTERM},
                                  {SIGHUP, SIGTERM, SIGINT, SIGUSR1}};
    pid_t pid[ARRAY_LEN(sent)];
    for (int i = 0; i < ARRAY_LEN(sent); i++) {
        pid[i] = start_waiter();
        send_all(pid[i], sent[i]);
    }
    for (int i = 0; i < ARRAY_LEN(sent); i++) {
        int code = status_of(pid[i]) - 100;
        bool any = false;
        for (int j = 0; sent[i][j]; j++) any |= code == sent[i][j];
        if (!any) test_fail(__FILE__, __LINE__, "signals %d: %d", i, code + 100);
    }
}

/* Whatever the process does meanwhile. */
TEST(a_later_signal_ends_at_once) {
    static const int sent[][2] = {
        {SIGTERM, SIGTERM}, {SIGINT, SIGTERM}, {SIGHUP, SIGINT}, {SIGPIPE, SIGUSR1}};
    enum { N = ARRAY_LEN(sent) };
    pid_t pid[N];
    for (int i = 0; i < N; i++) {
        pid[i] = start_waiter();
        send_all(pid[i], (int[]){sent[i][0], 0});
    }
    usleep(1500000);
    for (int i = 0; i < N; i++) send_all(pid[i], (int[]){sent[i][1], 0});
    double begun = clock_seconds();
    for (int i = 0; i < N - 1; i++) EXPECT_INT(status_of(pid[i]), -sent[i][1]);
    EXPECT(clock_seconds() - begun < 3);
    EXPECT_INT(status_of(pid[N - 1]), 100 + SIGPIPE); /* only a pipe broke before */
}

/* As nohup starts a process. */
TEST(ignored_signals_stay_so) {
    signal(SIGHUP, SIG_IGN);
    pid_t pid = start_waiter();
    send_all(pid, (int[]){SIGHUP, 0});
    usleep(300000);
    send_all(pid, (int[]){SIGTERM, 0});
    EXPECT_INT(status_of(pid), 100 + SIGTERM);
}
