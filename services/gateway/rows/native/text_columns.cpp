#include "text_columns.h"

#include "msgpack_reader.h"

namespace penstock::rows {

namespace {

constexpr size_t HEAD_FIELDS = 9;
constexpr size_t COLUMNS = 8;

// [type, version, request_id, epoch, deadline_us, origin, trace, tenant, …
bool read_head(MsgpackReader& reader, uint64_t wanted_version) {
  size_t fields;
  std::string_view type, text;
  uint64_t version, number;
  return reader.array(fields) && fields == HEAD_FIELDS && reader.text(type) && type == "Text" &&
         reader.number(version) && version == wanted_version && reader.text(text) && reader.number(number) &&
         reader.number(number) && reader.text(text) && reader.text(text) && reader.text(text);
}

template <class Each>
bool read_column(MsgpackReader& reader, std::vector<TextRow>& rows, Each each) {
  size_t count;
  if (!reader.array(count) || count != rows.size()) return false;
  for (TextRow& row : rows) {
    if (!each(row)) return false;
  }
  return true;
}

bool read_ids(MsgpackReader& reader, TextColumns& columns, TextRow& row) {
  row.first_id = columns.ids.size();
  if (!reader.array(row.id_count)) return false;
  for (size_t i = 0; i < row.id_count; ++i) {
    uint64_t id;
    if (!reader.number(id) || id > 0xffffffff) return false;
    columns.ids.push_back(static_cast<uint32_t>(id));
  }
  row.plain = row.id_count > 0;
  return true;
}

bool read_finish(MsgpackReader& reader, TextRow& row) {
  std::string_view finish;
  if (!reader.text(finish)) return false;
  row.plain = row.plain && finish.empty();
  return true;
}

bool skip_list(MsgpackReader& reader, TextColumns& columns, TextRow& row) {
  size_t count;
  if (!reader.array(count)) return false;
  for (size_t i = 0; i < count; ++i) {
    if (!reader.skip()) return false;
  }
  row.plain = row.plain && count == 0;
  columns.bare = columns.bare && count == 0;
  return true;
}

}  // namespace

bool read_text_columns(std::string_view bytes, uint64_t version, TextColumns& columns) {
  columns.rows.clear();
  columns.ids.clear();
  columns.bare = true;
  std::vector<TextRow>& rows = columns.rows;
  MsgpackReader reader(bytes);
  size_t count;
  if (!read_head(reader, version) || !reader.array(count) || count != COLUMNS || !reader.array(count))
    return false;
  for (size_t i = 0; i < count; ++i) {
    if (!reader.text(rows.emplace_back().request_id)) return false;
  }
  const auto skip = [&](TextRow& row) { return skip_list(reader, columns, row); };
  return read_column(reader, rows, [&](TextRow& row) { return reader.number(row.epoch); }) &&
         read_column(reader, rows, [&](TextRow& row) { return reader.number(row.position); }) &&
         read_column(reader, rows, [&](TextRow& row) { return read_ids(reader, columns, row); }) &&
         read_column(reader, rows, [&](TextRow& row) { return reader.text(row.text); }) &&
         read_column(reader, rows, [&](TextRow& row) { return read_finish(reader, row); }) &&
         read_column(reader, rows, skip) && read_column(reader, rows, skip) && reader.at_end();
}

}  // namespace penstock::rows
