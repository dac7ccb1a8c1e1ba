/* Haversack: language models inside a memory limit. Made from crates/c by .ci/bindings; do not edit.
 *
 * Every function returns a status, and takes a place for an error, which may be null; what it makes there is freed with
 * haversack_error_free. A result is written only where the status is HAVERSACK_STATUS_OK. A wrong argument, a call after
 * haversack_engine_close and a defect of the library are statuses too: no call ends the process. What the caller owes:
 *
 * - a handle came from this library, was not freed, and is not freed while another thread uses it;
 * - a text is UTF-8 and ends with a zero byte; a pointer to a structure or a result points to one, or is null where that
 *   is allowed.
 *
 * The library keeps no global state but a count of the bytes on its heap, and calls nothing of the caller's. Each function
 * says which threads may call it.
 * Structures may grow with each 0.x version: compile with the header of the library that is linked.
 */


#ifndef HAVERSACK_H
#define HAVERSACK_H

#include <stddef.h>
#include <stdint.h>

#define HAVERSACK_VERSION "0.1.0"


// What came of a call, and what a caller can do about it.
typedef enum haversack_status {
  // It was done.
  HAVERSACK_STATUS_OK = 0,
  // An argument is wrong; the same call fails again.
  HAVERSACK_STATUS_INVALID_INPUT = 1,
  // No such conversation, fact, turn or file.
  HAVERSACK_STATUS_NOT_FOUND = 2,
  // The conversation is busy with another answer, or its name is taken.
  HAVERSACK_STATUS_CONFLICT = 3,
  // All places in the queue are taken; try again later.
  HAVERSACK_STATUS_BUSY = 4,
  // The prompt or the answer is longer than the context or the memory limit ever allows.
  HAVERSACK_STATUS_TOO_LARGE = 5,
  // The memory limit has no room now; try again when other answers have ended.
  HAVERSACK_STATUS_OUT_OF_MEMORY = 6,
  // The engine was opened without what the call needs.
  HAVERSACK_STATUS_UNSUPPORTED = 7,
  // The answer ended before it was complete.
  HAVERSACK_STATUS_CANCELLED = 8,
  // The engine is closed.
  HAVERSACK_STATUS_CLOSED = 9,
  // A file could not be read or written.
  HAVERSACK_STATUS_IO = 10,
  // A defect of the model file or of the library.
  HAVERSACK_STATUS_INTERNAL = 11,
} haversack_status;

// Why an answer ended.
typedef enum haversack_finish {
  // It goes on, or failed.
  HAVERSACK_FINISH_NONE = 0,
  // The model ended it, or a stop text came.
  HAVERSACK_FINISH_STOP = 1,
  // It repeated itself over and over.
  HAVERSACK_FINISH_REPETITION = 2,
  // Its limit of tokens or the context ended it.
  HAVERSACK_FINISH_LENGTH = 3,
  // It was cancelled.
  HAVERSACK_FINISH_CANCELLED = 4,
} haversack_finish;

// Where a turn is.
typedef enum haversack_place {
  // In memory.
  HAVERSACK_PLACE_MEMORY = 0,
  // On disk, to be mapped.
  HAVERSACK_PLACE_DISK = 1,
  // On disk as tokens, to be computed again.
  HAVERSACK_PLACE_TOKENS = 2,
} haversack_place;

// How short of memory the system says it is.
typedef enum haversack_pressure {
  // The engine goes by its own readings of the device.
  HAVERSACK_PRESSURE_NOMINAL = 0,
  // Idle conversations move to their files, and no further answer starts beside the running ones.
  HAVERSACK_PRESSURE_WARNING = 1,
  // Windows shrink too.
  HAVERSACK_PRESSURE_CRITICAL = 2,
} haversack_pressure;

// How hot the device is.
typedef enum haversack_thermal {
  // Nothing is slowed.
  HAVERSACK_THERMAL_NOMINAL = 0,
  // Warm.
  HAVERSACK_THERMAL_FAIR = 1,
  // Hot: the engine slows down.
  HAVERSACK_THERMAL_SERIOUS = 2,
  // Too hot: it computes as little as it can.
  HAVERSACK_THERMAL_CRITICAL = 3,
} haversack_thermal;

