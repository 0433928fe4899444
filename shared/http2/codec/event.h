// What the other end has done, for who serves it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "header_table.h"

namespace penstock::http2 {

enum class EventKind : int {
  CALL = 1,       // `headers`; `code` is 1 where they were too many, and are left out
  MESSAGE = 2,    // `bytes`; `code` is 1 where they are compressed
  END = 3,        // no message comes any more
  TOO_LARGE = 4,  // a message of `code` bytes begins, which are more than may be
  BROKEN = 5,     // what comes is no message
  RESET = 6,      // the call is gone, `code` says why
  PONG = 7,       // the answer to a ping
  LEAVING = 8,    // no new call comes any more
  RETIRE =
      10,  // no call can come any more: the connection is to be closed when those that are open have ended
  FAILED = 9,  // the connection is to be closed behind what is taken; `code` and `bytes` say why
};

struct Event {
  EventKind kind;
  uint32_t stream = 0;
  uint32_t code = 0;
  std::string bytes = {};
  std::vector<Header> headers = {};
};

}  // namespace penstock::http2
