// Which headers make a request, and which may stand behind a body (RFC 9113, section 8).
#pragma once

#include <cstdint>
#include <vector>

#include "header_table.h"

namespace penstock::http2 {

bool are_request(const std::vector<Header>& headers);
bool are_trailers(const std::vector<Header>& headers);

// The bytes of the body that the headers promise: -1 where they say nothing, -2 where they say nonsense.
int64_t content_length(const std::vector<Header>& headers);

}  // namespace penstock::http2
