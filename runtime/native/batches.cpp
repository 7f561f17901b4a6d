// Compares what a guard of jit asks of many objects, in one call for all objects of a kind.
//
//     batch = Batch("versions", [vars(model), model._parameters])
//     batch()                  # False: nothing has been noted yet
//     seen = batch.look()      # the facts of now, None if they cannot be noted
//     batch.note(seen)         # after Python's comparison has held
//     batch()                  # True until one of the dictionaries is written to
//
// `batch()` is true only if each fact is the one that was noted. Where it is false, nothing is
// decided: the guard compares the objects in Python.
//
// A fact is a number of 64 bits: a version, a size, an address. What is noted owns the objects
// whose addresses it has, so no other object gets one of these addresses meanwhile. Nothing here
// runs code of Python's, and each call holds the interpreter's lock from its beginning to its end.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <vector>

#ifndef RUNTIME_NATIVE_KEY
#error "compile this file by `python -m runtime native`, which says for which torch it is"
#endif

namespace {

using Fact = std::uint64_t;

PyTypeObject* deque_type = nullptr;

// --------------------------------------------------------------- what is done with each fact

// `take` and `take_address` return whether the walk over the objects goes on.

class Comparison {
 public:
  // `facts`: bytes, which the caller owns
  explicit Comparison(PyObject* facts)
      : next_(reinterpret_cast<const Fact*>(PyBytes_AS_STRING(facts))),
        end_(next_ + PyBytes_GET_SIZE(facts) / sizeof(Fact)) {}

  bool take(Fact fact) { return next_ != end_ && *next_++ == fact; }
  bool take_address(PyObject* x) { return take(reinterpret_cast<Fact>(x)); }

 private:
  const Fact* next_;
  const Fact* end_;
};

class Look {
 public:
  explicit Look(PyObject* owned) : owned_(owned) {}

  bool take(Fact fact) {
    facts.push_back(fact);
    return true;
  }
  bool take_address(PyObject* x) {
    facts.push_back(reinterpret_cast<Fact>(x));
    return PyList_Append(owned_, x) == 0;
  }

  std::vector<Fact> facts;

