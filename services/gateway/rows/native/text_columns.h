// The columns of a Text message, read out of its bytes: nothing is copied, and no object of Python is made.
//
// Only what `shared.bus.codec` would take as well is read. What is written in another way than a detokenizer
// writes it, what is longer than is known here, and what is no message at all, is for that codec to judge.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace penstock::rows {

struct TextRow {
  std::string_view request_id;
  uint64_t epoch = 0;
  uint64_t position = 0;
  size_t first_id = 0;  // in the ids of all rows
  size_t id_count = 0;
  std::string_view text;
  bool plain = false;  // it has ids, ends nothing, and tells nothing beside its text
};

struct TextColumns {
  std::vector<TextRow> rows;
  std::vector<uint32_t> ids;
  // No row has log-probabilities or marks, which are not judged here.
  bool bare = false;
};

// False where the bytes are not such a message of this version.
bool read_text_columns(std::string_view bytes, uint64_t version, TextColumns& columns);

}  // namespace penstock::rows
