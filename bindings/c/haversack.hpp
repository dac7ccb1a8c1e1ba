// Haversack for C++17: classes over haversack.h. Handles are freed when they go out of scope; errors are exceptions.
//
//     haversack::Engine engine("model.gguf", {"1500M", "sessions"});
//     auto anna = engine.conversation("anna", "You answer in one sentence.");
//     auto answer = anna.say("My cat is called Miso.");
//     for (std::string_view piece : answer) std::cout << piece << std::flush;
//     std::cout << '\n' << answer.report().tokens << " tokens\n";
//
// A class may be used from any thread, as the functions of haversack.h say; an answer that goes out of scope is cancelled.

#ifndef HAVERSACK_HPP
#define HAVERSACK_HPP

#include "haversack.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace haversack {

// What a call could not do: `status()` says what a program can do about it, `what()` says it to a person.
class Error : public std::runtime_error {
public:
    Error(haversack_status status, const char *text) : std::runtime_error(text), status_(status) {}
    haversack_status status() const noexcept { return status_; }

private:
    haversack_status status_;
};

namespace detail {

// Holds the error of a call until it is thrown.
class Call {
public:
    Call() = default;
    Call(const Call &) = delete;
    Call &operator=(const Call &) = delete;
    ~Call() { haversack_error_free(error_); }
    haversack_error **error() noexcept { return &error_; }
    void check(haversack_status status) const {
        if (status != HAVERSACK_STATUS_OK) throw Error(status, haversack_error_text(error_));
    }

private:
    haversack_error *error_ = nullptr;
};

template <auto Free>
struct Freed {
    template <typename T>
    void operator()(T *handle) const noexcept { Free(handle); }
};

template <typename T, auto Free>
using Handle = std::unique_ptr<T, Freed<Free>>;

inline const char *optional(const std::string &text) noexcept { return text.empty() ? nullptr : text.c_str(); }

} // namespace detail

// How an engine is opened. What is empty or 0 follows from the model and the device.
struct EngineOptions {
    std::string memory;
    std::string sessions_dir;
    std::string encoder_dir;
    std::string cache_dir;
    std::string kv;
    std::int64_t context = 0;
    std::int64_t threads = 0;
    std::int64_t batch = 0;
    std::int64_t queue = 0;

    haversack_engine_options plain() const noexcept {
        haversack_engine_options options = {};
        options.memory = detail::optional(memory);
        options.sessions_dir = detail::optional(sessions_dir);
        options.encoder_dir = detail::optional(encoder_dir);
        options.cache_dir = detail::optional(cache_dir);
        options.kv = detail::optional(kv);
        options.context = context;
        options.threads = threads;
        options.batch = batch;
        options.queue = queue;
        return options;
    }
};

struct Fact {
    std::uint64_t number;
    std::string text;
    std::int64_t found_in; // -1: it was told as a fact
};

struct Turn {
    std::uint64_t number;
    std::string text;
    std::string answer;
    std::uint64_t time_ms;
    std::uint64_t tokens;
    haversack_place place;
    bool is_visible;
    bool is_state;
};

// An answer on its way. Read it once, by a loop or as a whole.
class Answer {
public:
    explicit Answer(haversack_answer *handle) noexcept : handle_(handle) {}

    // The next piece, valid until the next one is read; false at the end.
    bool next(std::string_view &piece) {
        detail::Call call;
        const char *text = nullptr;
        std::size_t length = 0;
        call.check(haversack_answer_next(handle_.get(), &text, &length, call.error()));
        if (text == nullptr) return false;
        piece = std::string_view(text, length);
        return true;
    }

    // What is left of the answer, once it has ended.
    std::string text() {
        detail::Call call;
        const char *text = nullptr;
        std::size_t length = 0;
        call.check(haversack_answer_text(handle_.get(), &text, &length, call.error()));
        return std::string(text, length);
    }

    // Ends the answer where it is; also from another thread, while one waits for a piece.
    void cancel() {
        detail::Call call;
        call.check(haversack_answer_cancel(handle_.get(), call.error()));
    }

    haversack_report report() const {
        detail::Call call;
        haversack_report report = {};
        call.check(haversack_answer_report(handle_.get(), &report, call.error()));
        return report;
    }

