// Attention over paged KV for any number of query rows: tiles of keys in absolute order, online softmax.
//
// A tile of keys starts at a multiple of TILE_KEYS of the sequence and a row meets its tiles in order, so a row's
// result depends on its own sequence alone: not on chunking, batch or which thread runs it. Tiles that a row sees
// nothing of change nothing of it, bit for bit.
#pragma once

#include <algorithm>

#include "memory.h"
#include "pool.h"
#include "tile.h"

namespace penstock {

constexpr int TILE_KEYS = 64;
constexpr int MAX_QUERY_ROWS = 192;  // of one item: amortises the packing of a tile, stays in the L2
constexpr float NOTHING_SEEN = -1e30f;

struct AttentionShape {
  int heads, kv_heads, head_dim;
  float scale;
  float soft_cap;  // 0: none
};

struct QuerySpan {
  int start;          // position of its first row
  int rows;
  int first_row;      // in the queries
  int first_output;   // in what comes out
  const int* blocks;  // of the sequence
};

// Some rows of one span against one KV head.
struct AttentionItem {
  int span, kv_head, first, count;  // first: row of the span
};

template <class E>
class Attention {
 public:
  explicit Attention(const AttentionShape& shape) : shape_(shape) {
    depth_ = round_up(shape.head_dim, STEP<E>);
    width_ = round_up(shape.head_dim, PANEL);
    queries_ = Buffer<E>(static_cast<size_t>(MAX_QUERY_ROWS) * depth_ + LANES);
    keys_ = Buffer<E>(static_cast<size_t>(TILE_KEYS) * round_up(depth_, PANEL) + PREFETCH_BYTES);
    values_ = Buffer<E>(static_cast<size_t>(TILE_KEYS) * width_ + PREFETCH_BYTES);
    raw_ = Buffer<E>(static_cast<size_t>(TILE_KEYS) * round_up(shape.head_dim, PANEL) * 2);
    output_ = Buffer<float>(static_cast<size_t>(MAX_QUERY_ROWS) * width_);
  }

  // queries fp32 [.., heads * head_dim] -> put(row, head, fp32 [head_dim], padded) per query head.
  template <class Put>
  void run(const AttentionItem& item, const QuerySpan& span, int window, const Pool& pool, int layer,
           const float* queries, long query_stride, Put&& put) {
    const int group = shape_.heads / shape_.kv_heads, rows = item.count * group;
    load_queries(item, span, queries, query_stride, group);
    for (int r = 0; r < rows; ++r) most_[r] = NOTHING_SEEN, total_[r] = 0.0f;
    std::memset(output_.data(), 0, static_cast<size_t>(rows) * width_ * sizeof(float));

    const int position = span.start + item.first, end = position + item.count;  // keys that any row sees
    const int from = window > 0 ? std::max(0, position - window + 1) : 0;
    for (int key = from / TILE_KEYS * TILE_KEYS; key < end; key += TILE_KEYS) {
      pack(span, pool, layer, item.kv_head, key, std::min(TILE_KEYS, end - key));
      for_each_tile(rows, MAX_TILE_ROWS, [&](int first, int num) {
        with_rows(num, [&]<int R>() { this->template visit<R>(first, key, position, group, window); });
      });
    }
    for (int r = 0; r < rows; ++r) {
      float* out = output_.data() + static_cast<long>(r) * width_;
      const __m512 share = _mm512_set1_ps(1.0f / total_[r]);
      for (int d = 0; d < width_; d += LANES) _mm512_storeu_ps(out + d, _mm512_mul_ps(_mm512_loadu_ps(out + d), share));
      put(span.first_output + item.first + r / group, item.kv_head * group + r % group, out);
    }
  }

 private:
  void load_queries(const AttentionItem& item, const QuerySpan& span, const float* queries, long stride, int group) {
    const __m512 scale = _mm512_set1_ps(shape_.scale);
    for (int r = 0; r < item.count * group; ++r) {
      const float* source = queries + (span.first_row + item.first + r / group) * stride +
                            (item.kv_head * group + r % group) * shape_.head_dim;
      E* target = queries_.data() + static_cast<long>(r) * depth_;
      for (int d = 0; d < depth_; d += LANES) {
        const __m512 value = _mm512_mul_ps(_mm512_maskz_loadu_ps(first_lanes(shape_.head_dim - d), source + d), scale);
        if constexpr (sizeof(E) == 2)
          _mm256_mask_storeu_epi16(target + d, first_lanes(depth_ - d), narrow(value));
        else
          _mm512_mask_storeu_ps(target + d, first_lanes(depth_ - d), value);
      }
    }
  }

