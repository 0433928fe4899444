// A matrix in the panel layout of tile.h, and the rows that it multiplies.
#pragma once

#include <algorithm>
#include <vector>

#include "code_storage.h"
#include "matrix_unit.h"
#include "memory.h"
#include "outputs.h"
#include "superblock_rows.h"
#include "thread_pool.h"
#include "tile.h"

namespace penstock {

// The form of a matrix, and with it that of the rows that it meets: of codes of 8 bits rows of 15, of codes
// of 4 bits rows of 12, and of coarse ones, where speed is worth more, codes and rows of 8. A panel of
// K-quants has codes of 4 bits, which meet INT4's rows, or of 5 or 6, which meet rows of 13
// (superblock_rows.h).
enum class Kind : int { F32 = 0, BF16 = 1, INT8 = 2, INT4 = 3, INT8_COARSE = 4, SUPER = 5 };

constexpr int QUANTIZED_TILE_ROWS =
    WHOLE_VECTORS ? 8 : 4;  // beyond it the sums of a group leave the registers
constexpr int MOST_TILE_ROWS = std::max(MAX_TILE_ROWS, matrix_unit::NIBBLE_BLOCK_ROWS);
static_assert(SUPER_BLOCK_ROWS <= MOST_TILE_ROWS);
constexpr size_t SUPER_CACHE_BYTES = size_t{512} << 10;  // of rows that meet the words of a superblock
constexpr size_t TILE_CACHE_BYTES = size_t{384} << 10;   // of the rows, beside a panel in a 1 MB L2
constexpr long CLAIM_BYTES =
    32 << 10;  // of weights that meet a tile of rows: microseconds, claiming costs 0.1

// A packed matrix as it lies in memory or in a file; the field order is that of its ctypes twin.
struct PackedShape {
  int kind, out, in, group, gated, storage;
  const void* parts[7];  // weights, scales, zeros, bias, minima, levels, panel bits; null: has none
  long bytes[7];
};

// Rows of activations in the form that linears of one kind take: fp32, bf16, or whole numbers with a scale
// and their sum per group of columns. Those are kept as high bytes of all columns and low bytes behind them,
// which two columns of INT4 share (quantized_rows.h), or both in one word (word_products.h). Many rows of
// INT4 have them in bf16, too, for the matrix unit (matrix_unit_nibbles.h). Of K-quants a row has INT4's
// form, the words of superblock_rows.h, or one behind the other, as panels of the matrix need them.
struct Rows {
  Kind kind = Kind::F32;
  int groups = 0;                       // per row
  bool wide = false;                    // in bf16, too
  bool nibbles = false, words = false;  // of K-quants: which forms there are
  bool bytes = false;                   // where words would be
  int superblocks = 0;                  // per row
  long words_place = 0;                 // in a row, in bytes
  long stride = 0;  // bytes from row to row: whole cache lines, an odd number of them, so that rows that are
                    // read together do not meet in one set of the L1
  Buffer<uint8_t> data;
  Buffer<float> scales;   // [rows, groups]
  Buffer<int> sums;       // [rows, groups]
  Buffer<float> offsets;  // [rows, groups, 2] of INT4: the sum as it is and times the scale
  Buffer<float> units;    // [rows, superblocks]

  void poison() {
    data.poison();
    scales.poison();
    sums.poison();
    offsets.poison();
    units.poison();
  }

  // Row `target` becomes what row `source` of others of the same form is.
  void copy(const Rows& from, long source, long target) {
    std::memcpy(row<uint8_t>(target), from.row<uint8_t>(source), stride);
    std::copy_n(from.scales.data() + source * groups, groups, scales.data() + target * groups);
    std::copy_n(from.sums.data() + source * groups, groups, sums.data() + target * groups);
    std::copy_n(from.units.data() + source * superblocks, superblocks, units.data() + target * superblocks);
    if (kind == Kind::INT4 || nibbles)
      std::copy_n(from.offsets.data() + 2 * source * groups, 2 * groups,
                  offsets.data() + 2 * target * groups);
  }

