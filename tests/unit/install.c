/* install.c - what CMakeLists.txt promises: what is missing is told plainly, and what is installed
 * runs from there. */
#include "driven.h"
#include <sys/stat.h>

TEST_LABEL(RELEASED);
TEST_LABEL(SLOW);

static int cmake(const char *words) {
    if (system("cmake --version > /dev/null 2>&1")) test_skip("there is no cmake");
    int status =
        system(arena_printf(mem(), "cmake %s > '%s' 2>&1", words, in_temp("output.txt")));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Blanks and breaks of lines as one blank: CMake breaks them where it likes. */
static const char *said_plainly(void) {
    Text t = text_new(mem());
    for (const char *s = said(); *s; s++)
        if (*s > ' ')
            text_add(&t, "%c", *s);
        else if (t.n && t.s[t.n - 1] != ' ')
            text_add(&t, " ");
    return t.s;
}

static int configure(const char *more) {
    return cmake(arena_printf(
        mem(), "-S '%s/..' -B '%s' -DCMAKE_C_COMPILER=\"$(command -v cc)\" %s",
        tests_dir(), in_temp("build"), more));
}

static void llvm_says(const char *version) {
    write_text(in_temp("llvm-config"),
               arena_printf(mem(), "#!/bin/sh\necho %s\n", version));
    EXPECT(!chmod(in_temp("llvm-config"), 0755));
}

TEST_LIMIT(an_llvm_that_nobody_has_tried, 240) {
    static const char *const versions[] = {"14.0.6", "15.0.7", "20.1.0git", "22.1.8"};
    for (int i = 0; i < ARRAY_LEN(versions); i++) {
        llvm_says(versions[i]);
        EXPECT(
            configure(arena_printf(mem(), "-DLLVM_CONFIG='%s'", in_temp("llvm-config"))));
        EXPECT_PART(said_plainly(), "stator works with LLVM 16 to 19, and");
        EXPECT_PART(said_plainly(), arena_printf(mem(),
                                                 "says '%s'; name another by "
                                                 "-DLLVM_CONFIG=/usr/bin/",
                                                 versions[i]));
    }
}

TEST_LIMIT(all_that_is_missing_is_told_at_once, 120) {
    EXPECT(configure("-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF "
                     "-DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF "
                     "-G 'Unix Makefiles' -DCMAKE_MAKE_PROGRAM=\"$(command -v make)\""));
    static const char *const parts[] = {
        "yaml.h of libyaml (Debian: libyaml-dev); elsewhere: -DYAML_INCLUDE=PATH",
        "MPI (Debian: libopenmpi-dev); elsewhere: -DMPI_C_COMPILER=PATH",
        "oneDNN (Debian: libdnnl-dev); elsewhere: -DDNNL_LIBRARY=PATH",
        "llvm-config of LLVM 16 to 19 (Debian: llvm-19-dev); elsewhere: "
        "-DLLVM_CONFIG=PATH"};
    for (int i = 0; i < ARRAY_LEN(parts); i++) EXPECT_PART(said_plainly(), parts[i]);
}

TEST_LIMIT(installed_it_runs_from_any_folder, 120) {
    const char *to = in_temp("to here");
    if (cmake(arena_printf(mem(), "--install '%s' --prefix '%s'", BUILD_DIR, to)))
        test_fail(__FILE__, __LINE__, "%s", said());
    const char *line = arena_printf(
        mem(),
        "cd / && '%s/bin/stator' plan '%s/share/stator/configs/gpt2-tiny.yaml' --machine "
        "'%s/share/stator/machines/a100.yaml' > '%s' 2>&1",
        to, to, to, in_temp("output.txt"));
    if (system(line)) test_fail(__FILE__, __LINE__, "%s\n%s", line, said());
    EXPECT_PART(said(), "GPT-2: 4 layers of 128");
}
