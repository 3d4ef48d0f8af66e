/* Runs of instructions on small float32 tensors in one call: their kernels take less time than PyTorch takes to start them.
   gt/small plans them: which step follows which, over which slots, with which sizes and strides. It checks these
   against the tensors' specs; indices in tensors are checked here. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>

#include "clones.h"
#include "pointwise.h"
#include "rows.h"
#include "products.h"
#include "recurrent.h"
#include "channels.h"

enum { OUT = 1, A, B, C, SIZES, WORDS = SIZES + 16 }; /* of a step: its op, slots, then sizes and strides */
enum { AXES = 4 };

typedef struct {
    const char *name;
    int (*run)(char **slots, const int64_t *w);
    void (*plane)(const Plane *);
    int of_a, of_b, of_out; /* bytes of an element */
} Op;

/* Slots are inputs, results, numbers, values that only this run uses, at `offsets` in its memory, then parts of other slots: for
   each of these, `shifts` has that slot and a distance in bytes. */
typedef struct {
    Py_ssize_t inputs, results, holes, numbers, inner, parts, steps;
    PyObject *like; /* a tensor like each result */
    float *number;
    int64_t *bytes, *offsets, *shifts, *words; /* bytes: of each input */
    char **slots;
} Plan;

static char *memory; /* of all runs, one after another: the interpreter's lock is held */
static int64_t memory_size;
static PyObject *empty_like, *is_contiguous, *contiguous, *is_neg, *resolve_neg, *data_ptr, *nbytes;

/* Two loops around a plane: elements of four axes, with the strides of each operand. */
static int elementwise(char **slots, const int64_t *w);

#define P(i) w[SIZES + (i)]
static int run_sums(char **s, const int64_t *w) {
    sums_along((float *)s[w[A]], (float *)s[w[OUT]], P(0), P(1), P(2), P(3) ? (float)P(1) : 1.0f);
    return 1;
}
static int run_norm(char **s, const int64_t *w) { return norm((float *)s[w[A]], (float *)s[w[OUT]], P(0)), 1; }
static int run_least(char **s, const int64_t *w) {
    return least((float *)s[w[A]], P(2) ? NULL : (float *)s[w[OUT]], (int64_t *)s[P(2) ? w[OUT] : w[B]], P(0), P(1)), 1;
}
static int run_most(char **s, const int64_t *w) {
    return most((float *)s[w[A]], P(2) ? NULL : (float *)s[w[OUT]], (int64_t *)s[P(2) ? w[OUT] : w[B]], P(0), P(1)), 1;
}
static int run_softmax(char **s, const int64_t *w) {
    return softmax((float *)s[w[A]], (float *)s[w[OUT]], P(0), P(1), (int)P(2)), 1;
}
static int run_softmax_gradient(char **s, const int64_t *w) {
    return softmax_gradient((float *)s[w[A]], (float *)s[w[B]], (float *)s[w[OUT]], P(0), P(1), (int)P(2)), 1;
}
static int run_picked(char **s, const int64_t *w) {
    return picked_rows((float *)s[w[A]], (int64_t *)s[w[B]], (float *)s[w[OUT]], P(0), P(1), P(2));
}
static int run_added(char **s, const int64_t *w) {
    const float *a = w[A] < 0 ? NULL : (float *)s[w[A]];
    return added_rows(a, (int64_t *)s[w[B]], (float *)s[w[C]], (float *)s[w[OUT]], P(0), P(1), P(2));
}
static int run_gathered(char **s, const int64_t *w) {
    return gathered((float *)s[w[A]], (int64_t *)s[w[B]], (float *)s[w[OUT]], P(0), P(1), P(2));
}
static int run_scattered(char **s, const int64_t *w) {
    return scattered((float *)s[w[A]], (int64_t *)s[w[B]], (float *)s[w[OUT]], P(0), P(1), P(2));
}
static int run_product(char **s, const int64_t *w) {
    const float *bias = w[C] < 0 ? NULL : (float *)s[w[C]];
    Product p = {(float *)s[w[A]], (float *)s[w[B]], bias, (float *)s[w[OUT]], P(0), P(1), P(2), P(3), P(4), P(5), P(6), 0};
    return multiply(&p), 1;
}
/* One operand of several joined along an axis: blocks of P(1) elements, P(2) from one to the next, from P(3) on. */
static int run_joined(char **s, const int64_t *w) {
    for (int64_t i = 0; i < P(0); i++)
        memcpy((float *)s[w[OUT]] + P(3) + i * P(2), (float *)s[w[A]] + i * P(1), (size_t)P(1) * sizeof(float));
    return 1;
}