  template <class T>
  T* row(long index) {
    return reinterpret_cast<T*>(data.data() + index * stride);
  }
  template <class T>
  const T* row(long index) const {
    return reinterpret_cast<const T*>(data.data() + index * stride);
  }
};

struct QuantizedPanel;

class Linear {
 public:
  // weight [out, in] row-major in `kind` (F32 or BF16); bias [out] or null. `gated`: the first half of the
  // rows are gates, the second half their partners; a panel then holds 16 gates and the 16 partners.
  Linear(const void* weight, Kind kind, const float* bias, int out, int in, bool gated);

  // codes [out, in], scales fp16 and zeros [out, ceil(in / group)]: W = (code - zero) * scale. With minima,
  // fp16 of the same shape, W = code * scale + minimum, and zeros are not read. `group` is a multiple of 16.
  // Codes of INT8 lie in as few bits as hold all of them.
  Linear(Kind kind, const uint8_t* codes, const uint16_t* scales, const uint8_t* zeros,
         const uint16_t* minima, const float* bias, int out, int in, int group, bool gated);

  // K-quants of `in` columns, whole superblocks; `bits` [out] of each row's codes, which are those of all
  // rows of a panel. Codes [out, in], steps [out, in / 16], least [out, in / 32], scales and minima fp16
  // [out, in / 256]; superblocks.h says what they stand for.
  Linear(const uint8_t* codes, const int8_t* steps, const uint8_t* least, const uint16_t* scales,
         const uint16_t* minima, const uint8_t* bits, const float* bias, int out, int in, bool gated);

  // A matrix over parts that were packed before, which stay where they are and outlive this.
  // Throws std::invalid_argument where they do not have the sizes that the shape demands.
  explicit Linear(const PackedShape& packed);

  PackedShape packed() const;

  int in() const { return in_; }
  int out() const { return out_; }
  int width() const { return panels_ * PANEL; }  // of a result row, padding included
  Kind kind() const { return kind_; }
  int group() const { return group_; }
  bool quantized() const { return kind_ != Kind::F32 && kind_ != Kind::BF16; }
  Storage storage() const { return storage_; }
  size_t bytes() const { return weights_.bytes() + scales_.bytes() + zeros_.bytes() + minima_.bytes(); }

  // Room for `count` rows of this linear's input. Not while a team runs.
  void reserve(Rows& rows, int count) const;

  // One fp32 row [in] -> row `index` of `rows`.
  void prepare(const float* row, Rows& rows, int index) const;

  // Column `index` of the weights' transpose, as fp32 [in]: how a tied embedding is looked up.
  void column(int index, float* row) const;

  // rows @ W.T + bias: the team calls put(row, panel, lo, hi) with 2 x 16 columns (outputs.h).
  template <class Put>
  void apply(const Rows& rows, int count, Team& team, Put&& put) const {
    apply(rows, count, team, [](int, int, int, float*) {}, put, [] {});
  }

  // Calls adapt(row, num, panel, tile) before, which may change those `num` rows of 32 columns, and
  // meanwhile() on the caller's thread, while others begin.
  template <class Adapt, class Put, class Meanwhile>
  void apply(const Rows& rows, int count, Team& team, Adapt&& adapt, Put&& put, Meanwhile&& meanwhile) const {
    const bool on_unit = suits_matrix_unit(rows, count), streams = on_unit && kind_ == Kind::BF16;
    const int tile_rows = most_rows(rows, on_unit);
    const size_t cached = streams ? matrix_unit::BLOCK_BYTES : TILE_CACHE_BYTES;
    const int most = std::max<int>(tile_rows, cached / rows.stride / tile_rows * tile_rows);
    const int blocks = (count + most - 1) / most;
    // Each block takes K-quants apart once: none is to have a few rows alone.
    const int block = kind_ == Kind::SUPER ? (count + blocks - 1) / blocks : most;
    const int few = std::min(tile_rows, matrix_unit::TILE_ROWS);  // a tile of nibbles' rows is many of them
    const long tiles = (std::min(count, block) + few - 1) / few;
    const int grain = static_cast<int>(std::max(1L, CLAIM_BYTES / (panel_bytes_ * std::max(1L, tiles))));
    const auto work = [&](int first, int last, int) {
      if (streams) return stream(rows, count, block, first, last, adapt, put);
      alignas(64) float tile[MOST_TILE_ROWS * PANEL];
      matrix_unit::Tiles tiles;
      for (int item = first; item < last; ++item) {
        const int row = item / panels_ * block, panel = item % panels_, height = std::min(block, count - row);
        const StoredCodes codes = codes_of(panel, on_unit || height > tile_rows);
        for_each_tile(height, tile_rows, [&](int at, int num) {
          fetch_places(put, row + at, num, panel);
          multiply_tile(on_unit ? &tiles : nullptr, rows, row + at, num, panel, codes, tile);
          adapt(row + at, num, panel, tile);
          for (int r = 0; r < num; ++r)
            put(row + at + r, panel, _mm512_load_ps(tile + r * PANEL),
                _mm512_load_ps(tile + r * PANEL + LANES));
        });
      }
    };
    // All panels of one block of rows, then of the next: the rows stay in the cache.
    const int items = blocks * panels_;
    if (streams || (blocks == 1 && tiles == 1))
      team.share_stretches(items, grain, work, meanwhile);
    else
      team.share(items, grain, work, meanwhile);
  }

