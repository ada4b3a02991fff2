/* Whose the numbers of a module of one's own are: of one sample, of one among others, of the
 * batch. And what that decides: which results `predict` tells for each sample, whether a short last
 * batch may be filled up, and whether `eval` has a loss of a sample. */
#include "frontend/model/sample_flow.h"
#include "driven.h"
#include "frontend/config/commands.h"
#include "frontend/model/job.h"
#include "made_npy.h"
#include "runtime/store/safetensors.h"

enum { BATCH = 4, SAMPLES = 10 };

/* ---- what is known of a value ---- */

/* %y of a model of 4 samples, which the ops make of %x and of a second argument %z alike. */
typedef struct Flow {
    const char *ops;
    SampleOwner owner;
    int64_t stride;
    const char *mixes; /* name of the op; NULL: nothing does */
} Flow;

static const Flow flows[] = {
    {"%y = tanh %x : f32[4,6]", OWNER_SAMPLE, 6, NULL},
    {"%y = reshape %x : f32[2,12]", OWNER_SAMPLE, 6, NULL},
    {"%y = rearrange %x {ab->ba} : f32[6,4]", OWNER_SAMPLE, 1, NULL},
    {"%y = dot %x, %w {ab,bc->ac} : f32[4,4]", OWNER_SAMPLE, 4, NULL},
    {"%y = dot %x, %w {ab,bc->ca} : f32[4,4]", OWNER_SAMPLE, 1, NULL},
    {"%y = dot %x, %z {ab,cb->ac} : f32[4,4]", OWNER_SAMPLE, 4, "dot"},
    {"%y = sum %x {ab->b} : f32[6]", OWNER_BATCH, 0, "sum"},
    {"%y = max %x {ab->a} : f32[4]", OWNER_SAMPLE, 1, NULL},
    {"%y = softmax %x : f32[4,6]", OWNER_SAMPLE, 6, NULL},
    {"%y = scale %w {by=2} : f32[6,4]", OWNER_NONE, 0, NULL},
    /* one position of the result has numbers of all samples */
    {"%t = rearrange %x {ab->ba} : f32[6,4]\n  %y = softmax %t : f32[6,4]", OWNER_SAMPLE,
     1, "softmax"},
    {"%t = sum %x {ab->b} : f32[6]\n  %y = sub %x, %t {ab,b->ab} : f32[4,6]",
     OWNER_SAMPLE, 6, "sum"},
    /* flat rows, seen as samples again */
    {"%f = reshape %x : f32[24]\n  %y = exp %f : f32[24]", OWNER_SAMPLE, 6, NULL},
    {"%f = reshape %x : f32[8,3]\n  %g = dot %f, %v {nb,bc->nc} : f32[8,2]\n"
     "  %y = reshape %g : f32[4,4]",
     OWNER_SAMPLE, 4, NULL},
    /* samples in two dimensions, which go on together or not */
    {"%f = reshape %x : f32[2,2,6]\n  %y = sum %f {abc->ab} : f32[2,2]", OWNER_SAMPLE, 1,
     NULL},
    {"%f = reshape %x : f32[2,2,6]\n  %y = rearrange %f {abc->bac} : f32[2,2,6]",
     OWNER_UNKNOWN, 0, "rearrange"},
    {"%f = reshape %x : f32[2,2,6]\n  %y = sum %f {abc->bc} : f32[2,6]", OWNER_UNKNOWN, 0,
     "sum"},
    /* a row of the new shape has parts of two samples */
    {"%f = reshape %x : f32[3,8]\n  %y = exp %f : f32[3,8]", OWNER_UNKNOWN, 0, "exp"},
    {"%y = slice %x {dim=0; first=1; size=2} : f32[2,6]", OWNER_UNKNOWN, 0, "slice"},
    {"%y = slice %x {dim=1; first=1; size=2} : f32[4,2]", OWNER_SAMPLE, 2, NULL},
    {"%y, %o = unstack %x {dim=0} : f32[6], f32[6], f32[6], f32[6]", OWNER_UNKNOWN, 0,
     "unstack"},
    {"%y = stack %x, %z {dim=0} : f32[2,4,6]", OWNER_SAMPLE, 6, NULL},
    {"%y = stack %x, %z {dim=1} : f32[4,2,6]", OWNER_SAMPLE, 12, NULL},
    {"%s = slice %x {dim=1; first=0; size=1} : f32[4,1]\n  %y = pad %s : f32[4,3]",
     OWNER_SAMPLE, 3, NULL},
    /* two orders of samples in one element */
    {"%s = slice %x {dim=1; first=0; size=4} : f32[4,4]\n"
     "  %t = rearrange %s {ab->ba} : f32[4,4]\n  %y = add %s, %t : f32[4,4]",
     OWNER_SAMPLE, 4, "add"},
    /* loops */
    {"%y, %e = call %x, %k {fn=@step; times=3; carry=1; each=1} : f32[4,6], f32[3,4,6]",
     OWNER_SAMPLE, 6, NULL},
    {"%e, %y = call %x, %k {fn=@step; times=3; carry=1; each=1} : f32[4,6], f32[3,4,6]",
     OWNER_SAMPLE, 6, NULL},
    {"%y, %e = call %x, %k {fn=@mix; times=3; carry=1; each=1} : f32[4,6], f32[3,4,6]",
     OWNER_SAMPLE, 6, "sum"},
    {"%y, %e = call %m, %x {fn=@over; times=4; carry=1; each=1} : f32[6], f32[4,6]",
     OWNER_UNKNOWN, 0, "call"},
    /* a slice that ends within the samples */
    {"%s = slice %x {dim=1; first=0; size=3} : f32[4,3]\n"
     "  %t = rearrange %s {ab->ba} : f32[3,4]\n  %f = reshape %t : f32[2,6]\n"
     "  %e, %y = call %m, %f {fn=@over2; times=2; carry=1; each=1} : f32[6], f32[2,6]",
     OWNER_UNKNOWN, 0, "call"},
    /* a function of samples here, of parameters there */
    {"%h = dot %x, %w {ab,bc->ac} : f32[4,4]\n  %o = call %h {fn=@half} : f32[4,4]\n"
     "  %v2 = slice %w {dim=0; first=0; size=4} : f32[4,4]\n"
     "  %y = call %v2 {fn=@half} : f32[4,4]",
     OWNER_NONE, 0, NULL},
    {"%y, %e = call %x, %r {fn=@turn; times=3; carry=1; each=1} : f32[4,6], f32[3]",
     OWNER_UNKNOWN, 0, "rearrange"},
};

