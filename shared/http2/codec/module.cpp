// The connection as a Python class: `shared.http2._codec.Connection`. shared/http2/_codec.pyi says what it
// takes.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <new>
#include <string>

#include "connection.h"
#include "header_encoder.h"

namespace {

using namespace penstock::http2;

struct PyConnection {
  PyObject_HEAD Connection* connection;
};

Connection& of(PyObject* self) {
  return *reinterpret_cast<PyConnection*>(self)->connection;
}

// What C++ throws here is that there is no memory.
template <class Work>
PyObject* guarded(Work work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

PyObject* text_of(const std::string& bytes) {
  return PyUnicode_DecodeLatin1(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), nullptr);
}

PyObject* headers_of(const std::vector<Header>& headers) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(headers.size()));
  if (list == nullptr) return nullptr;
  for (size_t i = 0; i < headers.size(); ++i) {
    PyObject* name = text_of(headers[i].name);
    PyObject* value = name == nullptr ? nullptr : text_of(headers[i].value);
    PyObject* pair = value == nullptr ? nullptr : PyTuple_Pack(2, name, value);
    Py_XDECREF(name);
    Py_XDECREF(value);
    if (pair == nullptr) {
      Py_DECREF(list);
      return nullptr;
    }
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), pair);
  }
  return list;
}

// (kind, stream, code, what): headers of a call, the bytes of a message, the sentence of a failure.
PyObject* event_of(const Event& event) {
  PyObject* what;
  if (event.kind == EventKind::CALL) {
    what = headers_of(event.headers);
  } else if (event.kind == EventKind::FAILED) {
    what = text_of(event.bytes);
  } else {
    what = PyBytes_FromStringAndSize(event.bytes.data(), static_cast<Py_ssize_t>(event.bytes.size()));
  }
  if (what == nullptr) return nullptr;
  return Py_BuildValue("(iIIN)", static_cast<int>(event.kind), event.stream, event.code, what);
}

bool stream_of(PyObject* number, uint32_t& stream) {
  const unsigned long value = PyLong_AsUnsignedLong(number);
  if (PyErr_Occurred() != nullptr) return false;
  stream = value > MAX_STREAM_ID ? 0 : static_cast<uint32_t>(value);
  return true;
}

bool put_text(PyObject* text, std::string_view& found) {
  Py_ssize_t length = 0;
  const char* data;
  if (PyBytes_Check(text)) {
    data = PyBytes_AS_STRING(text);
    length = PyBytes_GET_SIZE(text);
  } else if ((data = PyUnicode_AsUTF8AndSize(text, &length)) == nullptr) {
    return false;
  }
  found = {data, static_cast<size_t>(length)};
  return true;
}

// Pairs of names and values, as a block of headers.
bool put_block(PyObject* pairs, std::string& block) {
  PyObject* fast = PySequence_Fast(pairs, "headers are pairs of names and values");
  if (fast == nullptr) return false;
  bool good = true;
  for (Py_ssize_t i = 0; good && i < PySequence_Fast_GET_SIZE(fast); ++i) {
    PyObject* pair = PySequence_Fast_GET_ITEM(fast, i);
    std::string_view name, value;
    good = PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2;
    if (!good) PyErr_SetString(PyExc_TypeError, "a header is a pair of a name and a value");
    good = good && put_text(PyTuple_GET_ITEM(pair, 0), name) && put_text(PyTuple_GET_ITEM(pair, 1), value);
    if (good) put_header(block, name, value);
  }
  Py_DECREF(fast);
  return good;
}

bool has_arguments(Py_ssize_t given, Py_ssize_t wanted) {
  if (given == wanted) return true;
  PyErr_Format(PyExc_TypeError, "%zd arguments are wanted, and %zd were given", wanted, given);
  return false;
}

