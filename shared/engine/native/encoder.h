// A BERT encoder (Devlin et al., 2019): every token of a text attends to all of it, norms stand behind the
// sums. Texts lie one behind the other, so that none is padded to the length of another.
#pragma once

#include <vector>

#include "linear.h"

namespace penstock {

constexpr int TEXTS_TOKENS = 128;  // of short texts together: what they become layer by layer stays in the L2

struct EncoderShape {
  int hidden, heads, layers;
  float norm_eps;
  const float* words;      // [vocab, hidden]
  const float* positions;  // [positions, hidden]
  const float* kinds;      // [kinds, hidden]
  const float *norm, *norm_bias;
};

struct EncoderLayerShape {
  const Linear *qkv, *output, *up, *down;
  const float *attention_norm, *attention_norm_bias, *output_norm, *output_norm_bias;
};

// `starts` [count + 1]: the tokens of text i are [starts[i], starts[i + 1]), at least one.
struct TextsShape {
  int count;
  const int *starts, *token_ids, *kinds;
};

enum class Pooling : int { NONE = 0, MEAN = 1, FIRST = 2 };

class Encoder {
 public:
  Encoder(const EncoderShape& shape, const EncoderLayerShape* layers)
      : shape_(shape), layers_(layers, layers + shape.layers) {}

  // The last states of all tokens [tokens, hidden], of each text their mean, or its first token's
  // [count, hidden]. A text's result does not depend on those beside it. Any number of threads may call it.
  void encode(const TextsShape& texts, Pooling pooling, float* out) const;

 private:
  struct Work;

  void embed(const TextsShape& texts, int first_token, int tokens, Work& work) const;
  void run_layer(const EncoderLayerShape& layer, const TextsShape& texts, int first, int last,
                 Work& work) const;
  void attend(Work& work, int first, int count) const;
  void pool(const TextsShape& texts, int first, int last, Pooling pooling, const Work& work,
            float* out) const;

  EncoderShape shape_;
  std::vector<EncoderLayerShape> layers_;
};

}  // namespace penstock