 private:
  Linear(Kind kind, int out, int in, int group, bool gated);  // the shape alone
  void store_as(Storage storage);                             // before there are weights

  size_t weight_bytes() const { return panel_place(panels_) + PREFETCH_BYTES; }
  long panel_place(int panel) const {
    return kind_ == Kind::SUPER ? super_places_[panel] : panel * panel_bytes_;
  }
  void place_superblocks();  // once `panel_bits_` says what they are
  size_t scale_count() const {
    return quantized() && kind_ != Kind::SUPER ? static_cast<size_t>(panels_) * (k_ / group_) * PANEL : 0;
  }
  long code_place(int k, int lane) const;                           // in a panel
  int source_row(int panel, int lane) const;                        // -1: padding
  long row_bytes() const;                                           // of one row of activations, but words
  bool widens(int count) const;                                     // so many rows, for the matrix unit
  long wide_place() const { return (row_bytes() + 63) / 64 * 64; }  // of a row's bf16, in bytes
  void pack_bias(const float* bias);
  // A row to whole numbers: their high bytes, and their low ones behind all of those.
  void round(const float* row, Kind kind, Rows& rows, int index, int8_t* codes) const;
  // Whether so many rows are multiplied there. Sums of bf16 always are, so that they have one order; of whole
  // numbers they are the same ones anywhere, and go where they are made sooner.
  bool suits_matrix_unit(const Rows& rows, int count) const {
    if (!matrix_unit::enabled()) return false;
    if (rows.wide) return count >= matrix_unit::LEAST_NIBBLE_ROWS;
    if (kind_ == Kind::SUPER) return false;
    return kind_ == Kind::BF16 || (quantized() && count > QUANTIZED_TILE_ROWS &&
                                   group_ >= matrix_unit::LEAST_GROUP && group_ <= matrix_unit::MAX_GROUP);
  }
  int most_rows(const Rows& rows, bool on_unit) const {
    if (on_unit && rows.wide) {
      const long tiles = matrix_unit::BLOCK_BYTES / (rows.stride * MAX_TILE_ROWS);
      return std::clamp<int>(tiles * MAX_TILE_ROWS, MAX_TILE_ROWS, matrix_unit::NIBBLE_BLOCK_ROWS);
    }
    if (kind_ == Kind::SUPER) {
      const int cached = static_cast<int>(SUPER_CACHE_BYTES / rows.stride) / SUPER_TILE_ROWS;
      return std::clamp(cached * SUPER_TILE_ROWS, SUPER_TILE_ROWS, SUPER_BLOCK_ROWS);
    }
    if (on_unit) return quantized() ? matrix_unit::UNIT_ROWS : matrix_unit::TILE_ROWS;
    return quantized() ? QUANTIZED_TILE_ROWS : MAX_TILE_ROWS;
  }
  // Items of a product of bf16 on the matrix unit. While that multiplies a tile's rows, the tile before goes
  // where it belongs, and memory is asked for what comes next: for the panel behind this one, by all tiles of
  // rows that meet it, or, where one does and waits for memory alone, for what lies a little ahead.
  template <class Adapt, class Put>
  void stream(const Rows& rows, int count, int block, int first, int last, Adapt& adapt, Put& put) const {
    using matrix_unit::STEP_LINES, matrix_unit::TILE_ROWS;
    alignas(64) float tiles[2][TILE_ROWS * PANEL];
    matrix_unit::Tiles unit;
    int made = 0, row_made = 0, panel_made = 0, next = 0;  // of the tile before: its rows, and the next to go
    const float* values = nullptr;
    const auto put_some = [&](int most) {
      for (const int end = std::min(made, next + most); next < end; ++next)
        put(row_made + next, panel_made, _mm512_load_ps(values + next * PANEL),
            _mm512_load_ps(values + next * PANEL + LANES));
    };
    const int steps = std::max(1, k_ / matrix_unit::BF16_STEP);
    for (int item = first; item < last; ++item) {
      const int row = item / panels_ * block, panel = item % panels_, height = std::min(block, count - row);
      const int num_tiles = (height + TILE_ROWS - 1) / TILE_ROWS;
      const int lines = (STEP_LINES + num_tiles - 1) / num_tiles;
      const uint8_t* packed = weights_.data() + panel * panel_bytes_;
      const uint8_t* ahead = packed + (num_tiles == 1 ? PREFETCH_BYTES : panel_bytes_);
      const bf16* weights = reinterpret_cast<const bf16*>(packed);
      for_each_tile(height, TILE_ROWS, [&](int at, int num) {
        const int puts = (made + steps - 1) / steps;
        float* tile = values == tiles[0] ? tiles[1] : tiles[0];
        const bf16* tile_rows = rows.row<bf16>(row + at);
        if (num_tiles == 1)
          matrix_unit::multiply<false>(unit, tile_rows, rows.stride / 2, weights, k_, num, tile, [&] {
            for (int line = 0; line < STEP_LINES; ++line, ahead += 64) _mm_prefetch(ahead, _MM_HINT_T0);
          });
        else
          matrix_unit::multiply<true>(unit, tile_rows, rows.stride / 2, weights, k_, num, tile, [&] {
            for (int line = 0; line < lines; ++line, ahead += 64) _mm_prefetch(ahead, _MM_HINT_T1);
            put_some(puts);
          });
        put_some(made);
        add_bias(panel, num, tile);
        adapt(row + at, num, panel, tile);
        made = num, row_made = row + at, panel_made = panel, next = 0, values = tile;
      });
    }
    put_some(made);
  }

