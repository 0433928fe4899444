// One call: what has come of it and was not read yet, and what is to be sent and has no room yet.
#pragma once

#include <cstdint>
#include <string>

namespace penstock::http2 {

// Bytes that are taken from their front.
class ByteQueue {
 public:
  size_t size() const { return bytes_.size() - taken_; }
  const char* data() const { return bytes_.data() + taken_; }
  void append(const char* data, size_t length) { bytes_.append(data, length); }
  std::string& tail() { return bytes_; }

  void take(size_t count) {
    taken_ += count;
    if (taken_ == bytes_.size()) {
      bytes_.clear();
      taken_ = 0;
    } else if (taken_ > bytes_.size() / 2) {
      bytes_.erase(0, taken_);
      taken_ = 0;
    }
  }

  void drop() {
    std::string().swap(bytes_);
    taken_ = 0;
  }

 private:
  std::string bytes_;
  size_t taken_ = 0;
};

struct Stream {
  uint32_t id = 0;

  ByteQueue unread;
  int64_t receive_window = 0;   // what the client may send still
  int64_t promised_bytes = -1;  // by its content-length
  int64_t received_bytes = 0;
  bool ended = false;    // nothing more comes
  bool wanted = false;   // somebody waits for a message
  bool ignored = false;  // what comes is dropped: it can be no message any more

  ByteQueue unsent;
  int64_t send_window = 0;
  std::string trailers;
  bool finished = false;  // `trailers` are to follow what is unsent
  bool has_turn = false;  // it stands in the queue of those that have something to send
  bool full = false;      // its writer was told to wait
};

}  // namespace penstock::http2
