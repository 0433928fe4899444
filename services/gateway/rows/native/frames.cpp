#include "frames.h"

#include "utf8.h"

namespace penstock::rows {

namespace {

// Tags of inference.proto: the number of a field and the kind of its value.
constexpr char EVENT_TEXT = 2 << 3 | 2;
constexpr char DELTA_TEXT = 1 << 3 | 2;
constexpr char DELTA_IDS = 2 << 3 | 2;
constexpr char DELTA_POSITION = 3 << 3;

size_t varint_size(uint64_t value) {
  size_t size = 1;
  while (value >>= 7) ++size;
  return size;
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void put_unit(std::string& out, uint32_t unit) {
  constexpr char DIGITS[] = "0123456789abcdef";
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out.push_back(DIGITS[unit >> shift & 15]);
}

}  // namespace

void put_event(std::string& out, uint64_t position, const uint32_t* ids, size_t count,
               std::string_view text) {
  size_t packed = 0;
  for (size_t i = 0; i < count; ++i) packed += varint_size(ids[i]);
  size_t delta = 0;
  if (!text.empty()) delta += 1 + varint_size(text.size()) + text.size();
  if (count != 0) delta += 1 + varint_size(packed) + packed;
  if (position != 0) delta += 1 + varint_size(position);
  out.push_back(EVENT_TEXT);
  put_varint(out, delta);
  if (!text.empty()) {
    out.push_back(DELTA_TEXT);
    put_varint(out, text.size());
    out.append(text);
  }
  if (count != 0) {
    out.push_back(DELTA_IDS);
    put_varint(out, packed);
    for (size_t i = 0; i < count; ++i) put_varint(out, ids[i]);
  }
  if (position != 0) {
    out.push_back(DELTA_POSITION);
    put_varint(out, position);
  }
}

void put_json_text(std::string& out, std::string_view utf8) {
  out.push_back('"');
  uint32_t character;
  while (!utf8.empty() && next_character(utf8, character)) {
    constexpr std::string_view SHORT = "\"\\\n\r\t\b\f", NAMES = "\"\\nrtbf";
    const size_t named = character < 0x80 ? SHORT.find(static_cast<char>(character)) : SHORT.npos;
    if (named != SHORT.npos) {
      out.push_back('\\');
      out.push_back(NAMES[named]);
    } else if (character >= 0x20 && character < 0x7f) {
      out.push_back(static_cast<char>(character));
    } else if (character < 0x10000) {
      put_unit(out, character);
    } else {
      put_unit(out, 0xd800 + ((character - 0x10000) >> 10));
      put_unit(out, 0xdc00 + (character & 0x3ff));
    }
  }
  out.push_back('"');
}

}  // namespace penstock::rows
