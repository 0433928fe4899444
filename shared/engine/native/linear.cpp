#include "linear.h"

#include <algorithm>
#include <stdexcept>

#include "quantized_rows.h"

namespace penstock {
namespace {

constexpr int DOT_WIDTH = 4;               // int8 products that one VNNI lane adds up
constexpr int CODE_PREFETCH_BYTES = 8192;  // codes are used up several times as fast as floats
constexpr int MAX_ROWS_AT_ONCE = 4;        // whose high and low sums have room in registers beside each other

// A vector of the type that integer dot products add to: GCC copies any other one in front of and behind
// each.
using Sums = int __attribute__((vector_size(64)));

inline Sums add_products(Sums sums, __m512i codes, __m512i row_codes) {
  return (Sums)_mm512_dpbusd_epi32((__m512i)sums, codes, row_codes);
}

// Rows of whole numbers, from the first that a tile takes, and the parts of a panel that they meet.
struct QuantizedRows {
  const int8_t *high, *low;  // of row 0
  long stride;
  const float* scales;
  const int* sums;
  int groups;
};
struct QuantizedPanel {
  const uint8_t* codes;
  const uint16_t* scales;
  const uint8_t* zeros;
  const uint16_t* minima;
};

inline __m512i four_of(const int8_t* row_codes) {
  int quad;
  std::memcpy(&quad, row_codes, sizeof quad);
  return _mm512_set1_epi32(quad);
}

inline void fetch_ahead(const uint8_t* codes, int lines) {
  for (int line = 0; line < lines; ++line)
    _mm_prefetch(reinterpret_cast<const char*>(codes) + CODE_PREFETCH_BYTES + 64 * line, _MM_HINT_T0);
}

// The products of one group with the rows' high bytes, low bytes or both, which then go to sums of their own.
template <int R, Kind KIND, bool HIGH, bool LOW>
inline void add_group(const int8_t* high, const int8_t* low, long stride, const uint8_t* codes, int group,
                      Sums (&highs)[R][2], Sums (&lows)[R][2]) {
  if constexpr (KIND == Kind::INT4) {
    const __m512i low_nibbles = _mm512_set1_epi8(0x0f);
    for (int k = 0; k < group; k += SHARED_BLOCK, codes += 256) {
      if constexpr (HIGH) fetch_ahead(codes, 4);
#pragma GCC unroll 2
      for (int quad = 0; quad < 8; quad += DOT_WIDTH) {
        const __m512i b0 = _mm512_loadu_si512(codes + 32 * quad);
        const __m512i b1 = _mm512_loadu_si512(codes + 32 * quad + 64);
        if constexpr (HIGH) {
          const __m512i first0 = _mm512_and_si512(b0, low_nibbles);
          const __m512i first1 = _mm512_and_si512(b1, low_nibbles);
          const __m512i second0 = _mm512_and_si512(_mm512_srli_epi16(b0, 4), low_nibbles);
          const __m512i second1 = _mm512_and_si512(_mm512_srli_epi16(b1, 4), low_nibbles);
#pragma GCC unroll 12
          for (int r = 0; r < R; ++r) {
            const __m512i first = four_of(high + r * stride + k + quad);
            const __m512i second = four_of(high + r * stride + k + 8 + quad);
            highs[r][0] = add_products(highs[r][0], first0, first);
            highs[r][1] = add_products(highs[r][1], first1, first);
            highs[r][0] = add_products(highs[r][0], second0, second);
            highs[r][1] = add_products(highs[r][1], second1, second);
          }
        }
        if constexpr (LOW) {
#pragma GCC unroll 12
          for (int r = 0; r < R; ++r) {
            const __m512i shared = four_of(low + r * stride + k / 2 + quad);
            lows[r][0] = add_products(lows[r][0], b0, shared);
            lows[r][1] = add_products(lows[r][1], b1, shared);
          }
        }
      }
    }
  } else {
    for (int k = 0; k < group; k += DOT_WIDTH, codes += 128) {
      if constexpr (HIGH) fetch_ahead(codes, 2);
      const __m512i b0 = _mm512_loadu_si512(codes), b1 = _mm512_loadu_si512(codes + 64);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        if constexpr (HIGH) {
          const __m512i a = four_of(high + r * stride + k);
          highs[r][0] = add_products(highs[r][0], b0, a);
          highs[r][1] = add_products(highs[r][1], b1, a);
        }
        if constexpr (LOW) {
          const __m512i a = four_of(low + r * stride + k);
          lows[r][0] = add_products(lows[r][0], b0, a);
          lows[r][1] = add_products(lows[r][1], b1, a);
        }
      }
    }
  }
}

// [R, 32] of a quantized linear: per group exact integer sums, then scaled and added up in fp32.
// W = (code - zero) * scale, so sum(W a) = scale * scale_a * (sum(code * a) - zero * sum(a)).
// W = code * scale + minimum, so sum(W a) = scale_a * (scale * sum(code * a) + minimum * sum(a)).
template <int R, Kind KIND, bool MINIMA>
void multiply_quantized(const QuantizedRows& rows, QuantizedPanel panel, int group, float* tile) {
  constexpr int SHIFT = KIND == Kind::INT4 ? SHARED_SHIFT : FINE_SHIFT;
  constexpr int COLUMNS_PER_BYTE = KIND == Kind::INT4 ? 2 : 1;  // of codes and of low bytes
  const int8_t *high = rows.high, *low = rows.low;
  __m512 total[R][2];
  clear<R>(total);
  for (int g = 0; g < rows.groups; ++g) {
    Sums sum[R][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = Sums{};
    if constexpr (KIND == Kind::INT8_COARSE) {
      add_group<R, KIND, true, false>(high, low, rows.stride, panel.codes, group, sum, sum);
    } else if constexpr (R <= MAX_ROWS_AT_ONCE) {
      Sums lows[R][2];
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) lows[r][0] = lows[r][1] = Sums{};
      add_group<R, KIND, true, true>(high, low, rows.stride, panel.codes, group, sum, lows);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) sum[r][half] = (sum[r][half] << SHIFT) + lows[r][half];
    } else {
      add_group<R, KIND, true, false>(high, low, rows.stride, panel.codes, group, sum, sum);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) sum[r][half] <<= SHIFT;
      add_group<R, KIND, false, true>(high, low, rows.stride, panel.codes, group, sum, sum);
    }
    panel.codes += group * PANEL / COLUMNS_PER_BYTE;
    high += group;
    low += group / COLUMNS_PER_BYTE;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const auto halves = [&](const uint16_t* of) {
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(of + half * LANES)));
      };
      const __m512 scale = halves(panel.scales);
      if constexpr (MINIMA) {
        const __m512 minimum = halves(panel.minima);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const float row_scale = rows.scales[r * rows.groups + g];
          const auto row_sum = static_cast<float>(rows.sums[r * rows.groups + g]);
          const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(row_scale));
          total[r][half] = _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)sum[r][half]), factor, total[r][half]);
          total[r][half] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(row_scale * row_sum), total[r][half]);
        }
      } else {
        const Sums zero =
            (Sums)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(panel.zeros + half * LANES)));
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const Sums exact = sum[r][half] - zero * rows.sums[r * rows.groups + g];
          const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(rows.scales[r * rows.groups + g]));
          total[r][half] = _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)exact), factor, total[r][half]);
        }
      }
    }
    panel.scales += PANEL;
    if constexpr (MINIMA)
      panel.minima += PANEL;
    else
      panel.zeros += PANEL;
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    _mm512_store_ps(tile + r * PANEL, total[r][0]);
    _mm512_store_ps(tile + r * PANEL + LANES, total[r][1]);
  }
}

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

