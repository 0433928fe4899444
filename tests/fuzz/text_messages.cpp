// The reader of messages of text under sanitizers: those that a detokenizer sends, with bytes changed, cut
// and put in. No byte is touched that is not the message's, and what is read can be written as clients get
// it.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>

#include "frames.h"
#include "text_columns.h"

namespace {

using namespace penstock::rows;

constexpr uint64_t VERSION = 3;

std::mt19937 generator(7);
int drawn(int below) {
  return static_cast<int>(generator() % static_cast<unsigned>(below));
}

std::string list(size_t count) {
  return {static_cast<char>(0xdc), static_cast<char>(count >> 8), static_cast<char>(count)};
}

std::string text(const std::string& value) {
  return std::string{static_cast<char>(0xd9), static_cast<char>(value.size())} + value;
}

std::string number(uint64_t value, int width) {
  std::string out(1, static_cast<char>(width == 1 ? 0xcc : width == 2 ? 0xcd : width == 4 ? 0xce : 0xcf));
  for (int i = width - 1; i >= 0; --i) out.push_back(static_cast<char>(value >> 8 * i));
  return out;
}

std::string any_number() {
  const int width = 1 << drawn(4);
  return number(generator() >> drawn(32), width);
}

std::string any_value() {
  switch (drawn(5)) {
    case 0:
      return text("phase");
    case 1:
      return any_number();
    case 2:
      return std::string("\x92\xc0", 2) + any_number();
    case 3:
      return std::string("\xcb", 1) + std::string(8, 'd');
    default:
      return std::string("\x81\xa1k\xc4\x02zz", 7);
  }
}

std::string column(int rows, std::string (*each)()) {
  std::string out = list(static_cast<size_t>(rows));
  for (int i = 0; i < rows; ++i) out += each();
  return out;
}

std::string message() {
  const int rows = drawn(6);
  std::string out = list(9) + text("Text") + number(VERSION, 1) + text("") + number(0, 1) + number(0, 8) +
                    text("") + text("") + text("") + list(8);
  out += column(rows, [] { return text("gateway-0." + std::to_string(drawn(9))); });
  out += column(rows, [] { return number(1, 1); });
  out += column(rows, any_number);
  out += column(rows, [] { return column(drawn(4), [] { return number(generator(), 4); }); });
  out += column(rows, [] {
    constexpr const char* TEXTS[] = {"",          " word", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                                     "\"\\\n\x7f"};
    return text(TEXTS[drawn(6)]);
  });
  out += column(rows, [] { return text(drawn(4) == 0 ? "stop" : ""); });
  for (int i = 0; i < 2; ++i) {
    out += column(rows, [] { return drawn(4) == 0 ? column(drawn(3), any_value) : list(0); });
  }
  return out;
}

std::string changed(std::string bytes) {
  for (int changes = drawn(4); changes > 0 && !bytes.empty(); --changes) {
    const auto at = static_cast<size_t>(drawn(static_cast<int>(bytes.size())));
    switch (drawn(5)) {
      case 0:
        bytes.resize(at);
        break;
      case 1:
        bytes.insert(at, 1, static_cast<char>(generator()));
        break;
      case 2:
        bytes.erase(at, 1);
        break;
      default:
        bytes[at] = static_cast<char>(drawn(2) == 0 ? 0xc0 + drawn(64) : drawn(256));
    }
  }
  return bytes;
}

}  // namespace

int main(int count, char** arguments) {
  const long tries = count > 1 ? std::atol(arguments[1]) : 100000;
  long read = 0;
  TextColumns columns;
  for (long i = 0; i < tries; ++i) {
    const std::string bytes = changed(message());
    // A copy without room behind it, so that a byte too much is seen.
    const std::unique_ptr<char[]> exact(new char[bytes.size()]);
    std::copy(bytes.begin(), bytes.end(), exact.get());
    if (!read_text_columns({exact.get(), bytes.size()}, VERSION, columns)) continue;
    ++read;
    for (const TextRow& row : columns.rows) {
      std::string out;
      put_event(out, row.position, columns.ids.data() + row.first_id, row.id_count, row.text);
      put_json_text(out, row.text);
      if (row.first_id + row.id_count > columns.ids.size() || out.size() < row.text.size()) return 1;
    }
  }
  std::printf("%ld of %ld messages were read\n", read, tries);
  return read > tries / 10 ? 0 : 1;
}
