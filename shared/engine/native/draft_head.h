// A draft head: guesses the tokens that a model draws next, from the hidden states of its last row.
//
// A recurrent network, as ReDrafter's (Zhang et al., 2024): no attention and no KV, so that rows of any
// sequences are computed together, and a row is the same bit for bit whatever is beside it.
#pragma once

#include <vector>

#include "model.h"
#include "sampler.h"

namespace penstock {

constexpr int CONFIDENCE_BINS = 16;

struct DraftBlockShape {
  const float* norm;
  const Linear *gate_up, *down;
};

// The field order is that of its ctypes twin.
struct DraftHeadShape {
  int taps, hidden, vocab, target_vocab, blocks, threads;
  float norm_eps, confidence_bias;
  const float *taps_norm, *state_norm, *embed_norm, *out_norm, *confidence;
  const int* ids;            // [vocab] ascending, of the target's vocabulary
  const Linear *fuse, *mix;  // [hidden, taps * target's hidden], [hidden, hidden + target's hidden]
  const Linear* head;        // [vocab, hidden]
};

struct DraftRowsShape {
  int rows, most;        // `most`: of `lengths`
  const float* taps;     // [slots, taps, target's hidden]
  const int* slots;      // [rows] where in `taps`
  const int* token_ids;  // [rows] the last token of each
  const int* lengths;    // [rows] tokens to guess at most
  const float* floors;   // [rows] a token is guessed that is right, with all before, at least this often
  const float* needs;    // [rows] and another one is tried behind it where it is right as often as this
  const float* trusts;   // [rows] times the chances are what they are for this row
  const float* chances;  // [CONFIDENCE_BINS] how often a token is right, by its confidence
  const sampling::Draw* draws;  // [rows] of the first guessed token
  int* ids;                     // [rows, most]
  float* confidences;           // [rows, most]
  int* counts;                  // [rows] tokens that were guessed
  int* steps;                   // [rows] tokens that were computed for that
};

class DraftHead {
 public:
  DraftHead(const DraftHeadShape& shape, const DraftBlockShape* blocks, const Model* target)
      : shape_(shape), blocks_(blocks, blocks + shape.blocks), target_(target) {}

  void draft(const DraftRowsShape& rows);
  // Makes all that a call leaves behind unusable: what the next one reads of it shows as NaN.
  void poison();

 private:
  void reserve(const DraftRowsShape& rows);
  void begin(const DraftRowsShape& rows, Team& team);
  void compute_step(int live, Team& team);
  void draw(const DraftRowsShape& rows, int live, int step, Team& team);
  int keep(const DraftRowsShape& rows, int live, int step);

  float* state(int row) { return state_.data() + static_cast<long>(row) * state_width_; }
  float* mixed(int row) { return mixed_.data() + static_cast<long>(row) * mixed_width_; }
  float* inner(int row) { return inner_.data() + static_cast<long>(row) * inner_width_; }
  float* logits(int row) { return logits_.data() + static_cast<long>(row) * shape_.head->width(); }

  DraftHeadShape shape_;
  std::vector<DraftBlockShape> blocks_;
  const Model* target_;
  int state_width_ = 0, mixed_width_ = 0, inner_width_ = 0;
  Rows fuse_in_, mix_in_, gate_up_in_, down_in_, head_in_;

  // of one call; rows that go on stand at the front
  std::vector<int> row_of_;    // [rows] of the caller
  std::vector<int> token_;     // [rows] drawn last; -1: a logit is no number
  std::vector<float> chance_;  // [rows] of all that is guessed to be right
  std::vector<float> confidence_;
  Buffer<float> state_;      // [rows, hidden padded to panels]
  Buffer<float> mixed_;      // [rows, the widest input]
  Buffer<float> inner_;      // [rows, a block's inner width]
  Buffer<float> logits_;     // [rows, vocab padded to panels]
  Buffer<float> scattered_;  // [threads, target's vocab]: -inf but where the head has logits
};

}  // namespace penstock
