/* The scripted suite of the bindings in C: carries out the steps of one part and prints a line for each.
 * bindings/suite/README.md says what the steps do.
 *
 *   suite MODEL TABLE SESSIONS PART
 */
#define _POSIX_C_SOURCE 200809L

#include "haversack.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- The table: an array of flat objects of texts and numbers. --- */

enum { FIELDS_MAX = 16, STEPS_MAX = 512 };

struct field {
    char *name;
    char *text; /* NULL of a number */
    double number;
};

struct step {
    struct field fields[FIELDS_MAX];
    size_t count;
};

static void fail(const char *what, const char *where) {
    fprintf(stderr, "suite: %s: %.40s\n", what, where);
    exit(3);
}

static void *allocated(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (memory == NULL) fail("no memory", "");
    return memory;
}

static const char *space(const char *at) { return at + strspn(at, " \t\r\n"); }

static const char *past(const char *at, char expected) {
    at = space(at);
    if (*at != expected) fail("unexpected", at);
    return space(at + 1);
}

static const char *read_text(const char *at, char **text) {
    char *out;
    if (*at++ != '"') fail("no text", at);
    out = *text = allocated(strlen(at) + 1);
    for (; *at != '"'; at++) {
        if (*at == '\0') fail("an open text", at);
        if (*at == '\\') {
            at++;
            if (*at != '"' && *at != '\\') fail("an escape", at);
        }
        *out++ = *at;
    }
    *text = realloc(*text, (size_t)(out - *text) + 1);
    return space(at + 1);
}

static size_t read_table(const char *at, struct step *steps) {
    size_t count = 0;
    at = past(at, '[');
    while (*at != ']') {
        struct step *step = &steps[count++];
        if (count == STEPS_MAX) fail("too many steps", at);
        at = past(at, '{');
        while (*at != '}') {
            struct field *field = &step->fields[step->count++];
            if (step->count == FIELDS_MAX) fail("too many fields", at);
            at = past(read_text(at, &field->name), ':');
            if (*at == '"') {
                at = read_text(at, &field->text);
            } else {
                char *end;
                field->number = strtod(at, &end);
                if (end == at) fail("no number", at);
                at = space(end);
            }
            if (*at == ',') at = space(at + 1);
        }
        at = space(at + 1);
        if (*at == ',') at = space(at + 1);
    }
    return count;
}

static const struct field *field(const struct step *step, const char *name) {
    for (size_t i = 0; i < step->count; i++)
        if (strcmp(step->fields[i].name, name) == 0) return &step->fields[i];
    return NULL;
}

static const char *text(const struct step *step, const char *name) {
    const struct field *found = field(step, name);
    return found == NULL ? NULL : found->text;
}

static double number(const struct step *step, const char *name) {
    const struct field *found = field(step, name);
    return found == NULL ? 0 : found->number;
}

/* --- Handles by name. --- */

struct named {
    const char *name;
    void *handle;
};

static struct named conversations[16];
static struct named answers[16];

static struct named *slot(struct named *all, const char *name) {
    for (size_t i = 0; i < 16; i++)
        if (all[i].name != NULL && strcmp(all[i].name, name) == 0) return &all[i];
    for (size_t i = 0; i < 16; i++)
        if (all[i].name == NULL) {
            all[i].name = name;
            return &all[i];
        }
    fail("too many handles", name);
    return NULL;
}

static haversack_conversation *conversation(const char *name) {
    return slot(conversations, name)->handle;
}

/* --- Lines. --- */

static void print_escaped(const char *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        if (byte < ' ' || byte >= 0x7f || byte == '\\')
            printf("\\x%02x", byte);
        else
            putchar(byte);
    }
}

static const char *finish_name(haversack_finish finish) {
    switch (finish) {
    case HAVERSACK_FINISH_STOP: return "stop";
    case HAVERSACK_FINISH_REPETITION: return "repetition";
    case HAVERSACK_FINISH_LENGTH: return "length";
    case HAVERSACK_FINISH_CANCELLED: return "cancelled";
    case HAVERSACK_FINISH_NONE: break;
    }
    return "none";
}

/* What came of a call: prints the error, and says whether there was one. The caller has printed nothing yet. */
static int refused(const char *action, haversack_status status, haversack_error *error) {
    if (status == HAVERSACK_STATUS_OK) {
        if (error != NULL) fail("an error of a call that was done", action);
        return 0;
    }
    if (haversack_error_status(error) != status || haversack_error_text(error)[0] == '\0')
        fail("an error that is not the status", action);
    printf("%s error %s\n", action, haversack_status_name((int32_t)status));
    haversack_error_free(error);
    return 1;
}