PyObject* receive(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (!has_arguments(count, 2)) return nullptr;
  const unsigned long long now_ms = PyLong_AsUnsignedLongLong(arguments[1]);
  Py_buffer view;
  if (PyErr_Occurred() != nullptr || PyObject_GetBuffer(arguments[0], &view, PyBUF_SIMPLE) < 0)
    return nullptr;
  PyObject* list = guarded([&]() -> PyObject* {
    const std::vector<Event> events =
        of(self).receive({static_cast<const char*>(view.buf), static_cast<size_t>(view.len)}, now_ms);
    PyObject* found = PyList_New(static_cast<Py_ssize_t>(events.size()));
    for (size_t i = 0; found != nullptr && i < events.size(); ++i) {
      PyObject* event = event_of(events[i]);
      if (event == nullptr) {
        Py_CLEAR(found);
        break;
      }
      PyList_SET_ITEM(found, static_cast<Py_ssize_t>(i), event);
    }
    return found;
  });
  PyBuffer_Release(&view);
  return list;
}

PyObject* want(PyObject* self, PyObject* number) {
  uint32_t stream;
  if (!stream_of(number, stream)) return nullptr;
  return guarded([&]() -> PyObject* {
    Event event{EventKind::END};
    if (!of(self).want(stream, event)) Py_RETURN_NONE;
    return event_of(event);
  });
}

PyObject* respond(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  uint32_t stream;
  if (!has_arguments(count, 2) || !stream_of(arguments[0], stream)) return nullptr;
  return guarded([&]() -> PyObject* {
    std::string block;
    if (!put_block(arguments[1], block)) return nullptr;
    return PyBool_FromLong(of(self).respond(stream, block));
  });
}

// 1: all of the call is on its way, 0: some of it waits for its client, -1: the call is gone.
PyObject* finish(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  uint32_t stream;
  if (!has_arguments(count, 2) || !stream_of(arguments[0], stream)) return nullptr;
  return guarded([&]() -> PyObject* {
    std::string block;
    if (!put_block(arguments[1], block)) return nullptr;
    bool sent = true;
    const bool there = of(self).finish(stream, block, sent);
    return PyLong_FromLong(there ? (sent ? 1 : 0) : -1);
  });
}

// 1: there is room for another one, 0: there is none, -1: the call is gone.
PyObject* write(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  uint32_t stream;
  char* data;
  Py_ssize_t length;
  if (!has_arguments(count, 2) || !stream_of(arguments[0], stream)) return nullptr;
  if (PyBytes_AsStringAndSize(arguments[1], &data, &length) < 0) return nullptr;
  if (static_cast<unsigned long long>(length) > 0xffffffffULL) {
    PyErr_SetString(PyExc_ValueError, "a message is at most 4 GiB");
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    bool room = true;
    const bool there = of(self).write(stream, {data, static_cast<size_t>(length)}, room);
    return PyLong_FromLong(there ? (room ? 1 : 0) : -1);
  });
}

PyObject* reset(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  uint32_t stream, code;
  if (!has_arguments(count, 2) || !stream_of(arguments[0], stream) || !stream_of(arguments[1], code)) {
    return nullptr;
  }
  return guarded([&] { return PyBool_FromLong(of(self).reset(stream, static_cast<ErrorCode>(code))); });
}

PyObject* ping(PyObject* self, PyObject*) {
  return guarded([&]() -> PyObject* {
    of(self).ping(0);
    Py_RETURN_NONE;
  });
}

PyObject* go_away(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  uint32_t code;
  if (!has_arguments(count, 2) || !stream_of(arguments[1], code)) return nullptr;
  const int last = PyObject_IsTrue(arguments[0]);
  if (last < 0) return nullptr;
  return guarded([&]() -> PyObject* {
    of(self).go_away(last == 1, static_cast<ErrorCode>(code));
    Py_RETURN_NONE;
  });
}

PyObject* take(PyObject* self, PyObject*) {
  return guarded([&] {
    const std::string bytes = of(self).take();
    return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
  });
}

PyObject* take_freed(PyObject* self, PyObject*) {
  return guarded([&]() -> PyObject* {
    const std::vector<uint32_t> freed = of(self).take_freed();
    PyObject* list = PyList_New(static_cast<Py_ssize_t>(freed.size()));
    for (size_t i = 0; list != nullptr && i < freed.size(); ++i) {
      PyObject* stream = PyLong_FromUnsignedLong(freed[i]);
      if (stream == nullptr) {
        Py_CLEAR(list);
        break;
      }
      PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), stream);
    }
    return list;
  });
}

