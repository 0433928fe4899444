// Cells of KV pools, copied and hashed in one pass over memory.
#pragma once

#include <cstdint>

namespace penstock {

struct CellTable {
  uint8_t* base;
  const long* cells;

  uint8_t* at(long cell, long cell_bytes) const { return base + cells[cell] * cell_bytes; }
};

// XXH3-64 of `count` cells, one behind the other: whole stripes of 64 bytes each, over 240 bytes together.
uint64_t hash_cells(const CellTable& from, long count, long cell_bytes);

// The same, of cells that are copied on the way. Streamed: past the caches, where `to` is aligned for it,
// because nobody reads them soon.
uint64_t copy_cells(const CellTable& from, const CellTable& to, long count, long cell_bytes, bool streamed);

}  // namespace penstock
