// Many rows times INT4's codes in small groups on the matrix unit: the same whole numbers as on vectors, so
// the same bits.
//
// Groups of 32 would leave half of a step of bytes idle, and make two sums of each, of high and of low bytes.
// Here all is bf16: a code is exact in it, and so are 256 high and low, the parts of a row's number
// (quantized_rows.h). The unit adds up the products of both in fp32, where sums below 2^24 are exact in any
// order, and those of 32 columns are below it. Codes are unpacked once for a tile's rows.
#pragma once

#include "quantized_tile.h"

namespace penstock::matrix_unit {

// Where column `k` is among a row's numbers, a multiple of 16.
inline long wide_column(int k) {
  return k / BF16_STEP * 2 * BF16_STEP + k % BF16_STEP;
}

// Columns are in the order in which codes are unpacked: of each 16 these.
alignas(64) constexpr int COLUMN_ORDER[16] = {0, 2, 8, 10, 1, 3, 9, 11, 4, 6, 12, 14, 5, 7, 13, 15};

}  // namespace penstock::matrix_unit

#ifdef __AVX512BF16__  // which every CPU with a matrix unit has
namespace penstock::matrix_unit {

static_assert((SHARED_STEPS + 16.0f) * 15.0f * BF16_STEP < 1 << 24);

// Rows from the first that a tile takes. Of each 32 columns their 256 high, then their low.
struct WideRows {
  const bf16* numbers;
  long stride;           // in numbers
  const float* scales;   // [rows, groups]
  const float* offsets;  // [rows, groups, 2]: the sum of the group, as it is and times the scale
  int groups;
};

// `count` columns of high and low bytes -> bf16.
inline void widen_row(const int8_t* high, const int8_t* low, int count, bf16* numbers) {
  const __m512i order = _mm512_load_si512(COLUMN_ORDER);
  const __m512 high_unit = _mm512_set1_ps(1 << SHARED_SHIFT);
  const __m512 low_units = _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, 16, 16, 16, 16, 16, 16, 16, 16);
  const auto widen = [&](__m128i bytes, __m512 units, bf16* place) {
    const __m512 some = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), units);
    _mm256_storeu_si256((__m256i*)place, narrow(_mm512_permutexvar_ps(order, some)));
  };
  for (int k = 0; k < count; k += SHARED_BLOCK) {
    const __m128i shared = _mm_loadl_epi64((const __m128i*)(low + k / 2));
    bf16* place = numbers + wide_column(k);
    widen(_mm_loadu_si128((const __m128i*)(high + k)), high_unit, place);
    widen(_mm_unpacklo_epi64(shared, shared), low_units, place + BF16_STEP);
  }
}

// What rows meet next: columns in pairs, as the unit takes them, and how each group's sums are scaled.
struct Chunk {
  alignas(64) bf16 columns[CHUNK_COLUMNS * PANEL];
  __m512 scales[CHUNK_COLUMNS / 16][2];
  __m512 offsets[CHUNK_COLUMNS / 16][2];  // minima or zeros
};

// `count` columns -> [count / 2][32][2].
inline void unpack_nibbles(const uint8_t* codes, int count, bf16* columns) {
  alignas(64) static constexpr bf16 NUMBERS[32] = {
      0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120,
      0x4130, 0x4140, 0x4150, 0x4160, 0x4170, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0,
      0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
  const __m512i numbers = _mm512_load_si512(NUMBERS);  // twice: the bit above a nibble says nothing
  for (const uint8_t* end = codes + count * PANEL / 2; codes != end; codes += 4 * PANEL, columns += 8 * PANEL)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      _mm_prefetch(reinterpret_cast<const char*>(codes) + CODE_PREFETCH_BYTES + 64 * half, _MM_HINT_T0);
      const __m512i four = _mm512_loadu_si512(codes + 64 * half);
      bf16* place = columns + half * PANEL;
      _mm512_store_si512(place, _mm512_permutexvar_epi16(four, numbers));
      _mm512_store_si512(place + 2 * PANEL, _mm512_permutexvar_epi16(_mm512_srli_epi16(four, 4), numbers));
      _mm512_store_si512(place + 4 * PANEL, _mm512_permutexvar_epi16(_mm512_srli_epi16(four, 8), numbers));
      _mm512_store_si512(place + 6 * PANEL, _mm512_permutexvar_epi16(_mm512_srli_epi16(four, 12), numbers));
    }
}

// The next `groups` groups of a panel.
template <bool MINIMA>
void unpack(QuantizedPanel& panel, int groups, int group, Chunk& chunk) {
  unpack_nibbles(panel.codes.data, groups * group, chunk.columns);
  panel.codes.data += groups * group * PANEL / 2;
  for (int at = 0; at < groups; ++at, panel.next_group<MINIMA>())
    for (int half = 0; half < 2; ++half) {
      const GroupScales<MINIMA> scales(panel, half);
      chunk.scales[at][half] = scales.scale;
      if constexpr (MINIMA)
        chunk.offsets[at][half] = scales.minimum;
      else
        chunk.offsets[at][half] = _mm512_cvtepi32_ps((__m512i)scales.zero);
    }
}

