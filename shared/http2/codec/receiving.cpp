#include <algorithm>
#include <utility>

#include "connection.h"

namespace penstock::http2 {

Connection::Connection(const Limits& limits)
    : limits_(limits),
      idle_frames_(limits.max_idle_frames, limits.idle_frames_per_s),
      resets_(limits.max_resets, limits.resets_per_s) {
  put_frame_head(out_, 18, FrameKind::SETTINGS, 0, 0);
  for (const auto& [setting, value] : {std::pair{Setting::MAX_STREAMS, limits.max_streams},
                                       std::pair{Setting::WINDOW_BYTES, limits.stream_window_bytes},
                                       std::pair{Setting::HEADER_LIST_BYTES, limits.max_header_list_bytes}}) {
    put_u16(out_, static_cast<uint16_t>(setting));
    put_u32(out_, value);
  }
  if (limits.connection_window_bytes > receive_window_) {
    put_window_update(0, static_cast<uint32_t>(limits.connection_window_bytes - receive_window_));
    receive_window_ = limits.connection_window_bytes;
  }
}

std::vector<Event> Connection::receive(std::string_view bytes, uint64_t now_ms) {
  now_ms_ = now_ms;
  if (state_ == State::FAILED) return {};
  if (in_.empty()) {
    const size_t read = read_frames(bytes);
    if (state_ != State::FAILED) in_.assign(bytes.substr(read));
  } else {
    in_.append(bytes);
    const size_t read = read_frames(in_);
    in_.erase(0, read);
  }
  if (state_ == State::FAILED) in_.clear();
  if (in_.empty()) in_.shrink_to_fit();
  return std::exchange(events_, {});
}

// Returns how many of the bytes are done with.
size_t Connection::read_frames(std::string_view bytes) {
  const size_t all = bytes.size();
  if (state_ == State::PREFACE && !read_preface(bytes)) return 0;
  while (state_ != State::FAILED && bytes.size() >= FRAME_HEAD_BYTES) {
    const uint32_t length = read_u32(bytes.data()) >> 8;
    if (length > FRAME_BYTES) {
      fail(ErrorCode::FRAME_SIZE, "a frame is longer than 16384 bytes");
      break;
    }
    if (bytes.size() < FRAME_HEAD_BYTES + length) break;
    const Frame frame{static_cast<FrameKind>(bytes[3]), static_cast<uint8_t>(bytes[4]),
                      read_u32(bytes.data() + 5) & MAX_STREAM_ID, bytes.substr(FRAME_HEAD_BYTES, length)};
    bytes.remove_prefix(FRAME_HEAD_BYTES + length);
    ++frames_;
    handle(frame);
  }
  return all - bytes.size();
}

bool Connection::read_preface(std::string_view& bytes) {
  const size_t common = std::min(bytes.size(), PREFACE.size());
  if (bytes.substr(0, common) != PREFACE.substr(0, common)) {
    fail(ErrorCode::PROTOCOL, "the connection does not begin as HTTP/2 does");
    return false;
  }
  if (common < PREFACE.size()) return false;
  bytes.remove_prefix(common);
  state_ = State::SETTINGS;
  return true;
}

void Connection::handle(const Frame& frame) {
  if (state_ == State::SETTINGS && (frame.kind != FrameKind::SETTINGS || frame.has(ACK))) {
    return fail(ErrorCode::PROTOCOL, "the first frame is no SETTINGS");
  }
  if (block_stream_ != 0 && frame.kind != FrameKind::CONTINUATION) {
    return fail(ErrorCode::PROTOCOL, "headers are interrupted by another frame");
  }
  switch (frame.kind) {
    case FrameKind::DATA:
      return on_data(frame);
    case FrameKind::HEADERS:
      return on_headers(frame);
    case FrameKind::CONTINUATION:
      return on_continuation(frame);
    case FrameKind::RST_STREAM:
      return on_reset(frame);
    case FrameKind::SETTINGS:
      return on_settings(frame);
    case FrameKind::PING:
      return on_ping(frame);
    case FrameKind::WINDOW_UPDATE:
      return on_window_update(frame);
    case FrameKind::PRIORITY:
      if (frame.stream == 0) return fail(ErrorCode::PROTOCOL, "PRIORITY of no stream");
      if (frame.payload.size() != 5) return fail(ErrorCode::FRAME_SIZE, "PRIORITY has 5 bytes");
      return count_idle();
    case FrameKind::PUSH_PROMISE:
      return fail(ErrorCode::PROTOCOL, "a client promises nothing");
    case FrameKind::GOAWAY:
      if (frame.stream != 0) return fail(ErrorCode::PROTOCOL, "GOAWAY of a stream");
      if (frame.payload.size() < 8) return fail(ErrorCode::FRAME_SIZE, "GOAWAY has at least 8 bytes");
      count_idle();
      if (state_ == State::FAILED) return;
      events_.push_back({EventKind::LEAVING, 0, read_u32(frame.payload.data() + 4)});
      return;
  }
  count_idle();  // of a kind that nobody knows
}

void Connection::on_settings(const Frame& frame) {
  if (frame.stream != 0) return fail(ErrorCode::PROTOCOL, "SETTINGS of a stream");
  if (frame.payload.size() % 6 != 0 || (frame.has(ACK) && !frame.payload.empty())) {
    return fail(ErrorCode::FRAME_SIZE, "SETTINGS are 6 bytes each");
  }
  count_idle();
  if (frame.has(ACK)) return;
  if (frame.payload.size() / 6 > limits_.max_settings) {
    return fail(ErrorCode::ENHANCE_YOUR_CALM, "too many settings in a frame");
  }
  int64_t window = first_window_;
  for (size_t at = 0; at < frame.payload.size(); at += 6) {
    const auto setting = static_cast<Setting>(read_u16(frame.payload.data() + at));
    const uint32_t value = read_u32(frame.payload.data() + at + 2);
    if (setting == Setting::HEADER_TABLE_BYTES) {
      table_changed_ = table_changed_ || value < HeaderTable::MAX_BYTES;
    } else if (setting == Setting::ENABLE_PUSH && value > 1) {
      return fail(ErrorCode::PROTOCOL, "ENABLE_PUSH is 0 or 1");
    } else if (setting == Setting::WINDOW_BYTES) {
      if (value > MAX_WINDOW_BYTES)
        return fail(ErrorCode::FLOW_CONTROL, "a window is at most 2^31 - 1 bytes");
      window = value;
    } else if (setting == Setting::FRAME_BYTES && (value < FRAME_BYTES || value > 0xffffff)) {
      return fail(ErrorCode::PROTOCOL, "MAX_FRAME_SIZE is 16384 to 16777215");
    }
  }
  if (window != first_window_) set_first_window(window);
  if (state_ == State::FAILED) return;
  state_ = State::OPEN;
  put_frame_head(out_, 0, FrameKind::SETTINGS, ACK, 0);
}

// Windows of calls that are open change with it, and may fall below zero.
void Connection::set_first_window(int64_t bytes) {
  for (auto& [id, stream] : streams_) {
    stream.send_window += bytes - first_window_;
    if (stream.send_window > MAX_WINDOW_BYTES) {
      return fail(ErrorCode::FLOW_CONTROL, "a window is at most 2^31 - 1 bytes");
    }
    queue(stream);
  }
  first_window_ = bytes;
}

void Connection::on_ping(const Frame& frame) {
  if (frame.stream != 0) return fail(ErrorCode::PROTOCOL, "PING of a stream");
  if (frame.payload.size() != 8) return fail(ErrorCode::FRAME_SIZE, "PING has 8 bytes");
  if (frame.has(ACK)) {
    count_idle();
    if (state_ != State::FAILED) events_.push_back({EventKind::PONG});
    return;
  }
  const bool early = pinged_ms_ != 0 && now_ms_ - pinged_ms_ < limits_.min_ping_ms;
  pinged_ms_ = now_ms_;
  if (early && ++early_pings_ > limits_.max_early_pings) {
    return fail(ErrorCode::ENHANCE_YOUR_CALM, "too_many_pings");  // clients know this by the name
  }
  count_idle();
  if (state_ == State::FAILED) return;
  put_frame_head(out_, 8, FrameKind::PING, ACK, 0);
  out_.append(frame.payload);
}

void Connection::on_window_update(const Frame& frame) {
  if (frame.payload.size() != 4) return fail(ErrorCode::FRAME_SIZE, "WINDOW_UPDATE has 4 bytes");
  const int64_t more = read_u32(frame.payload.data()) & MAX_STREAM_ID;
  count_idle();
  if (frame.stream == 0) {
    if (more == 0) return fail(ErrorCode::PROTOCOL, "WINDOW_UPDATE by nothing");
    send_window_ += more;
    if (send_window_ > MAX_WINDOW_BYTES) {
      fail(ErrorCode::FLOW_CONTROL, "a window is at most 2^31 - 1 bytes");
    }
    return;
  }
  if (frame.stream > last_stream_ || frame.stream % 2 == 0) {
    return fail(ErrorCode::PROTOCOL, "WINDOW_UPDATE of a stream that has not begun");
  }
  Stream* stream = find(frame.stream);
  if (stream == nullptr) return;
  if (more == 0) return break_call(frame.stream, ErrorCode::PROTOCOL);
  stream->send_window += more;
  if (stream->send_window > MAX_WINDOW_BYTES) return break_call(frame.stream, ErrorCode::FLOW_CONTROL);
  queue(*stream);
}

void Connection::on_reset(const Frame& frame) {
  if (frame.payload.size() != 4) return fail(ErrorCode::FRAME_SIZE, "RST_STREAM has 4 bytes");
  if (frame.stream == 0 || frame.stream % 2 == 0 || frame.stream > last_stream_) {
    return fail(ErrorCode::PROTOCOL, "RST_STREAM of a stream that has not begun");
  }
  Stream* stream = find(frame.stream);
  if (stream == nullptr) return count_idle();
  events_.push_back({EventKind::RESET, frame.stream, read_u32(frame.payload.data())});
  close(*stream);
  count_reset();
}

void Connection::fail(ErrorCode code, const char* why) {
  if (state_ == State::FAILED) return;
  state_ = State::FAILED;
  const std::string_view text = why;
  put_frame_head(out_, 8 + text.size(), FrameKind::GOAWAY, 0, 0);
  put_u32(out_, last_stream_);
  put_u32(out_, static_cast<uint32_t>(code));
  out_.append(text);
  events_.push_back({EventKind::FAILED, 0, static_cast<uint32_t>(code), std::string(text)});
}

void Connection::count_idle() {
  if (!idle_frames_.take(now_ms_)) {
    fail(ErrorCode::ENHANCE_YOUR_CALM, "too many frames that bring nothing");
  }
}

void Connection::count_reset() {
  if (!resets_.take(now_ms_))
    fail(ErrorCode::ENHANCE_YOUR_CALM, "too many calls that end before their answer");
}

}  // namespace penstock::http2
