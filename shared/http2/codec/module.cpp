// The connection as a Python class: `shared.http2._codec.Connection`. shared/http2/_codec.pyi says what it
// takes.
#include "api.h"
#include "connection.h"
#include "python_values.h"

namespace {

using namespace penstock::http2;

struct PyConnection {
  PyObject_HEAD Connection* connection;
};

Connection& of(PyObject* self) {
  return *reinterpret_cast<PyConnection*>(self)->connection;
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

int write_message(void* self, uint32_t stream, const char* data, size_t length) noexcept {
  try {
    bool room = true;
    const bool there = of(static_cast<PyObject*>(self)).write(stream, {data, length}, room);
    return there ? (room ? 1 : 0) : -1;
  } catch (const std::bad_alloc&) {
    return -1;
  }
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
PyTypeObject* connection_type = nullptr;

bool is_connection(void* object) noexcept {
  return Py_TYPE(static_cast<PyObject*>(object)) == connection_type;
}

const Api API = {write_message, is_connection};

PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_codec", nullptr, 0, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__codec() {
  PyObject* module = PyModule_Create(&MODULE);
  if (module == nullptr) return nullptr;
  PyObject* type = PyType_FromSpec(&SPEC);
  PyObject* api = PyCapsule_New(const_cast<Api*>(&API), API_NAME, nullptr);
  const bool made =
      type != nullptr && api != nullptr && PyModule_AddObjectRef(module, "Connection", type) == 0 &&
      PyModule_AddObjectRef(module, "api", api) == 0 && PyModule_AddIntConstant(module, "ABI", 2) == 0;
  connection_type = reinterpret_cast<PyTypeObject*>(type);
  Py_XDECREF(type);
  Py_XDECREF(api);
  if (!made) Py_CLEAR(module);
  return module;
}
