// Frames as they stand on the wire (RFC 9113, sections 4 to 7): their heads, kinds, flags and error codes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::http2 {

constexpr std::string_view PREFACE = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t FRAME_HEAD_BYTES = 9;
// The largest payload that anybody has to take; we announce no other, and send none that is larger.
constexpr uint32_t FRAME_BYTES = 16384;
constexpr int64_t MAX_WINDOW_BYTES = 0x7fffffff;
constexpr uint32_t MAX_STREAM_ID = 0x7fffffff;
constexpr int64_t FIRST_WINDOW_BYTES = 65535;

enum class FrameKind : uint8_t {
  DATA = 0,
  HEADERS = 1,
  PRIORITY = 2,
  RST_STREAM = 3,
  SETTINGS = 4,
  PUSH_PROMISE = 5,
  PING = 6,
  GOAWAY = 7,
  WINDOW_UPDATE = 8,
  CONTINUATION = 9,
};

constexpr uint8_t ACK = 0x1, END_STREAM = 0x1, END_HEADERS = 0x4, PADDED = 0x8, WITH_PRIORITY = 0x20;

enum class ErrorCode : uint32_t {
  NONE = 0,
  PROTOCOL = 1,
  INTERNAL = 2,
  FLOW_CONTROL = 3,
  SETTINGS_TIMEOUT = 4,
  STREAM_CLOSED = 5,
  FRAME_SIZE = 6,
  REFUSED_STREAM = 7,
  CANCEL = 8,
  COMPRESSION = 9,
  ENHANCE_YOUR_CALM = 11,
};

enum class Setting : uint16_t {
  HEADER_TABLE_BYTES = 1,
  ENABLE_PUSH = 2,
  MAX_STREAMS = 3,
  WINDOW_BYTES = 4,
  FRAME_BYTES = 5,
  HEADER_LIST_BYTES = 6,
};

inline uint32_t read_u32(const char* at) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(at);
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

inline uint16_t read_u16(const char* at) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(at);
  return static_cast<uint16_t>(bytes[0] << 8 | bytes[1]);
}

inline void put_u32(std::string& out, uint32_t value) {
  const char bytes[] = {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
                        static_cast<char>(value >> 8), static_cast<char>(value)};
  out.append(bytes, sizeof bytes);
}

inline void put_u16(std::string& out, uint16_t value) {
  out.push_back(static_cast<char>(value >> 8));
  out.push_back(static_cast<char>(value));
}

inline void put_frame_head(std::string& out, size_t length, FrameKind kind, uint8_t flags, uint32_t stream) {
  const char bytes[] = {
      static_cast<char>(length >> 16), static_cast<char>(length >> 8), static_cast<char>(length),
      static_cast<char>(kind),         static_cast<char>(flags),       static_cast<char>(stream >> 24),
      static_cast<char>(stream >> 16), static_cast<char>(stream >> 8), static_cast<char>(stream)};
  out.append(bytes, sizeof bytes);
}

struct Frame {
  FrameKind kind;
  uint8_t flags;
  uint32_t stream;
  std::string_view payload;

  bool has(uint8_t flag) const { return (flags & flag) != 0; }
};

}  // namespace penstock::http2