    std::vector<std::uint64_t> recalled() const {
        detail::Call call;
        std::vector<std::uint64_t> turns(static_cast<std::size_t>(report().recalled));
        call.check(haversack_answer_recalled(handle_.get(), turns.data(), turns.size(), nullptr, call.error()));
        return turns;
    }

    class iterator {
    public:
        using iterator_category = std::input_iterator_tag;
        using value_type = std::string_view;
        using difference_type = std::ptrdiff_t;
        using pointer = const std::string_view *;
        using reference = std::string_view;

        iterator() = default;
        explicit iterator(Answer *answer) : answer_(answer) { ++*this; }
        std::string_view operator*() const noexcept { return piece_; }
        iterator &operator++() {
            if (!answer_->next(piece_)) answer_ = nullptr;
            return *this;
        }
        bool operator==(const iterator &other) const noexcept { return answer_ == other.answer_; }
        bool operator!=(const iterator &other) const noexcept { return answer_ != other.answer_; }

    private:
        Answer *answer_ = nullptr;
        std::string_view piece_;
    };

    iterator begin() { return iterator(this); }
    iterator end() noexcept { return iterator(); }

private:
    detail::Handle<haversack_answer, haversack_answer_free> handle_;
};

// Facts that always hold, turns that come and go, a file that outlives the engine.
class Conversation {
public:
    explicit Conversation(haversack_conversation *handle) noexcept : handle_(handle) {}

    Answer say(const std::string &message, const haversack_prompt_options &options = {}) {
        detail::Call call;
        haversack_answer *answer = nullptr;
        call.check(haversack_conversation_say(handle_.get(), message.c_str(), &options, &answer, call.error()));
        return Answer(answer);
    }

    std::vector<Fact> facts() const {
        detail::Call call;
        haversack_facts *all = nullptr;
        call.check(haversack_conversation_facts(handle_.get(), &all, call.error()));
        const detail::Handle<haversack_facts, haversack_facts_free> owner(all);
        std::vector<Fact> facts;
        for (std::size_t i = 0; i < haversack_facts_count(all); i++) {
            haversack_fact fact = {};
            call.check(haversack_facts_get(all, i, &fact, nullptr));
            facts.push_back({fact.number, std::string(fact.text, fact.text_length), fact.found_in});
        }
        return facts;
    }

    std::vector<Turn> turns() const {
        detail::Call call;
        haversack_turns *all = nullptr;
        call.check(haversack_conversation_turns(handle_.get(), &all, call.error()));
        const detail::Handle<haversack_turns, haversack_turns_free> owner(all);
        std::vector<Turn> turns;
        for (std::size_t i = 0; i < haversack_turns_count(all); i++) {
            haversack_turn turn = {};
            call.check(haversack_turns_get(all, i, &turn, nullptr));
            turns.push_back({turn.number, std::string(turn.text, turn.text_length),
                             std::string(turn.answer, turn.answer_length), turn.time_ms, turn.tokens, turn.place,
                             turn.is_visible != 0, turn.is_state != 0});
        }
        return turns;
    }

    std::uint64_t add_fact(const std::string &fact) {
        detail::Call call;
        std::uint64_t number = 0;
        call.check(haversack_conversation_add_fact(handle_.get(), fact.c_str(), &number, call.error()));
        return number;
    }

    std::uint64_t replace_fact(std::uint64_t old, const std::string &fact) {
        detail::Call call;
        std::uint64_t number = 0;
        call.check(haversack_conversation_replace_fact(handle_.get(), old, fact.c_str(), &number, call.error()));
        return number;
    }

    void revoke_fact(std::uint64_t number) {
        detail::Call call;
        call.check(haversack_conversation_revoke_fact(handle_.get(), number, call.error()));
    }

    void recall(std::uint64_t turn) {
        detail::Call call;
        call.check(haversack_conversation_recall(handle_.get(), turn, call.error()));
    }

    // The number of the turn that was deleted; -1 where there was none.
    std::int64_t undo() {
        detail::Call call;
        std::int64_t turn = -1;
        call.check(haversack_conversation_undo(handle_.get(), &turn, call.error()));
        return turn;
    }

    Conversation fork(const std::string &name) {
        detail::Call call;
        haversack_conversation *fork = nullptr;
        call.check(haversack_conversation_fork(handle_.get(), name.c_str(), &fork, call.error()));
        return Conversation(fork);
    }

