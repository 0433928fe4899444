#include "msgpack_reader.h"

#include "utf8.h"

namespace penstock::rows {

// Reads the number behind the first byte, and both with it.
bool MsgpackReader::big_endian(size_t width, uint64_t& value) {
  if (left_.size() <= width) return false;
  value = 0;
  for (size_t i = 1; i <= width; ++i) value = value << 8 | static_cast<uint8_t>(left_[i]);
  left_.remove_prefix(width + 1);
  return true;
}

bool MsgpackReader::array(size_t& count) {
  if (left_.empty()) return false;
  const auto first = static_cast<uint8_t>(left_[0]);
  uint64_t found = first & 0x0f;
  if ((first & 0xf0) == 0x90) {
    left_.remove_prefix(1);
  } else if ((first != 0xdc && first != 0xdd) || !big_endian(first == 0xdc ? 2 : 4, found)) {
    return false;
  }
  count = found;
  return found <= left_.size();  // each element has a byte at least
}

bool MsgpackReader::number(uint64_t& value) {
  if (left_.empty()) return false;
  const auto first = static_cast<uint8_t>(left_[0]);
  if (first < 0x80) {
    value = first;
    left_.remove_prefix(1);
    return true;
  }
  return first >= 0xcc && first <= 0xcf && big_endian(size_t{1} << (first - 0xcc), value);
}

bool MsgpackReader::text(std::string_view& value) {
  if (left_.empty()) return false;
  const auto first = static_cast<uint8_t>(left_[0]);
  uint64_t length = first & 0x1f;
  if ((first & 0xe0) == 0xa0) {
    left_.remove_prefix(1);
  } else if (first < 0xd9 || first > 0xdb || !big_endian(size_t{1} << (first - 0xd9), length)) {
    return false;
  }
  if (length > left_.size()) return false;
  value = left_.substr(0, length);
  left_.remove_prefix(length);
  return is_utf8(value);
}

// Skips a value whose length has so many bytes behind the first, and `more` bytes beside it.
bool MsgpackReader::skip_bytes(size_t width, size_t more) {
  uint64_t length;
  if (!big_endian(width, length) || left_.size() < more || length > left_.size() - more) return false;
  left_.remove_prefix(length + more);
  return true;
}

bool MsgpackReader::skip() {
  uint64_t wanted = 1;
  for (; wanted > 0; --wanted) {
    if (left_.empty()) return false;
    const auto first = static_cast<uint8_t>(left_[0]);
    size_t width = 0;
    uint64_t inner = 0;
    if (first < 0x80 || first >= 0xe0 || first == 0xc0 || first == 0xc2 || first == 0xc3) {
      width = 0;
    } else if (first < 0x90) {
      inner = 2 * uint64_t{first & 0x0fU};
    } else if (first < 0xa0) {
      inner = first & 0x0f;
    } else if (first < 0xc0) {
      width = first & 0x1f;
    } else if (first >= 0xc4 && first <= 0xc9) {
      if (!skip_bytes(size_t{1} << ((first - 0xc4) % 3), first < 0xc7 ? 0 : 1)) return false;
      continue;
    } else if (first >= 0xd9 && first <= 0xdb) {
      if (!skip_bytes(size_t{1} << (first - 0xd9), 0)) return false;
      continue;
    } else if (first >= 0xdc) {
      if (!big_endian(first % 2 == 0 ? 2 : 4, inner)) return false;
      wanted += first < 0xde ? inner : 2 * inner;
      continue;
    } else if (first == 0xca || first == 0xcb) {
      width = first == 0xca ? 4 : 8;
    } else if (first >= 0xcc && first <= 0xd3) {
      width = size_t{1} << (first % 4);
    } else if (first >= 0xd4 && first <= 0xd8) {
      width = 1 + (size_t{1} << (first - 0xd4));
    } else {
      return false;
    }
    if (left_.size() <= width) return false;
    left_.remove_prefix(width + 1);
    wanted += inner;
  }
  return true;
}

}  // namespace penstock::rows
