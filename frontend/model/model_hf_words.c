/* model_hf_words.c - see model_hf_words.h. */
#include "frontend/model/model_hf_words.h"

const char *const hf_rope_types[ROPE_TYPES] = {[ROPE_DEFAULT] = "default",
                                               [ROPE_LINEAR] = "linear",
                                               [ROPE_DYNAMIC] = "dynamic",
                                               [ROPE_LLAMA3] = "llama3",
                                               [ROPE_YARN] = "yarn"};

/* "a, b or c" */
static void list_names(const char *const *names, int n, char *text, size_t size) {
    size_t used = 0;
    for (int i = 0; i < n && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", choice_joint(i, n),
                                 names[i]);
}

HfType hf_type_of(const Json *v) {
    char all[400];
    const char *s = json_string(v);
    int i = name_index(s, hf_types, HF_TYPES);
    if (i >= 0) return (HfType)i;
    list_names(hf_types, HF_TYPES, all, sizeof all);
    json_fail(v, all, "models of kind '%.100s' are not there", s);
}

int model_hf_name(const Json *v, const char *const *names, int n) {
    const char *s = json_string(v);
    int i = name_index(s, names, n);
    if (i >= 0) return i;
    char all[400];
    list_names(names, n, all, sizeof all);
    const char *near = nearest_name(s, names, n);
    json_fail(v, near ? near : all, "unknown %s '%s'", v->key, s);
}

/* Names of the functions in Hugging Face's table of activations (ACT2FN); the first of
 * each is what we write. */
static const struct {
    const char *name;
    MlpAct act;
} hf_acts[] = {
    {"gelu_new", MLP_GELU},
    {"gelu_pytorch_tanh", MLP_GELU},
    {"gelu_fast", MLP_GELU},
    {"gelu", MLP_GELU_ERF},
    {"quick_gelu", MLP_FAST_GELU},
    {"relu", MLP_RELU},
    {"silu", MLP_SILU},
    {"swish", MLP_SILU},
};

MlpAct hf_act_of(const Json *v) {
    const char *names[ARRAY_LEN(hf_acts)];
    for (int i = 0; i < ARRAY_LEN(hf_acts); i++) names[i] = hf_acts[i].name;
    return hf_acts[model_hf_name(v, names, ARRAY_LEN(hf_acts))].act;
}

const char *hf_act_name(MlpAct act) {
    int i = 0;
    while (hf_acts[i].act != act) i++;
    return hf_acts[i].name;
}
