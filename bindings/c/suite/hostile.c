/* Calls that no program should make, and a thousand that every program makes: each wrong one is a typed error, and nothing leaks.
 *
 *   hostile MODEL [CYCLES]
 */
#define _POSIX_C_SOURCE 200809L

#include "haversack.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(holds)                                                      \
    do {                                                                  \
        if (!(holds)) {                                                   \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #holds);   \
            exit(1);                                                      \
        }                                                                 \
    } while (0)

/* The call returns this status, and an error that says the same; without a place for an error, the status alone. */
#define REFUSED(expected, call)                                           \
    do {                                                                  \
        haversack_error *error = NULL;                                    \
        CHECK((call) == HAVERSACK_STATUS_##expected);                     \
        CHECK(haversack_error_status(error) == HAVERSACK_STATUS_##expected); \
        CHECK(strlen(haversack_error_text(error)) > 3);                   \
        haversack_error_free(error);                                      \
    } while (0)

#define DONE(call)                                                        \
    do {                                                                  \
        haversack_error *error = NULL;                                    \
        if ((call) != HAVERSACK_STATUS_OK) {                              \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, haversack_error_text(error)); \
            exit(1);                                                      \
        }                                                                 \
        CHECK(error == NULL);                                             \
    } while (0)

static const char BAD[] = "caf\xe9";

static haversack_engine *opened(const char *model) {
    haversack_engine *engine = NULL;
    haversack_engine_options options = {0};
    options.memory = "64M";
    options.threads = 1;
    DONE(haversack_engine_open(model, &options, &engine, &error));
    return engine;
}

static int threads(void) {
    int count = 0;
    DIR *all = opendir("/proc/self/task");
    if (all == NULL) return 0;
    while (readdir(all) != NULL) count++;
    closedir(all);
    return count;
}

static void null_is_nothing_to_free(void) {
    haversack_engine_free(NULL);
    haversack_conversation_free(NULL);
    haversack_answer_free(NULL);
    haversack_error_free(NULL);
    haversack_facts_free(NULL);
    haversack_turns_free(NULL);
    haversack_conversations_free(NULL);
    haversack_page_free(NULL);
    CHECK(haversack_facts_count(NULL) == 0 && haversack_turns_count(NULL) == 0);
    CHECK(haversack_conversations_count(NULL) == 0);
    CHECK(haversack_page_text(NULL, NULL)[0] == '\0');
    CHECK(haversack_error_status(NULL) == HAVERSACK_STATUS_OK);
    CHECK(strcmp(haversack_status_name(-7), "unknown") == 0);
    CHECK(strcmp(haversack_status_name(2000), "unknown") == 0);
}

static void wrong_options(const char *model) {
    haversack_engine *engine = NULL;
    haversack_plan plan;
    haversack_engine_options options = {0};
    REFUSED(INVALID_INPUT, haversack_engine_open(NULL, NULL, &engine, &error));
    REFUSED(INVALID_INPUT, haversack_engine_open(model, NULL, NULL, &error));
    REFUSED(INVALID_INPUT, haversack_engine_open(BAD, NULL, &engine, &error));
    REFUSED(NOT_FOUND, haversack_engine_open("absent.gguf", NULL, &engine, &error));
    CHECK(haversack_engine_open(NULL, NULL, NULL, NULL) == HAVERSACK_STATUS_INVALID_INPUT);
    REFUSED(INVALID_INPUT, haversack_plan_model(model, NULL, NULL, &error));
    REFUSED(NOT_FOUND, haversack_plan_model("absent.gguf", NULL, &plan, &error));
#define WRONG(name, value)                                                \
    do {                                                                  \
        options = (haversack_engine_options){0};                          \
        options.name = value;                                             \
        REFUSED(INVALID_INPUT, haversack_engine_open(model, &options, &engine, &error)); \
        REFUSED(INVALID_INPUT, haversack_plan_model(model, &options, &plan, &error)); \
    } while (0)
    WRONG(memory, "");
    WRONG(memory, "-1M");
    WRONG(memory, BAD);
    WRONG(kv, "int9");
    WRONG(kv, BAD);
    WRONG(sessions_dir, BAD);
    WRONG(threads, -1);
    WRONG(threads, INT64_MAX);
    WRONG(threads, INT64_MIN);
    WRONG(context, -5);
    WRONG(context, INT64_MAX);
    WRONG(batch, -1);
    WRONG(batch, INT64_MAX);
    WRONG(queue, INT64_MIN);
#undef WRONG
    CHECK(engine == NULL);
}

static void wrong_prompts(haversack_engine *engine) {
    haversack_answer *answer = NULL;
    haversack_prompt_options options = {0};
    const char *stops[] = {"x", NULL};
    char *huge = malloc((size_t)80 << 20);
    REFUSED(INVALID_INPUT, haversack_engine_complete(NULL, "a", NULL, &answer, &error));
    REFUSED(INVALID_INPUT, haversack_engine_complete(engine, NULL, NULL, &answer, &error));
    REFUSED(INVALID_INPUT, haversack_engine_complete(engine, BAD, NULL, &answer, &error));
    REFUSED(INVALID_INPUT, haversack_engine_complete(engine, "a", NULL, NULL, &error));
#define WRONG(name, value)                                                \
    do {                                                                  \
        options = (haversack_prompt_options){0};                          \
        options.max_tokens = 4;                                           \
        options.name = value;                                             \
        REFUSED(INVALID_INPUT, haversack_engine_complete(engine, "a", &options, &answer, &error)); \
    } while (0)
    WRONG(max_tokens, -1);
    WRONG(max_tokens, INT64_MIN);
    WRONG(max_tokens, INT64_MAX);
    WRONG(top_k, -1);
    WRONG(temperature, -1.0f);
    WRONG(temperature, (float)NAN);
    WRONG(temperature, (float)INFINITY);
    WRONG(top_p, -0.5f);
    WRONG(top_p, (float)NAN);
    WRONG(min_p, 2.0f);
    WRONG(timeout_ms, -1);
    WRONG(stop_count, 3);
    WRONG(stop_count, SIZE_MAX);
    WRONG(json_schema, "{");
    WRONG(json_schema, BAD);
    WRONG(regex, "(");
    WRONG(gbnf, "root ::= (");
    WRONG(lark, "?");
    options = (haversack_prompt_options){0};
    options.stop = stops;
    options.stop_count = 2;
    REFUSED(INVALID_INPUT, haversack_engine_complete(engine, "a", &options, &answer, &error));
    options = (haversack_prompt_options){0};
    options.regex = "a";
    options.lark = "start: \"a\"";
    REFUSED(INVALID_INPUT, haversack_engine_complete(engine, "a", &options, &answer, &error));
#undef WRONG
    CHECK(huge != NULL);
    memset(huge, 'a', ((size_t)80 << 20) - 1);
    huge[((size_t)80 << 20) - 1] = '\0';
    REFUSED(INVALID_INPUT, haversack_engine_complete(engine, huge, NULL, &answer, &error));
    huge[1 << 20] = '\0';
    REFUSED(TOO_LARGE, haversack_engine_complete(engine, huge, NULL, &answer, &error));
    free(huge);
    CHECK(answer == NULL);
}

static void wrong_calls(haversack_engine *engine) {
    haversack_conversation *talk = NULL, *other = NULL;
    haversack_facts *facts = NULL;
    haversack_turns *turns = NULL;
    haversack_page *page = NULL;
    haversack_answer *answer = NULL, *second = NULL;
    haversack_conversations *listed = NULL;
    haversack_memory memory;
    haversack_report report;
    haversack_fact fact;
    const char *piece = NULL;
    float values[4];
    size_t count;
    haversack_prompt_options options = {0};
    REFUSED(INVALID_INPUT, haversack_engine_conversation(engine, NULL, NULL, &talk, &error));
    REFUSED(INVALID_INPUT, haversack_engine_conversation(engine, "a/b", NULL, &talk, &error));
    REFUSED(INVALID_INPUT, haversack_engine_conversation(engine, BAD, NULL, &talk, &error));
    REFUSED(INVALID_INPUT, haversack_engine_conversation(engine, "anna", BAD, &talk, &error));
    REFUSED(INVALID_INPUT, haversack_engine_conversation(NULL, "anna", NULL, &talk, &error));
    REFUSED(INVALID_INPUT, haversack_engine_memory(engine, NULL, &error));
    REFUSED(INVALID_INPUT, haversack_engine_memory(NULL, &memory, &error));
    REFUSED(INVALID_INPUT, haversack_engine_pressure(engine, 9, &error));
    REFUSED(INVALID_INPUT, haversack_engine_pressure(engine, -1, &error));
    REFUSED(INVALID_INPUT, haversack_engine_thermal(engine, 4, &error));
    REFUSED(INVALID_INPUT, haversack_engine_trim(engine, -1, NULL, &error));
    REFUSED(INVALID_INPUT, haversack_engine_close(NULL, &error));
    REFUSED(INVALID_INPUT, haversack_engine_suspend(NULL, &error));
    REFUSED(INVALID_INPUT, haversack_engine_handles(engine, NULL, &error));
    REFUSED(UNSUPPORTED, haversack_engine_embed(engine, "a", values, 4, &count, &error));
    /* Without a folder there is no list. */
    REFUSED(INVALID_INPUT, haversack_engine_conversations(engine, NULL, &error));
    (void)listed;

    DONE(haversack_engine_conversation(engine, "anna", "Be brief.", &talk, &error));
    REFUSED(INVALID_INPUT, haversack_conversation_say(talk, NULL, NULL, &answer, &error));
    REFUSED(INVALID_INPUT, haversack_conversation_say(NULL, "a", NULL, &answer, &error));
    REFUSED(INVALID_INPUT, haversack_conversation_facts(talk, NULL, &error));
    REFUSED(INVALID_INPUT, haversack_conversation_turns(NULL, &turns, &error));
    REFUSED(INVALID_INPUT, haversack_conversation_export(NULL, &page, &error));
    REFUSED(INVALID_INPUT, haversack_conversation_fork(talk, NULL, &other, &error));
    REFUSED(CONFLICT, haversack_conversation_fork(talk, "anna", &other, &error));
    REFUSED(NOT_FOUND, haversack_conversation_recall(talk, UINT64_MAX, &error));
    REFUSED(NOT_FOUND, haversack_conversation_revoke_fact(talk, UINT64_MAX, &error));
    REFUSED(INVALID_INPUT, haversack_conversation_add_fact(talk, BAD, NULL, &error));
    DONE(haversack_conversation_facts(talk, &facts, &error));
    CHECK(haversack_facts_count(facts) == 1);
    REFUSED(INVALID_INPUT, haversack_facts_get(facts, 1, &fact, &error));
    REFUSED(INVALID_INPUT, haversack_facts_get(facts, SIZE_MAX, &fact, &error));
    REFUSED(INVALID_INPUT, haversack_facts_get(facts, 0, NULL, &error));
    REFUSED(INVALID_INPUT, haversack_facts_get(NULL, 0, &fact, &error));
    DONE(haversack_facts_get(facts, 0, &fact, &error));
    CHECK(strcmp(fact.text, "Be brief.") == 0 && fact.found_in == -1);
    haversack_facts_free(facts);

    options.max_tokens = 300;
    options.ignore_end = 1;
    DONE(haversack_conversation_say(talk, "Go on.", &options, &answer, &error));
    DONE(haversack_answer_next(answer, &piece, NULL, &error));
    /* The next message waits for its turn, and is taken back. */
    DONE(haversack_conversation_say(talk, "And?", NULL, &second, &error));
    haversack_answer_free(second);
    REFUSED(INVALID_INPUT, haversack_answer_next(answer, NULL, NULL, &error));
    REFUSED(INVALID_INPUT, haversack_answer_next(NULL, &piece, NULL, &error));
    REFUSED(INVALID_INPUT, haversack_answer_report(answer, NULL, &error));
    REFUSED(INVALID_INPUT, haversack_answer_recalled(answer, NULL, 3, &count, &error));
    REFUSED(INVALID_INPUT, haversack_answer_cancel(NULL, &error));
    DONE(haversack_answer_cancel(answer, &error));
    DONE(haversack_answer_cancel(answer, &error));
    DONE(haversack_answer_text(answer, &piece, NULL, &error));
    DONE(haversack_answer_next(answer, &piece, NULL, &error));
    CHECK(piece == NULL);
    DONE(haversack_answer_report(answer, &report, &error));
    CHECK(report.finish == HAVERSACK_FINISH_CANCELLED && report.tokens < 300 && report.turn == 0);
    haversack_answer_free(answer);

    DONE(haversack_conversation_delete(talk, &error));
    REFUSED(NOT_FOUND, haversack_conversation_delete(talk, &error));
    REFUSED(NOT_FOUND, haversack_conversation_resume(talk, &error));
    haversack_conversation_free(talk);
}

static void *cancels(void *answer) {
    return haversack_answer_cancel(answer, NULL) == HAVERSACK_STATUS_OK ? answer : NULL;
}

/* One thread waits for pieces while another cancels; then the engine is closed under an open conversation and answer. */
static void calls_after_close(const char *model) {
    haversack_engine *engine = opened(model);
    haversack_conversation *talk = NULL;
    haversack_answer *answer = NULL, *other = NULL;
    haversack_memory memory;
    haversack_report report;
    const char *piece = "";
    haversack_prompt_options options = {0};
    pthread_t thread;
    void *cancelled = NULL;
    size_t handles = 0;
    options.max_tokens = 1500;
    options.ignore_end = 1;
    DONE(haversack_engine_conversation(engine, "anna", NULL, &talk, &error));
    DONE(haversack_engine_complete(engine, "a", &options, &answer, &error));
    CHECK(pthread_create(&thread, NULL, cancels, answer) == 0);
    while (piece != NULL) DONE(haversack_answer_next(answer, &piece, NULL, &error));
    pthread_join(thread, &cancelled);
    CHECK(cancelled == answer);
    DONE(haversack_answer_report(answer, &report, &error));
    CHECK(report.finish == HAVERSACK_FINISH_CANCELLED);
    DONE(haversack_engine_handles(engine, &handles, &error));
    CHECK(handles == 2);

    DONE(haversack_engine_close(engine, &error));
    DONE(haversack_engine_close(engine, &error));
    REFUSED(CLOSED, haversack_engine_memory(engine, &memory, &error));
    REFUSED(CLOSED, haversack_engine_complete(engine, "a", NULL, &other, &error));
    REFUSED(CLOSED, haversack_engine_suspend(engine, &error));
    REFUSED(CLOSED, haversack_engine_trim(engine, 1, NULL, &error));
    REFUSED(CLOSED, haversack_conversation_say(talk, "a", NULL, &other, &error));
    REFUSED(CLOSED, haversack_conversation_recall(talk, 0, &error));
    DONE(haversack_engine_pressure(engine, HAVERSACK_PRESSURE_NOMINAL, &error));
    DONE(haversack_answer_next(answer, &piece, NULL, &error));
    CHECK(piece == NULL);
    /* The engine's handle goes first. */
    haversack_engine_free(engine);
    haversack_answer_free(answer);
    REFUSED(CLOSED, haversack_conversation_suspend(talk, &error));
    haversack_conversation_free(talk);
}

/* What may come of a call while others change the same conversation. */
static void allowed(haversack_status status, haversack_error **error) {
    int is_allowed = status == HAVERSACK_STATUS_OK || status == HAVERSACK_STATUS_NOT_FOUND || status == HAVERSACK_STATUS_CONFLICT ||
                     status == HAVERSACK_STATUS_BUSY || status == HAVERSACK_STATUS_CANCELLED;
    if (!is_allowed) fprintf(stderr, "%s: %s\n", haversack_status_name((int32_t)status), haversack_error_text(*error));
    CHECK(is_allowed);
    haversack_error_free(*error);
    *error = NULL;
}

struct crowd {
    haversack_engine *engine;
    haversack_conversation *shared;
    unsigned seed;
};

/* Calls at random, on one conversation that all threads share. */
static void *calls(void *arguments) {
    struct crowd *crowd = arguments;
    unsigned random = crowd->seed;
    for (int i = 0; i < 25; i++) {
        haversack_error *error = NULL;
        haversack_answer *answer = NULL;
        haversack_turns *turns = NULL;
        haversack_page *page = NULL;
        haversack_memory memory;
        const char *piece;
        haversack_prompt_options options = {0};
        random = random * 1664525u + 1013904223u;
        options.max_tokens = 12;
        options.ignore_end = 1;
        switch (random >> 29) {
        case 0:
        case 1:
            allowed(haversack_conversation_say(crowd->shared, "Hello.", &options, &answer, &error), &error);
            if (answer != NULL) allowed(haversack_answer_next(answer, &piece, NULL, &error), &error);
            if (answer != NULL && i % 2 == 0) CHECK(haversack_answer_cancel(answer, NULL) == HAVERSACK_STATUS_OK);
            haversack_answer_free(answer);
            break;
        case 2:
            allowed(haversack_engine_complete(crowd->engine, "a", &options, &answer, &error), &error);
            haversack_answer_free(answer);
            break;
        case 3:
            allowed(haversack_conversation_turns(crowd->shared, &turns, &error), &error);
            haversack_turns_free(turns);
            break;
        case 4: allowed(haversack_conversation_undo(crowd->shared, NULL, &error), &error); break;
        case 5:
            allowed(haversack_conversation_export(crowd->shared, &page, &error), &error);
            haversack_page_free(page);
            break;
        case 6: allowed(haversack_engine_memory(crowd->engine, &memory, &error), &error); break;
        default: allowed(haversack_engine_trim(crowd->engine, 1000, NULL, &error), &error); break;
        }
    }
    return crowd;
}

static void many_threads(const char *model) {
    enum { THREADS = 12 };
    struct crowd crowds[THREADS];
    pthread_t running[THREADS];
    haversack_engine *engine = opened(model);
    haversack_conversation *shared = NULL;
    size_t handles = 0;
    DONE(haversack_engine_conversation(engine, "shared", NULL, &shared, &error));
    for (unsigned i = 0; i < THREADS; i++) {
        crowds[i] = (struct crowd){engine, shared, i};
        CHECK(pthread_create(&running[i], NULL, calls, &crowds[i]) == 0);
    }
    for (unsigned i = 0; i < THREADS; i++) CHECK(pthread_join(running[i], NULL) == 0);
    haversack_conversation_free(shared);
    DONE(haversack_engine_handles(engine, &handles, &error));
    CHECK(handles == 0);
    haversack_engine_free(engine);
}

/* Open, say, cancel, close: again and again, every fiftieth time with an engine of its own. */
static void cycles(const char *model, int count) {
    int before = threads();
    haversack_engine *engine = opened(model);
    for (int i = 0; i < count; i++) {
        haversack_conversation *talk = NULL;
        haversack_answer *answer = NULL;
        const char *piece = NULL;
        size_t handles = 0;
        haversack_prompt_options options = {0};
        options.max_tokens = 40;
        options.ignore_end = 1;
        if (i % 50 == 49) {
            haversack_engine_free(engine);
            CHECK(threads() == before);
            engine = opened(model);
        }
        DONE(haversack_engine_conversation(engine, "talk", "Be brief.", &talk, &error));
        DONE(haversack_conversation_say(talk, "Go on.", &options, &answer, &error));
        DONE(haversack_answer_next(answer, &piece, NULL, &error));
        if (i % 3 == 0) {
            DONE(haversack_answer_cancel(answer, &error));
            DONE(haversack_answer_text(answer, &piece, NULL, &error));
        }
        haversack_answer_free(answer);
        DONE(haversack_conversation_delete(talk, &error));
        haversack_conversation_free(talk);
        DONE(haversack_engine_handles(engine, &handles, &error));
        CHECK(handles == 0);
    }
    haversack_engine_free(engine);
    CHECK(threads() == before);
}

int main(int count, char **arguments) {
    haversack_engine *engine;
    if (count < 2) return 2;
    null_is_nothing_to_free();
    wrong_options(arguments[1]);
    engine = opened(arguments[1]);
    wrong_prompts(engine);
    wrong_calls(engine);
    haversack_engine_free(engine);
    calls_after_close(arguments[1]);
    many_threads(arguments[1]);
    cycles(arguments[1], count > 2 ? atoi(arguments[2]) : 1000);
    puts("every wrong call was refused; nothing is left");
    return 0;
}
