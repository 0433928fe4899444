// The matrix unit of newer CPUs (AMX): one instruction multiplies 16 rows by 16 columns, 64 bytes of each.
//
// Its sums of bf16 have an order of their own: of 32 products, those of even and of odd k are added up apart,
// each by fused multiply-adds in the order of k, then the two sums, and that goes to what was there. Its sums
// of bytes are whole numbers, which have no order.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "tile.h"
#include "vectors.h"

namespace penstock::matrix_unit {

constexpr int UNIT_ROWS = 16;
constexpr int TILE_ROWS = 2 * UNIT_ROWS;  // 4 tiles of sums, 2 of rows, 2 of columns are all that there are
constexpr int STEP_BYTES = 64;            // of a row, in one instruction
constexpr int LEAST_GROUP = 64;           // of fewer columns, vectors make the sums as soon or sooner
constexpr int MAX_GROUP = 512;            // of quantized columns, whose codes are unpacked on the stack
constexpr int BLOCK_BYTES = 1 << 20;      // of rows that meet a panel together, in an L2 of 2 MB
constexpr int BF16_STEP = STEP_BYTES / 2;
constexpr int LEAST_NIBBLE_ROWS = 48;   // that meet nibbles in groups of one step in bf16, or of half a one
constexpr int NIBBLE_BLOCK_ROWS = 240;  // for which those are unpacked once
constexpr int CHUNK_COLUMNS = 256;      // that are unpacked at a time, to 16 kB in the L1
constexpr int PANEL_ROW_BYTES = PANEL * 4;  // a step of 4 bytes of all columns
constexpr int STEP_LINES = STEP_BYTES / 4 * PANEL_ROW_BYTES / 64;

inline std::atomic<bool>& enabled() {
  static std::atomic<bool> flag{false};
  return flag;
}

#ifdef __AVX512BF16__  // which every CPU with a matrix unit has
#define MATRIX_UNIT __attribute__((target("amx-tile,amx-bf16,amx-int8")))

// Whether the kernel lets this process use the unit, which costs each thread that does 8 kB where it is
// saved.
inline bool permitted() {
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
}

// The sizes of this thread's tiles, as the instruction reads them.
struct Config {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int count, int bytes) {
    rows[tile] = static_cast<uint8_t>(count);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};

// This thread's tiles while it multiplies: they are laid out when their sizes change.
class Tiles {
 public:
  Tiles() = default;
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  MATRIX_UNIT ~Tiles() {
    if (rows_ > 0) _tile_release();  // what is in use is saved whenever the thread changes
  }

  // For bf16: tiles 0 to 3 for sums, 4 and 5 for rows, 6 and 7 for columns; of each pair of rows' tiles the
  // second is for what is behind the first 16.
  MATRIX_UNIT void lay_out(int rows) {
    if (rows == rows_ && step_ == STEP_BYTES && low_step_ == 0) return;
    const int first = std::min(rows, UNIT_ROWS), second = std::max(rows - first, 1);
    Config config;
    for (int tile : {0, 1}) config.set(tile, first, STEP_BYTES);
    for (int tile : {2, 3}) config.set(tile, second, STEP_BYTES);
    config.set(4, first, STEP_BYTES);
    config.set(5, second, STEP_BYTES);
    for (int tile : {6, 7}) config.set(tile, UNIT_ROWS, STEP_BYTES);
    load(config, rows, STEP_BYTES, 0);
  }

  // For whole numbers: tiles 0 to 3 for sums, 4 and 5 for what is high and what is low of rows, of which
  // `step` and `low_step` bytes are in one instruction, 6 and 7 for columns that meet so many.
  MATRIX_UNIT void lay_out(int rows, int step, int low_step) {
    if (rows == rows_ && step_ == step && low_step_ == low_step) return;
    Config config;
    for (int tile : {0, 1, 2, 3}) config.set(tile, rows, STEP_BYTES);
    config.set(4, rows, step);
    config.set(5, rows, low_step);
    config.set(6, step / 4, STEP_BYTES);
    config.set(7, low_step / 4, STEP_BYTES);
    load(config, rows, step, low_step);
  }

 private:
  MATRIX_UNIT void load(const Config& config, int rows, int step, int low_step) {
    rows_ = rows, step_ = step, low_step_ = low_step;
    asm volatile("" ::"r"(&config) : "memory");  // the instruction does not say that it reads all of it
    _tile_loadconfig(&config);
  }

  int rows_ = 0, step_ = 0, low_step_ = 0;
};

// tile [num, 32] = rows @ panel of bf16; `stride` in numbers, `k` even, at most TILE_ROWS rows. In each whole
// step between() is called: the unit multiplies meanwhile. Where other rows meet the same panel next
// (PANEL_STAYS), these pass the L1 by, and leave it to the panel.
template <bool PANEL_STAYS, class Between>
MATRIX_UNIT inline void multiply(Tiles& tiles, const bf16* rows, long stride, const bf16* panel, int k,
                                 int num, float* tile, Between&& between) {
  alignas(64) bf16 last_rows[TILE_ROWS][BF16_STEP], last_columns[BF16_STEP * PANEL];
  tiles.lay_out(num);
  const bool two = num > UNIT_ROWS;
  long row_bytes = stride * static_cast<long>(sizeof(bf16));
  const auto add_step = [&](const bf16* from, const bf16* columns) MATRIX_UNIT {
    _tile_loadd(6, columns, PANEL_ROW_BYTES);
    _tile_loadd(7, columns + PANEL, PANEL_ROW_BYTES);
    if constexpr (PANEL_STAYS)
      _tile_stream_loadd(4, from, row_bytes);
    else
      _tile_loadd(4, from, row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (!two) return;
    const uint8_t* others = reinterpret_cast<const uint8_t*>(from) + UNIT_ROWS * row_bytes;
    if constexpr (PANEL_STAYS)
      _tile_stream_loadd(5, others, row_bytes);
    else
      _tile_loadd(5, others, row_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  };
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const int whole = k / BF16_STEP * BF16_STEP, rest = k - whole;
  for (int i = 0; i < whole; i += BF16_STEP, rows += BF16_STEP, panel += BF16_STEP * PANEL) {
    between();
    add_step(rows, panel);
  }
  if (rest > 0) {
    std::memset(last_rows, 0, sizeof last_rows);
    std::memset(last_columns, 0, sizeof last_columns);
    for (int row = 0; row < num; ++row) std::memcpy(last_rows[row], rows + row * stride, rest * sizeof(bf16));
    std::memcpy(last_columns, panel, static_cast<size_t>(rest) * PANEL * sizeof(bf16));
    asm volatile("" ::: "memory");  // an instruction that loads a tile does not say what memory it reads
    row_bytes = STEP_BYTES;
    add_step(last_rows[0], last_columns);
  }
  constexpr int OUT_BYTES = PANEL * sizeof(float);
  _tile_stored(0, tile, OUT_BYTES);
  _tile_stored(1, tile + LANES, OUT_BYTES);
  if (!two) return;
  _tile_stored(2, tile + UNIT_ROWS * PANEL, OUT_BYTES);
  _tile_stored(3, tile + UNIT_ROWS * PANEL + LANES, OUT_BYTES);
}
#else
// No CPU of another kind has one: it is never enabled, and nothing of this is called.
inline bool permitted() {
  return false;
}

class Tiles {};

template <bool PANEL_STAYS, class Between>
void multiply(Tiles&, const bf16*, long, const bf16*, int, int, float*, Between&&) {
  __builtin_unreachable();
}
#endif

}  // namespace penstock::matrix_unit
