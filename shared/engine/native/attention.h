// Attention over paged KV for any number of query rows: tiles of keys in absolute order, online softmax.
//
// Tiles start at multiples of TILE_KEYS of the sequence, partitions at those of PARTITION_KEYS. A row meets
// the tiles of a partition in order, and what it sums up of its partitions is added up in order. So a row's
// result depends on its own sequence alone: not on chunking, batch, which thread runs it, or how many share
// its keys. Tiles and partitions that a row sees nothing of change nothing of it, bit for bit.
//
// Where there is a matrix unit, all rows of bf16 are computed on it, of decode steps as of prompts.
#pragma once

#include <algorithm>

#include "attention_blocks.h"
#include "attention_head.h"
#include "attention_items.h"
#include "attention_tiles.h"
#include "attention_weights.h"
#include "memory.h"
#include "pool.h"
#include "tile.h"

namespace penstock {

constexpr int QUERY_ROWS = 192;  // of one item: amortises the packing of a tile, stays in the L2

struct AttentionShape {
  int heads, kv_heads, head_dim;
  float scale;
  float soft_cap;  // 0: none
};

// Whether a row's products with keys and values are made in fp32: without an instruction for bf16 it is
// cheaper to have numbers widened once for all rows.
#ifdef __AVX512BF16__
template <class E>
constexpr bool IN_FP32 = sizeof(E) == 4;
#else
template <class E>
constexpr bool IN_FP32 = true;
#endif

template <class E>
class Attention {
 public:
  explicit Attention(const AttentionShape& shape)
      : shape_(shape),
        on_unit_(sizeof(E) == 2 && matrix_unit::enabled()),
        blocks_(IN_FP32<E> ? shape.head_dim : 0),
        tokens_{shape.head_dim, {}, {}} {
    const int rows = std::max(QUERY_ROWS, shape.heads / shape.kv_heads);  // a token's own stay together
    depth_ = round_up(shape.head_dim, on_unit_ ? matrix_unit::BF16_STEP : STEP<E>);
    width_ = round_up(shape.head_dim, PANEL);
    if constexpr (IN_FP32<E>) {
      wide_queries_ = Buffer<float>(static_cast<size_t>(rows) * depth_);
    } else {
      queries_ = Buffer<E>(static_cast<size_t>(rows) * depth_ + LANES);
      keys_ = Buffer<E>(static_cast<size_t>(TILE_KEYS) * round_up(depth_, PANEL) + PREFETCH_BYTES);
      values_ = Buffer<E>(static_cast<size_t>(TILE_KEYS) * width_ + PREFETCH_BYTES);
      raw_ = Buffer<E>(static_cast<size_t>(TILE_KEYS) * round_up(shape.head_dim, PANEL) * 2);
    }
    output_ = Buffer<float>(width_);
    stride_ = SUMS_OUTPUT + width_;
    sums_ = Buffer<float>(static_cast<size_t>(rows) * stride_);
    joined_ = Buffer<float>(static_cast<size_t>(rows) * stride_);
    most_ = Buffer<float>(rows);
    totals_ = Buffer<float>(rows);
    last_keys_ = Buffer<int>(rows);
  }

  void poison() {
    for (Buffer<E>* each : {&queries_, &keys_, &values_, &raw_}) each->poison();
    for (Buffer<float>* each : {&wide_queries_, &sums_, &joined_, &most_, &totals_, &output_}) each->poison();
    blocks_.poison();
    last_keys_.poison();
  }

  // How many KV heads an item of `count` rows may have.
  static int most_heads(int count, int group) { return std::max(1, QUERY_ROWS / (count * group)); }

  // Floats of one query head's sums over one partition.
  int sums_stride() const { return stride_; }

