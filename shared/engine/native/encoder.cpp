#include "encoder.h"

#include <algorithm>

namespace penstock {
namespace {

// x (1 + erf(x / sqrt(2))) / 2, with erf to 1.5e-7 as in Abramowitz and Stegun, 7.1.26.
inline __m512 gelu_erf(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 z = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.70710678118654752f));
  const __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(z, _mm512_set1_ps(0.3275911f), one));
  __m512 p = _mm512_set1_ps(1.061405429f);
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.453152027f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.421413741f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.284496736f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.254829592f));
  p = _mm512_mul_ps(p, t);
  const __m512 rest = _mm512_mul_ps(p, exp(_mm512_fnmadd_ps(z, z, _mm512_setzero_ps())));  // 1 - erf(z)
  // Above zero x - x rest / 2, below it x rest / 2.
  const __m512 half = _mm512_mul_ps(_mm512_mul_ps(x, _mm512_set1_ps(0.5f)), rest);
  return _mm512_mask_sub_ps(half, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ), x, half);
}

// (row - mean) / sqrt(variance + eps) * weight + bias, in place.
void normalize(float* row, int width, float eps, const float* weight, const float* bias) {
  __m512 sum = _mm512_setzero_ps();
  for (int i = 0; i < width; i += LANES) sum = _mm512_add_ps(sum, _mm512_loadu_ps(row + i));
  const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / width);
  __m512 squares = _mm512_setzero_ps();
  for (int i = 0; i < width; i += LANES) {
    const __m512 distance = _mm512_sub_ps(_mm512_loadu_ps(row + i), mean);
    squares = _mm512_fmadd_ps(distance, distance, squares);
  }
  const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / width + eps));
  for (int i = 0; i < width; i += LANES) {
    const __m512 value = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(row + i), mean), scale);
    _mm512_storeu_ps(row + i, _mm512_fmadd_ps(value, _mm512_loadu_ps(weight + i), _mm512_loadu_ps(bias + i)));
  }
}

// rows [count, dim], `stride` apart -> panels [ceil(count / 32)][dim][32] of their transpose; `dim` is a
// multiple of 16. Columns without a row are zero.
void pack_transposed(const float* rows, long stride, int count, int dim, float* panels) {
  for (int first = 0; first < count; first += LANES)
    for (int k = 0; k < dim; k += LANES) {
      __m512i block[LANES];
      for (int r = 0; r < LANES; ++r)
        block[r] =
            first + r < count ? _mm512_loadu_si512(rows + (first + r) * stride + k) : _mm512_setzero_si512();
      transpose16(block);
      float* target = panels + (static_cast<long>(first / PANEL) * dim + k) * PANEL + first % PANEL;
      for (int r = 0; r < LANES; ++r) _mm512_storeu_si512(target + r * PANEL, block[r]);
    }
}

// rows [count, dim], `stride` apart -> panels [ceil(dim / 32)][count][32].
void pack_columns(const float* rows, long stride, int count, int dim, float* panels) {
  for (int k = 0; k < dim; k += LANES) {
    float* target = panels + static_cast<long>(k / PANEL) * count * PANEL + k % PANEL;
    for (int r = 0; r < count; ++r)
      _mm512_storeu_ps(target + r * PANEL, _mm512_loadu_ps(rows + r * stride + k));
  }
}

// scores [count], in place: e^(scale (score - largest)), zero beyond `count` up to whole vectors. The sum.
float exponentiate(float* scores, int count, float scale) {
  const __m512 lowest = _mm512_set1_ps(-INFINITY);
  __m512 most = lowest;
  for (int i = 0; i < count; i += LANES)
    most = _mm512_max_ps(most, _mm512_mask_loadu_ps(lowest, first_lanes(count - i), scores + i));
  const __m512 largest = _mm512_set1_ps(_mm512_reduce_max_ps(most)), factor = _mm512_set1_ps(scale);
  __m512 sum = _mm512_setzero_ps();
  for (int i = 0; i < count; i += LANES) {
    const __m512 distance = _mm512_sub_ps(_mm512_loadu_ps(scores + i), largest);
    const __m512 value = _mm512_maskz_mov_ps(first_lanes(count - i), exp(_mm512_mul_ps(distance, factor)));
    _mm512_storeu_ps(scores + i, value);
    sum = _mm512_add_ps(sum, value);
  }
  return _mm512_reduce_add_ps(sum);
}

}  // namespace