bool in_high_nibble(int k) {  // of the two codes that share a byte
  return k % SHARED_BLOCK >= 8;
}

long odd_lines(long bytes) {
  return ((bytes + 63) / 64 | 1) * 64;
}

}  // namespace

Linear::Linear(Kind kind, int out, int in, int group, bool gated)
    : kind_(kind),
      out_(out),
      in_(in),
      k_(round_up(in, group > 0            ? group
                      : kind == Kind::BF16 ? 2
                                           : 1)),
      panels_((gated ? (out / 2 + LANES - 1) / LANES : (out + PANEL - 1) / PANEL)),
      group_(group),
      gated_(gated) {
  const int bits = kind == Kind::F32 ? 32 : kind == Kind::BF16 ? 16 : kind == Kind::INT4 ? 4 : 8;
  panel_bytes_ = static_cast<long>(k_) * PANEL * bits / 8;
}

Linear::Linear(const void* weight, Kind kind, const float* bias, int out, int in, bool gated)
    : Linear(kind, out, in, 0, gated) {
  const int item = kind == Kind::BF16 ? 2 : 4, step = kind == Kind::BF16 ? 2 : 1;
  weights_ = Buffer<uint8_t>::in_arena(weight_bytes());
  std::memset(weights_.data(), 0, weights_.bytes());
  const auto* source = static_cast<const uint8_t*>(weight);
#pragma omp parallel for
  for (int panel = 0; panel < panels_; ++panel)
    for (int lane = 0; lane < PANEL; ++lane) {
      const int row = source_row(panel, lane);
      if (row < 0) continue;
      for (int k = 0; k < in_; ++k)
        std::memcpy(
            weights_.data() + panel * panel_bytes_ + ((k / step * PANEL + lane) * step + k % step) * item,
            source + (static_cast<long>(row) * in_ + k) * item, item);
    }
  pack_bias(bias);
}

