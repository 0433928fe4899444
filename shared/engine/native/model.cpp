#include "model.h"

#include <algorithm>

#include "norm.h"

namespace penstock {
namespace {
constexpr long FETCHED_KV_BYTES = 128 << 10;  // an eighth of an L2; attention itself asks for later keys
}

Model::Model(const ModelShape& shape, const PoolShape& pool)
    : shape_(shape),
      pool_{pool.base,      pool.num_blocks, pool.layer_block_bytes, static_cast<KvKind>(pool.kind),
            shape.kv_heads, shape.head_dim},
      width_(round_up(shape.hidden, PANEL)),
      low_ranks_(shape.bf16 != 0) {
  const AttentionShape attention{shape.heads, shape.kv_heads, shape.head_dim, shape.attention_scale,
                                 shape.attention_soft_cap};
  for (int thread = 0; thread < shape.threads; ++thread) {
    if (shape.bf16)
      attention_bf16_.emplace_back(attention);
    else
      attention_f32_.emplace_back(attention);
  }
  normed_ = Buffer<float>(static_cast<size_t>(shape.threads) * width_);
  head_in_ = input(HEAD, shape.head);
}

void Model::add_layer(const LayerShape& shape) {
  const auto view = std::find_if(viewers_.begin(), viewers_.end(), [&](int viewer) {
    const LayerShape& other = layers_[viewer].shape;
    return other.window == shape.window && other.group == shape.group;
  });
  Layer layer{shape,
              static_cast<int>(view - viewers_.begin()),
              input(QKV, shape.qkv),
              input(OUTPUT, shape.output),
              nullptr,
              input(MLP, shape.gate_up[0]),
              nullptr,
              input(DOWN, shape.down[0]),
              nullptr,
              nullptr};
  if (view == viewers_.end()) viewers_.push_back(static_cast<int>(layers_.size()));
  groups_ = std::max(groups_, shape.group + 1);
  if (shape.router != nullptr) {
    layer.router_in = input(ROUTER, shape.router);
    layer.expert_in = input(EXPERT, shape.gate_up[0]);
    most_experts_ = std::max(most_experts_, shape.router->width());
    most_chosen_ = std::max(most_chosen_, shape.experts_per_token);
  }
  if (shape.shared_gate_up != nullptr) {
    layer.shared_in = input(MLP, shape.shared_gate_up);
    layer.shared_down_in = input(DOWN, shape.shared_down);
    inner_width_ = std::max(inner_width_, shape.shared_gate_up->width() / 2);
  }
  qkv_width_ = std::max(qkv_width_, shape.qkv->width());
  inner_width_ = std::max(inner_width_, shape.gate_up[0]->width() / 2);
  layers_.push_back(layer);
}

Rows* Model::input(Role role, const Linear* linear) {
  for (auto& known : inputs_)
    if (known->role == role && known->linear->kind() == linear->kind() &&
        known->linear->group() == linear->group() && known->linear->in() == linear->in())
      return &known->rows;
  inputs_.push_back(std::make_unique<Input>(Input{role, linear, {}}));
  return &inputs_.back()->rows;
}

void Model::forward(const BatchShape& batch, float* logits) {
  reserve(batch);
  Team team(shape_.threads);
  views_.clear();
  for (const int viewer : viewers_)
    views_.push_back(view_of(batch, false, layers_[viewer].shape, team.size()));
  last_view_ = view_of(batch, true, layers_.back().shape, team.size());
  long sums = last_view_.sums;
  for (const View& view : views_) sums = std::max(sums, view.sums);
  reserve_adapters(batch);
  sums_.reserve(sums * (shape_.bf16 ? attention_bf16_[0].sums_stride() : attention_f32_[0].sums_stride()));
  compute(batch, logits, team);
}

void Model::poison() {
  for (auto& each : inputs_) each->rows.poison();
  for (auto& each : attention_f32_) each.poison();
  for (auto& each : attention_bf16_) each.poison();
  low_ranks_.poison();
  for (Buffer<float>* each : {&hidden_, &projected_, &normed_, &qkv_, &sums_, &mixed_, &inner_, &router_})
    each->poison();
}

void Model::reserve(const BatchShape& batch) {
  const size_t rows = std::max(batch.rows, batch.logit_rows);
  for (auto& each : inputs_) each->linear->reserve(each->rows, static_cast<int>(rows));
  hidden_.reserve(rows * width_);
  projected_.reserve(rows * width_);
  qkv_.reserve(rows * qkv_width_);
  mixed_.reserve(rows * shape_.heads * shape_.head_dim);
  inner_.reserve(rows * inner_width_);
  router_.reserve(rows * most_experts_);
  reserve_experts(rows);
  positions_.clear();
  blocks_.clear();
  for (int span = 0; span < batch.spans; ++span)
    for (int row = 0; row < batch.counts[span]; ++row) positions_.push_back(batch.starts[span] + row);
  for (int table = 0; table < groups_ * batch.spans; ++table) {
    const int span = table % batch.spans, start = batch.starts[span];
    for (int position = start; position < start + batch.counts[span]; ++position)
      blocks_.push_back(batch.blocks[batch.first_blocks[table] + position / BLOCK_TOKENS]);
  }
}

void Model::reserve_adapters(const BatchShape& batch) {
  std::vector<const LowRankShape*> by_row, by_last_row;
  if (batch.adapters != nullptr) {
    for (int span = 0; span < batch.spans; ++span)
      by_row.insert(by_row.end(), batch.counts[span], batch.adapters[span]);
    for (const int source : last_view_.sources) by_last_row.push_back(by_row[source]);
  }
  all_adapted_.assign(std::move(by_row));
  last_adapted_.assign(std::move(by_last_row));
  if (!all_adapted_.any()) return;
  const int most_in = std::max({shape_.hidden, shape_.heads * shape_.head_dim, inner_width_});
  low_ranks_.reserve(all_adapted_, static_cast<int>(layers_.size()), batch.rows, most_in);
}

void Model::compute(const BatchShape& batch, float* logits, Team& team) {
  const int claim = rows_per_claim(width_);
  team.share(batch.rows, claim, [&](int first, int end, int) {
    for (int row = first; row < end; ++row) embed(batch.token_ids[row], hidden(row));
  });
  const float* out_norm = nullptr;
  adapted_ = all_adapted_.any() ? &all_adapted_ : nullptr;
  int rows = batch.rows;
  for (int index = 0; index < static_cast<int>(layers_.size()); ++index) {
    const Layer& layer = layers_[index];
    const LayerShape& shape = layer.shape;
    const bool is_last = index + 1 == static_cast<int>(layers_.size());
    const View& view = is_last ? last_view_ : views_[layer.view];

    team.share(rows, claim, [&](int first, int end, int rank) {
      for (int row = first; row < end; ++row) {
        if (index > 0) {
          add_projected(row, out_norm, rank);
          keep_tap(batch, index - 1, row);
        }
        const float* normed = normalized(hidden(row), shape.attention_in_norm, rank);
        shape.qkv->prepare(normed, *layer.qkv_in, row);
        take(*shape.qkv, normed, row);
      }
    });
    sum_ranks(index, Adapted::QKV, *shape.qkv, *layer.qkv_in, team);
    shape.qkv->apply(
        *layer.qkv_in, rows, team,
        [&](int row, int num, int panel, float* tile) { adapt(index, Adapted::QKV, row, num, panel, tile); },
        OutputRows{qkv_.data(), qkv_width_}, [&] { fetch_kv(layer, view); });
    team.share(rows, rows_per_claim(qkv_width_), [&](int first, int end, int) {
      for (int row = first; row < end; ++row) rotate_and_store(layer, row);
    });
    const auto written = [&] {
      if (batch.on_kv_written != nullptr) batch.on_kv_written(index);
      if (is_last)  // from here on only the rows that a logit depends on; they move up
        for (size_t row = 0; row < view.sources.size(); ++row)
          if (view.sources[row] != static_cast<int>(row))
            std::memcpy(hidden(row), hidden(view.sources[row]), shape_.hidden * sizeof(float));
    };
    rows = static_cast<int>(view.sources.size());
    if (is_last) adapted_ = last_adapted_.any() ? &last_adapted_ : nullptr;
    if (shape_.bf16)
      attend(attention_bf16_, layer, view, team, written);
    else
      attend(attention_f32_, layer, view, team, written);
    sum_ranks(index, Adapted::OUTPUT, *shape.output, *layer.output_in, team);
    shape.output->apply(
        *layer.output_in, rows, team,
        [&](int row, int num, int panel, float* tile) {
          adapt(index, Adapted::OUTPUT, row, num, panel, tile);
        },
        OutputRows{projected_.data(), width_}, [] {});
    team.share(rows, claim, [&](int first, int end, int rank) {
      for (int row = first; row < end; ++row) {
        if (!shape_.shared_norm) add_projected(row, shape.attention_out_norm, rank);
        const float* in_norm = shape_.shared_norm ? shape.attention_in_norm : shape.mlp_in_norm;
        const float* normed = normalized(hidden(row), in_norm, rank);
        shape.gate_up[0]->prepare(normed, *layer.mlp_in, row);
        take(*shape.gate_up[0], normed, row);
        if (shape.router != nullptr) shape.router->prepare(normed, *layer.router_in, row);
        if (shape.shared_gate_up != nullptr && layer.shared_in != layer.mlp_in)
          shape.shared_gate_up->prepare(normed, *layer.shared_in, row);
        if (shape_.shared_norm) add_projected(row, nullptr, rank);
      }
    });
    if (shape.router == nullptr)
      run_mlp(*shape.gate_up[0], *shape.down[0], index, *layer.mlp_in, *layer.down_in, rows, team, nullptr,
              nullptr);
    else
      feed_experts(layer, index, rows, team);
    out_norm = shape.mlp_out_norm;
  }

  const auto computed = [&](int logit) {  // where the last layer left the row of a logit
    return static_cast<int>(
        std::lower_bound(last_view_.sources.begin(), last_view_.sources.end(), batch.logit_row[logit]) -
        last_view_.sources.begin());
  };
  team.share(batch.logit_rows, claim, [&](int first, int end, int rank) {
    for (int logit = first; logit < end; ++logit) {
      add_projected(computed(logit), out_norm, rank);
      float* const last = tap(batch, static_cast<int>(layers_.size()) - 1, logit);
      if (last != nullptr) std::memcpy(last, hidden(computed(logit)), shape_.hidden * sizeof(float));
      shape_.head->prepare(normalized(hidden(computed(logit)), shape_.final_norm, rank), *head_in_, logit);
    }
  });
  const auto logits_of = [&](int row, int panel) {
    return logits + static_cast<long>(row) * shape_.vocab + panel * PANEL;
  };
  const auto put = [&](int row, int panel, __m512 low, __m512 high) {
    if (shape_.logit_scale != 1.0f) {
      low = _mm512_mul_ps(low, _mm512_set1_ps(shape_.logit_scale));
      high = _mm512_mul_ps(high, _mm512_set1_ps(shape_.logit_scale));
    }
    if (shape_.logit_soft_cap > 0.0f) {
      low = soft_cap(low, shape_.logit_soft_cap);
      high = soft_cap(high, shape_.logit_soft_cap);
    }
    float* out = logits_of(row, panel);
    const int left = shape_.vocab - panel * PANEL;
    _mm512_mask_storeu_ps(out, first_lanes(left), low);
    _mm512_mask_storeu_ps(out + LANES, first_lanes(left - LANES), high);
  };
  shape_.head->apply(*head_in_, batch.logit_rows, team, Placed{put, logits_of});
}

// Where the residual stream after `layer` goes for the row of a logit; null: nobody wants it.
float* Model::tap(const BatchShape& batch, int layer, int logit) const {
  const int* const end = batch.tap_layer + batch.taps;
  const int* const place = std::find(batch.tap_layer, end, layer);
  if (place == end) return nullptr;
  return batch.tapped + (static_cast<long>(logit) * batch.taps + (place - batch.tap_layer)) * shape_.hidden;
}

void Model::keep_tap(const BatchShape& batch, int layer, int row) {
  if (tap(batch, layer, 0) == nullptr) return;
  const int* const end = batch.logit_row + batch.logit_rows;
  const int* const place = std::lower_bound(batch.logit_row, end, row);
  if (place != end && *place == row)
    std::memcpy(tap(batch, layer, static_cast<int>(place - batch.logit_row)), hidden(row),
                shape_.hidden * sizeof(float));
}

void Model::embed(int token_id, float* row) const {
  if (shape_.embedding == nullptr) {
    shape_.head->column(token_id, row);
  } else if (shape_.bf16) {
    const bf16* source =
        static_cast<const bf16*>(shape_.embedding) + static_cast<long>(token_id) * shape_.hidden;
    for (int i = 0; i < shape_.hidden; ++i) row[i] = to_float(source[i]);
  } else {
    std::memcpy(row,
                static_cast<const float*>(shape_.embedding) + static_cast<long>(token_id) * shape_.hidden,
                shape_.hidden * sizeof(float));
  }
  for (int i = 0; i < shape_.hidden; ++i) row[i] *= shape_.embedding_scale;
}

// weight * row / rms(row), in fp32; of a layer norm, the row without its mean. `out` may be `row`.
void Model::normalize(const float* row, const float* weight, int width, float* out) const {
  if (shape_.layer_norm) {
    __m512 sums = _mm512_setzero_ps();
    for (int i = 0; i < width; i += LANES)
      sums = _mm512_add_ps(sums, _mm512_maskz_loadu_ps(first_lanes(width - i), row + i));
    const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sums) / static_cast<float>(width));
    for (int i = 0; i < width; i += LANES) {
      const __mmask16 lanes = first_lanes(width - i);
      _mm512_mask_storeu_ps(out + i, lanes, _mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, row + i), mean));
    }
    row = out;
  }
  rms_normalize(row, weight, width, shape_.norm_eps, out);
}