static const char functions[] =
    "func @step(%c: f32[4,6], %k: f32[6]) -> (f32[4,6], f32[4,6]) {\n"
    "  %n = mul %c, %k {ab,b->ab} : f32[4,6]\n  return %n, %c\n}\n"
    "func @mix(%c: f32[4,6], %k: f32[6]) -> (f32[4,6], f32[4,6]) {\n"
    "  %s = sum %c {ab->b} : f32[6]\n"
    "  %n = mul %c, %s {ab,b->ab} : f32[4,6]\n  return %n, %c\n}\n"
    "func @over(%c: f32[6], %x: f32[6]) -> (f32[6], f32[6]) {\n"
    "  %n = add %c, %x : f32[6]\n  return %n, %n\n}\n"
    "func @over2(%c: f32[6], %x: f32[6]) -> (f32[6], f32[6]) {\n"
    "  %n = exp %x : f32[6]\n  return %c, %n\n}\n"
    "func @half(%c: f32[4,4]) -> (f32[4,4]) {\n"
    "  %n = scale %c {by=0.5} : f32[4,4]\n  return %n\n}\n"
    "func @turn(%c: f32[4,6], %k: f32[]) -> (f32[4,6], f32[]) {\n"
    "  %f = reshape %c : f32[2,2,6]\n  %t = rearrange %f {abc->bac} : f32[2,2,6]\n"
    "  %n = reshape %t : f32[4,6]\n  return %n, %k\n}\n";