/* Blocks of P(1) rows of P(2) elements, each moved on by P(3) rows, the last ones to the front. */
static int run_rolled(char **s, const int64_t *w) {
    int64_t block = P(1) * P(2), moved = P(3) * P(2);
    for (int64_t i = 0; i < P(0); i++) {
        const float *a = (float *)s[w[A]] + i * block;
        float *out = (float *)s[w[OUT]] + i * block;
        memcpy(out + moved, a, (size_t)(block - moved) * sizeof(float));
        memcpy(out, a + block - moved, (size_t)moved * sizeof(float));
    }
    return 1;
}

#define FLOATS(NAME) {#NAME, elementwise, NAME, 4, 4, 4}
#define TRUTHS(NAME) {#NAME, elementwise, NAME, 4, 4, 1}
#define OF_TRUTHS(NAME) {#NAME, elementwise, NAME, 1, 1, 1}
static const Op OPS[] = {
    FLOATS(copy_words), {"copy_longs", elementwise, copy_longs, 8, 8, 8}, OF_TRUTHS(copy_bytes), FLOATS(negate), FLOATS(absolute), FLOATS(square), FLOATS(square_root),
    FLOATS(inverse), FLOATS(positive_part), FLOATS(exponentials), FLOATS(tangents), FLOATS(sigmoids), FLOATS(logarithms),
    OF_TRUTHS(not_true), FLOATS(sums), FLOATS(differences), FLOATS(products), FLOATS(quotients), FLOATS(larger),
    FLOATS(smaller), TRUTHS(equal), TRUTHS(unequal), TRUTHS(less), TRUTHS(at_most), TRUTHS(greater), TRUTHS(at_least),
    OF_TRUTHS(both), OF_TRUTHS(either), OF_TRUTHS(one_of_two), FLOATS(square_gradients), FLOATS(tangent_gradients),
    FLOATS(sigmoid_gradients), FLOATS(positive_gradients), {"chosen", elementwise, chosen, 1, 4, 4}, FLOATS(clamped),
    FLOATS(soft_pluses),
    {.name = "sums_along", .run = run_sums}, {.name = "norm", .run = run_norm}, {.name = "least", .run = run_least},
    {.name = "most", .run = run_most}, {.name = "softmax", .run = run_softmax},
    {.name = "softmax_gradient", .run = run_softmax_gradient}, {.name = "picked_rows", .run = run_picked},
    {.name = "added_rows", .run = run_added}, {.name = "gathered", .run = run_gathered},
    {.name = "scattered", .run = run_scattered}, {.name = "product", .run = run_product},
    {.name = "joined", .run = run_joined}, {.name = "rolled", .run = run_rolled},
};
enum { COUNT = sizeof(OPS) / sizeof(OPS[0]) };

