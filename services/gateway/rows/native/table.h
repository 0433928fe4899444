// The streams whose plain rows are written without Python, and what is known of each.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shared/http2/codec/api.h"
#include "text_columns.h"

namespace penstock::rows {

// An object of Python that is held.
class Held {
 public:
  Held() = default;
  explicit Held(PyObject* object) : object_(Py_XNewRef(object)) {}
  Held(Held&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Held& operator=(Held&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Held() { Py_XDECREF(object_); }
  // Takes one over that is held already.
  static Held taken(PyObject* object) {
    Held held;
    held.object_ = object;
    return held;
  }
  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// An attribute of an object.
struct Place {
  Held object, name;
};

// An attribute that has this value while rows of the stream are plain.
struct Term {
  Place place;
  Held value;
};

struct Stream {
  uint64_t epoch = 0;
  std::string sender;
  uint64_t first_position = 0;  // that of the first of `ids`
  Held ids;                     // a list: what has come
  Held texts;                   // a list, where the text is kept
  Held model;
  std::vector<Term> terms;
  std::vector<Place> tokens, chars;  // counted up
  std::vector<Place> arrivals;       // set to when a row has come
  Place delivered;                   // when the client was given something last
  Held draw;                         // called with the tokens where tenants share
  std::vector<Place> drawn;          // counted up where one is alone
  Held kept;                         // a list of rows for those that come late
  Place kept_tokens;
  uint64_t most_kept_tokens = 0;

  // A call of gRPC …
  Held connection;
  uint32_t call = 0;
  size_t max_bytes = 0;
  Place room;  // set to False where the client is to read first
  Held flush;
  // … or an event stream of HTTP: `put` takes an event, or a chunk with it unless the connection is closing.
  Held put, is_closing;
  std::vector<Place> written;  // count the bytes of chunks
  std::string before, after;
  std::string resume_token;
  Place told_tokens, told_chars;
};

// Deliveries since somebody asked.
struct Tally {
  uint64_t tokens = 0;
  double gaps_s = 0;
  std::vector<uint64_t> buckets;  // of gaps, by the bounds that the table was made with, and one beyond
  std::map<int, uint64_t> bins;   // of gaps, by magnitude
  std::vector<std::pair<Held, uint64_t>> models;  // tokens of each
};

class Table {
 public:
  Table(const http2::Api* api, uint64_t version, std::vector<double> bounds);

  void follow(std::string request_id, std::shared_ptr<Stream> stream);
  void leave(const std::string& request_id);
  size_t size() const { return streams_.size(); }

  // What became of a row. FAILED: Python has an error.
  enum class Fate { WRITTEN, LEFT, FAILED };
  enum class Reading { WRITTEN, OTHER, UNCHECKED, FAILED };
  // Writes what is plain; `left` are the rows that are not. Nothing is done where it is OTHER than a message
  // of text, or has what somebody is to judge first (`checked`: somebody has).
  Reading take(std::string_view message, std::string_view sender, double now_s, bool alone, bool checked,
               std::vector<size_t>& left);
  Tally& tally() { return tally_; }
  const http2::Api* api() const { return api_; }

 private:
  Fate write_row(Stream& stream, const TextRow& row);
  Fate write_message(Stream& stream, const TextRow& row);
  Fate put_bytes(Stream& stream);
  Fate put_event_text(Stream& stream, const TextRow& row, size_t characters);
  bool count(Stream& stream, const TextRow& row, size_t characters);
  bool keep_text(Stream& stream, const TextRow& row);
  bool note_delivery(Stream& stream, uint64_t tokens);
  bool flush();
  const uint32_t* ids_of(const TextRow& row) const { return columns_.ids.data() + row.first_id; }

  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  const http2::Api* api_;
  const uint64_t version_;
  const std::vector<double> bounds_;
  std::unordered_map<std::string, std::shared_ptr<Stream>, Hash, std::equal_to<>> streams_;
  Tally tally_;
  TextColumns columns_;
  std::string scratch_;
  std::vector<std::pair<PyObject*, Held>> written_;  // connections, and what has each sent
  // Of the message that is taken.
  double now_s_ = 0;
  Held now_;
  bool alone_ = true;
  bool busy_ = false;
};

}  // namespace penstock::rows
