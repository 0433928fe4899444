#include "draft_head.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "norm.h"

namespace penstock {
namespace {

void store_panel(float* place, __m512 low, __m512 high) {
  _mm512_storeu_ps(place, low);
  _mm512_storeu_ps(place + LANES, high);
}

float dot(const float* a, const float* b, int width) {
  __m512 sums = _mm512_setzero_ps();
  for (int i = 0; i < width; i += LANES) {
    const __mmask16 lanes = first_lanes(width - i);
    sums = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(lanes, a + i), _mm512_maskz_loadu_ps(lanes, b + i), sums);
  }
  return _mm512_reduce_add_ps(sums);
}

}  // namespace

void DraftHead::draft(const DraftRowsShape& rows) {
  reserve(rows);
  Team team(shape_.threads);
  begin(rows, team);
  int live = rows.rows;
  for (int step = 0; live > 0; ++step) {
    compute_step(live, team);
    draw(rows, live, step, team);
    live = keep(rows, live, step);
  }
}

void DraftHead::poison() {
  for (Rows* each : {&fuse_in_, &mix_in_, &gate_up_in_, &down_in_, &head_in_}) each->poison();
  for (Buffer<float>* each : {&state_, &mixed_, &inner_, &logits_}) each->poison();
}

void DraftHead::reserve(const DraftRowsShape& rows) {
  const int count = rows.rows, target = target_->hidden_size();
  state_width_ = round_up(shape_.hidden, PANEL);
  mixed_width_ = std::max(shape_.taps * target, shape_.hidden + target);
  inner_width_ = blocks_.front().gate_up->width() / 2;
  state_.reserve(static_cast<size_t>(count) * state_width_);
  mixed_.reserve(static_cast<size_t>(count) * mixed_width_);
  inner_.reserve(static_cast<size_t>(count) * inner_width_);
  logits_.reserve(static_cast<size_t>(count) * shape_.head->width());
  shape_.fuse->reserve(fuse_in_, count);
  shape_.mix->reserve(mix_in_, count);
  blocks_.front().gate_up->reserve(gate_up_in_, count);
  blocks_.front().down->reserve(down_in_, count);
  shape_.head->reserve(head_in_, count);
  const size_t scattered = static_cast<size_t>(shape_.threads) * shape_.target_vocab;
  const bool hot = std::any_of(rows.draws, rows.draws + count,
                               [](const sampling::Draw& draw) { return draw.temperature > 0.0; });
  if (hot && scattered_.data() == nullptr) {
    scattered_.reserve(scattered);
    std::fill_n(scattered_.data(), scattered, -std::numeric_limits<float>::infinity());
  }
  row_of_.resize(count);
  token_.assign(rows.token_ids, rows.token_ids + count);
  chance_.assign(count, 1.0f);
  confidence_.resize(count);
  std::fill_n(rows.counts, count, 0);
}

// The first states, of the taps.
void DraftHead::begin(const DraftRowsShape& rows, Team& team) {
  const int width = target_->hidden_size();
  const long stride = static_cast<long>(shape_.taps) * width;
  team.share(rows.rows, 1, [&](int first, int last, int) {
    for (int row = first; row < last; ++row) {
      row_of_[row] = row;
      const float* taps = rows.taps + rows.slots[row] * stride;
      for (int tap = 0; tap < shape_.taps; ++tap)
        rms_normalize(taps + tap * width, shape_.taps_norm + tap * width, width, shape_.norm_eps,
                      mixed(row) + tap * width);
      shape_.fuse->prepare(mixed(row), fuse_in_, row);
    }
  });
  shape_.fuse->apply(fuse_in_, rows.rows, team, [&](int row, int panel, __m512 low, __m512 high) {
    store_panel(state(row) + panel * PANEL, low, high);
  });
}