Linear::Linear(Kind kind, const uint8_t* codes, const uint16_t* scales, const uint8_t* zeros,
               const uint16_t* minima, const float* bias, int out, int in, int group, bool gated)
    : Linear(kind, out, in, group, gated) {
  const int groups = k_ / group;
  weights_ = Buffer<uint8_t>::in_arena(weight_bytes());
  scales_ = Buffer<uint16_t>::in_arena(scale_count());
  if (minima == nullptr)
    zeros_ = Buffer<uint8_t>::in_arena(scale_count());
  else
    minima_ = Buffer<uint16_t>::in_arena(scale_count());
  std::memset(weights_.data(), 0, weights_.bytes());
  std::memset(scales_.data(), 0, scales_.bytes());
  if (zeros_.bytes() > 0) std::memset(zeros_.data(), 0, zeros_.bytes());
  if (minima_.bytes() > 0) std::memset(minima_.data(), 0, minima_.bytes());
#pragma omp parallel for
  for (int panel = 0; panel < panels_; ++panel)
    for (int lane = 0; lane < PANEL; ++lane) {
      const int row = source_row(panel, lane);
      if (row < 0) continue;
      uint8_t* target = weights_.data() + panel * panel_bytes_;
      for (int k = 0; k < in_; ++k) {
        const uint8_t code = codes[static_cast<long>(row) * in_ + k];
        if (kind == Kind::INT4)
          target[code_place(k, lane)] |= in_high_nibble(k) ? code << 4 : code;
        else
          target[code_place(k, lane)] = code;
      }
      for (int g = 0; g < groups; ++g) {
        const long place = (static_cast<long>(panel) * groups + g) * PANEL + lane;
        const long source = static_cast<long>(row) * groups + g;
        scales_.data()[place] = scales[source];
        if (minima == nullptr)
          zeros_.data()[place] = zeros[source];
        else
          minima_.data()[place] = minima[source];
      }
    }
  pack_bias(bias);
}

Linear::Linear(const PackedShape& packed)
    : Linear(static_cast<Kind>(packed.kind), packed.out, packed.in, packed.group, packed.gated != 0) {
  const size_t minima = packed.parts[4] == nullptr ? 0 : scale_count();
  const size_t expected[] = {weight_bytes(), 2 * scale_count(), scale_count() - minima,
                             packed.parts[3] == nullptr ? 0 : panels_ * PANEL * sizeof(float), 2 * minima};
  for (int part = 0; part < 5; ++part)
    if (static_cast<size_t>(packed.bytes[part]) != expected[part])
      throw std::invalid_argument("a part is not as long as the shape demands");
  weights_ = Buffer<uint8_t>::over(packed.parts[0], expected[0]);
  scales_ = Buffer<uint16_t>::over(packed.parts[1], scale_count());
  zeros_ = Buffer<uint8_t>::over(packed.parts[2], expected[2]);
  bias_ = Buffer<float>::over(packed.parts[3], expected[3] / sizeof(float));
  minima_ = Buffer<uint16_t>::over(packed.parts[4], minima);
}

PackedShape Linear::packed() const {
  return {static_cast<int>(kind_),
          out_,
          in_,
          group_,
          gated_,
          {weights_.data(), scales_.data(), zeros_.data(), bias_.data(), minima_.data()},
          {static_cast<long>(weights_.bytes()), static_cast<long>(scales_.bytes()),
           static_cast<long>(zeros_.bytes()), static_cast<long>(bias_.bytes()),
           static_cast<long>(minima_.bytes())}};
}

long Linear::code_place(int k, int lane) const {
  const int column = kind_ == Kind::INT4 ? k / SHARED_BLOCK * 8 + k % 8 : k;  // of bytes
  return (static_cast<long>(column) / DOT_WIDTH * PANEL + lane) * DOT_WIDTH + column % DOT_WIDTH;
}

int Linear::source_row(int panel, int lane) const {
  if (!gated_) {
    const int row = panel * PANEL + lane;
    return row < out_ ? row : -1;
  }
  const int half = out_ / 2, row = panel * LANES + lane % LANES;
  return row < half ? row + (lane < LANES ? 0 : half) : -1;
}

void Linear::pack_bias(const float* bias) {
  if (bias == nullptr) return;
  bias_ = Buffer<float>::in_arena(static_cast<size_t>(panels_) * PANEL);
  for (int panel = 0; panel < panels_; ++panel)
    for (int lane = 0; lane < PANEL; ++lane) {
      const int row = source_row(panel, lane);
      bias_.data()[panel * PANEL + lane] = row < 0 ? 0.0f : bias[row];
    }
}

