// What one call of attention computes: some rows of a sequence, and the keys that they see.
#pragma once

#include <algorithm>

#include "attention_sums.h"
#include "pool.h"

namespace penstock {

constexpr int PARTITION_KEYS = 32 * TILE_KEYS;

struct QuerySpan {
  int start;  // position of its first row
  int rows;
  int first_row;                       // in the queries
  int first_output;                    // in what comes out
  const int* blocks;                   // of the sequence
  int first_partition, end_partition;  // that any of its rows sees keys of
};

// Some rows of one span against some KV heads and all keys, or the keys of some partitions.
struct AttentionItem {
  int span, first_head, num_heads;
  int first, count;  // rows of the span
  int first_partition, end_partition;
  // Where those of its first partition begin among the partitions' sums; below 0: all keys are its.
  long sums;
};

// The keys that any row of an item sees, from the begin of a tile on.
struct ItemKeys {
  int first, end;

  static ItemKeys of(const AttentionItem& item, const QuerySpan& span, int window) {
    const int position = span.start + item.first;
    const int seen = window > 0 ? std::max(0, position - window + 1) : 0;
    return {
        std::max(seen / TILE_KEYS * TILE_KEYS, item.first_partition * PARTITION_KEYS),
        std::min(position + item.count, item.end_partition * PARTITION_KEYS)};  // up to its last one's own
  }
};

// The blocks of a tile of keys.
struct KeyBlocks {
  const int* first = nullptr;
  int num = 0;

  static KeyBlocks of(const QuerySpan& span, int key, int end) {
    const int count = std::min(TILE_KEYS, end - key);
    return {span.blocks + key / BLOCK_TOKENS, count <= 0 ? 0 : (count + BLOCK_TOKENS - 1) / BLOCK_TOKENS};
  }
};

}  // namespace penstock