static int elementwise(char **slots, const int64_t *w) {
    const Op *op = OPS + w[0];
    const int64_t *n = w + SIZES, *a = n + AXES, *b = a + AXES, *c = b + AXES;
    const char *of_a = slots[w[A]], *of_b = w[B] < 0 ? of_a : slots[w[B]], *of_c = w[C] < 0 ? of_a : slots[w[C]];
    char *out = slots[w[OUT]];
    Plane p = {NULL, NULL, NULL, NULL, n[2], n[3], a[2], a[3], b[2], b[3], c[2], c[3]};
    for (int64_t i = 0; i < n[0]; i++)
        for (int64_t j = 0; j < n[1]; j++) {
            p.a = of_a + (i * a[0] + j * a[1]) * op->of_a;
            p.b = of_b + (i * b[0] + j * b[1]) * op->of_b;
            p.c = of_c + (i * c[0] + j * c[1]) * op->of_b;
            p.out = out + (i * n[1] + j) * n[2] * n[3] * op->of_out;
            op->plane(&p);
        }
    return 1;
}

static void freed(PyObject *capsule) {
    Plan *plan = PyCapsule_GetPointer(capsule, NULL);
    Py_XDECREF(plan->like);
    PyMem_Free(plan->number);
    PyMem_Free(plan->bytes);
    PyMem_Free(plan->offsets);
    PyMem_Free(plan->shifts);
    PyMem_Free(plan->words);
    PyMem_Free(plan->slots);
    PyMem_Free(plan);
}

static int reserve(int64_t size) {
    if (size <= memory_size) return 1;
    char *more = aligned_alloc(64, (size_t)size);
    if (!more) return PyErr_NoMemory(), 0;
    free(memory);
    memory = more;
    memory_size = size;
    return 1;
}

/* The elements of a buffer, in memory of their own. */
static void *copied(const Py_buffer *buffer) {
    void *made = PyMem_Malloc((size_t)buffer->len + 1);
    return made ? memcpy(made, buffer->buf, (size_t)buffer->len) : PyErr_NoMemory();
}

/* plan(words, bytes, offsets, shifts, numbers, like, holes, size): arrays of int64, and of float32 for numbers; a tensor like each result, or
   its number of bytes; how many holes; bytes of memory, a multiple of 64. Holes are the last numbers. */
static PyObject *make_plan(PyObject *module, PyObject *args) {
    Py_buffer words, bytes, offsets, shifts, numbers;
    PyObject *like;
    Py_ssize_t holes;
    long long size;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*O!nL", &words, &bytes, &offsets, &shifts, &numbers, &PyTuple_Type, &like, &holes, &size))
        return NULL;
    Plan *plan = PyMem_Calloc(1, sizeof(Plan));
    PyObject *made = plan ? PyCapsule_New(plan, NULL, freed) : PyErr_NoMemory();
    if (made) {
        plan->like = Py_NewRef(like);
        plan->inputs = bytes.len / 8, plan->holes = holes, plan->results = PyTuple_GET_SIZE(like);
        plan->numbers = numbers.len / 4, plan->inner = offsets.len / 8, plan->steps = words.len / 8 / WORDS;
        plan->parts = shifts.len / 16;
        plan->number = copied(&numbers);
        plan->bytes = copied(&bytes);
        plan->offsets = copied(&offsets);
        plan->shifts = copied(&shifts);
        plan->words = copied(&words);
        Py_ssize_t slots = plan->inputs + plan->results + plan->numbers + plan->inner + plan->parts;
        plan->slots = PyMem_Malloc((size_t)(slots + 1) * sizeof(char *));
        if (!plan->slots) PyErr_NoMemory();
        if (PyErr_Occurred() || !reserve(size)) Py_CLEAR(made);
    }
    PyBuffer_Release(&bytes);
    PyBuffer_Release(&words);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&shifts);
    PyBuffer_Release(&numbers);
    return made;
}

static int is_true(PyObject *tensor, PyObject *name) {
    PyObject *found = PyObject_CallMethodNoArgs(tensor, name);
    Py_XDECREF(found);
    return found ? found == Py_True : -1;
}

