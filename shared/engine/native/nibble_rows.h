// Rows for codes of 4 bits, in the form of quantized_rows.h, sixteen groups of columns at a time: what is one
// number of a group is a lane, and of 32 columns those that keep a low byte to themselves are one vector,
// those that share it another. All numbers are those that quantized_rows.h makes.
#pragma once

#include "matrix_unit_nibbles.h"

#ifdef __AVX512F__
namespace penstock {

constexpr int ROUNDED_GROUPS = LANES;              // at a time
constexpr int ROUNDED_COLUMNS = 2 * SHARED_BLOCK;  // a vector of each kind

// Where a row's numbers go.
struct NibbleRow {
  int8_t *high, *low;
  float* scales;   // [groups]
  int* sums;       // [groups]
  float* offsets;  // [groups, 2]
  bf16* wide;      // null: is not wide
};

// Numbers over a divisor, of which `inverse` is 1 / divisor: what a division gives, in a quarter of its time
// (Markstein 1990: a quotient within an ulp becomes the nearest one by what it leaves, which is exact).
class Quotients {
 public:
  explicit Quotients(__m512 divisors) {
    // Beyond that what is left is no longer exact where a quotient matters.
    const __mmask16 far = _mm512_cmp_ps_mask(divisors, _mm512_set1_ps(0x1p-60f), _CMP_NGE_UQ) |
                          _mm512_cmp_ps_mask(divisors, _mm512_set1_ps(0x1p60f), _CMP_NLE_UQ);
    divides_ = far != 0;
    _mm512_store_ps(divisor_, divisors);
    _mm512_store_ps(inverse_, _mm512_div_ps(_mm512_set1_ps(1.0f), divisors));
  }

  __m512 of(__m512 numbers, int group) const {
    const __m512 divisor = _mm512_set1_ps(divisor_[group]), inverse = _mm512_set1_ps(inverse_[group]);
    if (divides_) return _mm512_div_ps(numbers, divisor);
    __m512 quotient = _mm512_mul_ps(numbers, inverse);
    quotient = _mm512_fmadd_ps(_mm512_fnmadd_ps(quotient, divisor, numbers), inverse, quotient);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(quotient, divisor, numbers), inverse, quotient);
  }

 private:
  bool divides_;
  alignas(64) float divisor_[LANES], inverse_[LANES];
};

// A vector of a row of which `left` numbers are left; of a WHOLE one there are as many as groups have room
// for.
template <bool WHOLE>
inline __m512 row_vector(const float* row, [[maybe_unused]] int left) {
  if constexpr (WHOLE)
    return _mm512_loadu_ps(row);
  else
    return _mm512_maskz_loadu_ps(first_lanes(left), row);
}

// The largest |value| of each of `num` groups.
template <bool WHOLE>
inline __m512 largest_of_groups(const float* row, int in, int group, int num) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512 parts[LANES];
  for (int g = 0; g < num; ++g, row += group, in -= group) {
    __m512i most = _mm512_setzero_si512();
    for (int k = 0; k < group; k += LANES)
      most = _mm512_max_epi32(
          most, _mm512_and_si512(_mm512_castps_si512(row_vector<WHOLE>(row + k, in - k)), magnitude));
    parts[g] = _mm512_castsi512_ps(most);
  }
  for (int g = num; g < LANES; ++g) parts[g] = _mm512_setzero_ps();
  return across(parts, LANES, [](__m512 a, __m512 b) {
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  });
}

// Where the upper halves of two blocks' columns are, in the order of matrix_unit_nibbles.h.
struct UpperHalves {
  alignas(64) uint16_t places[32];

  constexpr UpperHalves() : places() {
    for (int at = 0; at < 32; ++at) {
      const int block = at / 16, column = matrix_unit::COLUMN_ORDER[at % 16];
      places[at] = static_cast<uint16_t>(2 * (8 * block + column % 8) + 1 + (column < 8 ? 0 : 32));
    }
  }
};
inline constexpr UpperHalves UPPER_HALVES;

// What `round_shared` makes of two blocks of columns: of the 16 that have a low byte of their own, and of the
// 16 that share it.
class RoundedBlocks {
 public:
  RoundedBlocks(__m512 x, __m512 y) {
    const __m512 sixteenth = _mm512_set1_ps(1.0f / 16.0f);
    const __m512i sixteens = _mm512_cvtps_epi32(_mm512_mul_ps(y, sixteenth));
    const __m512i digit = _mm512_and_si512(sixteens, _mm512_set1_epi32(15));
    const __m512 above_digit = _mm512_mul_ps(_mm512_sub_ps(x, _mm512_cvtepi32_ps(digit)), sixteenth);
    const __m512i a = _mm512_add_epi32(_mm512_slli_epi32(_mm512_cvtps_epi32(above_digit), 4), digit);
    lower_ = _mm512_srai_epi32(_mm512_slli_epi32(a, 24), 24);
    sum_ = _mm512_add_epi32(a, _mm512_slli_epi32(sixteens, 4));
    high_ = _mm512_cvtsepi32_epi8(_mm512_srai_epi32(_mm512_sub_epi32(a, lower_), SHARED_SHIFT));
    shared_high_ = _mm512_cvtsepi32_epi8(_mm512_srai_epi32(_mm512_sub_epi32(sixteens, lower_), 4));
  }

