// Products of rows in fp32 and a tile of keys or values that a KV head has stored, for CPUs without an
// instruction for bf16, and for fp32.
//
// Each number is one chain of fused multiply-adds, as `multiply` in tile.h makes it: over dims, or keys, in
// order, of bf16 the higher of two first. A row's result does not depend on the rows beside it.
#pragma once

#include "attention_sums.h"
#include "lines_ahead.h"
#include "registers.h"
#include "tile.h"

namespace penstock {

constexpr int FEW_ROWS = MOST_SUMS / 2;  // that meet a tile at a time, two registers of it at least
constexpr int DIMS_AT_ONCE = 16;         // between which lines are asked for

// Where a block's keys, or values, of one KV head are.
template <class E>
struct BlockRows {
  const E* first;
  long stride;

  const E* row(int i) const { return first + i * stride; }
};

// Scores of R rows of queries [depth][R] and a tile of keys [depth / STEP][TILE_KEYS][STEP], the first
// `count` of them in whole registers at least.
template <int R, class E>
inline void score_rows(const float* queries, const E* keys, int depth, int count, float (*scores)[TILE_KEYS],
                       LinesAhead& ahead) {
  constexpr int WIDE = registers_at_once(R);
  const int lines = ahead.share(TILE_KEYS / (WIDE * REGISTER_LANES) * (depth / DIMS_AT_ONCE));
  for (int first = 0; first < count; first += WIDE * REGISTER_LANES) {
    Register sums[R][WIDE];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int each = 0; each < WIDE; ++each) sums[r][each] = everywhere(0.0f);
    const float* row = queries;
    const E* column = keys + first * STEP<E>;
    for (int d = 0; d < depth; d += STEP<E>, row += R * STEP<E>, column += TILE_KEYS * STEP<E>) {
      if (d % DIMS_AT_ONCE == 0) ahead.ask(lines);
#pragma GCC unroll 2
      for (int part = STEP<E> - 1; part >= 0; --part) {
        Register key[WIDE];
#pragma GCC unroll 4
        for (int each = 0; each < WIDE; ++each) {
          const E* at = column + each * REGISTER_LANES * STEP<E>;
          if constexpr (sizeof(E) == 4)
            key[each] = register_at(at);
          else
            key[each] = part == 0 ? first_of_pairs(at) : second_of_pairs(at);
        }
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const Register query = everywhere(row[part * R + r]);
#pragma GCC unroll 4
          for (int each = 0; each < WIDE; ++each)
            sums[r][each] = multiply_add(query, key[each], sums[r][each]);
        }
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int each = 0; each < WIDE; ++each)
        put_register(scores[r] + first + each * REGISTER_LANES, sums[r][each]);
  }
}

// Of bf16 a register has every other dim: the even ones of twice its lanes, then the odd ones. So the sums of
// values lie, until `in_order`.
constexpr int SPLIT_DIMS = 2 * REGISTER_LANES;

template <class E>
inline Register value_register(const E* row, int each) {
  if constexpr (sizeof(E) == 4) {
    return register_at(row + each * REGISTER_LANES);
  } else {
    const E* pairs = row + each / 2 * SPLIT_DIMS;
    return each % 2 == 0 ? first_of_pairs(pairs) : second_of_pairs(pairs);
  }
}

// Adds weights [R][TILE_KEYS] times the values of `count` keys, whole steps, to WIDE registers of each row's
// sums, of which the first is the `first`th. `lines` are asked for with each block.
template <int R, int WIDE, class E>
inline void add_value_registers(const float (*weights)[TILE_KEYS], const BlockRows<E>* blocks, int count,
                                int first, float* sums, long stride, LinesAhead& ahead, int lines) {
  float* const place = sums + first * REGISTER_LANES;
  Register sum[R][WIDE];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int each = 0; each < WIDE; ++each)
      sum[r][each] = register_at(place + r * stride + each * REGISTER_LANES);
  for (int at = 0; at < count; at += BLOCK_TOKENS) {
    const BlockRows<E>& block = blocks[at / BLOCK_TOKENS];
    const int end = std::min(BLOCK_TOKENS, count - at);
    ahead.ask(lines);
    for (int i = 0; i < end; i += STEP<E>)
#pragma GCC unroll 2
      for (int part = STEP<E> - 1; part >= 0; --part) {
        const E* row = block.row(i + part);
        const float* weight = weights[0] + at + i + part;
        Register value[WIDE];
#pragma GCC unroll 4
        for (int each = 0; each < WIDE; ++each) value[each] = value_register(row, first + each);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const Register of_row = everywhere(weight[r * TILE_KEYS]);
#pragma GCC unroll 4
          for (int each = 0; each < WIDE; ++each)
            sum[r][each] = multiply_add(of_row, value[each], sum[r][each]);
        }
      }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int each = 0; each < WIDE; ++each)
      put_register(place + r * stride + each * REGISTER_LANES, sum[r][each]);
}

// The same to all sums of each row, whole panels.
template <int R, class E>
inline void add_value_rows(const float (*weights)[TILE_KEYS], const BlockRows<E>* blocks, int count,
                           int width, float* sums, long stride, LinesAhead& ahead) {
  constexpr int WIDE = registers_at_once(R), LEFT = std::min(WIDE, 2);
  const int end = width / REGISTER_LANES;
  const int lines = ahead.share((end + WIDE - 1) / WIDE * (TILE_KEYS / BLOCK_TOKENS));
  int first = 0;
  for (; first + WIDE <= end; first += WIDE)
    add_value_registers<R, WIDE>(weights, blocks, count, first, sums, stride, ahead, lines);
  if constexpr (WIDE > LEFT)
    for (; first < end; first += LEFT)
      add_value_registers<R, LEFT>(weights, blocks, count, first, sums, stride, ahead, lines);
}

// Sums of values as `add_value_rows` has them, in the order of dims.
template <class E>
inline void in_order(const float* sums, int width, float* out) {
  if constexpr (sizeof(E) == 4) {
    std::memcpy(out, sums, width * sizeof(float));
  } else {
    for (int d = 0; d < width; d += SPLIT_DIMS)
      for (int i = 0; i < REGISTER_LANES; ++i) {
        out[d + 2 * i] = sums[d + i];
        out[d + 2 * i + 1] = sums[d + REGISTER_LANES + i];
      }
  }
}

}  // namespace penstock