 private:
  PyObject* owned_;  // a list
};

// ---------------------------------------------------------------------- the facts of an object

// Each function returns false where a fact differs, or where the object has none that can be noted.

// The dictionary of an object's attributes, as `object.__dict__` finds it. Null if there is none.
PyObject* own_dictionary(PyObject* x) {
  PyObject** place = _PyObject_GetDictPtr(x);
  return place == nullptr ? nullptr : *place;
}

// From 3.12 on CPython has no versions that a write changes. Python's guards have others there.
#if PY_VERSION_HEX < 0x030C0000
#define HAS_VERSIONS

Fact version_of(PyObject* dictionary) {
  return reinterpret_cast<PyDictObject*>(dictionary)->ma_version_tag;
}

template <class Walk>
bool version(PyObject* x, Walk& walk) {
  return walk.take(version_of(x));
}

template <class Walk>
bool own_version(PyObject* x, Walk& walk) {
  PyObject* own = own_dictionary(x);
  return own != nullptr && walk.take(version_of(own));
}
#endif

Py_ssize_t size_of(PyObject* container) {
  if (PyDict_Check(container)) return PyDict_GET_SIZE(container);
  if (PyAnySet_Check(container)) return PySet_GET_SIZE(container);
  return Py_SIZE(container);
}

template <class Walk>
bool empty(PyObject* x, Walk&) {
  return size_of(x) == 0;
}

template <class Walk>
bool empty_own(PyObject* x, Walk& walk) {
  PyObject* own = own_dictionary(x);
  const bool is_empty = own == nullptr || PyDict_GET_SIZE(own) == 0;
#ifdef HAS_VERSIONS
  // an attribute that does not count: no version is 0
  return walk.take(is_empty ? 0 : version_of(own));
#else
  return is_empty;
#endif
}

template <class Walk>
bool class_of(PyObject* x, Walk& walk) {
  return walk.take_address(reinterpret_cast<PyObject*>(Py_TYPE(x)));
}

template <class Walk>
bool items(PyObject* list, Walk& walk) {
  const Py_ssize_t size = PyList_GET_SIZE(list);
  if (!walk.take(size)) return false;
  for (Py_ssize_t i = 0; i < size; ++i)
    if (!walk.take_address(PyList_GET_ITEM(list, i))) return false;
  return true;
}

// ---------------------------------------------------------------------- the facts of a tensor

// Whether gradients are computed. Of a view that may depend on the tensor that it is a view of.
bool requires_grad(const torch::autograd::AutogradMeta& meta) {
  if (meta.is_view_) return meta.requires_grad();
  return meta.requires_grad_ || meta.grad_fn_;
}

// Which keys this thread adds to those of a tensor, and which it leaves out.
template <class Walk>
bool keys_of_thread(Walk& walk) {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  return walk.take(keys.included_.raw_repr()) && walk.take(keys.excluded_.raw_repr());
}

template <class Walk>
bool all_of(c10::IntArrayRef numbers, Walk& walk) {
  for (const std::int64_t number : numbers)
    if (!walk.take(number)) return false;
  return true;
}

template <class Walk>
bool kind_of_tensor(PyObject* x, const c10::TensorImpl& tensor, Walk& walk) {
  // first the keys: a tensor with others may have no sizes at all
  if (!class_of(x, walk) || !walk.take(tensor.key_set().raw_repr())) return false;
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(tensor.autograd_meta());
  const bool required = meta != nullptr && requires_grad(*meta);
  // asking such a view whether it is a leaf may give it a new history
  if (required && meta->is_view_) return false;
  const bool is_leaf = meta == nullptr || !meta->grad_fn_;
  const c10::Device device = tensor.device();
  const auto dtype = static_cast<std::uint8_t>(c10::typeMetaToScalarType(tensor.dtype()));
  const Fact small = Fact{required} << 57 | Fact{is_leaf} << 56 | Fact{dtype} << 48 |
      Fact{static_cast<std::uint8_t>(device.type())} << 40 |
      Fact{static_cast<std::uint8_t>(device.index())} << 32;
  return walk.take(small | static_cast<std::uint32_t>(tensor.dim()));
}

// What torch's `TensorGuards` compares, and whether the tensor is a leaf.
template <class Walk>
bool geometry(PyObject* x, Walk& walk) {
  const c10::TensorImpl& tensor = *THPVariable_Unpack(x).unsafeGetTensorImpl();
  return kind_of_tensor(x, tensor, walk) && all_of(tensor.sizes(), walk) &&
      all_of(tensor.strides(), walk);
}

// The same, and where its memory is.
template <class Walk>
bool place(PyObject* x, Walk& walk) {
  if (!geometry(x, walk)) return false;
  const c10::TensorImpl& tensor = *THPVariable_Unpack(x).unsafeGetTensorImpl();
  return tensor.has_storage() &&
      walk.take(reinterpret_cast<Fact>(tensor.unsafe_storage().data())) &&
      walk.take(tensor.storage_offset());
}

bool is_empty(PyObject* hooks) {
  if (hooks == nullptr || hooks == Py_None) return true;
  return PyDict_Check(hooks) && PyDict_GET_SIZE(hooks) == 0;
}

template <class Walk>
bool without_hooks(PyObject* x, Walk&) {
  const auto* tensor = reinterpret_cast<const THPVariable*>(x);
  return is_empty(tensor->backward_hooks) && is_empty(tensor->post_accumulate_grad_hooks);
}

// ------------------------------------------------------------------------------------- kinds

bool is_any(PyObject*) { return true; }
bool is_list(PyObject* x) { return PyList_CheckExact(x); }
bool is_dictionary(PyObject* x) { return PyDict_Check(x); }
bool is_tensor(PyObject* x) { return THPVariable_CheckExact(x); }
bool is_container(PyObject* x) {
  return PyDict_Check(x) || PyList_Check(x) || PyAnySet_Check(x) || Py_IS_TYPE(x, deque_type);
}

struct Kind {
  const char* name;
  bool (*accepts)(PyObject*);
  bool (*compare)(PyObject*, Comparison&);
  bool (*look)(PyObject*, Look&);
  bool asks_thread;
};

#define WALKS(function) function<Comparison>, function<Look>

const Kind KINDS[] = {
#ifdef HAS_VERSIONS
    {"versions", is_dictionary, WALKS(version), false},
    {"versions of attributes", is_any, WALKS(own_version), false},
#endif
    {"empty containers", is_container, WALKS(empty), false},
    {"objects without attributes", is_any, WALKS(empty_own), false},
    {"classes", is_any, WALKS(class_of), false},
    {"items of lists", is_list, WALKS(items), false},
    {"tensors", is_tensor, WALKS(geometry), true},
    {"tensors and their memory", is_tensor, WALKS(place), true},
    {"tensors without hooks", is_tensor, WALKS(without_hooks), false},
};

// --------------------------------------------------------------------------- the class Batch

struct Batch {
  PyObject_HEAD
  vectorcallfunc call;
  const Kind* kind;
  PyObject* objects;  // a tuple
  // what `look` returned: the facts, and the objects whose addresses are among them. Null before.
  PyObject* noted;
};

Batch* batch_of(PyObject* self) { return reinterpret_cast<Batch*>(self); }

template <class Walk>
bool walk_all(const Batch* batch, bool (*step)(PyObject*, Walk&), Walk& walk) {
  if (batch->objects == nullptr) return false;  // the collector has been here
  const Py_ssize_t size = PyTuple_GET_SIZE(batch->objects);
  try {
    if (batch->kind->asks_thread && !keys_of_thread(walk)) return false;
    for (Py_ssize_t i = 0; i < size; ++i)
      if (!step(PyTuple_GET_ITEM(batch->objects, i), walk)) return false;
  } catch (const std::exception&) {
    return false;  // a tensor without such facts
  }
  return true;
}

PyObject* call(PyObject* self, PyObject* const*, size_t arguments, PyObject* names) {
  if (PyVectorcall_NARGS(arguments) != 0 || names != nullptr) {
    PyErr_SetString(PyExc_TypeError, "a batch is called without arguments");
    return nullptr;
  }
  const Batch* batch = batch_of(self);
  if (batch->noted == nullptr) Py_RETURN_FALSE;
  // a walk may start the collector, and so another thread, which notes something else
  PyObject* noted = Py_NewRef(batch->noted);
  Comparison comparison(PyTuple_GET_ITEM(noted, 0));
  const bool same = walk_all(batch, batch->kind->compare, comparison);
  Py_DECREF(noted);
  return PyBool_FromLong(same);
}

PyObject* look(PyObject* self, PyObject*) {
  const Batch* batch = batch_of(self);
  PyObject* owned = PyList_New(0);
  if (owned == nullptr) return nullptr;
  Look found(owned);
  if (!walk_all(batch, batch->kind->look, found)) {
    Py_DECREF(owned);
    if (PyErr_Occurred()) return nullptr;
    Py_RETURN_NONE;
  }
  const char* bytes = reinterpret_cast<const char*>(found.facts.data());
  PyObject* facts = PyBytes_FromStringAndSize(bytes, found.facts.size() * sizeof(Fact));
  PyObject* seen = facts == nullptr ? nullptr : PyTuple_Pack(2, facts, owned);
  Py_XDECREF(facts);
  Py_DECREF(owned);
  return seen;
}

bool is_of_look(PyObject* seen) {
  return PyTuple_Check(seen) && PyTuple_GET_SIZE(seen) == 2 &&
      PyBytes_CheckExact(PyTuple_GET_ITEM(seen, 0)) && PyList_CheckExact(PyTuple_GET_ITEM(seen, 1));
}

PyObject* note(PyObject* self, PyObject* seen) {
  if (!is_of_look(seen)) {
    PyErr_SetString(PyExc_TypeError, "note takes what look returned");
    return nullptr;
  }
  Py_XSETREF(batch_of(self)->noted, Py_NewRef(seen));
  Py_RETURN_NONE;
}

const Kind* kind_named(const char* name) {
  for (const Kind& kind : KINDS)
    if (std::strcmp(kind.name, name) == 0) return &kind;
  PyErr_Format(PyExc_ValueError, "there is no kind %s in this version of Python", name);
  return nullptr;
}

bool accepts_all(const Kind* kind, PyObject* objects) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(objects); ++i) {
    PyObject* x = PyTuple_GET_ITEM(objects, i);
    if (kind->accepts(x)) continue;
    PyErr_Format(PyExc_TypeError, "%s: not of a %s", kind->name, Py_TYPE(x)->tp_name);
    return false;
  }
  return true;
}

