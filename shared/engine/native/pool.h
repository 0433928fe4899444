// The paged KV pool as engine/memory/kv_pool.py lays it out: [rows of a block, blocks, layer_block_bytes].
#pragma once

#include "simd.h"

namespace penstock {

constexpr int BLOCK_TOKENS = 16;

enum class KvKind : int { F32 = 0, BF16 = 1, INT8 = 2 };

inline int kv_item_bytes(KvKind kind) {
  return kind == KvKind::F32 ? 4 : kind == KvKind::BF16 ? 2 : 1;
}

struct Pool {
  uint8_t* base;
  long num_blocks;
  long layer_block_bytes;
  KvKind kind;
  int kv_heads;
  int head_dim;

  // Asks for a block of a layer, which comes while something else is done.
  void fetch(int row, int block) const {
    const auto* begin = reinterpret_cast<const char*>(block_base(row, block));
    for (long at = 0; at < layer_block_bytes; at += 64) _mm_prefetch(begin + at, _MM_HINT_T1);
  }

  // Where one head of one token lies; `part` 0 is K, 1 is V.
  uint8_t* head(int row, int block, int part, int offset, int kv_head) const {
    const long index = (static_cast<long>(part) * BLOCK_TOKENS + offset) * kv_heads + kv_head;
    return block_base(row, block) + index * head_dim * kv_item_bytes(kind);
  }
  // INT8 only: fp16, behind the codes of the whole block.
  uint16_t* scale(int row, int block, int part, int offset, int kv_head) const {
    const long codes = 2L * BLOCK_TOKENS * kv_heads * head_dim;
    const long index = (static_cast<long>(part) * BLOCK_TOKENS + offset) * kv_heads + kv_head;
    return reinterpret_cast<uint16_t*>(block_base(row, block) + codes) + index;
  }

  // The scale of a head, found from where head 0 of its token lies.
  uint16_t scale_of(const uint8_t* token, int kv_head) const {
    const long row = static_cast<long>(kv_heads) * head_dim;
    const long block = (token - base) / layer_block_bytes, index = (token - base) % layer_block_bytes / row;
    return reinterpret_cast<const uint16_t*>(base + block * layer_block_bytes +
                                             2L * BLOCK_TOKENS * row)[index * kv_heads + kv_head];
  }

  // fp32 [head_dim] into the pool.
  void write(int row, int block, int part, int offset, int kv_head, const float* values) const {
    uint8_t* target = head(row, block, part, offset, kv_head);
    if (kind == KvKind::F32) {
      std::memcpy(target, values, head_dim * sizeof(float));
      return;
    }
    if (kind == KvKind::BF16) {
      for (int d = 0; d < head_dim; d += LANES)
        _mm256_mask_storeu_epi16(target + 2 * d, first_lanes(head_dim - d),
                                 narrow(_mm512_maskz_loadu_ps(first_lanes(head_dim - d), values + d)));
      return;
    }
    const uint16_t half = _cvtss_sh(largest(values, head_dim) / 127.0f, 0);
    const float stored = _cvtsh_ss(half);
    const __m512 divisor = _mm512_set1_ps(stored > 0.0f ? stored : 1.0f);
    *scale(row, block, part, offset, kv_head) = half;
    for (int d = 0; d < head_dim; d += LANES) {
      const __m512 value = _mm512_maskz_loadu_ps(first_lanes(head_dim - d), values + d);
      // rounding of the scale can push a code to 128: it saturates
      _mm_mask_storeu_epi8(target + d, first_lanes(head_dim - d),
                           _mm512_cvtsepi32_epi8(_mm512_max_epi32(
                               _mm512_cvtps_epi32(_mm512_div_ps(value, divisor)), _mm512_set1_epi32(-127))));
    }
  }

 private:
  uint8_t* block_base(int row, int block) const {
    return base + (row * num_blocks + block) * layer_block_bytes;
  }
};

}  // namespace penstock
