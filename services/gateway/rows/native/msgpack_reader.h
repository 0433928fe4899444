// Values of msgpack, read from the front of bytes. Each says false, and reads nothing, where another stands
// there.
#pragma once

#include <cstdint>
#include <string_view>

namespace penstock::rows {

class MsgpackReader {
 public:
  explicit MsgpackReader(std::string_view bytes) : left_(bytes) {}

  bool at_end() const { return left_.empty(); }
  // The count of an array whose elements follow.
  bool array(size_t& count);
  bool number(uint64_t& value);
  // A string that is UTF-8.
  bool text(std::string_view& value);
  // Any value, with all that is in it.
  bool skip();

 private:
  bool big_endian(size_t width, uint64_t& value);
  bool skip_bytes(size_t width, size_t more);

  std::string_view left_;
};

}  // namespace penstock::rows