static void expect_flow(const Flow *f) {
    Arena *arena = arena_new();
    bool unstacks = strstr(f->ops, "unstack") != NULL;
    const char *ops = f->ops;
    if (unstacks)
        ops = "%y, %o, %p, %q = unstack %x {dim=0} : f32[6], f32[6], f32[6], f32[6]";
    const char *text = arena_printf(
        arena,
        "module @m mesh() level(global)\n%sfunc @net:model(\n"
        "    %%x: f32[4,6] {role=\"data\"}, %%z: f32[4,6] {role=\"data\"},\n"
        "    %%w: f32[6,4] {role=\"param\"}, %%v: f32[3,2] {role=\"param\"},\n"
        "    %%k: f32[3,6] {role=\"param\"}, %%m: f32[6] {role=\"param\"},\n"
        "    %%r: f32[3] {role=\"param\"}) -> (f32[]) {\n"
        "  %s\n  %%loss = fill {value=0} : f32[]\n  return %%loss\n}\n",
        functions, ops);
    Module *m = module_parse(arena, "flow.ir", text, strlen(text));
    module_verify(m, "flow.ir", text);
    Func *model = model_entry(m);
    const SampleFlow *flow = sample_flow(arena, model);
    const Value *y = NULL;
    for (const Op *op = model->first; op; op = op->next)
        for (int i = 0; i < op->nout; i++)
            if (!strcmp(op->out[i]->name, "y")) y = op->out[i];
    const SampleFlow *s = &flow[y->id];
    const char *mixes = s->mixes ? optab[s->mixes->kind].name : "nothing";
    if (s->owner != f->owner || (s->owner == OWNER_SAMPLE && s->stride != f->stride) ||
        strcmp(mixes, f->mixes ? f->mixes : "nothing"))
        test_fail(__FILE__, __LINE__, "owner %d, stride %lld, mixed by %s:\n%s",
                  (int)s->owner, (long long)s->stride, mixes, text);
    arena_free(arena);
}

TEST(of_values) {
    for (int i = 0; i < ARRAY_LEN(flows); i++) expect_flow(&flows[i]);
}

/* ---- what the commands make of it ---- */

/* Samples of 5 numbers in 4 classes, as many as a batch has samples. */
static const char *make_data(int samples) {
    const char *dir = in_temp(arena_printf(mem(), "data%d", samples));
    float x[SAMPLES * 5];
    int32_t labels[SAMPLES];
    for (int i = 0; i < samples * 5; i++) x[i] = (float)((i * 37 + 11) % 23) / 7 - 1;
    for (int i = 0; i < samples; i++) labels[i] = i * 3 % 4;
    EXPECT(!dir_make(dir));
    npy_write(path_join(mem(), dir, "x.npy"), "<f4",
              arena_printf(mem(), "(%d, 5)", samples), x,
              sizeof(float[5]) * (size_t)samples);
    npy_write(path_join(mem(), dir, "labels.npy"), "<i4",
              arena_printf(mem(), "(%d,)", samples), labels,
              sizeof(int32_t) * (size_t)samples);
    return dir;
}