/* The whole answer and its report, behind what `head` prints; frees the answer. */
static void print_answer(const char *action, const char *name, haversack_answer *answer) {
    haversack_error *error = NULL;
    haversack_report report;
    const char *piece;
    size_t length, count = 0, held = 0;
    uint64_t recalled[64];
    char *whole = allocated(1);
    for (;;) {
        haversack_status status = haversack_answer_next(answer, &piece, &length, &error);
        if (refused(action, status, error)) {
            haversack_answer_free(answer);
            free(whole);
            return;
        }
        if (piece == NULL) break;
        if (piece[length] != '\0') fail("a piece without an end", action);
        whole = realloc(whole, held + length + 1);
        if (whole == NULL) fail("no memory", action);
        memcpy(whole + held, piece, length);
        held += length;
    }
    printf(name == NULL ? "%s" : "%s %s", action, name);
    fputs(": ", stdout);
    print_escaped(whole, held);
    free(whole);
    if (haversack_answer_report(answer, &report, NULL) != HAVERSACK_STATUS_OK) fail("no report", action);
    if (haversack_answer_recalled(answer, recalled, 64, &count, NULL) != HAVERSACK_STATUS_OK || count != report.recalled)
        fail("no recalled turns", action);
    printf("\n  %s turn=%lld tokens=%llu visible=%llu hidden=%llu", finish_name(report.finish), (long long)report.turn,
           (unsigned long long)report.tokens, (unsigned long long)report.visible, (unsigned long long)report.hidden);
    printf(" spilled=%llu cached=%llu recomputed=%llu evicted=%llu recalled=[", (unsigned long long)report.spilled,
           (unsigned long long)report.cached, (unsigned long long)report.recomputed, (unsigned long long)report.evicted);
    for (size_t i = 0; i < count; i++) printf(i == 0 ? "%llu" : ", %llu", (unsigned long long)recalled[i]);
    printf("] bytes=%llu\n", (unsigned long long)report.bytes);
    haversack_answer_free(answer);
}

/* --- Steps. --- */

static haversack_engine *engine;
static const char *model_path;
static const char *sessions_path;

static haversack_engine_options engine_options(const struct step *step) {
    haversack_engine_options options = {0};
    options.sessions_dir = sessions_path;
    options.memory = text(step, "memory");
    options.kv = text(step, "kv");
    options.context = (int64_t)number(step, "context");
    options.threads = (int64_t)number(step, "threads");
    return options;
}

static haversack_status send_prompt(const struct step *step, haversack_answer **answer, haversack_error **error) {
    haversack_prompt_options options = {0};
    options.max_tokens = (int64_t)number(step, "max_tokens");
    options.temperature = (float)number(step, "temperature");
    options.top_p = (float)number(step, "top_p");
    options.min_p = (float)number(step, "min_p");
    options.top_k = (int64_t)number(step, "top_k");
    options.seed = (uint64_t)number(step, "seed");
    options.ignore_end = (int32_t)number(step, "ignore_end");
    options.json_schema = text(step, "json_schema");
    options.regex = text(step, "regex");
    if (text(step, "name") != NULL)
        return haversack_conversation_say(conversation(text(step, "name")), text(step, "text"), &options, answer, error);
    return haversack_engine_complete(engine, text(step, "text"), &options, answer, error);
}

static const char *place_name(haversack_place place) {
    switch (place) {
    case HAVERSACK_PLACE_MEMORY: return "memory";
    case HAVERSACK_PLACE_DISK: return "disk";
    case HAVERSACK_PLACE_TOKENS: break;
    }
    return "tokens";
}

