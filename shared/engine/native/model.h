// One decoder: weights, pool and the forward pass over a ragged batch.
#pragma once

#include <memory>
#include <vector>

#include "adapter.h"
#include "attention.h"
#include "linear.h"

namespace penstock {

enum class Activation : int { SILU = 0, GELU_TANH = 1, CLAMPED_SWIGLU = 2 };
enum class QkNorm : int { NONE = 0, HEAD = 1, ALL = 2 };
enum class Scores : int { SOFTMAX = 0, SIGMOID = 1 };

// What engine/native/model.py says of a model; the field order is that of its ctypes twin.
struct ModelShape {
  int vocab, hidden, heads, kv_heads, head_dim;
  int qk_norm, activation;
  int bf16;  // 1: bf16 arithmetic, 0: fp32
  int threads;
  int layer_norm;   // 1: norms take the mean away first
  int shared_norm;  // 1: attention's norm goes into the MLP too, and both are added together
  float norm_eps, attention_scale, attention_soft_cap, logit_soft_cap, embedding_scale;
  float swiglu_slope, swiglu_limit;  // of CLAMPED_SWIGLU
  float residual_scale, logit_scale;
  float query_growth, query_growth_tokens;  // 0: none; see ModelConfig
  const void*
      embedding;  // [vocab, hidden] in the arithmetic's type; null: the head's columns are the embedding
  const Linear* head;
  const float* final_norm;
};

struct PoolShape {
  uint8_t* base;
  long num_blocks, layer_block_bytes;
  int kind;
};

struct LayerShape {
  const float* attention_in_norm;  // norms: null where there is none
  const float* query_norm;
  const float* key_norm;
  const float* attention_out_norm;
  const float* mlp_in_norm;
  const float* mlp_out_norm;
  const Linear* qkv;
  const Linear* output;
  const Linear* router;          // [experts, and one row more with shared_gate]; null: a dense MLP
  const Linear* const* gate_up;  // [experts]
  const Linear* const* down;     // [experts]
  const Linear* shared_gate_up;  // of an MLP beside the experts; null: there is none
  const Linear* shared_down;
  const float* choice_bias;  // [experts] added to the scores when experts are chosen; null: none
  const float* sinks;        // [heads] scores beside those of the keys; null: none
  const float* rope;         // [positions, rotary_dim]: cosines, then sines; null: no positions
  int rotary_dim;
  int window;      // 0: none
  int group, row;  // of layers that share blocks, and where in those its keys and values are
  int experts, experts_per_token, normalize;
  int scores;       // of the experts, from the router's logits
  int shared_gate;  // 1: the router's last row is the gate of the MLP beside the experts
  int groups, groups_per_token, group_best;  // of neighbouring experts; see MoeConfig
  float scale;                               // of what all experts put out
};

struct BatchShape {
  int rows, spans, logit_rows;
  const int* token_ids;     // [rows]
  const int* starts;        // [spans] position of the first row
  const int* counts;        // [spans] rows
  const int* first_blocks;  // [groups][spans] where in `blocks` a span's block 0 is, or would be if it were
  const int* blocks;        // read: below it are those of others, or nothing
  const int* logit_row;     // [logit_rows] ascending
  const LowRankShape* const* adapters;  // [spans] each [layers][matrices], null: none; null: no span has one
  void (*on_kv_written)(int layer);     // may be null; called on the caller's thread
  int taps;
  const int* tap_layer;  // [taps] ascending
  float* tapped;         // [logit_rows][taps][hidden]: the residual stream after those layers; null: no taps
};

// A row against one KV head, whose keys several items share.
struct SharedRow {
  int span, row, kv_head;
  long sums;  // of the span's first partition
};

// What a layer's attention and MLP compute: all rows, or in the last layer those that a logit depends on.
struct View {
  std::vector<QuerySpan> spans;
  std::vector<AttentionItem> items;  // the longest first
  std::vector<SharedRow> shared;
  std::vector<int> sources;  // [rows] row of the batch
  long sums = 0;             // how many there are, of a query head and a partition each

  // What the attention of an item begins with.
  KeyBlocks begin_of(size_t item, int window) const {
    if (item >= items.size()) return {};
    const QuerySpan& span = spans[items[item].span];
    const ItemKeys keys = ItemKeys::of(items[item], span, window);
    return KeyBlocks::of(span, keys.first, keys.end);
  }
};

// The input buffer of all linears that play one role and take one form.
struct Input {
  int role;
  const Linear* linear;
  Rows rows;
};

struct Layer {
  LayerShape shape;
  int view;  // all layers of one window and group have one
  Rows *qkv_in, *output_in, *router_in, *mlp_in, *expert_in, *down_in, *shared_in, *shared_down_in;
};

class Model {
 public:
  Model(const ModelShape& shape, const PoolShape& pool);
  void add_layer(const LayerShape& shape);
  void forward(const BatchShape& batch, float* logits);
  // Makes all that a forward pass leaves behind unusable: what the next one reads of it shows as NaN.
  void poison();
  // What the first layer takes in for a token, fp32 [hidden].
  void embed(int token_id, float* row) const;
  int hidden_size() const { return shape_.hidden; }

 private:
  enum Role { QKV, OUTPUT, ROUTER, MLP, EXPERT, DOWN, HEAD };

