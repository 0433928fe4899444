#include "header_decoder.h"

#include <utility>

#include "huffman.h"

namespace penstock::http2 {
namespace {

// The rest of a block. Each read says false where the block is broken.
struct Block {
  std::string_view left;

  uint8_t peek() const { return static_cast<uint8_t>(left[0]); }

  bool read_number(int prefix_bits, uint64_t& value) {
    if (left.empty()) return false;
    const uint64_t most = (1u << prefix_bits) - 1;
    value = peek() & most;
    left.remove_prefix(1);
    if (value < most) return true;
    for (int shift = 0; shift <= 28; shift += 7) {
      if (left.empty()) return false;
      const uint8_t byte = peek();
      left.remove_prefix(1);
      value += uint64_t{byte & 127u} << shift;
      if (byte < 128) return true;
    }
    return false;
  }

  bool read_text(std::string& text) {
    if (left.empty()) return false;
    const bool coded = (peek() & 0x80) != 0;
    uint64_t length;
    if (!read_number(7, length) || length > left.size()) return false;
    const std::string_view bytes = left.substr(0, length);
    left.remove_prefix(length);
    if (coded) return append_huffman(bytes, text);
    text = bytes;
    return true;
  }
};

}  // namespace

HeaderResult HeaderDecoder::decode(std::string_view bytes, size_t max_list_bytes,
                                   std::vector<Header>& headers) {
  Block block{bytes};
  size_t list_bytes = 0;
  bool may_resize = true;
  while (!block.left.empty()) {
    const uint8_t first = block.peek();
    uint64_t index;
    if ((first & 0xe0) == 0x20) {  // a new size of the table, before all headers
      if (!may_resize || !block.read_number(5, index) || !table_.set_room(index)) return HeaderResult::BROKEN;
      continue;
    }
    may_resize = false;
    const bool whole = (first & 0x80) != 0, kept = (first & 0xc0) == 0x40;
    if (!block.read_number(whole ? 7 : kept ? 6 : 4, index)) return HeaderResult::BROKEN;
    Header header;
    std::string_view name, value;
    if ((whole || index != 0) && !table_.find(index, name, value)) return HeaderResult::BROKEN;
    if (whole) {
      list_bytes += name.size() + value.size() + 32;
      if (list_bytes <= max_list_bytes) headers.push_back({std::string(name), std::string(value)});
    } else {
      if (index != 0) header.name = name;
      if ((index == 0 && !block.read_text(header.name)) || !block.read_text(header.value)) {
        return HeaderResult::BROKEN;
      }
      list_bytes += header.size();
      if (list_bytes <= max_list_bytes) headers.push_back(header);
      if (kept) table_.add(std::move(header));
    }
    if (list_bytes > MANY_TIMES * max_list_bytes) return HeaderResult::FAR_TOO_LARGE;
  }
  if (list_bytes <= max_list_bytes) return HeaderResult::READ;
  headers.clear();
  return HeaderResult::TOO_LARGE;
}

}  // namespace penstock::http2
