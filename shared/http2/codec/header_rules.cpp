#include "header_rules.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace penstock::http2 {
namespace {

// Letters are small ones.
bool is_name_char(char each) {
  return (each >= 'a' && each <= 'z') || (each >= '0' && each <= '9') ||
         std::string_view("!#$%&'*+-.^_`|~").find(each) != std::string_view::npos;
}

// Blanks around a value are against the rules, but clients of gRPC send them, and nothing depends on them
// here.
bool is_value(std::string_view value) {
  return std::none_of(value.begin(), value.end(),
                      [](char each) { return each == '\0' || each == '\r' || each == '\n'; });
}

// Headers of a single connection of HTTP/1 say nothing here.
bool is_of_connection(const Header& header) {
  constexpr std::array<std::string_view, 5> NAMES = {"connection", "proxy-connection", "keep-alive",
                                                     "transfer-encoding", "upgrade"};
  if (header.name == "te") return header.value != "trailers";
  return std::find(NAMES.begin(), NAMES.end(), header.name) != NAMES.end();
}

bool is_field(const Header& header) {
  return !header.name.empty() && std::all_of(header.name.begin(), header.name.end(), is_name_char) &&
         is_value(header.value) && !is_of_connection(header);
}

}  // namespace

bool are_request(const std::vector<Header>& headers) {
  constexpr std::array<std::string_view, 4> PSEUDO = {":method", ":scheme", ":path", ":authority"};
  std::array<int, 4> seen{};
  bool fields = false;
  for (const Header& header : headers) {
    if (header.name.empty() || header.name[0] != ':') {
      fields = true;
      if (!is_field(header)) return false;
      continue;
    }
    const auto found = std::find(PSEUDO.begin(), PSEUDO.end(), header.name);
    if (fields || found == PSEUDO.end() || seen[found - PSEUDO.begin()]++ || !is_value(header.value)) {
      return false;
    }
    if (header.value.empty() && header.name != ":authority") return false;
  }
  return seen[0] && seen[1] && seen[2];
}

bool are_trailers(const std::vector<Header>& headers) {
  return std::all_of(headers.begin(), headers.end(), is_field);
}

int64_t content_length(const std::vector<Header>& headers) {
  int64_t found = -1;
  for (const Header& header : headers) {
    if (header.name != "content-length") continue;
    if (found != -1 || header.value.empty() || header.value.size() > 15) return -2;
    found = 0;
    for (const char digit : header.value) {
      if (digit < '0' || digit > '9') return -2;
      found = 10 * found + (digit - '0');
    }
  }
  return found;
}

}  // namespace penstock::http2
