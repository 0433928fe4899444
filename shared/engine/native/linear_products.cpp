// A tile of rows times one panel of a linear, by its kind and where its products are made.
#include "linear.h"
#include "matrix_unit_codes.h"
#include "matrix_unit_nibbles.h"
#include "quantized_tile.h"
#include "superblock_nibbles.h"
#include "superblock_tile.h"

namespace penstock {
namespace {

constexpr int LEAST_ONE_ZERO_ROWS = 4;

template <int R, class E>
void multiply_dense(const E* rows, long stride, const E* panel, int k, float* tile) {
  Accumulators<R> acc;
  clear<R>(acc);
  multiply<R>(rows, stride, panel, k, acc);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    _mm512_store_ps(tile + r * PANEL, acc[r][0]);
    _mm512_store_ps(tile + r * PANEL + LANES, acc[r][1]);
  }
}

// Rows from `first` on, of `columns` each.
QuantizedRows quantized_rows(const Rows& rows, int first, int columns) {
  const long group = static_cast<long>(first) * rows.groups;
  const int8_t* high = rows.row<int8_t>(first);
  const float* offsets = rows.offsets.data() == nullptr ? nullptr : rows.offsets.data() + 2 * group;
  return {high,    high + columns, rows.stride, rows.scales.data() + group, rows.sums.data() + group,
          offsets, rows.groups};
}

}  // namespace

StoredCodes Linear::codes_of(int panel, bool many) const {
  const StoredCodes stored{weights_.data() + panel_place(panel), storage_, levels_.data()};
  if (storage_ == Storage::BYTES || !many) return stored;
  static thread_local Buffer<uint8_t> bytes;
  bytes.reserve(static_cast<size_t>(k_) * PANEL);
  if (storage_ == Storage::SIX_BITS)
    unpack_codes<Storage::SIX_BITS>(stored.data, stored.levels, k_, bytes.data());
  else
    unpack_codes<Storage::LEVELS>(stored.data, stored.levels, k_, bytes.data());
  return {bytes.data(), Storage::BYTES, nullptr};
}

void Linear::multiply_tile(matrix_unit::Tiles* unit, const Rows& rows, int first, int num, int panel,
                           const StoredCodes& codes, float* tile) const {
  const uint8_t* packed = codes.data;
  if (kind_ == Kind::F32)
    with_rows(num, [&]<int R>() {
      multiply_dense<R>(rows.row<float>(first), rows.stride / 4, reinterpret_cast<const float*>(packed), k_,
                        tile);
    });
  else if (kind_ == Kind::BF16)
    with_rows(num, [&]<int R>() {
      multiply_dense<R>(rows.row<bf16>(first), rows.stride / 2, reinterpret_cast<const bf16*>(packed), k_,
                        tile);
    });
  else if (kind_ == Kind::SUPER)
    multiply_superblocks(rows, first, num, panel, tile);
  else {
    const bool with_minima = minima_.data() != nullptr;
    const long place = static_cast<long>(panel) * rows.groups * PANEL;
    multiply_codes(unit, rows, first, num, kind_,
                   {codes, scales_.data() + place, with_minima ? nullptr : zeros_.data() + place,
                    with_minima ? minima_.data() + place : nullptr},
                   tile);
  }
  add_bias(panel, num, tile);
}

void Linear::add_bias(int panel, int num, float* tile) const {
  if (bias_.data() == nullptr) return;
  const float* bias = bias_.data() + panel * PANEL;
  for (int r = 0; r < num; ++r)
    for (int half = 0; half < PANEL; half += LANES) {
      float* place = tile + r * PANEL + half;
      _mm512_store_ps(place, _mm512_add_ps(_mm512_load_ps(place), _mm512_loadu_ps(bias + half)));
    }
}

void Linear::multiply_superblocks(const Rows& rows, int first, int num, int panel, float* tile) const {
  const uint8_t* packed = weights_.data() + panel_place(panel);
  const int bits = panel_bits_.data()[panel], superblocks = k_ / SUPER_COLUMNS;
  if (bits == 4) {
    return for_each_tile(num, QUANTIZED_TILE_ROWS, [&](int at, int count) {
      with_rows<QUANTIZED_TILE_ROWS>(count, [&]<int R>() {
        multiply_nibble_superblocks<R>(quantized_rows(rows, first + at, k_), packed, superblocks,
                                       tile + at * PANEL);
      });
    });
  }
  const SuperRows input{reinterpret_cast<const int16_t*>(rows.row<uint8_t>(first) + rows.words_place),
                        rows.stride / 2, rows.units.data() + static_cast<long>(first) * superblocks,
                        superblocks, rows.bytes};
  if (bits == 5)
    multiply_super<5>(input, packed, num, tile);
  else
    multiply_super<6>(input, packed, num, tile);
}

void Linear::multiply_codes([[maybe_unused]] matrix_unit::Tiles* unit, const Rows& rows, int first, int num,
                            Kind kind, const QuantizedPanel& weights, float* tile) const {
  const bool with_minima = weights.minima != nullptr;
  const StoredCodes& codes = weights.codes;
  const QuantizedRows input = quantized_rows(rows, first, k_);
#ifdef __AVX512BF16__
  if (unit != nullptr && rows.wide) {
    const matrix_unit::WideRows wide{reinterpret_cast<const bf16*>(input.high + wide_place()),
                                     rows.stride / 2, input.scales, input.offsets, rows.groups};
    return with_minima ? matrix_unit::multiply_nibbles<true>(*unit, wide, weights, group_, num, tile)
                       : matrix_unit::multiply_nibbles<false>(*unit, wide, weights, group_, num, tile);
  }
#endif
  // Of few rows a panel's zeros would be read for little.
  const bool one_zero = num >= LEAST_ONE_ZERO_ROWS && !with_minima && codes.storage == Storage::BYTES &&
                        has_one_zero(weights.zeros, rows.groups);
  const auto run = [&]<Kind KIND, bool MINIMA>() {
#ifdef __AVX512BF16__
    if (unit != nullptr)
      return matrix_unit::multiply_quantized<KIND, MINIMA>(*unit, input, weights, group_, num, tile);
#endif
    with_rows(num, [&]<int R>() {
      if constexpr (KIND == Kind::INT8) {
        if (codes.storage == Storage::SIX_BITS)
          return multiply_quantized<R, KIND, MINIMA, Storage::SIX_BITS>(input, weights, group_, tile);
        if (codes.storage == Storage::LEVELS)
          return multiply_quantized<R, KIND, MINIMA, Storage::LEVELS>(input, weights, group_, tile);
      }
      if constexpr (!MINIMA)
        if (one_zero)
          return multiply_quantized<R, KIND, MINIMA, Storage::BYTES, true>(input, weights, group_, tile);
      multiply_quantized<R, KIND, MINIMA>(input, weights, group_, tile);
    });
  };
  const auto run_kind = [&]<Kind KIND>() {
    with_minima ? run.template operator()<KIND, true>() : run.template operator()<KIND, false>();
  };
  if (kind == Kind::INT4)
    run_kind.template operator()<Kind::INT4>();
  else if (kind == Kind::INT8)
    run_kind.template operator()<Kind::INT8>();
  else
    run_kind.template operator()<Kind::INT8_COARSE>();
}

}  // namespace penstock
