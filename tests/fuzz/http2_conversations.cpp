// The codec of HTTP/2 under sanitizers: conversations as clients have them, with frames, bytes and cuts
// changed, while calls are answered in all ways. No byte is touched that is not the codec's, nothing is done
// that C++ does not define, and what waits to be sent stays bounded.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "connection.h"
#include "header_encoder.h"

namespace {

using namespace penstock::http2;

std::mt19937 generator(7);
int drawn(int below) {
  return static_cast<int>(generator() % static_cast<unsigned>(below));
}

std::string noise(int length) {
  std::string bytes(static_cast<size_t>(length), '\0');
  for (char& each : bytes) each = static_cast<char>(generator());
  return bytes;
}

std::string framed(FrameKind kind, int flags, uint32_t stream, const std::string& payload) {
  std::string out;
  put_frame_head(out, payload.size(), kind, static_cast<uint8_t>(flags), stream);
  return out + payload;
}

std::string number(uint32_t value) {
  std::string out;
  put_u32(out, value);
  return out;
}

std::string request() {
  std::string block;
  for (const auto& [name, value] : {std::pair{":method", "POST"}, {":scheme", "http"}, {":path", "/a/B"}})
    put_header(block, name, value);
  put_header(block, "content-type", "application/grpc");
  if (drawn(4) == 0) put_header(block, "x", std::string(static_cast<size_t>(drawn(9000)), 'y'));
  if (drawn(4) == 0) block += noise(drawn(12));
  return block;
}

std::string frame(uint32_t stream) {
  constexpr uint32_t WINDOWS[] = {0, 1, 1000, 65535, 0x7fffffff};
  switch (drawn(10)) {
    case 0:
    case 1:
      return framed(FrameKind::HEADERS, drawn(3) == 0 ? drawn(64) : END_HEADERS, stream, request());
    case 2:
      return framed(FrameKind::CONTINUATION, drawn(2) * END_HEADERS, stream, request());
    case 3: {
      const std::string message = noise(drawn(3) == 0 ? drawn(16000) : drawn(50));
      return framed(FrameKind::DATA, drawn(2), stream,
                    std::string(1, '\0') + number(static_cast<uint32_t>(message.size())) + message);
    }
    case 4:
      return framed(FrameKind::DATA, drawn(16), stream, noise(drawn(300)));
    case 5:
      return framed(FrameKind::WINDOW_UPDATE, 0, drawn(2) * stream, number(WINDOWS[drawn(5)]));
    case 6:
      return framed(FrameKind::RST_STREAM, 0, stream, number(8));
    case 7:
      return framed(
          FrameKind::SETTINGS, 0, 0,
          std::string(1, '\0') + std::string(1, static_cast<char>(drawn(7))) + number(WINDOWS[drawn(5)]));
    case 8:
      return framed(FrameKind::PING, drawn(2), 0, noise(8));
    default:
      return framed(static_cast<FrameKind>(drawn(12)), drawn(256), stream, noise(drawn(20)));
  }
}

std::string conversation() {
  std::string bytes(PREFACE);
  bytes += framed(FrameKind::SETTINGS, 0, 0, "");
  uint32_t stream = 1;
  for (int frames = drawn(60); frames > 0; --frames) {
    if (drawn(3) == 0) stream += 2;
    bytes += frame(drawn(5) == 0 ? static_cast<uint32_t>(drawn(9)) : stream);
  }
  for (int changes = drawn(3) == 0 ? drawn(8) : 0; changes > 0; --changes)
    bytes[static_cast<size_t>(drawn(static_cast<int>(bytes.size())))] = static_cast<char>(generator());
  return bytes;
}

void act(Connection& connection, uint32_t stream) {
  Event event{EventKind::END};
  bool room;
  std::string block;
  put_header(block, ":status", "200");
  put_header(block, "a", std::string(static_cast<size_t>(drawn(10) == 0 ? 40000 : 5), 'b'));
  switch (drawn(7)) {
    case 0:
    case 1:
      connection.want(stream, event);
      break;
    case 2:
      connection.respond(stream, block);
      break;
    case 3:
      connection.write(stream, noise(drawn(5) == 0 ? 30000 : 40), room);
      break;
    case 4:
      connection.finish(stream, block, room);
      break;
    case 5:
      connection.reset(stream, ErrorCode::CANCEL);
      break;
    default:
      connection.ping(1);
      if (drawn(20) == 0) connection.go_away(drawn(2) == 0, ErrorCode::NONE);
      connection.take_freed();
  }
}

void play(const std::string& bytes) {
  Limits limits;
  limits.max_streams = 8;
  limits.max_message_bytes = 1 << 16;
  Connection connection(limits);
  uint64_t now_ms = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t size =
        std::min(bytes.size() - at, static_cast<size_t>(1 + drawn(drawn(2) == 0 ? 20 : 5000)));
    // A copy of its own, so that a look beyond it is seen.
    const std::vector<char> piece(bytes.begin() + static_cast<long>(at),
                                  bytes.begin() + static_cast<long>(at + size));
    connection.receive({piece.data(), piece.size()}, now_ms += static_cast<uint64_t>(drawn(50)));
    at += size;
    for (int acts = drawn(4); acts > 0; --acts) act(connection, static_cast<uint32_t>(1 + 2 * drawn(20)));
    if (drawn(2) == 0) connection.take();
    if (connection.unsent_bytes() > (1 << 21) || connection.stream_count() > limits.max_streams) {
      std::printf("%zu bytes wait, %zu calls are open\n", connection.unsent_bytes(),
                  connection.stream_count());
      std::abort();
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int conversations = count > 1 ? std::atoi(arguments[1]) : 20000;
  for (int i = 0; i < conversations; ++i) play(conversation());
  std::printf("%d conversations\n", conversations);
}