  // Keys [key, key + count) of the sequence into `keys_` ([d][32 keys] panels) and `values_` ([key][32 dims] panels).
  void pack(const QuerySpan& span, const Pool& pool, int layer, int kv_head, int key, int count) {
    const E* k_rows[TILE_KEYS];
    const E* v_rows[TILE_KEYS];
    for (int i = 0; i < TILE_KEYS; ++i) {
      const int at = std::min(i, count - 1);  // what lies beyond is masked; it repeats a real key
      const int block = span.blocks[(key + at) / BLOCK_TOKENS], offset = (key + at) % BLOCK_TOKENS;
      k_rows[i] = row(pool, layer, block, 0, offset, kv_head, raw_.data() + static_cast<long>(i) * 2 * width_);
      v_rows[i] = row(pool, layer, block, 1, offset, kv_head, raw_.data() + (static_cast<long>(i) * 2 + 1) * width_);
    }
    for (int half = 0; half < TILE_KEYS; half += PANEL) pack_keys(k_rows + half, keys_.data() + half * depth_);
    for (int d = 0; d < width_; d += PANEL) pack_values(v_rows, d, values_.data() + static_cast<long>(d) * TILE_KEYS);
  }

  const E* row(const Pool& pool, int layer, int block, int part, int offset, int kv_head, E* scratch) {
    const uint8_t* stored = pool.head(layer, block, part, offset, kv_head);
    if (pool.kind != KvKind::INT8) return reinterpret_cast<const E*>(stored);
    const __m512 scale = _mm512_set1_ps(_cvtsh_ss(*pool.scale(layer, block, part, offset, kv_head)));
    for (int d = 0; d < shape_.head_dim; d += LANES) {
      const __m128i codes = _mm_maskz_loadu_epi8(first_lanes(shape_.head_dim - d), stored + d);
      const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)), scale);
      if constexpr (sizeof(E) == 2)
        _mm256_storeu_si256((__m256i*)(scratch + d), narrow(value));
      else
        _mm512_storeu_ps(scratch + d, value);
    }
    return scratch;
  }

  // 32 rows [head_dim] -> [depth / STEP][32][STEP]: a transpose of dwords for both element types.
  void pack_keys(const E* const* rows, E* panel) {
    constexpr int PER_VECTOR = 64 / sizeof(E);
    for (int d = 0; d < depth_; d += PER_VECTOR)
      for (int half = 0; half < 2; ++half) {
        __m512i block[LANES];
        for (int i = 0; i < LANES; ++i) block[i] = load(rows[half * LANES + i] + d, shape_.head_dim - d);
        transpose16(block);
        const int dwords = std::min(LANES, (depth_ - d) / STEP<E>);
        for (int i = 0; i < dwords; ++i)
          _mm512_storeu_si512(panel + ((d / STEP<E> + i) * PANEL + half * LANES) * STEP<E>, block[i]);
      }
  }

  // Columns [d, d + 32) of TILE_KEYS rows -> [TILE_KEYS / STEP][32][STEP].
  void pack_values(const E* const* rows, int d, E* panel) {
    if constexpr (sizeof(E) == 4) {
      for (int i = 0; i < TILE_KEYS; ++i) {
        _mm512_storeu_si512(panel + i * PANEL, load(rows[i] + d, shape_.head_dim - d));
        _mm512_storeu_si512(panel + i * PANEL + LANES, load(rows[i] + d + LANES, shape_.head_dim - d - LANES));
      }
    } else {
      alignas(64) static const uint16_t ZIP[2][32] = {
          {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
          {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
      const __m512i low = _mm512_load_si512(ZIP[0]), high = _mm512_load_si512(ZIP[1]);
      for (int i = 0; i < TILE_KEYS; i += 2) {
        const __m512i even = load(rows[i] + d, shape_.head_dim - d), odd = load(rows[i + 1] + d, shape_.head_dim - d);
        _mm512_storeu_si512(panel + i * PANEL, _mm512_permutex2var_epi16(even, low, odd));
        _mm512_storeu_si512(panel + i * PANEL + PANEL, _mm512_permutex2var_epi16(even, high, odd));
      }
    }
  }

  static __m512i load(const E* source, int count) {  // one vector, zeros beyond `count`
    if constexpr (sizeof(E) == 4) {
      return _mm512_maskz_loadu_epi32(first_lanes(count), source);
    } else {
      const __mmask32 mask = count >= 32 ? ~0u : count <= 0 ? 0 : (1u << count) - 1;
      return _mm512_maskz_loadu_epi16(mask, source);
    }
  }

  // Rows [first, first + R) meet the packed tile that begins at `key`.
  template <int R>
  void visit(int first, int key, int position, int group, int window) {
    alignas(64) float scores[R][TILE_KEYS];
    alignas(64) E weights[R][TILE_KEYS];
    for (int half = 0; half < TILE_KEYS; half += PANEL) {
      Accumulators<R> acc;
      clear<R>(acc);
      multiply<R>(queries_.data() + static_cast<long>(first) * depth_, depth_, keys_.data() + half * depth_, depth_, acc);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        _mm512_store_ps(scores[r] + half, acc[r][0]);
        _mm512_store_ps(scores[r] + half + LANES, acc[r][1]);
      }
    }
    for (int r = 0; r < R; ++r) soften(first + r, key, position + (first + r) / group, window, scores[r], weights[r]);
    for (int d = 0; d < width_; d += PANEL) {
      Accumulators<R> acc;
      float* out = output_.data() + static_cast<long>(first) * width_ + d;
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        acc[r][0] = _mm512_loadu_ps(out + r * width_);
        acc[r][1] = _mm512_loadu_ps(out + r * width_ + LANES);
      }
      multiply<R>(weights[0], TILE_KEYS, values_.data() + static_cast<long>(d) * TILE_KEYS, TILE_KEYS, acc);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        _mm512_storeu_ps(out + r * width_, acc[r][0]);
        _mm512_storeu_ps(out + r * width_ + LANES, acc[r][1]);
      }
    }
  }

  // Scores of one row -> weights relative to the row's maximum so far; what it has summed up is rescaled.
  void soften(int row, int key, int position, int window, const float* scores, E* weights) {
    constexpr int VECTORS = TILE_KEYS / LANES;
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i last = _mm512_set1_epi32(position);
    const __m512i before = _mm512_set1_epi32(window > 0 ? position - window : -1);  // the last key out of sight
    __m512 score[VECTORS];
    __m512 best = _mm512_set1_ps(most_[row]);
    for (int i = 0; i < VECTORS; ++i) {
      const __m512i keys = _mm512_add_epi32(_mm512_set1_epi32(key + i * LANES), lanes);
      const __mmask16 seen = _mm512_cmple_epi32_mask(keys, last) & _mm512_cmpgt_epi32_mask(keys, before);
      __m512 value = _mm512_load_ps(scores + i * LANES);
      if (shape_.soft_cap > 0.0f) value = penstock::soft_cap(value, shape_.soft_cap);
      score[i] = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen, value);
      best = _mm512_max_ps(best, score[i]);
    }
    const float most = _mm512_reduce_max_ps(best);
    const __m512 top = _mm512_set1_ps(most);
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < VECTORS; ++i) {
      const __m512 weight = exp(_mm512_sub_ps(score[i], top));
      sum = _mm512_add_ps(sum, weight);
      if constexpr (sizeof(E) == 2)
        _mm256_store_si256((__m256i*)(weights + i * LANES), narrow(weight));
      else
        _mm512_store_ps(weights + i * LANES, weight);
    }
    const float keep = most == most_[row] ? 1.0f : _mm512_cvtss_f32(exp(_mm512_set1_ps(most_[row] - most)));
    total_[row] = total_[row] * keep + _mm512_reduce_add_ps(sum);
    if (most == most_[row]) return;
    most_[row] = most;
    float* out = output_.data() + static_cast<long>(row) * width_;
    for (int d = 0; d < width_; d += LANES)
      _mm512_storeu_ps(out + d, _mm512_mul_ps(_mm512_loadu_ps(out + d), _mm512_set1_ps(keep)));
  }

  AttentionShape shape_;
  int depth_, width_;  // head_dim padded to steps, to panels
  Buffer<E> queries_;  // [rows, depth]
  Buffer<E> keys_;     // [2][depth / STEP][32][STEP]
  Buffer<E> values_;   // [width / 32][64 / STEP][32][STEP]
  Buffer<E> raw_;      // dequantized rows
  Buffer<float> output_;
  float most_[MAX_QUERY_ROWS];
  float total_[MAX_QUERY_ROWS];
};

}  // namespace penstock