static int has_bytes(PyObject *tensor, int64_t want) {
    PyObject *found = PyBytes_Check(tensor) ? NULL : PyObject_GetAttr(tensor, nbytes);
    int64_t count = PyBytes_Check(tensor) ? PyBytes_GET_SIZE(tensor) : found ? PyLong_AsLongLong(found) : -1;
    Py_XDECREF(found);
    if (count == want) return 1;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "a run of small tensors expected one of %lld bytes, got %lld", (long long)want, (long long)count);
    return 0;
}

/* The address of a contiguous tensor's elements, or of those in a bytes object. */
static char *start_of(PyObject *tensor) {
    if (PyBytes_Check(tensor)) return PyBytes_AS_STRING(tensor);
    PyObject *number = PyObject_CallMethodNoArgs(tensor, data_ptr);
    char *found = number ? PyLong_AsVoidPtr(number) : NULL;
    Py_XDECREF(number);
    if (!found && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a tensor without memory in a run of small ones");
    return found;
}

/* The address of a tensor's elements; `kept` is the tensor, or its contiguous copy. */
static char *address(PyObject *tensor, PyObject **kept) {
    if (PyBytes_Check(tensor)) return start_of(*kept = Py_NewRef(tensor));
    int plain = is_true(tensor, is_contiguous), negative = plain < 0 ? -1 : is_true(tensor, is_neg);
    if (negative < 0) return NULL;
    PyObject *own = Py_NewRef(tensor);
    if (!plain || negative) {
        Py_SETREF(own, PyObject_CallMethodNoArgs(own, plain ? resolve_neg : contiguous));
        if (own && negative && !plain) Py_SETREF(own, PyObject_CallMethodNoArgs(own, resolve_neg));
        if (!own) return NULL;
    }
    *kept = own;
    return start_of(own);
}

/* A tensor like another, or a bytes object of so many bytes. */
static PyObject *made_like(PyObject *like) {
    if (!PyLong_Check(like)) return PyObject_CallOneArg(empty_like, like);
    return PyBytes_FromStringAndSize(NULL, PyLong_AsSsize_t(like));
}

static int filled(Plan *plan, PyObject *const *operands, PyObject **kept) {
    Py_ssize_t at = 0;
    for (Py_ssize_t i = 0; i < plan->inputs; i++, at++)
        if (!has_bytes(operands[i], plan->bytes[i]) || !(plan->slots[at] = address(operands[i], kept + at))) return 0;
    for (Py_ssize_t i = 0; i < plan->results; i++, at++) {
        kept[at] = made_like(PyTuple_GET_ITEM(plan->like, i));
        if (!kept[at] || !(plan->slots[at] = start_of(kept[at]))) return 0;
    }
    for (Py_ssize_t i = 0; i < plan->holes; i++) {
        double number = PyFloat_AsDouble(operands[plan->inputs + i]);
        if (number == -1.0 && PyErr_Occurred()) return 0;
        if (isfinite(number) && fabs(number) > FLT_MAX)
            return PyErr_SetString(PyExc_OverflowError, "a number that float32 does not hold"), 0;
        plan->number[plan->numbers - plan->holes + i] = (float)number;
    }
    for (Py_ssize_t i = 0; i < plan->numbers; i++, at++) plan->slots[at] = (char *)(plan->number + i);
    for (Py_ssize_t i = 0; i < plan->inner; i++, at++) plan->slots[at] = memory + plan->offsets[i];
    for (Py_ssize_t i = 0; i < plan->parts; i++, at++) plan->slots[at] = plan->slots[plan->shifts[2 * i]] + plan->shifts[2 * i + 1];
    return 1;
}

enum { RUN, LAYER, LAYER_GRADIENT, ROWS, NORM, NORM_GRADIENT, KERNELS };
static const char *const KERNEL_NAMES[] = {"runs", "recurrent", "recurrent_gradient", "rows", "norm", "norm_gradient"};
static long long calls[KERNELS]; /* of each kind of kernel, by threads that hold Python's lock */

/* run(plan, *inputs, *holes): the results. */
#define FEW 64
static PyObject *run(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    Plan *plan = given ? PyCapsule_GetPointer(args[0], NULL) : NULL;
    if (!plan) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "run expected a plan");
    if (given != 1 + plan->inputs + plan->holes)
        return PyErr_Format(PyExc_TypeError, "run expected %zd operands, got %zd", plan->inputs + plan->holes, given - 1);
    Py_ssize_t count = plan->inputs + plan->results;
    PyObject *few[FEW] = {NULL}, **kept = count <= FEW ? few : PyMem_Calloc((size_t)count, sizeof(PyObject *)), *made = NULL;
    if (!kept) return PyErr_NoMemory();
    if (filled(plan, args + 1, kept)) {
        const int64_t *w = plan->words;
        Py_ssize_t i = 0;
        while (i < plan->steps && OPS[w[0]].run(plan->slots, w)) i++, w += WORDS;
        calls[RUN]++;
        if (i < plan->steps)
            PyErr_SetString(PyExc_IndexError, "index out of range");
        else if (plan->results == 1)
            made = Py_NewRef(kept[plan->inputs]);
        else if ((made = PyTuple_New(plan->results)))
            for (Py_ssize_t j = 0; j < plan->results; j++) PyTuple_SET_ITEM(made, j, Py_NewRef(kept[plan->inputs + j]));
    }
    for (Py_ssize_t i = 0; i < count; i++) Py_XDECREF(kept[i]);
    if (kept != few) PyMem_Free(kept);
    return made;
}