// An answer on its way. Freeing it cancels it.
typedef struct haversack_answer haversack_answer;

// Facts that always hold, turns that come and go, a file that outlives the engine.
typedef struct haversack_conversation haversack_conversation;

// Conversations that have a file.
typedef struct haversack_conversations haversack_conversations;

// One model, one memory limit, one thread that computes for every conversation.
typedef struct haversack_engine haversack_engine;

// Why a call was not done: a status and a sentence. The caller that asked for it frees it.
typedef struct haversack_error haversack_error;

// The facts of a conversation.
typedef struct haversack_facts haversack_facts;

// A page of Markdown.
typedef struct haversack_page haversack_page;

// The turns of a conversation.
typedef struct haversack_turns haversack_turns;

// What an answer saw, what left memory for it, and what it cost; in tokens where nothing else is said.
typedef struct haversack_report {
  // Why the answer ended.
  enum haversack_finish finish;
  // The number of its turn; -1 of a completion, and where it was cancelled before it began.
  int64_t turn;
  // Sampled.
  uint64_t tokens;
  // The answer saw these.
  uint64_t visible;
  // In memory and hidden from it.
  uint64_t hidden;
  // On disk only.
  uint64_t spilled;
  // Of the visible ones, not computed again.
  uint64_t cached;
  // Computed again.
  uint64_t recomputed;
  // Forgotten since the conversation began, or evicted from the completion.
  uint64_t evicted;
  // Turns that came back for it; `haversack_answer_recalled` names them.
  uint64_t recalled;
  // Bytes of keys and values that the conversation or completion ended with.
  uint64_t bytes;
  // Milliseconds from the request to its first token; -1 where there was none.
  double first_token_ms;
  // Milliseconds from the request to its end.
  double time_ms;
} haversack_report;

// How an answer is sampled and where it ends. Begin with zeros (`= {0}`): they are the defaults.
typedef struct haversack_prompt_options {
  // Tokens of the answer; 1024 unless said, less in a conversation with little room.
  int64_t max_tokens;
  // 0 takes the likeliest token.
  float temperature;
  // Samples from the likeliest tokens that together reach this probability; 0 turns it off, as 1 does.
  float top_p;
  // Drops tokens below this fraction of the likeliest token's probability; 0 turns it off.
  float min_p;
  // Samples from this many likeliest tokens; 0 turns it off.
  int64_t top_k;
  // The same seed gives the same tokens.
  uint64_t seed;
  // Texts at which the answer ends; they are not part of it.
  const char *const *stop;
  // How many there are.
  size_t stop_count;
  // The answer is JSON of this schema. At most one of these four.
  const char *json_schema;
  // The answer is text that this regular expression matches as a whole.
  const char *regex;
  // The answer is text of this GBNF grammar.
  const char *gbnf;
  // The answer is text of this Lark grammar.
  const char *lark;
  // Ends the answer after this time, waiting included; 0: never.
  int64_t timeout_ms;
  // Not 0: goes on where the model would end the answer.
  int32_t ignore_end;
  // Not 0: ends an answer that repeats itself over and over.
  int32_t stop_repetition;
} haversack_prompt_options;

// How an engine is opened. Begin with zeros (`= {0}`): what is 0 or null follows from the model and the device.
typedef struct haversack_engine_options {
  // Ceiling of everything the engine allocates beyond its baseline, such as `1500M` or `4G`.
  const char *memory;
  // Folder of the conversations' files. Without it conversations end with the engine.
  const char *sessions_dir;
  // Folder of a sentence encoder, for `haversack_engine_embed` and for recall by meaning.
  const char *encoder_dir;
  // Folder for what is computed once for each model.
  const char *cache_dir;
  // How keys and values are stored: `f16`, `int8`, `int5`, `int4` (the default), `int3` or `int2`.
  const char *kv;
  // Tokens of context, at most what the model was trained for.
  int64_t context;
  // Threads that compute, at most 256.
  int64_t threads;
  // Answers that are computed at the same time; 8 unless said.
  int64_t batch;
  // Answers that may wait; 64 unless said. Beyond that they are refused as `HAVERSACK_STATUS_BUSY`.
  int64_t queue;
} haversack_engine_options;