// The sums of a group, in the first or the second pair of tiles: while those of one are added up, those of
// the next are made.
template <int PAIR>
MATRIX_UNIT inline void multiply_group(const bf16* numbers, long row_bytes, const bf16* columns) {
  _tile_loadd(6, columns, PANEL_ROW_BYTES);
  _tile_loadd(7, columns + PANEL, PANEL_ROW_BYTES);
  _tile_loadd(4, numbers, row_bytes);
  _tile_loadd(5, numbers + BF16_STEP, row_bytes);
  if constexpr (PAIR == 0) {
    _tile_zero(0);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(0, 5, 6);
    _tile_zero(1);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(1, 5, 7);
  } else {
    _tile_zero(2);
    _tile_dpbf16ps(2, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
    _tile_zero(3);
    _tile_dpbf16ps(3, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// totals += the sums of group `at` of the chunk, which is group `g` of the rows, scaled as GroupScales has
// it.
template <int PAIR, int R, bool MINIMA>
MATRIX_UNIT inline void add_group(const WideRows& rows, int g, const Chunk& chunk, int at,
                                  __m512 (&totals)[R][2]) {
  alignas(64) float sums[2][MAX_TILE_ROWS][LANES];
  if constexpr (PAIR == 0) {
    _tile_stored(0, sums[0], STEP_BYTES);
    _tile_stored(1, sums[1], STEP_BYTES);
  } else {
    _tile_stored(2, sums[0], STEP_BYTES);
    _tile_stored(3, sums[1], STEP_BYTES);
  }
  const __m512 scales[2] = {chunk.scales[at][0], chunk.scales[at][1]};
  const __m512 offsets[2] = {chunk.offsets[at][0], chunk.offsets[at][1]};
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    const long place = static_cast<long>(r) * rows.groups + g;
    const __m512 row_scale = _mm512_set1_ps(rows.scales[place]);
    const __m512 row_offset = _mm512_set1_ps(rows.offsets[2 * place + (MINIMA ? 1 : 0)]);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512 factor = _mm512_mul_ps(scales[half], row_scale), sum = _mm512_load_ps(sums[half][r]);
      __m512& total = totals[r][half];
      if constexpr (MINIMA) {
        total = _mm512_fmadd_ps(sum, factor, total);
        total = _mm512_fmadd_ps(offsets[half], row_offset, total);
      } else {
        total = _mm512_fmadd_ps(_mm512_fnmadd_ps(offsets[half], row_offset, sum), factor, total);
      }
    }
  }
}

// tile [R, 32] += rows @ the chunk, whose first group is group `g` of the rows. Nothing was there before
// group 0.
template <int R, bool MINIMA>
MATRIX_UNIT void add_chunk(const WideRows& rows, int g, const Chunk& chunk, int groups, int group,
                           float* tile) {
  const long row_bytes = rows.stride * static_cast<long>(sizeof(bf16));
  const auto multiply = [&]<int PAIR>(int at) MATRIX_UNIT {
    multiply_group<PAIR>(rows.numbers + wide_column((g + at) * group), row_bytes,
                         chunk.columns + at * group * PANEL);
  };
  __m512 totals[R][2];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    totals[r][0] = g == 0 ? _mm512_setzero_ps() : _mm512_load_ps(tile + r * PANEL);
    totals[r][1] = g == 0 ? _mm512_setzero_ps() : _mm512_load_ps(tile + r * PANEL + LANES);
  }
  multiply.template operator()<0>(0);
  int at = 1;
  for (; at + 1 < groups; at += 2) {
    multiply.template operator()<1>(at);
    add_group<0, R, MINIMA>(rows, g + at - 1, chunk, at - 1, totals);
    multiply.template operator()<0>(at + 1);
    add_group<1, R, MINIMA>(rows, g + at, chunk, at, totals);
  }
  if (at < groups) multiply.template operator()<1>(at);
  add_group<0, R, MINIMA>(rows, g + at - 1, chunk, at - 1, totals);
  if (at < groups) add_group<1, R, MINIMA>(rows, g + at, chunk, at, totals);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    _mm512_store_ps(tile + r * PANEL, totals[r][0]);
    _mm512_store_ps(tile + r * PANEL + LANES, totals[r][1]);
  }
}

// tile [num, 32] of a linear in INT4, of at most NIBBLE_BLOCK_ROWS rows.
template <bool MINIMA>
MATRIX_UNIT void multiply_nibbles(Tiles& tiles, const WideRows& rows, QuantizedPanel panel, int group,
                                  int num, float* tile) {
  Chunk chunk;
  const int most = CHUNK_COLUMNS / group, step = group * static_cast<int>(sizeof(bf16));
  tiles.lay_out(std::min(num, MAX_TILE_ROWS), step, step);  // for fewer rows, too: to change it takes long
  for (int g = 0; g < rows.groups; g += most) {
    const int groups = std::min(most, rows.groups - g);
    unpack<MINIMA>(panel, groups, group, chunk);
    asm volatile("" ::: "memory");  // an instruction that loads a tile does not say what memory it reads
    for (int first = 0; first < num; first += MAX_TILE_ROWS) {
      const int height = std::min(MAX_TILE_ROWS, num - first);
      const long group_place = static_cast<long>(first) * rows.groups;
      const WideRows some{rows.numbers + first * rows.stride, rows.stride, rows.scales + group_place,
                          rows.offsets + 2 * group_place, rows.groups};
      with_rows(height, [&]<int R>() MATRIX_UNIT {
        add_chunk<R, MINIMA>(some, g, chunk, groups, group, tile + first * PANEL);
      });
    }
  }
}

}  // namespace penstock::matrix_unit
#endif
