// The server's end of a connection of HTTP/2 that carries calls of gRPC: bytes in, events out, and back.
//
// It has no socket, no clock and no thread. receiving.cpp reads frames, calls.cpp what they say of calls, and
// sending.cpp writes.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "allowance.h"
#include "event.h"
#include "frames.h"
#include "header_decoder.h"
#include "limits.h"
#include "stream.h"

namespace penstock::http2 {

class Connection {
 public:
  explicit Connection(const Limits& limits);

  // What the bytes say that have come now, at `now_ms` of a clock that never goes back.
  std::vector<Event> receive(std::string_view bytes, uint64_t now_ms);

  // Asks for the next message of a call. True where `event` is it, or the end; else it comes with `receive`.
  bool want(uint32_t stream, Event& event);

  // All of these say false where the call is gone. `block` is headers, as put_header writes them.
  bool respond(uint32_t stream, std::string_view block);
  // A whole message of gRPC. `room`: there is some for another one.
  bool write(uint32_t stream, std::string_view message, bool& room);
  // The call ends with these headers behind all that was written. `sent`: none of it waits for its client.
  bool finish(uint32_t stream, std::string_view block, bool& sent);
  bool reset(uint32_t stream, ErrorCode code);

  void ping(uint64_t payload);
  // `last`: calls behind those that have come are not taken any more.
  void go_away(bool last, ErrorCode code);

  // The bytes to be sent now.
  std::string take();
  // The calls that have room again since somebody asked, of those whose writers were told to wait.
  std::vector<uint32_t> take_freed();

  size_t unsent_bytes() const { return out_.size(); }
  size_t stream_count() const { return streams_.size(); }
  // The other end has said what it is.
  bool is_open() const { return state_ == State::OPEN; }
  uint64_t frame_count() const { return frames_; }
  // It has begun something of which the rest is to come: a frame, or a block of headers.
  bool is_half() const { return !in_.empty() || block_stream_ != 0; }

 private:
  enum class State { PREFACE, SETTINGS, OPEN, FAILED };

  // ---- receiving.cpp
  size_t read_frames(std::string_view bytes);
  bool read_preface(std::string_view& bytes);
  void handle(const Frame& frame);
  void on_settings(const Frame& frame);
  void on_ping(const Frame& frame);
  void on_window_update(const Frame& frame);
  void on_reset(const Frame& frame);
  void set_first_window(int64_t bytes);
  void fail(ErrorCode code, const char* why);
  // Counts a frame that brings nobody anything.
  void count_idle();
  // Counts a call that ended before its answer, by its client's doing.
  void count_reset();

  // ---- calls.cpp
  void on_headers(const Frame& frame);
  void on_continuation(const Frame& frame);
  void take_block(std::string_view part, bool last);
  void on_block(uint32_t id, bool end);
  void lose_headers(uint32_t id);
  void on_trailers(Stream& stream, HeaderResult result, const std::vector<Header>& headers, bool end);
  void begin(uint32_t id, HeaderResult result, std::vector<Header> headers, bool end);
  void on_data(const Frame& frame);
  bool unpad(const Frame& frame, std::string_view& payload);
  void end_input(Stream& stream);
  // The other end broke a rule of a call.
  void break_call(uint32_t id, ErrorCode code);
  bool deliver(Stream& stream, Event& event);
  void tell(Stream& stream);
  void refill(Stream& stream, int64_t target, int64_t least);
  void refill(Stream& stream);

  // ---- sending.cpp
  void put_headers(uint32_t stream, std::string_view block, bool end);
  void put_reset(uint32_t stream, ErrorCode code);
  void put_window_update(uint32_t stream, uint32_t bytes);
  void pump();
  void send_some(Stream& stream);
  void queue(Stream& stream);
  void close(Stream& stream);
  Stream* find(uint32_t id);

  const Limits limits_;
  State state_ = State::PREFACE;
  std::string in_;       // the beginning of a frame
  uint64_t frames_ = 0;  // that were read
  uint64_t now_ms_ = 0;  // when what is being read came
  std::vector<Event> events_;

  HeaderDecoder decoder_;
  std::string block_;  // headers of which the rest is to come
  uint32_t block_stream_ = 0;
  uint32_t continuations_ = 0;
  bool block_ends_ = false;
  bool headers_lost_ = false;

  std::unordered_map<uint32_t, Stream> streams_;
  uint32_t last_stream_ = 0;
  bool takes_calls_ = true;
  int64_t receive_window_ = FIRST_WINDOW_BYTES;

  std::string out_;
  std::deque<uint32_t> turns_;  // calls that have something to send, and room at their client
  std::vector<uint32_t> freed_;
  int64_t send_window_ = FIRST_WINDOW_BYTES;
  int64_t first_window_ = FIRST_WINDOW_BYTES;  // of each new call
  bool table_changed_ = false;

  Allowance idle_frames_, resets_;
  uint64_t pinged_ms_ = 0;
  uint32_t early_pings_ = 0;
};

}  // namespace penstock::http2