// What a model takes, from its file's metadata alone.
typedef struct haversack_plan {
  // Weights, which are mapped from the file, beside the memory limit.
  uint64_t weights_bytes;
  // Tokens of context: as asked for, or what the model was trained for.
  uint64_t context;
  // Keys and values of one token.
  uint64_t token_bytes;
  // What one conversation of the whole context takes of the limit.
  uint64_t context_bytes;
  // Tokens of one conversation that the limit holds; -1 where `memory` is not set.
  int64_t tokens_max;
} haversack_plan;

// Where the bytes of the memory limit are.
typedef struct haversack_memory {
  // The limit; -1 where there is none.
  int64_t limit_bytes;
  // Counted against the limit now.
  uint64_t total_bytes;
  // The highest total so far.
  uint64_t peak_bytes;
  // Keys and values that answers see.
  uint64_t kv_bytes;
  // The highest `kv_bytes` so far.
  uint64_t kv_peak_bytes;
  // Block tables, lists and staging buffers.
  uint64_t tables_bytes;
  // Intermediate values of a step.
  uint64_t scratch_bytes;
  // Means of keys, grammars and what else is kept beside keys and values.
  uint64_t side_bytes;
  // What the library has on its heap beside all of these.
  uint64_t heap_bytes;
  // Promised to running answers and not held yet.
  uint64_t promised_bytes;
  // Of idle conversations and caches, which leave memory when an answer needs it.
  uint64_t idle_bytes;
  // Mapped from the model file, beside the limit.
  uint64_t weights_bytes;
  // Answers that are computed.
  uint64_t active;
  // Answers that wait.
  uint64_t waiting;
  // Conversations and completions in memory.
  uint64_t sequences;
} haversack_memory;

// A fact that holds.
typedef struct haversack_fact {
  // 0 is what the conversation began with.
  uint64_t number;
  // UTF-8 with a zero byte behind it.
  const char *text;
  // Its bytes: models can say zero bytes too.
  size_t text_length;
  // The turn in which it was found; -1: it was told as a fact.
  int64_t found_in;
} haversack_fact;

// A question and its answer.
typedef struct haversack_turn {
  // Counted from 0, never used again.
  uint64_t number;
  // The question, or a state; UTF-8 with a zero byte behind it.
  const char *text;
  // Its bytes.
  size_t text_length;
  // The answer; empty of a state.
  const char *answer;
  // Its bytes: models can say zero bytes too.
  size_t answer_length;
  // When; milliseconds since 1970.
  uint64_t time_ms;
  // Of the question and the answer.
  uint64_t tokens;
  // Where it is.
  enum haversack_place place;
  // Not 0: answers see it now.
  int32_t is_visible;
  // Not 0: it is a state, which was told rather than asked.
  int32_t is_state;
} haversack_turn;

// A conversation that has a file.
typedef struct haversack_listed {
  // Its name.
  const char *name;
  // Of its file.
  uint64_t bytes;
  // When it was saved last; milliseconds since 1970.
  uint64_t saved_ms;
  // Not 0: it is in memory.
  int32_t is_open;
} haversack_listed;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Of the library that is linked; `HAVERSACK_VERSION` is that of the header. Static: never freed. Any thread.
const char *haversack_version(void);

// Waits for the next piece of the answer. `text` becomes UTF-8 with a zero byte behind it, valid until the next call that reads
// this answer, and `length`, which may be null, its bytes; at the end `text` becomes null. Any thread; of two threads that read one
// answer, one waits for the other.
// As at the top of this header; `text` must not be null.
enum haversack_status haversack_answer_next(const struct haversack_answer *answer,
                                            const char **text,
                                            size_t *length,
                                            struct haversack_error **error);

// Waits for the end of the answer; `text` becomes what is left of it, and is never null. Otherwise as `haversack_answer_next`.
// As at the top of this header; `text` must not be null.
enum haversack_status haversack_answer_text(const struct haversack_answer *answer,
                                            const char **text,
                                            size_t *length,
                                            struct haversack_error **error);

// Ends the answer where it is: what is left of it can be read, its report says so, and a conversation keeps it so far. Does nothing
// to an answer that is over. Any thread, also while another one waits in `haversack_answer_next`.
// As at the top of this header.
enum haversack_status haversack_answer_cancel(const struct haversack_answer *answer,
                                              struct haversack_error **error);

