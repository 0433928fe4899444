#include "adapter.h"

#include <algorithm>

namespace penstock {
namespace {

inline __m512bh load(const bf16* values, long left) {
  const __mmask32 there = left >= 2 * LANES ? 0xffffffffu : (1u << left) - 1;
  return (__m512bh)_mm512_maskz_loadu_epi16(there, values);
}

inline __m512 load(const float* values, long left) {
  return _mm512_maskz_loadu_ps(left >= LANES ? 0xffff : first_lanes(static_cast<int>(left)), values);
}

inline __m512 add_products(__m512 total, __m512bh a, __m512bh b) {
  return _mm512_dpbf16_ps(total, a, b);
}

inline __m512 add_products(__m512 total, __m512 a, __m512 b) {
  return _mm512_fmadd_ps(a, b, total);
}

// sums[rank * R + r] = down[rank] . rows[r], of RANK_TILE ranks.
template <int R, class E>
void dot(const E* down, const E* const* rows, long in, float* sums) {
  constexpr long WIDTH = VECTOR_BYTES / sizeof(E);
  __m512 totals[RANK_TILE][R];
  for (int rank = 0; rank < RANK_TILE; ++rank)
    for (int r = 0; r < R; ++r) totals[rank][r] = _mm512_setzero_ps();
  for (long k = 0; k < in; k += WIDTH)
    for (int rank = 0; rank < RANK_TILE; ++rank, down += WIDTH) {
      _mm_prefetch(reinterpret_cast<const char*>(down) + PREFETCH_BYTES, _MM_HINT_T0);
      const auto weights = load(down, WIDTH);
      for (int r = 0; r < R; ++r)
        totals[rank][r] = add_products(totals[rank][r], load(rows[r] + k, in - k), weights);
    }
  for (int rank = 0; rank < RANK_TILE; ++rank)
    for (int r = 0; r < R; ++r) sums[rank * R + r] = _mm512_reduce_add_ps(totals[rank][r]);
}

// A step's ranks of one row times 16 columns.
inline __m512 add_rank(const bf16* sums, const bf16* up, __m512 total) {
  int pair;
  std::memcpy(&pair, sums, sizeof pair);
  return _mm512_dpbf16_ps(total, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)_mm512_loadu_si512(up));
}

inline __m512 add_rank(const float* sums, const float* up, __m512 total) {
  return _mm512_fmadd_ps(_mm512_set1_ps(*sums), _mm512_loadu_ps(up), total);
}

void store(float value, float* target) {
  *target = value;
}

void store(float value, bf16* target) {
  const __m128i rounded = (__m128i)_mm_cvtneps_pbh(_mm_set_ss(value));
  std::memcpy(target, &rounded, sizeof *target);
}

}  // namespace

void AdaptedRows::assign(std::vector<const LowRankShape*> adapters) {
  adapters_ = std::move(adapters);
  order_.clear();
  runs_.clear();
  for (int row = 0; row < static_cast<int>(adapters_.size()); ++row)
    if (adapters_[row] != nullptr) order_.push_back(row);
  std::stable_sort(order_.begin(), order_.end(),
                   [&](int a, int b) { return std::less<>()(adapters_[a], adapters_[b]); });
  for (int at = 0; at < static_cast<int>(order_.size()); ++at) {
    const LowRankShape* adapter = adapters_[order_[at]];
    if (runs_.empty() || runs_.back().adapter != adapter ||
        runs_.back().last - runs_.back().first == ADAPTED_ROWS_PER_ITEM)
      runs_.push_back({adapter, at, at});
    ++runs_.back().last;
  }
}

void LowRankSums::reserve(const AdaptedRows& adapted, int layers, int rows, int most_in) {
  const long item = is_bf16_ ? sizeof(bf16) : sizeof(float);
  long most_ranks = 0;
  for (const auto& run : adapted.runs_)
    for (int at = 0; at < layers * ADAPTED_MATRICES; ++at)
      most_ranks = std::max(most_ranks, run.adapter[at].ranks);
  sums_stride_ = (most_ranks * item + VECTOR_BYTES - 1) / VECTOR_BYTES * VECTOR_BYTES;
  taken_stride_ = (most_in * item + VECTOR_BYTES - 1) / VECTOR_BYTES * VECTOR_BYTES;
  sums_.reserve(rows * sums_stride_);
  taken_.reserve(rows * taken_stride_);
  items_.reserve(adapted.runs_.size() * (most_ranks / RANK_TILE));
}

void LowRankSums::take(const float* values, int in, int row) {
  uint8_t* target = taken_.data() + row * taken_stride_;
  for (int k = 0; k < in; k += LANES) {
    const __mmask16 lanes = first_lanes(in - k);
    const __m512 some = _mm512_maskz_loadu_ps(lanes, values + k);
    if (is_bf16_)
      _mm256_mask_storeu_epi16(reinterpret_cast<bf16*>(target) + k, lanes, narrow(some));
    else
      _mm512_mask_storeu_ps(reinterpret_cast<float*>(target) + k, lanes, some);
  }
}

