// The kernels' entry points under sanitizers. Under the memory sanitizer everything that comes out must have
// been computed from what went in: a number that was never written, in an output or in what decides a branch,
// ends the run. Under those of addresses and of undefined behaviour no byte beside an input or output may be
// touched.
//
// It says what came out, too, as hashes: builds for unlike CPUs say the same (`make neon`).
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#include <sanitizer/msan_interface.h>
#endif
#endif

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "api.cpp"
#include "sampler.cpp"

namespace {

using namespace penstock;

std::mt19937 generator(7);
const std::vector<int> ROW_COUNTS = {1, 2, 11, 12, 13, 16, 63, 64, 65};

template <class T>
std::vector<T> numbers(size_t count, float least, float most) {
  std::vector<T> found(count);
  std::uniform_real_distribution<float> any(least, most);
  for (T& each : found) each = static_cast<T>(any(generator));
  return found;
}

std::vector<bf16> rounded(const std::vector<float>& values) {
  std::vector<bf16> found(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, &values[i], sizeof bits);
    found[i] = static_cast<bf16>(bits >> 16);
  }
  return found;
}

uint64_t hash = 0;  // of all that came out since somebody said so (FNV-1a, Fowler et al. 1991)

void say(const std::string& what) {
  std::printf("%s %016lx\n", what.c_str(), static_cast<unsigned long>(hash));
  hash = 0;
}

void check_written(const void* data, size_t bytes) {
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
  __msan_check_mem_is_initialized(data, bytes);
#endif
#endif
  const auto* begin = static_cast<const uint8_t*>(data);
  for (size_t at = 0; at < bytes; ++at) hash = (hash ^ begin[at]) * 0x100000001b3;
}

// Memory that holds nothing yet, and says where it was left so.
struct Output {
  explicit Output(size_t count)
      : count(count), data(static_cast<float*>(std::malloc(count * sizeof(float)))) {}
  ~Output() { std::free(data); }
  void check() const { check_written(data, count * sizeof(float)); }
  size_t count;
  float* data;
};

struct FreeLinear {
  void operator()(void* linear) const { penstock_free_linear(linear); }
};
using Matrix = std::unique_ptr<void, FreeLinear>;
const Linear* linear(const Matrix& matrix) {
  return static_cast<const Linear*>(matrix.get());
}

enum class Form { F32, BF16, INT8, INT8_COARSE, INT4, INT4_MINIMA };
constexpr Form FORMS[] = {Form::F32,         Form::BF16, Form::INT8,
                          Form::INT8_COARSE, Form::INT4, Form::INT4_MINIMA};

Matrix matrix(Form form, int out, int in, bool gated = false) {
  const auto bias = numbers<float>(out, -1, 1);
  if (form == Form::F32 || form == Form::BF16) {
    const auto weight = numbers<float>(static_cast<size_t>(out) * in, -0.1f, 0.1f);
    const auto halves = rounded(weight);
    const void* data = form == Form::F32 ? static_cast<const void*>(weight.data()) : halves.data();
    return Matrix(penstock_dense_linear(data, form == Form::BF16, bias.data(), out, in, gated));
  }
  constexpr int group = 32;
  const size_t groups = static_cast<size_t>(out) * ((in + group - 1) / group);
  const int bits = form == Form::INT8 || form == Form::INT8_COARSE ? 8 : 4;
  const auto codes = numbers<uint8_t>(static_cast<size_t>(out) * in, 0, bits == 8 ? 255 : 15);
  const auto zeros = numbers<uint8_t>(groups, 0, 15);
  const std::vector<uint16_t> scales(groups, _cvtss_sh(0.01f, 0)), minima(groups, _cvtss_sh(-0.05f, 0));
  return Matrix(penstock_quantized_linear(codes.data(), scales.data(), zeros.data(),
                                          form == Form::INT4_MINIMA ? minima.data() : nullptr, bias.data(),
                                          out, in, bits, group, gated, form == Form::INT8_COARSE));
}