/* Trains a module for two steps: `logits` makes %l of %h, `loss` makes %loss of %l. */
static const char *trained(const char *logits, const char *loss, const char *more) {
    const char *module = in_temp("net.ir"), *config = in_temp("net.yaml");
    const char *run = in_temp("run");
    remove_all(run);
    write_text(module, arena_printf(mem(),
                                    "module @m mesh() level(global)\nfunc @net:model(\n"
                                    "    %%x: f32[4,5] {role=\"data\"},\n"
                                    "    %%labels: i32[4] {role=\"labels\"},\n"
                                    "    %%w: f32[5,4] {role=\"param\"; init=\"normal\"; "
                                    "std=0.3}) -> (f32[]%s) {\n"
                                    "  %%h = dot %%x, %%w {ab,bc->ac} : f32[4,4]\n%s%s"
                                    "  return %%loss%s\n}\n",
                                    strchr(more, '|') + 1, logits, loss,
                                    arena_printf(mem(), "%.*s",
                                                 (int)(strchr(more, '|') - more), more)));
    write_text(config, "model: {file: net.ir}\n"
                       "train_dataset: {data_loader: {type: Tensors}}\n"
                       "runner_config: {max_steps: 2}\n"
                       "lr_schedule: {type: constant, learning_rate: 0.01}\n"
                       "callbacks: {CheckpointMonitor: {save_checkpoint_steps: 2}}\n");
    const char *dir = path_join(mem(), temp_dir(), "data10");
    if (!file_exists(dir)) make_data(SAMPLES);
    RUN_EXPECT(0, arena_printf(mem(),
                               "train %s --dataset_dir %s --output_dir %s "
                               "--context.threads 1",
                               config, dir, run));
    return run;
}

#define PLAIN "  %l = scale %h {by=1} : f32[4,4]\n"
#define CENTERED                                                                         \
    "  %s = sum %h {ab->b} : f32[4]\n  %m = scale %s {by=0.25} : f32[4]\n"               \
    "  %l = sub %h, %m {ab,b->ab} : f32[4,4]\n"
#define ROWS "  %rows, %lse = xent %l, %labels : f32[4], f32[4]\n"
#define MEAN                                                                             \
    ROWS "  %all = sum %rows {a->_} : f32[]\n  %loss = scale %all {by=0.25} : f32[]\n"

/* Four classes, a batch of four: shapes do not tell whose a number is. */
TEST(results_of_each_sample_are_told_by_the_graph) {
    const char *run =
        trained(PLAIN "  %p = softmax %l : f32[4,4]\n"
                      "  %mass = sum %p {ab->b} : f32[4]\n"
                      "  %turned = rearrange %p {ab->ba} : f32[4,4]\n"
                      "  %best = max %p {ab->a} : f32[4]\n",
                MEAN, ", %p, %mass, %turned, %best|, f32[4,4], f32[4], f32[4,4], f32[4]");
    const char *out = in_temp("out.safetensors");
    RUN_EXPECT(0, arena_printf(mem(), "predict %s --data %s --out %s", run,
                               in_temp("data10"), out));
    SAID_EXPECT("%mass is no result of each sample and is left out");
    SAID_EXPECT("%turned is left out: it has numbers of each sample");
    Safetensors *file = safetensors_open(mem(), out, EXIT_DATA);
    EXPECT(!safetensors_find(file, "mass") && !safetensors_find(file, "turned"));
    EXPECT_INT(safetensors_find(file, "p")->dim[0], SAMPLES);
    EXPECT_INT(safetensors_find(file, "best")->dim[0], SAMPLES);
    RUN_EXPECT(0, arena_printf(mem(), "predict %s --data %s", run, in_temp("data10")));
    SAID_EXPECT("note: %mass is no result of each sample and is not printed: --out");
    /* of whole batches there is a mean */
    const char *whole = make_data(2 * BATCH);
    RUN_EXPECT(0, arena_printf(mem(), "predict %s --data %s --out %s", run, whole, out));
    file = safetensors_open(mem(), out, EXIT_DATA);
    EXPECT(!safetensors_find(file, "turned"));
    const SafeTensor *p = safetensors_find(file, "p"),
                     *mass = safetensors_find(file, "mass");
    EXPECT_INT(mass->rank, 1);
    EXPECT_INT(mass->dim[0], 4);
    for (int c = 0; c < 4; c++) {
        double sum = 0;
        for (int s = 0; s < 2 * BATCH; s++)
            sum += (double)((const float *)p->data)[s * 4 + c];
        EXPECT_NEAR(((const float *)mass->data)[c], sum / 2, 1e-6);
    }
}