// What one block of texts becomes on its way through the layers.
struct Encoder::Work {
  Work(const EncoderShape& shape, const EncoderLayerShape& layer, int tokens, int longest)
      : team(1),
        hidden(static_cast<size_t>(tokens) * shape.hidden),
        qkv(static_cast<size_t>(tokens) * 3 * shape.hidden),
        inner(static_cast<size_t>(tokens) * std::max(layer.up->out(), shape.hidden)),
        keys(static_cast<size_t>(round_up(longest, PANEL)) * round_up(shape.hidden / shape.heads, PANEL)),
        values(keys.bytes() / sizeof(float)),
        scores(static_cast<size_t>(MAX_TILE_ROWS) * round_up(longest, PANEL)) {
    layer.qkv->reserve(narrow_rows, tokens);
    layer.down->reserve(wide_rows, tokens);
  }

  Team team;
  Buffer<float> hidden, qkv, inner;  // `inner` holds what attention found, too
  Buffer<float> keys, values, scores;
  Rows narrow_rows, wide_rows;
  int tokens = 0;
};

void Encoder::encode(const TextsShape& texts, Pooling pooling, float* out) const {
  int longest = 0;
  for (int text = 0; text < texts.count; ++text)
    longest = std::max(longest, texts.starts[text + 1] - texts.starts[text]);
  const int room = std::max(std::min(TEXTS_TOKENS, texts.starts[texts.count]), longest);
  Work work(shape_, layers_.front(), room, longest);
  for (int first = 0, last; first < texts.count; first = last) {
    const int begin = texts.starts[first];
    for (last = first + 1; last < texts.count && texts.starts[last + 1] - begin <= room;) ++last;
    embed(texts, begin, texts.starts[last] - begin, work);
    for (const EncoderLayerShape& layer : layers_) run_layer(layer, texts, first, last, work);
    pool(texts, first, last, pooling, work, out);
  }
}

void Encoder::embed(const TextsShape& texts, int first_token, int tokens, Work& work) const {
  work.tokens = tokens;
  const int* start = std::upper_bound(texts.starts, texts.starts + texts.count + 1, first_token) - 1;
  for (int token = 0; token < tokens; ++token) {
    while (first_token + token >= start[1]) ++start;
    const long width = shape_.hidden, at = first_token + token;
    const float* word = shape_.words + texts.token_ids[at] * width;
    const float* position = shape_.positions + (at - *start) * width;
    const float* kind = shape_.kinds + texts.kinds[at] * width;
    float* row = work.hidden.data() + token * width;
    for (int i = 0; i < width; i += LANES)
      _mm512_storeu_ps(row + i,
                       _mm512_add_ps(_mm512_add_ps(_mm512_loadu_ps(word + i), _mm512_loadu_ps(kind + i)),
                                     _mm512_loadu_ps(position + i)));
    normalize(row, shape_.hidden, shape_.norm_eps, shape_.norm, shape_.norm_bias);
  }
}

void Encoder::run_layer(const EncoderLayerShape& layer, const TextsShape& texts, int first, int last,
                        Work& work) const {
  const int tokens = work.tokens, width = shape_.hidden;
  const auto prepare = [&](const Linear& linear, const float* from, int stride, Rows& rows) {
    for (int row = 0; row < tokens; ++row) linear.prepare(from + static_cast<long>(row) * stride, rows, row);
  };
  const auto write = [](float* place, __m512 low, __m512 high) {
    _mm512_storeu_ps(place, low);
    _mm512_storeu_ps(place + LANES, high);
  };
  const auto add = [&](int row, int panel, __m512 low, __m512 high) {
    float* place = work.hidden.data() + static_cast<long>(row) * width + panel * PANEL;
    write(place, _mm512_add_ps(low, _mm512_loadu_ps(place)),
          _mm512_add_ps(high, _mm512_loadu_ps(place + LANES)));
  };
  const auto norm = [&](const float* weight, const float* bias) {
    for (int row = 0; row < tokens; ++row)
      normalize(work.hidden.data() + static_cast<long>(row) * width, width, shape_.norm_eps, weight, bias);
  };

  prepare(*layer.qkv, work.hidden.data(), width, work.narrow_rows);
  layer.qkv->apply(work.narrow_rows, tokens, work.team, [&](int row, int panel, __m512 low, __m512 high) {
    write(work.qkv.data() + static_cast<long>(row) * 3 * width + panel * PANEL, low, high);
  });
  for (int text = first; text < last; ++text)
    attend(work, texts.starts[text] - texts.starts[first], texts.starts[text + 1] - texts.starts[text]);
  prepare(*layer.output, work.inner.data(), width, work.narrow_rows);
  layer.output->apply(work.narrow_rows, tokens, work.team, add);
  norm(layer.attention_norm, layer.attention_norm_bias);

  const int inner = layer.up->out();
  prepare(*layer.up, work.hidden.data(), width, work.narrow_rows);
  layer.up->apply(work.narrow_rows, tokens, work.team, [&](int row, int panel, __m512 low, __m512 high) {
    write(work.inner.data() + static_cast<long>(row) * inner + panel * PANEL, gelu_erf(low), gelu_erf(high));
  });
  prepare(*layer.down, work.inner.data(), inner, work.wide_rows);
  layer.down->apply(work.wide_rows, tokens, work.team, add);
  norm(layer.output_norm, layer.output_norm_bias);
}

