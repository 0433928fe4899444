#include "huffman.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace penstock::http2 {
namespace {

constexpr int SYMBOLS = 257, END_OF_STRING = 256;

// The bits of each symbol's code (RFC 7541, appendix B). The code is canonical: of symbols by length and then
// by number, each has the code behind that of the one before.
constexpr std::array<uint8_t, SYMBOLS> CODE_BITS = {
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6,  10, 10, 12, 13, 6,  8,  11, 10, 10, 8,  11, 8,  6,  6,  6,  5,  5,  5,  6,
    6,  6,  6,  6,  6,  6,  7,  8,  15, 6,  12, 10, 13, 6,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,
    7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  8,  7,  8,  13, 19, 13, 14, 6,  15, 5,  6,  5,  6,  5,  6,  6,
    6,  5,  7,  7,  6,  6,  6,  5,  6,  7,  6,  5,  5,  6,  7,  7,  7,  7,  7,  15, 11, 14, 13, 28, 20, 22,
    20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23,
    22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22,
    23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22,
    25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
};

// A place in the tree of codes: inner nodes have two, leaves a symbol.
struct Node {
  int16_t next[2] = {-1, -1};
  int16_t symbol = -1;
};

// What four more bits lead to from a place: the next one, and the symbol that was passed, if any. A code has
// at least five bits, so there is at most one.
struct Step {
  int16_t place = -1;
  int16_t symbol = -1;
};

struct Steps {
  std::vector<std::array<Step, 16>> of;
  std::vector<bool> may_end;

  Steps() {
    std::vector<Node> nodes(1);
    plant(nodes);
    of.resize(nodes.size());
    may_end.resize(nodes.size());
    for (size_t place = 0; place < nodes.size(); ++place)
      for (int bits = 0; bits < 16; ++bits) of[place][bits] = walk(nodes, static_cast<int16_t>(place), bits);
    // A string ends between codes, or with at most seven bits of padding, which are ones.
    int16_t place = 0;
    for (int ones = 0; ones < 8; ++ones, place = nodes[place].next[1]) may_end[place] = true;
  }

  static void plant(std::vector<Node>& nodes) {
    std::array<int, SYMBOLS> order;
    for (int i = 0; i < SYMBOLS; ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [](int a, int b) { return CODE_BITS[a] < CODE_BITS[b]; });
    uint32_t code = 0;
    int bits = CODE_BITS[order[0]];
    for (int symbol : order) {
      code <<= CODE_BITS[symbol] - bits;
      bits = CODE_BITS[symbol];
      int16_t place = 0;
      for (int bit = bits - 1; bit >= 0; --bit) {
        const int way = code >> bit & 1;
        if (nodes[place].next[way] < 0) {
          nodes[place].next[way] = static_cast<int16_t>(nodes.size());
          nodes.emplace_back();
        }
        place = nodes[place].next[way];
      }
      nodes[place].symbol = static_cast<int16_t>(symbol);
      ++code;
    }
  }

  static Step walk(const std::vector<Node>& nodes, int16_t place, int bits) {
    Step step;
    for (int bit = 3; bit >= 0; --bit) {
      place = nodes[place].next[bits >> bit & 1];
      if (place < 0 || nodes[place].symbol == END_OF_STRING) return {};
      if (nodes[place].symbol >= 0) {
        step.symbol = nodes[place].symbol;
        place = 0;
      }
    }
    step.place = place;
    return step;
  }
};

const Steps STEPS;

}  // namespace

bool append_huffman(std::string_view coded, std::string& text) {
  int16_t place = 0;
  for (const char each : coded) {
    const auto byte = static_cast<uint8_t>(each);
    for (const int bits : {byte >> 4, byte & 15}) {
      const Step step = STEPS.of[place][bits];
      if (step.place < 0) return false;
      if (step.symbol >= 0) text.push_back(static_cast<char>(step.symbol));
      place = step.place;
    }
  }
  return STEPS.may_end[place];
}

}  // namespace penstock::http2
