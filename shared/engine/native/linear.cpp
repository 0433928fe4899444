#include "linear.h"

#include <algorithm>
#include <stdexcept>

namespace penstock {
namespace {

constexpr int DOT_WIDTH = 4;               // int8 products that one VNNI lane adds up
constexpr int CODE_PREFETCH_BYTES = 8192;  // codes are used up several times as fast as floats

// A vector of the type that integer dot products add to: GCC copies any other one in front of and behind
// each.
using Sums = int __attribute__((vector_size(64)));

inline Sums add_products(Sums sums, __m512i codes, __m512i row_codes) {
  return (Sums)_mm512_dpbusd_epi32((__m512i)sums, codes, row_codes);
}

// [R, 32] of a quantized linear: per group exact integer sums, then scaled and added up in fp32.
// W = (code - zero) * scale, so sum(W a) = scale * scale_a * (sum(code * code_a) - zero * sum(code_a)).
// W = code * scale + minimum, so sum(W a) = scale_a * (scale * sum(code * code_a) + minimum * sum(code_a)).
template <int R, Kind KIND, bool MINIMA>
void multiply_quantized(const int8_t* rows, long stride, const float* row_scales, const float* row_sums,
                        int groups, const uint8_t* codes, const uint16_t* scales, const uint8_t* zeros,
                        const uint16_t* minima, int group, float* tile) {
  const __m512i low_nibbles = _mm512_set1_epi8(0x0f);
  __m512 total[R][2];
  clear<R>(total);
  for (int g = 0; g < groups; ++g) {
    Sums sum[R][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = Sums{};
    for (int k = 0; k < group; k += DOT_WIDTH) {
      __m512i b0, b1;
      _mm_prefetch(reinterpret_cast<const char*>(codes) + CODE_PREFETCH_BYTES, _MM_HINT_T0);
      if constexpr (KIND == Kind::INT8) {
        _mm_prefetch(reinterpret_cast<const char*>(codes) + CODE_PREFETCH_BYTES + 64, _MM_HINT_T0);
        b0 = _mm512_loadu_si512(codes);
        b1 = _mm512_loadu_si512(codes + 64);
        codes += 128;
      } else {
        const __m512i both = _mm512_loadu_si512(codes);
        b0 = _mm512_and_si512(both, low_nibbles);
        b1 = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_nibbles);
        codes += 64;
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        int quad;
        std::memcpy(&quad, rows + r * stride + k, sizeof quad);
        const __m512i a = _mm512_set1_epi32(quad);
        sum[r][0] = add_products(sum[r][0], b0, a);
        sum[r][1] = add_products(sum[r][1], b1, a);
      }
    }
    rows += group;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(scales + half * LANES)));
      if constexpr (MINIMA) {
        const __m512 minimum = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(minima + half * LANES)));
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const float row_scale = row_scales[r * groups + g], row_sum = row_sums[r * groups + g];
          const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(row_scale));
          total[r][half] = _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)sum[r][half]), factor, total[r][half]);
          total[r][half] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(row_scale * row_sum), total[r][half]);
        }
      } else {
        const __m512 zero =
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(zeros + half * LANES))));
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
          const __m512 exact = _mm512_fnmadd_ps(zero, _mm512_set1_ps(row_sums[r * groups + g]),
                                                _mm512_cvtepi32_ps((__m512i)sum[r][half]));
          const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(row_scales[r * groups + g]));
          total[r][half] = _mm512_fmadd_ps(exact, factor, total[r][half]);
        }
      }
    }
    scales += PANEL;
    if constexpr (MINIMA)
      minima += PANEL;
    else
      zeros += PANEL;
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
  const int bits = kind == Kind::F32 ? 32 : kind == Kind::BF16 ? 16 : kind == Kind::INT8 ? 8 : 4;
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

Linear::Linear(const uint8_t* codes, const uint16_t* scales, const uint8_t* zeros, const uint16_t* minima,
               const float* bias, int out, int in, int bits, int group, bool gated)
    : Linear(bits == 8 ? Kind::INT8 : Kind::INT4, out, in, group, gated) {
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
        const int quad = k / DOT_WIDTH, byte = k % DOT_WIDTH;
        if (bits == 8)
          target[(quad * PANEL + lane) * DOT_WIDTH + byte] = code;
        else  // one byte: lane i in the low nibble, lane i + 16 in the high one
          target[(quad * LANES + lane % LANES) * DOT_WIDTH + byte] |= lane < LANES ? code : code << 4;
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
  rows.stride = odd_lines(static_cast<long>(k_) * (kind_ == Kind::F32 ? 4 : kind_ == Kind::BF16 ? 2 : 1));
  rows.data.reserve(static_cast<size_t>(count) * rows.stride);
  rows.scales.reserve(static_cast<size_t>(count) * rows.groups);
  rows.sums.reserve(static_cast<size_t>(count) * rows.groups);
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
  int8_t* target = rows.row<int8_t>(index);
  for (int g = 0; g < rows.groups; ++g) {
    const int first = g * group_, count = std::min(group_, in_ - first);
    const float scale = largest(row + first, count) / 127.0f;
    const __m512 divisor = _mm512_set1_ps(scale > 0.0f ? scale : 1.0f);
    __m512i sum = _mm512_setzero_si512();
    for (int k = 0; k < group_; k += LANES) {
      const __m512 values = _mm512_maskz_loadu_ps(first_lanes(count - k), row + first + k);
      const __m512i codes = _mm512_cvtps_epi32(_mm512_div_ps(values, divisor));
      sum = _mm512_add_epi32(sum, codes);
      _mm_storeu_si128((__m128i*)(target + first + k), _mm512_cvtsepi32_epi8(codes));
    }
    const long place = static_cast<long>(index) * rows.groups + g;
    rows.scales.data()[place] = scale;
    rows.sums.data()[place] = static_cast<float>(_mm512_reduce_add_epi32(sum));
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
      const int quad = k / DOT_WIDTH, byte = k % DOT_WIDTH;
      const uint8_t both = packed[(quad * LANES + lane % LANES) * DOT_WIDTH + byte];
      const int code = kind_ == Kind::INT8 ? packed[(quad * PANEL + lane) * DOT_WIDTH + byte]
                                           : (lane < LANES ? both & 15 : both >> 4);
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
      const bool with_minima = minima_.data() != nullptr;
      auto* run = kind_ == Kind::INT8 ? with_minima ? &multiply_quantized<R, Kind::INT8, true>
                                                    : &multiply_quantized<R, Kind::INT8, false>
                  : with_minima       ? &multiply_quantized<R, Kind::INT4, true>
                                      : &multiply_quantized<R, Kind::INT4, false>;
      run(rows.row<int8_t>(first), rows.stride, rows.scales.data() + static_cast<long>(first) * rows.groups,
          rows.sums.data() + static_cast<long>(first) * rows.groups, rows.groups, packed,
          scales_.data() + place, with_minima ? nullptr : zeros_.data() + place,
          with_minima ? minima_.data() + place : nullptr, group_, tile);
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