// The states and logits after the tokens that were drawn last.
void DraftHead::compute_step(int live, Team& team) {
  const int width = shape_.hidden, target = target_->hidden_size();
  team.share(live, 1, [&](int first, int last, int) {
    for (int row = first; row < last; ++row) {
      float* const embedded = mixed(row) + width;
      rms_normalize(state(row), shape_.state_norm, width, shape_.norm_eps, mixed(row));
      target_->embed(token_[row], embedded);
      rms_normalize(embedded, shape_.embed_norm, target, shape_.norm_eps, embedded);
      shape_.mix->prepare(mixed(row), mix_in_, row);
    }
  });
  shape_.mix->apply(mix_in_, live, team, [&](int row, int panel, __m512 low, __m512 high) {
    store_panel(state(row) + panel * PANEL, low, high);
  });
  for (const DraftBlockShape& block : blocks_) {
    team.share(live, 1, [&](int first, int last, int) {
      for (int row = first; row < last; ++row) {
        rms_normalize(state(row), block.norm, width, shape_.norm_eps, mixed(row));
        block.gate_up->prepare(mixed(row), gate_up_in_, row);
      }
    });
    block.gate_up->apply(gate_up_in_, live, team, [&](int row, int panel, __m512 gate, __m512 up) {
      _mm512_storeu_ps(inner(row) + panel * LANES, _mm512_mul_ps(silu(gate), up));
    });
    team.share(live, 1, [&](int first, int last, int) {
      for (int row = first; row < last; ++row) block.down->prepare(inner(row), down_in_, row);
    });
    block.down->apply(down_in_, live, team, [&](int row, int panel, __m512 low, __m512 high) {
      float* place = state(row) + panel * PANEL;
      store_panel(place, _mm512_add_ps(_mm512_loadu_ps(place), low),
                  _mm512_add_ps(_mm512_loadu_ps(place + LANES), high));
    });
  }
  team.share(live, 1, [&](int first, int last, int) {
    for (int row = first; row < last; ++row) {
      rms_normalize(state(row), shape_.out_norm, width, shape_.norm_eps, mixed(row));
      const float score = dot(mixed(row), shape_.confidence, width) + shape_.confidence_bias;
      confidence_[row] = 1.0f / (1.0f + std::exp(-score));
      shape_.head->prepare(mixed(row), head_in_, row);
    }
  });
  shape_.head->apply(head_in_, live, team, [&](int row, int panel, __m512 low, __m512 high) {
    store_panel(logits(row) + panel * PANEL, low, high);
  });
}

void DraftHead::draw(const DraftRowsShape& rows, int live, int step, Team& team) {
  team.share(live, 1, [&](int first, int last, int rank) {
    for (int row = first; row < last; ++row) {
      sampling::Draw draw = rows.draws[row_of_[row]];
      draw.position += step;
      if (draw.temperature == 0.0) {
        const int64_t place = sampling::draw_row(logits(row), shape_.vocab, draw);
        token_[row] = place < 0 ? -1 : shape_.ids[place];
      } else {  // the noise is that of ids of the whole vocabulary
        float* all = scattered_.data() + static_cast<long>(rank) * shape_.target_vocab;
        for (int place = 0; place < shape_.vocab; ++place) all[shape_.ids[place]] = logits(row)[place];
        token_[row] = static_cast<int>(sampling::draw_row(all, shape_.target_vocab, draw));
      }
    }
  });
}

// Writes down what was drawn, and moves the rows that go on to the front; returns how many these are.
int DraftHead::keep(const DraftRowsShape& rows, int live, int step) {
  int kept = 0;
  for (int row = 0; row < live; ++row) {
    const int index = row_of_[row];
    rows.steps[index] = step + 1;
    if (token_[row] < 0 || std::isnan(confidence_[row])) continue;
    const int bin = std::min(static_cast<int>(confidence_[row] * CONFIDENCE_BINS), CONFIDENCE_BINS - 1);
    const float chance = std::min(1.0f, rows.trusts[index] * rows.chances[bin]) * chance_[row];
    if (chance < rows.floors[index]) continue;
    const long place = static_cast<long>(index) * rows.most + step;
    rows.ids[place] = token_[row];
    rows.confidences[place] = confidence_[row];
    if (++rows.counts[index] == rows.lengths[index] || chance < rows.needs[index]) continue;
    if (kept != row) std::memcpy(state(kept), state(row), state_width_ * sizeof(float));
    row_of_[kept] = index, token_[kept] = token_[row], chance_[kept] = chance;
    ++kept;
  }
  return kept;
}

}  // namespace penstock
