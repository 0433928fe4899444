// The limits of one connection. shared/http2/limits.py has them with what they are for; these are their
// names.
#pragma once

#include <cstdint>

namespace penstock::http2 {

struct Limits {
  uint32_t max_streams = 100;
  uint32_t max_message_bytes = 4 << 20;
  uint32_t stream_window_bytes = 65536;
  uint32_t connection_window_bytes = 1 << 20;
  uint32_t max_header_list_bytes = 16384;
  uint32_t max_header_block_bytes = 65536;
  uint32_t max_continuations = 8;
  uint32_t max_settings = 64;
  uint32_t max_unsent_bytes = 65536;
  uint32_t max_stream_unsent_bytes = 16384;
  uint32_t min_ping_ms = 1000;
  uint32_t max_early_pings = 2;
  uint32_t max_resets = 1000;
  uint32_t resets_per_s = 100;
  uint32_t max_idle_frames = 1000;
  uint32_t idle_frames_per_s = 200;
};

}  // namespace penstock::http2
