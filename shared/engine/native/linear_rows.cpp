// How rows are rounded for the products of a linear, and where they stand.
#include "linear.h"
#include "nibble_rows.h"
#include "quantized_tile.h"

namespace penstock {
namespace {

long odd_lines(long bytes) {
  return ((bytes + 63) / 64 | 1) * 64;
}

}  // namespace

void Linear::reserve(Rows& rows, int count) const {
  rows.kind = kind_;
  rows.groups = quantized() ? k_ / group_ : 0;
  rows.wide = widens(count);
  const long wide_bytes = 2L * sizeof(bf16) * round_up(k_, matrix_unit::BF16_STEP);
  rows.nibbles = has_nibbles_;
  rows.words = has_words_;
  rows.bytes = has_words_ && are_super_bytes(count);
  rows.superblocks = has_words_ ? k_ / SUPER_COLUMNS : 0;
  rows.words_place = round_up(static_cast<int>(rows.wide ? wide_place() + wide_bytes : row_bytes()), 64);
  rows.stride = odd_lines(rows.words  ? rows.words_place + super_row_bytes(k_)
                          : rows.wide ? wide_place() + wide_bytes
                                      : row_bytes());
  const size_t read = rows.wide ? round_up(count, MAX_TILE_ROWS) : count;
  rows.data.reserve(read * rows.stride);
  rows.scales.reserve(static_cast<size_t>(count) * rows.groups);
  rows.sums.reserve(static_cast<size_t>(count) * rows.groups);
  rows.units.reserve(static_cast<size_t>(count) * rows.superblocks);
  if (kind_ == Kind::INT4 || has_nibbles_) rows.offsets.reserve(2 * static_cast<size_t>(count) * rows.groups);
}

bool Linear::widens(int count) const {
  return WHOLE_VECTORS && matrix_unit::enabled() && kind_ == Kind::INT4 && group_ <= matrix_unit::BF16_STEP &&
         count >= matrix_unit::LEAST_NIBBLE_ROWS;
}

long Linear::row_bytes() const {
  const long columns = k_;
  if (kind_ == Kind::SUPER && !has_nibbles_) return 0;
  if (WORD_PRODUCTS && kind_ != Kind::F32) return columns * 2;  // of bf16, too
  switch (kind_) {
    case Kind::F32:
      return columns * 4;
    case Kind::INT4:
    case Kind::SUPER:
      return columns + columns / 2;
    case Kind::INT8_COARSE:
      return columns;
    default:
      return columns * 2;
  }
}

void Linear::prepare(const float* row, Rows& rows, int index) const {
  if (kind_ == Kind::F32) {
    std::memcpy(rows.row<float>(index), row, in_ * sizeof(float));
    return;
  }
  if (kind_ == Kind::BF16) {
    bf16* target = rows.row<bf16>(index);
    for (int k = 0; k < k_; k += LANES) {
      const __m512 values = _mm512_maskz_loadu_ps(first_lanes(in_ - k), row + k);
      _mm256_mask_storeu_epi16(target + k, first_lanes(k_ - k), narrow(values));
    }
    return;
  }
  if (kind_ == Kind::SUPER) {
    if (has_words_)
      round_super_row(row, k_, rows.bytes,
                      reinterpret_cast<int16_t*>(rows.row<uint8_t>(index) + rows.words_place),
                      rows.units.data() + static_cast<long>(index) * rows.superblocks);
    if (!has_nibbles_) return;
  }
  const Kind kind = kind_ == Kind::SUPER ? Kind::INT4 : kind_;
#ifdef PENSTOCK_WORD_PRODUCTS
  static thread_local Buffer<int8_t> bytes;
  bytes.reserve(2 * static_cast<size_t>(k_));
  round(row, kind, rows, index, bytes.data());
  auto* words = rows.row<int16_t>(index);
  if (kind == Kind::INT4)
    join_bytes<Kind::INT4>(bytes.data(), k_, words);
  else if (kind == Kind::INT8)
    join_bytes<Kind::INT8>(bytes.data(), k_, words);
  else
    join_bytes<Kind::INT8_COARSE>(bytes.data(), k_, words);
#else
  round(row, kind, rows, index, rows.row<int8_t>(index));
#endif
}

void Linear::round(const float* row, Kind kind, Rows& rows, int index, int8_t* codes) const {
#ifdef __AVX512F__
  if (kind == Kind::INT4 && group_ % ROUNDED_COLUMNS == 0) {
    const long place = static_cast<long>(index) * rows.groups;
    return round_nibble_row(row, in_, group_, rows.groups,
                            {codes, codes + k_, rows.scales.data() + place, rows.sums.data() + place,
                             rows.offsets.data() + 2 * place,
                             rows.wide ? reinterpret_cast<bf16*>(codes + wide_place()) : nullptr});
  }
#endif
  const float steps = kind == Kind::INT4 ? SHARED_STEPS : kind == Kind::INT8 ? FINE_STEPS : COARSE_STEPS;
  for (int g = 0; g < rows.groups; ++g) {
    const int first = g * group_, count = std::min(group_, in_ - first);
    const float* values = row + first;
    const float unit = unit_of(values, count, steps);
    const long place = static_cast<long>(index) * rows.groups + g;
    rows.scales.data()[place] = unit;
    int& sum = rows.sums.data()[place];
    if (kind == Kind::INT4)
      sum = round_shared(values, count, group_, unit, codes + first, codes + k_ + first / 2);
    else if (kind == Kind::INT8)
      sum = round_fine(values, count, group_, unit, codes + first, codes + k_ + first);
    else
      sum = round_coarse(values, count, group_, unit, codes + first);
    if (kind != Kind::INT4) continue;
    rows.offsets.data()[2 * place] = static_cast<float>(sum);
    rows.offsets.data()[2 * place + 1] = unit * static_cast<float>(sum);
  }
#ifdef __AVX512BF16__
  if (rows.wide) matrix_unit::widen_row(codes, codes + k_, k_, reinterpret_cast<bf16*>(codes + wide_place()));
#endif
}

}  // namespace penstock
