#include "table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "frames.h"
#include "utf8.h"

namespace penstock::rows {

namespace {

// As `services.gateway.scope.recent_latencies` has them.
constexpr int BINS_PER_OCTAVE = 8;
constexpr int MAX_BIN = BINS_PER_OCTAVE * 34;

Held value_of(const Place& place) {
  return Held::taken(PyObject_GetAttr(place.object.get(), place.name.get()));
}

bool set_value(const Place& place, PyObject* value) {
  return value != nullptr && PyObject_SetAttr(place.object.get(), place.name.get(), value) == 0;
}

// Numbers and strings are compared, all else is to be the very same.
bool is_same(PyObject* one, PyObject* other) {
  if (one == other) return true;
  if (Py_TYPE(one) != Py_TYPE(other) || !(PyLong_CheckExact(one) || PyUnicode_CheckExact(one))) return false;
  return PyObject_RichCompareBool(one, other, Py_EQ) == 1;
}

bool holds(const Term& term, bool& failed) {
  const Held found = value_of(term.place);
  failed = !found;
  return !failed && is_same(found.get(), term.value.get());
}

bool read_number(const Place& place, uint64_t& number) {
  const Held found = value_of(place);
  if (!found) return false;
  number = PyLong_AsUnsignedLongLong(found.get());
  return PyErr_Occurred() == nullptr;
}

bool add(const Place& place, uint64_t more) {
  uint64_t number;
  return read_number(place, number) &&
         set_value(place, Held::taken(PyLong_FromUnsignedLongLong(number + more)).get());
}

bool add_all(const std::vector<Place>& places, uint64_t more) {
  return std::all_of(places.begin(), places.end(), [&](const Place& place) { return add(place, more); });
}

bool append(PyObject* list, const Held& value) {
  return value && PyList_Append(list, value.get()) == 0;
}

int bin_of(double us) {
  return us > 1 ? std::min(MAX_BIN, static_cast<int>(BINS_PER_OCTAVE * std::log2(us))) : 0;
}

}  // namespace

Table::Table(const http2::Api* api, uint64_t version, std::vector<double> bounds)
    : api_(api), version_(version), bounds_(std::move(bounds)) {
  tally_.buckets.resize(bounds_.size() + 1);
}

void Table::follow(std::string request_id, std::shared_ptr<Stream> stream) {
  std::swap(streams_[std::move(request_id)], stream);  // what it held may run code of Python: it goes last
}

void Table::leave(const std::string& request_id) {
  const auto found = streams_.find(request_id);
  if (found == streams_.end()) return;
  const std::shared_ptr<Stream> left = std::move(found->second);
  streams_.erase(found);
}

Table::Reading Table::take(std::string_view message, std::string_view sender, double now_s, bool alone,
                           bool checked, std::vector<size_t>& left) {
  if (busy_ || !read_text_columns(message, version_, columns_)) return Reading::OTHER;
  if (!columns_.bare && !checked) return Reading::UNCHECKED;
  now_s_ = now_s;
  alone_ = alone;
  now_ = Held::taken(PyFloat_FromDouble(now_s));
  if (!now_) return Reading::FAILED;
  busy_ = true;
  bool failed = false;
  for (size_t i = 0; i < columns_.rows.size() && !failed; ++i) {
    const TextRow& row = columns_.rows[i];
    const auto found = row.plain ? streams_.find(row.request_id) : streams_.end();
    Fate fate = Fate::LEFT;
    if (found != streams_.end()) {
      const std::shared_ptr<Stream> stream = found->second;  // what is called may have it left
      if (stream->epoch == row.epoch && stream->sender == sender) fate = write_row(*stream, row);
    }
    failed = fate == Fate::FAILED;
    if (fate == Fate::LEFT) left.push_back(i);
  }
  failed = !flush() || failed;
  busy_ = false;
  return failed ? Reading::FAILED : Reading::WRITTEN;
}

Table::Fate Table::write_row(Stream& stream, const TextRow& row) {
  const auto come = static_cast<uint64_t>(PyList_GET_SIZE(stream.ids.get()));
  if (row.position != stream.first_position + come) return Fate::LEFT;
  for (const Term& term : stream.terms) {
    bool failed;
    if (!holds(term, failed)) return failed ? Fate::FAILED : Fate::LEFT;
  }
  if (stream.kept) {
    uint64_t kept;
    if (!read_number(stream.kept_tokens, kept)) return Fate::FAILED;
    if (kept + row.id_count > stream.most_kept_tokens) return Fate::LEFT;
  }
  const size_t characters = count_characters(row.text);
  const Fate fate = stream.connection ? write_message(stream, row) : put_event_text(stream, row, characters);
  if (fate != Fate::WRITTEN) return fate;
  return count(stream, row, characters) ? Fate::WRITTEN : Fate::FAILED;
}

Table::Fate Table::write_message(Stream& stream, const TextRow& row) {
  scratch_.clear();
  put_event(scratch_, row.position, ids_of(row), row.id_count, row.text);
  if (scratch_.size() > stream.max_bytes) return Fate::LEFT;
  PyObject* connection = stream.connection.get();
  const int room = api_->write(connection, stream.call, scratch_.data(), scratch_.size());
  if (room < 0) return Fate::LEFT;
  const auto same = [&](const auto& each) { return each.first == connection; };
  if (std::none_of(written_.begin(), written_.end(), same)) {
    written_.emplace_back(connection, Held(stream.flush.get()));
  }
  return room == 1 || set_value(stream.room, Py_False) ? Fate::WRITTEN : Fate::FAILED;
}

Table::Fate Table::put_bytes(Stream& stream) {
  if (stream.is_closing) {
    const Held closing = Held::taken(PyObject_CallNoArgs(stream.is_closing.get()));
    if (!closing) return Fate::FAILED;
    if (closing.get() != Py_False) return Fate::LEFT;
    char length[20];
    const int digits = std::snprintf(length, sizeof length, "%zx\r\n", scratch_.size());
    scratch_.insert(0, length, static_cast<size_t>(digits));
    scratch_ += "\r\n";
  }
  const Held event =
      Held::taken(PyBytes_FromStringAndSize(scratch_.data(), static_cast<Py_ssize_t>(scratch_.size())));
  if (!event) return Fate::FAILED;
  const Held put = Held::taken(PyObject_CallOneArg(stream.put.get(), event.get()));
  if (!put) return Fate::FAILED;
  if (stream.is_closing) return add_all(stream.written, scratch_.size()) ? Fate::WRITTEN : Fate::FAILED;
  return put.get() == Py_True ? Fate::WRITTEN : Fate::LEFT;
}

Table::Fate Table::put_event_text(Stream& stream, const TextRow& row, size_t characters) {
  uint64_t tokens, chars;
  if (!read_number(stream.told_tokens, tokens) || !read_number(stream.told_chars, chars)) return Fate::FAILED;
  tokens += row.id_count;
  chars += characters;
  if (!row.text.empty()) {
    scratch_.clear();
    if (!stream.resume_token.empty()) {
      scratch_ += "id: " + stream.resume_token + '~' + std::to_string(tokens) + '~' + std::to_string(chars);
      scratch_.push_back('\n');
    }
    scratch_ += stream.before;
    put_json_text(scratch_, row.text);
    scratch_ += stream.after;
    const Fate fate = put_bytes(stream);
    if (fate != Fate::WRITTEN) return fate;
  }
  const bool told = set_value(stream.told_tokens, Held::taken(PyLong_FromUnsignedLongLong(tokens)).get()) &&
                    set_value(stream.told_chars, Held::taken(PyLong_FromUnsignedLongLong(chars)).get());
  return told ? Fate::WRITTEN : Fate::FAILED;
}

bool Table::count(Stream& stream, const TextRow& row, size_t characters) {
  if (!keep_text(stream, row)) return false;
  for (size_t i = 0; i < row.id_count; ++i) {
    if (!append(stream.ids.get(), Held::taken(PyLong_FromUnsignedLong(ids_of(row)[i])))) return false;
  }
  if (alone_) {
    if (!add_all(stream.drawn, row.id_count)) return false;
  } else {
    const Held tokens = Held::taken(PyLong_FromSize_t(row.id_count));
    if (!tokens || !Held::taken(PyObject_CallOneArg(stream.draw.get(), tokens.get()))) return false;
  }
  for (const Place& place : stream.arrivals) {
    if (!set_value(place, now_.get())) return false;
  }
  return add_all(stream.tokens, row.id_count) && add_all(stream.chars, characters) &&
         note_delivery(stream, row.id_count);
}

bool Table::keep_text(Stream& stream, const TextRow& row) {
  if (!stream.texts && !stream.kept) return true;
  const Held text =
      Held::taken(PyUnicode_DecodeUTF8(row.text.data(), static_cast<Py_ssize_t>(row.text.size()), nullptr));
  if (!text || (stream.texts && PyList_Append(stream.texts.get(), text.get()) != 0)) return false;
  if (!stream.kept) return true;
  const Held ids = Held::taken(PyTuple_New(static_cast<Py_ssize_t>(row.id_count)));
  for (size_t i = 0; ids && i < row.id_count; ++i) {
    PyObject* id = PyLong_FromUnsignedLong(ids_of(row)[i]);
    if (id == nullptr) return false;
    PyTuple_SET_ITEM(ids.get(), static_cast<Py_ssize_t>(i), id);
  }
  if (!ids) return false;
  const unsigned long long position = row.position;
  return append(stream.kept.get(), Held::taken(Py_BuildValue("(KOO)", position, ids.get(), text.get()))) &&
         add(stream.kept_tokens, row.id_count);
}

bool Table::note_delivery(Stream& stream, uint64_t tokens) {
  const Held last = value_of(stream.delivered);
  if (!last) return false;
  const double gap_s = now_s_ - PyFloat_AsDouble(last.get());
  if (PyErr_Occurred() != nullptr || !set_value(stream.delivered, now_.get())) return false;
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), gap_s) - bounds_.begin();
  ++tally_.buckets[static_cast<size_t>(bucket)];
  ++tally_.bins[bin_of(gap_s * 1e6)];
  tally_.gaps_s += gap_s;
  tally_.tokens += tokens;
  for (auto& [model, counted] : tally_.models) {
    if (is_same(model.get(), stream.model.get())) {
      counted += tokens;
      return true;
    }
  }
  tally_.models.emplace_back(Held(stream.model.get()), tokens);
  return true;
}

// Has each connection that was written to send what it has, also behind an error.
bool Table::flush() {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  bool good = true;
  for (const auto& [connection, send] : written_) {
    if (good) good = static_cast<bool>(Held::taken(PyObject_CallNoArgs(send.get())));
  }
  written_.clear();
  if (type != nullptr) PyErr_Restore(type, value, trace);
  return good;
}

}  // namespace penstock::rows