    void suspend() {
        detail::Call call;
        call.check(haversack_conversation_suspend(handle_.get(), call.error()));
    }

    void resume() {
        detail::Call call;
        call.check(haversack_conversation_resume(handle_.get(), call.error()));
    }

    // A page of Markdown. ("export" is a keyword.)
    std::string exported() const {
        detail::Call call;
        haversack_page *page = nullptr;
        call.check(haversack_conversation_export(handle_.get(), &page, call.error()));
        const detail::Handle<haversack_page, haversack_page_free> owner(page);
        std::size_t length = 0;
        const char *text = haversack_page_text(page, &length);
        return std::string(text, length);
    }

    // Deletes the conversation and its file. ("delete" is a keyword.)
    void remove() {
        detail::Call call;
        call.check(haversack_conversation_delete(handle_.get(), call.error()));
    }

private:
    detail::Handle<haversack_conversation, haversack_conversation_free> handle_;
};

// One model, one memory limit, one thread that computes for every conversation.
class Engine {
public:
    explicit Engine(const std::string &model, const EngineOptions &options = {}) {
        detail::Call call;
        const haversack_engine_options plain = options.plain();
        haversack_engine *engine = nullptr;
        call.check(haversack_engine_open(model.c_str(), &plain, &engine, call.error()));
        handle_.reset(engine);
    }

    static haversack_plan plan(const std::string &model, const EngineOptions &options = {}) {
        detail::Call call;
        const haversack_engine_options plain = options.plain();
        haversack_plan plan = {};
        call.check(haversack_plan_model(model.c_str(), &plain, &plan, call.error()));
        return plan;
    }

    Conversation conversation(const std::string &name, const std::string &system = {}) {
        detail::Call call;
        haversack_conversation *opened = nullptr;
        call.check(haversack_engine_conversation(handle_.get(), name.c_str(), detail::optional(system), &opened, call.error()));
        return Conversation(opened);
    }

    std::vector<std::string> conversations() const {
        detail::Call call;
        haversack_conversations *all = nullptr;
        call.check(haversack_engine_conversations(handle_.get(), &all, call.error()));
        const detail::Handle<haversack_conversations, haversack_conversations_free> owner(all);
        std::vector<std::string> names;
        for (std::size_t i = 0; i < haversack_conversations_count(all); i++) {
            haversack_listed listed = {};
            call.check(haversack_conversations_get(all, i, &listed, nullptr));
            names.emplace_back(listed.name);
        }
        return names;
    }

    Answer complete(const std::string &prompt, const haversack_prompt_options &options = {}) {
        detail::Call call;
        haversack_answer *answer = nullptr;
        call.check(haversack_engine_complete(handle_.get(), prompt.c_str(), &options, &answer, call.error()));
        return Answer(answer);
    }

    std::vector<float> embed(const std::string &words) const {
        detail::Call call;
        std::vector<float> values(4096);
        std::size_t count = 0;
        call.check(haversack_engine_embed(handle_.get(), words.c_str(), values.data(), values.size(), &count, call.error()));
        values.resize(count);
        return values;
    }

    haversack_memory memory() const {
        detail::Call call;
        haversack_memory memory = {};
        call.check(haversack_engine_memory(handle_.get(), &memory, call.error()));
        return memory;
    }

    void pressure(haversack_pressure level) {
        detail::Call call;
        call.check(haversack_engine_pressure(handle_.get(), level, call.error()));
    }

    void thermal(haversack_thermal level) {
        detail::Call call;
        call.check(haversack_engine_thermal(handle_.get(), level, call.error()));
    }

    void suspend() {
        detail::Call call;
        call.check(haversack_engine_suspend(handle_.get(), call.error()));
    }

    std::uint64_t trim(std::int64_t bytes) {
        detail::Call call;
        std::uint64_t freed = 0;
        call.check(haversack_engine_trim(handle_.get(), bytes, &freed, call.error()));
        return freed;
    }

    void close() {
        detail::Call call;
        call.check(haversack_engine_close(handle_.get(), call.error()));
    }

private:
    detail::Handle<haversack_engine, haversack_engine_free> handle_;
};

} // namespace haversack

#endif // HAVERSACK_HPP
