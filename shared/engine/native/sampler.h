// The draw from one row of logits; see sampler.cpp.
#pragma once

#include <cstdint>

namespace penstock::sampling {

struct Draw {  // laid out as native_sampler.py says
  double temperature;
  double top_p;
  double min_p;
  uint64_t seed;
  int64_t position;
  int64_t top_k;
  const uint8_t* allowed;  // a bit for each id, in pairs of bytes; null: all
};

// The id drawn from `logits` [vocab], which is overwritten where ids are not allowed; -1 where all are -inf
// or one is no number.
int64_t draw_row(float* logits, int64_t vocab, const Draw& draw);

}  // namespace penstock::sampling
