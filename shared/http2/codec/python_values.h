// Values of Python made of the codec's, and back. Where one cannot be made Python has its error.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string>
#include <vector>

#include "event.h"
#include "frames.h"
#include "guarded.h"
#include "header_encoder.h"

namespace penstock::http2 {

inline PyObject* text_of(const std::string& bytes) {
  return PyUnicode_DecodeLatin1(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), nullptr);
}

inline PyObject* headers_of(const std::vector<Header>& headers) {
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
inline PyObject* event_of(const Event& event) {
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

inline bool stream_of(PyObject* number, uint32_t& stream) {
  const unsigned long value = PyLong_AsUnsignedLong(number);
  if (PyErr_Occurred() != nullptr) return false;
  stream = value > MAX_STREAM_ID ? 0 : static_cast<uint32_t>(value);
  return true;
}

inline bool put_text(PyObject* text, std::string_view& found) {
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
inline bool put_block(PyObject* pairs, std::string& block) {
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

inline bool has_arguments(Py_ssize_t given, Py_ssize_t wanted) {
  if (given == wanted) return true;
  PyErr_Format(PyExc_TypeError, "%zd arguments are wanted, and %zd were given", wanted, given);
  return false;
}

}  // namespace penstock::http2
