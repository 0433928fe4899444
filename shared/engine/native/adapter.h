// Low-rank products beside a model's matrices (LoRA, Hu et al. 2021), gathered: rows of different adapters
// are computed in one pass, each with its own (Punica, Chen et al. 2023; S-LoRA, Sheng et al. 2023). Like
// everything else they are sums in one order: a row's result depends neither on the rows beside it nor on the
// threads.
#pragma once

#include <utility>
#include <vector>

#include "linear.h"

namespace penstock {

enum class Adapted : int { QKV = 0, OUTPUT = 1, GATE_UP = 2, DOWN = 3 };
constexpr int ADAPTED_MATRICES = 4;

constexpr long VECTOR_BYTES = 64;
constexpr int RANK_TILE = 4;          // ranks that are computed together
constexpr int ADAPTED_TILE_ROWS = 4;  // 16 accumulators, 4 rows, 1 vector of weights
constexpr int ADAPTED_ROWS_PER_ITEM = 64;
constexpr long RANKS_CLAIM_BYTES = 8 << 10;  // of an adapter's weights: a microsecond

// Where the ranks of 16 columns are: `count` from `first` on, their weights at `place` of `up`.
struct RankSpan {
  long first, count, place;
};

// What an adapter adds to one matrix: y += up @ (scales * (down @ x)). In the type of the arithmetic; the
// field order is that of its ctypes twin.
struct LowRankShape {
  const void* down;         // [ranks / 4][ceil(in / V)][4][V], V numbers are 64 bytes; null: adds nothing
  const float* scales;      // [ranks]
  const void* up;           // of each 16 columns [count][16] fp32, [count / 2][16][2] bf16
  const RankSpan* columns;  // [2 * panels]: of the halves of the matrix's panels
  long ranks;               // of all its modules, a multiple of 4
  long in;
};

// Which rows of a batch have an adapter.
class AdaptedRows {
 public:
  // `adapters[i]` is that of row i, [layers][matrices]; null: the model alone.
  void assign(std::vector<const LowRankShape*> adapters);
  bool any() const { return !order_.empty(); }
  bool has(int row) const { return adapters_[row] != nullptr; }
  const LowRankShape* of(int row, int layer, Adapted matrix) const {
    const LowRankShape* adapter = adapters_[row];
    if (adapter == nullptr) return nullptr;
    adapter += layer * ADAPTED_MATRICES + static_cast<int>(matrix);
    return adapter->down == nullptr ? nullptr : adapter;
  }

 private:
  friend class LowRankSums;

  struct Run {  // rows of one adapter, [first, last) of `order_`
    const LowRankShape* adapter;
    int first, last;
  };

  std::vector<const LowRankShape*> adapters_;
  std::vector<int> order_;  // rows that have one, adapter by adapter
  std::vector<Run> runs_;   // of at most ADAPTED_ROWS_PER_ITEM rows
};

// The sums of one matrix's ranks, row by row, and what they add to its outputs.
class LowRankSums {
 public:
  explicit LowRankSums(bool is_bf16) : is_bf16_(is_bf16) {}

  // Room for `rows` rows of inputs of up to `most_in` numbers. Not while a team runs.
  void reserve(const AdaptedRows& adapted, int layers, int rows, int most_in);

  // Row `row` of the next matrix's input, where the matrix itself takes it in another form.
  void take(const float* values, int in, int row);

  // down @ x of all rows that have an adapter. `input` null: they are those that were taken.
  void sum(const AdaptedRows& adapted, int layer, Adapted matrix, const Rows* input, Team& team);

  // up @ the sums, to a tile of the matrix's output: its rows [first, first + num), a panel of its columns.
  void add(const AdaptedRows& adapted, int layer, Adapted matrix, int first, int num, int panel,
           float* tile) const;

  void poison() {
    sums_.poison();
    taken_.poison();
  }

 private:
  struct Item {
    const AdaptedRows::Run* run;
    const LowRankShape* adapter;
    int first_tile, last_tile;
  };

  template <class E>
  void sum_item(const Item& item, const AdaptedRows& adapted, const uint8_t* input, long stride);
  template <class E, int R>
  void add_rows(const LowRankShape& adapter, const int* rows, int panel, float* const* outputs) const;

  bool is_bf16_;
  long sums_stride_ = 0, taken_stride_ = 0;  // bytes
  Buffer<uint8_t> sums_;                     // [rows, ranks]
  Buffer<uint8_t> taken_;                    // [rows, in]
  std::vector<Item> items_;
};

}  // namespace penstock
