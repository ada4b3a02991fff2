/* families.h - for tests: folders of Hugging Face's models with random weights
 * (golden/families). */
#ifndef STATOR_TESTS_FAMILIES_H
#define STATOR_TESTS_FAMILIES_H
#include "../test.h"

/* Cases and the weights that they share; a .bin is PyTorch's. */
static const struct {
    const char *name, *weights;
} families[] = {{"llama3", "llama.safetensors"},
                {"yarn", "llama.safetensors"},
                {"yarn_exact", "llama.safetensors"},
                {"linear", "llama.safetensors"},
                {"dynamic", "llama.safetensors"},
                {"mistral", "llama.safetensors"},
                {"mistral_window", "llama.safetensors"},
                {"qwen2", "qwen2.safetensors"},
                {"neox", "neox.bin"},
                {"neox_sequential", "neox.bin"}};

static inline const char *family_file(Arena *mem, const char *name) {
    return arena_printf(mem, "%s/golden/families/%s", tests_dir(), name);
}

static inline void family_copy(Arena *mem, const char *from, const char *to) {
    size_t n;
    const void *bytes = file_read(mem, from, 1 << 20, &n, EXIT_DATA);
    EXPECT(!file_write_atomic(to, bytes, n));
}

/* A folder as Hugging Face has it. */
static inline const char *family_folder(Arena *mem, int i) {
    const char *dir = path_join(mem, temp_dir(), families[i].name);
    bool bin = ends_with(families[i].weights, ".bin");
    EXPECT(!dir_make(dir));
    family_copy(mem, family_file(mem, arena_printf(mem, "%s.json", families[i].name)),
                path_join(mem, dir, "config.json"));
    family_copy(mem, family_file(mem, families[i].weights),
                path_join(mem, dir, bin ? "pytorch_model.bin" : "model.safetensors"));
    return dir;
}

#endif
