// The root mean square norm of one row.
#pragma once

#include <cmath>

#include "simd.h"

namespace penstock {

// weight * row / rms(row), in fp32; `out` may be `row`.
inline void rms_normalize(const float* row, const float* weight, int width, float eps, float* out) {
  __m512 squares = _mm512_setzero_ps();
  for (int i = 0; i < width; i += LANES) {
    const __m512 value = _mm512_maskz_loadu_ps(first_lanes(width - i), row + i);
    squares = _mm512_fmadd_ps(value, value, squares);
  }
  const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(width);
  const __m512 factor = _mm512_set1_ps(1.0f / std::sqrt(mean + eps));
  for (int i = 0; i < width; i += LANES) {
    const __mmask16 lanes = first_lanes(width - i);
    const __m512 value = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, row + i), factor);
    _mm512_mask_storeu_ps(out + i, lanes, _mm512_mul_ps(value, _mm512_maskz_loadu_ps(lanes, weight + i)));
  }
}

}  // namespace penstock
