// Writes blocks of headers that leave the other end's table alone, so that each is the same wherever it
// stands.
#pragma once

#include <string>
#include <string_view>

namespace penstock::http2 {

inline void put_number(std::string& block, uint8_t first, int prefix_bits, size_t value) {
  const size_t most = (size_t{1} << prefix_bits) - 1;
  if (value < most) {
    block.push_back(static_cast<char>(first | value));
    return;
  }
  block.push_back(static_cast<char>(first | most));
  for (value -= most; value >= 128; value >>= 7) block.push_back(static_cast<char>(value | 128));
  block.push_back(static_cast<char>(value));
}

inline void put_header(std::string& block, std::string_view name, std::string_view value) {
  constexpr int STATUS_200 = 8, CONTENT_TYPE = 31;
  if (name == ":status" && value == "200") {
    put_number(block, 0x80, 7, STATUS_200);
    return;
  }
  if (name == ":status") {
    put_number(block, 0, 4, STATUS_200);
  } else if (name == "content-type") {
    put_number(block, 0, 4, CONTENT_TYPE);
  } else {
    put_number(block, 0, 4, 0);
    put_number(block, 0, 7, name.size());
    block.append(name);
  }
  put_number(block, 0, 7, value.size());
  block.append(value);
}

}  // namespace penstock::http2
