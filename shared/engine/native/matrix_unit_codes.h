// Quantized linears on the matrix unit: the same whole numbers as on vectors, so the same bits.
#pragma once

#include "quantized_tile.h"

#ifdef __AVX512BF16__
namespace penstock::matrix_unit {

// The columns of an instruction: the most that divide a group, of which all are multiples of 16.
inline int step_of(int group) {
  int step = STEP_BYTES;
  while (group % step != 0) step -= 16;
  return step;
}

// A group of INT4's codes as bytes, in the order of INT8's.
inline void unpack(const uint8_t* codes, int group, uint8_t* bytes) {
  const __m512i low_nibbles = _mm512_set1_epi8(0x0f);
  constexpr int BLOCK = SHARED_BLOCK * PANEL;
  for (int k = 0; k < group; k += SHARED_BLOCK, codes += BLOCK / 2, bytes += BLOCK) {
#pragma GCC unroll 4
    for (int at = 0; at < BLOCK / 2; at += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(codes) + CODE_PREFETCH_BYTES + at, _MM_HINT_T0);
      const __m512i both = _mm512_loadu_si512(codes + at);
      _mm512_store_si512(bytes + at, _mm512_and_si512(both, low_nibbles));
      _mm512_store_si512(bytes + BLOCK / 2 + at, _mm512_and_si512(_mm512_srli_epi16(both, 4), low_nibbles));
    }
  }
}

// tile [num, 32] of a quantized linear, of at most UNIT_ROWS rows.
template <Kind KIND, bool MINIMA>
MATRIX_UNIT void multiply_quantized(Tiles& tiles, const QuantizedRows& rows, QuantizedPanel panel, int group,
                                    int num, float* tile) {
  constexpr bool LOW = KIND != Kind::INT8_COARSE, PACKED = KIND == Kind::INT4;
  alignas(64) int sums[4][UNIT_ROWS][LANES];  // of high bytes and 16 columns each, of low bytes
  alignas(64) uint8_t unpacked[PACKED ? MAX_GROUP * PANEL : 64];
  const int8_t *high = rows.high, *low = rows.low;
  const int step = step_of(group), low_step = step / COLUMNS_PER_BYTE<KIND>;
  tiles.lay_out(num, step, low_step);
  for (int at = 0; at < num * PANEL; at += LANES) _mm512_store_ps(tile + at, _mm512_setzero_ps());
  for (int g = 0; g < rows.groups; ++g) {
    const uint8_t* codes = panel.codes.data;
    if constexpr (PACKED) {
      unpack(codes, group, unpacked);
      codes = unpacked;
    }
    asm volatile("" ::: "memory");  // an instruction that loads a tile does not say what memory it reads
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int k = 0; k < group; k += step) {
      const uint8_t* columns = codes + k * PANEL;
      const uint8_t* low_columns = panel.codes.data + k * PANEL / COLUMNS_PER_BYTE<KIND>;
      _tile_loadd(4, high + k, rows.stride);
      if constexpr (LOW) _tile_loadd(5, low + k / COLUMNS_PER_BYTE<KIND>, rows.stride);
      _tile_loadd(6, columns, PANEL_ROW_BYTES);
      _tile_dpbsud(0, 4, 6);
      if constexpr (LOW) {
        _tile_loadd(7, low_columns, PANEL_ROW_BYTES);
        _tile_dpbsud(2, 5, 7);
      }
      _tile_loadd(6, columns + STEP_BYTES, PANEL_ROW_BYTES);
      _tile_dpbsud(1, 4, 6);
      if constexpr (LOW) {
        _tile_loadd(7, low_columns + STEP_BYTES, PANEL_ROW_BYTES);
        _tile_dpbsud(3, 5, 7);
      }
    }
    _tile_stored(0, sums[0], STEP_BYTES);
    _tile_stored(1, sums[1], STEP_BYTES);
    if constexpr (LOW) {
      _tile_stored(2, sums[2], STEP_BYTES);
      _tile_stored(3, sums[3], STEP_BYTES);
    }
    panel.codes.data += group * PANEL / COLUMNS_PER_BYTE<KIND>;
    high += group;
    low += group / COLUMNS_PER_BYTE<KIND>;
    for (int half = 0; half < 2; ++half) {
      const GroupScales<MINIMA> scales(panel, half);
#pragma GCC unroll 4
      for (int r = 0; r < num; ++r) {
        Sums sum = (Sums)_mm512_load_si512(sums[half][r]);
        if constexpr (LOW) sum = (sum << HIGH_SHIFT<KIND>)+(Sums)_mm512_load_si512(sums[2 + half][r]);
        float* total = tile + r * PANEL + half * LANES;
        _mm512_store_ps(total, scales.add(_mm512_load_ps(total), sum, rows.scales[r * rows.groups + g],
                                          rows.sums[r * rows.groups + g]));
      }
    }
    panel.next_group<MINIMA>();
  }
}

}  // namespace penstock::matrix_unit
#endif