TEST(what_fills_a_batch_up_changes_no_sample) {
    const char *run = trained(CENTERED, MEAN, ", %l|, f32[4,4]");
    const char *predict = "predict %s --data %s --out %s",
               *out = in_temp("o.safetensors");
    RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(), predict, run, in_temp("data10"), out));
    SAID_EXPECT("%s = sum %h {ab->b} : f32[4]");
    SAID_EXPECT("a sample's %l depends on others of its batch");
    EXPECT(!file_exists(out));
    RUN_EXPECT(EXIT_CONFIG,
               arena_printf(mem(), "eval %s --data %s", run, in_temp("data10")));
    SAID_EXPECT("--samples 8 takes whole batches");
    RUN_EXPECT(
        0, arena_printf(mem(), "eval %s --data %s --samples 8", run, in_temp("data10")));
    RUN_EXPECT(0, arena_printf(mem(), predict, run, make_data(2 * BATCH), out));
    run = trained(PLAIN, MEAN, ", %l|, f32[4,4]");
    RUN_EXPECT(0, arena_printf(mem(), predict, run, in_temp("data10"), out));
    RUN_EXPECT(0, arena_printf(mem(), "eval %s --data %s", run, in_temp("data10")));
}

/* ---- the loss that eval tells ---- */

TEST(eval_tells_the_loss_of_the_module_or_nothing) {
    static const struct {
        const char *loss, *said; /* NULL: it is the mean of the cross entropy */
    } losses[] = {
        {MEAN, NULL},
        {ROWS "  %m = scale %rows {by=0.25} : f32[4]\n  %loss = sum %m {a->_} : f32[]\n",
         NULL},
        /* over the labels that count, as the module counts them */
        {ROWS "  %all = sum %rows {a->_} : f32[]\n  %v = valid %labels : f32[4]\n"
              "  %n = sum %v {a->_} : f32[]\n  %loss = div %all, %n : f32[]\n",
         NULL},
        /* another cross entropy, of which the loss is not made */
        {MEAN "  %l2 = scale %l {by=3} : f32[4,4]\n"
              "  %rows2, %lse2 = xent %l2, %labels : f32[4], f32[4]\n",
         NULL},
        {"  %l2 = reshape %l : f32[2,2,4]\n  %labels2 = reshape %labels : i32[2,2]\n"
         "  %rows, %lse = xent %l2, %labels2 : f32[2,2], f32[2,2]\n"
         "  %all = sum %rows {ab->_} : f32[]\n  %loss = scale %all {by=0.25} : f32[]\n",
         NULL},
        {ROWS "  %all = sum %rows {a->_} : f32[]\n  %loss = scale %all {by=1} : f32[]\n",
         "the loss is not the mean of the cross entropy"},
        {ROWS
         "  %all = sum %rows {a->_} : f32[]\n  %mean = scale %all {by=0.25} : f32[]\n"
         "  %w2 = mul %w, %w : f32[5,4]\n  %penalty = sum %w2 {ab->_} : f32[]\n"
         "  %loss = add %mean, %penalty : f32[]\n",
         "the loss is not the mean of the cross entropy"},
        {MEAN "  %rows2, %lse2 = xent %h, %labels : f32[4], f32[4]\n"
              "  %all2 = sum %rows2 {a->_} : f32[]\n",
         NULL},
        {ROWS "  %rows2, %lse2 = xent %h, %labels : f32[4], f32[4]\n"
              "  %both = add %rows, %rows2 : f32[4]\n"
              "  %all = sum %both {a->_} : f32[]\n"
              "  %loss = scale %all {by=0.125} : f32[]\n",
         "is not made of one cross entropy"},
        {ROWS "  %l2 = mul %l, %l : f32[4,4]\n  %loss = sum %l2 {ab->_} : f32[]\n",
         "is not made of one cross entropy"},
    };
    for (int i = 0; i < ARRAY_LEN(losses); i++) {
        const char *run = trained(PLAIN, losses[i].loss, "|");
        RUN_EXPECT(losses[i].said ? EXIT_CONFIG : 0,
                   arena_printf(mem(), "eval %s --data %s", run, in_temp("data10")));
        if (losses[i].said) SAID_EXPECT(losses[i].said);
    }
}