PyObject* create(PyTypeObject* type, PyObject* arguments, PyObject*) {
  const char* name;
  PyObject* given;
  if (!PyArg_ParseTuple(arguments, "sO", &name, &given)) return nullptr;
  const Kind* kind = kind_named(name);
  if (kind == nullptr) return nullptr;
  PyObject* objects = PySequence_Tuple(given);
  if (objects == nullptr) return nullptr;
  PyObject* self = accepts_all(kind, objects) ? type->tp_alloc(type, 0) : nullptr;
  if (self == nullptr) {
    Py_DECREF(objects);
    return nullptr;
  }
  batch_of(self)->call = call;
  batch_of(self)->kind = kind;
  batch_of(self)->objects = objects;
  return self;
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(batch_of(self)->objects);
  Py_VISIT(batch_of(self)->noted);
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(batch_of(self)->objects);
  Py_CLEAR(batch_of(self)->noted);
  return 0;
}

void deallocate(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* size(PyObject* self, void*) {
  const Batch* batch = batch_of(self);
  return PyLong_FromSsize_t(batch->objects == nullptr ? 0 : PyTuple_GET_SIZE(batch->objects));
}

PyMethodDef METHODS[] = {
    {"look", look, METH_NOARGS, "Return the facts of now, None if they cannot be noted."},
    {"note", note, METH_O, "Note the facts that `look` has returned."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef MEMBERS[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Batch, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef GETTERS[] = {
    {"size", size, nullptr, "How many objects there are.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

template <class Function>
void* slot(Function* function) {
  return reinterpret_cast<void*>(function);
}

PyType_Slot SLOTS[] = {
    {Py_tp_doc, const_cast<char*>("Objects of a kind, and the facts that were noted of them.")},
    {Py_tp_new, slot(create)},
    {Py_tp_dealloc, slot(deallocate)},
    {Py_tp_traverse, slot(traverse)},
    {Py_tp_clear, slot(clear)},
    {Py_tp_call, slot(PyVectorcall_Call)},
    {Py_tp_methods, METHODS},
    {Py_tp_members, MEMBERS},
    {Py_tp_getset, GETTERS},
    {0, nullptr},
};

PyType_Spec SPEC = {
    "batches.Batch",
    sizeof(Batch),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    SLOTS,
};

// Returns the dictionary of an object's attributes; None if it has none yet.
PyObject* own_dictionary_of(PyObject*, PyObject* x) {
  PyObject* own = own_dictionary(x);
  return Py_NewRef(own == nullptr ? Py_None : own);
}

PyMethodDef FUNCTIONS[] = {
    {"own_dictionary", own_dictionary_of, METH_O, "Return where an object has its attributes."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "batches", nullptr, -1, FUNCTIONS, nullptr, nullptr, nullptr, nullptr,
};

bool find_deque() {
  PyObject* collections = PyImport_ImportModule("collections");
  if (collections == nullptr) return false;
  deque_type = reinterpret_cast<PyTypeObject*>(PyObject_GetAttrString(collections, "deque"));
  Py_DECREF(collections);
  return deque_type != nullptr;
}

}  // namespace

PyMODINIT_FUNC PyInit_batches() {
  if (!find_deque()) return nullptr;
  PyObject* module = PyModule_Create(&MODULE);
  PyObject* type = PyType_FromSpec(&SPEC);
  if (module == nullptr || type == nullptr || PyModule_AddObject(module, "Batch", type) < 0 ||
      PyModule_AddStringConstant(module, "KEY", RUNTIME_NATIVE_KEY) < 0) {
    Py_XDECREF(type);
    Py_XDECREF(module);
    return nullptr;
  }
  return module;
}