  Rows* input(Role role, const Linear* linear);
  void reserve(const BatchShape& batch);
  void reserve_experts(size_t rows);
  void reserve_adapters(const BatchShape& batch);
  View view_of(const BatchShape& batch, bool logits_only, const LayerShape& layer, int threads) const;
  void add_items(View& view, int span, int shares, double fair_keys) const;
  void compute(const BatchShape& batch, float* logits, Team& team);
  void keep_tap(const BatchShape& batch, int layer, int row);
  float* tap(const BatchShape& batch, int layer, int logit) const;
  void fetch_kv(const Layer& layer, const View& view) const;
  void rotate_and_store(const Layer& layer, int row);
  template <class E, class Meanwhile>
  void attend(std::vector<Attention<E>>& workers, const Layer& layer, const View& view, Team& team,
              Meanwhile&& meanwhile);
  template <class E, class Put>
  void join_partitions(std::vector<Attention<E>>& workers, const Layer& layer, const View& view, Team& team,
                       Put&& put);
  void feed_experts(const Layer& layer, int index, int count, Team& team);
  void choose_experts(const Layer& layer, int row, int rank);
  void leave_groups_out(const LayerShape& shape, float* choice, int rank);
  void sort_by_expert(int experts, int count, int per_token);
  void run_mlp(const Linear& gate_up, const Linear& down, int index, const Rows& in, Rows& down_in, int count,
               Team& team, const int* targets, const float* shares);
  __m512 activated(__m512 gate, __m512 up) const;
  const float* normalized(const float* row, const float* weight, int rank);
  void normalize(const float* row, const float* weight, int width, float* out) const;
  void add_projected(int row, const float* norm, int rank);

  // Whether adapters read the rows of this linear's input as they are prepared for it.
  bool shares_rows(const Linear& linear) const {
    return linear.kind() == (shape_.bf16 ? Kind::BF16 : Kind::F32);
  }
  // An input row of `linear`, for its adapter.
  void take(const Linear& linear, const float* values, int row) {
    if (adapted_ != nullptr && !shares_rows(linear) && adapted_->has(row))
      low_ranks_.take(values, linear.in(), row);
  }
  // The sums of the ranks, before `linear` is applied to the same rows.
  void sum_ranks(int layer, Adapted matrix, const Linear& linear, const Rows& input, Team& team) {
    if (adapted_ != nullptr)
      low_ranks_.sum(*adapted_, layer, matrix, shares_rows(linear) ? &input : nullptr, team);
  }
  // What adapters of rows [first, first + num) add to a panel of the matrix's output.
  void adapt(int layer, Adapted matrix, int first, int num, int panel, float* tile) const {
    if (adapted_ != nullptr) low_ranks_.add(*adapted_, layer, matrix, first, num, panel, tile);
  }

  // Rows of so many numbers that are worth a claim: microseconds.
  static int rows_per_claim(int width) { return std::max(1, static_cast<int>(CLAIM_BYTES / 4) / width); }

  float* hidden(int row) { return hidden_.data() + static_cast<long>(row) * width_; }
  float* projected(int row) { return projected_.data() + static_cast<long>(row) * width_; }

  ModelShape shape_;
  Pool pool_;
  std::vector<Layer> layers_;
  std::vector<std::unique_ptr<Input>> inputs_;
  std::vector<Attention<float>> attention_f32_;  // one per thread
  std::vector<Attention<bf16>> attention_bf16_;
  Rows* head_in_;
  int width_;                 // of a row of hidden and projected: `hidden` padded to panels
  std::vector<int> viewers_;  // a layer of each view
  int groups_ = 1;
  int qkv_width_ = 0, inner_width_ = 0, most_experts_ = 0, most_chosen_ = 0;

  // of one forward pass
  std::vector<int> positions_;  // [rows]
  std::vector<int> blocks_;     // [groups][rows]: where keys and values of the row are written
  std::vector<View> views_;     // of all rows, by Layer::view
  View last_view_;
  AdaptedRows all_adapted_, last_adapted_;  // of those views
  const AdaptedRows* adapted_ = nullptr;    // of the rows at hand; null: none of them has an adapter
  LowRankSums low_ranks_;
  Buffer<float> hidden_;          // [rows, width]: the residual stream
  Buffer<float> projected_;       // [rows, width]: what is added to it next
  Buffer<float> normed_;          // [threads, width]
  Buffer<float> qkv_;             // [rows, qkv width]
  Buffer<float> sums_;            // [sums of the view]: of partitions whose rows several items share
  Buffer<float> mixed_;           // [rows, heads * head_dim]: what attention gives, for a quantized `output`
  Buffer<float> inner_;           // [rows, inner width]: for a quantized `down`
  Buffer<float> router_;          // [rows, experts padded to panels]
  std::vector<int> chosen_;       // [rows, experts per token]
  std::vector<float> shares_;     // [rows, experts per token]
  std::vector<int> expert_rows_;  // the rows of each expert, expert by expert
  std::vector<float> expert_shares_;
  std::vector<int> expert_begin_;     // [experts + 1]
  std::vector<int> expert_next_;      // [experts]
  std::vector<int> ranking_;          // [threads, experts padded]: of the row at hand
  std::vector<float> scores_;         // [threads, experts padded]: of the row at hand
  std::vector<float> group_sums_;     // [threads, experts padded]: of the row at hand
  std::vector<float> shared_shares_;  // [rows]: of the MLP beside the experts, where it has a gate
};

}  // namespace penstock