// K-quants, of which each panel has other bits: any bytes are codes, steps and least weights.
Matrix k_quants(int panels, int in) {
  const int out = panels * PANEL;
  const size_t superblocks = static_cast<size_t>(out) * (in / SUPER_COLUMNS);
  const auto codes = numbers<uint8_t>(static_cast<size_t>(out) * in, 0, 15);
  const auto steps = numbers<int8_t>(superblocks * STEPS, 0, 63);
  const auto least = numbers<uint8_t>(superblocks * SUPER_CHUNKS, 0, 63);
  const std::vector<uint16_t> scales(superblocks, _cvtss_sh(0.001f, 0));
  std::vector<uint8_t> bits(out);
  for (int row = 0; row < out; ++row) bits[row] = static_cast<uint8_t>(4 + row / PANEL % 3);
  return Matrix(penstock_super_linear(codes.data(), steps.data(), least.data(), scales.data(), scales.data(),
                                      bits.data(), nullptr, out, in, false));
}

void check_k_quants(int widest) {
  for (const int in : {256, 4096, 14336}) {
    if (in > std::max(widest, SUPER_COLUMNS)) continue;
    const Matrix weights = k_quants(4, in);
    for (const int rows : ROW_COUNTS)
      for (const int threads : {1, 2}) {
        const auto inputs = numbers<float>(static_cast<size_t>(rows) * in, -1, 1);
        const Output out(static_cast<size_t>(rows) * linear(weights)->width());
        if (penstock_multiply(weights.get(), inputs.data(), rows, threads, out.data)) std::abort();
        out.check();
      }
    std::vector<float> column(in);
    linear(weights)->column(70, column.data());
    check_written(column.data(), column.size() * sizeof(float));
    say("products of K-quants, " + std::to_string(in) + " wide");
  }
}

void check_products(int widest) {
  for (const Form form : FORMS)
    for (const int in : {1, 65, 576, 4096, 8192, 14336}) {
      if (in > widest) continue;
      const Matrix weights = matrix(form, 70, in);
      for (const int rows : ROW_COUNTS)
        for (const int threads : {1, 2}) {
          const auto inputs = numbers<float>(static_cast<size_t>(rows) * in, -1, 1);
          const Output out(static_cast<size_t>(rows) * linear(weights)->width());
          if (penstock_multiply(weights.get(), inputs.data(), rows, threads, out.data)) std::abort();
          out.check();
        }
      say("products of form " + std::to_string(static_cast<int>(form)) + ", " + std::to_string(in) + " wide");
    }
}

// What one layer is made of; everything lives as long as the model.
struct LayerParts {
  Matrix qkv, output, router;
  std::vector<Matrix> gate_up, down;
  std::vector<const Linear*> gate_up_places, down_places;
};

struct ModelKind {
  Form form;
  KvKind kv;
  int heads, kv_heads, head_dim, window, experts;
  QkNorm qk_norm;
};

constexpr int HIDDEN = 96, INNER = 80, VOCAB = 97, POSITIONS = 256, BLOCKS = 64, LAYERS = 2;

