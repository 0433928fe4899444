// K-quants of 4 bits meet rows as INT4's codes do (quantized_rows.h): sums of 32 columns are exact, and those
// of a superblock are added up in fp32, times their steps, before its scale and minimum meet them.
#pragma once

#include "quantized_tile.h"
#include "superblock_factors.h"

namespace penstock {

constexpr int NIBBLE_GROUP = LEAST_COLUMNS;
static_assert(super_chunk_bytes(4) == NIBBLE_GROUP * PANEL / COLUMNS_PER_BYTE<Kind::INT4>);

// tile [R, 32].
template <int R>
void multiply_nibble_superblocks(const QuantizedRows& rows, const uint8_t* block, int superblocks,
                                 float* tile) {
  const auto floats = [](const uint8_t* factors, int half) {
    return _mm512_cvtepi32_ps(wide_factors(factors, half));
  };
  for (int superblock = 0; superblock < superblocks; ++superblock, block += super_bytes(4)) {
    for (int line = 0; line < super_head_bytes(4); line += 64)
      _mm_prefetch(reinterpret_cast<const char*>(block) + CODE_PREFETCH_BYTES + line, _MM_HINT_T0);
    const SixBitFactors factors(block);
    const uint8_t* codes = block + super_head_bytes(4);
    const int first = superblock * SUPER_CHUNKS;
    __m512 scaled[R][2];
    clear<R>(scaled);
    for (int g = 0; g < SUPER_CHUNKS; ++g, codes += super_chunk_bytes(4)) {
      Sums sum[R][2];
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = Sums{};
      add_group<R, Kind::INT4, false>(rows, (first + g) * NIBBLE_GROUP, codes, NIBBLE_GROUP, sum);
#pragma GCC unroll 2
      for (int first_half = 0; first_half < 2; first_half += VECTORS_AT_ONCE) {
        const __m512 steps[] = {floats(factors.steps[g], first_half),
                                floats(factors.steps[g], first_half + VECTORS_AT_ONCE - 1)};
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const __m512 row_scale = _mm512_set1_ps(rows.scales[r * rows.groups + first + g]);
#pragma GCC unroll 2
          for (int each = 0; each < VECTORS_AT_ONCE; ++each) {
            __m512& at = scaled[r][first_half + each];
            at = _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)sum[r][first_half + each]),
                                 _mm512_mul_ps(steps[each], row_scale), at);
          }
        }
      }
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m512 least[R];
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) least[r] = _mm512_setzero_ps();
      for (int g = 0; g < SUPER_CHUNKS; ++g) {
        const __m512 some = floats(factors.least[g], half);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r)
          least[r] = _mm512_fmadd_ps(
              some, _mm512_set1_ps(rows.offsets[2 * (r * rows.groups + first + g) + 1]), least[r]);
      }
      const __m512 scale = super_scale(block, half), minimum = super_minimum(block, half);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        float* place = tile + r * PANEL + half * LANES;
        const __m512 before = superblock == 0 ? _mm512_setzero_ps() : _mm512_load_ps(place);
        _mm512_store_ps(place,
                        _mm512_fnmadd_ps(minimum, least[r], _mm512_fmadd_ps(scale, scaled[r][half], before)));
      }
    }
  }
}

}  // namespace penstock