// What the answer saw and cost; complete once `haversack_answer_next` has returned its end. Any thread; waits for a thread that
// reads.
// As at the top of this header; `report` must not be null.
enum haversack_status haversack_answer_report(const struct haversack_answer *answer,
                                              struct haversack_report *report,
                                              struct haversack_error **error);

// The turns that came back for this answer. Writes at most `capacity` numbers, and to `count` how many there are. Any thread;
// waits for a thread that reads.
// As at the top of this header; `turns` points to `capacity` numbers, or is null and `capacity` 0; `count` may be null.
enum haversack_status haversack_answer_recalled(const struct haversack_answer *answer,
                                                uint64_t *turns,
                                                size_t capacity,
                                                size_t *count,
                                                struct haversack_error **error);

// Frees the answer, and cancels it if it goes on; null is nothing to free. Any thread, once, while no other call uses the handle.
// As at the top of this header.
void haversack_answer_free(struct haversack_answer *answer);

// Frees the handle; null is nothing to free. The conversation goes on. Any thread, once, while no other call uses the handle.
// As at the top of this header.
void haversack_conversation_free(struct haversack_conversation *conversation);

// Sends a message; `haversack_answer_next` reads the answer. A message that is sent before the answer
// to the last one has ended is answered after it. Any thread, at the same time as any other call.
// As at the top of this header; `options` may be null, `answer` not.
enum haversack_status haversack_conversation_say(const struct haversack_conversation *conversation,
                                                 const char *message,
                                                 const struct haversack_prompt_options *options,
                                                 struct haversack_answer **answer,
                                                 struct haversack_error **error);

// Facts that hold. Any thread, at the same time as any other call.
// As at the top of this header; `facts` must not be null.
enum haversack_status haversack_conversation_facts(const struct haversack_conversation *conversation,
                                                   struct haversack_facts **facts,
                                                   struct haversack_error **error);

// Adds a fact that every answer sees; writes its number to `number`, which may be null. Any thread, at the same time as any
// other call.
// As at the top of this header.
enum haversack_status haversack_conversation_add_fact(const struct haversack_conversation *conversation,
                                                      const char *fact,
                                                      uint64_t *number,
                                                      struct haversack_error **error);

// Replaces a fact that no longer holds; writes the new one's number to `number`, which may be null. Any thread, at the same time
// as any other call.
// As at the top of this header.
enum haversack_status haversack_conversation_replace_fact(const struct haversack_conversation *conversation,
                                                          uint64_t old,
                                                          const char *fact,
                                                          uint64_t *number,
                                                          struct haversack_error **error);

// Answers do not see this fact any more. Any thread, at the same time as any other call.
// As at the top of this header.
enum haversack_status haversack_conversation_revoke_fact(const struct haversack_conversation *conversation,
                                                         uint64_t number,
                                                         struct haversack_error **error);

// The last turns, at most 256, the oldest first. Any thread, at the same time as any other call.
// As at the top of this header; `turns` must not be null.
enum haversack_status haversack_conversation_turns(const struct haversack_conversation *conversation,
                                                   struct haversack_turns **turns,
                                                   struct haversack_error **error);

// The next answer sees this turn, wherever it is. Any thread, at the same time as any other call.
// As at the top of this header.
enum haversack_status haversack_conversation_recall(const struct haversack_conversation *conversation,
                                                    uint64_t turn,
                                                    struct haversack_error **error);

// Deletes the last turn; writes its number, or -1 where there was none, to `turn`, which may be null. Any thread, at the same
// time as any other call.
// As at the top of this header.
enum haversack_status haversack_conversation_undo(const struct haversack_conversation *conversation,
                                                  int64_t *turn,
                                                  struct haversack_error **error);

// A second conversation that goes on from here under another name. Any thread, at the same time as any other call.
// As at the top of this header; `fork` must not be null.
enum haversack_status haversack_conversation_fork(const struct haversack_conversation *conversation,
                                                  const char *name,
                                                  struct haversack_conversation **fork,
                                                  struct haversack_error **error);