void check_model(const ModelKind& kind) {
  const bool is_bf16 = kind.form != Form::F32;
  const int query = kind.heads * kind.head_dim, key = kind.kv_heads * kind.head_dim;
  const auto norm = numbers<float>(std::max(HIDDEN, query), 0.5f, 1.5f);
  const auto rope = numbers<float>(static_cast<size_t>(POSITIONS) * kind.head_dim, -0.7f, 0.7f);
  const auto embedding = numbers<float>(static_cast<size_t>(VOCAB) * HIDDEN, -1, 1);
  const auto rounded_embedding = rounded(embedding);
  const Matrix head = matrix(kind.form, VOCAB, HIDDEN);
  ModelShape shape{};
  shape.vocab = VOCAB, shape.hidden = HIDDEN, shape.heads = kind.heads, shape.kv_heads = kind.kv_heads;
  shape.head_dim = kind.head_dim, shape.qk_norm = static_cast<int>(kind.qk_norm), shape.bf16 = is_bf16;
  shape.threads = 2, shape.norm_eps = 1e-5f, shape.attention_scale = 0.2f, shape.embedding_scale = 1;
  shape.residual_scale = shape.logit_scale = 1;
  shape.embedding = is_bf16 ? static_cast<const void*>(rounded_embedding.data()) : embedding.data();
  shape.head = linear(head), shape.final_norm = norm.data();

  std::vector<LayerParts> parts(LAYERS);
  std::vector<LayerShape> layers(LAYERS);
  for (int index = 0; index < LAYERS; ++index) {
    LayerParts& part = parts[index];
    part.qkv = matrix(kind.form, query + 2 * key, HIDDEN);
    part.output = matrix(kind.form, HIDDEN, query);
    for (int expert = 0; expert < std::max(1, kind.experts); ++expert) {
      part.gate_up.push_back(matrix(kind.form, 2 * INNER, HIDDEN, true));
      part.down.push_back(matrix(kind.form, HIDDEN, INNER));
      part.gate_up_places.push_back(linear(part.gate_up.back()));
      part.down_places.push_back(linear(part.down.back()));
    }
    LayerShape& layer = layers[index];
    layer = LayerShape{};
    layer.attention_in_norm = layer.mlp_in_norm = norm.data();
    if (kind.qk_norm != QkNorm::NONE) layer.query_norm = layer.key_norm = norm.data();
    layer.qkv = linear(part.qkv), layer.output = linear(part.output);
    layer.gate_up = part.gate_up_places.data(), layer.down = part.down_places.data();
    layer.rope = rope.data(), layer.rotary_dim = kind.head_dim, layer.window = kind.window, layer.row = index;
    layer.experts = std::max(1, kind.experts), layer.experts_per_token = kind.experts > 0 ? 2 : 1;
    layer.scale = 1;
    if (kind.experts > 0) {
      part.router = matrix(is_bf16 ? Form::BF16 : Form::F32, kind.experts, HIDDEN);
      layer.router = linear(part.router), layer.normalize = 1;
    }
  }

  const long scales = kind.kv == KvKind::INT8 ? 2L * BLOCK_TOKENS * kind.kv_heads * 2 : 0;
  const long block = 2L * BLOCK_TOKENS * key * kv_item_bytes(kind.kv) + scales;
  const std::unique_ptr<void, decltype(&std::free)> memory(std::malloc(LAYERS * BLOCKS * block), std::free);
  const PoolShape pool{static_cast<uint8_t*>(memory.get()), BLOCKS, block, static_cast<int>(kind.kv)};
  const std::unique_ptr<void, decltype(&penstock_free_model)> model(
      penstock_model(&shape, &pool, layers.data(), LAYERS), penstock_free_model);
  if (model == nullptr) std::abort();

  // Prompts of every number of rows, each in chunks, beside a stream that goes on token by token.
  std::vector<int> blocks(BLOCKS);
  for (int i = 0; i < BLOCKS; ++i) blocks[i] = BLOCKS - 1 - i;
  int decoded = 0;
  for (const int rows : ROW_COUNTS)
    for (const int start : {0, rows}) {
      std::vector<int> token_ids(rows + 1), starts = {start, decoded++}, counts = {rows, 1};
      for (int& id : token_ids) id = static_cast<int>(generator() % VOCAB);
      const std::vector<int> first_blocks = {0, BLOCKS / 2};
      std::vector<int> logit_rows(rows + 1);
      for (int row = 0; row <= rows; ++row) logit_rows[row] = row;
      const BatchShape batch{rows + 1,
                             2,
                             rows + 1,
                             token_ids.data(),
                             starts.data(),
                             counts.data(),
                             first_blocks.data(),
                             blocks.data(),
                             logit_rows.data(),
                             nullptr,
                             nullptr};
      const Output logits(static_cast<size_t>(rows + 1) * VOCAB);
      if (penstock_forward(model.get(), &batch, logits.data)) std::abort();
      logits.check();
    }
  say("a model of form " + std::to_string(static_cast<int>(kind.form)) + ", KV " +
      std::to_string(static_cast<int>(kind.kv)) + ", " + std::to_string(kind.heads) + " heads");
}