/* loaded(buffer, like): a tensor like another, of a buffer's bytes. */
static PyObject *loaded(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    Py_buffer buffer;
    if (given != 2) return PyErr_Format(PyExc_TypeError, "loaded expected a buffer and a tensor, got %zd operands", given);
    if (PyObject_GetBuffer(args[0], &buffer, PyBUF_SIMPLE)) return NULL;
    PyObject *made = has_bytes(args[1], buffer.len) ? PyObject_CallOneArg(empty_like, args[1]) : NULL;
    char *to = made ? start_of(made) : NULL;
    if (to)
        memcpy(to, buffer.buf, (size_t)buffer.len);
    else
        Py_CLEAR(made);
    PyBuffer_Release(&buffer);
    return made;
}

/* use(empty_like): PyTorch's function that makes a tensor like another. */
static PyObject *use(PyObject *module, PyObject *function) {
    Py_XSETREF(empty_like, Py_NewRef(function));
    Py_RETURN_NONE;
}

/* The functions of recurrent.h, over addresses. */
#define MOST_ADDRESSES 32
static int addresses(PyObject *const *args, Py_ssize_t given, Py_ssize_t want, int64_t *found) {
    if (given != want) return PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", want, given), 0;
    for (Py_ssize_t i = 0; i < given; i++) {
        found[i] = PyLong_AsLongLong(args[i]);
        if (found[i] == -1 && PyErr_Occurred()) return 0;
    }
    return 1;
}

