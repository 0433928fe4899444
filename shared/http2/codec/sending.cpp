#include <algorithm>
#include <utility>

#include "connection.h"

namespace penstock::http2 {

namespace {

// What we send may be answered by the client, with windows and pings, which count as idle frames. A frame
// that its window made small brings it no more than that.
constexpr double ANSWERS_PER_FRAME = 3;
constexpr double ANSWERS_PER_BYTE = 1.0 / 1024;

}  // namespace

Stream* Connection::find(uint32_t id) {
  const auto found = streams_.find(id);
  return found == streams_.end() ? nullptr : &found->second;
}

bool Connection::respond(uint32_t id, std::string_view block) {
  const Stream* stream = find(id);
  if (stream == nullptr) return false;
  put_headers(id, block, false);
  return true;
}

bool Connection::write(uint32_t id, std::string_view message, bool& room) {
  Stream* stream = find(id);
  if (stream == nullptr || stream->finished) return false;
  const auto length = static_cast<uint32_t>(message.size());
  const size_t whole = 5 + message.size();
  const bool now = stream->unsent.size() == 0 && whole <= FRAME_BYTES &&
                   static_cast<int64_t>(whole) <= std::min(stream->send_window, send_window_) &&
                   out_.size() < limits_.max_unsent_bytes;
  if (now) {
    put_frame_head(out_, whole, FrameKind::DATA, 0, id);
    stream->send_window -= static_cast<int64_t>(whole);
    send_window_ -= static_cast<int64_t>(whole);
    idle_frames_.add(ANSWERS_PER_FRAME);
    early_pings_ = 0;
    pinged_ms_ = 0;
  }
  std::string& to = now ? out_ : stream->unsent.tail();
  to.push_back(0);
  put_u32(to, length);
  to.append(message);
  queue(*stream);
  room = stream->unsent.size() < limits_.max_stream_unsent_bytes;
  stream->full = stream->full || !room;
  return true;
}

bool Connection::finish(uint32_t id, std::string_view block, bool& sent) {
  Stream* stream = find(id);
  if (stream == nullptr || stream->finished) return false;
  stream->finished = true;
  stream->trailers.assign(block);
  sent = stream->unsent.size() == 0;
  if (sent) {
    send_some(*stream);
  } else {
    queue(*stream);
  }
  return true;
}

bool Connection::reset(uint32_t id, ErrorCode code) {
  Stream* stream = find(id);
  if (stream == nullptr) return false;
  put_reset(id, code);
  close(*stream);
  return true;
}

void Connection::ping(uint64_t payload) {
  put_frame_head(out_, 8, FrameKind::PING, 0, 0);
  put_u32(out_, static_cast<uint32_t>(payload >> 32));
  put_u32(out_, static_cast<uint32_t>(payload));
  idle_frames_.add(ANSWERS_PER_FRAME);
}

void Connection::go_away(bool last, ErrorCode code) {
  if (state_ == State::FAILED) return;
  put_frame_head(out_, 8, FrameKind::GOAWAY, 0, 0);
  put_u32(out_, last ? last_stream_ : MAX_STREAM_ID);
  put_u32(out_, static_cast<uint32_t>(code));
  if (last) takes_calls_ = false;
}

std::string Connection::take() {
  pump();
  return std::exchange(out_, {});
}

std::vector<uint32_t> Connection::take_freed() {
  return std::exchange(freed_, {});
}

void Connection::put_headers(uint32_t stream, std::string_view block, bool end) {
  const bool told = std::exchange(table_changed_, false);
  size_t left = block.size() + (told ? 1 : 0);
  auto kind = FrameKind::HEADERS;
  uint8_t flags = end ? END_STREAM : 0;
  do {
    const size_t length = std::min<size_t>(left, FRAME_BYTES);
    left -= length;
    put_frame_head(out_, length, kind, static_cast<uint8_t>(flags | (left == 0 ? END_HEADERS : 0)), stream);
    const size_t prefix = told && kind == FrameKind::HEADERS ? 1 : 0;
    if (prefix != 0) out_.push_back(0x20);  // a table of no room, as we never use it
    out_.append(block.substr(0, length - prefix));
    block.remove_prefix(length - prefix);
    kind = FrameKind::CONTINUATION;
    flags = 0;
  } while (left > 0);
  idle_frames_.add(ANSWERS_PER_FRAME);
  early_pings_ = 0;
  pinged_ms_ = 0;
}

void Connection::put_reset(uint32_t stream, ErrorCode code) {
  put_frame_head(out_, 4, FrameKind::RST_STREAM, 0, stream);
  put_u32(out_, static_cast<uint32_t>(code));
}

void Connection::put_window_update(uint32_t stream, uint32_t bytes) {
  put_frame_head(out_, 4, FrameKind::WINDOW_UPDATE, 0, stream);
  put_u32(out_, bytes);
}

// Gives a call its place among those that are to be sent, where it has something and its client has room.
void Connection::queue(Stream& stream) {
  if (stream.has_turn || stream.unsent.size() == 0 || stream.send_window <= 0) return;
  stream.has_turn = true;
  turns_.push_back(stream.id);
}

// A frame of each in turn, until the socket has enough.
void Connection::pump() {
  while (!turns_.empty() && out_.size() < limits_.max_unsent_bytes && send_window_ > 0) {
    Stream* stream = find(turns_.front());
    turns_.pop_front();
    if (stream == nullptr) continue;
    stream->has_turn = false;
    send_some(*stream);
  }
}

void Connection::send_some(Stream& stream) {
  const int64_t room = std::max<int64_t>(0, std::min(stream.send_window, send_window_));
  const size_t length = std::min<size_t>({stream.unsent.size(), static_cast<size_t>(room), FRAME_BYTES});
  if (length > 0) {
    put_frame_head(out_, length, FrameKind::DATA, 0, stream.id);
    out_.append(stream.unsent.data(), length);
    stream.unsent.take(length);
    stream.send_window -= static_cast<int64_t>(length);
    send_window_ -= static_cast<int64_t>(length);
    idle_frames_.add(static_cast<double>(length) * ANSWERS_PER_BYTE);
    early_pings_ = 0;
    pinged_ms_ = 0;
  }
  if (stream.full && stream.unsent.size() <= limits_.max_stream_unsent_bytes / 2) {
    stream.full = false;
    freed_.push_back(stream.id);
  }
  if (stream.unsent.size() > 0) return queue(stream);
  if (!stream.finished) return;
  put_headers(stream.id, stream.trailers, true);
  if (!stream.ended) put_reset(stream.id, ErrorCode::NONE);
  close(stream);
}

void Connection::close(Stream& stream) {
  streams_.erase(stream.id);
}

}  // namespace penstock::http2
