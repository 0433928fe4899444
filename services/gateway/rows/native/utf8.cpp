#include "utf8.h"

#include <algorithm>

namespace penstock::rows {

bool next_character(std::string_view& text, uint32_t& character) {
  const auto first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) {
    character = first;
    text.remove_prefix(1);
    return true;
  }
  const size_t more = first < 0xc2 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : first < 0xf5 ? 3 : 0;
  if (more == 0 || text.size() <= more) return false;
  uint32_t value = first & (0x3f >> more);
  for (size_t i = 1; i <= more; ++i) {
    const auto next = static_cast<uint8_t>(text[i]);
    if ((next & 0xc0) != 0x80) return false;
    value = value << 6 | (next & 0x3f);
  }
  constexpr uint32_t LEAST[] = {0, 0x80, 0x800, 0x10000};
  if (value < LEAST[more] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return false;
  character = value;
  text.remove_prefix(more + 1);
  return true;
}

bool is_utf8(std::string_view text) {
  uint32_t character;
  while (!text.empty()) {
    if (!next_character(text, character)) return false;
  }
  return true;
}

size_t count_characters(std::string_view utf8) {
  return static_cast<size_t>(std::count_if(
      utf8.begin(), utf8.end(), [](char byte) { return (static_cast<uint8_t>(byte) & 0xc0) != 0x80; }));
}

}  // namespace penstock::rows