static void play(const struct step *step) {
    const char *action = text(step, "do"), *name = text(step, "name"), *label = text(step, "answer");
    const char *words = text(step, "text");
    haversack_error *error = NULL;
    haversack_status status;
#define CALL(call)                                \
    do {                                          \
        status = (call);                          \
        if (refused(action, status, error)) return; \
    } while (0)
    if (strcmp(action, "plan") == 0) {
        haversack_engine_options options = engine_options(step);
        haversack_plan plan;
        CALL(haversack_plan_model(model_path, &options, &plan, &error));
        printf("plan weights=%llu context=%llu token=%llu whole=%llu max=%lld\n", (unsigned long long)plan.weights_bytes,
               (unsigned long long)plan.context, (unsigned long long)plan.token_bytes,
               (unsigned long long)plan.context_bytes, (long long)plan.tokens_max);
    } else if (strcmp(action, "open") == 0) {
        haversack_engine_options options = engine_options(step);
        haversack_engine *opened = NULL;
        const char *model = text(step, "model") == NULL ? model_path : text(step, "model");
        CALL(haversack_engine_open(model, &options, &opened, &error));
        engine = opened;
        printf("open\n");
    } else if (strcmp(action, "second") == 0) {
        haversack_engine_options options = engine_options(step);
        haversack_engine *second = NULL;
        haversack_conversation *taken = NULL;
        CALL(haversack_engine_open(model_path, &options, &second, &error));
        status = haversack_engine_conversation(second, name, NULL, &taken, &error);
        haversack_conversation_free(taken);
        haversack_engine_free(second);
        if (!refused(action, status, error)) printf("second\n");
    } else if (strcmp(action, "conversation") == 0) {
        haversack_conversation *opened = NULL;
        CALL(haversack_engine_conversation(engine, name, text(step, "system"), &opened, &error));
        slot(conversations, name)->handle = opened;
        printf("conversation %s\n", name);
    } else if (strcmp(action, "say") == 0 || strcmp(action, "complete") == 0) {
        haversack_answer *answer = NULL;
        CALL(send_prompt(step, &answer, &error));
        print_answer(action, name, answer);
    } else if (strcmp(action, "begin") == 0) {
        haversack_answer *answer = NULL;
        CALL(send_prompt(step, &answer, &error));
        slot(answers, label)->handle = answer;
        printf("begin %s\n", label);
    } else if (strcmp(action, "read") == 0) {
        print_answer(action, label, slot(answers, label)->handle);
    } else if (strcmp(action, "pieces") == 0) {
        const char *piece;
        size_t length;
        printf("pieces %s: ", label);
        for (int i = (int)number(step, "count"); i > 0; i--) {
            CALL(haversack_answer_next(slot(answers, label)->handle, &piece, &length, &error));
            print_escaped(piece, length);
        }
        printf("\n");
    } else if (strcmp(action, "cancel") == 0) {
        CALL(haversack_answer_cancel(slot(answers, label)->handle, &error));
        printf("cancel %s\n", label);
    } else if (strcmp(action, "end") == 0) {
        haversack_answer *answer = slot(answers, label)->handle;
        haversack_report report;
        const char *rest;
        CALL(haversack_answer_text(answer, &rest, NULL, &error));
        CALL(haversack_answer_report(answer, &report, &error));
        printf("end %s: %s\n", label, finish_name(report.finish));
        haversack_answer_free(answer);
    } else if (strcmp(action, "drop") == 0) {
        haversack_answer_free(slot(answers, label)->handle);
        printf("drop %s\n", label);
    } else if (strcmp(action, "turns") == 0) {
        haversack_turns *turns = NULL;
        haversack_turn turn;
        CALL(haversack_conversation_turns(conversation(name), &turns, &error));
        printf("turns %s\n", name);
        for (size_t i = 0; i < haversack_turns_count(turns); i++) {
            CALL(haversack_turns_get(turns, i, &turn, &error));
            printf("  %llu %s visible=%d tokens=%llu: ", (unsigned long long)turn.number, place_name(turn.place),
                   turn.is_visible, (unsigned long long)turn.tokens);
            print_escaped(turn.text, turn.text_length);
            printf(" => ");
            print_escaped(turn.answer, turn.answer_length);
            printf("\n");
        }
        haversack_turns_free(turns);
    } else if (strcmp(action, "facts") == 0) {
        haversack_facts *facts = NULL;
        haversack_fact fact;
        CALL(haversack_conversation_facts(conversation(name), &facts, &error));
        printf("facts %s\n", name);
        for (size_t i = 0; i < haversack_facts_count(facts); i++) {
            CALL(haversack_facts_get(facts, i, &fact, &error));
            printf("  %llu found_in=%lld: ", (unsigned long long)fact.number, (long long)fact.found_in);
            print_escaped(fact.text, fact.text_length);
            printf("\n");
        }
        haversack_facts_free(facts);
    } else if (strcmp(action, "add_fact") == 0 || strcmp(action, "replace_fact") == 0) {
        uint64_t added = 0, old = (uint64_t)number(step, "number");
        if (strcmp(action, "add_fact") == 0)
            CALL(haversack_conversation_add_fact(conversation(name), words, &added, &error));
        else
            CALL(haversack_conversation_replace_fact(conversation(name), old, words, &added, &error));
        printf("%s %s %llu\n", action, name, (unsigned long long)added);
    } else if (strcmp(action, "revoke_fact") == 0) {
        uint64_t revoked = (uint64_t)number(step, "number");
        CALL(haversack_conversation_revoke_fact(conversation(name), revoked, &error));
        printf("revoke_fact %s %llu\n", name, (unsigned long long)revoked);
    } else if (strcmp(action, "recall") == 0) {
        uint64_t turn = (uint64_t)number(step, "number");
        CALL(haversack_conversation_recall(conversation(name), turn, &error));
        printf("recall %s %llu\n", name, (unsigned long long)turn);
    } else if (strcmp(action, "undo") == 0) {
        int64_t turn = 0;
        CALL(haversack_conversation_undo(conversation(name), &turn, &error));
        printf("undo %s %lld\n", name, (long long)turn);
    } else if (strcmp(action, "fork") == 0) {
        haversack_conversation *fork = NULL;
        CALL(haversack_conversation_fork(conversation(name), text(step, "to"), &fork, &error));
        slot(conversations, text(step, "to"))->handle = fork;
        printf("fork %s %s\n", name, text(step, "to"));
    } else if (strcmp(action, "suspend") == 0) {
        CALL(haversack_conversation_suspend(conversation(name), &error));
        printf("suspend %s\n", name);
    } else if (strcmp(action, "resume") == 0) {
        CALL(haversack_conversation_resume(conversation(name), &error));
        printf("resume %s\n", name);
    } else if (strcmp(action, "delete") == 0) {
        CALL(haversack_conversation_delete(conversation(name), &error));
        printf("delete %s\n", name);
    } else if (strcmp(action, "export") == 0) {
        haversack_page *page = NULL;
        size_t length;
        const char *bytes;
        CALL(haversack_conversation_export(conversation(name), &page, &error));
        bytes = haversack_page_text(page, &length);
        printf("export %s: ", name);
        print_escaped(bytes, length);
        printf("\n");
        haversack_page_free(page);
    } else if (strcmp(action, "conversations") == 0) {
        haversack_conversations *listed = NULL;
        haversack_listed one;
        CALL(haversack_engine_conversations(engine, &listed, &error));
        printf("conversations\n");
        for (size_t i = 0; i < haversack_conversations_count(listed); i++) {
            CALL(haversack_conversations_get(listed, i, &one, &error));
            printf("  %s open=%d\n", one.name, one.is_open);
        }
        haversack_conversations_free(listed);
    } else if (strcmp(action, "embed") == 0) {
        size_t count = 0;
        CALL(haversack_engine_embed(engine, words, NULL, 0, &count, &error));
        printf("embed %zu\n", count);
    } else if (strcmp(action, "memory") == 0) {
        haversack_memory memory;
        CALL(haversack_engine_memory(engine, &memory, &error));
        printf("memory sequences=%llu active=%llu waiting=%llu kv=%llu\n", (unsigned long long)memory.sequences,
               (unsigned long long)memory.active, (unsigned long long)memory.waiting, (unsigned long long)memory.kv_bytes);
    } else if (strcmp(action, "suspend_all") == 0) {
        CALL(haversack_engine_suspend(engine, &error));
        printf("suspend_all\n");
    } else if (strcmp(action, "trim") == 0) {
        uint64_t freed = 0;
        CALL(haversack_engine_trim(engine, (int64_t)number(step, "bytes"), &freed, &error));
        printf("trim freed=%s\n", freed > 0 ? "yes" : "no");
    } else if (strcmp(action, "pressure") == 0) {
        int level = (int)number(step, "level");
        CALL(haversack_engine_pressure(engine, level, &error));
        printf("pressure %d\n", level);
    } else if (strcmp(action, "close") == 0) {
        CALL(haversack_engine_close(engine, &error));
        printf("close\n");
    } else {
        fail("no step", action);
    }
#undef CALL
}

