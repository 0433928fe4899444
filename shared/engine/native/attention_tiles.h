// Attention's products on the matrix unit: of queries and keys, and of weights and values.
//
// A score is added up over 32 dims at a time, an output over 32 keys at a time, in the order of
// matrix_unit.h: of a step the products of even and of odd dims, or keys, apart, then both sums, and that
// goes to what was there. So a number's bits do not depend on whether its row is a tile's row, as of prompts,
// whose keys are packed for many rows, or a tile's column, as of decode steps, whose keys are a tile's rows
// as they are stored.
#pragma once

#include "attention_sums.h"
#include "matrix_unit.h"

namespace penstock::matrix_unit {

#ifdef __AVX512BF16__
// This thread's tiles for up to 16 rows of queries.
class HeadTiles {
 public:
  HeadTiles() = default;
  HeadTiles(const HeadTiles&) = delete;
  HeadTiles& operator=(const HeadTiles&) = delete;

  MATRIX_UNIT ~HeadTiles() {
    if (rows_ > 0) _tile_release();  // what is in use is saved whenever the thread changes
  }

  // Tiles 0 and 1 for scores, 2 times 3 for what makes them; 4 and 5 for outputs, 6 for weights, 7 for
  // values. `stored`: the keys are rows, and the queries columns.
  MATRIX_UNIT void lay_out(int rows, bool stored) {
    if (rows == rows_ && stored == stored_) return;
    rows_ = rows, stored_ = stored;
    const int query_bytes = rows * 4;
    Config config;
    for (int tile : {0, 1}) config.set(tile, stored ? UNIT_ROWS : rows, stored ? query_bytes : STEP_BYTES);
    config.set(2, stored ? UNIT_ROWS : rows, STEP_BYTES);
    config.set(3, UNIT_ROWS, stored ? query_bytes : STEP_BYTES);
    for (int tile : {4, 5, 6}) config.set(tile, rows, STEP_BYTES);
    config.set(7, UNIT_ROWS, STEP_BYTES);
    asm volatile("" ::: "memory");  // the instruction that loads it does not say how much of it is read
    _tile_loadconfig(&config);
  }

 private:
  int rows_ = 0;
  bool stored_ = false;
};
#else
class HeadTiles {};
#endif

#ifdef __AVX512BF16__  // which every CPU with a matrix unit has
// Scores of rows of queries [.., depth] and panels of 32 keys [depth / 2][32][2], of which `count` are keys.
MATRIX_UNIT inline void score_packed(const bf16* queries, const bf16* keys, int depth, int count,
                                     float (*scores)[TILE_KEYS]) {
  constexpr int OUT_BYTES = TILE_KEYS * sizeof(float);
  asm volatile("" ::: "memory");  // an instruction that loads a tile does not say what memory it reads
  for (int half = 0; half < count; half += PANEL, keys += depth * PANEL) {
    _tile_zero(0);
    _tile_zero(1);
    for (int d = 0; d < depth; d += BF16_STEP) {
      _tile_loadd(2, queries + d, depth * static_cast<long>(sizeof(bf16)));
      _tile_loadd(3, keys + d * PANEL, PANEL_ROW_BYTES);
      _tile_dpbf16ps(0, 2, 3);
      _tile_loadd(3, keys + d * PANEL + PANEL, PANEL_ROW_BYTES);
      _tile_dpbf16ps(1, 2, 3);
    }
    _tile_stored(0, scores[0] + half, OUT_BYTES);
    _tile_stored(1, scores[0] + half + LANES, OUT_BYTES);
  }
}

// Scores [16 keys][4] -> columns `first` and on of [4][..].
inline void turn_few(const float* by_key, float (*scores)[TILE_KEYS], int first) {
  const __m512i low = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(2));
  const __m512 a = _mm512_load_ps(by_key), b = _mm512_load_ps(by_key + LANES),
               c = _mm512_load_ps(by_key + 2 * LANES), d = _mm512_load_ps(by_key + 3 * LANES);
  const __m512 low_ab = _mm512_permutex2var_ps(a, low, b), low_cd = _mm512_permutex2var_ps(c, low, d),
               high_ab = _mm512_permutex2var_ps(a, high, b), high_cd = _mm512_permutex2var_ps(c, high, d);
  _mm512_store_ps(scores[0] + first, _mm512_shuffle_f32x4(low_ab, low_cd, 0x44));
  _mm512_store_ps(scores[1] + first, _mm512_shuffle_f32x4(low_ab, low_cd, 0xee));
  _mm512_store_ps(scores[2] + first, _mm512_shuffle_f32x4(high_ab, high_cd, 0x44));
  _mm512_store_ps(scores[3] + first, _mm512_shuffle_f32x4(high_ab, high_cd, 0xee));
}

// Scores of 16 keys, `stride` numbers apart, and `rows` queries as columns [depth / 2][rows][2], to columns
// `first` and on.
MATRIX_UNIT inline void score_stored(const bf16* keys, long stride, const bf16* queries, int rows, int depth,
                                     float (*scores)[TILE_KEYS], int first) {
  constexpr int FEW = 4;  // whose scores of 16 keys fill 4 vectors
  alignas(64) float by_key[UNIT_ROWS * LANES];
  asm volatile("" ::: "memory");  // an instruction that loads a tile does not say what memory it reads
  _tile_zero(0);
  for (int d = 0; d < depth; d += BF16_STEP) {
    _tile_loadd(2, keys + d, stride * static_cast<long>(sizeof(bf16)));
    _tile_loadd(3, queries + d * rows, rows * 4L);
    _tile_dpbf16ps(0, 2, 3);
  }
  if (rows <= FEW) {
    _tile_stored(0, by_key, FEW * sizeof(float));
    turn_few(by_key, scores, first);
    return;
  }
  _tile_stored(0, by_key, STEP_BYTES);
  __m512i by_row[UNIT_ROWS];
  for (int key = 0; key < UNIT_ROWS; ++key) by_row[key] = _mm512_load_si512(by_key + key * LANES);
  transpose16(by_row);
  for (int row = 0; row < rows; ++row) _mm512_store_si512(scores[row] + first, by_row[row]);
}

// Adds weights times a panel of values [count / 2][32][2] to 32 columns of outputs, `stride` numbers apart.
MATRIX_UNIT inline void add_values(const bf16 (*weights)[TILE_KEYS], const bf16* values, int count,
                                   float* outputs, long stride) {
  const long out_bytes = stride * static_cast<long>(sizeof(float));
  asm volatile("" ::: "memory");  // an instruction that loads a tile does not say what memory it reads
  _tile_loadd(4, outputs, out_bytes);
  _tile_loadd(5, outputs + LANES, out_bytes);
  for (int key = 0; key < count; key += BF16_STEP) {
    _tile_loadd(6, weights[0] + key, TILE_KEYS * sizeof(bf16));
    _tile_loadd(7, values + key * PANEL, PANEL_ROW_BYTES);
    _tile_dpbf16ps(4, 6, 7);
    _tile_loadd(7, values + key * PANEL + PANEL, PANEL_ROW_BYTES);
    _tile_dpbf16ps(5, 6, 7);
  }
  _tile_stored(4, outputs, out_bytes);
  _tile_stored(5, outputs + LANES, out_bytes);
}
#endif

}  // namespace penstock::matrix_unit