void LowRankSums::sum(const AdaptedRows& adapted, int layer, Adapted matrix, const Rows* input, Team& team) {
  items_.clear();
  for (const auto& run : adapted.runs_) {
    const LowRankShape& adapter = run.adapter[layer * ADAPTED_MATRICES + static_cast<int>(matrix)];
    if (adapter.down == nullptr) continue;
    const long bytes = RANK_TILE * adapter.in * (is_bf16_ ? sizeof(bf16) : sizeof(float));
    const int tiles = static_cast<int>(adapter.ranks / RANK_TILE);
    const int grain = static_cast<int>(std::max(1L, RANKS_CLAIM_BYTES / bytes));
    for (int tile = 0; tile < tiles; tile += grain)
      items_.push_back({&run, &adapter, tile, std::min(tiles, tile + grain)});
  }
  const uint8_t* data = input == nullptr ? taken_.data() : input->data.data();
  const long stride = input == nullptr ? taken_stride_ : input->stride;
  team.share(static_cast<int>(items_.size()), 1, [&](int first, int last, int) {
    for (int at = first; at < last; ++at)
      if (is_bf16_)
        sum_item<bf16>(items_[at], adapted, data, stride);
      else
        sum_item<float>(items_[at], adapted, data, stride);
  });
}

void LowRankSums::add(const AdaptedRows& adapted, int layer, Adapted matrix, int first, int num, int panel,
                      float* tile) const {
  for (const auto& run : adapted.runs_) {
    const LowRankShape& adapter = run.adapter[layer * ADAPTED_MATRICES + static_cast<int>(matrix)];
    if (adapter.down == nullptr) continue;
    const int* const end = adapted.order_.data() + run.last;
    const int* row = std::lower_bound(adapted.order_.data() + run.first, end, first);
    while (row != end && *row < first + num) {
      float* outputs[ADAPTED_TILE_ROWS];
      int count = 0;
      for (; count < ADAPTED_TILE_ROWS && row + count != end && row[count] < first + num; ++count)
        outputs[count] = tile + (row[count] - first) * PANEL;
      with_rows(count, [&]<int R>() {
        if constexpr (R <= ADAPTED_TILE_ROWS) {
          if (is_bf16_)
            add_rows<bf16, R>(adapter, row, panel, outputs);
          else
            add_rows<float, R>(adapter, row, panel, outputs);
        }
      });
      row += count;
    }
  }
}

// Half a panel after the other where they depend on unlike numbers of ranks, else both side by side.
template <class E, int R>
void LowRankSums::add_rows(const LowRankShape& adapter, const int* rows, int panel,
                           float* const* outputs) const {
  const E* sums[R];
  for (int r = 0; r < R; ++r) sums[r] = reinterpret_cast<const E*>(sums_.data() + rows[r] * sums_stride_);
  const RankSpan* halves = adapter.columns + 2 * panel;
  const auto add_halves = [&]<int N>(const RankSpan* spans, int lane) {
    __m512 totals[N][R];
    const E* ups[N];
    for (int half = 0; half < N; ++half) {
      ups[half] = static_cast<const E*>(adapter.up) + spans[half].place;
      for (int r = 0; r < R; ++r) totals[half][r] = _mm512_setzero_ps();
    }
    for (long rank = 0; rank < spans[0].count; rank += STEP<E>)
      for (int half = 0; half < N; ++half) {
        _mm_prefetch(reinterpret_cast<const char*>(ups[half]) + PREFETCH_BYTES, _MM_HINT_T0);
        for (int r = 0; r < R; ++r)
          totals[half][r] = add_rank(sums[r] + spans[half].first + rank, ups[half], totals[half][r]);
        ups[half] += LANES * STEP<E>;
      }
    for (int half = 0; half < N; ++half)
      for (int r = 0; r < R; ++r) {
        float* place = outputs[r] + lane + half * LANES;
        _mm512_store_ps(place, _mm512_add_ps(_mm512_load_ps(place), totals[half][r]));
      }
  };
  if (halves[0].count == halves[1].count) {
    add_halves.template operator()<2>(halves, 0);
  } else {
    add_halves.template operator()<1>(halves, 0);
    add_halves.template operator()<1>(halves + 1, LANES);
  }
}

template <class E>
void LowRankSums::sum_item(const Item& item, const AdaptedRows& adapted, const uint8_t* input, long stride) {
  constexpr long WIDTH = VECTOR_BYTES / sizeof(E);
  const long tile_size = (item.adapter->in + WIDTH - 1) / WIDTH * WIDTH * RANK_TILE;
  for (int tile = item.first_tile; tile < item.last_tile; ++tile) {
    const E* down = static_cast<const E*>(item.adapter->down) + tile * tile_size;
    const float* scales = item.adapter->scales + tile * RANK_TILE;
    for_each_tile(item.run->last - item.run->first, ADAPTED_TILE_ROWS, [&](int first, int num) {
      const int* order = adapted.order_.data() + item.run->first + first;
      const E* rows[ADAPTED_TILE_ROWS];
      for (int r = 0; r < num; ++r) rows[r] = reinterpret_cast<const E*>(input + order[r] * stride);
      float sums[RANK_TILE * ADAPTED_TILE_ROWS];
      with_rows(num, [&]<int R>() {
        if constexpr (R <= ADAPTED_TILE_ROWS) dot<R>(down, rows, item.adapter->in, sums);
      });
      for (int r = 0; r < num; ++r)
        for (int rank = 0; rank < RANK_TILE; ++rank)
          store(scales[rank] * sums[rank * num + r],
                reinterpret_cast<E*>(sums_.data() + order[r] * sums_stride_) + tile * RANK_TILE + rank);
    });
  }
}

}  // namespace penstock
