// The same conversation in C++17.
//
//   c++ -std=c++17 chat.cpp -I.. -L DIR -lhaversack_c -o chat && ./chat model.gguf sessions
#include "haversack.hpp"

#include <iostream>
#include <string>

int main(int count, char **arguments) {
    if (count < 3) {
        std::cerr << "usage: " << arguments[0] << " MODEL SESSIONS\n";
        return 2;
    }
    try {
        haversack::EngineOptions options;
        options.memory = "64M";
        options.sessions_dir = arguments[2];
        haversack::Engine engine(arguments[1], options);
        auto anna = engine.conversation("anna", "You answer in one sentence.");
        haversack_prompt_options prompt = {};
        prompt.max_tokens = 200;
        for (std::string line; std::getline(std::cin, line);) {
            auto answer = anna.say(line, prompt);
            for (std::string_view piece : answer) std::cout << piece << std::flush;
            const auto report = answer.report();
            std::cout << "\n[" << report.tokens << " tokens; saw " << report.visible << ", " << report.spilled
                      << " on disk only]\n";
        }
        std::cout << anna.turns().size() << " turns, " << anna.facts().size() << " facts, "
                  << engine.memory().total_bytes << " bytes held\n";
    } catch (const haversack::Error &error) {
        std::cerr << "error: " << error.what() << " (" << haversack_status_name(error.status()) << ")\n";
        return 1;
    }
}
