// Reads blocks of headers (RFC 7541), all of one connection, in order.
#pragma once

#include <string_view>
#include <vector>

#include "header_table.h"

namespace penstock::http2 {

// What a block came to. Beyond MANY_TIMES the limit nothing is read any further.
enum class HeaderResult { READ, TOO_LARGE, FAR_TOO_LARGE, BROKEN };

class HeaderDecoder {
 public:
  // Fills `headers`. A block of more than `max_list_bytes` is read to its end, for what it says to the table,
  // and its headers are let go of.
  HeaderResult decode(std::string_view block, size_t max_list_bytes, std::vector<Header>& headers);

 private:
  static constexpr size_t MANY_TIMES = 4;

  HeaderTable table_;
};

}  // namespace penstock::http2