// Saves the conversation and frees its memory; its next message opens it again. Any thread, at the same time as any other call.
// As at the top of this header.
enum haversack_status haversack_conversation_suspend(const struct haversack_conversation *conversation,
                                                     struct haversack_error **error);

// Opens a suspended conversation before its next message does. Any thread, at the same time as any other call.
// As at the top of this header.
enum haversack_status haversack_conversation_resume(const struct haversack_conversation *conversation,
                                                    struct haversack_error **error);

// Facts, states and turns as a page of Markdown. Any thread, at the same time as any other call.
// As at the top of this header; `page` must not be null.
enum haversack_status haversack_conversation_export(const struct haversack_conversation *conversation,
                                                    struct haversack_page **page,
                                                    struct haversack_error **error);

// Deletes the conversation and its file. The handle remains to be freed; later calls on it return
// `HAVERSACK_STATUS_NOT_FOUND`. Any thread, at the same time as any other call.
// As at the top of this header.
enum haversack_status haversack_conversation_delete(const struct haversack_conversation *conversation,
                                                    struct haversack_error **error);

// What a model file takes of the memory limit with these options. Loads nothing. Any thread.
// As at the top of this header; `options` may be null, `plan` not.
enum haversack_status haversack_plan_model(const char *model,
                                           const struct haversack_engine_options *options,
                                           struct haversack_plan *plan,
                                           struct haversack_error **error);

// Loads a model and starts its engine; takes seconds where the model is large or new here. Any thread.
// As at the top of this header; `options` may be null, `engine` not.
enum haversack_status haversack_engine_open(const char *model,
                                            const struct haversack_engine_options *options,
                                            struct haversack_engine **engine,
                                            struct haversack_error **error);

// Refuses new answers, waits for those that run, saves every conversation. Later calls on the engine, its conversations and
// answers return `HAVERSACK_STATUS_CLOSED`. Any thread, at the same time as any other call.
// As at the top of this header.
enum haversack_status haversack_engine_close(const struct haversack_engine *engine,
                                             struct haversack_error **error);

// Frees the handle; null is nothing to free. The engine closes when its conversations and answers are freed too: the last of
// these calls waits for that. Any thread, once, while no other call uses the handle.
// As at the top of this header.
void haversack_engine_free(struct haversack_engine *engine);

// How many conversations and answers of the engine are not freed yet. Any thread.
// As at the top of this header; `handles` must not be null.
enum haversack_status haversack_engine_handles(const struct haversack_engine *engine,
                                               size_t *handles,
                                               struct haversack_error **error);

// Goes on with the conversation of this name, or begins it; `system` is what a new one begins with, or null. Reading that can
// take seconds. Any thread, at the same time as any other call.
// As at the top of this header; `conversation` must not be null.
enum haversack_status haversack_engine_conversation(const struct haversack_engine *engine,
                                                    const char *name,
                                                    const char *system,
                                                    struct haversack_conversation **conversation,
                                                    struct haversack_error **error);

// The conversations that have a file. Any thread, at the same time as any other call.
// As at the top of this header; `conversations` must not be null.
enum haversack_status haversack_engine_conversations(const struct haversack_engine *engine,
                                                     struct haversack_conversations **conversations,
                                                     struct haversack_error **error);

// Starts to go on with a text, outside of any conversation; `haversack_answer_next` reads the answer. Any thread, at the same
// time as any other call.
// As at the top of this header; `options` may be null, `answer` not.
enum haversack_status haversack_engine_complete(const struct haversack_engine *engine,
                                                const char *prompt,
                                                const struct haversack_prompt_options *options,
                                                struct haversack_answer **answer,
                                                struct haversack_error **error);

// The direction of a text as the engine's sentence encoder sees it: similar texts have a large scalar product. Writes at most
// `capacity` values, and to `count` how many there are. Computed on the caller's thread; any thread.
// As at the top of this header; `values` points to `capacity` floats, or is null and `capacity` 0; `count` may be null.
enum haversack_status haversack_engine_embed(const struct haversack_engine *engine,
                                             const char *words,
                                             float *values,
                                             size_t capacity,
                                             size_t *count,
                                             struct haversack_error **error);

