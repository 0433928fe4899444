// The table as a Python class: `services.gateway.rows._rows.Table`. `_rows.pyi` says what it takes.
#include "shared/http2/codec/guarded.h"
#include "table.h"

namespace {

using namespace penstock::rows;
using penstock::http2::guarded;

struct PyTable {
  PyObject_HEAD Table* table;
};

Table& of(PyObject* self) {
  return *reinterpret_cast<PyTable*>(self)->table;
}

Held optional(PyObject* object) {
  return object == Py_None ? Held() : Held(object);
}

bool read_place(PyObject* tuple, Place& place) {
  PyObject *object, *name;
  if (!PyArg_ParseTuple(tuple, "OU", &object, &name)) return false;
  place = {Held(object), Held(name)};
  return true;
}

bool read_places(PyObject* tuple, std::vector<Place>& places) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    if (!read_place(PyTuple_GET_ITEM(tuple, i), places.emplace_back())) return false;
  }
  return true;
}

bool read_terms(PyObject* tuple, std::vector<Term>& terms) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    PyObject *object, *name, *value;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(tuple, i), "OUO", &object, &name, &value)) return false;
    terms.push_back({{Held(object), Held(name)}, Held(value)});
  }
  return true;
}

// (codec, stream, max_bytes, room, flush)
bool read_call(PyObject* tuple, const Table& table, Stream& stream) {
  PyObject *connection, *room, *flush;
  Py_ssize_t max_bytes;
  if (!PyArg_ParseTuple(tuple, "OInO!O", &connection, &stream.call, &max_bytes, &PyTuple_Type, &room, &flush))
    return false;
  if (table.api() == nullptr || !table.api()->is_connection(connection)) {
    PyErr_SetString(PyExc_TypeError, "a call is written to a connection of the native codec");
    return false;
  }
  stream.connection = Held(connection);
  stream.max_bytes = static_cast<size_t>(max_bytes);
  stream.flush = Held(flush);
  return read_place(room, stream.room);
}

// (put, chunks, before, after, resume_token, told_tokens, told_chars); chunks are (is_closing, written)
bool read_events(PyObject* tuple, Stream& stream) {
  PyObject *put, *chunks, *tokens, *chars;
  const char *before, *after, *token;
  Py_ssize_t before_size, after_size, token_size;
  if (!PyArg_ParseTuple(tuple, "OOy#y#s#O!O!", &put, &chunks, &before, &before_size, &after, &after_size,
                        &token, &token_size, &PyTuple_Type, &tokens, &PyTuple_Type, &chars))
    return false;
  stream.put = Held(put);
  stream.before.assign(before, static_cast<size_t>(before_size));
  stream.after.assign(after, static_cast<size_t>(after_size));
  stream.resume_token.assign(token, static_cast<size_t>(token_size));
  if (chunks != Py_None) {
    PyObject *is_closing, *written;
    if (!PyArg_ParseTuple(chunks, "OO!", &is_closing, &PyTuple_Type, &written)) return false;
    stream.is_closing = Held(is_closing);
    if (!read_places(written, stream.written)) return false;
  }
  return read_place(tokens, stream.told_tokens) && read_place(chars, stream.told_chars);
}

// (list, kept_tokens, most_tokens)
bool read_kept(PyObject* tuple, Stream& stream) {
  PyObject *kept, *place;
  unsigned long long most;
  if (!PyArg_ParseTuple(tuple, "O!O!K", &PyList_Type, &kept, &PyTuple_Type, &place, &most)) return false;
  stream.kept = Held(kept);
  stream.most_kept_tokens = most;
  return read_place(place, stream.kept_tokens);
}

