#include <algorithm>
#include <utility>

#include "connection.h"
#include "header_rules.h"

namespace penstock::http2 {

namespace {

constexpr size_t MESSAGE_HEAD_BYTES = 5;  // of gRPC: whether it is compressed, and its length
constexpr uint32_t SMALL_BYTES = 256;     // pieces below that, in plenty, are meant to keep us busy

}  // namespace

void Connection::on_headers(const Frame& frame) {
  if (frame.stream % 2 == 0) return fail(ErrorCode::PROTOCOL, "HEADERS of a stream that is no client's");
  std::string_view payload;
  if (!unpad(frame, payload)) return fail(ErrorCode::PROTOCOL, "more padding than there is room for");
  if (frame.has(WITH_PRIORITY)) {
    if (payload.size() < 5) return fail(ErrorCode::FRAME_SIZE, "HEADERS without their priority");
    payload.remove_prefix(5);
  }
  block_ends_ = frame.has(END_STREAM);
  continuations_ = 0;
  block_stream_ = frame.stream;
  take_block(payload, frame.has(END_HEADERS));
}

void Connection::on_continuation(const Frame& frame) {
  if (block_stream_ == 0 || frame.stream != block_stream_) {
    return fail(ErrorCode::PROTOCOL, "CONTINUATION of nothing");
  }
  ++continuations_;
  take_block(frame.payload, frame.has(END_HEADERS));
}

void Connection::take_block(std::string_view part, bool last) {
  const uint32_t stream = block_stream_;
  if (last) block_stream_ = 0;
  if (!headers_lost_) {
    if (continuations_ > limits_.max_continuations ||
        block_.size() + part.size() > limits_.max_header_block_bytes) {
      return lose_headers(stream);
    }
    block_.append(part);
    if (last) on_block(stream, block_ends_);
    return;
  }
  count_idle();
  Stream* open = find(stream);
  if (last && block_ends_ && open != nullptr && !open->ended) end_input(*open);
}

// Headers were more than is read. What they said to the table is not known, so no others can be read either:
// the call is told, calls that are open go on, and others are for another connection.
void Connection::lose_headers(uint32_t id) {
  headers_lost_ = true;
  std::string().swap(block_);
  if (id > last_stream_) begin(id, HeaderResult::TOO_LARGE, {}, block_ends_);
  go_away(true, ErrorCode::ENHANCE_YOUR_CALM);
  events_.push_back({EventKind::RETIRE});
}

// The headers of a call or those behind its messages are whole. They are read in any case: they may change
// the table.
void Connection::on_block(uint32_t id, bool end) {
  std::vector<Header> headers;
  const HeaderResult result = decoder_.decode(block_, limits_.max_header_list_bytes, headers);
  block_.clear();
  if (block_.capacity() > FRAME_BYTES) block_.shrink_to_fit();
  if (result == HeaderResult::BROKEN) return fail(ErrorCode::COMPRESSION, "headers that cannot be read");
  if (result == HeaderResult::FAR_TOO_LARGE) return lose_headers(id);
  if (id > last_stream_) return begin(id, result, std::move(headers), end);
  if (Stream* stream = find(id)) return on_trailers(*stream, result, headers, end);
  count_idle();  // of a call that was ended from here
}

void Connection::on_trailers(Stream& stream, HeaderResult result, const std::vector<Header>& headers,
                             bool end) {
  if (stream.ended) return break_call(stream.id, ErrorCode::STREAM_CLOSED);
  if (!end || result != HeaderResult::READ || !are_trailers(headers)) {
    return break_call(stream.id, ErrorCode::PROTOCOL);
  }
  end_input(stream);
}

void Connection::begin(uint32_t id, HeaderResult result, std::vector<Header> headers, bool end) {
  last_stream_ = id;
  if (!takes_calls_) return count_idle();  // its client has been told, and asks elsewhere
  if (streams_.size() >= limits_.max_streams) {
    put_reset(id, ErrorCode::REFUSED_STREAM);
    return count_reset();
  }
  const bool read = result == HeaderResult::READ;
  const int64_t promised = content_length(headers);
  if (read && (!are_request(headers) || promised < -1 || (end && promised > 0))) {
    put_reset(id, ErrorCode::PROTOCOL);
    return count_reset();
  }
  Stream& stream = streams_[id];
  stream.id = id;
  stream.ended = end;
  stream.promised_bytes = promised;
  stream.receive_window = limits_.stream_window_bytes;
  stream.send_window = first_window_;
  events_.push_back({EventKind::CALL, id, read ? 0u : 1u, {}, std::move(headers)});
}

bool Connection::unpad(const Frame& frame, std::string_view& payload) {
  payload = frame.payload;
  if (!frame.has(PADDED)) return true;
  if (payload.empty()) return false;
  const size_t padding = static_cast<uint8_t>(payload[0]);
  payload.remove_prefix(1);
  if (padding > payload.size()) return false;
  payload.remove_suffix(padding);
  return true;
}

void Connection::on_data(const Frame& frame) {
  if (frame.stream == 0 || frame.stream % 2 == 0 || frame.stream > last_stream_) {
    return fail(ErrorCode::PROTOCOL, "DATA of a stream that has not begun");
  }
  std::string_view payload;
  if (!unpad(frame, payload)) return fail(ErrorCode::PROTOCOL, "more padding than there is room for");
  const auto size = static_cast<int64_t>(frame.payload.size());
  if (size > receive_window_) return fail(ErrorCode::FLOW_CONTROL, "more than the connection's window");
  receive_window_ -= size;
  if (receive_window_ <= limits_.connection_window_bytes / 2) {
    put_window_update(0, static_cast<uint32_t>(limits_.connection_window_bytes - receive_window_));
    receive_window_ = limits_.connection_window_bytes;
  }
  const bool end = frame.has(END_STREAM);
  if (payload.size() < SMALL_BYTES && !end) count_idle();
  Stream* stream = find(frame.stream);
  if (stream == nullptr) return count_idle();  // it was ended from here, or by its client
  if (stream->ended) return break_call(frame.stream, ErrorCode::STREAM_CLOSED);
  if (size > stream->receive_window) return break_call(frame.stream, ErrorCode::FLOW_CONTROL);
  stream->receive_window -= size;
  stream->received_bytes += static_cast<int64_t>(payload.size());
  if (!stream->ignored) stream->unread.append(payload.data(), payload.size());
  if (end) return end_input(*stream);
  tell(*stream);
  if (payload.size() < frame.payload.size()) refill(*stream);
}

void Connection::end_input(Stream& stream) {
  if (stream.promised_bytes >= 0 && stream.promised_bytes != stream.received_bytes) {
    return break_call(stream.id, ErrorCode::PROTOCOL);
  }
  stream.ended = true;
  tell(stream);
}

void Connection::break_call(uint32_t id, ErrorCode code) {
  put_reset(id, code);
  if (Stream* stream = find(id)) {
    events_.push_back({EventKind::RESET, id, static_cast<uint32_t>(code)});
    close(*stream);
  }
  count_reset();
}

bool Connection::want(uint32_t id, Event& event) {
  Stream* stream = find(id);
  if (stream == nullptr) {
    event = {EventKind::RESET, id, static_cast<uint32_t>(ErrorCode::CANCEL)};
    return true;
  }
  stream->wanted = true;
  return deliver(*stream, event);
}

void Connection::tell(Stream& stream) {
  Event event{EventKind::END};
  if (deliver(stream, event)) events_.push_back(std::move(event));
}

// Says true where there is something for who waits for a message.
bool Connection::deliver(Stream& stream, Event& event) {
  if (!stream.wanted) return false;
  event = {EventKind::END, stream.id};
  const size_t come = stream.unread.size();
  if (stream.ignored) {
    event.kind = EventKind::BROKEN;
  } else if (come < MESSAGE_HEAD_BYTES) {
    if (!stream.ended) {
      refill(stream);
      return false;
    }
    if (come != 0) event.kind = EventKind::BROKEN;
  } else {
    const auto compressed = static_cast<uint8_t>(stream.unread.data()[0]);
    const uint32_t length = read_u32(stream.unread.data() + 1);
    const size_t whole = MESSAGE_HEAD_BYTES + length;
    if (compressed > 1) {
      event.kind = EventKind::BROKEN;
    } else if (length > limits_.max_message_bytes) {
      event = {EventKind::TOO_LARGE, stream.id, length};
    } else if (come >= whole) {
      event = {EventKind::MESSAGE, stream.id, compressed,
               std::string(stream.unread.data() + MESSAGE_HEAD_BYTES, length)};
      stream.unread.take(whole);
      refill(stream);
    } else if (stream.ended) {
      event.kind = EventKind::BROKEN;
    } else {
      const size_t missing = std::min<size_t>(whole - come, limits_.connection_window_bytes);
      refill(stream, static_cast<int64_t>(come + missing), static_cast<int64_t>(missing / 2));
      return false;
    }
  }
  stream.wanted = false;
  if (event.kind == EventKind::BROKEN || event.kind == EventKind::TOO_LARGE) {
    stream.ignored = true;
    stream.unread.drop();
  }
  return true;
}

// Lets the client send on until `target` bytes wait here, once that is at least `least` more than it may by
// now.
void Connection::refill(Stream& stream, int64_t target, int64_t least) {
  const int64_t room = target - static_cast<int64_t>(stream.unread.size());
  const int64_t more = room - stream.receive_window;
  if (stream.ended || more <= 0 || more < least) return;
  put_window_update(stream.id, static_cast<uint32_t>(more));
  stream.receive_window = room;
}

void Connection::refill(Stream& stream) {
  refill(stream, limits_.stream_window_bytes, limits_.stream_window_bytes / 2);
}

}  // namespace penstock::http2