// Of the text whose rows are [first, first + count): softmax(Q K' / sqrt(dim)) V, head by head, to `inner`.
void Encoder::attend(Work& work, int first, int count) const {
  const int width = shape_.hidden, dim = width / shape_.heads, stride = 3 * width;
  const int padded = round_up(count, PANEL);
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  float* scores = work.scores.data();
  for (int head = 0; head < shape_.heads; ++head) {
    const float* queries = work.qkv.data() + static_cast<long>(first) * stride + head * dim;
    float* mixed = work.inner.data() + static_cast<long>(first) * width + head * dim;
    pack_transposed(queries + width, stride, count, dim, work.keys.data());
    pack_columns(queries + 2 * width, stride, count, dim, work.values.data());
    for_each_tile(count, MAX_TILE_ROWS, [&](int at, int num) {
      with_rows(num, [&]<int R>() {
        Accumulators<R> sums;
        for (int key = 0; key < padded; key += PANEL) {
          clear<R>(sums);
          multiply<R>(queries + static_cast<long>(at) * stride, stride,
                      work.keys.data() + static_cast<long>(key) * dim, dim, sums);
          for (int r = 0; r < R; ++r) {
            _mm512_storeu_ps(scores + r * padded + key, sums[r][0]);
            _mm512_storeu_ps(scores + r * padded + key + LANES, sums[r][1]);
          }
        }
        __m512 shares[R];
        for (int r = 0; r < R; ++r)
          shares[r] = _mm512_set1_ps(1.0f / exponentiate(scores + r * padded, count, scale));
        for (int k = 0; k < dim; k += PANEL) {
          clear<R>(sums);
          multiply<R>(scores, padded, work.values.data() + static_cast<long>(k) * count, count, sums);
          for (int r = 0; r < R; ++r)
            for (int half = 0; half < 2 && k + half * LANES < dim; ++half)
              _mm512_storeu_ps(mixed + static_cast<long>(at + r) * width + k + half * LANES,
                               _mm512_mul_ps(sums[r][half], shares[r]));
        }
      });
    });
  }
}

void Encoder::pool(const TextsShape& texts, int first, int last, Pooling pooling, const Work& work,
                   float* out) const {
  const long width = shape_.hidden;
  const int begin = texts.starts[first];
  if (pooling == Pooling::NONE) {
    std::memcpy(out + begin * width, work.hidden.data(), work.tokens * width * sizeof(float));
    return;
  }
  for (int text = first; text < last; ++text) {
    const float* rows = work.hidden.data() + (texts.starts[text] - begin) * width;
    const int count = pooling == Pooling::FIRST ? 1 : texts.starts[text + 1] - texts.starts[text];
    for (int i = 0; i < width; i += LANES) {
      __m512 sum = _mm512_loadu_ps(rows + i);
      for (int row = 1; row < count; ++row) sum = _mm512_add_ps(sum, _mm512_loadu_ps(rows + row * width + i));
      _mm512_storeu_ps(out + text * width + i, _mm512_div_ps(sum, _mm512_set1_ps(static_cast<float>(count))));
    }
  }
}

}  // namespace penstock
