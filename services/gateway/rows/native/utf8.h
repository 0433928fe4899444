// UTF-8 as Python takes it: nothing overlong, no half of a pair, nothing beyond the last character.
#pragma once

#include <cstdint>
#include <string_view>

namespace penstock::rows {

// Takes the next character from the front. False where there is none that is written so.
bool next_character(std::string_view& text, uint32_t& character);
bool is_utf8(std::string_view text);
size_t count_characters(std::string_view utf8);

}  // namespace penstock::rows