void Linear::reserve(Rows& rows, int count) const {
  rows.kind = kind_;
  rows.groups = quantized() ? k_ / group_ : 0;
  rows.stride = odd_lines(row_bytes());
  rows.data.reserve(static_cast<size_t>(count) * rows.stride);
  rows.scales.reserve(static_cast<size_t>(count) * rows.groups);
  rows.sums.reserve(static_cast<size_t>(count) * rows.groups);
}

long Linear::row_bytes() const {
  const long columns = k_;
  switch (kind_) {
    case Kind::F32:
      return columns * 4;
    case Kind::INT4:
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
  int8_t* codes = rows.row<int8_t>(index);
  const float steps = kind_ == Kind::INT4 ? SHARED_STEPS : kind_ == Kind::INT8 ? FINE_STEPS : COARSE_STEPS;
  for (int g = 0; g < rows.groups; ++g) {
    const int first = g * group_, count = std::min(group_, in_ - first);
    const float* values = row + first;
    const float unit = unit_of(values, count, steps);
    const long place = static_cast<long>(index) * rows.groups + g;
    rows.scales.data()[place] = unit;
    int& sum = rows.sums.data()[place];
    if (kind_ == Kind::INT4)
      sum = round_shared(values, count, group_, unit, codes + first, codes + k_ + first / 2);
    else if (kind_ == Kind::INT8)
      sum = round_fine(values, count, group_, unit, codes + first, codes + k_ + first);
    else
      sum = round_coarse(values, count, group_, unit, codes + first);
  }
}

void Linear::column(int index, float* row) const {
  const int panel = index / PANEL, lane = index % PANEL;
  const uint8_t* packed = weights_.data() + panel * panel_bytes_;
  for (int k = 0; k < in_; ++k) {
    if (kind_ == Kind::F32) {
      row[k] = reinterpret_cast<const float*>(packed)[k * PANEL + lane];
    } else if (kind_ == Kind::BF16) {
      row[k] = to_float(reinterpret_cast<const bf16*>(packed)[(k / 2 * PANEL + lane) * 2 + k % 2]);
    } else {
      const uint8_t stored = packed[code_place(k, lane)];
      const int code = kind_ != Kind::INT4 ? stored : in_high_nibble(k) ? stored >> 4 : stored & 15;
      const long place = (static_cast<long>(panel) * (k_ / group_) + k / group_) * PANEL + lane;
      const float scale = _cvtsh_ss(scales_.data()[place]);
      if (minima_.data() == nullptr)
        row[k] = static_cast<float>(code - zeros_.data()[place]) * scale;
      else
        row[k] = static_cast<float>(code) * scale + _cvtsh_ss(minima_.data()[place]);
    }
  }
}

void Linear::multiply_tile(const Rows& rows, int first, int num, int panel, float* tile) const {
  const uint8_t* packed = weights_.data() + panel * panel_bytes_;
  with_rows(num, [&]<int R>() {
    if (kind_ == Kind::F32) {
      multiply_dense<R>(rows.row<float>(first), rows.stride / 4, reinterpret_cast<const float*>(packed), k_,
                        tile);
    } else if (kind_ == Kind::BF16) {
      multiply_dense<R>(rows.row<bf16>(first), rows.stride / 2, reinterpret_cast<const bf16*>(packed), k_,
                        tile);
    } else {
      const long place = static_cast<long>(panel) * rows.groups * PANEL;
      const long group = static_cast<long>(first) * rows.groups;
      const int8_t* codes = rows.row<int8_t>(first);
      const QuantizedRows input{
          codes, codes + k_, rows.stride, rows.scales.data() + group, rows.sums.data() + group, rows.groups};
      const bool with_minima = minima_.data() != nullptr;
      const QuantizedPanel weights{packed, scales_.data() + place,
                                   with_minima ? nullptr : zeros_.data() + place,
                                   with_minima ? minima_.data() + place : nullptr};
      const auto run = [&]<Kind KIND>() {
        if (with_minima)
          multiply_quantized<R, KIND, true>(input, weights, group_, tile);
        else
          multiply_quantized<R, KIND, false>(input, weights, group_, tile);
      };
      if (kind_ == Kind::INT4)
        run.template operator()<Kind::INT4>();
      else if (kind_ == Kind::INT8)
        run.template operator()<Kind::INT8>();
      else
        run.template operator()<Kind::INT8_COARSE>();
    }
  });
  if (bias_.data() == nullptr) return;
  const float* bias = bias_.data() + panel * PANEL;
  for (int r = 0; r < num; ++r)
    for (int half = 0; half < PANEL; half += LANES) {
      float* place = tile + r * PANEL + half;
      _mm512_store_ps(place, _mm512_add_ps(_mm512_load_ps(place), _mm512_loadu_ps(bias + half)));
    }
}

}  // namespace penstock