  // queries fp32 [.., heads * head_dim] -> put(row, head, fp32 [head_dim], padded) per query head, or, where
  // others have the rest of the keys, what it sums up of each partition into `sums`
  // [partitions][rows of the span][heads]. `sinks` [heads] are scores beside those of the keys; null: none.
  // `behind` are the blocks that are met next, whose lines are asked for with its last tile.
  template <class Put>
  void run(const AttentionItem& item, const QuerySpan& span, const KeyBlocks& behind, int window,
           const Pool& pool, int layer, const float* queries, long query_stride, const float* sinks,
           float* sums, Put&& put) {
    const int group = shape_.heads / shape_.kv_heads;
    const int rows = item.count * group;  // per KV head; kept head by head
    const bool stored = rows <= (on_unit_ ? matrix_unit::UNIT_ROWS : MAX_TILE_ROWS);
    for (int head = 0; head < item.num_heads; ++head)
      if constexpr (IN_FP32<E>)
        widen_queries(item, span, item.first_head + head, queries, query_stride, head * rows);
      else
        load_queries(item, span, item.first_head + head, queries, query_stride, head * rows,
                     on_unit_ && stored);

    const int position = span.start + item.first;
    const auto [first_key, end] = ItemKeys::of(item, span, window);
    for (int r = 0; r < rows; ++r) last_keys_.data()[r] = position + r / group;
    [[maybe_unused]] matrix_unit::HeadTiles tiles;
    begin(rows * item.num_heads);
    bool joined = false;
    if (!IN_FP32<E> && first_key < end) locate(span, pool, layer, first_key, end, next_);
    for (int key = first_key; key < end; key += TILE_KEYS) {
      const int count = std::min(TILE_KEYS, end - key);
      if constexpr (IN_FP32<E>) {
        blocks_.locate(pool, layer, span.blocks, key, end);
        const int later = key + TILE_KEYS;
        const KeyBlocks ahead = later < end ? KeyBlocks::of(span, later, end) : behind;
        ahead_.begin(pool, layer, ahead.first, ahead.num, item.first_head, item.num_heads, item.num_heads);
        for (int head = 0; head < item.num_heads; ++head)
          meet_in_fp32(pool, item.first_head + head, head * rows, rows, key, count, window);
      } else {
        std::memcpy(now_, next_, sizeof now_);
        if (key + TILE_KEYS < end) locate(span, pool, layer, key + TILE_KEYS, end, next_);
        for (int head = 0; head < item.num_heads; ++head) {
          point_at(pool, item.first_head + head, count);
          meet(tiles, pool, head * rows, rows, stored, key, count, position, window);
        }
      }
      const int next = key + TILE_KEYS;
      if (next < end && next % PARTITION_KEYS != 0) continue;
      if (on_unit_) keep_totals(rows * item.num_heads);
      if (item.sums >= 0) {
        const long partition = key / PARTITION_KEYS - item.first_partition;
        for_each_head(item, [&](int row, int head, int r) {
          std::memcpy(sums + ((partition * span.rows + row) * shape_.heads + head) * stride_,
                      sums_of(sums_, r), stride_ * sizeof(float));
        });
      } else if (joined) {
        for (int r = 0; r < rows * item.num_heads; ++r)
          add_sums(sums_of(joined_, r), sums_of(sums_, r), width_);
      } else {
        std::swap(joined_, sums_);
        joined = true;
      }
      if (next < end) begin(rows * item.num_heads);
    }
    if (item.sums >= 0) return;
    for_each_head(item, [&](int row, int head, int r) {
      put(span.first_output + row, head,
          finish(sums_of(joined_, r), sinks == nullptr ? nullptr : sinks + head));
    });
  }

  // The rest of it: `sums` of the first of `partitions` of a query head, the others' `apart` floats behind,
  // and the head's `sink`, null: none.
  const float* join(float* sums, int partitions, long apart, const float* sink) {
    for (int each = 1; each < partitions; ++each) add_sums(sums, sums + each * apart, width_);
    return finish(sums, sink);
  }

 private:
  const float* finish(float* sums, const float* sink) {
    const float* found = finish_sums(sums, width_, sink);
    if constexpr (!IN_FP32<E> || sizeof(E) == 4) return found;
    in_order<E>(found, width_, output_.data());
    return output_.data();
  }

  // each(row of the span, query head, row of the item) for all that an item computes.
  template <class Each>
  void for_each_head(const AttentionItem& item, Each&& each) const {
    const int group = shape_.heads / shape_.kv_heads, rows = item.count * group;
    for (int r = 0; r < rows * item.num_heads; ++r)
      each(item.first + r % rows / group, (item.first_head + r / rows) * group + r % group, r);
  }

  float* sums_of(Buffer<float>& of, int row) { return of.data() + static_cast<long>(row) * stride_; }

  void begin(int rows) {
    clear_sums(sums_.data(), rows, stride_);
    std::fill_n(most_.data(), rows, NOTHING_SEEN);
    std::fill_n(totals_.data(), rows, 0.0f);
  }

  // What follows is in attention.cpp, where it is compiled once for all.

  // The rows of one KV head, of which `first` is the first, meet the `count` keys that begin at `key`: as
  // they are `stored`, or packed.
  void meet(matrix_unit::HeadTiles& tiles, const Pool& pool, int first, int rows, bool stored, int key,
            int count, int position, int window);

  // The same in fp32, on any CPU without an instruction for bf16.
  void meet_in_fp32(const Pool& pool, int kv_head, int first, int rows, int key, int count, int window);

  // Queries of a KV head's rows, in tiles as `meet_in_fp32` has them: the first number of each, the second...
  void widen_queries(const AttentionItem& item, const QuerySpan& span, int kv_head, const float* queries,
                     long stride, int to);