static char *file_text(const char *path) {
    FILE *file = fopen(path, "rb");
    char *all;
    long length;
    if (file == NULL) fail("cannot be read", path);
    fseek(file, 0, SEEK_END);
    length = ftell(file);
    rewind(file);
    all = allocated((size_t)length + 1);
    if (fread(all, 1, (size_t)length, file) != (size_t)length) fail("cannot be read", path);
    fclose(file);
    return all;
}

int main(int count, char **arguments) {
    static struct step steps[STEPS_MAX];
    char *table;
    size_t all;
    int part;
    if (count != 5) fail("usage", "suite MODEL TABLE SESSIONS PART");
    if (strcmp(haversack_version(), HAVERSACK_VERSION) != 0) fail("another version", haversack_version());
    model_path = arguments[1];
    sessions_path = arguments[3];
    part = atoi(arguments[4]);
    table = file_text(arguments[2]);
    all = read_table(table, steps);
    free(table);
    for (size_t i = 0; i < all; i++) {
        if (strcmp(text(&steps[i], "do"), "kill") == 0) {
            if (part-- == 0) {
                printf("kill\n");
                fflush(stdout);
                kill(getpid(), SIGKILL);
            }
        } else if (part == 0) {
            play(&steps[i]);
        }
    }
    for (size_t i = 0; i < 16; i++) haversack_conversation_free(conversations[i].handle);
    haversack_engine_free(engine);
    for (size_t i = 0; i < all; i++)
        for (size_t f = 0; f < steps[i].count; f++) {
            free(steps[i].fields[f].name);
            free(steps[i].fields[f].text);
        }
    return 0;
}
