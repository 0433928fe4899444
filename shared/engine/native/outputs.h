// Where the rows of a product go. One that says so before is asked for while the tile is computed: rows lie
// pages apart, and as they are written one line each would wait for memory, with all that is stored behind.
#pragma once

#include "tile.h"

namespace penstock {

// Rows of fp32, written as they are.
struct OutputRows {
  float* data;
  long stride;

  float* place(int row, int panel) const { return data + row * stride + panel * PANEL; }
  void operator()(int row, int panel, __m512 low, __m512 high) const {
    float* out = place(row, panel);
    _mm512_storeu_ps(out, low);
    _mm512_storeu_ps(out + LANES, high);
  }
};

// What `put` does with a row of a panel is to be seen at `place`.
template <class Put, class Place>
struct Placed {
  Put put;
  Place place;

  void operator()(int row, int panel, __m512 low, __m512 high) const { put(row, panel, low, high); }
};
template <class Put, class Place>
Placed(Put, Place) -> Placed<Put, Place>;

// Asks for the places of `num` rows from `first` on, where `put` tells them.
template <class Put>
inline void fetch_places([[maybe_unused]] const Put& put, [[maybe_unused]] int first,
                         [[maybe_unused]] int num, [[maybe_unused]] int panel) {
  if constexpr (requires { put.place(first, panel); })
    for (int row = first; row < first + num; ++row) {
      const char* line = reinterpret_cast<const char*>(put.place(row, panel));
      _mm_prefetch(line, _MM_HINT_T0);
      _mm_prefetch(line + 64, _MM_HINT_T0);
    }
}

}  // namespace penstock
