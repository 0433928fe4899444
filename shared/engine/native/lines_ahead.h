// The memory that the next tile of keys and values is in, asked for line by line while the present one is
// computed with: evenly, because a CPU waits for a dozen lines at a time, and in the order of addresses.
#pragma once

#include <algorithm>

#include "pool.h"

namespace penstock {

class LinesAhead {
 public:
  static constexpr int LINE_BYTES = 64;
  static constexpr int PHASES = 4;  // of a head's turn, each of which asks for as much

  // Some heads of `num` blocks of a layer, of which `turns` turns ask for an equal part each.
  void begin(const Pool& pool, int layer, const int* blocks, int num, int first_head, int heads, int turns) {
    const long head = static_cast<long>(pool.head_dim) * kv_item_bytes(pool.kind);
    blocks_ = blocks, layer_ = layer, num_ = num;
    place_ = first_head * head;
    whole_ = heads == pool.kv_heads;
    stride_ = whole_ ? pool.layer_block_bytes : pool.kv_heads * head;
    run_bytes_ = whole_ ? pool.layer_block_bytes : heads * head;
    runs_ = whole_ ? 1 : 2 * BLOCK_TOKENS;
    run_ = -1, block_ = 0;
    const long lines = num * runs_ * ((run_bytes_ + LINE_BYTES - 1) / LINE_BYTES);
    turn_lines_ = static_cast<int>((lines + turns - 1) / turns);
    if (num > 0) next_run(pool);
  }

  // How many lines each of `times` times of a phase asks for.
  int share(int times) const { return (turn_lines_ + PHASES * times - 1) / (PHASES * std::max(1, times)); }

  void ask(int lines) {
    for (; lines > 0 && block_ < num_; --lines) {
      _mm_prefetch(line_, _MM_HINT_T1);
      line_ += LINE_BYTES;
      if (line_ >= end_) next_run(*pool_);
    }
  }

 private:
  void next_run(const Pool& pool) {
    pool_ = &pool;
    if (++run_ == runs_) {
      run_ = 0;
      if (++block_ == num_) return;
    }
    line_ =
        reinterpret_cast<const char*>(pool.head(layer_, blocks_[block_], 0, 0, 0)) + place_ + run_ * stride_;
    end_ = line_ + run_bytes_;
  }

  const Pool* pool_ = nullptr;
  const int* blocks_ = nullptr;  // of the sequence
  int layer_ = 0, num_ = 0, block_ = 0, runs_ = 0, run_ = 0, turn_lines_ = 0;
  bool whole_ = false;
  long place_ = 0, stride_ = 0, run_bytes_ = 0;
  const char *line_ = nullptr, *end_ = nullptr;
};

}  // namespace penstock
