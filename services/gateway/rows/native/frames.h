// A row as clients get it: the bytes that protobuf, or `json.dumps`, would make of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::rows {

// A GenerateEvent with a TextDelta.
void put_event(std::string& out, uint64_t position, const uint32_t* ids, size_t count, std::string_view text);
// A string of JSON in letters of ASCII, between its quotes.
void put_json_text(std::string& out, std::string_view utf8);

}  // namespace penstock::rows
