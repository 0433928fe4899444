// What engine/native/library.py calls. Arguments were checked there; 0 is success.
#include <omp.h>
#include <sys/mman.h>

#include <new>
#include <stdexcept>

#include "cells.h"
#include "draft_head.h"
#include "encoder.h"
#include "model.h"

using namespace penstock;

extern "C" {

// Changes whenever a signature or a struct below does: a library of another build is refused.
int penstock_abi() {
  return 34;
}

void penstock_use_matrix_unit(int wanted) {
  matrix_unit::enabled() = wanted != 0 && matrix_unit::permitted();
}

int penstock_has_matrix_unit() {
  return matrix_unit::enabled();
}

void* penstock_dense_linear(const void* weight, int is_bf16, const float* bias, int out, int in, int gated) {
  try {
    return new Linear(weight, is_bf16 ? Kind::BF16 : Kind::F32, bias, out, in, gated != 0);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void* penstock_quantized_linear(const uint8_t* codes, const uint16_t* scales, const uint8_t* zeros,
                                const uint16_t* minima, const float* bias, int out, int in, int bits,
                                int group, int gated, int coarse_rows) {
  try {
    const Kind kind = bits == 4 ? Kind::INT4 : coarse_rows ? Kind::INT8_COARSE : Kind::INT8;
    return new Linear(kind, codes, scales, zeros, minima, bias, out, in, group, gated != 0);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void* penstock_super_linear(const uint8_t* codes, const int8_t* steps, const uint8_t* least,
                            const uint16_t* scales, const uint16_t* minima, const uint8_t* bits,
                            const float* bias, int out, int in, int gated) {
  try {
    return new Linear(codes, steps, least, scales, minima, bits, bias, out, in, gated != 0);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void penstock_packed_parts(const void* linear, PackedShape* packed) {
  *packed = static_cast<const Linear*>(linear)->packed();
}

// Null: the parts are not those of such a matrix, or there is no memory.
void* penstock_linear_over(const PackedShape* packed) {
  try {
    return new Linear(*packed);
  } catch (const std::exception&) {
    return nullptr;
  }
}

// The whole of a file to read, shared with all who do so; its pages are here when this returns, in huge ones
// where the kernel makes them. Null: it cannot be mapped.
void* penstock_map(int file, long bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, bytes, MADV_HUGEPAGE);
  madvise(memory, bytes, MADV_POPULATE_READ);
  return memory;
}

void penstock_unmap(void* memory, long bytes) {
  munmap(memory, bytes);
}

long penstock_linear_bytes(const void* linear) {
  return static_cast<long>(static_cast<const Linear*>(linear)->bytes());
}

void penstock_free_linear(void* linear) {
  delete static_cast<Linear*>(linear);
}

// rows fp32 [count, in] -> out fp32 [count, width], width = columns padded to panels.
int penstock_multiply(const void* linear, const float* rows, int count, int threads, float* out) {
  try {
    const Linear& matrix = *static_cast<const Linear*>(linear);
    Rows input;
    matrix.reserve(input, count);
    for (int row = 0; row < count; ++row)
      matrix.prepare(rows + static_cast<long>(row) * matrix.in(), input, row);
    Team team(threads);
    matrix.apply(input, count, team, OutputRows{out, matrix.width()});
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// For tests: bf16 attention of rows [start, start + rows) of a sequence whose keys and values are in `blocks`
// of the pool's first row. queries fp32 [rows, heads, head_dim] -> out alike; at most QUERY_ROWS per KV head.
int penstock_attend(const PoolShape* pool, const AttentionShape* shape, int window, const int* blocks,
                    int start, int rows, const float* queries, float* out) {
  try {
    const int width = shape->heads * shape->head_dim, partitions = (start + rows - 1) / PARTITION_KEYS + 1;
    const Pool cells{
        pool->base,      pool->num_blocks, pool->layer_block_bytes, static_cast<KvKind>(pool->kind),
        shape->kv_heads, shape->head_dim};
    const QuerySpan span{start, rows, 0, 0, blocks, 0, partitions};
    Attention<bf16> attention(*shape);
    attention.poison();
    for (int head = 0; head < shape->kv_heads; ++head)
      attention.run({0, head, 1, 0, rows, 0, partitions, -1}, span, {}, window, cells, 0, queries, width,
                    nullptr, nullptr, [&](int row, int query_head, const float* values) {
                      std::memcpy(out + static_cast<long>(row) * width + query_head * shape->head_dim, values,
                                  shape->head_dim * sizeof(float));
                    });
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

void* penstock_model(const ModelShape* shape, const PoolShape* pool, const LayerShape* layers, int count) {
  try {
    auto model = std::make_unique<Model>(*shape, *pool);
    for (int layer = 0; layer < count; ++layer) model->add_layer(layers[layer]);
    return model.release();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void penstock_free_model(void* model) {
  delete static_cast<Model*>(model);
}

int penstock_forward(void* model, const BatchShape* batch, float* logits) {
  try {
    static_cast<Model*>(model)->forward(*batch, logits);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// For tests: nothing of one step may show in the next.
void penstock_poison(void* model) {
  static_cast<Model*>(model)->poison();
}

void* penstock_draft_head(const DraftHeadShape* shape, const DraftBlockShape* blocks, const void* target) {
  try {
    return new DraftHead(*shape, blocks, static_cast<const Model*>(target));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void penstock_free_draft_head(void* head) {
  delete static_cast<DraftHead*>(head);
}

int penstock_draft(void* head, const DraftRowsShape* rows) {
  try {
    static_cast<DraftHead*>(head)->draft(*rows);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// For tests: nothing of one call may show in the next.
void penstock_poison_draft_head(void* head) {
  static_cast<DraftHead*>(head)->poison();
}

void* penstock_encoder(const EncoderShape* shape, const EncoderLayerShape* layers) {
  try {
    return new Encoder(*shape, layers);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void penstock_free_encoder(void* encoder) {
  delete static_cast<Encoder*>(encoder);
}

// `out` as `pooling` says: see encoder.h.
int penstock_encode(const void* encoder, const TextsShape* texts, int pooling, float* out) {
  try {
    static_cast<const Encoder*>(encoder)->encode(*texts, static_cast<Pooling>(pooling), out);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

long penstock_board_bytes() {
  return sizeof(Board);
}

void penstock_take_slot(Board* board, int number, const Slot* as) {
  board->take(number, *as);
}

void penstock_compute(Board* board, int number, int on) {
  board->compute(number, on != 0);
}

void penstock_serve(Board* board, int number, unsigned requests) {
  board->serve(number, requests);
}

void penstock_prompts(const Board* board, int number, Prompts* prompts) {
  *prompts = board->prompts(number);
}

unsigned penstock_changes(const Board* board) {
  return board->changes.load(std::memory_order_acquire);
}

void penstock_change(Board* board) {
  board->change();
}

void penstock_await_change(Board* board, unsigned seen, long nanoseconds) {
  board->await_change(seen, nanoseconds);
}

int penstock_share(const Board* board, int number) {
  return board->share(number);
}

// From now on the threads of this process are those of a slot; null: they are all that are asked for.
void penstock_join(Board* board, int number) {
  ThreadPool::shared().join(board, number);
}

// Reads `count` floats once, every thread its share; returns their sum so that nothing is optimised away.
double penstock_read(const float* data, long count, int threads) {
  double total = 0.0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
  {
    const int rank = omp_get_thread_num(), size = omp_get_num_threads();
    const long first = count / size * rank / LANES * LANES, last = count / size * (rank + 1) / LANES * LANES;
    __m512 sums[4] = {};
    for (long i = first; i + 4 * LANES <= last; i += 4 * LANES)
      for (int j = 0; j < 4; ++j) {
        _mm_prefetch(reinterpret_cast<const char*>(data + i + j * LANES) + PREFETCH_BYTES, _MM_HINT_T0);
        sums[j] = _mm512_add_ps(sums[j], _mm512_loadu_ps(data + i + j * LANES));
      }
    total +=
        _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
  }
  return total;
}

// Both tables hold `count` cells that are there; `streamed` as in cells.h.
unsigned long penstock_copy_cells(void* from, const long* from_cells, void* to, const long* to_cells,
                                  long count, long cell_bytes, int streamed) {
  const CellTable source{static_cast<uint8_t*>(from), from_cells};
  const CellTable target{static_cast<uint8_t*>(to), to_cells};
  return copy_cells(source, target, count, cell_bytes, streamed != 0);
}

unsigned long penstock_hash_cells(void* from, const long* from_cells, long count, long cell_bytes) {
  return hash_cells({static_cast<uint8_t*>(from), from_cells}, count, cell_bytes);
}
}  // extern "C"