// The fields of a PlainStream, in their order.
bool read_stream(PyObject* tuple, const Table& table, Stream& stream) {
  unsigned long long epoch, first_position;
  const char* sender;
  Py_ssize_t sender_size;
  PyObject *ids, *texts, *model, *terms, *tokens, *chars, *arrivals, *delivered, *draw, *drawn, *kept, *call,
      *events;
  if (!PyArg_ParseTuple(tuple, "Ks#KO!OUO!O!O!O!O!OO!OOO", &epoch, &sender, &sender_size, &first_position,
                        &PyList_Type, &ids, &texts, &model, &PyTuple_Type, &terms, &PyTuple_Type, &tokens,
                        &PyTuple_Type, &chars, &PyTuple_Type, &arrivals, &PyTuple_Type, &delivered, &draw,
                        &PyTuple_Type, &drawn, &kept, &call, &events))
    return false;
  stream.epoch = epoch;
  stream.sender.assign(sender, static_cast<size_t>(sender_size));
  stream.first_position = first_position;
  stream.ids = Held(ids);
  stream.texts = optional(texts);
  stream.model = Held(model);
  stream.draw = Held(draw);
  if (stream.texts && !PyList_Check(texts)) {
    PyErr_SetString(PyExc_TypeError, "texts are kept in a list");
    return false;
  }
  return read_terms(terms, stream.terms) && read_places(tokens, stream.tokens) &&
         read_places(chars, stream.chars) && read_places(arrivals, stream.arrivals) &&
         read_place(delivered, stream.delivered) && read_places(drawn, stream.drawn) &&
         (kept == Py_None || read_kept(kept, stream)) &&
         (call == Py_None ? read_events(events, stream) : read_call(call, table, stream));
}

PyObject* follow(PyObject* self, PyObject* arguments) {
  const char* id;
  Py_ssize_t size;
  PyObject* tuple;
  if (!PyArg_ParseTuple(arguments, "s#O!", &id, &size, &PyTuple_Type, &tuple)) return nullptr;
  return guarded([&]() -> PyObject* {
    auto stream = std::make_shared<Stream>();
    if (!read_stream(tuple, of(self), *stream)) return nullptr;
    of(self).follow({id, static_cast<size_t>(size)}, std::move(stream));
    Py_RETURN_NONE;
  });
}

PyObject* leave(PyObject* self, PyObject* id) {
  Py_ssize_t size;
  const char* text = PyUnicode_AsUTF8AndSize(id, &size);
  if (text == nullptr) return nullptr;
  return guarded([&]() -> PyObject* {
    of(self).leave({text, static_cast<size_t>(size)});
    Py_RETURN_NONE;
  });
}

PyObject* numbers_of(const std::vector<size_t>& numbers) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(numbers.size()));
  for (size_t i = 0; list != nullptr && i < numbers.size(); ++i) {
    PyObject* number = PyLong_FromSize_t(numbers[i]);
    if (number == nullptr) {
      Py_CLEAR(list);
      break;
    }
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), number);
  }
  return list;
}

// The rows that are left; None where it is another message, False where it is to be checked first.
PyObject* take(PyObject* self, PyObject* arguments) {
  const char *data, *sender;
  Py_ssize_t data_size, sender_size;
  double now_s;
  int alone, checked;
  if (!PyArg_ParseTuple(arguments, "y#s#dpp", &data, &data_size, &sender, &sender_size, &now_s, &alone,
                        &checked))
    return nullptr;
  return guarded([&]() -> PyObject* {
    std::vector<size_t> left;
    switch (of(self).take({data, static_cast<size_t>(data_size)}, {sender, static_cast<size_t>(sender_size)},
                          now_s, alone != 0, checked != 0, left)) {
      case Table::Reading::WRITTEN:
        return numbers_of(left);
      case Table::Reading::UNCHECKED:
        Py_RETURN_FALSE;
      case Table::Reading::OTHER:
        Py_RETURN_NONE;
      default:
        return nullptr;
    }
  });
}

PyObject* pairs_of(const Tally& tally) {
  PyObject* bins = PyDict_New();
  for (const auto& [bin, count] : tally.bins) {
    const Held key = Held::taken(PyLong_FromLong(bin));
    const Held value = Held::taken(PyLong_FromUnsignedLongLong(count));
    if (bins == nullptr || !key || !value || PyDict_SetItem(bins, key.get(), value.get()) != 0) {
      Py_XDECREF(bins);
      return nullptr;
    }
  }
  return bins;
}