const float* Model::normalized(const float* row, const float* weight, int rank) {
  if (weight == nullptr) return row;
  float* out = normed_.data() + static_cast<long>(rank) * width_;
  normalize(row, weight, shape_.hidden, out);
  return out;
}

void Model::add_projected(int row, const float* norm, int rank) {
  const float* addend = normalized(projected(row), norm, rank);
  float* target = hidden(row);
  for (int i = 0; i < shape_.hidden; ++i) target[i] += shape_.residual_scale * addend[i];
}

// Asks for the KV that attention begins with: it comes from memory while the queries are computed.
void Model::fetch_kv(const Layer& layer, const View& view) const {
  const int window = layer.shape.window;
  long left = FETCHED_KV_BYTES / pool_.layer_block_bytes;
  for (const QuerySpan& span : view.spans) {
    const int first = window > 0 ? std::max(0, span.start - window + 1) : 0;
    for (int block = first / BLOCK_TOKENS; block <= (span.start + span.rows - 1) / BLOCK_TOKENS; ++block)
      if (left-- > 0)
        pool_.fetch(layer.shape.row, span.blocks[block]);
      else
        return;
  }
}

// Norms and rotates the row's queries and keys in place; its keys and values go into the pool.
void Model::rotate_and_store(const Layer& layer, int row) {
  const LayerShape& shape = layer.shape;
  const int dim = shape_.head_dim, rotated = shape_.heads + shape_.kv_heads;
  const int block = blocks_[shape.group * positions_.size() + row], offset = positions_[row] % BLOCK_TOKENS;
  float* heads = qkv_.data() + static_cast<long>(row) * qkv_width_;
  float* keys = heads + shape_.heads * dim;
  if (shape_.qk_norm == static_cast<int>(QkNorm::HEAD)) {
    for (int head = 0; head < rotated; ++head)
      normalize(heads + head * dim, head < shape_.heads ? shape.query_norm : shape.key_norm, dim,
                heads + head * dim);
  } else if (shape_.qk_norm == static_cast<int>(QkNorm::ALL)) {
    normalize(heads, shape.query_norm, shape_.heads * dim, heads);
    normalize(keys, shape.key_norm, shape_.kv_heads * dim, keys);
  }
  if (shape.rope != nullptr) {
    const int half = shape.rotary_dim / 2;
    const float* cosines = shape.rope + static_cast<long>(positions_[row]) * shape.rotary_dim;
    const float* sines = cosines + half;
    for (int head = 0; head < rotated; ++head) {
      float* first = heads + head * dim;
      float* second = first + half;
      for (int i = 0; i < half; i += LANES) {
        const __mmask16 lanes = first_lanes(half - i);
        const __m512 c = _mm512_maskz_loadu_ps(lanes, cosines + i),
                     s = _mm512_maskz_loadu_ps(lanes, sines + i);
        const __m512 a = _mm512_maskz_loadu_ps(lanes, first + i),
                     b = _mm512_maskz_loadu_ps(lanes, second + i);
        _mm512_mask_storeu_ps(first + i, lanes, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        _mm512_mask_storeu_ps(second + i, lanes, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
      }
    }
  }
  if (shape_.query_growth > 0.0f) {
    const float spans = std::floor(static_cast<float>(positions_[row]) / shape_.query_growth_tokens);
    const float growth = 1.0f + shape_.query_growth * std::log(1.0f + spans);
    for (int i = 0; i < shape_.heads * dim; ++i) heads[i] *= growth;
  }
  for (int kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
    pool_.write(shape.row, block, 0, offset, kv_head, keys + kv_head * dim);
    pool_.write(shape.row, block, 1, offset, kv_head, keys + (shape_.kv_heads + kv_head) * dim);
  }
}

// `meanwhile` is called on the caller's thread; it may change `hidden`.
template <class E, class Meanwhile>
void Model::attend(std::vector<Attention<E>>& workers, const Layer& layer, const View& view, Team& team,
                   Meanwhile&& meanwhile) {
  const int dim = shape_.head_dim;
  const long stride = workers[0].sums_stride();
  const Kind kind = layer.shape.output->kind();
  const auto put = [&](int row, int head, const float* values) {
    for (int d = 0; d < dim; d += LANES) {
      const __m512 value = _mm512_loadu_ps(values + d);
      if (kind == Kind::BF16)
        _mm256_mask_storeu_epi16(layer.output_in->template row<bf16>(row) + head * dim + d,
                                 first_lanes(dim - d), narrow(value));
      else if (kind == Kind::F32)
        _mm512_mask_storeu_ps(layer.output_in->template row<float>(row) + head * dim + d,
                              first_lanes(dim - d), value);
      else
        _mm512_mask_storeu_ps(mixed_.data() + (static_cast<long>(row) * shape_.heads + head) * dim + d,
                              first_lanes(dim - d), value);
    }
  };
  team.share(
      static_cast<int>(view.items.size()), 1,
      [&](int first, int last, int rank) {
        for (int next = first; next < last; ++next) {
          const AttentionItem& item = view.items[next];
          workers[rank].run(item, view.spans[item.span],
                            view.begin_of(next + team.size(), layer.shape.window), layer.shape.window, pool_,
                            layer.shape.row, qkv_.data(), qkv_width_, layer.shape.sinks,
                            sums_.data() + std::max(0L, item.sums) * stride, put);
        }
      },
      meanwhile);
  if (!view.shared.empty()) join_partitions(workers, layer, view, team, put);
  if (!layer.shape.output->quantized()) return;
  const int rows = static_cast<int>(view.sources.size()), width = shape_.heads * dim;
  team.share(rows, rows_per_claim(width), [&](int first, int last, int) {
    for (int row = first; row < last; ++row) {
      const float* mixed = mixed_.data() + static_cast<long>(row) * width;
      layer.shape.output->prepare(mixed, *layer.output_in, row);
      take(*layer.shape.output, mixed, row);
    }
  });
}

// What the items of one row have summed up, to its output.
template <class E, class Put>
void Model::join_partitions(std::vector<Attention<E>>& workers, const Layer& layer, const View& view,
                            Team& team, Put&& put) {
  const float* const sinks = layer.shape.sinks;
  const int group = shape_.heads / shape_.kv_heads;
  const int stride = workers[0].sums_stride(), partitions = static_cast<int>(view.sums / shape_.heads);
  team.share(static_cast<int>(view.shared.size()), rows_per_claim(group * partitions * stride),
             [&](int first, int last, int rank) {
               for (int each = first; each < last; ++each) {
                 const SharedRow& shared = view.shared[each];
                 const QuerySpan& span = view.spans[shared.span];
                 const long apart = static_cast<long>(span.rows) * shape_.heads * stride;
                 float* sums = sums_.data() + (shared.sums + shared.row * shape_.heads) * stride;
                 for (int head = shared.kv_head * group; head < (shared.kv_head + 1) * group; ++head)
                   put(span.first_output + shared.row, head,
                       workers[rank].join(sums + head * stride, span.end_partition - span.first_partition,
                                          apart, sinks == nullptr ? nullptr : sinks + head));
               }
             });
}

}  // namespace penstock