  // Queries of a KV head's rows as `meet` has them; `turned`: pairs of dims of all rows side by side, as the
  // columns of a tile.
  void load_queries(const AttentionItem& item, const QuerySpan& span, int kv_head, const float* queries,
                    long stride, int to, bool turned);

  // What the unit's rows keep side by side, to where `attention_sums.h` has it.
  void keep_totals(int rows) {
    for (int r = 0; r < rows; ++r) {
      sums_of(sums_, r)[SUMS_MOST] = most_.data()[r];
      sums_of(sums_, r)[SUMS_TOTAL] = totals_.data()[r];
    }
  }

  // Where K and V of the tile's tokens begin. Places beyond `end` repeat the last token: they are masked, but
  // what is there must be numbers.
  void locate(const QuerySpan& span, const Pool& pool, int layer, int key, int end,
              const uint8_t* (&tokens)[2][TILE_KEYS]) {
    for (int part = 0; part < 2; ++part)
      for (int i = 0; i < TILE_KEYS; ++i) {
        const int at = std::min(key + i, end - 1);
        tokens[part][i] = pool.head(layer, span.blocks[at / BLOCK_TOKENS], part, at % BLOCK_TOKENS, 0);
      }
  }

  // `tokens_`: one head of the first `count` tokens.
  void point_at(const Pool& pool, int kv_head, int count) {
    const long place = static_cast<long>(kv_head) * shape_.head_dim * kv_item_bytes(pool.kind);
    for (int part = 0; part < 2; ++part)
      for (int i = 0; i < round_up(count, PANEL); ++i) {
        tokens_.rows[part][i] = values_of(pool, part, i, kv_head, now_[part][i] + place);
        tokens_.ahead[part][i] = next_[part][i] + place;
      }
  }

  // Stored values as they are, or int8 codes as the values they stand for.
  const E* values_of(const Pool& pool, int part, int i, int kv_head, const uint8_t* stored) {
    if (pool.kind != KvKind::INT8) return reinterpret_cast<const E*>(stored);
    E* scratch = raw_.data() + (2L * i + part) * width_;
    const __m512 scale = _mm512_set1_ps(_cvtsh_ss(pool.scale_of(now_[part][i], kv_head)));
    for (int d = 0; d < shape_.head_dim; d += LANES) {
      const __m128i codes = _mm_maskz_loadu_epi8(first_lanes(shape_.head_dim - d), stored + d);
      const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)), scale);
      _mm256_storeu_si256((__m256i*)(scratch + d), narrow(value));
    }
    return scratch;
  }

  // On vectors, in attention_vectors.h.
  template <int R, bool STORED>
  void visit(int first, int offset, int key, int count, int position, int group, int window);
  template <int R>
  void score_packed(int first, int half, float (&scores)[R][TILE_KEYS]);
  template <int R>
  void score_stored(int first, int keys, float (&scores)[R][TILE_KEYS]);
  template <int R>
  void add_stored(const E (&weights)[R][TILE_KEYS], int count, int d, Accumulators<R>& acc);
  void soften(int row, int key, int position, int window, const float* scores, E* weights);

#ifdef __AVX512BF16__
  // On the matrix unit, in attention_unit.h.
  void meet_on_unit(matrix_unit::HeadTiles& tiles, const Pool& pool, int first, int rows, bool stored,
                    int key, int count, int window);
  void score_stored_on_unit(const Pool& pool, const bf16* queries, int rows, int count,
                            float (*scores)[TILE_KEYS]);
#endif

  AttentionShape shape_;
  bool on_unit_;                       // where products are made
  int depth_, width_;                  // head_dim padded to steps, to panels
  int stride_;                         // of sums
  Buffer<E> queries_;                  // [rows, depth]
  Buffer<float> wide_queries_;         // of each tile of rows [depth, rows]
  Buffer<float> output_;               // of a row
  Buffer<E> keys_;                     // [2][depth / STEP][32][STEP]
  Buffer<E> values_;                   // [width / 32][64 / STEP][32][STEP]
  Buffer<E> raw_;                      // dequantized rows
  const uint8_t* now_[2][TILE_KEYS];   // K and V of the tile's tokens, head 0
  const uint8_t* next_[2][TILE_KEYS];  // and of the next tile's
  LinesAhead ahead_;                   // of the next tile, there, too
  TileBlocks<E> blocks_;               // of the tile, where products are made in fp32
  TileHead<E> tokens_;                 // one head of the tile
  Buffer<float> sums_;                 // [rows]: of the partition at hand
  Buffer<float> joined_;               // [rows]: of those before it
  Buffer<float> most_, totals_;        // [rows]: of the partition at hand, on the unit
  Buffer<int> last_keys_;              // [rows of a KV head]: that each sees
};

}  // namespace penstock