  // A panel as it lies in memory, or as bytes where it has `many` uses: then until the thread asks again.
  StoredCodes codes_of(int panel, bool many) const;
  // `unit` null: on vectors. At most as many rows as `most_rows` says.
  void multiply_tile(matrix_unit::Tiles* unit, const Rows& rows, int first, int num, int panel,
                     const StoredCodes& codes, float* tile) const;
  void multiply_codes(matrix_unit::Tiles* unit, const Rows& rows, int first, int num, Kind kind,
                      const QuantizedPanel& panel, float* tile) const;
  void multiply_superblocks(const Rows& rows, int first, int num, int panel, float* tile) const;
  void add_bias(int panel, int num, float* tile) const;

  Kind kind_;
  int out_, in_, k_;  // k_: `in_` padded to whole steps or groups
  int panels_;
  int group_;
  bool gated_;
  Storage storage_ = Storage::BYTES;  // of codes of INT8
  long panel_bytes_;
  Buffer<uint8_t> weights_;
  Buffer<uint16_t> scales_;                       // fp16 [panels, groups, 32]
  Buffer<uint8_t> zeros_;                         // [panels, groups, 32]; none where there are minima
  Buffer<uint16_t> minima_;                       // fp16 [panels, groups, 32]
  Buffer<float> bias_;                            // [panels, 32]
  Buffer<uint8_t> levels_;                        // [LEVEL_BYTES]; none but of LEVELS
  Buffer<uint8_t> panel_bits_;                    // [panels]; none but of K-quants
  std::vector<long> super_places_;                // [panels + 1] of K-quants
  bool has_nibbles_ = false, has_words_ = false;  // panels of K-quants: the forms of rows that they meet
};

}  // namespace penstock