  __m512i sum() const { return sum_; }

  void store_bytes(int8_t* high, int8_t* low) const {
    _mm_storeu_si128((__m128i*)high, _mm_unpacklo_epi64(high_, shared_high_));
    _mm_storeu_si128((__m128i*)(high + SHARED_BLOCK), _mm_unpackhi_epi64(high_, shared_high_));
    _mm_storeu_si128((__m128i*)low, _mm512_cvtepi32_epi8(lower_));
  }

  // All of these are exact in bf16: its numbers are the upper halves of fp32's.
  void store_wide(bf16* numbers) const {
    const __m512 low = _mm512_cvtepi32_ps(lower_);
    _mm512_storeu_si512(numbers, ordered(units_of(high_), units_of(shared_high_)));
    _mm512_storeu_si512(numbers + matrix_unit::BF16_STEP,
                        ordered(low, _mm512_mul_ps(low, _mm512_set1_ps(16.0f))));
  }

 private:
  static __m512 units_of(__m128i high) {
    return _mm512_cvtepi32_ps(_mm512_slli_epi32(_mm512_cvtepi8_epi32(high), SHARED_SHIFT));
  }
  static __m512i ordered(__m512 own, __m512 shared) {
    return _mm512_permutex2var_epi16(_mm512_castps_si512(own), _mm512_load_si512(UPPER_HALVES.places),
                                     _mm512_castps_si512(shared));
  }

  __m512i lower_, sum_;
  __m128i high_, shared_high_;
};

template <bool WHOLE>
inline void round_nibble_groups(const float* row, int in, int group, int groups, NibbleRow to) {
  for (int first = 0; first < groups; first += ROUNDED_GROUPS) {
    const int num = std::min(ROUNDED_GROUPS, groups - first);
    const __mmask16 lanes = first_lanes(num);
    const float* values = row + static_cast<long>(first) * group;
    const int left = in - first * group;
    const __m512 units =
        _mm512_div_ps(largest_of_groups<WHOLE>(values, left, group, num), _mm512_set1_ps(SHARED_STEPS));
    const __m512 one = _mm512_set1_ps(1.0f);
    const Quotients quotients(
        _mm512_mask_mov_ps(one, _mm512_cmp_ps_mask(units, _mm512_setzero_ps(), _CMP_GT_OQ), units));
    __m512 parts[LANES];
    for (int g = 0; g < num; ++g) {
      __m512i sum = _mm512_setzero_si512();
      for (int k = g * group; k < (g + 1) * group; k += ROUNDED_COLUMNS) {
        const __m512 before = row_vector<WHOLE>(values + k, left - k);
        const __m512 after = row_vector<WHOLE>(values + k + LANES, left - k - LANES);
        const RoundedBlocks rounded(quotients.of(_mm512_shuffle_f32x4(before, after, 0x44), g),
                                    quotients.of(_mm512_shuffle_f32x4(before, after, 0xee), g));
        sum = _mm512_add_epi32(sum, rounded.sum());
        const int column = first * group + k;
        rounded.store_bytes(to.high + column, to.low + column / 2);
        if (to.wide != nullptr) rounded.store_wide(to.wide + matrix_unit::wide_column(column));
      }
      parts[g] = _mm512_castsi512_ps(sum);
    }
    for (int g = num; g < LANES; ++g) parts[g] = _mm512_setzero_ps();
    const __m512i sums = _mm512_castps_si512(across(parts, LANES, [](__m512 a, __m512 b) {
      return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
    }));
    _mm512_mask_storeu_ps(to.scales + first, lanes, units);
    _mm512_mask_storeu_epi32(to.sums + first, lanes, sums);
    const __m512 plain = _mm512_cvtepi32_ps(sums), scaled = _mm512_mul_ps(units, plain);
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    float* offsets = to.offsets + 2 * first;
    _mm512_mask_storeu_ps(offsets, first_lanes(2 * num), _mm512_permutex2var_ps(plain, low, scaled));
    _mm512_mask_storeu_ps(offsets + LANES, first_lanes(2 * num - LANES),
                          _mm512_permutex2var_ps(plain, _mm512_add_epi32(low, _mm512_set1_epi32(8)), scaled));
  }
}

// fp32 [in] -> groups of `group` columns, a multiple of ROUNDED_COLUMNS.
inline void round_nibble_row(const float* row, int in, int group, int groups, NibbleRow to) {
  if (in == groups * group)
    round_nibble_groups<true>(row, in, group, groups, to);
  else
    round_nibble_groups<false>(row, in, group, groups, to);
}

}  // namespace penstock
#endif