static PyObject *layer(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    int64_t of[MOST_ADDRESSES];
    if (!addresses(args, given, LAYER_FORWARD, of)) return NULL;
    calls[LAYER]++;
    Py_BEGIN_ALLOW_THREADS layer_forward(of);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *layer_gradient(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    int64_t of[MOST_ADDRESSES];
    if (!addresses(args, given, LAYER_BACKWARD, of)) return NULL;
    calls[LAYER_GRADIENT]++;
    Py_BEGIN_ALLOW_THREADS layer_backward(of);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

/* The functions of channels.h. */
static PyObject *batch_norm(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    int64_t of[MOST_ADDRESSES];
    if (!addresses(args, given - 1, NORM_FORWARD, of)) return NULL;
    double eps = PyFloat_AsDouble(args[NORM_FORWARD]);
    if (eps == -1.0 && PyErr_Occurred()) return NULL;
    channel_norm(of, eps);
    calls[NORM]++;
    Py_RETURN_NONE;
}

static PyObject *batch_norm_gradient(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    int64_t of[MOST_ADDRESSES];
    if (!addresses(args, given, NORM_BACKWARD, of)) return NULL;
    channel_norm_gradient(of);
    calls[NORM_GRADIENT]++;
    Py_RETURN_NONE;
}

/* add_rows(table, rows, width, places, count, source, scale): scale times the source's rows, added to rows of a table in place;
   whether all places are in the table: if not, it is as before. */
static PyObject *add_rows(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    int64_t of[MOST_ADDRESSES];
    if (!addresses(args, given - 1, 6, of)) return NULL;
    double scale = PyFloat_AsDouble(args[6]);
    if (scale == -1.0 && PyErr_Occurred()) return NULL;
    if (!in_range(I(3), of[4], of[1])) Py_RETURN_FALSE;
    calls[ROWS]++;
    scaled_rows_added(I(3), F(5), F(0), of[4], of[2], (float)scale);
    Py_RETURN_TRUE;
}

/* counts(): how often each kind of kernel ran in this process. */
static PyObject *counts(PyObject *module, PyObject *unused) {
    PyObject *made = PyDict_New();
    for (int i = 0; made && i < KERNELS; i++) {
        PyObject *number = PyLong_FromLongLong(calls[i]);
        if (!number || PyDict_SetItemString(made, KERNEL_NAMES[i], number)) Py_CLEAR(made);
        Py_XDECREF(number);
    }
    return made;
}

static PyMethodDef methods[] = {
    {"add_rows", (PyCFunction)(void (*)(void))add_rows, METH_FASTCALL, "Rows added to a table's."},
    {"batch_norm", (PyCFunction)(void (*)(void))batch_norm, METH_FASTCALL, "A batch norm in training."},
    {"batch_norm_gradient", (PyCFunction)(void (*)(void))batch_norm_gradient, METH_FASTCALL, "The gradients of one."},
    {"counts", counts, METH_NOARGS, "How often each kind of kernel ran."},
    {"loaded", (PyCFunction)(void (*)(void))loaded, METH_FASTCALL, "A tensor of a buffer's bytes."},
    {"layer", (PyCFunction)(void (*)(void))layer, METH_FASTCALL, "One direction of a recurrent layer."},
    {"layer_gradient", (PyCFunction)(void (*)(void))layer_gradient, METH_FASTCALL, "The gradients of one."},
    {"plan", make_plan, METH_VARARGS, "A plan of steps."},
    {"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL, "The results of a plan's steps."},
    {"use", use, METH_O, "Set the function that makes a tensor like another."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_small_run", SOURCE, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__small_run(void) {
    PyObject *made = PyModule_Create(&module), *ops = made ? PyDict_New() : NULL;
    is_contiguous = PyUnicode_InternFromString("is_contiguous"), contiguous = PyUnicode_InternFromString("contiguous");
    is_neg = PyUnicode_InternFromString("is_neg"), resolve_neg = PyUnicode_InternFromString("resolve_neg");
    data_ptr = PyUnicode_InternFromString("data_ptr"), nbytes = PyUnicode_InternFromString("nbytes");
    for (int i = 0; ops && i < COUNT; i++) {
        PyObject *number = PyLong_FromLong(i);
        if (!number || PyDict_SetItemString(ops, OPS[i].name, number)) Py_CLEAR(ops);
        Py_XDECREF(number);
    }
    if (!ops || PyModule_AddObjectRef(made, "OPS", ops) || PyModule_AddIntConstant(made, "WORDS", WORDS) ||
        PyModule_AddIntConstant(made, "DEEPEST", DEEPEST))
        Py_CLEAR(made);
    Py_XDECREF(ops);
    return made;
}