// Where the bytes are. Any thread, at the same time as any other call.
// As at the top of this header; `memory` must not be null.
enum haversack_status haversack_engine_memory(const struct haversack_engine *engine,
                                              struct haversack_memory *memory,
                                              struct haversack_error **error);

// Says how short of memory the system is: a `haversack_pressure`. Any thread, at the same time as any other call.
// As at the top of this header.
enum haversack_status haversack_engine_pressure(const struct haversack_engine *engine,
                                                int32_t level,
                                                struct haversack_error **error);

// Says how hot the device is: a `haversack_thermal`. Heat changes no token. Any thread, at the same time as any other call.
// As at the top of this header.
enum haversack_status haversack_engine_thermal(const struct haversack_engine *engine,
                                               int32_t level,
                                               struct haversack_error **error);

// Saves every conversation that is not being answered and frees its memory, for an app that goes to the background. The next
// message of a conversation, or `haversack_conversation_resume`, opens it again. Any thread, at the same time as any other call.
// As at the top of this header.
enum haversack_status haversack_engine_suspend(const struct haversack_engine *engine,
                                               struct haversack_error **error);

// Gives up caches, then idle conversations, until `bytes` are free; writes to `freed`, which may be null, how many are. Any
// thread, at the same time as any other call.
// As at the top of this header.
enum haversack_status haversack_engine_trim(const struct haversack_engine *engine,
                                            int64_t bytes,
                                            uint64_t *freed,
                                            struct haversack_error **error);

// Its status; `HAVERSACK_STATUS_OK` of a null pointer. Any thread.
// An error of this library, or null.
enum haversack_status haversack_error_status(const struct haversack_error *error);

// Its sentence, one line of UTF-8; empty of a null pointer. Valid until the error is freed. Any thread.
// An error of this library, or null.
const char *haversack_error_text(const struct haversack_error *error);

// Frees an error; null is nothing to free. Any thread, once.
// An error of this library that was not freed, or null.
void haversack_error_free(struct haversack_error *error);

// The name of a status, such as `not_found`; `unknown` of a number that is none. Static: never freed. Any thread.
const char *haversack_status_name(int32_t status);

// How many facts there are; 0 of a null pointer. Any thread.
// As at the top of this header.
size_t haversack_facts_count(const struct haversack_facts *facts);

// The fact of this index, from 0. Any thread.
// As at the top of this header; `fact` must not be null.
enum haversack_status haversack_facts_get(const struct haversack_facts *facts,
                                          size_t index,
                                          struct haversack_fact *fact,
                                          struct haversack_error **error);

// Frees the list and its texts; null is nothing to free. Any thread, once.
// As at the top of this header.
void haversack_facts_free(struct haversack_facts *facts);

// How many turns there are; 0 of a null pointer. Any thread.
// As at the top of this header.
size_t haversack_turns_count(const struct haversack_turns *turns);

// The turn of this index, from 0. Any thread.
// As at the top of this header; `turn` must not be null.
enum haversack_status haversack_turns_get(const struct haversack_turns *turns,
                                          size_t index,
                                          struct haversack_turn *turn,
                                          struct haversack_error **error);

// Frees the list and its texts; null is nothing to free. Any thread, once.
// As at the top of this header.
void haversack_turns_free(struct haversack_turns *turns);

// How many conversations there are; 0 of a null pointer. Any thread.
// As at the top of this header.
size_t haversack_conversations_count(const struct haversack_conversations *conversations);

// The conversation of this index, from 0. Any thread.
// As at the top of this header; `listed` must not be null.
enum haversack_status haversack_conversations_get(const struct haversack_conversations *conversations,
                                                  size_t index,
                                                  struct haversack_listed *listed,
                                                  struct haversack_error **error);

// Frees the list and its names; null is nothing to free. Any thread, once.
// As at the top of this header.
void haversack_conversations_free(struct haversack_conversations *conversations);

// The page, UTF-8 with a zero byte behind it; empty of a null pointer. `length`, which may be null, becomes its bytes. Any thread.
// As at the top of this header.
const char *haversack_page_text(const struct haversack_page *page,
                                size_t *length);

// Frees the page; null is nothing to free. Any thread, once.
// As at the top of this header.
void haversack_page_free(struct haversack_page *page);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HAVERSACK_H */
