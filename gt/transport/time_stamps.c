/* The TimeStamps of time_stamps.py in C, for speed only: between two kernels all code is cold, so that what a stamp costs is the
   number of functions that it passes through. Each method runs to its end under the interpreter's lock. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <string.h>
#include <time.h>

#define FIRST_ROOM 64

typedef struct {
    PyObject_HEAD
    PyObject *clock; /* NULL: the system's, as time.time() reads it */
    PyObject *ended; /* the last entry that an iterator noted at its end, or None */
    PyObject **entries;
    double *starts;
    Py_ssize_t count, room;
} Stamps;

typedef struct {
    PyObject_HEAD
    Stamps *stamps;
    PyObject *code; /* an iterator; NULL once it has ended */
    PyObject *end;  /* NULL: nothing is noted at the end */
} Noted;

static PyTypeObject *NotedType;

/* The time; -1 with an error. */
static double now(Stamps *self) {
    if (self->clock == NULL) {
        struct timespec at;
        timespec_get(&at, TIME_UTC);
        return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
    }
    PyObject *at = PyObject_CallNoArgs(self->clock);
    double found = at != NULL ? PyFloat_AsDouble(at) : -1.0;
    Py_XDECREF(at);
    return found;
}

static int grow(Stamps *self) {
    Py_ssize_t room = self->room ? 2 * self->room : FIRST_ROOM;
    PyObject **entries = PyMem_Realloc(self->entries, room * sizeof(PyObject *));
    if (entries != NULL) self->entries = entries;
    double *starts = entries != NULL ? PyMem_Realloc(self->starts, room * sizeof(double)) : NULL;
    if (starts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->starts = starts;
    self->room = room;
    return 0;
}

static int note(Stamps *self, PyObject *entry, double at) {
    if (self->count == self->room && grow(self) < 0) return -1;
    self->entries[self->count] = Py_NewRef(entry);
    self->starts[self->count++] = at;
    return 0;
}

static PyObject *stamps_add(Stamps *self, PyObject *entry) {
    double at = now(self);
    if (at == -1.0 && PyErr_Occurred()) return NULL;
    return note(self, entry, at) < 0 ? NULL : PyFloat_FromDouble(at);
}

static PyObject *stamps_append(Stamps *self, PyObject *const *args, Py_ssize_t n) {
    if (n != 2) return PyErr_Format(PyExc_TypeError, "append takes an entry and a time, not %zd arguments", n);
    double at = PyFloat_AsDouble(args[1]);
    if (at == -1.0 && PyErr_Occurred()) return NULL;
    if (note(self, args[0], at) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *stamps_over(Stamps *self, PyObject *const *args, Py_ssize_t n) {
    if (n != 2) return PyErr_Format(PyExc_TypeError, "over takes an iterator and an entry or None, not %zd arguments", n);
    if (!PyIter_Check(args[0])) return PyErr_Format(PyExc_TypeError, "over takes an iterator, not %s", Py_TYPE(args[0])->tp_name);
    Noted *made = PyObject_GC_New(Noted, NotedType);
    if (made == NULL) return NULL;
    made->stamps = (Stamps *)Py_NewRef((PyObject *)self);
    made->code = Py_NewRef(args[0]);
    made->end = args[1] != Py_None ? Py_NewRef(args[1]) : NULL;
    PyObject_GC_Track(made);
    return (PyObject *)made;
}

static PyObject *stamps_last(Stamps *self, PyObject *unused) {
    if (!self->count) Py_RETURN_NONE;
    return Py_BuildValue("(Od)", self->entries[self->count - 1], self->starts[self->count - 1]);
}

static PyObject *stamps_replace_last(Stamps *self, PyObject *entry) {
    if (!self->count) {
        PyErr_SetString(PyExc_IndexError, "there is no entry");
        return NULL;
    }
    Py_SETREF(self->entries[self->count - 1], Py_NewRef(entry));
    Py_RETURN_NONE;
}

static PyObject *stamps_take(Stamps *self, PyObject *number) {
    Py_ssize_t n = PyLong_AsSsize_t(number);
    if (n == -1 && PyErr_Occurred()) return NULL;
    n = n < 0 ? 0 : n > self->count ? self->count : n;
    Py_ssize_t times = n < self->count ? n + 1 : n;
    PyObject *entries = PyList_New(n), *starts = PyBytes_FromStringAndSize((char *)self->starts, times * (Py_ssize_t)sizeof(double));
    PyObject *found = entries != NULL && starts != NULL ? PyTuple_Pack(2, entries, starts) : NULL;
    if (found != NULL) {
        for (Py_ssize_t i = 0; i < n; i++) PyList_SET_ITEM(entries, i, self->entries[i]); /* the references, too */
        self->count -= n;
        memmove(self->entries, self->entries + n, self->count * sizeof(PyObject *));
        memmove(self->starts, self->starts + n, self->count * sizeof(double));
    }
    Py_XDECREF(entries);
    Py_XDECREF(starts);
    return found;
}

static Py_ssize_t stamps_length(Stamps *self) { return self->count; }

static PyObject *stamps_new(PyTypeObject *type, PyObject *args, PyObject *names) {
    PyObject *clock;
    if (!PyArg_ParseTuple(args, "O:TimeStamps", &clock)) return NULL;
    Stamps *self = (Stamps *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->clock = clock != Py_None ? Py_NewRef(clock) : NULL;
    self->ended = Py_NewRef(Py_None);
    return (PyObject *)self;
}

/* Entries are instructions and messages, which do not refer to these stamps: the garbage collector need not see them. */
static int stamps_traverse(Stamps *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->clock);
    return 0;
}

static int stamps_clear(Stamps *self) {
    Py_CLEAR(self->clock);
    return 0;
}

static void stamps_dealloc(Stamps *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    for (Py_ssize_t i = 0; i < self->count; i++) Py_DECREF(self->entries[i]);
    PyMem_Free(self->entries);
    PyMem_Free(self->starts);
    Py_XDECREF(self->clock);
    Py_XDECREF(self->ended);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *noted_next(Noted *self) {
    if (self->code == NULL) return NULL;
    PyObject *entry = Py_TYPE(self->code)->tp_iternext(self->code);
    if (entry == NULL) {
        if (PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_StopIteration)) return NULL;
            PyErr_Clear();
        }
        Py_CLEAR(self->code);
        entry = self->end;
    }
    if (entry == NULL) return NULL;
    double at = now(self->stamps);
    int noted = at == -1.0 && PyErr_Occurred() ? -1 : note(self->stamps, entry, at);
    if (self->code != NULL) {
        if (noted < 0) Py_CLEAR(entry);
        return entry;
    }
    self->end = NULL;
    Py_SETREF(self->stamps->ended, entry);
    return NULL;
}

static int noted_traverse(Noted *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->stamps);
    Py_VISIT(self->code);
    Py_VISIT(self->end);
    return 0;
}

static int noted_clear(Noted *self) {
    Py_CLEAR(self->code);
    return 0;
}

static void noted_dealloc(Noted *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->stamps);
    Py_XDECREF(self->code);
    Py_XDECREF(self->end);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMethodDef stamps_methods[] = {
    {"add", (PyCFunction)stamps_add, METH_O, "Note an entry that begins at this moment, and return the time."},
    {"append", (PyCFunction)(void (*)(void))stamps_append, METH_FASTCALL, "Note an entry that began at a given time."},
    {"over", (PyCFunction)(void (*)(void))stamps_over, METH_FASTCALL, "The same entries, each noted as it is asked for."},
    {"last", (PyCFunction)stamps_last, METH_NOARGS, "The last entry and its time, or None."},
    {"replace_last", (PyCFunction)stamps_replace_last, METH_O, "Put another entry in the place of the last."},
    {"take", (PyCFunction)stamps_take, METH_O, "Remove the first entries: they, and the times."},
    {NULL}};
static PyMemberDef stamps_members[] = {{"ended", T_OBJECT_EX, offsetof(Stamps, ended), READONLY, NULL}, {NULL}};
static PyType_Slot stamps_slots[] = {
    {Py_tp_new, stamps_new}, {Py_tp_dealloc, stamps_dealloc}, {Py_tp_traverse, stamps_traverse}, {Py_tp_clear, stamps_clear},
    {Py_tp_methods, stamps_methods}, {Py_tp_members, stamps_members}, {Py_sq_length, stamps_length}, {0, NULL}};
static PyType_Spec stamps_spec = {
    "gt.transport._time_stamps.TimeStamps", sizeof(Stamps), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, stamps_slots};
static PyType_Slot noted_slots[] = {
    {Py_tp_dealloc, noted_dealloc}, {Py_tp_traverse, noted_traverse}, {Py_tp_clear, noted_clear},
    {Py_tp_iter, PyObject_SelfIter}, {Py_tp_iternext, noted_next}, {0, NULL}};
static PyType_Spec noted_spec = {
    "gt.transport._time_stamps.Noted", sizeof(Noted), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, noted_slots};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "gt.transport._time_stamps", SOURCE, -1, NULL};

PyMODINIT_FUNC PyInit__time_stamps(void) {
    PyObject *module = PyModule_Create(&definition), *stamps = NULL;
    if (module == NULL) return NULL;
    NotedType = (PyTypeObject *)PyType_FromSpec(&noted_spec);
    stamps = PyType_FromSpec(&stamps_spec);
    if (NotedType == NULL || stamps == NULL || PyModule_AddObjectRef(module, "TimeStamps", stamps) < 0) {
        Py_XDECREF(stamps);
        Py_DECREF(module);
        return NULL;
    }
    Py_DECREF(stamps);
    return module;
}
