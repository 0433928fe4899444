// How much of something that costs us and brings nobody anything the other end may send.
#pragma once

#include <algorithm>
#include <cstdint>

namespace penstock::http2 {

class Allowance {
 public:
  Allowance(uint32_t most, uint32_t per_s) : most_(most), per_ms_(per_s / 1000.0), left_(most) {}

  // Takes one; false where there is none left.
  bool take(uint64_t now_ms) {
    if (now_ms > seen_ms_) {
      add(per_ms_ * static_cast<double>(now_ms - seen_ms_));
      seen_ms_ = now_ms;
    }
    if (left_ < 1) return false;
    left_ -= 1;
    return true;
  }

  void add(double count) { left_ = std::min(most_, left_ + count); }

 private:
  double most_, per_ms_, left_;
  uint64_t seen_ms_ = 0;
};

}  // namespace penstock::http2
