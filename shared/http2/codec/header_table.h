// Header fields, and the two tables that their indexes are of (RFC 7541, section 2.3 and appendix A).
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace penstock::http2 {

struct Header {
  std::string name, value;

  // What it counts in a table and in a list of headers.
  size_t size() const { return name.size() + value.size() + 32; }
};

inline constexpr std::pair<std::string_view, std::string_view> STATIC_HEADERS[] = {
    {":authority", ""},
    {":method", "GET"},
    {":method", "POST"},
    {":path", "/"},
    {":path", "/index.html"},
    {":scheme", "http"},
    {":scheme", "https"},
    {":status", "200"},
    {":status", "204"},
    {":status", "206"},
    {":status", "304"},
    {":status", "400"},
    {":status", "404"},
    {":status", "500"},
    {"accept-charset", ""},
    {"accept-encoding", "gzip, deflate"},
    {"accept-language", ""},
    {"accept-ranges", ""},
    {"accept", ""},
    {"access-control-allow-origin", ""},
    {"age", ""},
    {"allow", ""},
    {"authorization", ""},
    {"cache-control", ""},
    {"content-disposition", ""},
    {"content-encoding", ""},
    {"content-language", ""},
    {"content-length", ""},
    {"content-location", ""},
    {"content-range", ""},
    {"content-type", ""},
    {"cookie", ""},
    {"date", ""},
    {"etag", ""},
    {"expect", ""},
    {"expires", ""},
    {"from", ""},
    {"host", ""},
    {"if-match", ""},
    {"if-modified-since", ""},
    {"if-none-match", ""},
    {"if-range", ""},
    {"if-unmodified-since", ""},
    {"last-modified", ""},
    {"link", ""},
    {"location", ""},
    {"max-forwards", ""},
    {"proxy-authenticate", ""},
    {"proxy-authorization", ""},
    {"range", ""},
    {"referer", ""},
    {"refresh", ""},
    {"retry-after", ""},
    {"server", ""},
    {"set-cookie", ""},
    {"strict-transport-security", ""},
    {"transfer-encoding", ""},
    {"user-agent", ""},
    {"vary", ""},
    {"via", ""},
    {"www-authenticate", ""},
};
constexpr size_t STATIC_COUNT = std::size(STATIC_HEADERS);
static_assert(STATIC_COUNT == 61);

// The table that the other end fills with what it sends.
class HeaderTable {
 public:
  // The room that every end has to begin with; we announce no other.
  static constexpr size_t MAX_BYTES = 4096;

  // False where there is no such index.
  bool find(uint64_t index, std::string_view& name, std::string_view& value) const {
    if (index == 0 || index > STATIC_COUNT + headers_.size()) return false;
    if (index <= STATIC_COUNT) {
      std::tie(name, value) = STATIC_HEADERS[index - 1];
    } else {
      name = headers_[index - STATIC_COUNT - 1].name;
      value = headers_[index - STATIC_COUNT - 1].value;
    }
    return true;
  }

  // One that is larger than the whole table empties it.
  void add(Header header) {
    const size_t size = header.size();
    shrink(size > room_ ? 0 : room_ - size);
    if (size > room_) return;
    bytes_ += size;
    headers_.push_front(std::move(header));
  }

  bool set_room(uint64_t bytes) {
    if (bytes > MAX_BYTES) return false;
    room_ = bytes;
    shrink(room_);
    return true;
  }

 private:
  void shrink(size_t most) {
    while (bytes_ > most) {
      bytes_ -= headers_.back().size();
      headers_.pop_back();
    }
  }

  std::deque<Header> headers_;
  size_t bytes_ = 0, room_ = MAX_BYTES;
};

}  // namespace penstock::http2