/* Results that read no sample are as in any run, also integers; names are those of the module. */
TEST(results_that_read_no_sample) {
    const char *run =
        trained(PLAIN "  %p = scale %l {by=1} : f32[4,4]\n"
                      "  %v = mul %w, %w : f32[5,4]\n"
                      "  %z = fill {value=3} : f32[]\n"
                      "  %at = cast %z : i32[]\n"
                      "  %i = positions %at : i32[4]\n",
                MEAN, ", %p, %v, %i, %w|, f32[4,4], f32[5,4], i32[4], f32[5,4]");
    const char *out = in_temp("o.safetensors");
    RUN_EXPECT(0, arena_printf(mem(), "predict %s --data %s --out %s", run,
                               in_temp("data10"), out));
    Safetensors *file = safetensors_open(mem(), out, EXIT_DATA);
    const SafeTensor *p = safetensors_need(file, "p"), *v = safetensors_need(file, "v");
    const SafeTensor *i = safetensors_need(file, "i"), *w = safetensors_need(file, "w");
    EXPECT_INT(p->dim[0], SAMPLES);
    EXPECT_INT(v->dim[0], 5);
    EXPECT_INT(i->dim[0], 4);
    for (int k = 0; k < 4; k++) EXPECT_INT(((const int32_t *)i->data)[k], 3 + k);
    for (int k = 0; k < 20; k++) {
        float x = ((const float *)w->data)[k];
        EXPECT(((const float *)v->data)[k] == x * x);
    }
}

/* In what --dump writes it would stand twice. */
TEST(a_result_with_the_name_of_a_gradient_is_not_dumped) {
    trained(PLAIN "  %grad.w = mul %w, %w : f32[5,4]\n", MEAN, ", %grad.w|, f32[5,4]");
    RUN_EXPECT(EXIT_CONFIG,
               arena_printf(mem(), "train %s --dataset_dir %s --output_dir %s --dump %s",
                            in_temp("net.yaml"), in_temp("data10"), in_temp("other"),
                            in_temp("dump.safetensors")));
    SAID_EXPECT("dump: the result %grad.w of @net has the name of what is written of "
                "parameter w");
}

/* What fills a batch up are samples again: a label that is an index too stays one, and what a
 * module makes of zeros is not asked. */
TEST(what_fills_a_batch_up_is_as_good_as_samples) {
    const char *run = trained("  %rows4 = embed %w, %labels : f32[4,4]\n"
                              "  %x2 = mul %x, %x : f32[4,5]\n"
                              "  %xs = sum %x2 {ab->a} : f32[4]\n"
                              "  %r = rsqrt %xs : f32[4]\n"
                              "  %h2 = mul %h, %r {ab,a->ab} : f32[4,4]\n"
                              "  %l = add %h2, %rows4 : f32[4,4]\n",
                              MEAN, ", %l|, f32[4,4]");
    const char *eval = "eval %s --data %s --json --samples %d";
    for (int i = 0; i < 2; i++) {
        RUN_EXPECT(0, arena_printf(mem(), eval, run, in_temp("data10"), i ? 2 : 10));
        const char *loss = strstr(said(), "\"loss\": ");
        EXPECT(loss && atof(loss + 8) > 0.1 && atof(loss + 8) < 10);
    }
}