PyObject* models_of(const Tally& tally) {
  PyObject* models = PyDict_New();
  for (const auto& [model, tokens] : tally.models) {
    const Held value = Held::taken(PyLong_FromUnsignedLongLong(tokens));
    if (models == nullptr || !value || PyDict_SetItem(models, model.get(), value.get()) != 0) {
      Py_XDECREF(models);
      return nullptr;
    }
  }
  return models;
}

// (tokens, gaps_s, buckets, bins, models) since somebody asked; None for nothing.
PyObject* take_tally(PyObject* self, PyObject*) {
  return guarded([&]() -> PyObject* {
    Tally& tally = of(self).tally();
    if (tally.models.empty()) Py_RETURN_NONE;
    const Held buckets = Held::taken(numbers_of({tally.buckets.begin(), tally.buckets.end()}));
    const Held bins = Held::taken(pairs_of(tally));
    const Held models = Held::taken(models_of(tally));
    if (!buckets || !bins || !models) return nullptr;
    const unsigned long long tokens = std::exchange(tally.tokens, 0);
    const double gaps_s = std::exchange(tally.gaps_s, 0.0);
    tally.buckets.assign(tally.buckets.size(), 0);
    tally.bins.clear();
    tally.models.clear();
    return Py_BuildValue("(KdOOO)", tokens, gaps_s, buckets.get(), bins.get(), models.get());
  });
}

Py_ssize_t length(PyObject* self) {
  return static_cast<Py_ssize_t>(of(self).size());
}

PyObject* make(PyTypeObject* type, PyObject* positional, PyObject* named) {
  const char* names[] = {"version", "bounds", nullptr};
  unsigned long long version;
  PyObject* given;
  if (!PyArg_ParseTupleAndKeywords(positional, named, "$KO!", const_cast<char**>(names), &version,
                                   &PyTuple_Type, &given))
    return nullptr;
  return guarded([&]() -> PyObject* {
    std::vector<double> bounds;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i) {
      bounds.push_back(PyFloat_AsDouble(PyTuple_GET_ITEM(given, i)));
      if (PyErr_Occurred() != nullptr) return nullptr;
    }
    // Without the codec there are event streams alone.
    const auto* api =
        static_cast<const penstock::http2::Api*>(PyCapsule_Import(penstock::http2::API_NAME, 0));
    if (api == nullptr) PyErr_Clear();
    auto table = std::make_unique<Table>(api, version, std::move(bounds));
    PyObject* self = type->tp_alloc(type, 0);
    if (self != nullptr) reinterpret_cast<PyTable*>(self)->table = table.release();
    return self;
  });
}

void destroy(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<PyTable*>(self)->table;
  type->tp_free(self);
  Py_DECREF(type);
}

PyMethodDef METHODS[] = {
    {"follow", follow, METH_VARARGS, nullptr},
    {"leave", leave, METH_O, nullptr},
    {"take", take, METH_VARARGS, nullptr},
    {"take_tally", take_tally, METH_NOARGS, nullptr},
    {},
};
PyType_Slot SLOTS[] = {
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_methods, METHODS},
    {Py_mp_length, reinterpret_cast<void*>(length)},
    {},
};
PyType_Spec SPEC = {"services.gateway.rows._rows.Table", sizeof(PyTable), 0, Py_TPFLAGS_DEFAULT, SLOTS};
PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_rows", nullptr, 0, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__rows() {
  PyObject* module = PyModule_Create(&MODULE);
  if (module == nullptr) return nullptr;
  PyObject* type = PyType_FromSpec(&SPEC);
  const bool made = type != nullptr && PyModule_AddObjectRef(module, "Table", type) == 0 &&
                    PyModule_AddIntConstant(module, "ABI", 1) == 0;
  Py_XDECREF(type);
  if (!made) Py_CLEAR(module);
  return module;
}