PyObject* unsent_bytes(PyObject* self, void*) {
  return PyLong_FromSize_t(of(self).unsent_bytes());
}
PyObject* stream_count(PyObject* self, void*) {
  return PyLong_FromSize_t(of(self).stream_count());
}
PyObject* frame_count(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(of(self).frame_count());
}
PyObject* is_open(PyObject* self, void*) {
  return PyBool_FromLong(of(self).is_open());
}
PyObject* is_half(PyObject* self, void*) {
  return PyBool_FromLong(of(self).is_half());
}

PyObject* make(PyTypeObject* type, PyObject* positional, PyObject* named) {
  Limits limits;
  const char* names[] = {"max_streams",
                         "max_message_bytes",
                         "stream_window_bytes",
                         "connection_window_bytes",
                         "max_header_list_bytes",
                         "max_header_block_bytes",
                         "max_continuations",
                         "max_settings",
                         "max_unsent_bytes",
                         "max_stream_unsent_bytes",
                         "min_ping_ms",
                         "max_early_pings",
                         "max_resets",
                         "resets_per_s",
                         "max_idle_frames",
                         "idle_frames_per_s",
                         nullptr};
  if (PyArg_ParseTupleAndKeywords(
          positional, named, "$IIIIIIIIIIIIIIII", const_cast<char**>(names), &limits.max_streams,
          &limits.max_message_bytes, &limits.stream_window_bytes, &limits.connection_window_bytes,
          &limits.max_header_list_bytes, &limits.max_header_block_bytes, &limits.max_continuations,
          &limits.max_settings, &limits.max_unsent_bytes, &limits.max_stream_unsent_bytes,
          &limits.min_ping_ms, &limits.max_early_pings, &limits.max_resets, &limits.resets_per_s,
          &limits.max_idle_frames, &limits.idle_frames_per_s) == 0) {
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  return guarded([&] {
    reinterpret_cast<PyConnection*>(self)->connection = new Connection(limits);
    return self;
  });
}

void destroy(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<PyConnection*>(self)->connection;
  type->tp_free(self);
  Py_DECREF(type);
}

template <class Function>
PyCFunction cast(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef METHODS[] = {
    {"receive", cast(receive), METH_FASTCALL, nullptr},
    {"want", want, METH_O, nullptr},
    {"respond", cast(respond), METH_FASTCALL, nullptr},
    {"write", cast(write), METH_FASTCALL, nullptr},
    {"finish", cast(finish), METH_FASTCALL, nullptr},
    {"reset", cast(reset), METH_FASTCALL, nullptr},
    {"ping", ping, METH_NOARGS, nullptr},
    {"go_away", cast(go_away), METH_FASTCALL, nullptr},
    {"take", take, METH_NOARGS, nullptr},
    {"take_freed", take_freed, METH_NOARGS, nullptr},
    {},
};
PyGetSetDef PROPERTIES[] = {
    {"unsent_bytes", unsent_bytes, nullptr, nullptr, nullptr},
    {"stream_count", stream_count, nullptr, nullptr, nullptr},
    {"frame_count", frame_count, nullptr, nullptr, nullptr},
    {"is_open", is_open, nullptr, nullptr, nullptr},
    {"is_half", is_half, nullptr, nullptr, nullptr},
    {},
};
PyType_Slot SLOTS[] = {
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_methods, METHODS},
    {Py_tp_getset, PROPERTIES},
    {},
};
PyType_Spec SPEC = {"shared.http2._codec.Connection", sizeof(PyConnection), 0, Py_TPFLAGS_DEFAULT, SLOTS};
PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_codec", nullptr, 0, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__codec() {
  PyObject* module = PyModule_Create(&MODULE);
  if (module == nullptr) return nullptr;
  PyObject* type = PyType_FromSpec(&SPEC);
  if (type == nullptr || PyModule_AddObject(module, "Connection", type) < 0 ||
      PyModule_AddIntConstant(module, "ABI", 1) < 0) {
    Py_XDECREF(type);
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