void check_models() {
  for (const Form form : FORMS)
    for (const KvKind kv : {form == Form::F32 ? KvKind::F32 : KvKind::BF16, KvKind::INT8}) {
      check_model({form, kv, 6, 2, 32, 0, 0, QkNorm::NONE});
      check_model({form, kv, 4, 4, 14, 20, 0, QkNorm::HEAD});
      check_model({form, kv, 8, 1, 40, 0, 5, QkNorm::ALL});
    }
}

void check_draws() {
  constexpr int64_t rows = 3;
  for (const int64_t vocab : {1, 17, 97, 32000}) {
    auto logits = numbers<float>(rows * vocab, -9, 9);
    std::vector<Draw> draws(rows, Draw{});
    for (Draw& each : draws) each.min_p = 0.01, each.top_p = 0.9, each.top_k = 7, each.temperature = 0.8;
    int64_t ids[rows];
    penstock_sample(logits.data(), rows, vocab, draws.data(), ids, 2);
    check_written(ids, sizeof ids);
  }
  say("draws");
}

void check_cells() {
  constexpr long count = 5;
  const long cells[count] = {4, 0, 2, 3, 1};
  for (const long bytes : {64L, 192L, 4096L}) {  // whole stripes of the hash
    auto from = numbers<uint8_t>(count * bytes, 0, 255);
    const std::unique_ptr<void, decltype(&std::free)> to(
        std::aligned_alloc(64, (count * bytes + 63) / 64 * 64), std::free);
    for (const int streamed : {0, 1})
      if (penstock_copy_cells(from.data(), cells, to.get(), cells, count, bytes, streamed) !=
          penstock_hash_cells(from.data(), cells, count, bytes))
        std::abort();
    check_written(to.get(), count * bytes);
  }
  say("cells");
}

void check_encoder() {
  constexpr int hidden = 64, heads = 4, layers = 2, vocab = 50;
  const auto table = numbers<float>(vocab * hidden, -1, 1), norm = numbers<float>(hidden, 0.5f, 1.5f);
  std::vector<Matrix> matrices;
  std::vector<EncoderLayerShape> shapes(layers);
  for (EncoderLayerShape& layer : shapes) {
    for (const auto& [out, in] : {std::pair{3 * hidden, hidden}, std::pair{hidden, hidden},
                                  std::pair{4 * hidden, hidden}, std::pair{hidden, 4 * hidden}})
      matrices.push_back(matrix(Form::INT8, out, in));
    const size_t first = matrices.size() - 4;
    layer = {linear(matrices[first]),
             linear(matrices[first + 1]),
             linear(matrices[first + 2]),
             linear(matrices[first + 3]),
             norm.data(),
             norm.data(),
             norm.data(),
             norm.data()};
  }
  const EncoderShape shape{hidden,       heads,        layers,      1e-12f,     table.data(),
                           table.data(), table.data(), norm.data(), norm.data()};
  const std::unique_ptr<void, decltype(&penstock_free_encoder)> encoder(
      penstock_encoder(&shape, shapes.data()), penstock_free_encoder);
  const std::vector<int> starts = {0, 1, 14, 40}, kinds(40, 0);
  std::vector<int> token_ids(40);
  for (int& id : token_ids) id = static_cast<int>(generator() % vocab);
  const TextsShape texts{3, starts.data(), token_ids.data(), kinds.data()};
  for (const Pooling pooling : {Pooling::NONE, Pooling::MEAN, Pooling::FIRST}) {
    const Output states((pooling == Pooling::NONE ? 40 : 3) * hidden);
    if (penstock_encode(encoder.get(), &texts, static_cast<int>(pooling), states.data)) std::abort();
    states.check();
  }
  say("encoder");
}

}  // namespace

// The widest products can be told: an emulated CPU takes its time.
int main(int argc, char** argv) {
  const int widest = argc > 1 ? std::atoi(argv[1]) : INT_MAX;
  check_products(widest);
  check_k_quants(widest);
  check_models();
  check_encoder();
  check_draws();
  check_cells();
}
