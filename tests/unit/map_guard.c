/* Files that are cut short while they are mapped: a read behind the new end names the file, in
 * map_guard as a failure, elsewhere as the end of the process. */
#include "runtime/core/map_guard.h"
#include "driven.h"
#include "runtime/core/file_map.h"
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

static FileMap map_and_cut(const char *path) {
    FileMap map;
    write_text(path, "four pages, when it was mapped");
    EXPECT_INT(truncate(path, 4 << 12), 0);
    file_map(&map, path);
    EXPECT_INT(truncate(path, 0), 0);
    return map;
}

static void read_a_byte(void *map) {
    volatile unsigned char byte = ((FileMap *)map)->bytes[3 << 12];
    (void)byte;
}

TEST(a_guarded_read_of_a_file_that_is_cut_short) {
    FileMap map = map_and_cut(in_temp("cut"));
    EXPECT_FAIL(map_guard(read_a_byte, &map), EXIT_DATA, "cut was cut short");
    file_unmap(&map);
}

/* What a child with its messages in the file `said` ends with. */
static int code_of_child(void (*run)(void *), void *context, const char *said) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(open(said, O_CREAT | O_WRONLY, 0600), STDERR_FILENO);
        run(context);
        _exit(0);
    }
    int status = 0;
    EXPECT_INT(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(a_read_of_a_file_that_is_cut_short) {
    FileMap map = map_and_cut(in_temp("cut"));
    const char *said = in_temp("said");
    EXPECT_INT(code_of_child(read_a_byte, &map, said), EXIT_DATA);
    size_t n;
    EXPECT_PART(file_read(mem(), said, 4096, &n, EXIT_DATA), "cut was cut short, or ");
    file_unmap(&map);
}
