/* A conversation in the terminal that survives the program.
 *
 *   cc chat.c -I.. -L DIR -lhaversack_c -o chat && ./chat model.gguf sessions
 */
#include "haversack.h"

#include <stdio.h>
#include <string.h>

/* Prints what went wrong, if something did. The error is looked at behind the call that makes it, so its place is passed. */
static int failed(haversack_status status, haversack_error **error) {
    if (status == HAVERSACK_STATUS_OK) return 0;
    fprintf(stderr, "error: %s (%s)\n", haversack_error_text(*error), haversack_status_name((int32_t)status));
    haversack_error_free(*error);
    return 1;
}

/* Sends one line, prints the answer as it comes, and what it saw. */
static int say(haversack_conversation *anna, const char *line) {
    haversack_error *error = NULL;
    haversack_answer *answer = NULL;
    haversack_report report;
    const char *piece = NULL;
    haversack_prompt_options options = {0};
    options.max_tokens = 200;
    if (failed(haversack_conversation_say(anna, line, &options, &answer, &error), &error)) return 1;
    for (;;) {
        if (failed(haversack_answer_next(answer, &piece, NULL, &error), &error)) break;
        if (piece == NULL) break;
        fputs(piece, stdout);
        fflush(stdout);
    }
    if (haversack_answer_report(answer, &report, NULL) == HAVERSACK_STATUS_OK)
        printf("\n[%llu tokens; saw %llu, %llu on disk only]\n", (unsigned long long)report.tokens,
               (unsigned long long)report.visible, (unsigned long long)report.spilled);
    haversack_answer_free(answer);
    return 0;
}

int main(int count, char **arguments) {
    haversack_error *error = NULL;
    haversack_engine *engine = NULL;
    haversack_conversation *anna = NULL;
    haversack_engine_options options = {0};
    char line[4096];
    int code = 0;
    if (count < 3) {
        fprintf(stderr, "usage: %s MODEL SESSIONS\n", arguments[0]);
        return 2;
    }
    options.memory = "64M";
    options.sessions_dir = arguments[2];
    if (failed(haversack_engine_open(arguments[1], &options, &engine, &error), &error)) return 1;
    if (failed(haversack_engine_conversation(engine, "anna", "You answer in one sentence.", &anna, &error), &error)) {
        haversack_engine_free(engine);
        return 1;
    }
    while (code == 0 && fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        code = say(anna, line);
    }
    haversack_conversation_free(anna);
    haversack_engine_free(engine);
    return code;
}
